// Header of a GGUF file: magic, version, counts, truncation. Each rule of the container as a named case.

import { describe, expect, test } from "bun:test";
import { build, concat, parse, refuses, SAMPLE, u32, u64 } from "./build.ts";

const text = (s: string): Uint8Array => new Uint8Array(Buffer.from(s, "latin1"));

describe("a file that is no GGUF is named for what it is", () => {
  test("empty file", () => refuses(new Uint8Array(), "gguf_empty", "0 bytes"));
  test("web page, whatever its length", () => {
    refuses(text("<html>"), "gguf_magic", "web page");
    refuses(text(`\n  <!DOCTYPE html>${"x".repeat(900)}`), "gguf_magic", "web page");
    refuses(text("\xef\xbb\xbf<?xml version='1.0'?>"), "gguf_magic", "web page");
  });
  test("Git LFS pointer", () => refuses(text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"), "gguf_magic", "Git LFS"));
  test("JSON answer of a server", () => refuses(text('{"error":"Access denied"}'), "gguf_magic", "JSON"));
  test("safetensors", () => refuses(concat(u64(2000), text('{"a":{}}'), new Uint8Array(64)), "gguf_magic", "safetensors"));
  test("ZIP, as of PyTorch", () => refuses(text("PK\x03\x04..............................."), "gguf_magic", "ZIP"));
  test("gzip, xz, zstd", () => {
    for (const magic of ["\x1f\x8b\x08\x00", "\xfd7zXZ\x00", "\x28\xb5\x2f\xfd"]) refuses(text(magic.padEnd(40, ".")), "gguf_magic", "compressed");
  });
  test("zeros of a reserved download", () => refuses(new Uint8Array(4096), "gguf_magic", "zeros"));
  test("formats before GGUF", () => {
    for (const magic of ["ggml", "ggjt", "ggla", "lmgg", "tjgg", "algg", "fmgg"]) {
      refuses(build({ magic }), "gguf_magic", "before GGUF", magic);
    }
  });
  test("reversed magic", () => refuses(build({ magic: "FUGG" }), "gguf_magic", "endianness"));
  test("any other magic shows its bytes", () => refuses(build({ magic: "\x01\x02\xfe." }), "gguf_magic", "01 02 fe 2e"));
});

describe("header", () => {
  test("fewer than 24 bytes", () => {
    for (const size of [1, 3, 4, 8, 16, 23]) refuses(build({}).slice(0, size), "gguf_truncated", "24 bytes expected", `${size} found`);
  });
  test("version 0, 1, newer than 3", () => {
    for (const version of [0, 1, 4, 99, 0xffffffff]) refuses(build({ version }), "gguf_version", `found ${version}`, "expected version 2 or 3");
  });
  test("big-endian file", () => {
    refuses(build({ version: 0x03000000 }), "gguf_endianness", "big-endian");
    refuses(build({ version: 0x00020000 }), "gguf_endianness", "endianness");
  });
  test("version 2 and 3 are read", () => {
    for (const version of [2, 3]) expect(parse(build({ ...SAMPLE, version })).version).toBe(version);
  });
  test("tensor count -1, 2^40, more than the bytes left", () => {
    refuses(build({ ...SAMPLE, nTensors: -1 }), "gguf_count", "18446744073709551615 (-1 if signed) tensors");
    refuses(build({ ...SAMPLE, nTensors: 2 ** 40 }), "gguf_count", "1099511627776 tensors");
    refuses(build({ ...SAMPLE, nTensors: 1000 }), "gguf_count", "25000 bytes");
  });
  test("key count -1, 2^40, more than the bytes left", () => {
    refuses(build({ ...SAMPLE, nKeys: -1 }), "gguf_count", "(-1 if signed) keys");
    refuses(build({ ...SAMPLE, nKeys: 2 ** 40 }), "gguf_count", "1099511627776 keys");
    refuses(build({ ...SAMPLE, nKeys: 1000 }), "gguf_count", "14000 bytes");
  });
  test("one tensor too many", () => refuses(build({ ...SAMPLE, nTensors: 3 }), "gguf_tensor_name"));
  test("one key too many", () => refuses(build({ ...SAMPLE, nKeys: 4 }), "gguf_tensor_name", "tensor 1 of 2"));
  test("no keys and no tensors is a container", () => {
    const header = parse(build({}));
    expect(header.metadata.size).toBe(0);
    expect(header.tensors.size).toBe(0);
  });
  test("trailing bytes do not matter", () => {
    expect(parse(concat(build(SAMPLE), text("garbage"))).tensors.size).toBe(2);
  });
  test("contents of a valid file", () => {
    const bytes = build(SAMPLE);
    const { metadata, tensors, alignment } = parse(bytes);
    expect(alignment).toBe(32);
    expect([...metadata.keys()]).toEqual(["general.architecture", "gemma4.block_count", "tokenizer.ggml.tokens"]);
    expect(metadata.strings("tokenizer.ggml.tokens")).toEqual(["a", "\u2581b"]);
    const two = tensors.get("two");
    expect(two).toMatchObject({ shape: [4, 2], bytes: 32, type: { name: "F32" } });
    expect(bytes[two?.offsetBytes ?? 0]).toBe(33);
  });
});

describe("truncation", () => {
  const whole = build(SAMPLE);
  const headerBytes = build({ ...SAMPLE, dataBytes: undefined }).length;

  test("at every byte of the header", () => {
    for (let size = 24; size < headerBytes; size++) {
      let code = "";
      try {
        parse(whole.slice(0, size));
      } catch (error) {
        code = (error as { code: string }).code;
      }
      // A count that cannot fit is told before the place of the cut is known.
      expect(["gguf_truncated", "gguf_count", "gguf_array"]).toContain(code);
    }
  });
  test("inside the keys names the key", () => {
    refuses(whole.slice(0, 24 + 8 + 20 + 4 + 8 + 3), "gguf_truncated", 'the value of "general.architecture"', "6 bytes expected", "3 found");
  });
  test("inside a string", () => {
    const bytes = concat(build({ nKeys: 1 }), concat(u64(3), text("key"), u32(8), u64(10), text("12345")));
    refuses(bytes, "gguf_truncated", 'the value of "key"', "10 bytes expected", "5 found");
  });
  test("inside the tensor table names the tensor", () =>
    refuses(whole.slice(0, headerBytes - 5), "gguf_truncated", 'tensor "two"', "8 bytes expected", "3 found"));
  test("one byte short of the data", () =>
    refuses(whole.slice(0, -1), "gguf_truncated", 'tensor "two"', `at least ${whole.length} bytes`, "1 are missing"));
  test("half of the data", () => refuses(whole.slice(0, -32), "gguf_truncated", 'tensor "two"', "32 are missing"));
  test("no data at all", () => refuses(whole.slice(0, headerBytes), "gguf_truncated", 'tensor "one"'));
  test("the padding of the last tensor may be missing", () => {
    const spec = { ...SAMPLE, tensors: [{ name: "one", dims: [3], type: 0, offset: 0 }], dataBytes: 12 };
    expect(parse(build(spec)).tensors.size).toBe(1);
    refuses(build({ ...spec, dataBytes: 11 }), "gguf_truncated", "1 are missing");
  });
});
