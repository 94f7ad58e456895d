// What a model has recorded on its device: the forward pass, its variants, and the draws. Owns activations and streams; knows nothing of steps under way.
import { BaoError } from "../errors.ts";
import { Activations } from "../model/activations.ts";
import type { ModelConfig } from "../model/config.ts";
import type { RunPlan } from "../model/estimate.ts";
import { recordForward, type GraphHooks, type GraphInput } from "../model/graph.ts";
import { Recorder, UnfusedRecorder } from "../model/recorder.ts";
import type { ModelWeights } from "../model/weights.ts";
import { Stream, type Device, type KvPool, type StepBlock, type View } from "../native/objects.ts";
import { StepwiseForward, type OpReport } from "./stepwise.ts";

export interface RecordingOptions {
  /** Every fused op as its definition in plain ops. */
  unfused?: boolean;
  /** Keep the residual stream after every layer: `Runner.hidden`. Needs outputs = chunk on models with shared KV. */
  keepHidden?: boolean;
  /** Called after every op with its outputs; slow. */
  onOp?: (report: OpReport) => void;
}

export class Recordings implements Disposable {
  /** Rows to logits. Empty when `stepwise` runs instead. */
  readonly forward: Stream;
  readonly stepwise: StepwiseForward | undefined;
  /** Logits to tokens. */
  readonly sample: Stream;
  readonly #owned: DisposableStack;
  readonly #rows: Activations;
  readonly #outputs: Activations;
  readonly #graph: GraphInput;
  readonly #logits: View;
  readonly #hidden: View[] | undefined;
  #masked: { readonly stream: Stream; readonly words: Uint32Array } | undefined;
  #pooled: { readonly stream: Stream; readonly sums: View } | undefined;

  constructor(private readonly device: Device, private readonly step: StepBlock, private readonly plan: RunPlan, config: ModelConfig, weights: ModelWeights, pools: readonly KvPool[], private readonly options: RecordingOptions) {
    using stack = new DisposableStack();
    this.#rows = stack.use(new Activations(device, "step", plan.chunk));
    this.#outputs = stack.use(new Activations(device, "output", plan.outputs));
    const input = this.#graph = { config, weights, pools, step: this.#rows, output: this.#outputs };
    this.forward = stack.use(new Stream(device, step));
    if (options.onOp) {
      const stepwise = this.stepwise = stack.use(new StepwiseForward(device, step, (stream) => this.#recorder(stream), options.onOp));
      this.#logits = recordForward(stepwise.recorder, { ...input, hooks: { layer: (l) => stepwise.enter(l) } });
    } else {
      const kept = options.keepHidden ? stack.use(new Activations(device, "step", plan.chunk)) : undefined, hidden: View[] = [];
      this.#hidden = kept && hidden;
      let logits!: View;
      this.forward.record(() => {
        const ops = this.#recorder(this.forward);
        const hooks: GraphHooks = kept === undefined ? {} : {
          hidden: (index, view) => {
            // Tail rows are output rows; with every row an output, as keepHidden asks, they are the same rows in the same order.
            const copy = (view.rowsOf === "step" ? kept : this.#outputs).view(`hidden${index}`, 1, config.hidden);
            ops.copy(copy, view);
            hidden[index] = copy;
          },
        };
        logits = recordForward(ops, { ...input, hooks });
      });
      this.#logits = logits;
    }
    this.sample = stack.use(this.#recordSample(undefined));
    this.#owned = stack.move();
  }

  #recorder(stream: Stream): Recorder {
    if (!this.options.unfused) return new Recorder(stream);
    return new UnfusedRecorder(stream, (name, like, d1, d2) => (like.rowsOf === "step" ? this.#rows : this.#outputs).view(`unfused_${name}`, d1, d2));
  }
  #recordSample(mask: View | undefined): Stream {
    const stream = new Stream(this.device, this.step), ops = new Recorder(stream);
    stream.record(() => {
      ops.logitsProcess(this.#logits, mask);
      ops.logprobs(this.#logits);
      ops.sample(this.#logits);
    });
    return stream;
  }
  /** Logits to tokens under masks: one of ceil(vocabulary / 32) `words` an output row. Recorded when the first one comes. */
  get masked(): { readonly stream: Stream; readonly words: Uint32Array } {
    if (this.#masked) return this.#masked;
    const width = Math.ceil(this.#graph.config.vocabulary / 32);
    this.#outputs.reserve("mask", width, true);
    const stream = this.#owned.use(this.#recordSample(this.#outputs.view("mask", 1, width, "i32")));
    return (this.#masked = { stream, words: new Uint32Array(this.#outputs.buffer("mask").memory) });
  }
  /** Rows to sums of hidden states, (sequences, 1, hidden). Recorded when the first one is asked for. */
  get pooled(): { readonly stream: Stream; readonly sums: View } {
    if (this.#pooled) return this.#pooled;
    const { hidden } = this.#graph.config, { sequences } = this.plan;
    const sums = this.#owned.use(this.device.buffer(sequences * hidden * 4)).view("fixed", sequences, 1, hidden), stream = this.#owned.use(new Stream(this.device, this.step));
    stream.record(() => { recordForward(this.#recorder(stream), { ...this.#graph, pooled: sums }); });
    return (this.#pooled = { stream, sums });
  }

  /** Copies logits of output rows [first, first + rows) of the last step: [rows, vocabulary]. After a draw they are the processed ones. */
  logits(first: number, rows: number): Float32Array {
    // In device memory: a GPU's draw passes over them several times, and would go through the bus each time.
    const { vocabulary } = this.#graph.config, found = new Float32Array(new ArrayBuffer(rows * vocabulary * 4));
    this.#outputs.buffer("logits").read(found, first * vocabulary * 4);
    return found;
  }
  /** Residual streams of the last step's rows (keepHidden): one [rows, hidden] a layer, then the normed last one. */
  hidden(rows: number): Float32Array[] {
    if (!this.#hidden) throw new BaoError("no_hidden", "The runner was opened without keepHidden");
    return this.#hidden.map((v) => v.readF32(rows));
  }

  get #streams(): Stream[] { return [this.forward, this.sample, ...(this.#masked ? [this.#masked.stream] : []), ...(this.#pooled ? [this.#pooled.stream] : [])]; }
  profile(on: boolean): void { for (const s of this.#streams) this.device.k.streamProfile(s.handle, on ? 1 : 0); }
  /** Time of each op kind over all steps since `profile(true)`, in nanoseconds; sampling included. */
  opTimes(): Map<number, { count: number; nanoseconds: number }> {
    const times = new Map<number, { count: number; nanoseconds: number }>(), { k } = this.device;
    for (const s of this.#streams) {
      for (let i = 0; i < k.streamOps(s.handle); i++) {
        const kind = k.streamOp(s.handle, i), t = times.get(kind) ?? { count: 0, nanoseconds: 0 };
        t.count++;
        t.nanoseconds += k.streamTime(s.handle, i);
        times.set(kind, t);
      }
    }
    return times;
  }
  /** Ops of one forward step. */
  get opCount(): number { return this.device.k.streamOps(this.forward.handle); }

  dispose(): void { this.#owned.dispose(); }
  [Symbol.dispose](): void { this.dispose(); }
}
