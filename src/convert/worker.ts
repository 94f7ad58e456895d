// A converting Worker: converts the pieces that it is sent, in order, and sends each one back in the buffers that it came in. Ends itself when told to,
// between two pieces: nobody has to stop a thread that is inside of the kernel library.

import { packError, type PackedError } from "../engine/protocol.ts";
import { PieceConverter, sourceBytes, type Piece } from "./piece.ts";

/** Memory of one piece on its way: what was read, and what becomes of it. Moves between the threads, is never copied. */
export interface Buffers { readonly raw: ArrayBuffer; readonly out: ArrayBuffer }

/** `stopped`: shared; other than 0 when nobody wants results any more. */
export type ToWorker = { readonly piece: Piece; readonly buffers: Buffers; readonly stopped: Int32Array } | "end";
/** The result's first `bytes` bytes are in `buffers.out`. */
export type FromWorker =
  | { readonly buffers: Buffers; readonly bytes: number; readonly error: number; readonly square: number }
  | { readonly failed: PackedError };

declare const self: { postMessage(message: FromWorker, transfer?: ArrayBuffer[]): void; onmessage: ((event: { data: ToWorker }) => void) | null; close(): void };

const converter = new PieceConverter();

self.onmessage = ({ data }) => {
  if (data === "end") { self.close(); return; }
  const { piece, buffers, stopped } = data;
  if (Atomics.load(stopped, 0) !== 0) return;
  try {
    const { bytes, error, square } = converter.convert(piece, new Uint8Array(buffers.raw, 0, sourceBytes(piece)), buffers.out);
    self.postMessage({ buffers, bytes: bytes.byteLength, error, square }, [buffers.raw, buffers.out]);
  } catch (e) {
    self.postMessage({ failed: packError(e) });
  }
};
