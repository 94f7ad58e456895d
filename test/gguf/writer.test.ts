// Writer: what it writes the reader returns, byte for byte as the format says; nothing half-written is ever visible.

import { afterAll, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BaoError, ResourceError } from "../../src/errors.ts";
import { createGguf, ggufValue as v, GGML_TYPES, openGguf, type GgufValue } from "../../src/gguf/index.ts";
import { build, concat, str, u32, V } from "./build.ts";

const folder = mkdtempSync(join(tmpdir(), "bao-gguf-writer-"));
afterAll(() => rmSync(folder, { recursive: true }));
let files = 0;
const fresh = (): string => join(folder, `${files++}.gguf`);

function code(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    if (error instanceof BaoError) return error.code;
    throw error;
  }
  return "no error";
}

const pattern = (bytes: number, seed: number): Uint8Array => Uint8Array.from({ length: bytes }, (_, i) => (i * 7 + seed) & 255);

describe("round trip", () => {
  const values: Record<string, GgufValue> = {
    "a.u8": v.u8(255),
    "a.i8": v.i8(-128),
    "a.u16": v.u16(65535),
    "a.i16": v.i16(-32768),
    "a.u32": v.u32(4294967295),
    "a.i32": v.i32(-2147483648),
    "a.u64": v.u64(2n ** 64n - 1n),
    "a.i64": v.i64(-(2n ** 63n)),
    "a.f32": v.f32(0.5),
    "a.f64": v.f64(Math.PI),
    "a.bool": v.bool(true),
    "a.string": v.string("Bao \u{1f95f} \0 \u2581"),
    "a.empty": v.string(""),
    "b.u8": v.array("u8", Uint8Array.of(1, 2, 3)),
    "b.i16": v.array("i16", Int16Array.of(-1, 2)),
    "b.u64": v.array("u64", BigUint64Array.of(1n, 2n ** 63n)),
    "b.f32": v.array("f32", Float32Array.of(1, 1e30)),
    "b.bool": v.array("bool", Uint8Array.of(1, 0, 1)),
    "b.string": v.array("string", ["", "x", "\u00e9"]),
    "b.none": v.array("i32", new Int32Array()),
  };

  test("values of every type", () => {
    const path = fresh();
    using writer = createGguf(path);
    for (const [key, value] of Object.entries(values)) writer.set(key, value);
    writer.finish();
    expect(Object.fromEntries(openGguf(path).metadata)).toEqual(values);
  });

  for (const alignment of [8, 32, 64, 4096]) {
    test(`tensors at alignment ${alignment}, written in pieces`, () => {
      const path = fresh();
      using writer = createGguf(path, { alignment });
      const sizes = GGML_TYPES.map((type) => writer.declare({ name: type.name, type: type.name, shape: [type.blockElements * 3, 2] }));
      for (const [i, type] of GGML_TYPES.entries()) {
        const bytes = pattern(sizes[i] ?? 0, i);
        for (let at = 0; at < bytes.length; at += 100) writer.write(type.name, bytes.subarray(at, at + 100));
      }
      expect(existsSync(path)).toBe(false);
      writer.finish();
      const file = openGguf(path);
      const raw = readFileSync(path);
      expect(file.alignment).toBe(alignment);
      expect(raw.length % alignment).toBe(0);
      for (const [i, type] of GGML_TYPES.entries()) {
        const tensor = file.tensors.get(type.name);
        if (tensor === undefined) throw new Error(type.name);
        expect(tensor).toMatchObject({ bytes: type.blockBytes * 6, shape: [type.blockElements * 3, 2], shard: 0, path });
        expect(tensor.offsetBytes % alignment).toBe(0);
        expect(raw.subarray(tensor.offsetBytes, tensor.offsetBytes + tensor.bytes)).toEqual(Buffer.from(pattern(tensor.bytes, i)));
      }
    });
  }

  test("the bytes are those of the format", () => {
    const path = fresh();
    using writer = createGguf(path);
    writer.set("general.architecture", v.string("gemma4"));
    writer.set("gemma4.block_count", v.u32(2));
    writer.set("tokenizer.ggml.tokens", v.array("string", ["a", "\u2581b"]));
    writer.declare({ name: "one", type: "F32", shape: [8] });
    writer.declare({ name: "two", type: "F32", shape: [4, 2] });
    const data = Uint8Array.from({ length: 64 }, (_, i) => i + 1);
    writer.write("one", data.subarray(0, 32));
    writer.write("two", data.subarray(32));
    writer.finish();
    const expected = build({
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
    });
    expect(readFileSync(path)).toEqual(Buffer.from(expected));
  });

  test("typed arrays of any kind are data", () => {
    const path = fresh();
    using writer = createGguf(path);
    writer.declare({ name: "t", type: "F32", shape: [3] });
    writer.write("t", Float32Array.of(9, 1, 2, 3).subarray(1));
    writer.finish();
    const at = openGguf(path).tensors.get("t")?.offsetBytes ?? 0;
    expect(readFileSync(path).readFloatLE(at + 8)).toBe(3);
  });

  test("no tensors, no keys", () => {
    const path = fresh();
    using writer = createGguf(path);
    writer.finish();
    expect(openGguf(path).tensors.size).toBe(0);
  });

  test("a file read and written again is the same file", () => {
    const source = fresh();
    const keys = [
      ["k", V.array(8, 1, str("v"))],
      ["n", [5, u32(-3)]],
    ] as const;
    writeFileSync(source, build({ keys, tensors: [{ name: "t", dims: [32], type: 24, offset: 0 }], dataBytes: 32 }));
    const { metadata, tensors } = openGguf(source);
    const path = fresh();
    using writer = createGguf(path);
    for (const [key, value] of metadata) writer.set(key, value);
    for (const { name, type, shape } of tensors.values()) writer.declare({ name, type: type.name, shape });
    for (const { name, offsetBytes, bytes } of tensors.values()) writer.write(name, readFileSync(source).subarray(offsetBytes, offsetBytes + bytes));
    writer.finish();
    expect(readFileSync(path)).toEqual(readFileSync(source));
  });
});

