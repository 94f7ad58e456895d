// Parses and checks the header of one safetensors file: JSON of names, types, shapes and byte ranges.
// Knows nothing of what the tensors mean, and reads no tensor data.

import { ModelFileError } from "../errors.ts";

/** Bits of one element. */
export const DTYPE_BITS = {
  BOOL: 8,
  F4: 4,
  F6_E2M3: 6,
  F6_E3M2: 6,
  U8: 8,
  I8: 8,
  F8_E4M3: 8,
  F8_E5M2: 8,
  F8_E8M0: 8,
  I16: 16,
  U16: 16,
  F16: 16,
  BF16: 16,
  I32: 32,
  U32: 32,
  F32: 32,
  I64: 64,
  U64: 64,
  F64: 64,
  C64: 64,
} as const;

export type SafetensorsDtype = keyof typeof DTYPE_BITS;

/** One tensor of one file. */
export interface HeaderTensor {
  readonly name: string;
  readonly dtype: SafetensorsDtype;
  /** Row-major: the last dimension is contiguous (the reverse of GGUF's order). */
  readonly shape: readonly number[];
  readonly bytes: number;
  /** Absolute position in the file. */
  readonly offsetBytes: number;
}

export interface Header {
  readonly tensors: Map<string, HeaderTensor>;
  /** The free text pairs under `__metadata__`. */
  readonly metadata: Map<string, string>;
}

/** Fills the start of `into` from `position`; returns how many bytes there were. */
export type ReadAt = (into: Uint8Array, position: number) => number;

/** The reference implementation's bound; headers of real shards are below 2 MB. */
export const MAX_HEADER_BYTES = 100_000_000;
/** More than any checkpoint of one tensor per expert and layer; a header within the bound above could list more. */
const MAX_TENSORS = 1_048_576;
/** Real tensors have up to five dimensions (convolutions over time). */
const MAX_DIMS = 16;

const REDOWNLOAD =
  "The file is damaged or was cut while it was copied or downloaded: fetch it again and compare its size or checksum with the source.";

/** Error about one file; the message starts with its path. */
export function fileError(path: string, code: string, what: string, hint: string = REDOWNLOAD): ModelFileError {
  return new ModelFileError(code, `${path}: ${what}`, hint);
}

/** Text out of a file, quoted and shortened, with everything escaped that could move a cursor. */
export function printable(text: string): string {
  const cut = text.length > 120 ? `${text.slice(0, 120)}...` : text;
  return JSON.stringify(cut).replace(
    /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/**
 * Reads the header of the file `path` of `sizeBytes`. Throws ModelFileError: `safetensors_empty`, `safetensors_magic` (something else),
 * `safetensors_truncated`, `safetensors_header` (not the JSON it should be), `safetensors_dtype`, `safetensors_shape`,
 * `safetensors_offset`, `safetensors_overlap`. Gaps between tensors are accepted.
 */
export function readHeader(path: string, sizeBytes: number, readAt: ReadAt): Header {
  const headerBytes = readLength(path, sizeBytes, readAt);
  const raw = new Uint8Array(headerBytes);
  if (readAt(raw, 8) < headerBytes) throw fileError(path, "safetensors_truncated", "the file became shorter while it was read");
  const entries = Object.entries(parseObject(path, raw));
  if (entries.length > MAX_TENSORS)
    throw fileError(path, "safetensors_header", `the header lists ${entries.length} tensors, more than the ${MAX_TENSORS} allowed`);
  const tensors = new Map<string, HeaderTensor>();
  const metadata = new Map<string, string>();
  for (const [name, entry] of entries) {
    if (name === "__metadata__") readMetadata(path, entry, metadata);
    else tensors.set(name, readTensor(path, name, entry, 8 + headerBytes));
  }
  checkRanges(path, [...tensors.values()], sizeBytes);
  return { tensors, metadata };
}

/** Length of the JSON, checked against the file. The kind of file is judged before its size. */
function readLength(path: string, sizeBytes: number, readAt: ReadAt): number {
  if (sizeBytes === 0)
    throw fileError(path, "safetensors_empty", "the file is empty (0 bytes)", "The download did not start or the disk was full: fetch it again.");
  const head = new Uint8Array(64);
  const found = head.subarray(0, readAt(head, 0));
  const foreign = identify(found);
  if (foreign !== undefined)
    throw fileError(
      path,
      "safetensors_magic",
      `expected a safetensors file, found ${foreign}; file size ${sizeBytes} bytes`,
      "Name a .safetensors file, or fetch this one again from the link to the raw file.",
    );
  if (found.length < 9)
    throw fileError(path, "safetensors_truncated", `the file ends inside the header: at least 10 bytes expected, ${sizeBytes} found`);
  const length = new DataView(head.buffer).getBigUint64(0, true);
  if (found[8] !== 0x7b)
    throw fileError(
      path,
      "safetensors_magic",
      `expected a safetensors file, whose header starts with "{", found byte 0x${(found[8] as number).toString(16)} there`,
    );
  if (length > BigInt(MAX_HEADER_BYTES))
    throw fileError(path, "safetensors_header", `the header claims ${length} bytes, more than the ${MAX_HEADER_BYTES} allowed`);
  if (length < 2n) throw fileError(path, "safetensors_header", `the header claims ${length} bytes, less than an empty object`);
  if (Number(length) > sizeBytes - 8) {
    throw fileError(path, "safetensors_truncated", `the file ends inside the header: ${length} bytes expected, ${sizeBytes - 8} found`);
  }
  return Number(length);
}

function identify(head: Uint8Array): string | undefined {
  const text = Buffer.from(head).toString("latin1");
  const start = text.trimStart();
  if (text.startsWith("GGUF")) return "a GGUF file";
  if (text.startsWith("version https://git-lfs")) return "a Git LFS pointer, not the file it stands for";
  if (text.startsWith("PK\x03\x04")) return "a ZIP archive (PyTorch checkpoints are such)";
  // A header length is eight binary bytes: text in all of them is no length.
  if (start.startsWith("<") && /^[\x20-\x7e\s]{8}/.test(text)) return "a web page or XML document";
  if (start.startsWith("{") && /^[\x20-\x7e\s]{8}/.test(text)) return "JSON text";
  if (head.length >= 16 && head.every((byte) => byte === 0)) return "zeros, as of a download that reserved its space and never wrote";
  return undefined;
}

function parseObject(path: string, raw: Uint8Array): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(raw));
  } catch (error) {
    throw fileError(path, "safetensors_header", `the header is no valid JSON: ${(error as Error).message}`);
  }
  if (!isObject(value)) throw fileError(path, "safetensors_header", "the header is no JSON object");
  return value;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function readMetadata(path: string, entry: unknown, metadata: Map<string, string>): void {
  if (!isObject(entry)) throw fileError(path, "safetensors_header", "__metadata__ is no object");
  for (const [key, value] of Object.entries(entry)) {
    if (typeof value !== "string")
      throw fileError(path, "safetensors_header", `__metadata__ ${printable(key)}: expected a string, found ${typeof value}`);
    metadata.set(key, value);
  }
}

