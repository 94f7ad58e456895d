// Diagnostics: every op as a recording of its own, so that its outputs can be looked at before the next op runs. Slow by design.
import { Stream, type Device, type StepBlock, type View } from "../native/objects.ts";
import type { Recorder } from "../model/recorder.ts";

/** One op of a diagnosed step and its outputs, [rows, columns] each. */
export interface OpReport { readonly layer: number; readonly op: string; readonly outputs: { readonly view: View; readonly values: Float32Array }[] }

type Arguments = readonly unknown[];
const isView = (x: unknown): x is View => typeof x === "object" && x !== null && "rowStrideBytes" in x;
const views = (...xs: unknown[]): View[] => xs.flat().filter(isView);
/** Which arguments an op writes, where it is not just the first one. */
const WRITES: Record<string, (a: Arguments) => View[]> = {
  addNorm: (a) => views(a[0], a[1]), normAddNorms: (a) => views(a[0], a[1]), moeMerge: (a) => views(a[0], a[1]),
  topkSoftmax: (a) => views(a[1]), router: (a) => views(a[1]), kvAppend: () => [], logprobs: () => [], sample: () => [],
};

export class StepwiseForward implements Disposable {
  readonly streams: Stream[] = [];
  readonly #ops: { layer: number; op: string; writes: View[] }[] = [];
  /** Stands in for a Recorder: each call becomes a stream. */
  readonly recorder: Recorder;
  #layer = -1;

  constructor(device: Device, step: StepBlock, make: (stream: Stream) => Recorder, private readonly report: (r: OpReport) => void) {
    const record = (op: string, args: Arguments): void => {
      const stream = new Stream(device, step);
      this.streams.push(stream);
      stream.record(() => { (make(stream) as unknown as Record<string, (...a: Arguments) => void>)[op]!(...args); });
      this.#ops.push({ layer: this.#layer, op, writes: (WRITES[op] ?? ((a: Arguments) => views(a[0])))(args) });
    };
    this.recorder = new Proxy({} as Recorder, { get: (_, op) => (...args: unknown[]) => record(String(op), args) });
  }
  enter(layer: number): void { this.#layer = layer; }

  /** Runs a filled slot op by op, and reports each op's outputs before the next one overwrites them. Blocks this thread. */
  run(slot: number, rows: number, outputs: number): void {
    this.streams.forEach((stream, i) => {
      stream.submit(slot);
      while (stream.wait(slot, 1000) === "pending");
      const { layer, op, writes } = this.#ops[i]!;
      this.report({
        layer, op,
        outputs: writes.filter((v) => v.dtype === "f32").map((view) => ({ view, values: view.readF32(view.rowsOf === "step" ? rows : outputs) })),
      });
    });
  }
  dispose(): void { for (const s of this.streams) s.dispose(); }
  [Symbol.dispose](): void { this.dispose(); }
}
