// What a tokenizer model has to say for itself; everything else is the same for all.
import type { Segmenter } from "./bpe.ts";
import type { TextBytes } from "./stream.ts";

/** What differs between the tokenizer models. */
export interface Scheme {
  readonly segmenter: Segmenter;
  readonly addBos: boolean;
  /** Puts a space in front of text that starts a sequence or follows a special token. */
  readonly spacePrefix: boolean;
  /** Cuts normalised text into independent pieces. */
  pieces(text: string, emit: (piece: string) => void): void;
  normalise(text: string): string;
  /** Emit a piece whole if the vocabulary has it, before trying merges. */
  wholeFirst(piece: string): boolean;
  readonly textBytes: TextBytes;
}
