// The key-value block of a GGUF file as a Map with typed getters.
// Getters forgive the integer width that a writer chose, never a wrong kind; a missing key is undefined, never a default.

import { fileError, printable } from "./limits.ts";
import type { GgufArray, GgufValue } from "./types.ts";

/**
 * Metadata by key, in file order. Getters return undefined for an absent key, and throw ModelFileError `gguf_key_type`
 * for a value of another kind and `gguf_key_length` for an array of the wrong length.
 * A required key reads `metadata.u32(key) ?? metadata.missing(key)`.
 */
export class GgufMetadata extends Map<string, GgufValue> {
  constructor(
    /** File that messages name. */
    readonly path: string,
  ) {
    super();
  }

  /** Whole number 0..2^32-1, stored in an integer type of any width. */
  u32(key: string): number | undefined {
    const value = this.int(key);
    if (value !== undefined && (value < 0 || value > 0xffffffff)) throw this.#wrong(key, "a whole number 0..4294967295", String(value));
    return value;
  }

  /** Whole number within +-2^53, stored in an integer type of any width. */
  int(key: string): number | undefined {
    const entry = this.get(key);
    if (entry === undefined) return undefined;
    const value = scalarInteger(entry);
    if (value === undefined) throw this.#wrong(key, "an integer", describeValue(entry));
    return value;
  }

  /** Number stored as f32, f64 or an integer. */
  f32(key: string): number | undefined {
    const entry = this.get(key);
    if (entry === undefined) return undefined;
    if (entry.type === "f32" || entry.type === "f64") return entry.value;
    const value = scalarInteger(entry);
    if (value === undefined) throw this.#wrong(key, "a number", describeValue(entry));
    return value;
  }

  bool(key: string): boolean | undefined {
    const entry = this.get(key);
    if (entry === undefined) return undefined;
    if (entry.type !== "bool") throw this.#wrong(key, "a bool", describeValue(entry));
    return entry.value;
  }

  string(key: string): string | undefined {
    const entry = this.get(key);
    if (entry === undefined) return undefined;
    if (entry.type !== "string") throw this.#wrong(key, "a string", describeValue(entry));
    return entry.value;
  }

  /** Array of strings. */
  strings(key: string): readonly string[] | undefined {
    const array = this.#array(key, "an array of strings");
    if (array === undefined) return undefined;
    if (array.of !== "string") throw this.#wrong(key, "an array of strings", describeArray(array));
    return array.values;
  }

  /** Array of integers of any width, as the file's own typed array where that is 32 bits or less. */
  ints(key: string): ArrayLike<number> | undefined {
    const array = this.#array(key, "an array of integers");
    if (array === undefined) return undefined;
    switch (array.of) {
      case "u8":
      case "i8":
      case "u16":
      case "i16":
      case "u32":
      case "i32":
        return array.values;
      case "u64":
      case "i64":
        return Float64Array.from(array.values as BigInt64Array, (value) => {
          const number = exact(value);
          if (number === undefined) throw this.#wrong(key, "integers within 2^53", String(value));
          return number;
        });
      default:
        throw this.#wrong(key, "an array of integers", describeArray(array));
    }
  }

  /** Array of f32; f64 is rounded. */
  floats(key: string): Float32Array | undefined {
    const array = this.#array(key, "an array of f32");
    if (array === undefined) return undefined;
    if (array.of === "f32") return array.values;
    if (array.of === "f64") return Float32Array.from(array.values);
    throw this.#wrong(key, "an array of f32", describeArray(array));
  }

  /** Array of booleans. */
  bools(key: string): boolean[] | undefined {
    const array = this.#array(key, "an array of bools");
    if (array === undefined) return undefined;
    if (array.of !== "bool") throw this.#wrong(key, "an array of bools", describeArray(array));
    return Array.from(array.values, (byte) => byte !== 0);
  }

  /** One whole number 0..2^32-1 for each of `count` layers: an array of exactly that length, or one scalar for all. */
  u32Each(key: string, count: number): number[] | undefined {
    if (this.get(key)?.type !== "array") {
      const value = this.u32(key);
      return value === undefined ? undefined : new Array<number>(count).fill(value);
    }
    const values = Array.from(this.#sized(key, this.ints(key) as ArrayLike<number>, count));
    const bad = values.findIndex((value) => value < 0 || value > 0xffffffff);
    if (bad >= 0) throw this.#wrong(key, "whole numbers 0..4294967295", `${values[bad]} at index ${bad}`);
    return values;
  }

  /** One number for each of `count` layers: an array of exactly that length, or one scalar for all. */
  f32Each(key: string, count: number): number[] | undefined {
    if (this.get(key)?.type !== "array") {
      const value = this.f32(key);
      return value === undefined ? undefined : new Array<number>(count).fill(value);
    }
    return Array.from(this.#sized(key, this.floats(key) as Float32Array, count));
  }

  /** One boolean for each of `count` layers: an array of exactly that length, or one scalar for all. */
  boolEach(key: string, count: number): boolean[] | undefined {
    if (this.get(key)?.type !== "array") {
      const value = this.bool(key);
      return value === undefined ? undefined : new Array<boolean>(count).fill(value);
    }
    return Array.from(this.#sized(key, this.bools(key) as boolean[], count));
  }

  /** Throws ModelFileError `gguf_key_missing`. */
  missing(key: string, hint = "The file was written for another program or is only a part of a model; convert it again."): never {
    throw fileError(this.path, "gguf_key_missing", `the required key ${printable(key)} is missing`, hint);
  }

  #array(key: string, expected: string): GgufArray | undefined {
    const entry = this.get(key);
    if (entry === undefined) return undefined;
    if (entry.type !== "array") throw this.#wrong(key, expected, describeValue(entry));
    return entry.value;
  }

  #sized<T extends { readonly length: number }>(key: string, values: T, count: number): T {
    if (values.length === count) return values;
    throw fileError(
      this.path,
      "gguf_key_length",
      `key ${printable(key)}: expected ${count} values, found ${values.length}`,
      "The file disagrees with itself about the number of layers; convert it again.",
    );
  }

  #wrong(key: string, expected: string, found: string): Error {
    return fileError(
      this.path,
      "gguf_key_type",
      `key ${printable(key)}: expected ${expected}, found ${found}`,
      "Convert the model again with a current converter.",
    );
  }
}

function scalarInteger(entry: GgufValue): number | undefined {
  switch (entry.type) {
    case "u8":
    case "i8":
    case "u16":
    case "i16":
    case "u32":
    case "i32":
      return entry.value;
    case "u64":
    case "i64":
      return exact(entry.value);
    default:
      return undefined;
  }
}

function exact(value: bigint): number | undefined {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : undefined;
}

function describeArray(array: GgufArray): string {
  return `an array of ${array.values.length} ${array.of}`;
}

/** One line about a value, short and safe to print, e.g. `u32 26`, `string "gemma4"`, `an array of 60 bool`. */
export function describeValue(entry: GgufValue): string {
  if (entry.type === "array") return describeArray(entry.value);
  return entry.type === "string" ? `string ${printable(entry.value)}` : `${entry.type} ${entry.value}`;
}
