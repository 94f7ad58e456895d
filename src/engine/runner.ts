// Runs steps: one model on one device, its KV pools, step block and recordings. Takes batches of rows of any sequences; knows nothing of text.
import { BaoError, DisposedError, UsageError } from "../errors.ts";
import type { GgufFile } from "../gguf/index.ts";
import { PageAllocator } from "../kv/pages.ts";
import { SequencePages, type KvStore, type PageDelta } from "../kv/sequence.ts";
import { Activations } from "../model/activations.ts";
import { kvKinds, type ModelConfig } from "../model/config.ts";
import { planRun, poolPages, type RunPlan } from "../model/estimate.ts";
import { recordForward, type GraphHooks } from "../model/graph.ts";
import { DeviceWeights } from "../model/loader.ts";
import { Recorder, UnfusedRecorder } from "../model/recorder.ts";
import { familyOf } from "../model/registry.ts";
import type { ModelWeights } from "../model/weights.ts";
import { Device, KvPool, StepBlock, Stream, type DeviceOptions, type StepSlot, type View } from "../native/objects.ts";
import { BAO } from "../native/symbols.ts";
import { MAX_BIAS, readResult, writeSampler, type Drawn, type Sampling } from "../sample/params.ts";
import { StepwiseForward, type OpReport } from "./stepwise.ts";

const SLOTS = 3;
const WAIT_MS = 20;
/** Messages, timers and signals of this thread wait no longer than this plus one step or WAIT_MS. */
const TURN_NS = 5e6;
/** Ids of a sequence that penalties look at. */
const HISTORY = 64;

export interface RunnerOptions {
  device?: DeviceOptions;
  plan?: Partial<RunPlan>;
  /** Every fused op as its definition in plain ops. */
  unfused?: boolean;
  /** Keep the residual stream after every layer: `Runner.hidden`. Needs outputs = chunk on models with shared KV. */
  keepHidden?: boolean;
  /** Called after every op with its outputs; slow. */
  onOp?: (report: OpReport) => void;
}

/** A sequence's place on the device. Made by `Runner.open`. */
export interface Sequence {
  readonly slot: number;
  readonly pages: SequencePages;
  /** All token ids whose KV is (or is about to be) in the cache. */
  readonly ids: number[];
}

/** Rows of one sequence in a batch: explicit ids (prefill), or "next": the id that the last step drew (decode). */
export interface BatchEntry {
  readonly sequence: Sequence;
  readonly ids: ArrayLike<number> | "next";
  /** Which of these rows want logits. */
  readonly logits: "none" | "last" | "all";
  /** Draw a token from the last row's logits. */
  readonly sampling?: Sampling;
}

/** What a step gave: one item an entry. */
export interface StepResult {
  /** First output row of the entry (-1 = none), for `Runner.logits`. */
  readonly outputRow: number;
  readonly drawn?: Drawn;
}

export class Runner implements Disposable {
  readonly config: ModelConfig;
  readonly plan: RunPlan;
  readonly device: Device;
  readonly weights: DeviceWeights;
  /** Tensors of the file that the graph does not use. */
  readonly unused: string[];
  readonly #stores: KvStore[];
  readonly #pools: KvPool[];
  readonly #step: StepBlock;
  readonly #rows: Activations;
  readonly #outputs: Activations;
  readonly #hidden: { rows: Activations; views: View[] } | undefined;
  readonly #forward: Stream;
  readonly #sample: Stream;
  readonly #stepwise: StepwiseForward | undefined;
  readonly #logits: View;
  readonly #freeSlots: number[];
  #serial = 0;
  #slot = 0;
  #disposed = false;
  #running = false;
  /** When this thread's event loop last had a turn. */
  #turn = 0;
  #last: Promise<void> = Promise.resolve();

