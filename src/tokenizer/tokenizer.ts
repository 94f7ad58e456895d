// Text to ids and back for one model. Decides what special tokens a text may contain; the merge loops are in bpe.ts and spm.ts.

import { ModelFileError, UsageError } from "../errors.ts";
import { byteLevel } from "./bytelevel.ts";
import { rankedSegmenter } from "./bpe.ts";
import type { Scheme } from "./scheme.ts";
import type { TokenizerSource } from "./source.ts";
import { scoreSegmenter } from "./spm.ts";
import { Splitter } from "./split.ts";
import { type StreamOptions, type TokenStream, tokenStream } from "./stream.ts";
import { Role, SPACE, Vocab } from "./vocab.ts";

/** Which special tokens are recognised in a text: none at all, user-defined ones, or control tokens as well. */
export type ParseSpecial = "none" | "markers" | "all";

export interface EncodeOptions {
  /** Default `none`: whatever a user writes stays text. */
  parse?: ParseSpecial;
  /** Whether the result starts with (exactly one) BOS. Default: what the model asks for. */
  bos?: boolean;
}

/** A span of a prompt: `trusted` text comes from a template and may hold control tokens, other text never does. */
export interface TextPiece {
  readonly text: string;
  readonly trusted: boolean;
}

/** The tokenizer of one model. Immutable apart from a cache, so one instance serves all sequences of a thread. */
export interface Tokenizer {
  /** `tokenizer.ggml.model`. */
  readonly model: string;
  readonly vocabSize: number;
  readonly bosId: number | undefined;
  readonly eosId: number | undefined;
  readonly unkId: number | undefined;
  readonly padId: number | undefined;
  /** Whether prompts start with BOS unless asked otherwise. */
  readonly addBos: boolean;
  /** Ids that end an answer: end of sequence, end of turn, hand-over to a tool. */
  readonly stopIds: ReadonlySet<number>;
  /** Ids the model must never be allowed to sample. */
  readonly suppressIds: readonly number[];
  /** What was odd in the file but could be worked around. */
  readonly warnings: readonly string[];
  /** Ids of `text`. Near-linear in its length. Lone surrogates become U+FFFD. */
  encode(text: string, options?: EncodeOptions): number[];
  /** Ids of consecutive pieces, segmented as if they were one text; special tokens only from trusted ones. One BOS at most. */
  encodePieces(pieces: readonly TextPiece[], options?: { bos?: boolean }): number[];
  /** Text of a whole sequence; control tokens are left out unless `special`. `decode(encode(text))` is `text`. */
  decode(ids: ArrayLike<number>, options?: { special?: boolean }): string;
  /** A decoder for one growing sequence, which never returns half a character. */
  stream(options?: StreamOptions): TokenStream;
  /** Text of one token on its own; bytes that are no character alone become U+FFFD. Special tokens give their literal text. */
  piece(id: number): string;
  /** UTF-8 bytes that `id` adds to a text; empty for control tokens and ids outside the vocabulary. */
  bytes(id: number): Uint8Array;
  /** Literal text of a marker or control token, undefined for ordinary tokens. */
  marker(id: number): string | undefined;
  /** Id of a token by its exact vocabulary text. */
  idOf(text: string): number | undefined;
}

/** Values of `tokenizer.ggml.model` that this build can run. */
export const SUPPORTED_TOKENIZERS = ["gemma4", "llama", "gpt2", "none"] as const;

/** Words are repeated often: their ids are remembered, up to this many distinct ones. */
const CACHE_ENTRIES = 32_768;
const CACHED_LENGTH = 64;
const utf8 = new TextEncoder();

/** Builds a tokenizer. Throws ModelFileError if the metadata is inconsistent or names an unknown model. */
export function createTokenizer(source: TokenizerSource): Tokenizer {
  if (source.model === "none") return noTokenizer(source);
  const scheme = Object.hasOwn(SCHEMES, source.model) ? SCHEMES[source.model] : undefined;
  if (scheme === undefined) {
    throw new ModelFileError(
      "tokenizer_unsupported",
      `tokenizer.ggml.model is ${JSON.stringify(source.model)}; supported are ${SUPPORTED_TOKENIZERS.join(", ")}`,
      "Use a model with one of these tokenizers.",
    );
  }
  const vocab = new Vocab(source);
  return new TextTokenizer(source, vocab, scheme(source, vocab));
}

