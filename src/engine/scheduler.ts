// The loop of a model: decode rows and prompt chunks of all its requests share steps. Knows sequences and tokens, nothing of text.
import { BaoError, DisposedError, UsageError } from "../errors.ts";
import type { Drawn, Sampling } from "../sample/params.ts";
import { rowsOf, type BatchEntry, type Sequence } from "./fill.ts";
import type { TokenMask } from "./mask.ts";
import { turn, WAIT_MS, type Runner, type Step, type StepResult } from "./runner.ts";

/**
 * Part of a step that prompts may take while others decode: an eighth of a chunk keeps the time between tokens low. On an H200, whose steps of 200 rows
 * take nearly as long as those of 450, a fourth is 1.8 times as fast for the prompt and costs the others a tenth (docs/speed.md).
 */
const SHARED = { cpu: 8, metal: 8, cuda: 4 } as const;

/** One request. Its callbacks run between steps and must return soon; what they throw ends the request. */
export interface Work {
  readonly sequence: Sequence;
  /** Prompt ids, run behind what the sequence holds. None: go on with the token that was drawn last. */
  readonly ids: readonly number[];
  /** How tokens are drawn after the prompt; undefined = the prompt is all. */
  readonly sampling?: Sampling | undefined;
  readonly mask?: TokenMask | undefined;
  /** Sums the prompt's hidden states (`Runner.pooled`): of an empty sequence, and without sampling. */
  readonly pool?: boolean | undefined;
  /** Tokens to draw at most. Default: until `onToken` says stop. */
  readonly limit?: number | undefined;
  /** Ends the request with its reason. */
  readonly signal?: AbortSignal | undefined;
  /** `done` prompt tokens are in the cache. */
  onPrefill?(done: number): void;
  /** A token was drawn; false ends the request. */
  onToken?(drawn: Drawn): boolean;
}

interface Job {
  readonly work: Work;
  /** Prompt ids that were submitted, and that are in the cache. */
  sent: number;
  done: number;
  /** Tokens drawn, and draws under way. */
  drawn: number;
  drawing: number;
  resolve(): void;
  reject(error: unknown): void;
}

/** A step under way with the job of each entry; undefined: ended or begun anew since. */
interface Flight { readonly step: Step; readonly jobs: (Job | undefined)[] }

export class Scheduler {
  /** All jobs, the one that has waited longest first. */
  #jobs: Job[] = [];
  /** Steps in order of submission. */
  readonly #flights: Flight[] = [];
  #loop: Promise<void> | undefined;

  constructor(readonly runner: Runner) {}