function readTensor(path: string, name: string, entry: unknown, dataStart: number): HeaderTensor {
  const label = `tensor ${printable(name)}`;
  if (!isObject(entry)) throw fileError(path, "safetensors_header", `${label} is no object`);
  const { dtype, shape, data_offsets: offsets } = entry;
  if (typeof dtype !== "string" || !Object.hasOwn(DTYPE_BITS, dtype)) {
    const found = typeof dtype === "string" ? printable(dtype) : typeof dtype;
    throw fileError(path, "safetensors_dtype", `${label} has the unknown dtype ${found}`, `Known are ${Object.keys(DTYPE_BITS).join(", ")}.`);
  }
  if (!isSizes(shape) || shape.length > MAX_DIMS) {
    throw fileError(path, "safetensors_shape", `${label}: expected a shape of at most ${MAX_DIMS} whole numbers, found ${show(shape)}`);
  }
  const elements = shape.reduce((product, dim) => product * dim, 1);
  const bits = elements * DTYPE_BITS[dtype as SafetensorsDtype];
  if (!Number.isSafeInteger(bits) || bits % 8 !== 0) {
    throw fileError(path, "safetensors_shape", `${label}: shape [${shape.join(", ")}] of ${dtype} has no possible size in bytes`);
  }
  if (!isSizes(offsets) || offsets.length !== 2) {
    throw fileError(path, "safetensors_offset", `${label}: expected data_offsets of two whole numbers, found ${show(offsets)}`);
  }
  const [begin, end] = offsets as [number, number];
  if (end - begin !== bits / 8) {
    throw fileError(
      path,
      "safetensors_offset",
      `${label}: shape [${shape.join(", ")}] of ${dtype} needs ${bits / 8} bytes, data_offsets [${begin}, ${end}] give ${end - begin}`,
    );
  }
  return { name, dtype: dtype as SafetensorsDtype, shape, bytes: bits / 8, offsetBytes: dataStart + begin };
}

function isSizes(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((item) => Number.isSafeInteger(item) && item >= 0);
}

/** A wrong shape or range in short. Never serialises what may be nested a million deep. */
function show(value: unknown): string {
  if (!Array.isArray(value)) return value === undefined ? "nothing" : `a ${value === null ? "null" : typeof value}`;
  const plain = value.every((item) => typeof item === "number" || typeof item === "string");
  return plain ? printable(value.join(", ")) : `a list of ${value.length}`;
}

function checkRanges(path: string, tensors: readonly HeaderTensor[], sizeBytes: number): void {
  const inOrder = tensors.filter((tensor) => tensor.bytes > 0).sort((a, b) => a.offsetBytes - b.offsetBytes);
  let before: HeaderTensor | undefined;
  for (const tensor of inOrder) {
    if (before !== undefined && before.offsetBytes + before.bytes > tensor.offsetBytes) {
      throw fileError(
        path,
        "safetensors_overlap",
        `tensors ${printable(before.name)} and ${printable(tensor.name)} overlap at byte ${tensor.offsetBytes}`,
      );
    }
    before = tensor;
  }
  const cut = inOrder.find((tensor) => tensor.offsetBytes + tensor.bytes > sizeBytes);
  if (cut === undefined || before === undefined) return;
  const needed = before.offsetBytes + before.bytes;
  const where = `tensor ${printable(cut.name)} lies at bytes ${cut.offsetBytes}..${cut.offsetBytes + cut.bytes}`;
  throw fileError(
    path,
    "safetensors_truncated",
    `the file is cut: ${where}; expected a file of at least ${needed} bytes, found ${sizeBytes}: ${needed - sizeBytes} are missing`,
  );
}
