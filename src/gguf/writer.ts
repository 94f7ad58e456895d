// Writes one GGUF file as a stream: keys and tensor declarations first, then tensor data in pieces, in flat memory.
// The file appears under its name only when it is complete and on disk; until then it is NAME.part.

import { closeSync, fsyncSync, ftruncateSync, openSync, realpathSync, renameSync, rmSync, statSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { BaoError, ResourceError, UsageError } from "../errors.ts";
import { checkValue, encodeHeader, writeError } from "./encode.ts";
import * as limits from "./limits.ts";
import { alignUp, printable } from "./limits.ts";
import { elementCount, ggmlType, isWholeBlocks, tensorBytes, type GgmlType, type GgmlTypeName, type GgufArray, type GgufValue } from "./types.ts";

export interface TensorDeclaration {
  readonly name: string;
  readonly type: GgmlTypeName;
  /** ne order: `shape[0]` is the contiguous row length. */
  readonly shape: readonly number[];
  /** Leave the data as a hole of zeros that takes no disk space: for tests with huge files. */
  readonly hole?: boolean;
}

export interface GgufWriterOptions {
  /** `general.alignment`, a power of two; written as a key when it is not 32. */
  readonly alignment?: number;
}

interface Slot {
  readonly name: string;
  readonly type: GgmlType;
  readonly shape: readonly number[];
  readonly hole: boolean;
  readonly bytes: number;
  /** From the start of the data section. */
  readonly offsetBytes: number;
  written: number;
}

/** Starts the file `path`. Nothing is visible under that name before `finish()`. Throws ResourceError `file_write`. */
export function createGguf(path: string, options: GgufWriterOptions = {}): GgufWriter {
  return new GgufWriter(path, options.alignment ?? limits.DEFAULT_ALIGNMENT);
}

/**
 * The path that a finished file may be renamed to: `path`, or where a link at `path` leads. A rename replaces whatever is there, a device or a pipe
 * as well, so anything but a regular file is refused: UsageError `output_not_a_file`.
 */
export function replaceTarget(path: string): string {
  let found;
  try {
    found = statSync(path);
  } catch {
    return path; // nothing there, or nothing that can be reached: opening it will tell
  }
  if (!found.isFile()) {
    throw new UsageError("output_not_a_file", `${path}: expected a file or nothing there, found ${found.isDirectory() ? "a folder" : "a device or a pipe"}`, "Name a file to write.");
  }
  return realpathSync(path);
}

/**
 * Order of use: `set` and `declare` in any number, then `write`, then `finish`. Leaving a `using` block without `finish` removes
 * the partial file. Misuse throws BaoError (`gguf_write_...`), a full or failing disk ResourceError (`disk_full`, `file_write`).
 */
export class GgufWriter implements Disposable {
  readonly #target: string;
  readonly #part: string;
  #fd: number | undefined;
  readonly #metadata = new Map<string, GgufValue>();
  readonly #slots = new Map<string, Slot>();
  /** End of the last declared tensor, padded, from the start of the data section. */
  #dataBytes = 0;
  /** Start of the data section; set when the header is written, and nothing can be declared any more. */
  #dataStart: number | undefined;

  constructor(
    readonly path: string,
    readonly alignment: number,
  ) {
    if (!Number.isInteger(Math.log2(alignment)) || alignment < 1 || alignment > limits.MAX_ALIGNMENT) {
      throw writeError("gguf_write_alignment", `${alignment} is no alignment`, `Choose a power of two up to ${limits.MAX_ALIGNMENT}.`);
    }
    this.#target = replaceTarget(path);
    this.#part = `${this.#target}.part`;
    this.#fd = this.#io(() => openSync(this.#part, "w"));
    if (alignment !== limits.DEFAULT_ALIGNMENT) this.#metadata.set("general.alignment", ggufValue.u32(alignment));
  }

  /** Sets a key; a second time replaces the value. `general.alignment` belongs to the options. */
  set(key: string, value: GgufValue): void {
    this.#open("set");
    if (key === "general.alignment") {
      throw writeError("gguf_write_alignment", "general.alignment cannot be set as a key", "Pass the alignment to createGguf.");
    }
    checkValue(key, value);
    this.#metadata.set(key, value);
  }

  /** Adds a tensor; tensors lie in the file in the order of declaration. Returns the bytes its data must have. */
  declare(tensor: TensorDeclaration): number {
    this.#open("declare");
    const { name, shape } = tensor;
    const type = ggmlType(tensor.type);
    const fail = (what: string): Error =>
      writeError("gguf_write_tensor", `tensor ${printable(name)}: ${what}`, "Declare a tensor that the format can hold.");
    const length = Buffer.byteLength(name);
    if (length === 0 || length > limits.MAX_TENSOR_NAME_BYTES)
      throw fail(`names have 1..${limits.MAX_TENSOR_NAME_BYTES} bytes, this one has ${length}`);
    if (this.#slots.has(name)) throw fail("declared twice");
    if (shape.length < 1 || shape.length > limits.MAX_DIMS) throw fail(`${shape.length} dimensions, 1..${limits.MAX_DIMS} are possible`);
    if (shape.some((dim) => !Number.isSafeInteger(dim) || dim < 0) || elementCount(shape) === undefined) throw fail(`shape [${shape.join(", ")}]`);
    if (!isWholeBlocks(type, shape)) throw fail(`rows of ${shape[0]} elements are no multiple of the ${type.blockElements} of a ${type.name} block`);
    const bytes = tensorBytes(type, shape);
    if (bytes === undefined) throw fail("more than 2^53 bytes");
    this.#slots.set(name, { name, type, shape: [...shape], hole: tensor.hole ?? false, bytes, offsetBytes: this.#dataBytes, written: 0 });
    this.#dataBytes += alignUp(bytes, this.alignment);
    return bytes;
  }

  /** Appends `chunk` to the data of a declared tensor. The first call ends the declarations. */
  write(name: string, chunk: ArrayBufferView): void {
    const fd = this.#handle();
    const slot = this.#slots.get(name);
    if (slot === undefined) throw writeError("gguf_write_tensor", `tensor ${printable(name)} was not declared`, "Call declare first.");
    if (slot.hole || slot.written + chunk.byteLength > slot.bytes) {
      const room = slot.hole ? 0 : slot.bytes - slot.written;
      throw writeError(
        "gguf_write_size",
        `tensor ${printable(name)}: ${chunk.byteLength} bytes given, ${room} of ${slot.bytes} expected`,
        "Write exactly the bytes that declare returned.",
      );
    }
    this.#dataStart ??= this.#writeHeader(fd);
    const bytes = new Uint8Array(chunk.buffer, chunk.byteOffset, chunk.byteLength);
    this.#writeAt(fd, bytes, this.#dataStart + slot.offsetBytes + slot.written);
    slot.written += bytes.length;
  }

  /** Completes the file, waits until it is on disk and gives it its name. Throws `gguf_write_incomplete` when data is missing. */
  finish(): void {
    const fd = this.#handle();
    for (const slot of this.#slots.values()) {
      if (!slot.hole && slot.written < slot.bytes) {
        throw writeError(
          "gguf_write_incomplete",
          `tensor ${printable(slot.name)}: ${slot.bytes} bytes expected, ${slot.written} written`,
          "Write every declared tensor before finish.",
        );
      }
    }
    this.#dataStart ??= this.#writeHeader(fd);
    const size = this.#dataStart + this.#dataBytes;
    this.#io(() => {
      // The padding of the last tensor, and holes at the end.
      ftruncateSync(fd, size);
      fsyncSync(fd);
      closeSync(fd);
      this.#fd = undefined;
      renameSync(this.#part, this.#target);
      syncFolder(dirname(this.#target));
    });
  }

  /** Gives up: closes and removes the partial file. Does nothing after `finish`. */
  [Symbol.dispose](): void {
    if (this.#fd === undefined) return;
    closeSync(this.#fd);
    this.#fd = undefined;
    rmSync(this.#part, { force: true });
  }

  #handle(): number {
    if (this.#fd === undefined) throw writeError("gguf_write_closed", `${this.path} is already complete or given up`, "Create a new writer.");
    return this.#fd;
  }

  #open(what: string): void {
    this.#handle();
    if (this.#dataStart !== undefined)
      throw writeError(
        "gguf_write_order",
        `${what} was called after write`,
        "The header is written before the data: set and declare everything first.",
      );
  }

  /** Returns the start of the data section. */
  #writeHeader(fd: number): number {
    const header = encodeHeader(3, this.#metadata, [...this.#slots.values()]);
    if (header.length > limits.MAX_HEADER_BYTES) {
      throw writeError(
        "gguf_write_header",
        `the header has ${header.length} bytes, at most ${limits.MAX_HEADER_BYTES} can be read`,
        "Write fewer or shorter keys.",
      );
    }
    this.#writeAt(fd, header, 0);
    return alignUp(header.length, this.alignment);
  }

  #writeAt(fd: number, bytes: Uint8Array, position: number): void {
    this.#io(() => {
      // A write may take less than it was given, on a full disk in particular.
      for (let done = 0; done < bytes.length;) done += writeSync(fd, bytes, done, bytes.length - done, position + done);
    });
  }

  #io<T>(action: () => T): T {
    try {
      return action();
    } catch (error) {
      if (error instanceof BaoError) throw error;
      const { code, message } = error as NodeJS.ErrnoException;
      if (code === "ENOSPC" || code === "EDQUOT") {
        throw new ResourceError("disk_full", `${this.#part}: no space left on the disk`, "Free some space or choose another folder.", {
          cause: error,
        });
      }
      throw new ResourceError("file_write", `${this.#part}: ${message}`, "Check that the folder exists and may be written to.", { cause: error });
    }
  }
}

/** Makes the new name itself survive a crash. Where folders cannot be synced (some network disks), the rename is all there is. */
function syncFolder(folder: string): void {
  let fd: number | undefined;
  try {
    fd = openSync(folder, "r");
    fsyncSync(fd);
  } catch {
    return;
  } finally {
    if (fd !== undefined) closeSync(fd);
  }
}

type ArrayOf<T extends GgufArray["of"]> = Extract<GgufArray, { of: T }>["values"];

/** Constructors of typed metadata values: `ggufValue.u32(8)`, `ggufValue.array("string", tokens)`. */
export const ggufValue = {
  u8: (value: number): GgufValue => ({ type: "u8", value }),
  i8: (value: number): GgufValue => ({ type: "i8", value }),
  u16: (value: number): GgufValue => ({ type: "u16", value }),
  i16: (value: number): GgufValue => ({ type: "i16", value }),
  u32: (value: number): GgufValue => ({ type: "u32", value }),
  i32: (value: number): GgufValue => ({ type: "i32", value }),
  u64: (value: bigint): GgufValue => ({ type: "u64", value }),
  i64: (value: bigint): GgufValue => ({ type: "i64", value }),
  f32: (value: number): GgufValue => ({ type: "f32", value }),
  f64: (value: number): GgufValue => ({ type: "f64", value }),
  bool: (value: boolean): GgufValue => ({ type: "bool", value }),
  string: (value: string): GgufValue => ({ type: "string", value }),
  /** `values` is the typed array that belongs to `of`; for `bool` bytes 0 and 1. */
  array: <T extends GgufArray["of"]>(of: T, values: ArrayOf<T>): GgufValue => ({ type: "array", value: { of, values } as GgufArray }),
} as const;
