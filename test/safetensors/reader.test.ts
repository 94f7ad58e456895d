// Reading tensor bytes from one file, from an index, from a folder; what a wrong set of files says.

import { afterAll, describe, expect, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DisposedError, UsageError } from "../../src/errors.ts";
import { openSafetensors } from "../../src/safetensors/index.ts";
import { build, failure } from "./build.ts";

const root = mkdtempSync(join(tmpdir(), "bao-safetensors-"));
afterAll(() => rmSync(root, { recursive: true }));
let folders = 0;

/** Writes files into a folder of their own and returns it. */
function write(files: Record<string, Uint8Array | object>): string {
  const folder = join(root, String(folders++));
  mkdirSync(folder);
  for (const [name, content] of Object.entries(files))
    writeFileSync(join(folder, name), content instanceof Uint8Array ? content : JSON.stringify(content));
  return folder;
}

/** File of one U8 tensor for each name, 10 bytes each, counting up from `first`. */
function file(first: number, ...names: string[]): Uint8Array {
  const header = Object.fromEntries(names.map((name, i) => [name, { dtype: "U8", shape: [2, 5], data_offsets: [i * 10, i * 10 + 10] }]));
  return build(
    { __metadata__: { first: String(first) }, ...header },
    Uint8Array.from({ length: names.length * 10 }, (_, i) => first + i),
  );
}

const index = (map: Record<string, unknown>): object => ({ metadata: { total_size: 1 }, weight_map: map });
const sharded = {
  "model.safetensors.index.json": index({ a: "m-1.safetensors", b: "m-2.safetensors" }),
  "m-1.safetensors": file(0, "a"),
  "m-2.safetensors": file(100, "b", "left over"),
};

function fails(path: string, code: string, blamed: string, ...words: string[]): void {
  const error = failure(() => openSafetensors(path), blamed);
  expect([error.code, error.message]).toEqual([code, expect.any(String)]);
  for (const word of words) expect(error.message).toContain(word);
}

describe("one file", () => {
  const folder = write({ "model.safetensors": file(0, "a", "b") });

  test("opened by its name or by its folder", () => {
    for (const path of [folder, join(folder, "model.safetensors")]) {
      using model = openSafetensors(path);
      expect([...model.tensors.keys()]).toEqual(["a", "b"]);
      expect(model.path).toBe(join(folder, "model.safetensors"));
      expect(model.tensors.get("b")).toMatchObject({ dtype: "U8", shape: [2, 5], bytes: 10, path: model.path });
    }
  });
  test("the whole of a tensor, a part, into a buffer", () => {
    using model = openSafetensors(folder);
    expect([...model.read("b")]).toEqual([10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
    expect([...model.read("b", 8)]).toEqual([18, 19]);
    expect([...model.read("b", 3, 2)]).toEqual([13, 14]);
    const buffer = new Uint8Array(16);
    expect(model.read("a", 1, 3, buffer).buffer).toBe(buffer.buffer);
    expect([...buffer.subarray(0, 4)]).toEqual([1, 2, 3, 0]);
  });
  test("in pieces of any size", () => {
    using model = openSafetensors(folder);
    for (const size of [1, 3, 5, 10, 1000]) {
      const pieces = Array.from(model.chunks("b", size), (piece) => [...piece]);
      expect(pieces.flat()).toEqual([10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
      expect(pieces.length).toBe(Math.ceil(10 / size));
    }
  });
  test("ranges outside of the tensor are refused", () => {
    using model = openSafetensors(folder);
    for (const [offset, length] of [
      [-1, 2],
      [0, 11],
      [11, 0],
      [5, 6],
      [0.5, 1],
      [Number.NaN, 1],
    ] as const) {
      expect(() => model.read("a", offset, length)).toThrow(UsageError);
    }
    expect(() => model.read("a", 0, 4, new Uint8Array(3))).toThrow(UsageError);
    expect(() => model.read("none")).toThrow(UsageError);
    expect(() => [...model.chunks("none", 4)]).toThrow(UsageError);
    expect(() => [...model.chunks("a", 0)]).toThrow(UsageError);
  });
  test("use after dispose", () => {
    const model = openSafetensors(folder);
    model[Symbol.dispose]();
    model[Symbol.dispose]();
    expect(() => model.read("a")).toThrow(DisposedError);
  });
  test("under another name, alone in its folder", () => {
    using model = openSafetensors(write({ "weights.safetensors": file(0, "a") }));
    expect(model.tensors.size).toBe(1);
  });
  test("a file that shrinks while it is open", () => {
    const own = write({ "model.safetensors": file(0, "a") });
    using model = openSafetensors(own);
    writeFileSync(join(own, "model.safetensors"), "");
    expect(failure(() => model.read("a"), "model.safetensors").code).toBe("safetensors_truncated");
  });
});

describe("several files", () => {
  test("opened by folder or index; the index decides what belongs to the model", () => {
    const folder = write(sharded);
    for (const path of [folder, join(folder, "model.safetensors.index.json")]) {
      using model = openSafetensors(path);
      expect([...model.tensors.keys()]).toEqual(["a", "b"]);
      expect(model.shards.map((shard) => shard.path)).toEqual([join(folder, "m-1.safetensors"), join(folder, "m-2.safetensors")]);
      expect([...model.read("b", 0, 3)]).toEqual([100, 101, 102]);
    }
  });
  test("a missing file is named", () => {
    const { "m-2.safetensors": _, ...rest } = sharded;
    fails(write(rest), "safetensors_not_found", "model.safetensors.index.json", "m-2.safetensors");
  });
  test("a tensor that is not where the index says", () => {
    fails(write({ ...sharded, "m-1.safetensors": file(0, "c") }), "safetensors_index", "model.safetensors.index.json", '"a"', "m-1.safetensors");
  });
  test("a damaged file is named", () => {
    fails(write({ ...sharded, "m-2.safetensors": file(0, "b").slice(0, -1) }), "safetensors_truncated", "m-2.safetensors", '"b"');
  });
  test("an index that reaches out of its folder", () => {
    for (const name of ["../x.safetensors", "/etc/passwd", "a/b.safetensors", "a\\b", "..", "", 5, null, "a\0b"]) {
      fails(write({ "model.safetensors.index.json": index({ a: name }) }), "safetensors_index", "index.json", '"a"', "expected a file name");
    }
  });
  test("an index that is none", () => {
    for (const content of [Buffer.from("{"), Buffer.from("null"), {}, { weight_map: [] }, { weight_map: "x" }]) {
      fails(write({ "model.safetensors.index.json": content }), "safetensors_index", "index.json");
    }
  });
});

describe("nothing to open", () => {
  test("no such file", () => fails(join(root, "none.safetensors"), "safetensors_not_found", "none.safetensors"));
  test("a device", () => fails("/dev/null", "safetensors_not_found", "/dev/null"));
  test("a folder without, and one with several and no index", () => {
    fails(write({}), "safetensors_not_found", root, "no .safetensors file");
    fails(
      write({ "a.safetensors": file(0, "a"), "b.safetensors": file(0, "b") }),
      "safetensors_not_found",
      root,
      "2 .safetensors files and no index",
    );
  });
});
