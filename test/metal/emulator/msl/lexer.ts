// Splits preprocessed MSL into tokens that remember file and line, and finds matching brackets. Knows nothing of what they mean.

export interface Token { text: string; readonly kind: "name" | "number" | "string" | "punctuation" | "space" | "marker"; readonly file: string; readonly line: number }

/** A fault in MSL text, as "file:line: error: what". */
export class MslError extends Error {}

/** Throws an MslError at a token. */
export function fail(at: Token | undefined, message: string): never {
  throw new MslError(`${at?.file ?? "?"}:${at?.line ?? 0}: error: ${message}`);
}

const TOKEN = /^#[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[A-Za-z_]\w*|(?:\d|\.\d)(?:[eEpP][+-]|[\w.])*|\s+|::|->|<<=?|<=|>=|&&|\|\||[-+*/%&|^=!]=|\+\+|--|./gmy;

function kindOf(text: string): Token["kind"] {
  if (text.startsWith("#")) return "marker";
  if (/^\s/.test(text)) return "space";
  if (/^["']/.test(text)) return "string";
  if (/^[A-Za-z_]/.test(text)) return "name";
  return /^\.?\d/.test(text) ? "number" : "punctuation";
}

/** All tokens of preprocessed text, white space and line markers included: their texts joined are the input. */
export function lex(source: string, file: string): Token[] {
  const out: Token[] = [];
  let line = 1;
  TOKEN.lastIndex = 0;
  for (let m: RegExpExecArray | null; (m = TOKEN.exec(source));) {
    const text = m[0], kind = kindOf(text);
    const marker = kind === "marker" ? /^#\s*(?:line\s+)?(\d+)\s+"([^"]*)"/.exec(text) : null;
    if (marker) {
      line = Number(marker[1]) - 1;
      if (!marker[2]!.startsWith("<")) file = marker[2]!;
    }
    out.push({ text, kind, file, line });
    line += text.split("\n").length - 1;
  }
  return out;
}

const CLOSING: Record<string, string> = { "(": ")", "[": "]", "{": "}" };

/** The tokens that matter, with what a reader of declarations asks of them. */
export class Tokens {
  readonly all: readonly Token[];
  constructor(source: readonly Token[]) { this.all = source.filter((t) => t.kind !== "space" && t.kind !== "marker"); }
  get length(): number { return this.all.length; }
  at(i: number): Token { return this.all[i] ?? fail(this.all.at(-1), "unexpected end of file"); }
  is(i: number, text: string): boolean { return this.all[i]?.text === text; }
  isName(i: number): boolean { return this.all[i]?.kind === "name"; }
  opens(i: number): boolean { return CLOSING[this.all[i]?.text ?? ""] !== undefined; }
  text(from: number, to: number): string { return this.all.slice(from, to).map((t) => t.text).join(" "); }
  words(from: number, to: number): string[] { return this.all.slice(from, to).map((t) => t.text); }
  clear(from: number, to: number): void { for (let i = from; i < to; i++) this.at(i).text = ""; }

  /** Index of the bracket that closes the one at `i`. */
  close(i: number): number {
    for (let j = i, depth = 0; j < this.length; j++) {
      if (this.opens(j)) depth++;
      else if (/^[)\]}]$/.test(this.at(j).text) && --depth === 0) return j;
    }
    return fail(this.at(i), `unbalanced ${this.at(i).text}`);
  }
  /** Index of the > that closes the < at `i`, -1 when it is no bracket. */
  closeAngle(i: number): number {
    for (let j = i, depth = 0; j < this.length; j++) {
      if (this.opens(j)) j = this.close(j);
      else if (this.is(j, "<")) depth++;
      else if (this.is(j, ">") && --depth === 0) return j;
      else if (this.is(j, ";")) return -1;
    }
    return -1;
  }
  /** Index of the bracket that the one at `i` closes, at or behind `first`. */
  open(i: number, opening: string, first: number): number {
    const closing = this.at(i).text;
    for (let j = i, depth = 0; j >= first; j--) {
      if (this.is(j, closing)) depth++;
      else if (this.is(j, opening) && --depth === 0) return j;
    }
    return fail(this.at(i), `unbalanced ${closing}`);
  }

  isAttribute(i: number): boolean { return this.is(i, "[") && this.is(i + 1, "["); }
  /** The attributes [[name(arguments)]] between two places. */
  attributes(from: number, to: number): { name: string; args: string }[] {
    const out: { name: string; args: string }[] = [];
    for (let i = from; i < to; i++) {
      if (!this.isAttribute(i)) continue;
      const end = this.close(i);
      for (let j = i + 2; j < end - 1; j++) {
        if (!this.isName(j)) continue;
        const close = this.is(j + 1, "(") ? this.close(j + 1) : j;
        out.push({ name: this.at(j).text, args: close > j ? this.text(j + 2, close) : "" });
        j = close;
      }
      i = end;
    }
    return out;
  }
}
