// Sums what narrowing and quantisation lost, by element type. Only counts; the errors come from whoever converts.

import type { GgmlType, GgmlTypeName } from "../gguf/index.ts";

/** What one element type holds and lost. */
export interface TypeReport {
  readonly type: GgmlTypeName;
  readonly tensors: number;
  readonly elements: number;
  readonly bytes: number;
  /** sqrt(sum of squared errors / sum of squares) over all its tensors; 0 when nothing was lost. */
  readonly relativeRms: number;
  /** The tensor that lost most; undefined when none lost anything. */
  readonly worst: { readonly tensor: string; readonly relativeRms: number } | undefined;
}

interface Sums { tensors: number; elements: number; bytes: number; error: number; square: number; worst: TypeReport["worst"] }

export class ErrorTally {
  readonly #types = new Map<GgmlTypeName, Sums>();
  #current: { tensor: string; sums: Sums; error: number; square: number } | undefined;

  /** Begins a tensor; the one before is complete. */
  start(tensor: string, type: GgmlType, elements: number): void {
    this.#finish();
    const sums = this.#types.get(type.name) ?? { tensors: 0, elements: 0, bytes: 0, error: 0, square: 0, worst: undefined };
    this.#types.set(type.name, sums);
    sums.tensors++;
    sums.elements += elements;
    sums.bytes += (elements / type.blockElements) * type.blockBytes;
    this.#current = { tensor, sums, error: 0, square: 0 };
  }

  /** Adds a piece of the current tensor: sums of squared errors and of squares. */
  add(error: number, square: number): void {
    this.#current!.error += error;
    this.#current!.square += square;
  }

  /** Per type, most bytes first. */
  report(): TypeReport[] {
    this.#finish();
    return [...this.#types]
      .map(([type, s]): TypeReport => ({ type, tensors: s.tensors, elements: s.elements, bytes: s.bytes, relativeRms: ratio(s.error, s.square), worst: s.worst }))
      .sort((a, b) => b.bytes - a.bytes);
  }

  #finish(): void {
    const current = this.#current;
    if (current === undefined) return;
    this.#current = undefined;
    const { sums, tensor, error, square } = current;
    sums.error += error;
    sums.square += square;
    const relativeRms = ratio(error, square);
    if (relativeRms > (sums.worst?.relativeRms ?? 0)) sums.worst = { tensor, relativeRms };
  }
}

function ratio(error: number, square: number): number {
  return square === 0 ? 0 : Math.sqrt(error / square);
}
