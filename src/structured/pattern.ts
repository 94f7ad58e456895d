// Regular expressions of schemas as grammar: what is regular and looks at nothing but the next character. Everything else is refused.
import type { Dialect } from "./dialect.ts";
import { classChar } from "./ebnf.ts";

interface CharSet { readonly negated: boolean; readonly ranges: readonly (readonly [low: number, high: number])[] }

const DIGIT: CharSet["ranges"] = [[48, 57]];
const WORD: CharSet["ranges"] = [[48, 57], [65, 90], [95, 95], [97, 122]];
const SPACE: CharSet["ranges"] = [[9, 13], [32, 32], [160, 160], [0x2028, 0x2029], [0xfeff, 0xfeff]];
const CLASSES: Readonly<Record<string, CharSet>> = {
  d: { negated: false, ranges: DIGIT }, D: { negated: true, ranges: DIGIT }, w: { negated: false, ranges: WORD }, W: { negated: true, ranges: WORD },
  s: { negated: false, ranges: SPACE }, S: { negated: true, ranges: SPACE },
};
const ESCAPES: Readonly<Record<string, number>> = { n: 10, r: 13, t: 9, f: 12, v: 11, 0: 0 };
/** Repetitions are unrolled when a grammar is compiled; wide classes cost a pass over the vocabulary for each. */
const MAX_REPEAT = 1000;

/** Grammar of the strings that match `source` (somewhere, as JSON Schema has it, unless it is anchored). Throws Error that says what it cannot do. */
export function patternGrammar(source: string, dialect: Dialect): { grammar: string; cost: number } {
  const parser = new PatternParser(source, dialect);
  return { grammar: parser.whole(), cost: parser.cost };
}

class PatternParser {
  #at = 0;
  #depth = 0;
  /** Wide character positions that the compiler has to look at. */
  cost = 0;
  constructor(private readonly source: string, private readonly dialect: Dialect) {}

