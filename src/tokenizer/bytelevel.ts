// Byte-level BPE (the `gpt2` model: Llama 3, Qwen): the word-splitting rules and the printable alphabet that stands for bytes.

import { ModelFileError } from "../errors.ts";
import { rankedSegmenter } from "./bpe.ts";
import type { Scheme } from "./scheme.ts";
import type { TokenizerSource } from "./source.ts";
import type { Vocab } from "./vocab.ts";

const TAIL = String.raw` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`;
const CONTRACTIONS = "'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])";
const words = (digits: string): RegExp => new RegExp(String.raw`${CONTRACTIONS}|[^\r\n\p{L}\p{N}]?\p{L}+|${digits}|${TAIL}`, "gu");

/** Splitting rule by `tokenizer.ggml.pre`; `whole` = a word that is itself a token is taken without trying merges. */
const RULES: ReadonlyMap<string, { split: RegExp; whole: boolean }> = new Map([
  ["llama-bpe", { split: words(String.raw`\p{N}{1,3}`), whole: true }],
  ["llama3", { split: words(String.raw`\p{N}{1,3}`), whole: true }],
  ["qwen2", { split: words(String.raw`\p{N}`), whole: false }],
]);

/** GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the other 68 for U+0100 and up. */
const BYTE_CHARS: readonly string[] = (() => {
  const printable = (b: number): boolean => (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
  let next = 0x100;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(printable(b) ? b : next++));
})();
const CHAR_BYTES = new Map(BYTE_CHARS.map((char, byte) => [char, byte]));
const utf8 = new TextEncoder();

function toAlphabet(text: string): string {
  let out = "";
  for (const byte of utf8.encode(text)) out += BYTE_CHARS[byte] ?? "";
  return out;
}

/** Bytes of a token text; characters outside of the alphabet (a hand-added token) stand for their own UTF-8. */
function fromAlphabet(text: string): Uint8Array {
  const bytes: number[] = [];
  for (const char of text) {
    const byte = CHAR_BYTES.get(char);
    if (byte !== undefined) bytes.push(byte);
    else bytes.push(...utf8.encode(char));
  }
  return Uint8Array.from(bytes);
}

/** Throws ModelFileError for a splitting rule that is not known: guessing would give wrong ids without a word. */
export function byteLevel(source: TokenizerSource, vocab: Vocab): Scheme {
  const rule = RULES.get(source.pre ?? "");
  if (rule === undefined) {
    throw new ModelFileError(
      "tokenizer_unsupported",
      `tokenizer.ggml.pre is ${JSON.stringify(source.pre ?? null)}; supported for gpt2 are ${[...RULES.keys()].join(", ")}`,
      "Use a model with one of these tokenizers.",
    );
  }
  const segmenter = rankedSegmenter(vocab, source.merges);
  return {
    segmenter,
    addBos: source.addBos ?? rule.whole,
    spacePrefix: false,
    pieces: (text, emit) => {
      for (const [word] of text.matchAll(rule.split)) segmenter.cutter.cut(toAlphabet(word), emit);
    },
    normalise: (text) => text,
    wholeFirst: () => rule.whole,
    textBytes: fromAlphabet,
  };
}