describe("holes", () => {
  test("a tensor of 6 GiB beyond 2^32 takes no disk space, its neighbour is where the header says", () => {
    const path = fresh();
    using writer = createGguf(path);
    writer.declare({ name: "big", type: "F32", shape: [2 ** 20, 1536], hole: true });
    writer.declare({ name: "after", type: "I8", shape: [4] });
    writer.write("after", Uint8Array.of(1, 2, 3, 4));
    writer.finish();
    const { tensors, shards } = openGguf(path);
    const after = tensors.get("after");
    expect(after?.offsetBytes).toBeGreaterThan(6 * 2 ** 30);
    expect(shards[0]?.sizeBytes).toBe((after?.offsetBytes ?? 0) + 32);
    expect(statSync(path).blocks * 512).toBeLessThan(2 ** 20);
  });
  test("at the end of the file", () => {
    const path = fresh();
    using writer = createGguf(path);
    const bytes = writer.declare({ name: "big", type: "Q8_0", shape: [1024, 1024], hole: true });
    writer.finish();
    expect(openGguf(path).tensors.get("big")?.bytes).toBe(bytes);
  });
});

describe("nothing half-written is visible", () => {
  test("leaving without finish removes the partial file", () => {
    const path = fresh();
    {
      using writer = createGguf(path);
      writer.declare({ name: "t", type: "F32", shape: [8] });
      writer.write("t", new Uint8Array(8));
      expect(existsSync(`${path}.part`)).toBe(true);
    }
    expect(readdirSync(folder).filter((name) => name.includes(".part"))).toEqual([]);
    expect(existsSync(path)).toBe(false);
  });
  test("an existing file stays until the new one is complete", () => {
    const path = fresh();
    writeFileSync(path, "old");
    using writer = createGguf(path);
    writer.set("k", v.u32(1));
    expect(readFileSync(path, "utf8")).toBe("old");
    writer.finish();
    expect(openGguf(path).metadata.u32("k")).toBe(1);
  });
  test("missing data is an error, and the writer can go on", () => {
    const path = fresh();
    using writer = createGguf(path);
    writer.declare({ name: "t", type: "I8", shape: [8] });
    writer.write("t", new Uint8Array(7));
    expect(code(() => writer.finish())).toBe("gguf_write_incomplete");
    expect(existsSync(path)).toBe(false);
    writer.write("t", new Uint8Array(1));
    writer.finish();
    expect(openGguf(path).tensors.size).toBe(1);
    expect(code(() => writer.finish())).toBe("gguf_write_closed");
  });
  test("a folder that does not exist", () => {
    const path = join(folder, "none", "x.gguf");
    expect(() => createGguf(path)).toThrow(ResourceError);
    expect(code(() => createGguf(path))).toBe("file_write");
  });
});

