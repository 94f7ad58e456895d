// One conversation's tokens on the device: prefill with prefix reuse, one decode step at a time, snapshots. Knows nothing of text.
import { UsageError } from "../errors.ts";
import type { Snapshot } from "../kv/sequence.ts";
import { SNAPSHOTS } from "../model/estimate.ts";
import type { Drawn, Sampling } from "../sample/params.ts";
import type { Runner, Sequence } from "./runner.ts";

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

  constructor(private readonly runner: Runner) { this.#sequence = runner.open(); }

  /** Tokens whose KV is in the cache. */
  get length(): number { return this.#sequence.pages.length; }
  /** Ids of these tokens, and of one drawn but not yet run. */
  get ids(): readonly number[] { return this.#sequence.ids; }

  /**
   * Makes `ids` the session's whole content: reuses the longest prefix that is still reachable and runs the rest in chunks.
   * Throws `context_length_exceeded` before any compute, `signal.reason` when aborted (the tokens of complete chunks stay).
   */
  async prefill(ids: readonly number[], options: PrefillOptions = {}): Promise<Prefilled> {
    const { plan, config } = this.runner;
    if (ids.length === 0) throw new UsageError("empty_prompt", "The prompt has no tokens", "Give some text, or a BOS token.");
    if (ids.length > plan.context) {
      const most = config.contextLength;
      throw new UsageError("context_length_exceeded", `The prompt has ${ids.length} tokens, the context holds ${plan.context}`,
        ids.length > most ? `Use a shorter prompt: the model is trained for ${most} tokens (--ctx ${most}).` : `Use --ctx ${Math.min(ids.length + 256, most)} (the model allows ${most}), or a shorter prompt.`);
    }
    for (const id of ids) {
      if (!Number.isInteger(id) || id < 0 || id >= config.vocabulary) throw new UsageError("bad_token", `Token ${id} is not in the vocabulary of ${config.vocabulary}`);
    }
    options.signal?.throwIfAborted();
    const reused = this.#reuse(ids);
    // The place where this prompt leaves the former ones: an edited last turn comes back to it, when the window may have moved on. A prompt that
    // merely comes again (one token to run) has its own end as a snapshot already.
    if (ids.length - reused > 1) this.snapshot();
    const cancelled = (): boolean => options.signal?.aborted ?? false;
    let drawn: Drawn | undefined;
    for (let at = reused; at < ids.length; at += plan.chunk) {
      const chunk = ids.slice(at, at + plan.chunk), last = at + chunk.length === ids.length;
      const sampling = last ? options.sampling : undefined;
      const result = await this.runner.run([{ sequence: this.#sequence, ids: chunk, logits: sampling ? "last" : "none", ...(sampling ? { sampling } : {}) }], cancelled);
      if (result === "cancelled") throw options.signal!.reason;
      drawn = result[0]!.drawn;
      options.onProgress?.(at + chunk.length, ids.length);
      options.signal?.throwIfAborted();
    }
    this.snapshot();
    return { drawn, reused };
  }

  /** Runs the token drawn last and draws the next. Throws `context_length_exceeded` when the context is full, `signal.reason` when aborted. */
  async next(sampling: Sampling, signal?: AbortSignal): Promise<Drawn> {
    const result = await this.runner.run([{ sequence: this.#sequence, ids: "next", logits: "last", sampling }], () => signal?.aborted ?? false);
    if (result === "cancelled") throw signal!.reason;
    return result[0]!.drawn!;
  }
  /** Room for one more token. */
  get full(): boolean { return this.length >= this.runner.plan.context; }

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
    this.reset();
    this.runner.close(this.#sequence);
  }
  [Symbol.dispose](): void { this.dispose(); }
}
