// A small SVG writer: shapes and text with escaped content, collected into one document. Knows nothing of what is drawn.

type Attributes = Readonly<Record<string, string | number | undefined>>;

const escape = (s: string): string => s.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]!);
const round = (v: string | number): string => (typeof v === "number" ? String(Math.round(v * 100) / 100) : escape(v));
const attributes = (a: Attributes): string => Object.entries(a).filter(([, v]) => v !== undefined).map(([k, v]) => ` ${k}="${round(v!)}"`).join("");

/** A picture of fixed size in user units, on white. */
export class Svg {
  readonly #parts: string[] = [];
  constructor(readonly width: number, readonly height: number, readonly title: string) {}

  line(x1: number, y1: number, x2: number, y2: number, a: Attributes = {}): void { this.#parts.push(`<line${attributes({ x1, y1, x2, y2, stroke: "#333", ...a })}/>`); }
  rect(x: number, y: number, width: number, height: number, a: Attributes = {}): void { this.#parts.push(`<rect${attributes({ x, y, width: Math.max(0, width), height: Math.max(0, height), ...a })}/>`); }
  /** A dot; `tip` shows under the pointer. */
  dot(cx: number, cy: number, r: number, tip: string, a: Attributes = {}): void { this.#parts.push(`<circle${attributes({ cx, cy, r, ...a })}><title>${escape(tip)}</title></circle>`); }
  text(x: number, y: number, content: string, a: Attributes = {}): void { this.#parts.push(`<text${attributes({ x, y, ...a })}>${escape(content)}</text>`); }

  toString(): string {
    const { width, height } = this;
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${round(width)}" height="${round(height)}" viewBox="0 0 ${round(width)} ${round(height)}" font-family="system-ui, sans-serif" font-size="12" fill="#222">
<title>${escape(this.title)}</title>
<rect width="100%" height="100%" fill="#fff"/>
${this.#parts.join("\n")}
</svg>
`;
  }
}

/** Maps [from, to] to [start, end] on a logarithmic axis. */
export function logScale(from: number, to: number, start: number, end: number): (value: number) => number {
  const a = Math.log10(from), b = Math.log10(to);
  return (value) => start + ((Math.log10(value) - a) / (b - a)) * (end - start);
}

/** Powers of ten from the one at or below `from` to the one at or above `to`; at least two. */
export function decades(from: number, to: number): number[] {
  const first = Math.floor(Math.log10(from)), last = Math.max(first + 1, Math.ceil(Math.log10(to)));
  return Array.from({ length: last - first + 1 }, (_, i) => 10 ** (first + i));
}
