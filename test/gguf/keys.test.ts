// Key-value block: lengths, types, arrays, alignment, and what the typed getters accept.

import { describe, expect, test } from "bun:test";
import { build, concat, failure, parse, refuses, SAMPLE, str, u32, u64, V, type Value } from "./build.ts";

const withKey = (key: string | Uint8Array, value: Value): Uint8Array => build({ keys: [[key, value]] });
const rawKey = (...bytes: Uint8Array[]): Uint8Array => concat(build({ nKeys: 1 }), ...bytes, new Uint8Array(64));

describe("keys are refused", () => {
  test("key length -1, 1 GiB, past the end of the file", () => {
    refuses(rawKey(u64(-1)), "gguf_key", "key 1 of 1", "(-1 if signed)");
    refuses(rawKey(u64(2 ** 30)), "gguf_key", "1073741824 bytes");
    refuses(rawKey(u64(1000)), "gguf_truncated", "key 1 of 1", "1000 bytes expected");
  });
  test("empty key", () =>
    refuses(
      build({
        keys: [
          ["a", V.u32(1)],
          ["", V.u32(1)],
        ],
      }),
      "gguf_key",
      "key 2 of 2 is empty",
    ));
  test("value type 13 and 0xffffffff", () => {
    refuses(withKey("k", [13, new Uint8Array(8)]), "gguf_value_type", '"k"', "type 13");
    refuses(withKey("k", [0xffffffff, new Uint8Array(8)]), "gguf_value_type", "type 4294967295");
  });
  test("array of arrays", () => refuses(withKey("k", V.array(9, 1, new Uint8Array(12))), "gguf_array", '"k"', "array of arrays"));
  test("array of an unknown type", () => refuses(withKey("k", V.array(13, 1, new Uint8Array(8))), "gguf_value_type", "type 13"));
  test("array longer than the bytes left, of each element size", () => {
    for (const [type, size] of [
      [0, 1],
      [2, 2],
      [4, 4],
      [7, 1],
      [8, 8],
      [10, 8],
      [12, 8],
    ] as const) {
      refuses(withKey("k", V.array(type, 1000, new Uint8Array(64))), "gguf_array", "1000", `${1000 * size} bytes`);
    }
  });
  test("array of -1, 2^61 and 2^40 items: nothing is reserved", () => {
    for (const count of [-1, 2n ** 61n, 2 ** 40]) refuses(withKey("k", V.array(4, count, new Uint8Array(64))), "gguf_array", "more than");
  });
  test("string longer than the bytes left", () => {
    refuses(withKey("k", [8, concat(u64(65), new Uint8Array(64))]), "gguf_truncated", '"k"', "65 bytes expected");
    refuses(withKey("k", [8, concat(u64(-1), new Uint8Array(64))]), "gguf_string_length", "(-1 if signed)");
    refuses(withKey("k", [8, concat(u64(2 ** 30), new Uint8Array(64))]), "gguf_string_length", "1073741824");
  });
  test("string in an array longer than the bytes left", () => {
    refuses(withKey("k", V.array(8, 2, concat(str("ok"), u64(99), new Uint8Array(9)))), "gguf_truncated", '"k"', "99 bytes expected");
  });
  test("duplicate key", () =>
    refuses(
      build({
        keys: [
          ["k", V.u32(1)],
          ["k", V.u32(1)],
        ],
      }),
      "gguf_duplicate_key",
      '"k"',
    ));
  test("general.alignment of another type than u32", () => {
    for (const value of [V.u64(32), V.i32(32), V.string("32"), V.bool(1)]) refuses(withKey("general.alignment", value), "gguf_alignment", "type u32");
  });
  test("general.alignment 0, no power of two, absurd", () => {
    for (const n of [0, 3, 24, 33]) refuses(withKey("general.alignment", V.u32(n)), "gguf_alignment", "power of two", `found ${n}`);
    for (const n of [2 ** 21, 2 ** 31]) refuses(withKey("general.alignment", V.u32(n)), "gguf_alignment", "at most 1048576", `found ${n}`);
  });
  test("control characters of a key are escaped in messages", () => {
    const { message } = failure(() => parse(withKey("k\x1b[2J\x9b\n", [99, new Uint8Array(8)])));
    expect(message).toContain('"k\\u001b[2J\\u009b\\n"');
  });
});

