// Bytes of a GGUF header: the exact counterpart of header.ts.
// Checks what is written against the same bounds that the reader has, so that nothing is written that cannot be opened.

import { BaoError } from "../errors.ts";
import * as limits from "./limits.ts";
import { printable } from "./limits.ts";
import { VALUE_TYPES, type GgmlType, type GgufArray, type GgufValue, type GgufValueType } from "./types.ts";

/** A tensor as the header lists it; `offsetBytes` counts from the start of the data section. */
export interface HeaderEntry {
  readonly name: string;
  readonly type: GgmlType;
  readonly shape: readonly number[];
  readonly offsetBytes: number;
}

/** Header without the padding behind it. */
export function encodeHeader(version: number, metadata: ReadonlyMap<string, GgufValue>, tensors: readonly HeaderEntry[]): Uint8Array {
  const out = new Output();
  out.bytes(Buffer.from(limits.MAGIC, "latin1"));
  out.u32(version);
  out.u64(BigInt(tensors.length));
  out.u64(BigInt(metadata.size));
  for (const [key, value] of metadata) {
    out.string(key);
    out.value(value);
  }
  for (const { name, type, shape, offsetBytes } of tensors) {
    out.string(name);
    out.u32(shape.length);
    for (const dim of shape) out.u64(BigInt(dim));
    out.u32(type.id);
    out.u64(BigInt(offsetBytes));
  }
  return out.finish();
}

/** Error of a caller of the writer. */
export function writeError(code: string, what: string, hint: string): BaoError {
  return new BaoError(code, what, hint);
}

const RANGES = {
  u8: [0, 0xff],
  i8: [-0x80, 0x7f],
  u16: [0, 0xffff],
  i16: [-0x8000, 0x7fff],
  u32: [0, 0xffffffff],
  i32: [-0x80000000, 0x7fffffff],
} as const;

/** Throws when `value` does not fit its type: a silently wrapped number would be a wrong model. */
export function checkValue(key: string, value: GgufValue): void {
  const fail = (what: string): Error => writeError("gguf_write_value", `key ${printable(key)}: ${what}`, "Choose the type that the value fits.");
  const length = Buffer.byteLength(key);
  if (length === 0 || length > limits.MAX_KEY_BYTES) throw fail(`keys have 1..${limits.MAX_KEY_BYTES} bytes, this one has ${length}`);
  switch (value.type) {
    case "u8":
    case "i8":
    case "u16":
    case "i16":
    case "u32":
    case "i32": {
      const [least, most] = RANGES[value.type];
      if (!Number.isInteger(value.value) || value.value < least || value.value > most) throw fail(`${value.value} is no ${value.type}`);
      return;
    }
    case "u64":
      if (BigInt.asUintN(64, value.value) !== value.value) throw fail(`${value.value} is no u64`);
      return;
    case "i64":
      if (BigInt.asIntN(64, value.value) !== value.value) throw fail(`${value.value} is no i64`);
      return;
    case "string":
      if (Buffer.byteLength(value.value) > limits.MAX_STRING_BYTES) throw fail(`the string is longer than ${limits.MAX_STRING_BYTES} bytes`);
      return;
    case "array":
      if (value.value.values.length > limits.MAX_ARRAY_ITEMS) throw fail(`the array has more than ${limits.MAX_ARRAY_ITEMS} items`);
      return;
    default:
      return;
  }
}

/** A growing little-endian buffer. */
class Output {
  #buffer = Buffer.allocUnsafe(64 * 1024);
  #length = 0;

  finish(): Uint8Array {
    return this.#buffer.subarray(0, this.#length);
  }

  bytes(bytes: Uint8Array): void {
    // Reserving may replace the buffer, so it comes first.
    const at = this.#reserve(bytes.length);
    this.#buffer.set(bytes, at);
  }

  u32(value: number): void {
    const at = this.#reserve(4);
    this.#buffer.writeUInt32LE(value, at);
  }

  u64(value: bigint): void {
    const at = this.#reserve(8);
    this.#buffer.writeBigUInt64LE(value, at);
  }

  string(text: string): void {
    const length = Buffer.byteLength(text);
    this.u64(BigInt(length));
    const at = this.#reserve(length);
    this.#buffer.write(text, at, length, "utf8");
  }

  value(entry: GgufValue): void {
    this.u32(typeId(entry.type));
    if (entry.type === "array") this.#array(entry.value);
    else this.#scalar(entry);
  }

  #array(array: GgufArray): void {
    this.u32(typeId(array.of));
    this.u64(BigInt(array.values.length));
    if (array.of === "string") {
      for (const text of array.values) this.string(text);
    } else {
      const { buffer, byteOffset, byteLength } = array.values;
      this.bytes(new Uint8Array(buffer, byteOffset, byteLength));
    }
  }

  #scalar(entry: Exclude<GgufValue, { type: "array" }>): void {
    switch (entry.type) {
      case "string":
        return this.string(entry.value);
      case "bool":
        return this.bytes(Uint8Array.of(entry.value ? 1 : 0));
      case "u8":
      case "i8":
        return this.bytes(Uint8Array.of(entry.value));
      case "u16":
      case "i16":
        return this.#number(Uint16Array.of(entry.value));
      case "u32":
      case "i32":
        return this.#number(Uint32Array.of(entry.value));
      case "f32":
        return this.#number(Float32Array.of(entry.value));
      case "f64":
        return this.#number(Float64Array.of(entry.value));
      case "u64":
      case "i64":
        return this.u64(BigInt.asUintN(64, entry.value));
    }
  }

  #number(one: Uint16Array | Uint32Array | Float32Array | Float64Array): void {
    this.bytes(new Uint8Array(one.buffer));
  }

  /** Room for `bytes` more; returns where they go. */
  #reserve(bytes: number): number {
    const at = this.#length;
    this.#length += bytes;
    if (this.#length > this.#buffer.length) {
      const grown = Buffer.allocUnsafe(Math.max(this.#length, this.#buffer.length * 2));
      grown.set(this.#buffer.subarray(0, at));
      this.#buffer = grown;
    }
    return at;
  }
}

function typeId(type: GgufValueType): number {
  return VALUE_TYPES.indexOf(type);
}
