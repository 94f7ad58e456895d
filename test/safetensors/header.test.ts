// Header of a safetensors file: what is refused, with which words, and what is accepted.

import { describe, expect, test } from "bun:test";
import { build, parse, refuses } from "./build.ts";

const text = (s: string): Uint8Array => new Uint8Array(Buffer.from(s, "latin1"));
const f32 = (begin: number, end: number, shape: unknown = [(end - begin) / 4]): object => ({ dtype: "F32", shape, data_offsets: [begin, end] });
const data = (bytes: number): Uint8Array => Uint8Array.from({ length: bytes }, (_, i) => i);

describe("a file that is something else is named", () => {
  test("empty", () => refuses(text(""), "safetensors_empty"));
  test("web page", () => refuses(text("<!DOCTYPE html><html>"), "safetensors_magic", "web page"));
  test("JSON", () => refuses(text('{"error": "denied", "code": 403}'), "safetensors_magic", "JSON"));
  test("GGUF", () => refuses(text("GGUF\x03\0\0\0........"), "safetensors_magic", "GGUF"));
  test("Git LFS pointer", () => refuses(text("version https://git-lfs.github.com/spec/v1\n"), "safetensors_magic", "Git LFS"));
  test("ZIP", () => refuses(text("PK\x03\x04\0\0\0\0........"), "safetensors_magic", "ZIP"));
  test("zeros", () => refuses(new Uint8Array(100), "safetensors_magic", "zeros"));
  test("no brace where the header starts", () => refuses(build("[1]  "), "safetensors_magic", "0x5b"));
});

describe("header is refused", () => {
  test("fewer than 10 bytes", () => refuses(build({}).slice(0, 7), "safetensors_truncated", "7 found"));
  test("length -1, 2^40, past the end, too small: nothing is reserved", () => {
    refuses(build({}, data(8), -1), "safetensors_header", "18446744073709551615");
    refuses(build({}, data(8), 2 ** 40), "safetensors_header", "1099511627776");
    refuses(build({}, data(8), 99_000_000), "safetensors_truncated", "99000000 bytes expected", "10 found");
    refuses(build({}, data(8), 1), "safetensors_header", "1 bytes");
  });
  test("JSON that is none", () => {
    refuses(build('{"a":'), "safetensors_header", "JSON");
    refuses(build({ a: f32(0, 4) }, data(4), 10), "safetensors_header", "JSON");
    const bad = build('{"a\xff":1}');
    bad[11] = 0xff;
    refuses(bad, "safetensors_header", "JSON");
  });
  test("JSON nested a million deep", () => {
    refuses(build(`{"a":${"[".repeat(1_000_000)}`), "safetensors_header");
    const deep = (n: number): string => `{"a":{"dtype":"F32","shape":${"[".repeat(n)}${"]".repeat(n)},"data_offsets":[0,0]}}`;
    refuses(build(deep(1000)), "safetensors_shape", "a list of 1");
  });
  test("tensor that is no object", () => {
    for (const entry of [1, null, "x", []]) refuses(build({ "blk.0": entry }), "safetensors_header", '"blk.0"');
  });
  test("metadata that is not text", () => {
    refuses(build({ __metadata__: [] }), "safetensors_header", "__metadata__");
    refuses(build({ __metadata__: { format: 1 } }), "safetensors_header", '"format"', "number");
  });
});

describe("tensor is refused", () => {
  test("unknown dtype", () => {
    refuses(build({ a: { dtype: "Q4", shape: [1], data_offsets: [0, 4] } }, data(4)), "safetensors_dtype", '"a"', '"Q4"');
    refuses(build({ a: { dtype: "toString", shape: [1], data_offsets: [0, 4] } }, data(4)), "safetensors_dtype");
    refuses(build({ a: { shape: [1], data_offsets: [0, 4] } }, data(4)), "safetensors_dtype", "undefined");
  });
  test("shape of something else than sizes", () => {
    for (const shape of [[-1], [1.5], ["1"], [null], {}, 1, [1e300], new Array(17).fill(1)]) {
      refuses(build({ a: f32(0, 4, shape) }, data(4)), "safetensors_shape", '"a"');
    }
  });
  test("shape whose product is beyond 2^53 or wraps 2^64", () => {
    refuses(build({ a: f32(0, 4, [2 ** 32, 2 ** 32]) }, data(4)), "safetensors_shape", "no possible size");
    refuses(build({ a: f32(0, 4, [2 ** 45]) }, data(4)), "safetensors_offset", "needs 140737488355328 bytes");
  });
  test("size that is not shape times dtype", () => {
    refuses(build({ a: f32(0, 8, [1]) }, data(8)), "safetensors_offset", "needs 4 bytes", "give 8");
    refuses(build({ a: f32(8, 4, [1]) }, data(8)), "safetensors_offset", "give -4");
    refuses(build({ a: { dtype: "BF16", shape: [3], data_offsets: [0, 5] } }, data(8)), "safetensors_offset", "needs 6 bytes");
  });
  test("half bytes", () =>
    refuses(build({ a: { dtype: "F4", shape: [3], data_offsets: [0, 1] } }, data(8)), "safetensors_shape", "no possible size"));
  test("offsets of something else than two sizes", () => {
    for (const offsets of [[0], [0, 4, 8], [-4, 0], ["0", "4"], null, 4]) {
      refuses(build({ a: { dtype: "F32", shape: [1], data_offsets: offsets } }, data(8)), "safetensors_offset", '"a"');
    }
  });
  test("overlapping data", () => refuses(build({ a: f32(0, 8), b: f32(4, 12) }, data(12)), "safetensors_overlap", '"a"', '"b"'));
  test("data that ends after the file", () => {
    refuses(build({ a: f32(0, 8), b: f32(8, 16) }, data(15)), "safetensors_truncated", '"b"', "1 are missing");
    refuses(build({ a: f32(0, 8) }), "safetensors_truncated", '"a"', "8 are missing");
  });
});

describe("accepted", () => {
  test("every dtype, scalars, empty tensors, padding, gaps, trailing bytes, any order", () => {
    const sizes = {
      BOOL: 8,
      U8: 8,
      I8: 8,
      F8_E4M3: 8,
      F8_E5M2: 8,
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
      F4: 4,
    };
    for (const [dtype, bits] of Object.entries(sizes)) {
      const { tensors } = parse(build({ t: { dtype, shape: [2, 3], data_offsets: [0, (6 * bits) / 8] } }, data(64)));
      expect(tensors.get("t")?.bytes).toBe((6 * bits) / 8);
    }
    const json = `${JSON.stringify({ __metadata__: { format: "pt" }, b: f32(16, 24), a: f32(0, 4, []), none: f32(4, 4, [0, 7]) })}     `;
    const { tensors, metadata } = parse(build(json, data(100)));
    expect(metadata.get("format")).toBe("pt");
    expect([...tensors.keys()]).toEqual(["b", "a", "none"]);
    expect(tensors.get("a")).toMatchObject({ shape: [], bytes: 4, offsetBytes: 8 + json.length });
    expect(tensors.get("b")?.offsetBytes).toBe(8 + json.length + 16);
  });
  test("names that are properties of objects", () => {
    expect([
      ...parse(build(`{"__proto__":${JSON.stringify(f32(0, 4))},"constructor":${JSON.stringify(f32(4, 8))}}`, data(8))).tensors.keys(),
    ]).toEqual(["__proto__", "constructor"]);
  });
});
