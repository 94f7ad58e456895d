// Tensor table: names, dimensions, types, sizes and offsets.

import { describe, expect, test } from "bun:test";
import { GGML_TYPES, ggmlType, tensorBytes } from "../../src/gguf/index.ts";
import { build, parse, refuses, u32, u64, concat, str, V, type TensorSpec, type U64 } from "./build.ts";

const file = (tensors: readonly TensorSpec[], dataBytes = 256): Uint8Array => build({ tensors, dataBytes });
const one = (over: Partial<TensorSpec>): TensorSpec => ({ name: "t", dims: [8], type: 0, offset: 0, ...over });
const I8 = 24;

describe("tensors are refused", () => {
  test("name of 64 bytes and more, -1, empty", () => {
    refuses(file([one({ name: "n".repeat(64) })]), "gguf_tensor_name", "tensor 1 of 1", "64 bytes");
    refuses(file([one({ name: "\u00e4".repeat(32) })]), "gguf_tensor_name", "64 bytes");
    refuses(concat(build({ nTensors: 1 }), u64(-1), new Uint8Array(64)), "gguf_tensor_name", "(-1 if signed)");
    refuses(file([one({ name: "" })]), "gguf_tensor_name", "no name");
  });
  test("duplicate name", () => refuses(file([one({}), one({ offset: 32 })]), "gguf_duplicate_tensor", '"t"'));
  test("more than four dimensions, before the dimensions are read", () => {
    refuses(file([one({ dims: [1, 1, 1, 1, 1] })]), "gguf_tensor_dims", '"t"', "5 dimensions");
    refuses(concat(build({ nTensors: 1 }), str("t"), u32(0xffffffff), new Uint8Array(16)), "gguf_tensor_dims", "4294967295");
  });
  test("negative dimensions and dimensions of 2^63", () => {
    for (const dim of [-1, -8, 2n ** 63n, 2n ** 53n]) refuses(file([one({ dims: [dim] })]), "gguf_tensor_dims", "dimension 0");
    refuses(file([one({ dims: [8, -1] })]), "gguf_tensor_dims", "dimension 1", "(-1 if signed)");
  });
  test("a product of dimensions that wraps to a small number", () => {
    const wraps: U64[][] = [
      [2n ** 64n - 1n, 2],
      [2n ** 32n, 2n ** 32n],
      [2 ** 42 + 1, 2 ** 22],
      [2 ** 31, 2 ** 31, 2 ** 2],
      [2 ** 16, 2 ** 16, 2 ** 16, 2 ** 16],
    ];
    for (const dims of wraps) {
      const error = ((): string => {
        try {
          parse(file([one({ dims, type: I8 })]));
          return "accepted";
        } catch (e) {
          return (e as { code: string }).code;
        }
      })();
      expect(["gguf_tensor_dims", "gguf_tensor_size"]).toContain(error);
    }
  });
  test("a number of elements beyond 2^53 whose bytes are below", () => {
    refuses(file([one({ dims: [2 ** 30, 2 ** 24], type: 41 })]), "gguf_tensor_size", '"t"', "2^53 elements");
  });
  test("a number of bytes beyond 2^53", () => refuses(file([one({ dims: [2 ** 52] })]), "gguf_tensor_size", "F32", "2^53 bytes"));
  test("two tensors whose sizes together overflow 64 bits", () => {
    const dims = [0x7fffffffffffffc0n];
    refuses(file([one({ dims, type: I8 }), one({ name: "u", dims, type: I8, offset: 0x7fffffffffffffc0n })]), "gguf_tensor_dims");
    const large = [2 ** 53 - 64];
    refuses(file([one({ dims: large, type: I8 }), one({ name: "u", dims: large, type: I8, offset: 2 ** 53 - 64 })]), "gguf_truncated", '"t"');
  });
  test("types that were removed are called by their name", () => {
    const removed: [number, string][] = [
      [4, "Q4_2"],
      [5, "Q4_3"],
      [31, "Q4_0_4_4"],
      [32, "Q4_0_4_8"],
      [33, "Q4_0_8_8"],
      [36, "IQ4_NL_4_4"],
      [37, "IQ4_NL_4_8"],
      [38, "IQ4_NL_8_8"],
    ];
    for (const [type, name] of removed) refuses(file([one({ type })]), "gguf_tensor_type", '"t"', `type ${type}`, name, "removed");
  });
  test("types that never were", () => {
    for (const type of [43, 99, 142, 0xffffffff]) refuses(file([one({ type })]), "gguf_tensor_type", `unknown type ${type}`);
  });
  test("rows that are no whole number of blocks", () => {
    refuses(file([one({ dims: [33], type: 8 })]), "gguf_tensor_row", "rows of 33", "32", "Q8_0");
    refuses(file([one({ dims: [704, 2], type: 12 })]), "gguf_tensor_row", "704", "256", "Q4_K");
    // The product is whole blocks, the row is not.
    refuses(file([one({ dims: [16, 2], type: 8 })]), "gguf_tensor_row", "rows of 16");
  });
  test("offset that is not aligned", () => {
    refuses(file([one({ offset: 16 })]), "gguf_tensor_offset", '"t"', "16", "alignment 32");
    refuses(
      build({ keys: [["general.alignment", V.u32(64)]], tensors: [one({ offset: 32 })], alignment: 64, dataBytes: 256 }),
      "gguf_tensor_offset",
      "alignment 64",
    );
  });
  test("offset -1 and far past the end of the file", () => {
    refuses(file([one({ offset: -1 })]), "gguf_tensor_offset", "(-1 if signed)");
    refuses(file([one({ offset: 2 ** 40 })]), "gguf_tensor_offset", '"t"', "outside of the file");
    refuses(file([one({ offset: 2n ** 53n - 32n })]), "gguf_tensor_offset", "outside of the file");
  });
  test("overlapping data", () => {
    refuses(file([one({ dims: [16] }), one({ name: "u", offset: 32 })]), "gguf_tensor_overlap", '"t"', '"u"');
    refuses(file([one({}), one({ name: "u" })]), "gguf_tensor_overlap", '"t"', '"u"');
    // Also when the later tensor comes first in the table.
    refuses(file([one({ name: "u", offset: 32 }), one({ dims: [16] })]), "gguf_tensor_overlap");
  });
  test("data that ends after the file", () => {
    refuses(file([one({ dims: [64] }), one({ name: "u", offset: 256 })], 280), "gguf_truncated", '"u"', "8 are missing");
    refuses(file([one({ dims: [2 ** 40] })]), "gguf_truncated", '"t"', "expected a file of at least");
  });
});

