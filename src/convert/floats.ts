// Widening a checkpoint's floats to f32 and narrowing f32 to F16 and BF16, for files that need no quantiser. Little-endian hosts only, which
// is all that Bun runs on.

import type { SafetensorsDtype } from "../safetensors/index.ts";

/** Types of checkpoint weights that can be converted. */
export type FloatDtype = Extract<SafetensorsDtype, "F32" | "F16" | "BF16">;

export const FLOAT_BYTES: Readonly<Record<FloatDtype, number>> = { F32: 4, F16: 2, BF16: 2 };

/** Widens the first `into.length` values of `bytes` exactly. `bytes` starts at an offset that is a multiple of 4. */
export function widen(bytes: Uint8Array, dtype: FloatDtype, into: Float32Array): void {
  const count = into.length;
  switch (dtype) {
    case "F32":
      into.set(new Float32Array(bytes.buffer, bytes.byteOffset, count));
      return;
    case "F16":
      into.set(new Float16Array(bytes.buffer, bytes.byteOffset, count));
      return;
    case "BF16": {
      const halves = new Uint16Array(bytes.buffer, bytes.byteOffset, count);
      const words = new Uint32Array(into.buffer, into.byteOffset, count);
      for (let i = 0; i < count; i++) words[i] = halves[i]! << 16;
    }
  }
}

/** Rounds to the nearest BF16, ties to even. Values must be finite. */
export function narrowBf16(values: Float32Array, into: Uint16Array): void {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < words.length; i++) {
    const word = words[i]!;
    into[i] = (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
  }
}

/** Rounds to the nearest F16, ties to even; what is too large becomes an infinity. */
export function narrowF16(values: Float32Array, into: Float16Array): void {
  into.set(values);
}

/** Index of the first value that is infinite or no number, or -1. */
export function firstNotFinite(values: Float32Array): number {
  const words = new Uint32Array(values.buffer, values.byteOffset, values.length);
  for (let i = 0; i < words.length; i++) if ((words[i]! & 0x7f800000) === 0x7f800000) return i;
  return -1;
}
