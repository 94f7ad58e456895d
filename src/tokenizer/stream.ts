// Ids back to text, one at a time: byte tokens wait until they form whole characters. Never re-decodes what it has returned.

import { Role, SPACE, type Vocab } from "./vocab.ts";

/** Decoder of one sequence. Not shared between sequences: it holds the bytes of an unfinished character. */
export interface TokenStream {
  /** Text that `id` completes; `""` while a character is unfinished or if the token has no visible text. */
  push(id: number): string;
  /** Whatever is left; an unfinished character becomes U+FFFD. The stream is then as new. */
  end(): string;
}

/** How a scheme stores ordinary text: as itself with visible spaces, or in the byte alphabet of GPT-2. */
export type TextBytes = ((text: string) => Uint8Array) | undefined;

export interface StreamOptions {
  /** Also return the text of control tokens. Default false. */
  special?: boolean;
  /** The sequence starts here, not in the middle of a text: drop the space that the encoder put in front. Default false. */
  atStart?: boolean;
}

const REPLACEMENT = "\ufffd";

/** @param textBytes set if ordinary tokens are byte sequences; @param dropSpace whether the encoder adds a leading space. */
export function tokenStream(vocab: Vocab, textBytes: TextBytes, dropSpace: boolean, options: StreamOptions = {}): TokenStream {
  const { special = false, atStart = false } = options;
  let atFirst = atStart && dropSpace;
  // ignoreBOM keeps a U+FEFF that was encoded as bytes; without it the decoder would swallow it.
  let decoder: TextDecoder | undefined;
  const single = new Uint8Array(1);
  const bytes = (value: Uint8Array): string => (decoder ??= new TextDecoder("utf-8", { ignoreBOM: true })).decode(value, { stream: true });
  const flush = (): string => (decoder === undefined ? "" : decoder.decode());

  return {
    push(id) {
      const text = vocab.tokens[id];
      if (text === undefined) return flush() + REPLACEMENT;
      const byte = vocab.bytes[id] ?? -1;
      if (byte >= 0) {
        atFirst = false;
        single[0] = byte;
        return bytes(single);
      }
      const role = vocab.roles[id];
      if (role === Role.control && !special) return flush();
      if (role !== Role.text) return flush() + text;
      if (textBytes !== undefined) return bytes(textBytes(text));
      const visible = text.includes(SPACE) ? text.replaceAll(SPACE, " ") : text;
      const dropped = atFirst && visible.startsWith(" ") ? visible.slice(1) : visible;
      atFirst = false;
      return flush() + dropped;
    },
    end: flush,
  };
}
