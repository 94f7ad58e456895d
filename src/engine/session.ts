// One conversation's tokens on the device: prompts with prefix reuse, answers token by token, snapshots. Knows nothing of text.
import { DisposedError, UsageError } from "../errors.ts";
import { restoreSequence, saveSequence, type SavedFor } from "../kv/saved.ts";
import type { Snapshot } from "../kv/sequence.ts";
import { SNAPSHOTS } from "../model/estimate.ts";
import type { Drawn, Sampling } from "../sample/params.ts";
import { turn, type Sequence } from "./runner.ts";
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
  /** Mean of the hidden states of `ids` after the output norm, [hidden]. The session holds these ids afterwards. Errors: see `answer`. */
  async embed(ids: readonly number[], signal?: AbortSignal): Promise<Float32Array> {
    this.#check(ids);
    this.scheduler.free(this.#sequence);
    this.reset();
    await this.scheduler.run({ sequence: this.#sequence, ids, pool: true, signal });
    return this.scheduler.runner.pooled(this.#sequence).map((sum) => sum / ids.length);
  }
  /** No room for one more token. */
  get full(): boolean { return this.length >= this.scheduler.runner.plan.context; }

  #check(ids: readonly number[]): void {
    const { plan, config } = this.scheduler.runner;
    if (ids.length === 0) throw new UsageError("empty_prompt", "The prompt has no tokens", "Give some text, or a BOS token.");
    if (ids.length > plan.context) {
      const most = config.contextLength;
      throw new UsageError("context_length_exceeded", `The prompt has ${ids.length} tokens, the context holds ${plan.context}`,
        ids.length > most ? `Use a shorter prompt: the model is trained for ${most} tokens (--ctx ${most}).` : `Use a larger context (--ctx ${Math.min(ids.length + 256, most)}; the model allows ${most}), or a shorter prompt.`);
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
  /**
   * Forgets all but the first `length` tokens. Behind a sliding window only some places can be reached: throws UsageError `rewind_unreachable` elsewhere,
   * and nothing has changed then.
   */
  rewind(length: number): void {
    this.scheduler.free(this.#sequence);
    if (!Number.isInteger(length) || length < 0 || length > this.length) throw new UsageError("bad_option", `rewind: expected 0 to ${this.length} tokens, found ${length}`);
    const reach = this.#reach(length);
    if (reach.length !== length) throw new UsageError("rewind_unreachable", `Token ${length} lies behind the sliding window: it is no longer in the cache`, "Take a snapshot() there first, or fork() the session to keep a state for good.");
    this.#goTo(reach);
  }
  /** Another session that stands where this one does and shares its pages. Throws UsageError `too_many_sequences`. */
  fork(): Session {
    this.scheduler.free(this.#sequence);
    const other = new Session(this.scheduler), { pages, ids } = this.#sequence;
    const now = pages.snapshot();
    other.#sequence.pages.restore(now);
    pages.drop(now);
    other.#sequence.ids.push(...ids.slice(0, pages.length));
    other.#snapshots = this.#snapshots.map((s) => pages.share(s));
    return other;
  }
  /** Writes tokens and KV to a file: see saveSequence. What comes of the session meanwhile is not in it. */
  async save(path: string, wanted: SavedFor): Promise<void> {
    this.scheduler.free(this.#sequence);
    const { pages, ids } = this.#sequence, now = pages.snapshot();
    try {
      await saveSequence(path, wanted, ids.slice(0, now.length), this.scheduler.runner.stores, now, turn);
    } finally {
      pages.drop(now);
    }
  }
  /** Becomes what a file holds: see restoreSequence. */
  async restore(path: string, wanted: SavedFor): Promise<void> {
    this.scheduler.free(this.#sequence);
    const { pages, ids } = this.#sequence, { runner } = this.scheduler;
    const read = await restoreSequence(path, wanted, runner.plan.context, runner.stores, pages, () => this.reset(), turn);
    ids.push(...read);
    this.snapshot();
  }

  /** How many of `ids` would not have to be run again. */
  shared(ids: readonly number[]): number { return this.#reach(this.#common(ids)).length; }

  /** Goes back to the longest common prefix that is reachable; gives its length (at most ids.length - 1: the last token must run). */
  #reuse(ids: readonly number[]): number {
    const reach = this.#reach(this.#common(ids));
    this.#goTo(reach);
    return reach.length;
  }
  #common(ids: readonly number[]): number {
    const { pages, ids: own } = this.#sequence, limit = Math.min(ids.length - 1, pages.length);
    let common = 0;
    while (common < limit && ids[common] === own[common]) common++;
    return common;
  }
  /** The place nearest to `length`, and not beyond it, that can be gone back to. */
  #reach(length: number): { readonly length: number; readonly from?: Snapshot } {
    const { pages } = this.#sequence;
    if (pages.canRewind(length)) return { length };
    // Pages behind the window are gone: only a snapshot still holds the ones that a query at its length, or shortly before, can see.
    let best: { readonly length: number; readonly from?: Snapshot } = { length: 0 };
    for (const from of this.#snapshots) {
      const reached = from.length <= length ? from.length : pages.canRestore(from, length) ? length : 0;
      if (reached > best.length) best = { length: reached, from };
    }
    return best;
  }
  #goTo({ length, from }: { readonly length: number; readonly from?: Snapshot }): void {
    const { pages, ids } = this.#sequence;
    if (from) pages.restore(from);
    pages.rewind(length);
    this.#dropSnapshots(length);
    ids.length = length;
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
