// The tensors of a checkpoint as pieces of GGUF data, in the file's order: read some rows, convert, hand on. Memory stays at a few pieces a thread
// whatever the model's size. Pieces that take long go to other threads when there are any; whichever is done first, the order stays.

import type { GgmlTypeName } from "../gguf/index.ts";
import type { SafetensorsFile } from "../safetensors/index.ts";
import { FLOAT_BYTES, type FloatDtype } from "./floats.ts";
import type { PlannedTensor } from "./names.ts";
import { PieceConverter, sourceBytes, takesLong, targetBytes, type Converted, type Piece } from "./piece.ts";
import type { ConvertWorkers, Lent } from "./workers.ts";

/** Values of one piece: 4 MiB as f32, which keeps the disk and the quantiser busy and fits any machine. */
export const PIECE_VALUES = 1 << 20;

/** A tensor and the type that it becomes. */
export interface StreamTensor { readonly tensor: PlannedTensor; readonly target: GgmlTypeName }

/** The next piece of the tensor with this index. */
export interface StreamPiece extends Converted { readonly index: number }

/**
 * The data of `tensors`, in order. A piece is valid until the next is asked for. Throws what PieceConverter, the checkpoint and `workers` do, for the first
 * piece in order that fails.
 */
export async function* tensorStream(checkpoint: SafetensorsFile, tensors: readonly StreamTensor[], workers?: ConvertWorkers): AsyncGenerator<StreamPiece, void, undefined> {
  const here = new ConvertHere(checkpoint), pieces = piecesOf(tensors, checkpoint.path);
  if (!workers) {
    for (const { index, piece } of pieces) yield { index, ...here.convert(piece) };
    return;
  }
  /** What other threads are at, and between it what is left to this one until its turn comes. */
  const queue: { readonly index: number; readonly piece: Piece | Float32Array; readonly lent?: Promise<Lent> }[] = [];
  let running = 0, next = pieces.next();
  for (;;) {
    for (; !next.done && running < workers.depth; next = pieces.next()) {
      const { index, piece } = next.value;
      if (piece instanceof Float32Array || !takesLong(piece.dtype, piece.target)) { queue.push({ index, piece }); continue; }
      running++;
      queue.push({ index, piece, lent: workers.convert(piece, (into) => read(checkpoint, piece, into)) });
    }
    const head = queue.shift();
    if (!head) return;
    if (!head.lent) { yield { index: head.index, ...here.convert(head.piece) }; continue; }
    const lent = await head.lent;
    yield { index: head.index, bytes: lent.bytes, error: lent.error, square: lent.square };
    workers.release(lent);
    running--;
  }
}

/** Values of a tensor. */
export function elementsOf({ shape }: PlannedTensor): number {
  return shape.reduce((a, b) => a * b, 1);
}

/** Pieces that take long: how much there is to share out. */
export function longPieces(tensors: readonly StreamTensor[]): number {
  const long = tensors.filter(({ tensor: { from }, target }) => "dtype" in from && takesLong(from.dtype as FloatDtype, target));
  const values = long.reduce((sum, { tensor }) => sum + elementsOf(tensor), 0);
  return Math.ceil(values / PIECE_VALUES);
}

/** All pieces in order; a tensor that is no part of the checkpoint is one piece as it is. */
function* piecesOf(tensors: readonly StreamTensor[], path: string): Generator<{ readonly index: number; readonly piece: Piece | Float32Array }, void, undefined> {
  for (const [index, { tensor, target }] of tensors.entries()) {
    const { from, shape, name } = tensor;
    if ("values" in from) { yield { index, piece: from.values }; continue; }
    const columns = shape[0]!, rows = elementsOf(tensor) / columns, rowsEach = Math.max(1, Math.floor(PIECE_VALUES / columns));
    for (let row = 0; row < rows; row += rowsEach) {
      yield { index, piece: { name, source: from.tensor, path, dtype: from.dtype as FloatDtype, target, rows: Math.min(rowsEach, rows - row), columns, start: row * columns } };
    }
  }
}

function read(checkpoint: SafetensorsFile, piece: Piece, into: Uint8Array): void {
  checkpoint.read(piece.source, piece.start * FLOAT_BYTES[piece.dtype], sourceBytes(piece), into);
}

/** Conversion in this thread, in memory that the next piece overwrites. */
class ConvertHere {
  readonly #converter = new PieceConverter();
  #raw = new Uint8Array(0);
  #out = new ArrayBuffer(0);
  constructor(private readonly checkpoint: SafetensorsFile) {}

  convert(piece: Piece | Float32Array): Converted {
    if (piece instanceof Float32Array) return { bytes: piece, error: 0, square: 0 };
    const bytes = sourceBytes(piece), room = targetBytes(piece);
    if (this.#raw.length < bytes) this.#raw = new Uint8Array(bytes);
    if (this.#out.byteLength < room) this.#out = new ArrayBuffer(room);
    const raw = this.#raw.subarray(0, bytes);
    read(this.checkpoint, piece, raw);
    return this.#converter.convert(piece, raw, this.#out);
  }
}
