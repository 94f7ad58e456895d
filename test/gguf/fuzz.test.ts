// Random and mutated files: the reader either returns a header whose tensors all lie in the file, or throws ModelFileError.
// One second each in the normal run; BAO_FUZZ_SECONDS=600 bun test test/gguf/fuzz.test.ts for a long one.

import { afterAll, expect, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { ModelFileError } from "../../src/errors.ts";
import { createGguf, ggufValue as v, openGguf, readHeader, memorySource, type GgmlTypeName, type GgufValue } from "../../src/gguf/index.ts";
import { build, concat, SAMPLE, str, u32, u64, V } from "./build.ts";

const seconds = Number(process.env["BAO_FUZZ_SECONDS"] ?? 1);
const timed = { numRuns: 2 ** 31 - 1, interruptAfterTimeLimit: seconds * 1000, markInterruptAsFailure: false } as const;
const limit = (seconds + 30) * 1000;

const folder = mkdtempSync(join(tmpdir(), "bao-gguf-fuzz-"));
afterAll(() => rmSync(folder, { recursive: true }));

/** Every kind of value, several tensors, and a header longer than the first read. */
const RICH = build({
  keys: [
    ...(SAMPLE.keys ?? []),
    ["general.alignment", V.u32(64)],
    ["k.bool", V.bool(1)],
    ["k.u64", V.u64(2n ** 40n)],
    ["k.u8s", V.array(0, 5, new Uint8Array(5))],
    ["k.f32s", V.array(6, 3, new Uint8Array(12))],
    ["k.i64s", V.array(11, 2, new Uint8Array(16))],
    ["k.flags", V.array(7, 4, new Uint8Array(4))],
    ["k.strings", V.array(8, 3, concat(str("x"), str(""), str("\u00e9")))],
  ],
  tensors: [
    { name: "plain", dims: [8, 2], type: 0, offset: 0 },
    { name: "blocks", dims: [256, 1], type: 12, offset: 64 },
    { name: "none", dims: [0], type: 0, offset: 256 },
    { name: "last", dims: [1, 2, 3, 4], type: 24, offset: 256 },
  ],
  alignment: 64,
  dataBytes: 300,
});

/** Reads `bytes`; on success every tensor must lie where its bytes exist, apart from all others. */
function judge(bytes: Uint8Array): boolean {
  let header;
  try {
    header = readHeader(memorySource(bytes));
  } catch (error) {
    if (!(error instanceof ModelFileError)) throw error;
    if (error.hint === "" || !/^gguf_[a-z_]+$/.test(error.code) || !error.message.includes("(memory): "))
      throw new Error(`incomplete error: ${error.code} ${error.message}`);
    return false;
  }
  const ranges = [...header.tensors.values()].map(({ offsetBytes, bytes: size }) => [offsetBytes, offsetBytes + size] as const);
  ranges.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let end = 0;
  for (const [from, to] of ranges) {
    if (from % header.alignment !== 0 || (to > from && (from < end || to > bytes.length)))
      throw new Error(`accepted a tensor at ${from}..${to} of ${bytes.length}, the one before ends at ${end}`);
    if (to > from) end = to;
  }
  return true;
}

/** Runs `body` and checks that memory does not grow with what the files claim: they are below 10 KB, claims go to 2^64. */
function bounded(body: () => void): void {
  Bun.gc(true);
  const before = process.memoryUsage.rss();
  body();
  Bun.gc(true);
  expect(process.memoryUsage.rss() - before).toBeLessThan(512 * 2 ** 20);
}

// Values that sit on the edges of lengths, counts, types and offsets.
const edge = fc.oneof(
  fc.constantFrom(
    0n,
    1n,
    2n,
    4n,
    5n,
    8n,
    9n,
    12n,
    13n,
    31n,
    63n,
    64n,
    255n,
    2n ** 16n,
    2n ** 20n,
    2n ** 24n,
    2n ** 28n,
    2n ** 30n,
    2n ** 31n,
    2n ** 32n - 1n,
    2n ** 40n,
    2n ** 53n,
    2n ** 61n,
    2n ** 63n,
    2n ** 64n - 1n,
    2n ** 64n - 32n,
  ),
  fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
);
const mutation = fc.oneof(
  fc.record({ kind: fc.constant("byte" as const), at: fc.nat(), value: fc.nat(255) }),
  fc.record({ kind: fc.constant("u32" as const), at: fc.nat(), value: edge }),
  fc.record({ kind: fc.constant("u64" as const), at: fc.nat(), value: edge }),
  fc.record({ kind: fc.constant("cut" as const), at: fc.nat() }),
  fc.record({ kind: fc.constant("drop" as const), at: fc.nat(), count: fc.integer({ min: 1, max: 16 }) }),
  fc.record({ kind: fc.constant("repeat" as const), at: fc.nat(), count: fc.integer({ min: 1, max: 64 }) }),
);
type Mutation = typeof mutation extends fc.Arbitrary<infer T> ? T : never;

function mutate(bytes: Uint8Array, change: Mutation): Uint8Array {
  if (bytes.length === 0) return bytes;
  const at = change.at % bytes.length;
  switch (change.kind) {
    case "cut":
      return bytes.slice(0, at);
    case "drop":
      return concat(bytes.subarray(0, at), bytes.subarray(at + change.count));
    case "repeat":
      return concat(bytes.subarray(0, at), bytes.subarray(at, at + change.count), bytes.subarray(at));
    default: {
      const field =
        change.kind === "byte"
          ? Uint8Array.of(change.value)
          : change.kind === "u32"
            ? u32(Number(BigInt.asUintN(32, change.value)))
            : u64(change.value);
      const out = bytes.slice();
      out.set(field.subarray(0, out.length - at), at);
      return out;
    }
  }
}

test("the files that are mutated are valid", () => {
  expect(judge(RICH)).toBe(true);
  expect(judge(build(SAMPLE))).toBe(true);
});

test(
  "mutated files",
  () => {
    bounded(() => {
      fc.assert(
        fc.property(fc.constantFrom(RICH, build(SAMPLE)), fc.array(mutation, { minLength: 1, maxLength: 6 }), (file, changes) => {
          judge(changes.reduce(mutate, file));
        }),
        timed,
      );
    });
  },
  limit,
);

test(
  "random bytes behind a valid start",
  () => {
    const start = fc.constantFrom(new Uint8Array(), concat(Buffer.from("GGUF"), u32(3)), build({ nKeys: 2, nTensors: 1 }), build({ nTensors: 3 }));
    bounded(() => {
      fc.assert(
        fc.property(start, fc.uint8Array({ maxLength: 300 }), (head, tail) => {
          judge(concat(head, tail));
        }),
        timed,
      );
    });
  },
  limit,
);

test(
  "mutated shards of a split model, opened from either",
  () => {
    const keys = (no: number): (readonly [string, ReturnType<typeof V.u16>])[] => [
      ["split.no", V.u16(no)],
      ["split.count", V.u16(2)],
      ["split.tensors.count", V.i32(2)],
    ];
    const shards = [0, 1].map((no) => build({ keys: keys(no), tensors: [{ name: `t${no}`, dims: [32], type: 24, offset: 0 }], dataBytes: 32 }));
    const paths = [1, 2].map((n) => join(folder, `m-0000${n}-of-00002.gguf`)) as [string, string];
    fc.assert(
      fc.property(fc.nat(1), fc.nat(1), fc.array(mutation, { maxLength: 2 }), (changed, opened, changes) => {
        for (const i of [0, 1])
          writeFileSync(paths[i] as string, i === changed ? changes.reduce(mutate, shards[i] as Uint8Array) : (shards[i] as Uint8Array));
        try {
          const file = openGguf(paths[opened] as string);
          for (const { bytes, offsetBytes, shard } of file.tensors.values()) {
            if (bytes > 0 && offsetBytes + bytes > (file.shards[shard]?.sizeBytes ?? 0)) throw new Error("accepted a tensor outside of its file");
          }
        } catch (error) {
          if (!(error instanceof ModelFileError)) throw error;
        }
      }),
      timed,
    );
  },
  limit,
);

test(
  "whatever the writer takes, the reader returns",
  () => {
    const integer = (min: number, max: number): fc.Arbitrary<number> => fc.integer({ min, max });
    const text = fc.string({ unit: "grapheme", maxLength: 20 });
    const value: fc.Arbitrary<GgufValue> = fc.oneof(
      integer(0, 255).map(v.u8),
      integer(-128, 127).map(v.i8),
      integer(0, 65535).map(v.u16),
      integer(0, 0xffffffff).map(v.u32),
      integer(-0x80000000, 0x7fffffff).map(v.i32),
      fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }).map(v.u64),
      fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }).map(v.i64),
      fc.float().map(v.f32),
      fc.double().map(v.f64),
      fc.boolean().map(v.bool),
      text.map(v.string),
      fc.array(text, { maxLength: 5 }).map((values) => v.array("string", values)),
      fc.float32Array({ maxLength: 9, noNaN: true }).map((values) => v.array("f32", values)),
      fc.int32Array({ maxLength: 9 }).map((values) => v.array("i32", values)),
      fc.uint8Array({ maxLength: 9 }).map((values) => v.array("u8", values)),
    );
    const tensor = fc.record({
      type: fc.constantFrom<GgmlTypeName>("F32", "I8", "Q8_0", "Q4_K", "BF16"),
      blocks: integer(0, 3),
      rest: fc.array(integer(0, 3), { maxLength: 3 }),
    });
    const path = join(folder, "round.gguf");
    const blockElements: Partial<Record<GgmlTypeName, number>> = { Q8_0: 32, Q4_K: 256 };
    fc.assert(
      fc.property(
        fc.dictionary(
          fc.string({ unit: "grapheme", minLength: 1, maxLength: 12 }).filter((key) => key !== "general.alignment"),
          value,
          { maxKeys: 8 },
        ),
        fc.array(tensor, { maxLength: 5 }),
        fc.constantFrom(1, 8, 32, 256),
        (keys, tensors, alignment) => {
          using writer = createGguf(path, { alignment });
          for (const [key, entry] of Object.entries(keys)) writer.set(key, entry);
          const declared = tensors.map(({ type, blocks, rest }, i) => {
            const shape = [blocks * (blockElements[type] ?? 1), ...rest];
            return { name: `t${i}`, type, shape, bytes: writer.declare({ name: `t${i}`, type, shape }) };
          });
          for (const { name, bytes } of declared) writer.write(name, new Uint8Array(bytes).fill(7));
          writer.finish();
          const file = openGguf(path);
          const read = Object.fromEntries([...file.metadata].filter(([key]) => key !== "general.alignment"));
          expect(read).toEqual(Object.fromEntries(Object.entries(keys)));
          expect([...file.tensors.values()].map(({ name, type, shape, bytes }) => ({ name, type: type.name, shape, bytes }))).toEqual(declared);
        },
      ),
      timed,
    );
  },
  limit,
);
