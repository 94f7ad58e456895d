// How surprised a model is by a text: negative log-likelihood a token, over sliding windows. Reads logits; draws nothing.
import { BaoError, UsageError } from "../errors.ts";
import type { LocalModel } from "./model.ts";
import { promptRows } from "./rows.ts";

export interface Score {
  /** Sum of -ln p over the scored tokens. */
  readonly nll: number;
  /** Tokens that were scored: all of the text, but for a first one that nothing comes before. */
  readonly tokens: number;
}

export interface ScoreOptions {
  /** Tokens of one window, BOS included; at most the model's context. */
  window: number;
  /** Tokens by which windows advance; each window scores the tokens that no earlier one has. */
  stride: number;
  signal?: AbortSignal;
  onProgress?: (scored: number, total: number, nll: number) => void;
}

/** nll / tokens as perplexity. */
export const perplexityOf = (score: Score): number => Math.exp(score.nll / score.tokens);

/**
 * Scores the ids of a text (without BOS; every window starts with one if the model wants it). With stride = window the windows do not overlap; a
 * smaller stride gives each scored token at least window - stride tokens before it. Throws UsageError for sizes that make no sense.
 */
export async function scoreIds(model: LocalModel, ids: readonly number[], options: ScoreOptions): Promise<Score> {
  const { window, stride, signal, onProgress } = options;
  const bos = model.tokenizer.addBos && model.tokenizer.bosId !== undefined ? [model.tokenizer.bosId] : [];
  const room = window - bos.length;
  if (!(window >= 2 && window <= model.runner.plan.context)) throw new UsageError("bad_option", `window: expected 2 to ${model.runner.plan.context} tokens, found ${window}`);
  if (!(stride >= 1 && stride <= window)) throw new UsageError("bad_option", `stride: expected 1 to ${window} tokens, found ${stride}`);
  let nll = 0, tokens = 0;
  const step = Math.min(stride, room);
  for (let begin = 0, scored = 0; scored < ids.length; begin += step) {
    const end = Math.min(ids.length, begin + room);
    const content = [...bos, ...ids.slice(begin, end)];
    // Row r predicts content[r + 1]; the last row predicts what is not there.
    const first = Math.max(0, scored - begin + bos.length - 1);
    if (first < content.length - 1) {
      for await (const part of promptRows(model, content.slice(0, -1), { first, ...(signal ? { signal } : {}) })) {
        const logits = part.logits(), width = logits.length / part.rows;
        for (let r = 0; r < part.rows; r++) {
          nll += surprise(logits.subarray(r * width, (r + 1) * width), content[part.at + r + 1]!);
          tokens++;
        }
        onProgress?.(scored + part.at + part.rows - first, ids.length, nll);
      }
    }
    scored = end;
  }
  if (tokens === 0) throw new UsageError("text_too_short", "The text has no token to score", "Give a longer text.");
  return { nll, tokens };
}

/** -ln softmax(logits)[id], in double precision. */
export function surprise(logits: Float32Array, id: number): number {
  let max = -Infinity, sum = 0;
  for (let i = 0; i < logits.length; i++) if (logits[i]! > max) max = logits[i]!;
  for (let i = 0; i < logits.length; i++) sum += Math.exp(logits[i]! - max);
  const nll = Math.log(sum) + max - logits[id]!;
  if (!Number.isFinite(nll)) throw new BaoError("not_finite", "The logits are not finite", "The model file may be damaged: run `bao generate --check-finite` to find the layer.");
  return nll;
}
