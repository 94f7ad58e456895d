// Opens a safetensors model and reads raw tensor bytes from it, piece by piece.
// Holds open files, never tensor data: memory stays flat however large the model is.

import { closeSync, fstatSync, openSync, readSync } from "node:fs";
import { DisposedError, UsageError } from "../errors.ts";
import { fileError, printable, readHeader, type HeaderTensor } from "./header.ts";
import { locate } from "./locate.ts";

export interface SafetensorsTensor extends HeaderTensor {
  /** File that holds the data. */
  readonly path: string;
}

interface OpenFile {
  readonly path: string;
  readonly fd: number;
  readonly sizeBytes: number;
}

/**
 * Opens `path`: a .safetensors file, a `model.safetensors.index.json`, or a folder with one of them.
 * Throws ModelFileError (codes `safetensors_...`) that names file, tensor, expected and found.
 */
export function openSafetensors(path: string): SafetensorsFile {
  return new SafetensorsFile(path);
}

/** An open model. Dispose it (or `using`) to close its files. */
export class SafetensorsFile implements Disposable {
  /** The index, or the only file. */
  readonly path: string;
  /** All tensors by name. */
  readonly tensors: ReadonlyMap<string, SafetensorsTensor>;
  /** `__metadata__` of the files, later files last. */
  readonly metadata: ReadonlyMap<string, string>;
  readonly shards: readonly { readonly path: string; readonly sizeBytes: number }[];
  #files: Map<string, OpenFile> | undefined = new Map();

  constructor(path: string) {
    const { path: whole, files, owner } = locate(path);
    this.path = whole;
    const tensors = new Map<string, SafetensorsTensor>();
    const metadata = new Map<string, string>();
    try {
      for (const file of files) {
        const open = openFile(file);
        this.#files?.set(file, open);
        const header = readHeader(file, open.sizeBytes, (into, position) => readAt(open, into, position));
        for (const [key, value] of header.metadata) metadata.set(key, value);
        for (const tensor of header.tensors.values()) {
          // An index decides: a tensor that it gives to another file, or to none, is a leftover.
          if (owner === undefined || owner.get(tensor.name) === file) tensors.set(tensor.name, { ...tensor, path: file });
        }
      }
      for (const [name, file] of owner ?? []) {
        if (!tensors.has(name)) {
          throw fileError(
            whole,
            "safetensors_index",
            `tensor ${printable(name)} is missing in ${file}`,
            "Index and files are of different versions of the model: fetch all of them again.",
          );
        }
      }
    } catch (error) {
      this[Symbol.dispose]();
      throw error;
    }
    this.tensors = tensors;
    this.metadata = metadata;
    this.shards = [...(this.#files?.values() ?? [])].map(({ path: shard, sizeBytes }) => ({ path: shard, sizeBytes }));
  }

  /**
   * Raw little-endian bytes `offsetBytes .. offsetBytes + lengthBytes` of a tensor, into the start of `into` when it is given.
   * Returns exactly `lengthBytes` bytes. Throws UsageError `safetensors_range` for an unknown tensor or a range outside of it.
   */
  read(name: string, offsetBytes = 0, lengthBytes?: number, into?: Uint8Array): Uint8Array {
    const files = this.#files;
    if (files === undefined) throw new DisposedError(this.path);
    const tensor = this.tensors.get(name);
    if (tensor === undefined)
      throw new UsageError("safetensors_range", `${this.path}: there is no tensor ${printable(name)}`, "Look it up in `tensors` first.");
    const length = lengthBytes ?? tensor.bytes - offsetBytes;
    if (![offsetBytes, length].every((n) => Number.isSafeInteger(n) && n >= 0) || offsetBytes + length > tensor.bytes) {
      throw new UsageError(
        "safetensors_range",
        `tensor ${printable(name)} has ${tensor.bytes} bytes; ${length} from ${offsetBytes} were asked for`,
        "Ask for a range inside of the tensor.",
      );
    }
    if (into !== undefined && into.length < length) {
      throw new UsageError(
        "safetensors_range",
        `the buffer has ${into.length} bytes, ${length} were asked for`,
        "Give a buffer that holds the range.",
      );
    }
    const out = into === undefined ? new Uint8Array(length) : into.subarray(0, length);
    const got = readAt(files.get(tensor.path) as OpenFile, out, tensor.offsetBytes + offsetBytes);
    if (got < length) throw fileError(tensor.path, "safetensors_truncated", `the file became shorter while tensor ${printable(name)} was read`);
    return out;
  }

  /** The bytes of a tensor in order, at most `chunkBytes` at a time. Every piece lies in the same buffer: use it before the next. */
  *chunks(name: string, chunkBytes: number): Generator<Uint8Array, void, undefined> {
    if (!Number.isSafeInteger(chunkBytes) || chunkBytes < 1)
      throw new UsageError("safetensors_range", `${chunkBytes} is no size of a piece`, "Give a whole number of bytes above 0.");
    const total = this.tensors.get(name)?.bytes ?? 0;
    const buffer = new Uint8Array(Math.min(chunkBytes, total));
    let at = 0;
    do {
      const length = Math.min(chunkBytes, total - at);
      const piece = this.read(name, at, length, buffer);
      if (length > 0) yield piece;
      at += length;
    } while (at < total);
  }

  /** Closes the files. */
  [Symbol.dispose](): void {
    for (const { fd } of this.#files?.values() ?? []) closeSync(fd);
    this.#files = undefined;
  }
}

function openFile(path: string): OpenFile {
  try {
    const fd = openSync(path, "r");
    return { path, fd, sizeBytes: fstatSync(fd).size };
  } catch (error) {
    throw fileError(
      path,
      "safetensors_unreadable",
      `cannot be opened: ${(error as Error).message}`,
      "Check the permissions of the file and of its folder.",
    );
  }
}

function readAt(file: OpenFile, into: Uint8Array, position: number): number {
  let done = 0;
  try {
    while (done < into.length) {
      const got = readSync(file.fd, into, done, into.length - done, position + done);
      if (got === 0) break;
      done += got;
    }
  } catch (error) {
    throw fileError(
      file.path,
      "safetensors_unreadable",
      `reading at byte ${position + done} failed: ${(error as Error).message}`,
      "Check the disk and the permissions of the file.",
    );
  }
  return done;
}