describe("misuse is refused", () => {
  test("values that do not fit their type", () => {
    using writer = createGguf(fresh());
    for (const value of [
      v.u8(256),
      v.u8(-1),
      v.i8(128),
      v.u16(65536),
      v.u32(-1),
      v.u32(1.5),
      v.u32(Number.NaN),
      v.i32(2 ** 31),
      v.u64(-1n),
      v.i64(2n ** 63n),
    ]) {
      expect(code(() => writer.set("k", value))).toBe("gguf_write_value");
    }
    expect(code(() => writer.set("", v.u8(1)))).toBe("gguf_write_value");
    expect(code(() => writer.set("general.alignment", v.u32(64)))).toBe("gguf_write_alignment");
  });
  test("tensors that the format cannot hold", () => {
    using writer = createGguf(fresh());
    writer.declare({ name: "t", type: "F32", shape: [8] });
    const bad = [
      { name: "t", type: "F32", shape: [8] },
      { name: "", type: "F32", shape: [8] },
      { name: "n".repeat(64), type: "F32", shape: [8] },
      { name: "a", type: "F32", shape: [] },
      { name: "a", type: "F32", shape: [1, 1, 1, 1, 1] },
      { name: "a", type: "F32", shape: [-1] },
      { name: "a", type: "F32", shape: [2 ** 30, 2 ** 30] },
      { name: "a", type: "F64", shape: [2 ** 52] },
      { name: "a", type: "Q4_K", shape: [704, 2] },
    ] as const;
    for (const tensor of bad) expect(code(() => writer.declare(tensor))).toBe("gguf_write_tensor");
  });
  test("more data than declared, data of a hole, of an unknown tensor", () => {
    using writer = createGguf(fresh());
    writer.declare({ name: "t", type: "I8", shape: [8] });
    writer.declare({ name: "hole", type: "I8", shape: [8], hole: true });
    expect(code(() => writer.write("t", new Uint8Array(9)))).toBe("gguf_write_size");
    expect(code(() => writer.write("hole", new Uint8Array(1)))).toBe("gguf_write_size");
    expect(code(() => writer.write("other", new Uint8Array(1)))).toBe("gguf_write_tensor");
  });
  test("declaring after writing", () => {
    using writer = createGguf(fresh());
    writer.declare({ name: "t", type: "I8", shape: [8] });
    writer.write("t", new Uint8Array(8));
    expect(code(() => writer.set("k", v.u8(1)))).toBe("gguf_write_order");
    expect(code(() => writer.declare({ name: "u", type: "I8", shape: [8] }))).toBe("gguf_write_order");
  });
  test("alignments that are none", () => {
    for (const alignment of [0, 3, -8, 1.5, 2 ** 21, Number.NaN]) expect(code(() => createGguf(fresh(), { alignment }))).toBe("gguf_write_alignment");
  });
});
