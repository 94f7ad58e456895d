// Facts of the GGUF container: tensor element types and metadata value types, with sizes.
// Covers every id that a file may carry, also the types that no kernel runs, so that `bao inspect` can name them.

/** One tensor element type. A row of `blockElements * n` elements occupies `blockBytes * n` bytes. */
export interface GgmlType {
  /** Id stored in the file. */
  readonly id: number;
  readonly name: GgmlTypeName;
  /** Elements of one block along ne[0]; 1 for plain types. */
  readonly blockElements: number;
  /** Bytes of one block. */
  readonly blockBytes: number;
}

// name, id, elements of a block, bytes of a block
const TYPES = [
  ["F32", 0, 1, 4],
  ["F16", 1, 1, 2],
  ["Q4_0", 2, 32, 18],
  ["Q4_1", 3, 32, 20],
  ["Q5_0", 6, 32, 22],
  ["Q5_1", 7, 32, 24],
  ["Q8_0", 8, 32, 34],
  ["Q8_1", 9, 32, 36],
  ["Q2_K", 10, 256, 84],
  ["Q3_K", 11, 256, 110],
  ["Q4_K", 12, 256, 144],
  ["Q5_K", 13, 256, 176],
  ["Q6_K", 14, 256, 210],
  ["Q8_K", 15, 256, 292],
  ["IQ2_XXS", 16, 256, 66],
  ["IQ2_XS", 17, 256, 74],
  ["IQ3_XXS", 18, 256, 98],
  ["IQ1_S", 19, 256, 50],
  ["IQ4_NL", 20, 32, 18],
  ["IQ3_S", 21, 256, 110],
  ["IQ2_S", 22, 256, 82],
  ["IQ4_XS", 23, 256, 136],
  ["I8", 24, 1, 1],
  ["I16", 25, 1, 2],
  ["I32", 26, 1, 4],
  ["I64", 27, 1, 8],
  ["F64", 28, 1, 8],
  ["IQ1_M", 29, 256, 56],
  ["BF16", 30, 1, 2],
  ["TQ1_0", 34, 256, 54],
  ["TQ2_0", 35, 256, 66],
  ["MXFP4", 39, 32, 17],
  ["NVFP4", 40, 64, 36],
  ["Q1_0", 41, 128, 18],
  ["Q2_0", 42, 64, 18],
] as const;

export type GgmlTypeName = (typeof TYPES)[number][0];

const byName = new Map<string, GgmlType>();
const byId = new Map<number, GgmlType>();
for (const [name, id, blockElements, blockBytes] of TYPES) {
  const type: GgmlType = Object.freeze({ id, name, blockElements, blockBytes });
  byName.set(name, type);
  byId.set(id, type);
}

/** Every known tensor type, in id order. */
export const GGML_TYPES: readonly GgmlType[] = [...byId.values()];

/** Ids that once had a meaning and were withdrawn: files that carry them cannot be read by anyone any more. */
export const REMOVED_TYPES: ReadonlyMap<number, string> = new Map([
  [4, "Q4_2"],
  [5, "Q4_3"],
  [31, "Q4_0_4_4"],
  [32, "Q4_0_4_8"],
  [33, "Q4_0_8_8"],
  [36, "IQ4_NL_4_4"],
  [37, "IQ4_NL_4_8"],
  [38, "IQ4_NL_8_8"],
]);

/** Type with this file id, or undefined for ids that are unknown or were removed. */
export function ggmlTypeById(id: number): GgmlType | undefined {
  return byId.get(id);
}

/** Type with this name, e.g. `Q4_K`. */
export function ggmlType(name: GgmlTypeName): GgmlType {
  return byName.get(name) as GgmlType;
}

/** Type with this name in any case, or undefined: for names that a user typed. */
export function findGgmlType(name: string): GgmlType | undefined {
  return byName.get(name.toUpperCase());
}

