// A prompt's logits and hidden states, row by row: for dumps, perplexity and comparisons with other implementations. Draws nothing.
import { openModel, type LoadOptions, type LocalModel } from "./model.ts";
import type { Sequence } from "./runner.ts";

/** Load options with which every prompt row gives logits: `chunk` rows of them, or as many as 64 MiB hold. */
export function everyRow(path: string, options: LoadOptions): LoadOptions {
  // Planned for one output row, the estimate's logits are one row.
  const rowBytes = openModel(path, { ...options, outputs: 1 }).estimate.logits;
  const chunk = options.chunk ?? Math.max(1, Math.min(256, Math.floor(2 ** 26 / rowBytes)));
  return { ...options, chunk, outputs: chunk };
}

/** Logits and hidden states of `rows` consecutive prompt rows, the first of them row `at`. */
export interface PromptRows {
  readonly at: number;
  readonly rows: number;
  /** [rows, vocabulary], as the model gives them: no bias, no penalties. */
  logits(): Float32Array;
  /** One [rows, hidden] for the input of every layer, then one after the output norm; needs a model loaded with keepHidden. */
  hidden(): Float32Array[];
}

/**
 * Runs `ids` from an empty cache and gives the rows from row `first` on, chunk by chunk; what a chunk gives is valid until the next one.
 * Needs a model loaded with `outputs` = `chunk` and a free sequence. Throws `context_length_exceeded`, `signal.reason`.
 */
export async function* promptRows(model: LocalModel, ids: readonly number[], options: { first?: number; signal?: AbortSignal } = {}): AsyncGenerator<PromptRows, void> {
  const { runner } = model, { signal } = options, first = options.first ?? 0;
  const limit = Math.min(runner.plan.chunk, runner.plan.outputs);
  const sequence: Sequence = runner.open();
  try {
    for (let at = 0; at < ids.length;) {
      signal?.throwIfAborted();
      const wanted = at >= first;
      const end = Math.min(ids.length, at + (wanted ? limit : runner.plan.chunk), wanted ? ids.length : first);
      const result = await runner.run([{ sequence, ids: ids.slice(at, end), logits: wanted ? "all" : "none" }], () => signal?.aborted ?? false);
      if (result === "cancelled") throw signal!.reason;
      const rows = end - at, { outputRow } = result[0]!;
      if (wanted) yield { at, rows, logits: () => runner.logits(outputRow, rows), hidden: () => runner.hidden(rows) };
      at = end;
    }
  } finally {
    runner.close(sequence);
  }
}
