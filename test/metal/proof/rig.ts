// The example library through bun:ffi, for the proof of the emulator. METAL_EXAMPLE names another folder than the build's: a library with a bug in it.
import { dlopen, FFIType as T, ptr, toArrayBuffer, type Pointer } from "bun:ffi";
import { readFileSync } from "node:fs";
import { join } from "node:path";

export const BUILT = join(import.meta.dir, "../../../build/metal-emulator");
const folder = process.env["METAL_EXAMPLE"] || BUILT;

const ex = dlopen(join(folder, "libexample.so"), {
  ex_error: { args: [], returns: T.cstring }, ex_open: { args: [T.cstring], returns: T.ptr }, ex_close: { args: [T.ptr], returns: T.void },
  ex_allocate: { args: [T.ptr, T.u64], returns: T.ptr }, ex_wrap: { args: [T.ptr, T.ptr, T.u64], returns: T.ptr }, ex_contents: { args: [T.ptr], returns: T.ptr },
  ex_free: { args: [T.ptr], returns: T.void }, ex_pipeline: { args: [T.ptr, T.cstring, T.u32, T.u32], returns: T.i32 }, ex_begin: { args: [T.ptr], returns: T.i32 },
  ex_end: { args: [T.ptr, T.i32], returns: T.i32 },
  ex_dispatch: { args: [T.ptr, T.i32, T.ptr, T.i32, T.ptr, T.u32, T.i32, T.u32, T.ptr, T.ptr], returns: T.i32 },
}).symbols;
const emulator = dlopen(join(folder, "libmetal_emulator.so"), { emu_live: { args: [T.cstring], returns: T.i64 }, emu_live_report: { args: [], returns: T.cstring } }).symbols;

const text = (s: string): Uint8Array => new TextEncoder().encode(s + "\0");
function check<R>(result: R, failed: boolean): R {
  if (failed) throw new Error(String(ex.ex_error()));
  return result;
}

/** Objective-C objects alive, of all classes; and a list of them. */
export const live = (): number => Number(emulator.emu_live(ptr(text(""))));
export const liveReport = (): string => String(emulator.emu_live_report());

export interface Buffer { readonly handle: Pointer; readonly memory: ArrayBuffer }
export interface Operand { readonly buffer: Buffer; readonly offset?: number }
export interface Dispatch { pipeline: number; operands: readonly (Buffer | Operand | null)[]; params?: Uint8Array; at?: number; groups: readonly number[]; threads: number; groupMemory?: number }

/** The example host, opened with an MSL text. */
export class Example {
  readonly #context: Pointer;
  constructor(source: string) {
    const context = ex.ex_open(ptr(text(source)));
    this.#context = check(context as Pointer, !context);
  }
  buffer(bytes: number): Buffer {
    const given = ex.ex_allocate(this.#context, bytes), handle = check(given as Pointer, !given);
    return { handle, memory: toArrayBuffer(ex.ex_contents(handle)!, 0, bytes) as ArrayBuffer };
  }
  put(values: NodeJS.TypedArray): Buffer {
    const buffer = this.buffer(values.byteLength);
    new Uint8Array(buffer.memory).set(new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    return buffer;
  }
  wrap(address: number, bytes: number): void { check(0, !ex.ex_wrap(this.#context, address as Pointer, bytes)); }
  free(buffer: Buffer): void { ex.ex_free(buffer.handle); }
  pipeline(name: string, flags = 0): number {
    const index = ex.ex_pipeline(this.#context, ptr(text(name)), flags, 1);
    return check(index, index < 0);
  }
  begin(): void { check(0, ex.ex_begin(this.#context) !== 0); }
  end(wait = true): void { check(0, ex.ex_end(this.#context, wait ? 1 : 0) !== 0); }
  dispatch(d: Dispatch): void {
    const operands = new BigUint64Array(d.operands.length * 2 + 1);
    d.operands.forEach((o, i) => {
      if (!o) return;
      operands[i * 2] = BigInt("buffer" in o ? o.buffer.handle : o.handle);
      operands[i * 2 + 1] = BigInt("buffer" in o ? o.offset ?? 0 : 0);
    });
    const size = (s: readonly number[]): Uint32Array => new Uint32Array([...s, 1, 1].slice(0, 3));
    const groups = size(d.groups), threads = size([d.threads]);
    const status = ex.ex_dispatch(this.#context, d.pipeline, ptr(operands), d.operands.length, d.params ? ptr(d.params) : null, d.params?.byteLength ?? 0, d.at ?? 0, d.groupMemory ?? 0, ptr(groups), ptr(threads));
    check(0, status !== 0);
  }
  /** One dispatch in a command buffer of its own, waited for. */
  run(d: Dispatch): void {
    this.begin();
    this.dispatch(d);
    this.end();
  }
  close(): void { ex.ex_close(this.#context); }
}

/** The example's kernels, or the text that a mutation made of them. */
export const source = (): string => readFileSync(process.env["METAL_EXAMPLE_SOURCE"] || join(import.meta.dir, "example.metal"), "utf8");

/** uint32 and float words, as kernels' parameter structs have them. */
export function params(...values: (number | { f32: number })[]): Uint8Array {
  const view = new DataView(new ArrayBuffer(values.length * 4));
  values.forEach((v, i) => { if (typeof v === "number") view.setUint32(i * 4, v, true); else view.setFloat32(i * 4, v.f32, true); });
  return new Uint8Array(view.buffer);
}

let seed = 12345;
export function random(n: number, scale = 1): Float32Array {
  return Float32Array.from({ length: n }, () => {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    return ((seed >>> 8) / 16777216 - 0.5) * scale;
  });
}

/** Largest error relative to the value, or to 1e-3 where that is larger; NaN counts as infinite. */
export function worst(found: ArrayLike<number>, expected: ArrayLike<number>): number {
  let most = 0;
  for (let i = 0; i < expected.length; i++) {
    const error = Math.abs(found[i]! - expected[i]!) / (1e-3 + Math.abs(expected[i]!));
    if (!(error <= most)) most = Number.isNaN(error) ? Infinity : error;
  }
  return most;
}

export const halves = (a: Float32Array): Uint16Array => new Uint16Array(new Float16Array(a).buffer);
export const fromHalves = (a: Uint16Array): Float32Array => new Float32Array(new Float16Array(a.buffer, a.byteOffset, a.length));

/** Blocks of Q8_0, and the values that they stand for. */
export function q8(w: Float32Array): { blocks: Uint8Array; values: Float64Array } {
  const blocks = new Uint8Array(w.length / 32 * 34), view = new DataView(blocks.buffer), values = new Float64Array(w.length);
  for (let b = 0; b < w.length / 32; b++) {
    const scale = Math.max(...w.subarray(b * 32, b * 32 + 32).map(Math.abs)) / 127;
    view.setFloat16(b * 34, scale, true);
    const d = view.getFloat16(b * 34, true);
    for (let i = 0; i < 32; i++) {
      const q = d ? Math.max(-127, Math.min(127, Math.round(w[b * 32 + i]! / d))) : 0;
      view.setInt8(b * 34 + 2 + i, q);
      values[b * 32 + i] = q * d;
    }
  }
  return { blocks, values };
}
