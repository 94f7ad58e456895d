// Builds safetensors files byte by byte, valid or broken on purpose.

import { expect } from "bun:test";
import { ModelFileError } from "../../src/errors.ts";
import { readHeader, type Header } from "../../src/safetensors/header.ts";

/** Length field, then `header` (as text or as the object it should be), then `data`. */
export function build(header: unknown, data: Uint8Array = new Uint8Array(), length?: number | bigint): Uint8Array {
  const json = Buffer.from(typeof header === "string" ? header : JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt.asUintN(64, BigInt(length ?? json.length)));
  return new Uint8Array(Buffer.concat([size, json, data]));
}

export function parse(bytes: Uint8Array): Header {
  return readHeader("m.safetensors", bytes.length, (into, position) => {
    const piece = bytes.subarray(position, position + into.length);
    into.set(piece);
    return piece.length;
  });
}

/** The error that `action` must throw, complete with path and hint. */
export function failure(action: () => unknown, path: string): ModelFileError {
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

/** Expects `bytes` to be refused with `code` and a message with all `words`. */
export function refuses(bytes: Uint8Array, code: string, ...words: string[]): void {
  const error = failure(() => parse(bytes), "m.safetensors");
  expect([error.code, error.message]).toEqual([code, expect.any(String)]);
  for (const word of words) expect(error.message).toContain(word);
}
