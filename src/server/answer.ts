// Runs what a request asks of the model: a place in the queue, one generation per choice, all parts in one stream, metrics, and the end when the client goes.
import type { GenerateOptions, Prompt, StreamPart, Usage } from "../engine/generate.ts";
import type { ModelInfo } from "../engine/protocol.ts";
import { Admission } from "./admission.ts";
import { apiError, type FieldNames } from "./errors.ts";
import { Metrics } from "./metrics.ts";

/** What the server needs of a model; `load()` gives one. */
export interface ServedModel {
  readonly info: Pick<ModelInfo, "path" | "name" | "architecture" | "contextLength" | "vocabulary" | "chat"> & { readonly plan: Pick<ModelInfo["plan"], "context" | "sequences"> };
  generate(prompt: Prompt, options?: GenerateOptions): AsyncIterable<StreamPart>;
  embed?(inputs: readonly (string | { readonly ids: readonly number[] })[], options?: { signal?: AbortSignal }): Promise<readonly { readonly vector: Float32Array; readonly tokens: number }[]>;
}

/** What all handlers share. */
export interface Serving {
  readonly model: ServedModel;
  /** Name of the model in requests and answers. */
  readonly name: string;
  readonly created: number;
  readonly admission: Admission;
  readonly metrics: Metrics;
  readonly keepAliveMs: number;
  /** Failures that are no fault of a request. */
  readonly onError: (e: unknown) => void;
}

/** One answer that is wanted. `firstCallOnly` ends it after its first tool call. */
export interface Job { readonly prompt: Prompt; readonly options: GenerateOptions; readonly firstCallOnly?: boolean }
export interface Indexed { readonly index: number; readonly part: StreamPart }
export type Finish = Extract<StreamPart, { type: "finish" }>;

/** Parts of all jobs as they come. Throws ApiError 429 before anything runs, ApiError for whatever fails then, the signal's reason when aborted. */
export async function* answer(serving: Serving, jobs: readonly Job[], signal: AbortSignal, fields: FieldNames): AsyncGenerator<Indexed, void> {
  const { admission, metrics } = serving;
  using _place = admission.enter(jobs.length);
  const start = performance.now(), last = jobs.map(() => 0);
  // One job that fails ends the others, and so does a consumer that stops reading.
  const end = new AbortController();
  const all = AbortSignal.any([signal, end.signal]);
  try {
    for await (const indexed of merged(jobs.map((job, index) => indexedParts(serving.model, job, index, all)))) {
      const now = performance.now(), before = last[indexed.index]!;
      if (indexed.part.type === "finish") metrics.count(indexed.part.usage);
      else if (before === 0) metrics.firstPart.observe((now - start) / 1000);
      else metrics.nextPart.observe((now - before) / 1000);
      last[indexed.index] = now;
      yield indexed;
    }
    metrics.answer.observe((performance.now() - start) / 1000);
  } catch (e) {
    if (signal.aborted) throw signal.reason;
    const error = apiError(e, fields);
    if (error.status >= 500) serving.onError(e);
    throw error;
  } finally {
    end.abort(new DOMException("The request has ended.", "AbortError"));
  }
}

async function* indexedParts(model: ServedModel, job: Job, index: number, signal: AbortSignal): AsyncGenerator<Indexed, void> {
  if (!job.firstCallOnly) {
    for await (const part of model.generate(job.prompt, { ...job.options, signal })) yield { index, part };
    return;
  }
  const enough = new AbortController();
  let called = false;
  for await (const part of model.generate(job.prompt, { ...job.options, signal: AbortSignal.any([signal, enough.signal]), onAbort: "stop" })) {
    if (part.type === "finish") yield { index, part: called && part.reason === "abort" ? { ...part, reason: "tool_calls" } : part };
    else if (!called) yield { index, part };
    if (part.type === "tool_call") {
      called = true;
      enough.abort();
    }
  }
}

/** Values of several generators in the order in which they come. */
async function* merged<T>(sources: readonly AsyncGenerator<T, void>[]): AsyncGenerator<T, void> {
  if (sources.length === 1) { yield* sources[0]!; return; }
  const pull = (source: AsyncGenerator<T, void>) => source.next().then((result) => ({ source, result }));
  const running = new Map(sources.map((source) => [source, pull(source)]));
  try {
    while (running.size > 0) {
      const { source, result } = await Promise.race(running.values());
      if (result.done) { running.delete(source); continue; }
      running.set(source, pull(source));
      yield result.value;
    }
  } finally {
    for (const [source, pending] of running) {
      pending.catch(() => {});
      source.return().catch(() => {});
    }
  }
}

/** OpenAI's usage object of several finished answers; `n` answers share each prompt. */
export function usageOf(usages: readonly Usage[], n = 1): Record<string, unknown> {
  const sum = (of: (u: Usage) => number, every = 1): number => usages.reduce((total, u, i) => total + (i % every === 0 ? of(u) : 0), 0);
  const prompt = sum((u) => u.promptTokens, n), completion = sum((u) => u.completionTokens);
  return {
    prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion,
    prompt_tokens_details: { cached_tokens: sum((u) => u.cachedTokens, n) }, completion_tokens_details: { reasoning_tokens: sum((u) => u.thoughtTokens) },
  };
}

/** llama.cpp's `timings` of one answer. The first token comes out of the prefill. */
export function timingsOf(u: Usage): Record<string, number> {
  const prompt = u.promptTokens - u.cachedTokens, predicted = Math.max(0, u.completionTokens - 1);
  const per = (n: number, ms: number): number => (ms > 0 ? (n * 1000) / ms : 0);
  return {
    cache_n: u.cachedTokens, prompt_n: prompt, prompt_ms: u.prefillMs, prompt_per_second: per(prompt, u.prefillMs),
    predicted_n: predicted, predicted_ms: u.decodeMs, predicted_per_second: per(predicted, u.decodeMs),
  };
}

/** Letters and digits for ids of responses, messages and calls. */
export const newId = (prefix: string): string => prefix + crypto.randomUUID().replaceAll("-", "").slice(0, 24);
export const nowSeconds = (): number => Math.trunc(Date.now() / 1000);