  /**
   * Runs a request to its end, in steps that it shares with others. Throws `signal.reason`, `context_length_exceeded`, `kv_full`, BaoError
   * `sequence_busy`, what a callback throws, KernelError; the sequence then stands at the last token that was delivered.
   */
  async run(work: Work): Promise<void> {
    work.signal?.throwIfAborted();
    const { sequence } = work;
    this.free(sequence);
    if (work.ids.length === 0 && sequence.ids.length <= sequence.pages.length) throw new BaoError("bad_batch", "No token was drawn that could run next");
    await new Promise<void>((resolve, reject) => {
      this.#jobs.push({ work, sent: 0, done: 0, drawn: 0, drawing: 0, resolve, reject });
      this.#loop ??= this.#run();
    });
  }
  /** Throws BaoError `sequence_busy` when a sequence has a request that has not ended. */
  free(sequence: Sequence): void {
    if (this.#jobs.some((j) => j.work.sequence === sequence)) throw new BaoError("sequence_busy", "The session is answering already", "Await the answer, or use another session.");
  }
  /** Ends the request of a sequence, if it has one, with `error`. */
  stop(sequence: Sequence, error: unknown): void {
    const job = this.#jobs.find((j) => j.work.sequence === sequence);
    if (job) this.#end(job, error);
  }
  /** Resolves when no request runs and no step is under way. */
  async idle(): Promise<void> { while (this.#loop) await this.#loop; }
  /** Ends all requests. */
  dispose(): void { for (const job of [...this.#jobs]) this.#end(job, new DisposedError("Model")); }

  async #run(): Promise<void> {
    try {
      while (this.#jobs.length > 0 || this.#flights.length > 0) {
        this.#submit();
        // Consumers, messages and timers have their turn while the device works.
        await turn();
        for (const job of [...this.#jobs]) if (job.work.signal?.aborted) this.#abort(job);
        const oldest = this.#flights[0];
        if (!oldest || oldest.step.undrawn || !this.runner.wait(oldest.step, WAIT_MS)) continue;
        this.#flights.shift();
        this.#collect(oldest);
      }
    } catch (e) {
      // A disposed runner, or a defect: nobody may wait for ever.
      this.#flights.length = 0;
      for (const job of [...this.#jobs]) this.#end(job, e);
    } finally {
      this.#loop = undefined;
    }
  }

  /** Submits steps as far ahead as the device takes them. */
  #submit(): void {
    for (;;) {
      const last = this.#flights.at(-1);
      if (last?.step.undrawn) {
        // Masks follow from the tokens of the step before: while its own forward pass runs already, they are made.
        if (this.#flights.length > 1) return;
        this.#draw(last);
        continue;
      }
      if (this.#flights.length >= this.runner.depth) return;
      const batch = this.#batch();
      if (batch.length === 0) return;
      const jobs = batch.map(([job]) => job);
      try {
        this.#flights.push({ step: this.runner.submit(batch.map(([, entry]) => entry)), jobs });
      } catch (e) {
        for (const job of jobs) this.#end(job, e);
        continue;
      }
      for (const [job, entry] of batch) {
        if (entry.ids !== "next") job.sent += rowsOf(entry);
        if (entry.sampling) job.drawing++;
      }
    }
  }

  /** The next step: a row of each job that decodes, and of prompts as many as leave the others their pace. Who was served goes to the back. */
  #batch(): [Job, BatchEntry][] {
    const { chunk, outputs: maxOutputs } = this.runner.plan;
    const decoding = this.#jobs.some((j) => j.sent === j.work.ids.length);
    let rows = chunk, outputs = maxOutputs, prompt = decoding ? Math.ceil(chunk / SHARED[this.runner.device.backend]) : chunk;
    const batch: [Job, BatchEntry][] = [];
    for (const job of [...this.#jobs]) {
      if (batch.length > 0 && job.work.pool !== batch[0]![0].work.pool) continue; // another recording: its turn comes
      const entry = this.#entry(job, Math.min(rows, prompt), rows, outputs);
      if (!entry) continue;
      try {
        this.runner.reserve(entry);
      } catch (e) {
        // No room beside what is under way: after it there may be, or it was the last token.
        if (entry.sequence.pending === 0) this.#end(job, e);
        continue;
      }
      batch.push([job, entry]);
      rows -= rowsOf(entry);
      if (entry.ids !== "next") prompt -= rowsOf(entry);
      if (entry.sampling) outputs--;
    }
    const served = new Set(batch.map(([job]) => job));
    this.#jobs = [...this.#jobs.filter((j) => !served.has(j)), ...served];
    return batch;
  }
  #entry(job: Job, prompt: number, rows: number, outputs: number): BatchEntry | undefined {
    const { sequence, ids, sampling, limit, mask, pool } = job.work, left = ids.length - job.sent;
    const draw = sampling && { logits: "last", sampling, masked: mask !== undefined } as const;
    if (left > 0) {
      const whole = left <= prompt && (!draw || outputs > 0), count = whole ? left : Math.min(left - 1, prompt);
      if (count < 1) return undefined;
      return { sequence, ids: ids.slice(job.sent, job.sent + count), logits: "none", ...(pool ? { pool } : undefined), ...(whole ? draw : undefined) };
    }
    if (!draw || rows < 1 || outputs < 1 || job.drawn + job.drawing >= (limit ?? Infinity)) return undefined;
    return { sequence, ids: "next", ...draw };
  }

  #draw(flight: Flight): void {
    const words = Math.ceil(this.runner.config.vocabulary / 32);
    const masks = flight.step.entries.map((entry, i) => {
      const job = flight.jobs[i];
      if (!job || !entry.masked || !entry.sampling) return undefined;
      try {
        const mask = job.work.mask!.next();
        if (mask && mask.length !== words) throw new BaoError("bad_mask", `A mask of ${mask.length} words: this vocabulary takes ${words}`);
        return mask;
      } catch (e) {
        this.#end(job, e);
        return undefined;
      }
    });
    this.runner.draw(flight.step, masks);
  }

  #collect({ step, jobs }: Flight): void {
    let results: StepResult[] | "cancelled";
    try {
      results = this.runner.collect(step);
    } catch (e) {
      for (const job of jobs) if (job) this.#end(job, e);
      return;
    }
    for (const [i, job] of jobs.entries()) {
      if (!job) continue;
      if (results === "cancelled") this.#again(job);
      else if (this.#jobs.includes(job)) this.#deliver(job, step.entries[i]!, results[i]!);
    }
  }
  #deliver(job: Job, entry: BatchEntry, { drawn }: StepResult): void {
    const { work } = job, { ids, limit, mask } = work, { pages } = work.sequence;
    try {
      if (entry.ids !== "next") {
        job.done += rowsOf(entry);
        work.onPrefill?.(job.done);
      }
      if (!drawn) {
        if (!work.sampling && job.done === ids.length) this.#end(job);
        return;
      }
      job.drawing--;
      job.drawn++;
      const goOn = work.onToken?.(drawn) ?? true;
      if (!goOn || job.drawn >= (limit ?? Infinity)) this.#end(job);
      else if (pages.length >= this.runner.plan.context) throw new UsageError("context_length_exceeded", `The context of ${this.runner.plan.context} tokens is full`, "Use a larger context (--ctx).");
      else mask?.accept(drawn.id);
    } catch (e) {
      this.#end(job, e);
    }
  }

  /** A step with this job was cancelled for another's sake: it starts again from what is in the cache. */
  #again(job: Job): void {
    this.#leave(job);
    if (job.work.pool) {
      // Part of the step may be in the sum.
      job.work.sequence.pages.rewind(0);
      job.done = 0;
    }
    job.sent = job.done;
    job.drawing = 0;
  }
  #abort(job: Job): void {
    // Others lose their part of a step only to a prompt's chunk, which may be long.
    for (const { step, jobs } of this.#flights) {
      const at = jobs.indexOf(job);
      if (at >= 0 && step.entries[at]!.ids !== "next") this.runner.cancel(step);
    }
    this.#end(job, job.work.signal!.reason);
  }
  #end(job: Job, ...error: [error?: unknown]): void {
    if (!this.#jobs.includes(job)) return;
    this.#jobs = this.#jobs.filter((j) => j !== job);
    this.#leave(job);
    if (error.length > 0) job.reject(error[0]); else job.resolve();
  }
  /** Takes a job out of the steps under way. */
  #leave(job: Job): void {
    const flights = this.#flights.filter((f) => f.jobs.includes(job));
    if (flights.length > 0) this.runner.drop(job.work.sequence);
    for (const { step, jobs } of flights) {
      jobs[jobs.indexOf(job)] = undefined;
      if (jobs.every((j) => !j)) this.runner.cancel(step); // nobody waits for it
    }
  }
}
