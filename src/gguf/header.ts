// Parses and checks the header of one GGUF file: magic, keys, tensor table, and that the data it promises is there.
// Never reads tensor data and never believes a count before comparing it with the bytes left.

import { Cursor } from "./cursor.ts";
import { IDENTIFY_BYTES, identify } from "./identify.ts";
import { checkLayout, type HeaderTensor } from "./layout.ts";
import * as limits from "./limits.ts";
import { alignUp, fileError, printable, REDOWNLOAD } from "./limits.ts";
import { GgufMetadata } from "./metadata.ts";
import type { ByteSource } from "./source.ts";
import {
  elementCount,
  ggmlTypeById,
  isWholeBlocks,
  REMOVED_TYPES,
  tensorBytes,
  VALUE_BYTES,
  VALUE_TYPES,
  type GgmlType,
  type GgufArray,
  type GgufItemType,
  type GgufValue,
} from "./types.ts";

/** One file's header. */
export interface Header {
  readonly path: string;
  readonly sizeBytes: number;
  readonly version: number;
  readonly alignment: number;
  readonly metadata: GgufMetadata;
  readonly tensors: Map<string, HeaderTensor>;
}

/**
 * Reads the header of `source` and checks it against the file's size. Throws ModelFileError for every defect;
 * accepts trailing bytes, unknown keys, gaps between tensors and tensors in any order.
 */
export function readHeader(source: ByteSource): Header {
  checkMagic(source);
  const cursor = new Cursor(source);
  cursor.u32(); // magic
  const version = checkVersion(cursor);
  cursor.reading = "the header";
  const nTensors = checkCount(cursor, "tensors", limits.MAX_TENSORS, MIN_TENSOR_BYTES);
  const nKeys = checkCount(cursor, "keys", limits.MAX_KEYS, MIN_KEY_BYTES);
  const metadata = readKeys(cursor, nKeys);
  const alignment = readAlignment(metadata);
  const tensors = readTensors(cursor, nTensors, alignment);
  const dataStart = alignUp(cursor.position, alignment);
  checkLayout(source, [...tensors.values()], dataStart, alignment);
  for (const [name, tensor] of tensors) tensors.set(name, { ...tensor, offsetBytes: dataStart + tensor.offsetBytes });
  return { path: source.path, sizeBytes: source.sizeBytes, version, alignment, metadata, tensors };
}

/** Length, one byte of key, type, one byte of value. */
const MIN_KEY_BYTES = 8 + 1 + 4 + 1;
/** Length, one byte of name, dimension count, type, offset. */
const MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8;

// The magic comes before any check of the size: a short web page is no truncated model.
function checkMagic(source: ByteSource): void {
  const { path, sizeBytes } = source;
  if (sizeBytes === 0)
    throw fileError(path, "gguf_empty", "the file is empty (0 bytes)", "The download did not start or the disk was full: fetch it again.");
  const head = new Uint8Array(Math.min(sizeBytes, IDENTIFY_BYTES));
  const found = head.subarray(0, source.read(head, 0));
  const magic = Buffer.from(found.subarray(0, 4)).toString("latin1");
  if (magic !== limits.MAGIC && !(found.length < 4 && limits.MAGIC.startsWith(magic))) {
    const { what, hint } = identify(found);
    throw fileError(path, "gguf_magic", `expected a GGUF file (magic "GGUF"), found ${what}; file size ${sizeBytes} bytes`, hint);
  }
  if (sizeBytes < limits.MIN_FILE_BYTES) {
    throw fileError(
      path,
      "gguf_truncated",
      `the file ends inside the header: at least ${limits.MIN_FILE_BYTES} bytes expected, ${sizeBytes} found`,
      REDOWNLOAD,
    );
  }
}

