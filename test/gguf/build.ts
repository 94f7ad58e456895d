// Builds GGUF files byte by byte, valid or broken on purpose. Shares no code with the writer, so that it can judge both.

import { expect } from "bun:test";
import { ModelFileError } from "../../src/errors.ts";
import { readHeader, type Header } from "../../src/gguf/header.ts";
import { memorySource } from "../../src/gguf/source.ts";

export type U64 = number | bigint;
/** Type id and bytes of a value. */
export type Value = readonly [type: number, payload: Uint8Array];

export interface TensorSpec {
  readonly name: string | Uint8Array;
  readonly dims: readonly U64[];
  readonly type: number;
  readonly offset: U64;
  /** Number of dimensions to claim; the real one by default. */
  readonly nDims?: number;
}

export interface FileSpec {
  readonly magic?: string;
  readonly version?: number;
  readonly nTensors?: U64;
  readonly nKeys?: U64;
  readonly keys?: readonly (readonly [string | Uint8Array, Value])[];
  readonly tensors?: readonly TensorSpec[];
  /** Alignment by which the data section is placed; says nothing about the key. */
  readonly alignment?: number;
  /** Bytes of the data section. */
  readonly dataBytes?: number | undefined;
}

export function concat(...parts: readonly Uint8Array[]): Uint8Array {
  return new Uint8Array(Buffer.concat(parts));
}

export function u32(value: number): Uint8Array {
  const out = Buffer.alloc(4);
  out.writeUInt32LE(value >>> 0);
  return out;
}

export function u64(value: U64): Uint8Array {
  const out = Buffer.alloc(8);
  out.writeBigUInt64LE(BigInt.asUintN(64, BigInt(value)));
  return out;
}

export function str(text: string | Uint8Array): Uint8Array {
  const bytes = typeof text === "string" ? Buffer.from(text) : text;
  return concat(u64(bytes.length), bytes);
}

export const V = {
  u8: (n: number): Value => [0, Uint8Array.of(n)],
  u16: (n: number): Value => [2, Uint8Array.of(n & 255, n >> 8)],
  u32: (n: number): Value => [4, u32(n)],
  i32: (n: number): Value => [5, u32(n)],
  bool: (n: number): Value => [7, Uint8Array.of(n)],
  string: (text: string | Uint8Array): Value => [8, str(text)],
  u64: (n: U64): Value => [10, u64(n)],
  array: (of: number, count: U64, payload: Uint8Array = new Uint8Array()): Value => [9, concat(u32(of), u64(count), payload)],
};

/** Bytes of a file. The first tensor's data would start at the end of the padded header. */
export function build(spec: FileSpec): Uint8Array {
  const keys = spec.keys ?? [];
  const tensors = spec.tensors ?? [];
  const header = concat(
    Buffer.from(spec.magic ?? "GGUF", "latin1"),
    u32(spec.version ?? 3),
    u64(spec.nTensors ?? tensors.length),
    u64(spec.nKeys ?? keys.length),
    ...keys.map(([key, [type, payload]]) => concat(str(key), u32(type), payload)),
    ...tensors.map((t) => concat(str(t.name), u32(t.nDims ?? t.dims.length), ...t.dims.map(u64), u32(t.type), u64(t.offset))),
  );
  if (spec.dataBytes === undefined) return header;
  const alignment = spec.alignment ?? 32;
  const padding = (alignment - (header.length % alignment)) % alignment;
  const data = Uint8Array.from({ length: spec.dataBytes }, (_, i) => i + 1);
  return concat(header, new Uint8Array(padding), data);
}

export function parse(bytes: Uint8Array): Header {
  return readHeader(memorySource(bytes, "model.gguf"));
}

/** The error that `action` must throw; checks that it is complete: path, code, hint. */
export function failure(action: () => unknown, path = "model.gguf"): ModelFileError {
  let thrown: unknown;
  try {
    action();
  } catch (error) {
    thrown = error;
  }
  expect(thrown).toBeInstanceOf(ModelFileError);
  const error = thrown as ModelFileError;
  expect(error.message).toContain(path);
  expect(error.hint).not.toBe("");
  return error;
}

/** Expects `bytes` to be refused with `code` and a message that contains each of `words`. */
export function refuses(bytes: Uint8Array, code: string, ...words: string[]): void {
  const error = failure(() => parse(bytes));
  expect([error.code, error.message]).toEqual([code, expect.any(String)]);
  for (const word of words) expect(error.message).toContain(word);
}

/** Two F32 tensors of 8 elements and a few keys: a small valid file. */
export const SAMPLE: FileSpec = {
  keys: [
    ["general.architecture", V.string("gemma4")],
    ["gemma4.block_count", V.u32(2)],
    ["tokenizer.ggml.tokens", V.array(8, 2, concat(str("a"), str("\u2581b")))],
  ],
  tensors: [
    { name: "one", dims: [8], type: 0, offset: 0 },
    { name: "two", dims: [4, 2], type: 0, offset: 32 },
  ],
  dataBytes: 64,
};
