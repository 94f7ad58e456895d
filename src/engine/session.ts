// One conversation's tokens on the device: prompts with prefix reuse, answers token by token, snapshots. Knows nothing of text.
import { DisposedError, UsageError } from "../errors.ts";
import type { Snapshot } from "../kv/sequence.ts";
import { SNAPSHOTS } from "../model/estimate.ts";
import type { Drawn, Sampling } from "../sample/params.ts";
import type { Sequence } from "./runner.ts";
import type { Scheduler, Work } from "./scheduler.ts";

/** How a prompt is answered: see `Work`. */
export interface AnswerOptions extends Omit<Work, "sequence" | "ids" | "onPrefill"> {
  /** Called after every step of the prompt with its tokens in the cache and their total. */
  onPrefill?: ((done: number, total: number) => void) | undefined;
}

export interface PrefillOptions {
  signal?: AbortSignal | undefined;
  /** Draw the first token from the prompt's last logits. */
  sampling?: Sampling;
  onProgress?: ((done: number, total: number) => void) | undefined;
}

export interface Prefilled {
  /** The first token after the prompt; undefined without sampling. */
  readonly drawn: Drawn | undefined;
  /** Prompt tokens whose KV was there already. */
  readonly reused: number;
}

export class Session implements Disposable {
  readonly #sequence: Sequence;
  #snapshots: Snapshot[] = [];
  #disposed = false;

  constructor(private readonly scheduler: Scheduler) { this.#sequence = scheduler.runner.open(); }

  /** Tokens whose KV is in the cache. */
  get length(): number { return this.#sequence.pages.length; }
  /** Ids of these tokens, and of one drawn but not yet run. */
  get ids(): readonly number[] { return this.#sequence.ids; }

  /**
   * Makes `ids` the session's whole content (reusing the longest prefix that is still reachable, and running the rest in chunks), then draws tokens as
   * the options say. Throws `context_length_exceeded` before any compute; `ended` throws what `Scheduler.run` does (the tokens of complete chunks stay).
   */
  answer(ids: readonly number[], options: AnswerOptions = {}): { readonly reused: number; readonly ended: Promise<void> } {
    this.#check(ids);
    options.signal?.throwIfAborted();
    this.scheduler.free(this.#sequence);
    const reused = this.#reuse(ids);
    // The place where this prompt leaves the former ones: an edited last turn comes back to it, when the window may have moved on. A prompt that
    // merely comes again (one token to run) has its own end as a snapshot already.
    if (ids.length - reused > 1) this.snapshot();
    const ended = this.scheduler.run({
      ...options, sequence: this.#sequence, ids: ids.slice(reused),
      onPrefill: (done) => {
        options.onPrefill?.(reused + done, ids.length);
        if (reused + done === ids.length) this.snapshot();
      },
    });
    return { reused, ended };
  }
  /** Ends the answer that is running, if any. */
  stop(error: unknown): void { this.scheduler.stop(this.#sequence, error); }

  /** `answer` without tokens, or with one. */
  async prefill(ids: readonly number[], options: PrefillOptions = {}): Promise<Prefilled> {
    let drawn: Drawn | undefined;
    const { reused, ended } = this.answer(ids, { sampling: options.sampling, signal: options.signal, limit: 1, onPrefill: options.onProgress, onToken: (d) => { drawn = d; return false; } });
    await ended;
    return { drawn, reused };
  }
  /** Runs the token drawn last and draws the next. Throws `context_length_exceeded` when the context is full, `signal.reason` when aborted. */
  async next(sampling: Sampling, signal?: AbortSignal): Promise<Drawn> {
    let drawn: Drawn | undefined;
    await this.scheduler.run({ sequence: this.#sequence, ids: [], sampling, signal, limit: 1, onToken: (d) => { drawn = d; return false; } });
    return drawn!;
  }
  /** No room for one more token. */
  get full(): boolean { return this.length >= this.scheduler.runner.plan.context; }

  #check(ids: readonly number[]): void {
    const { plan, config } = this.scheduler.runner;
    if (ids.length === 0) throw new UsageError("empty_prompt", "The prompt has no tokens", "Give some text, or a BOS token.");
    if (ids.length > plan.context) {
      const most = config.contextLength;
      throw new UsageError("context_length_exceeded", `The prompt has ${ids.length} tokens, the context holds ${plan.context}`,
        ids.length > most ? `Use a shorter prompt: the model is trained for ${most} tokens (--ctx ${most}).` : `Use --ctx ${Math.min(ids.length + 256, most)} (the model allows ${most}), or a shorter prompt.`);
    }
    for (const id of ids) {
      if (!Number.isInteger(id) || id < 0 || id >= config.vocabulary) throw new UsageError("bad_token", `Token ${id} is not in the vocabulary of ${config.vocabulary}`);
    }
  }

  /** Remembers the present length, so that a later prompt with the same beginning can go on from here. */
  snapshot(): void {
    const pages = this.#sequence.pages;
    if (pages.length === 0 || this.#snapshots.at(-1)?.length === pages.length) return;
    while (this.#snapshots.length >= SNAPSHOTS) pages.drop(this.#snapshots.shift()!);
    this.#snapshots.push(pages.snapshot());
  }
  /** Forgets everything. */
  reset(): void {
    this.#dropSnapshots(-1);
    this.#sequence.pages.rewind(0);
    this.#sequence.ids.length = 0;
  }

  /** Goes back to the longest common prefix that is reachable; gives its length (at most ids.length - 1: the last token must run). */
  #reuse(ids: readonly number[]): number {
    const { pages, ids: own } = this.#sequence;
    let common = 0;
    const limit = Math.min(ids.length - 1, pages.length);
    while (common < limit && ids[common] === own[common]) common++;
    let reached = 0, from: Snapshot | undefined;
    if (pages.canRewind(common)) reached = common;
    else {
      // Pages behind the window are gone: only a snapshot still holds the ones that a query at its length, or shortly before, can see.
      for (const s of this.#snapshots) {
        const length = s.length <= common ? s.length : pages.canRestore(s, common) ? common : 0;
        if (length > reached) { reached = length; from = s; }
      }
    }
    if (from) pages.restore(from);
    pages.rewind(reached);
    this.#dropSnapshots(reached);
    own.length = reached;
    return reached;
  }
  #dropSnapshots(beyond: number): void {
    this.#snapshots = this.#snapshots.filter((s) => {
      if (s.length <= beyond) return true;
      this.#sequence.pages.drop(s);
      return false;
    });
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.stop(new DisposedError("Session"));
    this.reset();
    this.scheduler.runner.close(this.#sequence);
  }
  [Symbol.dispose](): void { this.dispose(); }
}
