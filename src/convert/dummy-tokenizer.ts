// A tokenizer without a language: a valid gemma4 vocabulary of any size whose words are all letter strings up to a length, for files that only
// need to load elsewhere. Its ids of control tokens are those of the real one.

import { UsageError } from "../errors.ts";
import { ggufValue, type GgufValue } from "../gguf/index.ts";
import { TokenType } from "../tokenizer/source.ts";

const CONTROL = new Map([[0, "<pad>"], [1, "<eos>"], [2, "<bos>"], [3, "<unk>"], [4, "<mask>"], [105, "<|turn>"], [106, "<turn|>"]]);
const LETTERS = ["\u2581", ..."abcdefghijklmnopqrstuvwxyz"];
const LEAST = CONTROL.size + 256 + LETTERS.length;

/** All tokenizer.* keys of `size` tokens. Throws UsageError when they cannot hold the byte tokens and an alphabet. */
export function dummyTokenizer(size: number): Map<string, GgufValue> {
  if (size < LEAST) throw new UsageError("vocabulary_too_small", `A vocabulary of ${size} is too small for a tokenizer`, `Use ${LEAST} or more, or no tokenizer.`);
  const words = wordsAndMerges(), merges: string[] = [];
  const tokens = new Array<string>(size), types = new Int32Array(size).fill(TokenType.normal);
  let byte = 0;
  for (let id = 0; id < size; id++) {
    const control = CONTROL.get(id);
    if (control !== undefined) {
      tokens[id] = control;
      types[id] = TokenType.control;
    } else if (byte < 256) {
      tokens[id] = `<0x${(byte++).toString(16).toUpperCase().padStart(2, "0")}>`;
      types[id] = TokenType.byte;
    } else {
      const { value } = words.next() as { value: { word: string; merge?: string } };
      tokens[id] = value.word;
      if (value.merge !== undefined) merges.push(value.merge);
    }
  }
  const { string, u32, bool, array } = ggufValue;
  return new Map<string, GgufValue>([
    ["tokenizer.ggml.model", string("gemma4")],
    ["tokenizer.ggml.tokens", array("string", tokens)],
    ["tokenizer.ggml.scores", array("f32", new Float32Array(size).fill(-1000))],
    ["tokenizer.ggml.token_type", array("i32", types)],
    ["tokenizer.ggml.merges", array("string", merges)],
    ["tokenizer.ggml.bos_token_id", u32(2)],
    ["tokenizer.ggml.eos_token_id", u32(1)],
    ...(size > 106 ? [["tokenizer.ggml.eot_token_id", u32(106)] as const] : []),
    ["tokenizer.ggml.unknown_token_id", u32(3)],
    ["tokenizer.ggml.padding_token_id", u32(0)],
    ["tokenizer.ggml.mask_token_id", u32(4)],
    ["tokenizer.ggml.add_bos_token", bool(true)],
    ["tokenizer.ggml.add_space_prefix", bool(false)],
  ]);
}

/** Letters, then every word one letter longer than a known one with the merge that makes it, without end. */
function* wordsAndMerges(): Generator<{ word: string; merge?: string }> {
  let shorter = LETTERS;
  for (const word of LETTERS) yield { word };
  for (;;) {
    const longer: string[] = [];
    for (const word of shorter) {
      for (const letter of LETTERS) {
        longer.push(word + letter);
        yield { word: word + letter, merge: `${word} ${letter}` };
      }
    }
    shorter = longer;
  }
}