  whole(): string {
    const any = `${this.#set({ negated: true, ranges: [] })}*`, parts: string[] = [];
    do {
      const start = this.#take("^");
      const body = this.#sequence();
      const end = this.#take("$");
      parts.push(`${start ? "" : `${any} `}${body}${end ? "" : ` ${any}`}`);
    } while (this.#take("|"));
    if (this.#at < this.source.length) this.#fail(`unexpected ${JSON.stringify(this.source[this.#at])}`);
    return `(${parts.join(" | ")})`;
  }

  #alternatives(): string {
    if (++this.#depth > 32) this.#fail("too deeply nested");
    const parts = [this.#sequence()];
    while (this.#take("|")) parts.push(this.#sequence());
    this.#depth--;
    return parts.join(" | ");
  }
  #sequence(): string {
    const parts: string[] = [];
    while (this.#at < this.source.length && !/[|)$]/.test(this.source[this.#at]!)) {
      const before = this.cost, atom = this.#atom(), repeat = this.#quantifier(), times = repeat?.times ?? 1;
      this.cost = before + (this.cost - before) * times;
      parts.push(atom + (repeat?.text ?? ""));
    }
    return parts.length === 0 ? '""' : parts.join(" ");
  }
  #quantifier(): { text: string; times: number } | undefined {
    const match = /^(?:([*+?])|\{(\d+)(?:(,)(\d*))?\})\??/.exec(this.source.slice(this.#at));
    if (!match) return undefined;
    this.#at += match[0].length;
    if (/^[*+?{]/.test(this.source.slice(this.#at))) this.#fail("a quantifier of a quantifier");
    const [, sign, min, comma, max] = match;
    if (sign !== undefined) return { text: sign, times: 1 };
    const least = Number(min), most = comma === undefined ? least : max === "" ? undefined : Number(max);
    if (Math.max(least, most ?? 0) > MAX_REPEAT || (most ?? least) < least) this.#fail(`the repetition ${match[0]}`);
    return { text: `{${least}${comma === undefined ? "" : `,${most ?? ""}`}}`, times: Math.max(1, most ?? least) };
  }
  #atom(): string {
    const c = this.#next();
    switch (c) {
      case "(": {
        const group = /^(?:\?:|\?<[A-Za-z_$][\w$]*>)?/.exec(this.source.slice(this.#at))![0];
        this.#at += group.length;
        if (this.source[this.#at] === "?") this.#fail("a look-around");
        const body = this.#alternatives();
        if (!this.#take(")")) this.#fail("a bracket that is not closed");
        return `(${body})`;
      }
      case "[": return this.#set(this.#class());
      case ".": return this.#set({ negated: true, ranges: [[10, 10], [13, 13]] });
      case "\\": {
        const escaped = this.#escape();
        return typeof escaped === "number" ? this.dialect.character(String.fromCodePoint(escaped)) : this.#set(escaped);
      }
      case "*": case "+": case "?": return this.#fail("a quantifier of nothing");
      case "^": return this.#fail("an anchor inside");
      default: return this.dialect.character(c);
    }
  }
  #class(): CharSet {
    const negated = this.#take("^"), ranges: [number, number][] = [];
    while (!this.#take("]")) {
      const low = this.#member();
      if (typeof low !== "number") {
        if (low.negated) this.#fail("a negated class inside a class");
        ranges.push(...low.ranges.map((r): [number, number] => [r[0], r[1]]));
      } else if (this.source[this.#at] === "-" && this.source[this.#at + 1] !== "]") {
        this.#at++;
        const high = this.#member();
        if (typeof high !== "number" || high < low) this.#fail("a range that is none");
        ranges.push([low, high as number]);
      } else ranges.push([low, low]);
    }
    return { negated, ranges };
  }
  #member(): number | CharSet {
    const c = this.#next();
    return c === "\\" ? this.source[this.#at] === "b" ? (this.#at++, 8) : this.#escape() : c.codePointAt(0)!;
  }
  #escape(): number | CharSet {
    const c = this.#next();
    if (c in CLASSES) return CLASSES[c]!;
    if (c in ESCAPES) return ESCAPES[c]!;
    const hex = /^(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})/.exec(c + this.source.slice(this.#at));
    if (hex) {
      this.#at += hex[0].length - 1;
      return parseInt(hex[1] ?? hex[2] ?? hex[3]!, 16);
    }
    if (/[A-Za-z0-9]/.test(c)) this.#fail(`\\${c}`);
    return c.codePointAt(0)!;
  }

  /** A character of the set, as the dialect writes it inside strings. Characters that it would have to escape are left to literals. */
  #set({ negated, ranges }: CharSet): string {
    const barred = [...this.dialect.barred].map((c) => c.codePointAt(0)!);
    if (negated) {
      this.cost++;
      if (ranges.some(([, high]) => high > 0x7f)) this.#fail("a negated class with characters beyond ASCII");
      const out = [...ranges, ...barred.map((c): [number, number] => [c, c]), [0, 0x1f] as const];
      return `[^${out.map(([a, b]) => (a === b ? classChar(a) : `${classChar(a)}-${classChar(b)}`)).join("")}]`;
    }
    if (ranges.length === 0) this.#fail("a class that matches nothing");
    const parts: string[] = [], alone: string[] = [];
    let wide = 0;
    for (const [low, high] of ranges) {
      wide += high - low + 1;
      let from = low;
      const cut = (until: number, next: number): void => {
        if (from <= until) parts.push(from === until ? classChar(from) : `${classChar(from)}-${classChar(until)}`);
        from = next;
      };
      for (const b of [...barred, ...Array.from({ length: 0x20 }, (_, i) => i)].sort((x, y) => x - y)) {
        if (b < from || b > high) continue;
        alone.push(this.dialect.character(String.fromCodePoint(b)));
        cut(b - 1, b + 1);
      }
      cut(high, high + 1);
    }
    if (wide > 12) this.cost += Math.min(1, wide / 60);
    const plain = parts.length === 0 ? [] : [`[${parts.join("")}]`];
    return alone.length === 0 ? plain[0]! : `(${[...plain, ...new Set(alone)].join(" | ")})`;
  }

  #take(c: string): boolean {
    if (this.source[this.#at] !== c) return false;
    this.#at++;
    return true;
  }
  #next(): string {
    const code = this.source.codePointAt(this.#at);
    if (code === undefined) this.#fail("it ends too early");
    const c = String.fromCodePoint(code!);
    this.#at += c.length;
    return c;
  }
  #fail(what: string): never { throw new Error(`the pattern ${JSON.stringify(this.source)} has ${what}`); }
}
