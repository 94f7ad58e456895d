// Tools of these tests: tokenizers, and a model that writes at random whatever a mask allows.
import { join } from "node:path";
import { openGguf } from "../../src/gguf/index.ts";
import { compileConstraint, type ConstraintSpec, type AnswerMask } from "../../src/structured/index.ts";
import { createTokenizer, tokenizerSource, type Tokenizer } from "../../src/tokenizer/index.ts";

let demo: Tokenizer | undefined;
/** The embedded model's tokenizer: 4,096 tokens, Gemma 4's thought markers, none for calls. */
export function demoTokenizer(): Tokenizer {
  const file = demo ? undefined : openGguf(join(import.meta.dir, "../../models/demo.gguf"));
  return (demo ??= createTokenizer(tokenizerSource((key) => file!.metadata.get(key))));
}

/** The same vocabulary under the markers of families that think and call in JSON. */
export function thinkTokenizer(): Tokenizer {
  const file = openGguf(join(import.meta.dir, "../../models/demo.gguf")), source = tokenizerSource((key) => file.metadata.get(key));
  const tokens = [...source.tokens], types = Array.from(source.tokenTypes!);
  const rename = (id: number, text: string): void => { tokens[id] = text; types[id] = 4; };
  rename(tokens.indexOf("<|channel>"), "<think>");
  rename(tokens.indexOf("<channel|>"), "</think>");
  rename(tokens.length - 1, "<tool_call>");
  rename(tokens.length - 2, "</tool_call>");
  return createTokenizer({ ...source, tokens, tokenTypes: Int32Array.from(types) });
}

/** Whether the mask allows a token. */
export const allows = (mask: AnswerMask, id: number): boolean => {
  const words = mask.next();
  return words === undefined || ((words[id >> 5]! >>> (id & 31)) & 1) === 1;
};

/** Random numbers from 0 to 1 that a seed decides. */
export function random(seed: number): () => number {
  let a = seed * 2654435761 | 0;
  return () => {
    a = a + 0x6d2b79f5 | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = t + Math.imul(t ^ (t >>> 7), 61 | t) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export interface Walk { readonly text: string; readonly ids: readonly number[]; readonly ended: boolean }

/**
 * Writes at random: any allowed token, ending as soon as that is allowed more often than not. After `patience` tokens the shortest way out is taken:
 * tokens that close something come first, so that answers end.
 */
export function walk(tokenizer: Tokenizer, mask: AnswerMask, seed: number, patience = 30, limit = 400): Walk {
  const next = random(seed), ids: number[] = [], closers = ['"', "}", "]", "0", "1", ",", ":", "e", "l", "true"].map((c) => tokenizer.encode(c, { bos: false }).at(-1)!);
  const quote = tokenizer.idOf('<|"|>');
  const stops = [...tokenizer.stopIds];
  while (ids.length < limit) {
    const words = mask.next(), set = (id: number): boolean => words === undefined || ((words[id >> 5]! >>> (id & 31)) & 1) === 1;
    if (stops.some(set) && next() < 0.7) return { text: tokenizer.decode(ids, { special: true }), ids, ended: true };
    const allowed: number[] = [];
    for (let id = 0; id < tokenizer.vocabSize; id++) if (set(id) && !tokenizer.stopIds.has(id)) allowed.push(id);
    if (allowed.length === 0) return { text: tokenizer.decode(ids, { special: true }), ids, ended: stops.some(set) };
    const out = ids.length > patience ? [...(quote === undefined ? [] : [quote]), ...closers].find(set) : undefined;
    const id = out ?? allowed[Math.floor(next() * allowed.length)]!;
    mask.accept(id);
    ids.push(id);
  }
  return { text: tokenizer.decode(ids, { special: true }), ids, ended: false };
}

/** A mask that must exist. */
export async function constraint(tokenizer: Tokenizer, spec: ConstraintSpec): Promise<AnswerMask> {
  const mask = await compileConstraint(tokenizer, spec);
  if (!mask) throw new Error("nothing constrains this answer");
  return mask;
}

/** Whether a whole text is an answer that the mask allows. `apart`: JSON's quotes as tokens of their own, as strings of limited length want them. */
export function takes(tokenizer: Tokenizer, mask: AnswerMask, text: string, apart = false): boolean {
  for (const piece of apart ? text.match(/\\.|"|[^"\\]+/gs) ?? [] : [text]) {
    for (const id of tokenizer.encode(piece, { bos: false, parse: "all" })) {
      if (!allows(mask, id)) return false;
      mask.accept(id);
    }
  }
  return [...tokenizer.stopIds].some((id) => allows(mask, id));
}
