// One tensor of the checkpoint as pieces of GGUF data: read some rows, widen, convert, hand on. Memory stays at a few megabytes whatever the
// tensor's size. Copies without touching a bit where the types agree.

import { ModelFileError } from "../errors.ts";
import type { GgmlType } from "../gguf/index.ts";
import { openHost } from "../native/library.ts";
import type { SafetensorsFile } from "../safetensors/index.ts";
import { firstNotFinite, FLOAT_BYTES, narrowBf16, narrowF16, widen, type FloatDtype } from "./floats.ts";
import type { PlannedTensor } from "./names.ts";
import type { ErrorTally } from "./report.ts";

/** Values of one piece: 4 MiB as f32, which keeps the disk and the quantiser busy and fits any machine. */
const PIECE_VALUES = 1 << 20;

/**
 * The data of `tensor` as `target`, in order. A piece is valid until the next is asked for. Errors of rounding go to `tally`.
 * Throws ModelFileError `convert_not_finite` for a weight that is no finite number, `convert_range` for one too large for F16.
 */
export function* tensorStream(checkpoint: SafetensorsFile, tensor: PlannedTensor, target: GgmlType, tally: ErrorTally): Generator<ArrayBufferView, void, undefined> {
  const { from, shape, name } = tensor;
  if ("values" in from) {
    yield from.values;
    return;
  }
  const columns = shape[0]!;
  const rows = shape.slice(1).reduce((a, b) => a * b, 1);
  const dtype = from.dtype as FloatDtype;
  const rowsEach = Math.max(1, Math.min(rows, Math.floor(PIECE_VALUES / columns)));
  const width = FLOAT_BYTES[dtype];
  const raw = new Uint8Array(rowsEach * columns * width);
  const values = new Float32Array(rowsEach * columns);
  const convert = converter(target, columns, rowsEach, name, tally);
  for (let row = 0; row < rows; row += rowsEach) {
    const count = Math.min(rowsEach, rows - row) * columns;
    const bytes = checkpoint.read(from.tensor, row * columns * width, count * width, raw);
    const piece = values.subarray(0, count);
    widen(bytes, dtype, piece);
    const bad = firstNotFinite(piece);
    if (bad >= 0) {
      throw new ModelFileError(
        "convert_not_finite",
        `${checkpoint.path}: tensor ${from.tensor}: value ${row * columns + bad} is ${piece[bad]}`,
        "The checkpoint is damaged: fetch it again.",
      );
    }
    yield dtype === target.name ? bytes : convert(piece);
  }
}

/** Converts pieces of up to `rows` rows. The result lies in one buffer that the next call overwrites. */
function converter(target: GgmlType, columns: number, rows: number, name: string, tally: ErrorTally): (values: Float32Array) => ArrayBufferView {
  if (target.name === "F32") return (values) => values;
  if (target.name === "BF16") {
    const out = new Uint16Array(rows * columns), back = new Float32Array(rows * columns);
    return (values) => {
      const piece = out.subarray(0, values.length), widened = back.subarray(0, values.length);
      narrowBf16(values, piece);
      widen(new Uint8Array(out.buffer, 0, piece.byteLength), "BF16", widened);
      addError(values, widened, name, "BF16", tally);
      return piece;
    };
  }
  if (target.name === "F16") {
    const out = new Float16Array(rows * columns);
    return (values) => {
      const piece = out.subarray(0, values.length);
      narrowF16(values, piece);
      addError(values, piece, name, "F16", tally);
      return piece;
    };
  }
  const host = openHost();
  const out = new Uint8Array((rows * columns / target.blockElements) * target.blockBytes);
  const sums = new Float64Array(2);
  return (values) => {
    const count = values.length / columns;
    const piece = out.subarray(0, (values.length / target.blockElements) * target.blockBytes);
    host.quantize(target.id, values, values.byteLength, piece, piece.byteLength, count, columns);
    host.quantizeError(target.id, values, piece, piece.byteLength, count, columns, sums);
    tally.add(sums[0]!, sums[1]!);
    return piece;
  };
}

function addError(values: Float32Array, rounded: ArrayLike<number>, name: string, type: string, tally: ErrorTally): void {
  let error = 0, square = 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!, lost = rounded[i]! - value;
    error += lost * lost;
    square += value * value;
  }
  if (!Number.isFinite(error)) {
    throw new ModelFileError("convert_range", `tensor ${name} holds weights that are too large for ${type}`, "Convert to bf16 or f32.");
  }
  tally.add(error, square);
}