/**
 * Bytes of a dense tensor of `type` with `shape` in ne order (ne[0] is the row length).
 * Undefined when the size is not exact below 2^53. The row must be whole blocks: see `isWholeBlocks`.
 */
export function tensorBytes(type: GgmlType, shape: readonly number[]): number | undefined {
  const elements = elementCount(shape);
  if (elements === undefined) return undefined;
  const bytes = (elements / type.blockElements) * type.blockBytes;
  return bytes <= Number.MAX_SAFE_INTEGER ? bytes : undefined;
}

/** Product of the dimensions, or undefined when it (or any partial product) leaves the exact range of 2^53. */
export function elementCount(shape: readonly number[]): number | undefined {
  let elements = 1;
  for (const dim of shape) {
    elements *= dim;
    if (!Number.isSafeInteger(elements)) return undefined;
  }
  return elements;
}

/** Whether rows of ne[0] elements are whole blocks of `type`; nothing else can be addressed row by row. */
export function isWholeBlocks(type: GgmlType, shape: readonly number[]): boolean {
  return (shape[0] ?? 1) % type.blockElements === 0;
}

/** Metadata value types by file id. `array` is followed by an element type and a count. */
export const VALUE_TYPES = ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"] as const;

export type GgufValueType = (typeof VALUE_TYPES)[number];
export type GgufItemType = Exclude<GgufValueType, "array">;

/** Bytes in the file of one value; for strings the least possible (the length alone). */
export const VALUE_BYTES: Readonly<Record<GgufItemType, number>> = {
  u8: 1,
  i8: 1,
  u16: 2,
  i16: 2,
  u32: 4,
  i32: 4,
  f32: 4,
  bool: 1,
  string: 8,
  u64: 8,
  i64: 8,
  f64: 8,
};

/** Array payload: numbers as typed arrays, booleans as bytes (0 is false, anything else true), strings as strings. */
export type GgufArray =
  | { readonly of: "u8"; readonly values: Uint8Array }
  | { readonly of: "bool"; readonly values: Uint8Array }
  | { readonly of: "i8"; readonly values: Int8Array }
  | { readonly of: "u16"; readonly values: Uint16Array }
  | { readonly of: "i16"; readonly values: Int16Array }
  | { readonly of: "u32"; readonly values: Uint32Array }
  | { readonly of: "i32"; readonly values: Int32Array }
  | { readonly of: "u64"; readonly values: BigUint64Array }
  | { readonly of: "i64"; readonly values: BigInt64Array }
  | { readonly of: "f32"; readonly values: Float32Array }
  | { readonly of: "f64"; readonly values: Float64Array }
  | { readonly of: "string"; readonly values: readonly string[] };

/** One metadata value exactly as the file types it; what `GgufWriter.set` takes and `GgufMetadata` holds. */
export type GgufValue =
  | { readonly type: "u8" | "i8" | "u16" | "i16" | "u32" | "i32" | "f32" | "f64"; readonly value: number }
  | { readonly type: "u64" | "i64"; readonly value: bigint }
  | { readonly type: "bool"; readonly value: boolean }
  | { readonly type: "string"; readonly value: string }
  | { readonly type: "array"; readonly value: GgufArray };

/** One tensor of an opened file set. Nothing here holds the bytes themselves. */
export interface GgufTensor {
  readonly name: string;
  readonly type: GgmlType;
  /** Dimensions in ne order: `shape[0]` is the contiguous row length. A file scalar is `[1]`. */
  readonly shape: readonly number[];
  /** Size of the data, without padding. */
  readonly bytes: number;
  /** Index into `GgufFile.shards`. */
  readonly shard: number;
  /** Path of the shard that holds the data. */
  readonly path: string;
  /** Absolute position in that shard's file; the data is inside of it, unless there is none (`bytes` 0): then nothing is promised. */
  readonly offsetBytes: number;
}

export interface GgufShard {
  readonly path: string;
  readonly sizeBytes: number;
}