function checkVersion(cursor: Cursor): number {
  cursor.reading = "the version";
  const version = cursor.u32();
  if (limits.VERSIONS.some((known) => known === version)) return version;
  const supported = `expected version ${limits.VERSIONS.join(" or ")}`;
  if (version !== 0 && (version & 0xffff) === 0) {
    throw cursor.fail(
      "gguf_endianness",
      `${supported}, found ${version}: the numbers are stored big-endian, this reader takes little-endian files (endianness)`,
      "Fetch the little-endian file, or convert it with gguf-py's gguf_convert_endian.",
    );
  }
  const hint =
    version > 3 && version < 100
      ? "The file is newer than this program: update Bao."
      : version === 1
        ? "Version 1 was in use for days in August 2023: fetch a newer file of the model."
        : REDOWNLOAD;
  throw cursor.fail("gguf_version", `${supported}, found ${version}`, hint);
}

function checkCount(cursor: Cursor, what: string, most: number, minBytes: number): number {
  const count = cursor.u64();
  const text = cursor.lastU64;
  if (count > most) throw cursor.fail("gguf_count", `the file claims ${text} ${what}, more than the ${most} allowed`);
  if (count * minBytes > cursor.left) {
    throw cursor.fail("gguf_count", `the file claims ${text} ${what}, which need at least ${count * minBytes} bytes; ${cursor.left} follow`);
  }
  return count;
}

function readKeys(cursor: Cursor, count: number): GgufMetadata {
  const metadata = new GgufMetadata(cursor.source.path);
  for (let i = 0; i < count; i++) {
    cursor.reading = `key ${i + 1} of ${count}`;
    const key = cursor.string(limits.MAX_KEY_BYTES, "gguf_key");
    if (key === "") throw cursor.fail("gguf_key", `key ${i + 1} of ${count} is empty`);
    if (metadata.has(key))
      throw cursor.fail("gguf_duplicate_key", `key ${printable(key)} occurs twice`, "Remove one of the two with the tool that wrote the file.");
    cursor.reading = `the value of ${printable(key)}`;
    metadata.set(key, readValue(cursor));
  }
  return metadata;
}

function readValue(cursor: Cursor): GgufValue {
  const type = valueType(cursor);
  switch (type) {
    case "string":
      return { type, value: cursor.string(limits.MAX_STRING_BYTES, "gguf_string_length") };
    case "array": {
      const of = valueType(cursor);
      if (of === "array")
        throw cursor.fail("gguf_array", `${cursor.reading} is an array of arrays`, "Nothing in a language model uses them: convert the model again.");
      return { type, value: readArray(cursor, of) };
    }
    default:
      return { type, value: cursor.scalar(type) } as GgufValue;
  }
}

function valueType(cursor: Cursor): (typeof VALUE_TYPES)[number] {
  const id = cursor.u32();
  const type = VALUE_TYPES[id];
  if (type === undefined) throw cursor.fail("gguf_value_type", `${cursor.reading} has type ${id}; types 0..${VALUE_TYPES.length - 1} are known`);
  return type;
}

function readArray(cursor: Cursor, of: GgufItemType): GgufArray {
  const count = cursor.u64();
  const text = cursor.lastU64;
  if (count > limits.MAX_ARRAY_ITEMS) {
    throw cursor.fail("gguf_array", `${cursor.reading} is an array of ${text} items, more than the ${limits.MAX_ARRAY_ITEMS} allowed`);
  }
  const bytes = count * VALUE_BYTES[of];
  if (bytes > cursor.left) {
    throw cursor.fail("gguf_array", `${cursor.reading} is an array of ${text} ${of}, which needs at least ${bytes} bytes; ${cursor.left} follow`);
  }
  return cursor.items(of, count, limits.MAX_STRING_BYTES);
}

