// The tokenizer's public names, exports only.

export { type TokenizerSource, TokenType, tokenizerSource } from "./source.ts";
export type { StreamOptions, TokenStream } from "./stream.ts";
export {
  createTokenizer,
  type EncodeOptions,
  type ParseSpecial,
  SUPPORTED_TOKENIZERS,
  type TextPiece,
  type Tokenizer,
} from "./tokenizer.ts";