describe("tensors are accepted", () => {
  test("in any order that is aligned, inside the file and disjoint, with gaps", () => {
    const { tensors } = parse(file([one({ name: "b", offset: 128 }), one({ name: "a" })]));
    expect([...tensors.keys()]).toEqual(["b", "a"]);
    expect((tensors.get("b")?.offsetBytes ?? 0) - (tensors.get("a")?.offsetBytes ?? 0)).toBe(128);
  });
  test("a name of 63 bytes", () => expect(parse(file([one({ name: "n".repeat(63) })])).tensors.has("n".repeat(63))).toBe(true));
  test("no elements; the neighbours keep their places", () => {
    const { tensors } = parse(file([one({ name: "a" }), one({ name: "none", dims: [0, 7], offset: 32 }), one({ name: "b", offset: 32 })], 64));
    expect(tensors.get("none")).toMatchObject({ bytes: 0, shape: [0, 7] });
    expect(tensors.get("b")?.bytes).toBe(32);
    refuses(file([one({ dims: [0], offset: 2 ** 40 })]), "gguf_tensor_offset", "outside of the file");
  });
  test("no elements at the end of a file without data", () => expect(parse(build({ tensors: [one({ dims: [0] })] })).tensors.size).toBe(1));
  test("a scalar without dimensions is [1]", () => expect(parse(file([one({ dims: [] })])).tensors.get("t")).toMatchObject({ shape: [1], bytes: 4 }));
  test("every known type, also those that nothing runs", () => {
    for (const type of GGML_TYPES) {
      const bytes = type.blockBytes * 2 * 3;
      const tensor = parse(file([one({ dims: [type.blockElements * 2, 3], type: type.id })], bytes)).tensors.get("t");
      expect([tensor?.type.name, tensor?.bytes]).toEqual([type.name, bytes]);
      refuses(file([one({ dims: [type.blockElements * 2, 3], type: type.id })], bytes - 1), "gguf_truncated");
    }
  });
});

test("sizes of the types that models use", () => {
  // Bytes of a row of 256 elements, from the layouts of the formats.
  const rows = {
    F32: 1024,
    F16: 512,
    BF16: 512,
    Q4_0: 144,
    Q4_1: 160,
    Q5_0: 176,
    Q5_1: 192,
    Q8_0: 272,
    Q2_K: 84,
    Q3_K: 110,
    Q4_K: 144,
    Q5_K: 176,
    Q6_K: 210,
    IQ4_NL: 144,
    IQ4_XS: 136,
    MXFP4: 136,
    NVFP4: 144,
  } as const;
  for (const [name, bytes] of Object.entries(rows)) expect([name, tensorBytes(ggmlType(name as keyof typeof rows), [256])]).toEqual([name, bytes]);
});
