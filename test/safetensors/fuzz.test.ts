// Random and mutated safetensors headers: tensors inside the file and apart from each other, or ModelFileError.
// One second each in the normal run; BAO_FUZZ_SECONDS=600 bun test test/safetensors/fuzz.test.ts for a long one.

import { expect, test } from "bun:test";
import fc from "fast-check";
import { ModelFileError } from "../../src/errors.ts";
import { build, parse } from "./build.ts";

const seconds = Number(process.env["BAO_FUZZ_SECONDS"] ?? 1);
const timed = { numRuns: 2 ** 31 - 1, interruptAfterTimeLimit: seconds * 1000, markInterruptAsFailure: false } as const;
const limit = (seconds + 30) * 1000;

const DATA = new Uint8Array(64).fill(1);
const VALID = {
  __metadata__: { format: "pt" },
  a: { dtype: "F32", shape: [2, 3], data_offsets: [0, 24] },
  b: { dtype: "BF16", shape: [5], data_offsets: [24, 34] },
  none: { dtype: "I64", shape: [0, 4], data_offsets: [34, 34] },
};

function judge(bytes: Uint8Array): boolean {
  let header;
  try {
    header = parse(bytes);
  } catch (error) {
    if (!(error instanceof ModelFileError)) throw error;
    if (error.hint === "" || !/^safetensors_[a-z]+$/.test(error.code)) throw new Error(`incomplete error: ${error.code} ${error.message}`);
    return false;
  }
  const ranges = [...header.tensors.values()].filter((tensor) => tensor.bytes > 0).sort((x, y) => x.offsetBytes - y.offsetBytes);
  let end = 8;
  for (const tensor of ranges) {
    if (tensor.offsetBytes < end || tensor.offsetBytes + tensor.bytes > bytes.length)
      throw new Error(`accepted ${JSON.stringify(tensor)} in ${bytes.length} bytes`);
    end = tensor.offsetBytes + tensor.bytes;
  }
  return true;
}

test("the header that is mutated is valid", () => expect(judge(build(VALID, DATA))).toBe(true));

test(
  "mutated bytes",
  () => {
    const file = build(VALID, DATA);
    const change = fc.tuple(fc.nat(file.length - 1), fc.oneof(fc.nat(255), fc.constantFrom(...Buffer.from('0123456789-+.eE"{}[],:\\'))));
    const before = process.memoryUsage.rss();
    fc.assert(
      fc.property(fc.array(change, { minLength: 1, maxLength: 5 }), fc.option(fc.nat(file.length)), (changes, cut) => {
        const bytes = file.slice();
        for (const [at, value] of changes) bytes[at] = value;
        judge(cut === null ? bytes : bytes.slice(0, cut));
      }),
      timed,
    );
    Bun.gc(true);
    // The files are below 1 KB; what they claim goes to 2^64.
    expect(process.memoryUsage.rss() - before).toBeLessThan(512 * 2 ** 20);
  },
  limit,
);

test(
  "well-formed JSON of the wrong kind",
  () => {
    const size = fc.oneof(fc.nat(64), fc.constantFrom(-1, 0.5, 2 ** 31, 2 ** 32, 2 ** 53, 1e300), fc.jsonValue());
    const entry = fc.oneof(
      fc.record(
        {
          dtype: fc.oneof(fc.constantFrom("F32", "BF16", "U8", "F4", "X"), fc.jsonValue()),
          shape: fc.oneof(fc.array(size, { maxLength: 4 }), fc.jsonValue()),
          data_offsets: fc.oneof(fc.array(size, { maxLength: 3 }), fc.jsonValue()),
        },
        { requiredKeys: [] },
      ),
      fc.jsonValue(),
    );
    const name = fc.oneof(fc.constantFrom("a", "b", "__metadata__", "__proto__", "constructor"), fc.string());
    fc.assert(
      fc.property(fc.dictionary(name, entry, { maxKeys: 4 }), fc.uint8Array({ maxLength: 64 }), (header, data) => {
        judge(build(header, data));
      }),
      timed,
    );
  },
  limit,
);