describe("keys are accepted", () => {
  test("empty arrays of every type", () => {
    for (let type = 0; type <= 12; type++) {
      if (type === 9) continue;
      const entry = parse(withKey("k", V.array(type, 0))).metadata.get("k");
      expect(entry?.type === "array" ? entry.value.values.length : -1).toBe(0);
    }
  });
  test("unknown keys of any type", () => {
    const sizes = [1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8];
    for (const [type, size] of sizes.entries()) {
      if (type !== 9) expect(parse(withKey("x.y", [type, new Uint8Array(size)])).metadata.size).toBe(1);
    }
  });
  test("bool bytes other than 0 and 1 are true", () => {
    expect(parse(withKey("k", V.bool(255))).metadata.bool("k")).toBe(true);
    expect(parse(withKey("k", V.array(7, 3, Uint8Array.of(0, 1, 2)))).metadata.bools("k")).toEqual([false, true, true]);
  });
  test("invalid UTF-8, NUL and a byte order mark in strings", () => {
    const { metadata } = parse(withKey("k", V.string(Uint8Array.of(0xef, 0xbb, 0xbf, 0x41, 0, 0xff, 0xe2, 0x96))));
    expect(metadata.string("k")).toBe("\ufeffA\0\ufffd\ufffd");
  });
  test("alignment 8, 64 and 1 MiB place the data", () => {
    for (const alignment of [8, 64, 2 ** 20]) {
      const bytes = build({
        keys: [["general.alignment", V.u32(alignment)]],
        tensors: [
          { name: "a", dims: [1], type: 24, offset: 0 },
          { name: "b", dims: [1], type: 24, offset: alignment },
        ],
        alignment,
        dataBytes: alignment + 1,
      });
      const header = parse(bytes);
      expect(header.alignment).toBe(alignment);
      const at = header.tensors.get("a")?.offsetBytes ?? -1;
      expect(at % alignment).toBe(0);
      expect(bytes[at]).toBe(1);
      expect(header.tensors.get("b")?.offsetBytes).toBe(at + alignment);
    }
  });
  test("arrays that span the read window", () => {
    const n = 40_000;
    const numbers = Uint32Array.from({ length: n }, (_, i) => i * 3);
    const strings = Array.from({ length: n }, (_, i) => `piece ${i}`);
    const { metadata } = parse(
      build({
        keys: [
          ["numbers", V.array(4, n, new Uint8Array(numbers.buffer))],
          ["strings", V.array(8, n, concat(...strings.map(str)))],
          ["after", V.u32(7)],
        ],
      }),
    );
    expect(Array.from(metadata.ints("numbers") ?? []).join()).toBe(numbers.join());
    expect(metadata.strings("strings")?.join("\n")).toBe(strings.join("\n"));
    expect(metadata.u32("after")).toBe(7);
  });
});

describe("typed getters", () => {
  const { metadata } = parse(
    build({
      keys: [
        ["u8", V.u8(7)],
        ["u64", V.u64(7)],
        ["huge", V.u64(2n ** 60n)],
        ["negative", V.i32(-1)],
        ["f32", [6, new Uint8Array(Float32Array.of(0.5).buffer)]],
        ["f64", [12, new Uint8Array(Float64Array.of(0.25).buffer)]],
        ["name", V.string("bao")],
        ["each", V.array(5, 3, concat(u32(1), u32(2), u32(3)))],
        ["each64", V.array(10, 2, concat(u64(1), u64(2)))],
        ["flags", V.array(7, 2, Uint8Array.of(1, 0))],
        ["minus", V.array(5, 1, u32(-1))],
      ],
    }),
  );

  test("integers of any width", () => {
    expect([metadata.u32("u8"), metadata.u32("u64"), metadata.int("negative")]).toEqual([7, 7, -1]);
    expect([metadata.f32("f32"), metadata.f32("f64"), metadata.f32("u8")]).toEqual([0.5, 0.25, 7]);
  });
  test("absent keys are undefined, a required one is an error that names it", () => {
    expect([metadata.u32("none"), metadata.strings("none"), metadata.u32Each("none", 4)]).toEqual([undefined, undefined, undefined]);
    const error = failure(() => metadata.u32("none") ?? metadata.missing("none"));
    expect(error.code).toBe("gguf_key_missing");
    expect(error.message).toContain('"none"');
  });
  test("another kind of value is an error that names key, expected and found", () => {
    const cases: [() => unknown, string][] = [
      [() => metadata.u32("name"), 'expected an integer, found string "bao"'],
      [() => metadata.u32("f32"), "expected an integer, found f32 0.5"],
      [() => metadata.u32("negative"), "found -1"],
      [() => metadata.u32("huge"), "expected an integer, found u64 1152921504606846976"],
      [() => metadata.string("u8"), "expected a string, found u8 7"],
      [() => metadata.bool("u8"), "expected a bool, found u8 7"],
      [() => metadata.strings("each"), "expected an array of strings, found an array of 3 i32"],
      [() => metadata.floats("each"), "expected an array of f32, found an array of 3 i32"],
      [() => metadata.ints("name"), "expected an array of integers, found string"],
      [() => metadata.u32Each("minus", 1), "-1 at index 0"],
    ];
    for (const [read, words] of cases) {
      const error = failure(read);
      expect(error.code).toBe("gguf_key_type");
      expect(error.message).toContain(words);
    }
  });
  test("one value for each layer: scalar or array", () => {
    expect(metadata.u32Each("u8", 3)).toEqual([7, 7, 7]);
    expect(metadata.u32Each("each", 3)).toEqual([1, 2, 3]);
    expect(metadata.u32Each("each64", 2)).toEqual([1, 2]);
    expect(metadata.boolEach("flags", 2)).toEqual([true, false]);
    expect(metadata.f32Each("f32", 2)).toEqual([0.5, 0.5]);
    const error = failure(() => metadata.u32Each("each", 4));
    expect(error.code).toBe("gguf_key_length");
    expect(error.message).toContain("expected 4 values, found 3");
  });
  test("numeric arrays are the file's own typed arrays", () => {
    expect(metadata.ints("each")).toBeInstanceOf(Int32Array);
    expect(parse(build(SAMPLE)).metadata.u32("gemma4.block_count")).toBe(2);
  });
});
