// One piece of a tensor, some rows of it: widened, checked, converted, and what that lost measured. Reads no file and knows no other piece, so
// that pieces can be converted in any thread and order. Copies without touching a bit where the types agree.

import { ModelFileError } from "../errors.ts";
import { ggmlType, type GgmlTypeName } from "../gguf/index.ts";
import { openHost } from "../native/library.ts";
import { firstNotFinite, FLOAT_BYTES, narrowBf16, narrowF16, widen, type FloatDtype } from "./floats.ts";

/** Rows of one tensor and what becomes of them. Plain data: it crosses to other threads. */
export interface Piece {
  /** Name in the GGUF file. */
  readonly name: string;
  /** Name in the checkpoint, and the checkpoint's path: what messages say. */
  readonly source: string;
  readonly path: string;
  readonly dtype: FloatDtype;
  readonly target: GgmlTypeName;
  readonly rows: number;
  readonly columns: number;
  /** Values of the tensor before the first one of this piece. */
  readonly start: number;
}

/** A piece as the file holds it, with the sums of squared errors and of squares. */
export interface Converted {
  readonly bytes: ArrayBufferView;
  readonly error: number;
  readonly square: number;
}

/** Bytes of the piece in the checkpoint. */
export function sourceBytes({ rows, columns, dtype }: Piece): number {
  return rows * columns * FLOAT_BYTES[dtype];
}

/** Bytes of the piece in the GGUF file. */
export function targetBytes({ rows, columns, target }: Piece): number {
  const { blockElements, blockBytes } = ggmlType(target);
  return ((rows * columns) / blockElements) * blockBytes;
}

/** Whether the conversion takes longer than reading and writing: quantising, and F16. Copies, and BF16 by a shift of bits, do not. */
export function takesLong(dtype: FloatDtype, target: GgmlTypeName): boolean {
  return target !== dtype && target !== "F32" && target !== "BF16";
}

/** Converts pieces, one after another, in this thread. Keeps a few megabytes for it. */
export class PieceConverter {
  #values = new Float32Array(0);
  #back = new Float32Array(0);
  readonly #sums = new Float64Array(2);

  /**
   * Converts `raw`, the piece's bytes in the checkpoint, with `out` for the result (`targetBytes` or more). The result may lie in `out`, in `raw` or in this
   * object, and is valid until the next call. Throws ModelFileError `convert_not_finite` for a weight that is no finite number, `convert_range` for one that
   * is too large for F16.
   */
  convert(piece: Piece, raw: Uint8Array, out: ArrayBuffer): Converted {
    const { dtype, target } = piece, count = piece.rows * piece.columns;
    if (this.#values.length < count) this.#values = new Float32Array(count);
    const values = this.#values.subarray(0, count);
    widen(raw, dtype, values);
    const bad = firstNotFinite(values);
    if (bad >= 0) {
      throw new ModelFileError(
        "convert_not_finite",
        `${piece.path}: tensor ${piece.source}: value ${piece.start + bad} is ${values[bad]}`,
        "The checkpoint is damaged: fetch it again.",
      );
    }
    if (dtype === target) return { bytes: raw, error: 0, square: 0 };
    if (target === "F32") return { bytes: values, error: 0, square: 0 };
    if (target === "BF16") return this.#toBf16(piece, values, out);
    if (target === "F16") return toF16(piece, values, out);
    return this.#quantise(piece, values, out);
  }

  #toBf16(piece: Piece, values: Float32Array, out: ArrayBuffer): Converted {
    if (this.#back.length < values.length) this.#back = new Float32Array(values.length);
    const bytes = new Uint16Array(out, 0, values.length), back = this.#back.subarray(0, values.length);
    narrowBf16(values, bytes);
    widen(new Uint8Array(out, 0, bytes.byteLength), "BF16", back);
    return { bytes, ...loss(piece, values, back) };
  }

  #quantise(piece: Piece, values: Float32Array, out: ArrayBuffer): Converted {
    const { rows, columns } = piece, { id } = ggmlType(piece.target), host = openHost();
    const bytes = new Uint8Array(out, 0, targetBytes(piece));
    host.quantize(id, values, values.byteLength, bytes, bytes.byteLength, rows, columns);
    host.quantizeError(id, values, bytes, bytes.byteLength, rows, columns, this.#sums);
    return { bytes, error: this.#sums[0]!, square: this.#sums[1]! };
  }
}

function toF16(piece: Piece, values: Float32Array, out: ArrayBuffer): Converted {
  const bytes = new Float16Array(out, 0, values.length);
  narrowF16(values, bytes);
  return { bytes, ...loss(piece, values, bytes) };
}

function loss({ name, target }: Piece, values: Float32Array, rounded: ArrayLike<number>): { error: number; square: number } {
  let error = 0, square = 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!, lost = rounded[i]! - value;
    error += lost * lost;
    square += value * value;
  }
  if (!Number.isFinite(error)) {
    throw new ModelFileError("convert_range", `tensor ${name} holds weights that are too large for ${target}`, "Convert to bf16 or f32.");
  }
  return { error, square };
}
