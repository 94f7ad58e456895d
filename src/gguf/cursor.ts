// Sequential little-endian reads over a ByteSource through one sliding window, with the bytes left always known.
// Never allocates on the word of the file: every length is compared with what is left before anything is reserved.

import { fileError, MAX_HEADER_BYTES, REDOWNLOAD } from "./limits.ts";
import type { ByteSource } from "./source.ts";
import { VALUE_BYTES, type GgufArray, type GgufItemType } from "./types.ts";

const FIRST_CHUNK = 64 * 1024;
const LARGEST_CHUNK = 4 * 2 ** 20;

/** Reads one header from the start of a source. Errors are ModelFileError with the file's path. */
export class Cursor {
  #window: Buffer<ArrayBuffer> = Buffer.alloc(0);
  /** Next unread byte within the window. */
  #at = 0;
  /** Position in the file of the window's first byte. */
  #base = 0;
  #chunk = FIRST_CHUNK;
  /** What is being read, for messages: set by the caller before each part. */
  reading = "the header";

  constructor(readonly source: ByteSource) {}

  /** Position in the file of the next unread byte. */
  get position(): number {
    return this.#base + this.#at;
  }

  /** Bytes that the header may still occupy: what the file has, or what the bound on headers leaves. */
  get left(): number {
    return Math.min(this.source.sizeBytes, MAX_HEADER_BYTES) - this.position;
  }

  u32(): number {
    this.#need(4);
    const value = this.#window.readUInt32LE(this.#at);
    this.#at += 4;
    return value;
  }

  /** Unsigned 64-bit number. From 2^53 on it is inexact, so a caller must compare it with a smaller bound before use. */
  u64(): number {
    this.#need(8);
    const low = this.#window.readUInt32LE(this.#at);
    const high = this.#window.readUInt32LE(this.#at + 4);
    this.#at += 8;
    return high * 2 ** 32 + low;
  }

  /** The exact text of the u64 just read, with its signed reading when that is what the writer surely meant. */
  get lastU64(): string {
    const value = this.#window.readBigUInt64LE(this.#at - 8);
    return value >= 2n ** 63n ? `${value} (${BigInt.asIntN(64, value)} if signed)` : `${value}`;
  }

  /** String of at most `maxBytes`, invalid UTF-8 replaced by U+FFFD, NUL kept. */
  string(maxBytes: number, code: string): string {
    const length = this.u64();
    if (length > maxBytes) {
      throw this.fail(code, `the length of ${this.reading} is ${this.lastU64} bytes, more than the ${maxBytes} allowed`);
    }
    this.#need(length);
    const start = this.#at;
    this.#at += length;
    return this.#window.toString("utf8", start, this.#at);
  }

  /** One value of `type`, as a BigInt for 64-bit integers. */
  scalar(type: Exclude<GgufItemType, "string">): number | bigint | boolean {
    const size = VALUE_BYTES[type];
    this.#need(size);
    const at = this.#at;
    this.#at += size;
    const w = this.#window;
    switch (type) {
      case "u8":
        return w.readUInt8(at);
      case "i8":
        return w.readInt8(at);
      case "u16":
        return w.readUInt16LE(at);
      case "i16":
        return w.readInt16LE(at);
      case "u32":
        return w.readUInt32LE(at);
      case "i32":
        return w.readInt32LE(at);
      case "f32":
        return w.readFloatLE(at);
      case "f64":
        return w.readDoubleLE(at);
      case "u64":
        return w.readBigUInt64LE(at);
      case "i64":
        return w.readBigInt64LE(at);
      case "bool":
        return w.readUInt8(at) !== 0;
    }
  }

  /** `count` items of `of`; the caller has compared `count` with the bytes left. Hosts are little-endian, so numbers are copied as they lie. */
  items(of: GgufItemType, count: number, maxStringBytes: number): GgufArray {
    if (of === "string") {
      const values: string[] = [];
      for (let i = 0; i < count; i++) values.push(this.string(maxStringBytes, "gguf_string_length"));
      return { of, values };
    }
    const raw = this.#copy(count * VALUE_BYTES[of]);
    switch (of) {
      case "u8":
      case "bool":
        return { of, values: new Uint8Array(raw) };
      case "i8":
        return { of, values: new Int8Array(raw) };
      case "u16":
        return { of, values: new Uint16Array(raw) };
      case "i16":
        return { of, values: new Int16Array(raw) };
      case "u32":
        return { of, values: new Uint32Array(raw) };
      case "i32":
        return { of, values: new Int32Array(raw) };
      case "f32":
        return { of, values: new Float32Array(raw) };
      case "u64":
        return { of, values: new BigUint64Array(raw) };
      case "i64":
        return { of, values: new BigInt64Array(raw) };
      case "f64":
        return { of, values: new Float64Array(raw) };
    }
  }

  fail(code: string, what: string, hint: string = REDOWNLOAD): Error {
    return fileError(this.source.path, code, what, hint);
  }

  #past(bytes: number): Error {
    if (this.source.sizeBytes - this.position >= bytes) {
      return this.fail("gguf_header_size", `${this.reading} takes the header past ${MAX_HEADER_BYTES} bytes, the largest that is read`);
    }
    const found = Math.max(0, this.source.sizeBytes - this.position);
    return this.fail(
      "gguf_truncated",
      `the file ends inside ${this.reading}: ${bytes} bytes expected at byte ${this.position}, ${found} found (file size ${this.source.sizeBytes})`,
    );
  }

  /** Makes `bytes` contiguous in the window at `#at`. */
  #need(bytes: number): void {
    if (this.#window.length - this.#at >= bytes) return;
    if (bytes > this.left) throw this.#past(bytes);
    const kept = this.#window.subarray(this.#at);
    const position = this.position;
    const size = Math.min(Math.max(bytes, this.#chunk), this.source.sizeBytes - position);
    this.#chunk = Math.min(this.#chunk * 2, LARGEST_CHUNK);
    const next = Buffer.allocUnsafeSlow(size);
    next.set(kept);
    const got = this.source.read(next.subarray(kept.length), position + kept.length);
    if (kept.length + got < bytes) throw this.fail("gguf_truncated", `the file became shorter while ${this.reading} was read`);
    this.#window = next.subarray(0, kept.length + got);
    this.#base = position;
    this.#at = 0;
  }

  /** The next `bytes` in memory of their own, read past the window when they are many. */
  #copy(bytes: number): ArrayBuffer {
    if (bytes > this.left) throw this.#past(bytes);
    const out = new Uint8Array(bytes);
    const here = this.#window.subarray(this.#at, this.#at + bytes);
    out.set(here);
    if (here.length < bytes) {
      const got = this.source.read(out.subarray(here.length), this.position + here.length);
      if (here.length + got < bytes) throw this.fail("gguf_truncated", `the file became shorter while ${this.reading} was read`);
    }
    if (here.length === bytes) {
      this.#at += bytes;
    } else {
      this.#base = this.position + bytes;
      this.#at = 0;
      this.#window = Buffer.alloc(0);
    }
    return out.buffer;
  }
}
