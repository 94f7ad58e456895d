// Models split over several files: opened from any of them, and every way in which a set can be wrong.

import { afterAll, describe, expect, test } from "bun:test";
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openGguf, parseShardName, shardFileName } from "../../src/gguf/index.ts";
import { build, failure, V, type FileSpec, type Value } from "./build.ts";

const root = mkdtempSync(join(tmpdir(), "bao-gguf-split-"));
afterAll(() => rmSync(root, { recursive: true }));
let folders = 0;

interface Shard {
  readonly no?: Value;
  readonly count?: Value;
  readonly total?: Value;
  readonly tensors?: readonly string[];
  readonly keys?: FileSpec["keys"];
  readonly cut?: number;
}

/** Shard with one I8 tensor of 32 elements for each name. Keys default to those of a set of two files with three tensors. */
function shard(index: number, { no = V.u16(index), count = V.u16(2), total = V.i32(3), tensors, keys, cut = 0 }: Shard = {}): Uint8Array {
  const names = tensors ?? (index === 0 ? ["a", "b"] : ["c"]);
  const bytes = build({
    keys: [
      ...(index === 0 ? ([["general.architecture", V.string("gemma4")]] as const) : []),
      ...(keys ?? [
        ["split.no", no],
        ["split.count", count],
        ["split.tensors.count", total],
      ]),
    ],
    tensors: names.map((name, i) => ({ name, dims: [32], type: 24, offset: i * 32 })),
    dataBytes: names.length * 32,
  });
  return bytes.slice(0, bytes.length - cut);
}

/** Writes files into a folder of their own; returns their paths. */
function write(files: Record<string, Uint8Array>): string[] {
  const folder = join(root, String(folders++));
  mkdirSync(folder);
  return Object.entries(files).map(([name, bytes]) => {
    const path = join(folder, name);
    writeFileSync(path, bytes);
    return path;
  });
}

const pair = (first: Shard = {}, second: Shard = {}): string[] =>
  write({ "m-00001-of-00002.gguf": shard(0, first), "m-00002-of-00002.gguf": shard(1, second) });

/** Expects that opening `path` fails with `code` and a message with all `words`; the message names `blamed`. */
function fails(path: string | undefined, code: string, blamed: string, ...words: string[]): void {
  const error = failure(() => openGguf(path ?? ""), blamed);
  expect([error.code, error.message]).toEqual([code, expect.any(String)]);
  for (const word of words) expect(error.message).toContain(word);
}

describe("a good set", () => {
  test("opens from any of its files", () => {
    const paths = pair();
    for (const path of paths) {
      const file = openGguf(path);
      expect(file.path).toBe(paths[0] ?? "");
      expect(file.metadata.string("general.architecture")).toBe("gemma4");
      expect([...file.tensors.keys()]).toEqual(["a", "b", "c"]);
      expect(file.shards.map((one) => one.path)).toEqual(paths);
      // Offsets start again in every file.
      expect(file.tensors.get("c")).toMatchObject({ shard: 1, path: paths[1] });
      expect(file.tensors.get("c")?.offsetBytes).toBeLessThan(file.shards[1]?.sizeBytes ?? 0);
    }
  });
  test("split keys of another integer width", () => {
    const wide: Shard = { count: V.u32(2), total: V.u64(3) };
    expect(openGguf(pair({ ...wide, no: V.u32(0) }, { ...wide, no: V.u64(1) })[1] ?? "").tensors.size).toBe(3);
  });
  test("no split.tensors.count", () => {
    const keys = (no: number): FileSpec["keys"] => [
      ["split.no", V.u16(no)],
      ["split.count", V.u16(2)],
    ];
    expect(openGguf(pair({ keys: keys(0) }, { keys: keys(1) })[0] ?? "").tensors.size).toBe(3);
  });
  test("a set of one file, under any name", () => {
    const one: Shard = { count: V.u16(1), total: V.i32(2) };
    for (const path of write({ "m-00001-of-00001.gguf": shard(0, one), "renamed.gguf": shard(0, one) })) expect(openGguf(path).tensors.size).toBe(2);
  });
  test("a merged file, which keeps a count of 0", () => {
    const [path] = write({ "merged.gguf": shard(0, { count: V.u16(0) }) });
    expect(openGguf(path ?? "").shards.length).toBe(1);
  });
  test("names", () => {
    expect(parseShardName("/x/gemma-4-it-00002-of-00010.gguf")).toEqual({ stem: "gemma-4-it", number: 2, count: 10 });
    expect(shardFileName("gemma-4-it", 2, 10)).toBe("gemma-4-it-00002-of-00010.gguf");
    for (const name of ["m.gguf", "m-1-of-2.gguf", "m-00001-of-00002.bin"]) expect(parseShardName(name)).toBeUndefined();
  });
});

