// Runs steps: one model on one device, its KV pools, step block and recordings. Takes batches of rows of any sequences; knows nothing of text.
import { BaoError, DisposedError, UsageError } from "../errors.ts";
import type { GgufFile } from "../gguf/index.ts";
import { PageAllocator } from "../kv/pages.ts";
import { SequencePages, type KvStore } from "../kv/sequence.ts";
import { kvKinds, type ModelConfig } from "../model/config.ts";
import { planRun, poolPages, type RunPlan } from "../model/estimate.ts";
import { DeviceWeights } from "../model/loader.ts";
import { familyOf } from "../model/registry.ts";
import type { ModelWeights } from "../model/weights.ts";
import { Device, KvPool, StepBlock, Stream, type DeviceOptions } from "../native/objects.ts";
import { BAO } from "../native/symbols.ts";
import { MAX_BIAS, readResult, type Drawn } from "../sample/params.ts";
import { checkFits } from "./fits.ts";
import { fillSlot, rowsOf, type BatchEntry, type Place, type Sequence } from "./fill.ts";
import { Recordings, type RecordingOptions } from "./recordings.ts";

export type { BatchEntry, Sequence } from "./fill.ts";

const SLOTS = 3;
/** Messages, timers and signals of this thread wait no longer than this. */
export const WAIT_MS = 20;

export interface RunnerOptions extends RecordingOptions {
  device?: DeviceOptions;
  plan?: Partial<RunPlan>;
  /** Steps of the same sequences that may be under way at once. Default: 1 on the CPU, where a step in vain takes time from others; 2 elsewhere. */
  depth?: 1 | 2;
}

/** What a step gave: one item an entry. */
export interface StepResult {
  /** First output row of the entry (-1 = none), for `Runner.logits`. */
  readonly outputRow: number;
  readonly drawn?: Drawn;
}

/** A step under way. Only the Runner that made it looks inside. */
export interface Step {
  readonly entries: readonly BatchEntry[];
  /** Its draws wait for `Runner.draw`. */
  readonly undrawn: boolean;
}

interface StepState extends Step {
  readonly number: number;
  readonly serial: number;
  readonly places: readonly Place[];
  /** Submits that have not been waited for. */
  readonly owed: Stream[];
  /** Entries whose outcome nobody wants: their sequences have moved on without them. */
  readonly dropped: Set<Sequence>;
  undrawn: boolean;
  cancelled: boolean;
  error: unknown;
}

export class Runner implements Disposable {
  readonly config: ModelConfig;
  readonly plan: RunPlan;
  readonly device: Device;
  readonly weights: DeviceWeights;
  /** Tensors of the file that the graph does not use. */
  readonly unused: string[];
  /** One a KV kind. */
  readonly stores: readonly KvStore[];
  /** What can be submitted, and what the last step left: logits, hidden states, times. */
  readonly recordings: Recordings;
  readonly #step: StepBlock;
  readonly #freeSlots: number[];
  /** Steps under way, by slot. */
  readonly #steps: (StepState | undefined)[] = new Array(SLOTS).fill(undefined);
  readonly depth: number;
  #serial = 0;
  #disposed = false;

