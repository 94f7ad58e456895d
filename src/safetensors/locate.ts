// Finds the files of a safetensors model: one file, an index of several, or a folder with either.
// Reads the index only; never opens a tensor file.

import { readdirSync, readFileSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { fileError, printable } from "./header.ts";

const INDEX_NAME = "model.safetensors.index.json";
const SINGLE_NAME = "model.safetensors";
/** An index has one line a tensor; those of the largest models are below 20 MB. */
const MAX_INDEX_BYTES = 100_000_000;
const FETCH_ALL = "Fetch all files of the model into one folder.";

/** Where a model lies. */
export interface Location {
  /** The index, or the only file: what messages about the whole name. */
  readonly path: string;
  readonly files: readonly string[];
  /** Which of `files` has which tensor; absent when there is one file. */
  readonly owner?: ReadonlyMap<string, string>;
}

/** Throws ModelFileError `safetensors_not_found`, `safetensors_index`. */
export function locate(path: string): Location {
  const kind = statOf(path);
  if (kind === undefined)
    throw fileError(path, "safetensors_not_found", "there is no such file or folder", "Check the path; a relative one starts at the current folder.");
  if (kind === "folder") return locateInFolder(path);
  if (kind === "other")
    throw fileError(
      path,
      "safetensors_not_found",
      "expected a file or a folder, found something else",
      "Name a .safetensors file or the folder of a model.",
    );
  return path.endsWith(".json") ? readIndex(path) : { path, files: [path] };
}

function locateInFolder(folder: string): Location {
  const index = join(folder, INDEX_NAME);
  if (statOf(index) === "file") return readIndex(index);
  const single = join(folder, SINGLE_NAME);
  if (statOf(single) === "file") return { path: single, files: [single] };
  const found = readdirSync(folder).filter((name) => name.endsWith(".safetensors"));
  const only = found.length === 1 ? found[0] : undefined;
  if (only !== undefined) return { path: join(folder, only), files: [join(folder, only)] };
  const what = found.length === 0 ? "no .safetensors file" : `${found.length} .safetensors files and no index`;
  throw fileError(folder, "safetensors_not_found", `expected ${SINGLE_NAME} or ${INDEX_NAME} in the folder, found ${what}`, FETCH_ALL);
}

function readIndex(path: string): Location {
  const fail = (what: string): Error =>
    fileError(path, "safetensors_index", what, "Fetch the index again; it belongs to exactly one version of the model.");
  const size = statSync(path).size;
  if (size > MAX_INDEX_BYTES) throw fail(`the index has ${size} bytes, more than the ${MAX_INDEX_BYTES} allowed`);
  let weightMap: unknown;
  try {
    weightMap = (JSON.parse(readFileSync(path, "utf8")) as { weight_map?: unknown } | null)?.weight_map;
  } catch (error) {
    throw fail(`the index is no valid JSON: ${(error as Error).message}`);
  }
  if (typeof weightMap !== "object" || weightMap === null || Array.isArray(weightMap)) throw fail("the index has no weight_map");
  const owner = new Map<string, string>();
  for (const [tensor, file] of Object.entries(weightMap)) {
    // Names only: an index must not reach out of its folder.
    if (typeof file !== "string" || file === "" || file !== basename(file) || file.includes("\\") || file.includes("\0") || file === "..") {
      throw fail(`tensor ${printable(tensor)}: expected a file name, found ${printable(String(file))}`);
    }
    owner.set(tensor, join(dirname(path), file));
  }
  const files = [...new Set(owner.values())].sort();
  for (const file of files) {
    if (statOf(file) !== "file") throw fileError(path, "safetensors_not_found", `a file of the model is missing: ${file}`, FETCH_ALL);
  }
  return { path, files, owner };
}

function statOf(path: string): "file" | "folder" | "other" | undefined {
  let stat;
  try {
    stat = statSync(path);
  } catch {
    return undefined;
  }
  return stat.isFile() ? "file" : stat.isDirectory() ? "folder" : "other";
}