describe("a bad set is refused", () => {
  test("second file missing", () => {
    const [path] = write({ "m-00001-of-00002.gguf": shard(0) });
    fails(path, "gguf_split_missing", "m-00001-of-00002.gguf", "file 2 of 2", "m-00002-of-00002.gguf");
  });
  test("first file missing", () => {
    const [path] = write({ "m-00002-of-00002.gguf": shard(1) });
    fails(path, "gguf_split_missing", "m-00002-of-00002.gguf", "file 1 of 2", "m-00001-of-00002.gguf");
  });
  test("wrong split.no, in the opened file and in the other", () => {
    for (const path of pair({}, { no: V.u16(0) })) fails(path, "gguf_split_keys", "m-00002-of-00002.gguf", "split.no: expected 1", "found 0");
  });
  test("split.no that counts from 1", () => {
    fails(pair({ no: V.u16(1) }, { no: V.u16(2) })[0], "gguf_split_keys", "m-00001-of-00002.gguf", "expected 0", "found 1");
  });
  test("file without split keys", () => {
    for (const path of pair({}, { keys: [] })) fails(path, "gguf_split_keys", "m-00002-of-00002.gguf", "split.count is missing");
    for (const path of pair({ keys: [] })) fails(path, "gguf_split_keys", "m-00001-of-00002.gguf", "split.count is missing");
    fails(pair({}, { keys: [["split.count", V.u16(2)]] })[1], "gguf_split_keys", "m-00002-of-00002.gguf", "split.no is missing");
  });
  test("files that disagree on split.count", () => {
    for (const path of pair({}, { count: V.u16(3) })) fails(path, "gguf_split_keys", "m-00002-of-00002.gguf", "split.count: expected 2", "found 3");
  });
  test("total of tensors disagrees", () => {
    for (const path of pair({ total: V.i32(4) }, { total: V.i32(4) }))
      fails(path, "gguf_split_tensors", "m-00001", "expected 4 tensors in all 2 files, found 3");
    fails(pair({}, { total: V.i32(9) })[0], "gguf_split_tensors", "m-00002", "expected 9", "found 3");
  });
  test("truncated file is named, whichever was opened", () => {
    for (const path of pair({}, { cut: 1 })) fails(path, "gguf_truncated", "m-00002-of-00002.gguf", '"c"', "1 are missing");
    for (const path of pair({ cut: 1 })) fails(path, "gguf_truncated", "m-00001-of-00002.gguf", '"b"');
  });
  test("a web page in place of one file", () => {
    const [path] = write({ "m-00001-of-00002.gguf": shard(0), "m-00002-of-00002.gguf": new Uint8Array(Buffer.from("<html>404</html>")) });
    fails(path, "gguf_magic", "m-00002-of-00002.gguf", "web page");
  });
  test("tensor in two files", () => {
    for (const path of pair({}, { tensors: ["b"] })) fails(path, "gguf_duplicate_tensor", "m-00002-of-00002.gguf", '"b"', "m-00001-of-00002.gguf");
  });
  test("split keys in a file that is not named so", () => {
    const [path] = write({ "model.gguf": shard(1) });
    fails(path, "gguf_split_name", "model.gguf", "one of 2", "NAME-00002-of-00002.gguf");
  });
  test("number 0 or beyond the count in the name", () => {
    const [none, third] = write({ "m-00000-of-00002.gguf": shard(0), "m-00003-of-00002.gguf": shard(2) });
    fails(none, "gguf_split_keys", "m-00000-of-00002.gguf", "file 0 of 2");
    fails(third, "gguf_split_keys", "m-00003-of-00002.gguf", "file 3 of 2");
  });
  test("65,535 files claimed: nothing is opened before the first is found missing", () => {
    const [path] = write({ "m-00001-of-65535.gguf": shard(0, { count: V.u16(65535) }) });
    fails(path, "gguf_split_missing", "m-00001-of-65535.gguf", "file 2 of 65535");
  });
  test("split keys of a wrong kind", () => fails(pair({ count: V.string("2") })[0], "gguf_key_type", "m-00001", "split.count"));
});

describe("paths", () => {
  test("no such file", () => fails(join(root, "none.gguf"), "gguf_not_found", "none.gguf"));
  test("a folder", () => fails(root, "gguf_not_a_file", root, "a folder"));
  test("a device", () => fails("/dev/null", "gguf_not_a_file", "/dev/null"));
  test.skipIf(process.getuid?.() === 0)("a file that may not be read", () => {
    const [path] = write({ "m.gguf": build({}) });
    chmodSync(path ?? "", 0);
    fails(path, "gguf_unreadable", "m.gguf");
  });
});