  constructor(readonly file: GgufFile, options: RunnerOptions = {}) {
    const family = familyOf(file);
    this.config = family.configure(file);
    this.plan = planRun(this.config, options.plan);
    this.depth = options.depth ?? ((options.device?.backend ?? "cpu") === "cpu" || options.onOp ? 1 : 2);
    const { config, plan } = this;
    if (plan.context > config.contextLength) {
      throw new UsageError("context_too_large", `A context of ${plan.context} tokens was asked for; the model is trained for ${config.contextLength}`, `Use a context of ${config.contextLength} or less (--ctx ${config.contextLength}).`);
    }
    const stack = new DisposableStack();
    try {
      this.device = stack.use(new Device(options.device));
      checkFits(this.device, file, config, plan);
      this.weights = stack.use(new DeviceWeights(this.device, file));
      const weights: ModelWeights = family.weights(config, this.weights);
      this.weights.check.finish();
      this.unused = this.weights.check.unused();

      const kinds = kvKinds(config);
      const pools = kinds.map((kind) => stack.use(new KvPool(this.device, { table: kind.table, layers: kind.layers.length, kvHeads: kind.kvHeads, headDim: kind.headDim, type: plan.kvType, maxPages: poolPages(kind, plan) })));
      this.stores = kinds.map((kind, i): KvStore => {
        const pool = pools[i]!;
        return {
          kind, allocator: new PageAllocator(poolPages(kind, plan), (pages) => pool.commit(pages)), copyPage: (dst, src, tokens) => pool.copyPage(dst, src, tokens),
          pageBytes: pool.pageBytes, readPage: (page, into) => pool.readPage(page, into), writePage: (page, from) => pool.writePage(page, from),
        };
      });
      const pages = [0, 0, 0, 0];
      for (const kind of kinds) pages[kind.table] = Math.ceil(plan.context / BAO.KV_PAGE_TOKENS);
      this.#step = stack.use(new StepBlock(this.device, {
        slots: SLOTS, maxRows: plan.chunk, maxOutputs: plan.outputs, maxSequences: plan.sequences, vocabulary: config.vocabulary, maxBias: MAX_BIAS * plan.sequences, pages,
      }));
      this.recordings = stack.use(new Recordings(this.device, this.#step, plan, config, weights, pools, options));
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
    return { slot, pages: new SequencePages(this.stores, this.plan.context), ids: [], pending: 0, stale: false };
  }
  close(sequence: Sequence): void {
    sequence.pages.release();
    this.#freeSlots.push(sequence.slot);
  }

  /**
   * Makes room for an entry's rows behind those that its sequence has under way, without which `submit` would do so itself. Throws UsageError
   * `context_length_exceeded`, ResourceError `kv_full` or `out_of_memory`; the sequence has not changed then.
   */
  reserve(e: BatchEntry): void {
    const { pages, pending } = e.sequence, tokens = pages.length + pending + rowsOf(e);
    if (tokens > this.plan.context) {
      throw new UsageError("context_length_exceeded", `${tokens} tokens do not fit the context of ${this.plan.context}`, "Use a larger context (--ctx), or a shorter prompt.");
    }
    pages.reserve(rowsOf(e), pending);
  }

  /**
   * Submits one step over the entries (at most one an open sequence; rows <= plan.chunk; outputs <= plan.outputs) and returns at once. It runs after
   * all steps submitted before, of which the last may not be undrawn; SLOTS steps can be under way. A decode row ("next") may follow a draw whose
   * step has not ended: the device knows the id. A batch that cannot run is refused whole (errors of `reserve`, BaoError): no sequence has changed then.
   */
  submit(entries: readonly BatchEntry[]): Step {
    if (this.#disposed) throw new DisposedError("Runner");
    const number = this.#steps.indexOf(undefined);
    if (number < 0 || this.#steps.some((s) => s?.undrawn)) throw new BaoError("runner_busy", "Too many steps are under way", "Collect one first.");
    this.#check(entries);
    for (const e of entries) this.reserve(e);
    const deltas = entries.map((e) => e.sequence.pages.takeDeltas()), known = entries.map((e) => e.sequence.ids.slice(e.sequence.pages.length));
    const slot = this.#step.slots[number]!, draws = entries.some((e) => e.sampling);
    this.#serial = this.#serial >= 0x7ffffff0 ? 1 : this.#serial + 1;
    const step: StepState = {
      entries, number, serial: this.#serial, places: fillSlot(slot, this.#serial, entries, deltas), owed: [], dropped: new Set(),
      undrawn: draws && entries.some((e) => e.masked), cancelled: false, error: undefined,
    };
    try {
      if (this.recordings.stepwise) this.recordings.stepwise.run(number, slot.header[BAO.HEADER_ROWS]!, slot.header[BAO.HEADER_OUTPUTS]!);
      else this.#send(step, entries[0]?.pool ? this.recordings.pooled.stream : this.recordings.forward);
    } catch (e) {
      entries.forEach(({ sequence }, i) => {
        sequence.ids.splice(sequence.pages.length, Infinity, ...known[i]!);
        // Whether or not the device has taken them, sending them again is right.
        sequence.pages.returnDeltas(deltas[i]!);
      });
      throw e;
    }
    this.#steps[number] = step;
    for (const e of entries) {
      e.sequence.pending += rowsOf(e);
      if (e.sampling) e.sequence.stale = false;
    }
    if (draws && !step.undrawn) this.#submitDraws(step, this.recordings.sample);
    return step;
  }

  /** Lets an undrawn step draw: `masks` has one item an entry, the allowed ids as bits (see TokenMask), undefined = all of them. */
  draw(step: Step, masks: readonly (Uint32Array | undefined)[]): void {
    const s = step as StepState, width = Math.ceil(this.config.vocabulary / 32), { sampler } = this.#step.slots[s.number]!;
    s.undrawn = false;
    let stream = this.recordings.sample;
    masks.forEach((mask, i) => {
      const row = s.places[i]!.last;
      if (!mask || row < 0) return;
      const { masked } = this.recordings;
      masked.words.set(mask, row * width);
      sampler[row * BAO.SAMPLER_WORDS + BAO.SAMPLER_FLAGS]! |= BAO.SAMPLE_MASK;
      ({ stream } = masked);
    });
    this.#submitDraws(s, stream);
  }
  #submitDraws(s: StepState, stream: Stream): void {
    try {
      this.#send(s, stream);
    } catch (e) {
      s.error = e;
      this.cancel(s);
    }
  }
  #send(s: StepState, stream: Stream): void {
    stream.submit(s.number);
    s.owed.push(stream);
  }

  /** Waits for a step, at most `timeoutMs`; true when it has ended. On the CPU this thread works meanwhile. */
  wait(step: Step, timeoutMs: number): boolean {
    const s = step as StepState;
    if (s.undrawn) throw new BaoError("runner_busy", "The step's draws have not been submitted");
    while (s.owed.length > 0) {
      try {
        const state = s.owed[0]!.wait(s.number, timeoutMs);
        if (state === "pending") return false;
        if (state === "cancelled") s.cancelled = true;
      } catch (e) {
        s.error ??= e;
      }
      s.owed.shift();
    }
    return true;
  }

  /** Asks the device to end a step early; it may be too late. */
  cancel(step: Step): void { this.#step.slots[(step as StepState).number]!.header[BAO.HEADER_CANCEL] = (step as StepState).serial; }

  /** Takes a sequence out of all steps under way: it stands where its collected steps left it, as if these had never been. */
  drop(sequence: Sequence): void {
    const { pages, ids } = sequence;
    let drawn = 1;
    for (const s of this.#steps) {
      const entry = s && !s.dropped.has(sequence) && s.entries.find((e) => e.sequence === sequence);
      if (!entry) continue;
      s.dropped.add(sequence);
      sequence.stale = true;
      // What a prompt's step replaced is gone; the id of a decode row stays, to be run again.
      if (entry.ids !== "next") drawn = 0;
    }
    sequence.pending = 0;
    pages.rewind(pages.length);
    ids.length = Math.min(ids.length, pages.length + drawn);
  }

  /**
   * The outcome of a step that has ended, the earliest one under way: its sequences move on, dropped ones apart. "cancelled": none has moved, and what
   * follows it under way is dropped. Throws what went wrong on the device; no sequence has moved then either.
   */
  collect(step: Step): StepResult[] | "cancelled" {
    const s = step as StepState, slot = this.#step.slots[s.number]!;
    if (s.cancelled || s.error !== undefined) for (const e of s.entries) if (!s.dropped.has(e.sequence)) this.drop(e.sequence);
    this.#steps[s.number] = undefined;
    if (s.error !== undefined) throw s.error;
    if (s.cancelled) return "cancelled";
    return s.entries.map((e, i): StepResult => {
      const { sequence } = e, { first, last } = s.places[i]!;
      if (s.dropped.has(sequence)) return { outputRow: -1 };
      sequence.pending -= rowsOf(e);
      sequence.pages.commit(rowsOf(e));
      if (!e.sampling) return { outputRow: first };
      const drawn = readResult(slot, last, e.sampling.logprobs >= 0);
      sequence.ids.push(drawn.id);
      return { outputRow: first, drawn };
    });
  }

  /** One step, submitted and waited for with turns of the event loop in between. When `cancelled` says so it ends early: see `collect`. */
  async run(entries: readonly BatchEntry[], cancelled: () => boolean = () => false): Promise<StepResult[] | "cancelled"> {
    // Steps shorter than WAIT_MS would go on in microtasks for ever: no abort, timer or second request would be heard.
    await turn();
    if (cancelled()) return "cancelled";
    const step = this.submit(entries);
    while (!this.wait(step, WAIT_MS)) {
      await turn();
      if (cancelled()) this.cancel(step);
    }
    return this.collect(step);
  }

  /** Throws when a batch cannot run, before anything has changed. */
  #check(entries: readonly BatchEntry[]): void {
    const { chunk, outputs: maxOutputs } = this.plan, seen = new Set<Sequence>();
    let rows = 0, outputs = 0;
    for (const e of entries) {
      const { pages, ids, pending } = e.sequence, count = rowsOf(e);
      if (count === 0) throw new BaoError("empty_batch", "An entry of a batch has no ids");
      if (seen.has(e.sequence)) throw new BaoError("bad_batch", "A sequence has two entries in one batch");
      seen.add(e.sequence);
      if (e.ids === "next" && pending === 0 && ids.length <= pages.length) throw new BaoError("bad_batch", "No token was drawn that could run next");
      if ((e.pool ?? false) !== (entries[0]!.pool ?? false) || (e.pool && e.logits !== "none")) throw new BaoError("bad_batch", "Hidden states and logits are steps of their own");
      if (e.sampling && e.logits === "none") throw new BaoError("bad_batch", "A token cannot be drawn without logits");
      rows += count;
      outputs += e.logits === "all" ? count : e.logits === "last" ? 1 : 0;
    }
    if (rows > chunk) throw new BaoError("batch_too_large", `A step takes ${chunk} rows`);
    if (outputs > maxOutputs) throw new BaoError("batch_too_large", `A step takes ${maxOutputs} rows with logits`);
  }

  /** Sum of the sequence's hidden states, [hidden], over all tokens from position 0 on, all run with `pool`. Waits for submitted steps. */
  pooled(sequence: Sequence): Float32Array {
    const { sums } = this.recordings.pooled, out = new Float32Array(new ArrayBuffer(this.config.hidden * 4));
    sums.buffer.read(out, sequence.slot * out.byteLength);
    return out;
  }
  /** See Recordings. */
  logits(first: number, rows: number): Float32Array { return this.recordings.logits(first, rows); }
  hidden(rows: number): Float32Array[] { return this.recordings.hidden(rows); }
  opTimes(): Map<number, { count: number; nanoseconds: number }> { return this.recordings.opTimes(); }
  profile(on: boolean): void { this.recordings.profile(on); }
  get opCount(): number { return this.recordings.opCount; }
  get kvPagesUsed(): number { return this.stores.reduce((n, s) => n + s.allocator.used, 0); }

  /** Ends what is under way, then frees everything. */
  dispose(): void {
    if (this.#disposed) return;
    for (const s of this.#steps) {
      if (!s) continue;
      s.undrawn = false;
      this.cancel(s);
      while (!this.wait(s, WAIT_MS));
    }
    this.#disposed = true;
    this.#resources.dispose();
  }
  [Symbol.dispose](): void { this.dispose(); }
}

/** A turn of this thread's event loop: messages, timers, signals. */
export const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));