function readAlignment(metadata: GgufMetadata): number {
  const entry = metadata.get("general.alignment");
  if (entry === undefined) return limits.DEFAULT_ALIGNMENT;
  const fail = (what: string): Error =>
    fileError(
      metadata.path,
      "gguf_alignment",
      `general.alignment must be ${what}`,
      "The file is damaged or its writer was wrong: convert the model again.",
    );
  if (entry.type !== "u32") throw fail(`of type u32, found ${entry.type}`);
  const alignment = entry.value;
  if (alignment === 0 || (alignment & (alignment - 1)) !== 0) throw fail(`a power of two, found ${alignment}`);
  if (alignment > limits.MAX_ALIGNMENT) throw fail(`at most ${limits.MAX_ALIGNMENT}, found ${alignment}`);
  return alignment;
}

function readTensors(cursor: Cursor, count: number, alignment: number): Map<string, HeaderTensor> {
  const tensors = new Map<string, HeaderTensor>();
  for (let i = 0; i < count; i++) {
    cursor.reading = `the name of tensor ${i + 1} of ${count}`;
    const name = cursor.string(limits.MAX_TENSOR_NAME_BYTES, "gguf_tensor_name");
    if (name === "") throw cursor.fail("gguf_tensor_name", `tensor ${i + 1} of ${count} has no name`);
    const label = `tensor ${printable(name)}`;
    if (tensors.has(name)) throw cursor.fail("gguf_duplicate_tensor", `${label} occurs twice`);
    cursor.reading = label;
    tensors.set(name, readTensor(cursor, name, label, alignment));
  }
  return tensors;
}

function readTensor(cursor: Cursor, name: string, label: string, alignment: number): HeaderTensor {
  const nDims = cursor.u32();
  if (nDims > limits.MAX_DIMS) throw cursor.fail("gguf_tensor_dims", `${label} has ${nDims} dimensions; at most ${limits.MAX_DIMS} are possible`);
  const shape: number[] = [];
  for (let d = 0; d < nDims; d++) {
    const dim = cursor.u64();
    if (dim > Number.MAX_SAFE_INTEGER) throw cursor.fail("gguf_tensor_dims", `dimension ${d} of ${label} is ${cursor.lastU64}`);
    shape.push(dim);
  }
  if (nDims === 0) shape.push(1);
  const type = tensorType(cursor, label);
  if (elementCount(shape) === undefined)
    throw cursor.fail("gguf_tensor_size", `${label} with shape [${shape.join(", ")}] has more than 2^53 elements`);
  if (!isWholeBlocks(type, shape)) {
    throw cursor.fail(
      "gguf_tensor_row",
      `${label} has rows of ${shape[0]} elements, no multiple of the ${type.blockElements} of a ${type.name} block`,
      "Quantise the model again: this type cannot hold rows of that length.",
    );
  }
  const bytes = tensorBytes(type, shape);
  if (bytes === undefined)
    throw cursor.fail("gguf_tensor_size", `${label} with shape [${shape.join(", ")}] and type ${type.name} has more than 2^53 bytes`);
  const offsetBytes = cursor.u64();
  if (offsetBytes > Number.MAX_SAFE_INTEGER) throw cursor.fail("gguf_tensor_offset", `${label} has the offset ${cursor.lastU64}`);
  if (offsetBytes % alignment !== 0) {
    throw cursor.fail("gguf_tensor_offset", `${label} has the offset ${offsetBytes}, no multiple of the alignment ${alignment}`);
  }
  return { name, type, shape, bytes, offsetBytes };
}

function tensorType(cursor: Cursor, label: string): GgmlType {
  const id = cursor.u32();
  const type = ggmlTypeById(id);
  if (type !== undefined) return type;
  const removed = REMOVED_TYPES.get(id);
  if (removed !== undefined) {
    const what = `${label} has type ${id} (${removed}), which was removed from the format`;
    throw cursor.fail("gguf_tensor_type", what, "Quantise the model again with a current program.");
  }
  const hint = "Written by a newer program or by a fork with types of its own: use a file of a common type, e.g. Q4_K_M or Q8_0.";
  throw cursor.fail("gguf_tensor_type", `${label} has the unknown type ${id}`, hint);
}