const NEWLINES = /^\n+$/;
const visibleSpaces = (text: string): string => text.replaceAll(" ", SPACE);

const SCHEMES: Readonly<Record<string, (source: TokenizerSource, vocab: Vocab) => Scheme>> = {
  gemma4: (source, vocab) => {
    const segmenter = rankedSegmenter(vocab, source.merges);
    return {
      segmenter,
      // The reference adds BOS for this tokenizer whatever the file says.
      addBos: true,
      spacePrefix: source.addSpacePrefix ?? false,
      pieces: (text, emit) => segmenter.cutter.cut(text, emit),
      normalise: visibleSpaces,
      wholeFirst: (piece) => NEWLINES.test(piece),
      textBytes: undefined,
    };
  },
  llama: (source, vocab) => {
    const segmenter = scoreSegmenter(vocab, source.scores);
    return {
      segmenter,
      addBos: source.addBos ?? true,
      spacePrefix: source.addSpacePrefix ?? true,
      pieces: (text, emit) => segmenter.cutter.cut(text, emit),
      normalise: visibleSpaces,
      wholeFirst: () => false,
      textBytes: undefined,
    };
  },
  gpt2: byteLevel,
};

class TextTokenizer implements Tokenizer {
  readonly model: string;
  readonly vocabSize: number;
  readonly bosId: number | undefined;
  readonly eosId: number | undefined;
  readonly unkId: number | undefined;
  readonly padId: number | undefined;
  readonly addBos: boolean;
  readonly stopIds: ReadonlySet<number>;
  readonly suppressIds: readonly number[];
  readonly warnings: readonly string[];
  private readonly markers: Splitter;
  private readonly specials: Splitter;
  private readonly atoms: Splitter;
  private readonly cache = new Map<string, readonly number[]>();

  constructor(
    source: TokenizerSource,
    private readonly vocab: Vocab,
    private readonly scheme: Scheme,
  ) {
    this.model = source.model;
    this.vocabSize = vocab.size;
    this.bosId = vocab.bosId;
    this.eosId = vocab.eosId;
    this.unkId = vocab.unkId;
    this.padId = vocab.padId;
    this.addBos = scheme.addBos && vocab.bosId !== undefined;
    this.stopIds = vocab.stopIds;
    this.suppressIds = source.suppressIds ?? [];
    this.warnings = vocab.warnings;
    const entries = [...vocab.specialIds];
    const withRole = (...roles: number[]): Splitter => new Splitter(entries.filter(([, id]) => roles.includes(vocab.roles[id] ?? Role.text)));
    this.markers = withRole(Role.marker);
    this.specials = withRole(Role.marker, Role.control);
    this.atoms = withRole(Role.atom);
  }

  encode(text: string, { parse = "none", bos }: EncodeOptions = {}): number[] {
    return this.assemble([{ text, parse }], bos);
  }

  encodePieces(pieces: readonly TextPiece[], { bos }: { bos?: boolean } = {}): number[] {
    const spans = pieces.map(({ text, trusted }) => ({ text, parse: trusted ? ("all" as const) : ("none" as const) }));
    return this.assemble(spans, bos);
  }

  private assemble(spans: readonly { text: string; parse: ParseSpecial }[], bos = this.addBos): number[] {
    const ids: number[] = [];
    // Ordinary text of neighbouring spans is joined before it is segmented, so that where a template ends and a
    // user's text begins makes no difference to the ids; special tokens are found first, span by span.
    let pending = "";
    const flush = (): void => {
      if (pending !== "") this.segment(pending, ids);
      pending = "";
    };
    for (const { text, parse } of spans) {
      const formed = text.toWellFormed();
      if (parse === "none") {
        pending += formed;
        continue;
      }
      const splitter = parse === "all" ? this.specials : this.markers;
      splitter.split(formed, (part) => {
        if (typeof part === "string") {
          pending += part;
          return;
        }
        flush();
        ids.push(part);
      });
    }
    flush();
    if (!bos || this.bosId === undefined) return ids;
    const given = ids.findIndex((id) => id !== this.bosId);
    const extra = given < 0 ? ids.length : given;
    if (extra === 1) return ids;
    return extra === 0 ? [this.bosId, ...ids] : ids.slice(extra - 1);
  }

