// Grammar text for xgrammar: rules with names, literals, markers as private characters. Knows no schema and no token.
import { UsageError } from "../errors.ts";

/** Control characters that never stand in an answer as they are; markers are spelled with them. xgrammar cannot exclude others from a class. */
const CONTROLS = Array.from({ length: 31 }, (_, i) => i + 1).filter((c) => c !== 9 && c !== 10 && c !== 13).map((c) => String.fromCharCode(c));
/** Whether a character or byte is one of them, or NUL. */
export function isControl(code: number): boolean { return code < 0x20 && code !== 9 && code !== 10 && code !== 13; }
export const MARKERS = CONTROLS.length ** 2;
/** What stands for the n-th marker token of a vocabulary, n < MARKERS: nothing that other tokens could spell. */
export function markerText(n: number): string { return CONTROLS[0]! + CONTROLS[Math.floor(n / CONTROLS.length)]! + CONTROLS[n % CONTROLS.length]!; }
/** Rules of one grammar at most. Compiling takes time in proportion, on the engine's own thread. */
const MAX_RULES = 4000;

/** The request asks for something that no grammar here can guarantee: `unsupported_schema`, with the place in the schema. */
export function unsupported(path: string, what: string, hint = "Leave it out of the schema, and check it in the result."): UsageError {
  return new UsageError("unsupported_schema", `${path === "" ? "The schema" : path}: ${what}`, hint);
}

/** A text as it stands, quoted for a grammar. */
export function literal(text: string): string {
  let out = '"';
  for (const c of text) {
    const code = c.codePointAt(0)!;
    if (c === '"' || c === "\\") out += `\\${c}`;
    else if (code < 0x20 || code === 0x7f || code > 0xffff) out += `\\U${code.toString(16).padStart(8, "0")}`;
    else out += c;
  }
  return `${out}"`;
}

/** One member of a character class. */
export function classChar(code: number): string {
  return code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
}
/** A class of every character but control characters and `but`, which is ASCII. */
export function anyBut(but: string): string {
  return `[^\\u0000-\\u001f${[...but].map((c) => classChar(c.codePointAt(0)!)).join("")}]`;
}

/** Strings with length limits that one grammar may have, each pair of limits counted once. */
export const HOLES = 64;
/** What stands for the content of a string with the n-th limits of its grammar: lengths are counted outside of the grammar, see content.ts. */
export function holeText(n: number): string { return markerText(MARKERS - 1 - n); }
/** Lengths that a string may have, in characters, and how it is written; no `max` = any. */
export interface Limits { readonly min: number; readonly max: number | undefined; readonly dialect: "json" | "gemma" }

/** The rules of a grammar; equal bodies share a rule, which is what keeps repeated parts of a schema cheap. */
export class Rules {
  readonly #bodies = new Map<string, string>();
  readonly #names = new Map<string, string>();
  readonly holes: Limits[] = [];

  /** Name of a rule with this body. */
  rule(body: string): string {
    const known = this.#names.get(body);
    if (known !== undefined) return known;
    const name = this.reserve();
    this.define(name, body);
    this.#names.set(body, name);
    return name;
  }
  /** A name for a rule that refers to itself. */
  reserve(): string {
    if (this.#bodies.size >= MAX_RULES) throw unsupported("", `it takes more than ${MAX_RULES} grammar rules`, "Use a smaller schema.");
    const name = `r${this.#bodies.size}`;
    this.#bodies.set(name, '""');
    return name;
  }
  define(name: string, body: string): void { this.#bodies.set(name, body); }
  /** A rule that is made once under a name of its own. */
  shared(name: string, body: () => string): string {
    if (!this.#bodies.has(name)) {
      this.#bodies.set(name, '""');
      this.#bodies.set(name, body());
    }
    return name;
  }
  /** Grammar of the content of a string with these limits. */
  hole(limits: Limits): string {
    let n = this.holes.findIndex((h) => h.min === limits.min && h.max === limits.max && h.dialect === limits.dialect);
    if (n < 0) n = this.holes.push(limits) - 1;
    if (n >= HOLES) throw unsupported("", `it has more than ${HOLES} different length limits`, "Use fewer.");
    return literal(holeText(n));
  }
  /** The grammar's text with `root` as its start. */
  text(root: string): string { return [`root ::= ${root}`, ...[...this.#bodies].map(([name, body]) => `${name} ::= ${body}`)].join("\n"); }
}
