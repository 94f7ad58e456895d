// Models split over several files, name-00001-of-00003.gguf: finds the set from any of its files and checks that it is one.
// Knows file names and the three split keys; never reads tensor data.

import { basename, dirname, join } from "node:path";
import { existsSync } from "node:fs";
import type { Header } from "./header.ts";
import { fileError, printable } from "./limits.ts";

/** What a shard's file name says. Files count from 1, the key `split.no` from 0. */
interface ShardName {
  readonly stem: string;
  readonly number: number;
  readonly count: number;
}

const SHARD_NAME = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/;
const FETCH_ALL = "Put all files of the model into one folder under the names they were published with.";

/** Parts of a shard's file name, or undefined for any other name. */
export function parseShardName(path: string): ShardName | undefined {
  const match = SHARD_NAME.exec(basename(path));
  if (match === null) return undefined;
  return { stem: match[1] as string, number: Number(match[2]), count: Number(match[3]) };
}

/** File name of shard `number` (from 1) of `count`. */
export function shardFileName(stem: string, number: number, count: number): string {
  const digits = (n: number): string => String(n).padStart(5, "0");
  return `${stem}-${digits(number)}-of-${digits(count)}.gguf`;
}

/**
 * Paths of all files of the model that `opened` belongs to, in order; one path when it is not split.
 * Throws `gguf_split_name`, `gguf_split_keys`, `gguf_split_missing`.
 */
export function shardPaths(opened: Header): string[] {
  const { path, metadata } = opened;
  const count = metadata.u32("split.count");
  const name = parseShardName(path);
  // A merged file keeps the keys with a count of 0; a set of one file is a whole file.
  const alone = count === undefined ? name === undefined || name.count <= 1 : count <= 1;
  if (alone) return [path];
  if (name === undefined) {
    const expected = shardFileName("NAME", (metadata.u32("split.no") ?? 0) + 1, count as number);
    throw fileError(
      path,
      "gguf_split_name",
      `the file is one of ${count} of a split model, expected a name like ${expected}, found ${printable(basename(path))}`,
      FETCH_ALL,
    );
  }
  checkShard(opened, name, name.number - 1);
  const paths: string[] = [];
  for (let number = 1; number <= name.count; number++) {
    const shard = number === name.number ? path : join(dirname(path), shardFileName(name.stem, number, name.count));
    if (!existsSync(shard)) {
      throw fileError(path, "gguf_split_missing", `file ${number} of ${name.count} of the model is missing: ${shard}`, FETCH_ALL);
    }
    paths.push(shard);
  }
  return paths;
}

/** Checks that `header` is shard `index` (from 0) of the set that `name` names. Throws `gguf_split_keys`. */
export function checkShard(header: Header, name: ShardName, index: number): void {
  const { path, metadata } = header;
  const count = metadata.u32("split.count");
  const no = metadata.u32("split.no");
  const fail = (what: string): Error =>
    fileError(path, "gguf_split_keys", what, `${FETCH_ALL} If it is a whole model, rename it without the numbers.`);
  if (count === undefined || no === undefined) {
    const missing = count === undefined ? "split.count" : "split.no";
    throw fail(`the name says file ${name.number} of ${name.count} of a split model, but the key ${missing} is missing`);
  }
  if (name.number < 1 || name.number > name.count) throw fail(`the name says file ${name.number} of ${name.count}, which cannot be`);
  if (count !== name.count) throw fail(`split.count: expected ${name.count} as the file name says, found ${count}`);
  if (no !== index) throw fail(`split.no: expected ${index} (it counts from 0), found ${no}`);
}

/** Checks the complete set: equal counts, every tensor in one shard only, the total as promised. */
export function checkShardSet(headers: readonly Header[]): void {
  const owner = new Map<string, Header>();
  for (const [index, header] of headers.entries()) {
    const name = parseShardName(header.path);
    if (name !== undefined && headers.length > 1) checkShard(header, name, index);
    for (const tensor of header.tensors.keys()) {
      const other = owner.get(tensor);
      if (other !== undefined) {
        throw fileError(header.path, "gguf_duplicate_tensor", `tensor ${printable(tensor)} is in this file and in ${other.path}`, FETCH_ALL);
      }
      owner.set(tensor, header);
    }
  }
  if (headers.length === 1) return;
  for (const { path, metadata } of headers) {
    const total = metadata.u32("split.tensors.count");
    if (total !== undefined && total !== owner.size) {
      const hint = "The files are not of one model, or one was replaced: fetch all of them again.";
      throw fileError(
        path,
        "gguf_split_tensors",
        `split.tensors.count: expected ${total} tensors in all ${headers.length} files, found ${owner.size}`,
        hint,
      );
    }
  }
}
