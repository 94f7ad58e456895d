// The validated vocabulary: id <-> text, what kind each token is, special ids and the stop set. Never segments text.

import { ModelFileError } from "../errors.ts";
import { TokenType, type TokenizerSource } from "./source.ts";

/** SentencePiece's visible space, U+2581. */
export const SPACE = "\u2581";

/** What a token means when its text appears in a prompt. */
export const Role = {
  /** Plain text. */
  text: 0,
  /** A user-defined token that is ordinary text (`<table>`, a run of newlines): always matched whole, as SentencePiece does. */
  atom: 1,
  /** A user-defined token that structures a conversation (`<|channel>`): never made from user text. */
  marker: 2,
  /** A control or unknown token: never made from user text, never shown. */
  control: 3,
} as const;

/** Shapes that conversation markers take in the families we know. A user-defined token of another shape is plain text. */
const MARKER =
  /^(<\|.+>|<.+\|>|<\/?(think|tool_call|tool_response|tools|start_of_turn|end_of_turn|start_of_image|end_of_image|bos|eos|s|unk|pad)>|\[\/?(INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|THINK)\])$/;
const BYTE = /^<0x([0-9A-Fa-f]{2})>$/;
const BOS_TEXTS = ["<bos>", "<s>", "<|begin_of_text|>"];
const EOS_TEXTS = ["<eos>", "</s>", "<|end_of_text|>", "<|endoftext|>"];

/** Control tokens that end an answer wherever a vocabulary has them. `</s>` is not here: in Gemma it is ordinary text. */
const STOP_TEXTS = ["<eos>", "<turn|>", "<|tool_response>", "<end_of_turn>", "<|eot_id|>", "<|end_of_text|>", "<|eom_id|>", "<|im_end|>", "<|endoftext|>"];

function broken(code: string, message: string): ModelFileError {
  return new ModelFileError(code, message, "Convert the model again with a current converter, or download it again.");
}

/** The token tables of one model. Construction validates everything that later code indexes with. */
export class Vocab {
  readonly tokens: readonly string[];
  /** `Role` per id. */
  readonly roles: Uint8Array;
  /** Byte value per id, -1 for tokens that are not byte tokens. */
  readonly bytes: Int16Array;
  /** Id of each byte token, -1 where the vocabulary lacks it. */
  readonly byteIds = new Int32Array(256).fill(-1);
  /** Ids that merging may yield: ordinary text only, so that a merge can never make a control token. */
  readonly textIds = new Map<string, number>();
  /** Ids of atoms, markers and controls by text. */
  readonly specialIds = new Map<string, number>();
  readonly warnings: string[] = [];
  readonly bosId: number | undefined;
  readonly eosId: number | undefined;
  readonly unkId: number | undefined;
  readonly padId: number | undefined;
  readonly stopIds: ReadonlySet<number>;

  constructor(source: TokenizerSource) {
    const { tokens, tokenTypes, scores } = source;
    if (tokens.length === 0) throw broken("tokenizer_tokens", "tokenizer.ggml.tokens is missing or empty");
    if (tokenTypes !== undefined && tokenTypes.length !== tokens.length) {
      throw broken("tokenizer_types", `tokenizer.ggml.token_type has ${tokenTypes.length} entries for ${tokens.length} tokens`);
    }
    if (scores !== undefined && scores.length < tokens.length) {
      throw broken("tokenizer_scores", `tokenizer.ggml.scores has ${scores.length} entries for ${tokens.length} tokens`);
    }
    this.tokens = tokens;
    this.roles = new Uint8Array(tokens.length);
    this.bytes = new Int16Array(tokens.length).fill(-1);
    const named = new Set([source.bosId, source.eosId, source.eotId, source.unkId, source.padId]);
    let duplicates = 0;
    for (const [id, text] of tokens.entries()) {
      const type = tokenTypes?.[id] ?? inferType(text, named.has(id));
      const byte = type === TokenType.byte ? BYTE.exec(text) : null;
      if (byte !== null) {
        const value = Number.parseInt(byte[1] ?? "", 16);
        this.bytes[id] = value;
        if (this.byteIds[value] === -1) this.byteIds[value] = id;
        continue;
      }
      const role = roleOf(type, text);
      this.roles[id] = role;
      if (text === "") continue;
      const table = role === Role.text ? this.textIds : this.specialIds;
      // The first of two equal texts wins: both decode alike, and the lower id is the one that training saw.
      if (table.has(text)) duplicates++;
      else table.set(text, id);
    }
    for (const text of this.specialIds.keys()) this.textIds.delete(text);
    if (duplicates > 0) this.warnings.push(`${duplicates} tokens repeat an earlier token's text; the earlier ids are used`);
    this.bosId = this.special("bos_token_id", source.bosId, BOS_TEXTS);
    this.eosId = this.special("eos_token_id", source.eosId, EOS_TEXTS);
    this.unkId = this.special("unknown_token_id", source.unkId, ["<unk>"]);
    this.padId = this.special("padding_token_id", source.padId, ["<pad>"]);
    this.stopIds = this.stops(source);
  }

  get size(): number {
    return this.tokens.length;
  }

  /** Id of a token by its exact text, whatever its kind. */
  idOf(text: string): number | undefined {
    return this.specialIds.get(text) ?? this.textIds.get(text);
  }

  private special(key: string, id: number | undefined, texts: readonly string[]): number | undefined {
    if (id !== undefined && id >= 0 && id < this.size) return id;
    const found = texts.map((text) => this.specialIds.get(text)).find((value) => value !== undefined);
    if (id !== undefined) {
      const instead = found === undefined ? "none is used" : `${JSON.stringify(this.tokens[found])} (${found}) is used`;
      this.warnings.push(`tokenizer.ggml.${key} is ${id}, outside of the ${this.size} tokens; ${instead}`);
    }
    return found;
  }

  private stops(source: TokenizerSource): ReadonlySet<number> {
    const ids = new Set<number>();
    for (const text of STOP_TEXTS) {
      const id = this.specialIds.get(text);
      if (id !== undefined) ids.add(id);
    }
    // Some Gemma 4 files name `</s>`, a piece of HTML there, as end of sequence; it must not end an answer.
    const misnamed = this.eosId !== undefined && ids.size > 0 && this.roles[this.eosId] === Role.text;
    if (this.eosId !== undefined && !misnamed) ids.add(this.eosId);
    if (source.eotId !== undefined && source.eotId >= 0 && source.eotId < this.size) ids.add(source.eotId);
    return ids;
  }
}

function inferType(text: string, named: boolean): number {
  if (BYTE.test(text)) return TokenType.byte;
  return named || MARKER.test(text) ? TokenType.control : TokenType.normal;
}

function roleOf(type: number, text: string): number {
  if (type === TokenType.control || type === TokenType.unknown) return Role.control;
  if (type === TokenType.userDefined) return MARKER.test(text) ? Role.marker : Role.atom;
  return Role.text;
}
