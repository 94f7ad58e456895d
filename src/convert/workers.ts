// Conversion on several cores: Workers that each convert one piece at a time, with the next one waiting there. They live for one conversion.

import { BaoError } from "../errors.ts";
import { unpackError } from "../engine/protocol.ts";
import { sourceBytes, targetBytes, type Converted, type Piece } from "./piece.ts";
import type { Buffers, FromWorker, ToWorker } from "./worker.ts";

/** One being converted, one that waits: a Worker has no pause while its results are written. More would only take memory. */
const PIECES_EACH = 2;

/** A result in memory that belongs to the Workers. */
export interface Lent extends Converted { readonly buffers: Buffers }

interface Pending { readonly resolve: (lent: Lent) => void; readonly reject: (error: unknown) => void }
interface Member { readonly worker: Worker; readonly pending: Pending[]; readonly closed: Promise<void> }

/** Dispose of it (`await using`): that waits until every Worker has ended, which takes no longer than the pieces they are at. */
export class ConvertWorkers implements AsyncDisposable {
  readonly #members: readonly Member[];
  readonly #signal: AbortSignal | undefined;
  /** Memory of pieces that have been used: no more sets exist than pieces were under way at once. */
  readonly #free: Buffers[] = [];
  readonly #stopped = new Int32Array(new SharedArrayBuffer(4));
  #failure: { readonly error: unknown } | undefined;
  readonly #onAbort = (): void => this.#fail(this.#signal?.reason);

  /** Starts `count` Workers. An abort of `signal` fails all that is under way with its reason. */
  constructor(count: number, signal?: AbortSignal) {
    this.#members = Array.from({ length: count }, () => this.#start());
    this.#signal = signal;
    signal?.addEventListener("abort", this.#onAbort, { once: true });
    if (signal?.aborted) this.#onAbort();
  }

  /** How many pieces may be under way. */
  get depth(): number { return PIECES_EACH * this.#members.length; }

  /**
   * Converts a piece whose bytes `read` puts into the memory it is given. Rejects with what `read` or the conversion throws, BaoError `convert_failed` when a
   * Worker breaks, the signal's reason on abort. Give the result back with `release` when it has been used.
   */
  convert(piece: Piece, read: (into: Uint8Array) => void): Promise<Lent> {
    const result = new Promise<Lent>((resolve, reject) => {
      if (this.#failure) throw this.#failure.error;
      const buffers = this.#take(sourceBytes(piece), targetBytes(piece));
      read(new Uint8Array(buffers.raw, 0, sourceBytes(piece)));
      const { worker, pending } = this.#members.reduce((a, b) => (b.pending.length < a.pending.length ? b : a));
      pending.push({ resolve, reject });
      worker.postMessage({ piece, buffers, stopped: this.#stopped } satisfies ToWorker, [buffers.raw, buffers.out]);
    });
    // Whoever waits for an earlier piece that fails never asks for this one.
    result.catch(() => {});
    return result;
  }
  /** Makes the result's memory that of another piece. */
  release({ buffers }: Lent): void { this.#free.push(buffers); }

  #take(raw: number, out: number): Buffers {
    const buffers = this.#free.pop();
    const fitting = (buffer: ArrayBuffer | undefined, bytes: number): ArrayBuffer => (buffer && buffer.byteLength >= bytes ? buffer : new ArrayBuffer(bytes));
    return { raw: fitting(buffers?.raw, raw), out: fitting(buffers?.out, out) };
  }

  #start(): Member {
    const worker = new Worker(new URL("./worker.ts", import.meta.url).href), pending: Pending[] = [];
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => this.#receive(pending.shift(), data);
    const broken = (why: string): void => this.#fail(new BaoError("convert_failed", `A converting thread stopped: ${why}`, "This is a defect of Bao: please report it."));
    worker.onerror = (event: ErrorEvent) => broken(event.message);
    // A Worker that ends when it is told to has nothing under way that this could fail.
    const closed = new Promise<void>((resolve) => worker.addEventListener("close", () => {
      broken("it ended by itself");
      resolve();
    }, { once: true }));
    return { worker, pending, closed };
  }
  #receive(pending: Pending | undefined, message: FromWorker): void {
    if ("failed" in message) { pending?.reject(unpackError(message.failed)); return; }
    const { buffers, bytes, error, square } = message;
    pending?.resolve({ buffers, bytes: new Uint8Array(buffers.out, 0, bytes), error, square });
  }
  /** The first failure is the one that is told. */
  #fail(error: unknown): void {
    this.#failure ??= { error };
    for (const { pending } of this.#members) for (const { reject } of pending.splice(0)) reject(this.#failure.error);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#signal?.removeEventListener("abort", this.#onAbort);
    Atomics.store(this.#stopped, 0, 1);
    for (const { worker } of this.#members) worker.postMessage("end" satisfies ToWorker);
    await Promise.all(this.#members.map(({ closed }) => closed));
  }
}