  constructor(readonly file: GgufFile, options: RunnerOptions = {}) {
    const family = familyOf(file);
    this.config = family.configure(file);
    this.plan = planRun(this.config, options.plan);
    const { config, plan } = this;
    if (plan.context > config.contextLength) {
      throw new UsageError("context_too_large", `A context of ${plan.context} tokens was asked for; the model is trained for ${config.contextLength}`, `Use --ctx ${config.contextLength} or less.`);
    }
    const stack = new DisposableStack();
    try {
      this.device = stack.use(new Device(options.device));
      this.weights = stack.use(new DeviceWeights(this.device, file));
      const weights: ModelWeights = family.weights(config, this.weights);
      this.weights.check.finish();
      this.unused = this.weights.check.unused();

      const kinds = kvKinds(config);
      this.#pools = kinds.map((kind) => stack.use(new KvPool(this.device, { table: kind.table, layers: kind.layers.length, kvHeads: kind.kvHeads, headDim: kind.headDim, type: plan.kvType, maxPages: poolPages(kind, plan) })));
      this.#stores = kinds.map((kind, i): KvStore => {
        const pool = this.#pools[i]!;
        return { kind, allocator: new PageAllocator(poolPages(kind, plan), (pages) => pool.commit(pages)), copyPage: (dst, src, tokens) => pool.copyPage(dst, src, tokens) };
      });
      const pages = [0, 0, 0, 0];
      for (const kind of kinds) pages[kind.table] = Math.ceil(plan.context / BAO.KV_PAGE_TOKENS);
      this.#step = stack.use(new StepBlock(this.device, {
        slots: SLOTS, maxRows: plan.chunk, maxOutputs: plan.outputs, maxSequences: plan.sequences, vocabulary: config.vocabulary, maxBias: MAX_BIAS * plan.sequences, pages,
      }));
      this.#rows = stack.use(new Activations(this.device, "step", plan.chunk));
      this.#outputs = stack.use(new Activations(this.device, "output", plan.outputs));
      this.#outputs.reserve("logits", config.vocabulary, true);

      const hiddenViews: View[] = [];
      const hiddenRows = options.keepHidden ? stack.use(new Activations(this.device, "step", plan.chunk)) : undefined;
      this.#hidden = hiddenRows && { rows: hiddenRows, views: hiddenViews };
      const input = { config, weights, pools: this.#pools, step: this.#rows, output: this.#outputs };
      const recorder = (stream: Stream): Recorder => options.unfused
        ? new UnfusedRecorder(stream, (name, like, d1, d2) => (like.rowsOf === "step" ? this.#rows : this.#outputs).view(`unfused_${name}`, d1, d2))
        : new Recorder(stream);

      this.#forward = stack.use(new Stream(this.device, this.#step));
      let logits!: View;
      if (options.onOp) {
        this.#stepwise = stack.use(new StepwiseForward(this.device, this.#step, recorder, options.onOp));
        const hooks: GraphHooks = { layer: (l) => this.#stepwise!.enter(l) };
        logits = recordForward(this.#stepwise.recorder, { ...input, hooks });
      } else {
        this.#forward.record(() => {
          const ops = recorder(this.#forward);
          const hooks: GraphHooks = hiddenRows === undefined ? {} : {
            hidden: (index, view) => {
              // Tail rows are output rows; with every row an output, as keepHidden asks, they are the same rows in the same order.
              const set = view.rowsOf === "step" ? hiddenRows : this.#outputs;
              const copy = set.view(`hidden${index}`, 1, config.hidden);
              ops.copy(copy, view);
              hiddenViews[index] = copy;
            },
          };
          logits = recordForward(ops, { ...input, hooks });
        });
      }
      this.#logits = logits;
      this.#sample = stack.use(new Stream(this.device, this.#step));
      this.#sample.record(() => {
        const ops = new Recorder(this.#sample);
        ops.logitsProcess(logits, undefined);
        ops.logprobs(logits);
        ops.sample(logits);
      });
      this.#freeSlots = Array.from({ length: plan.sequences }, (_, i) => plan.sequences - 1 - i);
      this.#resources = stack.move();
    } catch (e) {
      stack.dispose();
      throw e;
    }
  }
  readonly #resources: DisposableStack;

  /** A new, empty sequence. Throws UsageError when `plan.sequences` are open. */
  open(): Sequence {
    const slot = this.#freeSlots.pop();
    if (slot === undefined) throw new UsageError("too_many_sequences", `${this.plan.sequences} sequences are open already`, "Open the model for more sequences, or close one.");
    return { slot, pages: new SequencePages(this.#stores, this.plan.context), ids: [] };
  }
  close(sequence: Sequence): void {
    sequence.pages.release();
    this.#freeSlots.push(sequence.slot);
  }

  /**
   * Runs one step over the entries (at most one an open sequence; rows <= plan.chunk; outputs <= plan.outputs) and waits for it, yielding to the
   * event loop every 20 ms, and between short steps. When `cancelled` says so, the step ends early, no sequence moves on, and "cancelled" is returned.
   * A batch that cannot run is refused whole (UsageError `context_length_exceeded`, ResourceError `kv_full`, BaoError): no sequence has changed then.
   */
  async run(entries: readonly BatchEntry[], cancelled: () => boolean = () => false): Promise<StepResult[] | "cancelled"> {
    // Steps of several callers queue up: each takes its turn, in order of arrival.
    const before = this.#last;
    let done!: () => void;
    this.#last = new Promise((resolve) => { done = resolve; });
    await before;
    this.#running = true;
    try {
      if (this.#disposed) throw new DisposedError("Runner");
      // Steps shorter than WAIT_MS would go on in microtasks for ever: no abort, timer or second request would be heard.
      if (Bun.nanoseconds() - this.#turn > TURN_NS) await this.#yield();
      if (cancelled()) return "cancelled";
      return await this.#run(entries, cancelled);
    } finally {
      this.#running = false;
      done();
    }
  }
  /** Resolves when no step is running or queued. */
  async idle(): Promise<void> {
    for (let last = this.#last; ; last = this.#last) {
      await last;
      if (last === this.#last) return;
    }
  }

  async #run(entries: readonly BatchEntry[], cancelled: () => boolean): Promise<StepResult[] | "cancelled"> {
    const slotNumber = this.#slot, slot = this.#step.slots[slotNumber]!;
    this.#slot = (slotNumber + 1) % SLOTS;
    this.#check(entries);
    for (const e of entries) e.sequence.pages.reserve(rowsOf(e));
    const deltas = entries.map((e) => e.sequence.pages.takeDeltas());
    try {
      return await this.#submit(slotNumber, slot, entries, deltas, cancelled);
    } catch (e) {
      // Whether or not the device has taken them, sending them again is right.
      entries.forEach((entry, i) => entry.sequence.pages.returnDeltas(deltas[i]!));
      throw e;
    }
  }

  async #submit(slotNumber: number, slot: StepSlot, entries: readonly BatchEntry[], deltas: readonly PageDelta[][], cancelled: () => boolean): Promise<StepResult[] | "cancelled"> {
    const results = this.#fill(slot, entries, deltas);
    const draws = entries.some((e) => e.sampling);
    const streams = this.#stepwise ? this.#stepwise.streams : [this.#forward];
    let ended: "done" | "cancelled" = "done";
    for (const stream of [...streams, ...(draws ? [this.#sample] : [])]) {
      try {
        stream.submit(slotNumber);
      } catch (e) {
        // The forward pass may be under way already: the slot is its own until it ends.
        if (stream === this.#sample && !this.#stepwise) await this.#wait(this.#forward, slotNumber, slot, () => true);
        throw e;
      }
      // Stepwise diagnostics look at each op's outputs before the next one overwrites them.
      if (this.#stepwise) {
        ended = await this.#wait(stream, slotNumber, slot, cancelled);
        if (ended === "cancelled") break;
        this.#stepwise.inspect(stream, slot.header[BAO.HEADER_ROWS]!, slot.header[BAO.HEADER_OUTPUTS]!);
      }
    }
    if (!this.#stepwise) {
      ended = await this.#wait(this.#forward, slotNumber, slot, cancelled);
      if (draws) {
        const sampled = await this.#wait(this.#sample, slotNumber, slot, cancelled);
        if (sampled === "cancelled") ended = "cancelled";
      }
    }
    if (ended === "cancelled") {
      for (const e of entries) if (e.ids !== "next") e.sequence.ids.length = e.sequence.pages.length; else e.sequence.ids.length = e.sequence.pages.length + 1;
      return "cancelled";
    }
    return entries.map((e, i): StepResult => {
      e.sequence.pages.commit(rowsOf(e));
      const first = results[i]!.first, last = results[i]!.last;
      if (!e.sampling) return { outputRow: first };
      const drawn = readResult(slot, last, e.sampling.logprobs >= 0);
      e.sequence.ids.push(drawn.id);
      return { outputRow: first, drawn };
    });
  }

  async #wait(stream: Stream, slotNumber: number, slot: StepSlot, cancelled: () => boolean): Promise<"done" | "cancelled"> {
    for (;;) {
      const state = stream.wait(slotNumber, WAIT_MS);
      if (state !== "pending") return state;
      await this.#yield();
      if (cancelled()) slot.header[BAO.HEADER_CANCEL] = slot.header[BAO.HEADER_SERIAL]!;
    }
  }

  async #yield(): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve));
    this.#turn = Bun.nanoseconds();
  }

  /** Throws when a batch cannot run, before anything has changed. */
  #check(entries: readonly BatchEntry[]): void {
    const { context, chunk, outputs: maxOutputs } = this.plan, seen = new Set<Sequence>();
    let rows = 0, outputs = 0;
    for (const e of entries) {
      const { pages, ids } = e.sequence, count = rowsOf(e);
      if (count === 0) throw new BaoError("empty_batch", "An entry of a batch has no ids");
      if (seen.has(e.sequence)) throw new BaoError("bad_batch", "A sequence has two entries in one batch");
      seen.add(e.sequence);
      if (e.ids === "next" && ids.length <= pages.length) throw new BaoError("bad_batch", "No token was drawn that could run next");
      if (e.sampling && e.logits === "none") throw new BaoError("bad_batch", "A token cannot be drawn without logits");
      if (pages.length + count > context) {
        throw new UsageError("context_length_exceeded", `${pages.length + count} tokens do not fit the context of ${context}`, "Use a larger --ctx, or a shorter prompt.");
      }
      rows += count;
      outputs += e.logits === "all" ? count : e.logits === "last" ? 1 : 0;
    }
    if (rows > chunk) throw new BaoError("batch_too_large", `A step takes ${chunk} rows`);
    if (outputs > maxOutputs) throw new BaoError("batch_too_large", `A step takes ${maxOutputs} rows with logits`);
  }

  /** Fills a slot; gives each entry's first and last output row (-1 = none). */
  #fill(slot: StepSlot, entries: readonly BatchEntry[], deltas: readonly (readonly PageDelta[])[]): { first: number; last: number }[] {
    let rows = 0, outputs = 0, pageDeltas = 0, sequenceDeltas = 0, bias = 0;
    const places = entries.map((e, n) => {
      const { sequence } = e, start = sequence.pages.length, count = rowsOf(e);
      for (const d of deltas[n]!) slot.pageDelta.set([d.table, sequence.slot, d.index, d.page], pageDeltas++ * 4);
      if (e.ids !== "next") {
        sequence.ids.length = start; // ids drawn but not yet run are replaced by explicit ones
        for (let i = 0; i < count; i++) sequence.ids.push(e.ids[i]!);
      }
      let first = -1;
      for (let i = 0; i < count; i++) {
        slot.rowSequence[rows] = sequence.slot;
        slot.rowId[rows] = e.ids === "next" ? -1 : e.ids[i]!;
        slot.rowPosition[rows] = e.ids === "next" ? -1 : start + i;
        if (e.logits === "all" || (e.logits === "last" && i === count - 1)) {
          if (first < 0) first = outputs;
          const last = i === count - 1;
          bias = writeSampler(slot, outputs, last && e.sampling ? e.sampling : GREEDY, bias, !(last && e.sampling));
          slot.outputRow[outputs++] = rows;
        }
        rows++;
      }
      if (e.sampling && e.ids !== "next") {
        // The device learns where the sequence stands; the draw itself adds one to the length.
        const recent = sequence.ids.slice(-HISTORY), at = sequenceDeltas++ * (4 + HISTORY);
        slot.sequenceDelta.set([sequence.slot, start + count - 1, 0, recent.length, ...recent], at);
      }
      return { first, last: first < 0 ? -1 : outputs - 1 };
    });
    const h = slot.header;
    h[BAO.HEADER_ROWS] = rows;
    h[BAO.HEADER_OUTPUTS] = outputs;
    h[BAO.HEADER_PAGE_DELTAS] = pageDeltas;
    h[BAO.HEADER_SEQUENCE_DELTAS] = sequenceDeltas;
    this.#serial = this.#serial >= 0x7ffffff0 ? 1 : this.#serial + 1;
    h[BAO.HEADER_SERIAL] = this.#serial;
    h[BAO.HEADER_CANCEL] = 0;
    return places;
  }

  /** Copies logits of output rows [first, first + rows) of the last step: [rows, vocabulary]. After a draw they are the processed ones. */
  logits(first: number, rows: number): Float32Array {
    const all = new Float32Array(this.#outputs.buffer("logits").memory);
    return all.slice(first * this.config.vocabulary, (first + rows) * this.config.vocabulary);
  }
  /** Residual streams of the last step's rows (keepHidden): one [rows, hidden] a layer, then the normed last one. */
  hidden(rows: number): Float32Array[] {
    if (!this.#hidden) throw new BaoError("no_hidden", "The runner was opened without keepHidden");
    return this.#hidden.views.map((v) => v.readF32(rows));
  }
  /** Time of each op kind over all steps since `profile(true)`, in nanoseconds; sampling included. */
  opTimes(): Map<number, { count: number; nanoseconds: number }> {
    const times = new Map<number, { count: number; nanoseconds: number }>(), { k } = this.device;
    for (const s of [this.#forward, this.#sample]) {
      for (let i = 0; i < k.streamOps(s.handle); i++) {
        const kind = k.streamOp(s.handle, i), t = times.get(kind) ?? { count: 0, nanoseconds: 0 };
        t.count++;
        t.nanoseconds += k.streamTime(s.handle, i);
        times.set(kind, t);
      }
    }
    return times;
  }
  profile(on: boolean): void { for (const s of [this.#forward, this.#sample]) this.device.k.streamProfile(s.handle, on ? 1 : 0); }
  /** Ops of one forward step. */
  get opCount(): number { return this.device.k.streamOps(this.#forward.handle); }
  get kvPagesUsed(): number { return this.#stores.reduce((n, s) => n + s.allocator.used, 0); }

  dispose(): void {
    if (this.#disposed) return;
    if (this.#running) throw new BaoError("runner_busy", "A step is running", "Await idle() before dispose().");
    this.#disposed = true;
    this.#resources.dispose();
  }
  [Symbol.dispose](): void { this.dispose(); }
}

const rowsOf = (e: BatchEntry): number => (e.ids === "next" ? 1 : e.ids.length);
const GREEDY: Sampling = { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, seed: 0, logitBias: new Map(), logprobs: -1 };
