// The plain metadata a tokenizer is built from, and how GGUF keys map to it. Validates shapes; never encodes text.

import { ModelFileError } from "../errors.ts";

/** Token types as GGUF stores them in `tokenizer.ggml.token_type`. */
export const TokenType = { normal: 1, unknown: 2, control: 3, userDefined: 4, unused: 5, byte: 6 } as const;

/** Everything a tokenizer needs to know; field names follow the `tokenizer.ggml.*` keys. */
export interface TokenizerSource {
  /** `tokenizer.ggml.model`: `gemma4`, `llama`, `gpt2` or `none`. It alone selects the algorithm, not which arrays exist. */
  model: string;
  /** `tokenizer.ggml.pre`: the word-splitting rule of a `gpt2` vocabulary. */
  pre?: string;
  /** One text per id. */
  tokens: readonly string[];
  /** One score per id; needed by `llama`. */
  scores?: ArrayLike<number>;
  /** One `TokenType` per id. */
  tokenTypes?: ArrayLike<number>;
  /** `"left right"` in rank order; needed by `gemma4` and `gpt2`. */
  merges?: readonly string[];
  bosId?: number;
  eosId?: number;
  eotId?: number;
  unkId?: number;
  padId?: number;
  addBos?: boolean;
  addSpacePrefix?: boolean;
  /** Ids the model must never be allowed to sample. */
  suppressIds?: readonly number[];
  /** The Jinja chat template, carried along for whoever renders it. */
  chatTemplate?: string;
}

/** 32-bit "no such id": how older writers store an absent special token. */
const ABSENT_ID = 0xffffffff;

function textList(value: unknown, key: string): string[] | undefined {
  if (value === undefined) return undefined;
  if (Array.isArray(value) && value.every((v) => typeof v === "string")) return value as string[];
  throw new ModelFileError("tokenizer_type", `${key} is not an array of strings`, "The file is damaged or was written by an incompatible converter.");
}

function id(value: unknown, key: string): number | undefined {
  if (value === undefined) return undefined;
  const number = typeof value === "bigint" ? Number(value) : value;
  if (typeof number !== "number" || !Number.isInteger(number)) {
    throw new ModelFileError("tokenizer_type", `${key} is not an integer`, "The file is damaged or was written by an incompatible converter.");
  }
  return number === ABSENT_ID || number === -1 ? undefined : number;
}

function flag(value: unknown, key: string): boolean | undefined {
  if (value === undefined || typeof value === "boolean") return value;
  throw new ModelFileError("tokenizer_type", `${key} is not a boolean`, "The file is damaged or was written by an incompatible converter.");
}

function text(value: unknown, key: string): string | undefined {
  if (value === undefined || typeof value === "string") return value;
  throw new ModelFileError("tokenizer_type", `${key} is not a string`, "The file is damaged or was written by an incompatible converter.");
}

/** 32-bit elements only: a `uint8` type array has crashed readers that trusted the key's name. */
function typeList(value: unknown, key: string): ArrayLike<number> | undefined {
  if (value === undefined) return undefined;
  if (value instanceof Int32Array || value instanceof Uint32Array) return value;
  if (Array.isArray(value) && value.every((v) => Number.isInteger(v))) return value as number[];
  throw new ModelFileError("tokenizer_type", `${key} is not an array of 32-bit integers`, "Convert the model again with a current converter.");
}

function scoreList(value: unknown, key: string): ArrayLike<number> | undefined {
  if (value === undefined) return undefined;
  if (value instanceof Float32Array || value instanceof Float64Array) return value;
  if (Array.isArray(value) && value.every((v) => typeof v === "number")) return value as number[];
  throw new ModelFileError("tokenizer_type", `${key} is not an array of floats`, "Convert the model again with a current converter.");
}

/** A value as GGUF readers tag it, `{ type, value }` and `{ of, values }` for arrays, without its tags. */
function untagged(value: unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value) || ArrayBuffer.isView(value)) return value;
  if ("value" in value) return untagged(value.value);
  return "values" in value ? value.values : value;
}

/**
 * Collects the tokenizer's fields from GGUF metadata. `getValue` returns a key's value, plain or tagged with its type, or undefined:
 * `tokenizerSource((key) => file.metadata.get(key))`. Throws ModelFileError on ill-typed keys.
 */
export function tokenizerSource(getValue: (key: string) => unknown): TokenizerSource {
  const get = (key: string): unknown => untagged(getValue(key));
  const at = <T>(read: (value: unknown, key: string) => T, key: string): T => read(get(`tokenizer.ggml.${key}`), `tokenizer.ggml.${key}`);
  const model = at(text, "model");
  if (model === undefined) {
    throw new ModelFileError("tokenizer_missing", "tokenizer.ggml.model is missing", "This file carries no tokenizer; a split model keeps it in the first shard.");
  }
  const suppressed = at(typeList, "suppress_tokens");
  const optional = {
    pre: at(text, "pre"),
    scores: at(scoreList, "scores"),
    tokenTypes: at(typeList, "token_type"),
    merges: at(textList, "merges"),
    bosId: at(id, "bos_token_id"),
    eosId: at(id, "eos_token_id"),
    eotId: at(id, "eot_token_id"),
    unkId: at(id, "unknown_token_id"),
    padId: at(id, "padding_token_id"),
    addBos: at(flag, "add_bos_token"),
    addSpacePrefix: at(flag, "add_space_prefix"),
    suppressIds: suppressed === undefined ? undefined : Array.from(suppressed),
    chatTemplate: text(get("tokenizer.chat_template"), "tokenizer.chat_template"),
  };
  const present = Object.fromEntries(Object.entries(optional).filter(([, value]) => value !== undefined));
  return { model, tokens: at(textList, "tokens") ?? [], ...(present as Partial<TokenizerSource>) };
}
