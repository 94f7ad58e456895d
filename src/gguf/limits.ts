// Upper bounds of a GGUF header and how its errors are worded.
// A bound is here so that a damaged or hostile file costs neither memory nor time; each says why it is far above any real file.

import { ModelFileError } from "../errors.ts";

export const MAGIC = "GGUF";
export const VERSIONS = [2, 3] as const;
export const DEFAULT_ALIGNMENT = 32;

/** Magic, version and two counts: the least that any file has. */
export const MIN_FILE_BYTES = 24;

/** The largest known header, a 262,144-token vocabulary with scores and 514,906 merges, is under 20 MB. */
export const MAX_HEADER_BYTES = 256 * 2 ** 20;
/** Real files carry fewer than 100 keys, with all modalities. */
export const MAX_KEYS = 65_536;
/** The largest known files list about 2,200 tensors; one per expert of 60 layers x 256 experts x 3 would be 46,080. */
export const MAX_TENSORS = 1_048_576;
/** The GGUF specification ends keys at 2^16 - 1 bytes. */
export const MAX_KEY_BYTES = 65_535;
/** Chat templates, the longest strings in use, are below 100 KB. */
export const MAX_STRING_BYTES = 16 * 2 ** 20;
/** The longest array in use has 514,906 entries. */
export const MAX_ARRAY_ITEMS = 16 * 2 ** 20;
/** Names of 64 bytes and more do not fit the fixed field of ggml, so no writer makes them. */
export const MAX_TENSOR_NAME_BYTES = 63;
/** ggml tensors have at most four dimensions. */
export const MAX_DIMS = 4;
/** Above a page and a huge page's sub-blocks nothing gains from alignment; larger values only make padding arithmetic overflow. */
export const MAX_ALIGNMENT = 2 ** 20;

/** Error about one file. Every message starts with the path, so that a message alone is enough for a bug report. */
export function fileError(path: string, code: string, what: string, hint: string): ModelFileError {
  return new ModelFileError(code, `${path}: ${what}`, hint);
}

export const REDOWNLOAD =
  "The file is damaged or was cut while it was copied or downloaded: fetch it again and compare its size or checksum with the source.";

/** Text out of a file, quoted, cut to `max` characters, with everything escaped that could move a terminal's cursor or reorder a line. */
export function printable(text: string, max = 80): string {
  const cut = text.length > max ? `${text.slice(0, max)}...` : text;
  return JSON.stringify(cut).replace(
    /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** Rounds up to a multiple of `alignment`, a power of two; exact up to 2^53. */
export function alignUp(bytes: number, alignment: number): number {
  const rest = bytes % alignment;
  return rest === 0 ? bytes : bytes + (alignment - rest);
}
