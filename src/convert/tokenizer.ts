// tokenizer.json (a BPE of the Gemma kind) and the chat template as tokenizer.* keys. Refuses vocabularies that the gemma4 tokenizer would
// split differently; never encodes text.

import { ModelFileError } from "../errors.ts";
import { ggufValue, type GgufValue } from "../gguf/index.ts";
import { TokenType } from "../tokenizer/source.ts";
import type { SourceConfig } from "./checkpoint.ts";

/** The parsed files of a checkpoint that this module looks at; absent files are undefined. */
export interface TokenizerFiles {
  /** tokenizer.json */
  readonly tokenizer?: unknown;
  /** tokenizer_config.json */
  readonly config?: unknown;
  /** generation_config.json */
  readonly generation?: unknown;
  /** Text of the chat template, from wherever it came. */
  readonly chatTemplate?: string | undefined;
  /** Path of tokenizer.json for messages. */
  readonly path: string;
}

type Json = Record<string, unknown>;

/** Structure of tool calls and thoughts: always rendered, so that a parser can see it, even where Hugging Face calls them special. */
const VISIBLE = new Set(["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']);
const BYTE = /^<0x[0-9A-F]{2}>$/;
const SPACE = "\u2581";
/** Every token has it: the gemma4 tokenizer merges by rank, but loaders want the array. */
const SCORE = -1000;

/** Keys of a file without a vocabulary. */
export function noTokenizer(): Map<string, GgufValue> {
  return new Map([["tokenizer.ggml.model", ggufValue.string("none")]]);
}

/**
 * All tokenizer.* keys. The token list gets exactly one entry for each of the model's embedding rows; rows without a text become unused tokens.
 * Throws ModelFileError `convert_tokenizer`.
 */
export function tokenizerMetadata(files: TokenizerFiles, model: SourceConfig): Map<string, GgufValue> {
  const source = new TokenizerJson(files.tokenizer, files.path);
  const { tokens, types } = source.vocabulary(model.vocabulary);
  const idOf = (text: unknown): number | undefined => (typeof text === "string" ? source.ids.get(text) : undefined);
  const named = (key: string): number | undefined => {
    const value = record(files.config)[key];
    return idOf(typeof value === "object" && value !== null ? (value as Json)["content"] : value);
  };
  const { string, u32, bool, array } = ggufValue;
  const keys = new Map<string, GgufValue>([
    ["tokenizer.ggml.model", string("gemma4")],
    ["tokenizer.ggml.tokens", array("string", tokens)],
    ["tokenizer.ggml.scores", array("f32", new Float32Array(tokens.length).fill(SCORE))],
    ["tokenizer.ggml.token_type", array("i32", types)],
    ["tokenizer.ggml.merges", array("string", source.merges())],
  ]);
  const id = (key: string, ...candidates: (number | undefined)[]): number | undefined => {
    const value = candidates.find((c) => c !== undefined && c < tokens.length);
    if (value !== undefined) keys.set(`tokenizer.ggml.${key}`, u32(value));
    return value;
  };
  id("bos_token_id", named("bos_token"), model.tokens.bos, idOf("<bos>"));
  const endOfText = idOf("<eos>");
  const eos = id("eos_token_id", named("eos_token"), model.tokens.eos.find((e) => e === endOfText), model.tokens.eos[0], endOfText);
  const turn = idOf("<turn|>");
  if (turn !== eos) id("eot_token_id", turn);
  id("unknown_token_id", named("unk_token"), idOf("<unk>"));
  id("padding_token_id", named("pad_token"), model.tokens.pad, idOf("<pad>"));
  id("mask_token_id", named("mask_token"), idOf("<mask>"));
  keys.set("tokenizer.ggml.add_bos_token", bool(true));
  keys.set("tokenizer.ggml.add_space_prefix", bool(false));
  const suppress = record(files.generation)["suppress_tokens"];
  if (Array.isArray(suppress) && suppress.length > 0 && suppress.every((s) => Number.isInteger(s))) {
    keys.set("tokenizer.ggml.suppress_tokens", array("i32", Int32Array.from(suppress as number[])));
  }
  const template = files.chatTemplate ?? templateOf(files.config);
  if (template !== undefined) keys.set("tokenizer.chat_template", string(template));
  return keys;
}

/** The template of tokenizer_config.json: a text, or a list of named ones of which the default counts. */
function templateOf(config: unknown): string | undefined {
  const value = record(config)["chat_template"];
  if (typeof value === "string") return value;
  if (!Array.isArray(value)) return undefined;
  const named = value.map(record);
  const chosen = named.find((t) => t["name"] === "default") ?? named[0];
  return typeof chosen?.["template"] === "string" ? chosen["template"] : undefined;
}

class TokenizerJson {
  readonly #model: Json;
  readonly #added: { id: number; text: string; special: boolean }[];
  /** Id of every text, added tokens included. */
  readonly ids = new Map<string, number>();

  constructor(json: unknown, private readonly path: string) {
    const root = record(json);
    this.#model = record(root["model"]);
    if (this.#model["type"] !== "BPE") throw this.#bad(`model.type: expected BPE, found ${JSON.stringify(this.#model["type"])}`);
    if (!replacesSpaces(root["normalizer"])) throw this.#bad(`normalizer: expected " " replaced by "${SPACE}"`);
    if (JSON.stringify(root["pre_tokenizer"] ?? null).includes('"ByteLevel"')) throw this.#bad("pre_tokenizer: byte-level vocabularies are of another kind");
    const vocab = this.#model["vocab"];
    if (typeof vocab !== "object" || vocab === null) throw this.#bad("model.vocab is missing");
    for (const [text, id] of Object.entries(vocab)) {
      if (!Number.isInteger(id) || (id as number) < 0) throw this.#bad(`model.vocab: ${JSON.stringify(text)} has the id ${String(id)}`);
      this.ids.set(text, id as number);
    }
    const added = root["added_tokens"] ?? [];
    if (!Array.isArray(added)) throw this.#bad("added_tokens is no list");
    this.#added = added.map((entry) => {
      const { id, content, special } = record(entry);
      if (!Number.isInteger(id) || typeof content !== "string") throw this.#bad(`added_tokens: ${JSON.stringify(entry).slice(0, 80)}`);
      const known = this.ids.get(content);
      if (known !== undefined && known !== id) throw this.#bad(`added token ${JSON.stringify(content)} has the ids ${known} and ${String(id)}`);
      this.ids.set(content, id as number);
      return { id: id as number, text: content, special: special === true };
    });
  }

  /** Texts and types of `rows` tokens. */
  vocabulary(rows: number): { tokens: string[]; types: Int32Array } {
    const tokens = new Array<string>(rows), types = new Int32Array(rows).fill(TokenType.unused);
    for (const [text, id] of this.ids) {
      if (id >= rows) throw this.#bad(`token ${JSON.stringify(text)} has id ${id}, the model has ${rows} embedding rows`);
      if (tokens[id] !== undefined) throw this.#bad(`id ${id} belongs to ${JSON.stringify(tokens[id])} and to ${JSON.stringify(text)}`);
      tokens[id] = text;
      types[id] = BYTE.test(text) ? TokenType.byte : TokenType.normal;
    }
    for (const { id, text, special } of this.#added) types[id] = special && !VISIBLE.has(text) ? TokenType.control : TokenType.userDefined;
    for (let id = 0; id < rows; id++) tokens[id] ??= `[PAD${id}]`;
    return { tokens, types };
  }

  /** Merges as "left right" in rank order. */
  merges(): string[] {
    const merges = this.#model["merges"];
    if (!Array.isArray(merges)) throw this.#bad("model.merges is missing");
    return merges.map((merge: unknown) => {
      const sides = typeof merge === "string" ? merge.split(" ") : merge;
      if (!Array.isArray(sides) || sides.length !== 2 || sides.some((s) => typeof s !== "string" || s === "" || s.includes(" "))) {
        throw this.#bad(`model.merges: ${JSON.stringify(merge)} is no pair of texts without spaces`);
      }
      return `${sides[0]} ${sides[1]}`;
    });
  }

  #bad(what: string): ModelFileError {
    return new ModelFileError("convert_tokenizer", `${this.path}: ${what}`, "Only tokenizers of the Gemma kind can be converted: fetch tokenizer.json again, or move it away to convert without one.");
  }
}

/** Whether the normaliser does what the gemma4 tokenizer does, alone or as the one step of a sequence. */
function replacesSpaces(normalizer: unknown): boolean {
  const { type, pattern, content, normalizers } = record(normalizer);
  if (type === "Sequence" && Array.isArray(normalizers)) return normalizers.length === 1 && replacesSpaces(normalizers[0]);
  return type === "Replace" && record(pattern)["String"] === " " && content === SPACE;
}

function record(value: unknown): Json {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Json) : {};
}