  /** Appends the ids of ordinary text that no marker or control token interrupts. */
  private segment(text: string, ids: number[]): void {
    let prefix = this.scheme.spacePrefix ? " " : "";
    this.atoms.split(text, (part) => {
      if (typeof part === "number") {
        ids.push(part);
      } else {
        this.scheme.pieces(this.scheme.normalise(prefix + part), (piece) => {
          for (const id of this.pieceIds(piece)) ids.push(id);
        });
      }
      prefix = "";
    });
  }

  private pieceIds(piece: string): readonly number[] {
    const known = this.cache.get(piece);
    if (known !== undefined) return known;
    const whole = this.scheme.wholeFirst(piece) ? this.vocab.textIds.get(piece) : undefined;
    const ids = whole === undefined ? this.symbolIds(this.scheme.segmenter.segment(piece)) : [whole];
    if (piece.length <= CACHED_LENGTH) {
      if (this.cache.size >= CACHE_ENTRIES) this.cache.clear();
      this.cache.set(piece, ids);
    }
    return ids;
  }

  private symbolIds(symbols: readonly string[]): number[] {
    const ids: number[] = [];
    for (const symbol of symbols) {
      const id = this.vocab.textIds.get(symbol);
      if (id !== undefined) {
        ids.push(id);
        continue;
      }
      for (const byte of utf8.encode(symbol)) {
        const byteId = this.vocab.byteIds[byte] ?? -1;
        if (byteId >= 0) ids.push(byteId);
        else if (this.unkId !== undefined) ids.push(this.unkId);
      }
    }
    return ids;
  }

  decode(ids: ArrayLike<number>, { special = false }: { special?: boolean } = {}): string {
    const stream = this.stream({ special, atStart: true });
    const parts: string[] = [];
    for (let i = 0; i < ids.length; i++) parts.push(stream.push(ids[i] ?? -1));
    return parts.join("") + stream.end();
  }

  stream(options: StreamOptions = {}): TokenStream {
    return tokenStream(this.vocab, this.scheme.textBytes, this.scheme.spacePrefix, options);
  }

  piece(id: number): string {
    const stream = this.stream({ special: true });
    return stream.push(id) + stream.end();
  }

  bytes(id: number): Uint8Array {
    const text = this.vocab.tokens[id];
    const byte = this.vocab.bytes[id] ?? -1;
    if (byte >= 0) return Uint8Array.of(byte);
    const role = this.vocab.roles[id];
    if (text === undefined || role === Role.control) return new Uint8Array(0);
    if (role !== Role.text) return utf8.encode(text);
    return this.scheme.textBytes?.(text) ?? utf8.encode(text.replaceAll(SPACE, " "));
  }

  marker(id: number): string | undefined {
    const role = this.vocab.roles[id] ?? Role.text;
    return role === Role.marker || role === Role.control ? this.vocab.tokens[id] : undefined;
  }

  idOf(text: string): number | undefined {
    return this.vocab.idOf(text);
  }
}

/** A model without a tokenizer can be run on ids; anything that needs text is refused with a reason. */
function noTokenizer(source: TokenizerSource): Tokenizer {
  const refuse = (): never => {
    throw new UsageError("tokenizer_none", "this model has no tokenizer, so it cannot take or give text", "Pass token ids instead.");
  };
  return {
    model: "none",
    vocabSize: source.tokens.length,
    bosId: source.bosId,
    eosId: source.eosId,
    unkId: source.unkId,
    padId: source.padId,
    addBos: false,
    stopIds: new Set([source.eosId, source.eotId].filter((id) => id !== undefined)),
    suppressIds: source.suppressIds ?? [],
    warnings: [],
    encode: refuse,
    encodePieces: refuse,
    decode: refuse,
    stream: refuse,
    piece: refuse,
    bytes: refuse,
    marker: () => undefined,
    idOf: () => undefined,
  };
}
