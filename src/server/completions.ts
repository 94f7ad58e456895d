// POST /v1/completions, the older API: texts or token ids are continued as they are, without a chat template.
import { z } from "zod";
import type { GenerateOptions, Prompt } from "../engine/generate.ts";
import { answer, newId, nowSeconds, timingsOf, usageOf, type Finish, type Job, type Serving } from "./answer.ts";
import { harmlessFields, maxTokensField, samplingFields, samplingOptions, stopField } from "./fields.ts";
import { completionLogprobs, PendingTokens } from "./logprobs.ts";
import { event } from "./sse.ts";
import { harmless, refused, validate } from "./validate.ts";

const ids = z.array(z.int().min(0)).min(1);
const schema = z.strictObject({
  model: z.string().optional(),
  prompt: z.union([z.string(), ids, z.array(z.string()).min(1).max(64), z.array(ids).min(1).max(64)], "expected a text, token ids, or a list of either"),
  stream: z.boolean().optional(),
  stream_options: z.strictObject({ include_usage: z.boolean().optional(), include_obfuscation: harmless }).optional(),
  max_tokens: maxTokensField, stop: stopField, n: z.int().min(1).max(16).optional(),
  logprobs: z.int().min(0).max(20).optional(),
  ...samplingFields, ...harmlessFields,
  echo: refused("Repeating the prompt", false), suffix: refused("Text after the gap", ""), best_of: refused("Choosing among answers", 1),
});
export type CompletionRequest = z.infer<typeof schema>;
export const COMPLETION_FIELDS = { prompt: "prompt", maxTokens: "max_tokens", format: "response_format" } as const;

export function parseCompletion(body: unknown): CompletionRequest { return validate(schema, body); }

/** OpenAI's default: an answer without a limit would run to the end of the context. */
const DEFAULT_MAX_TOKENS = 16;

function jobsOf(r: CompletionRequest): Job[] {
  const list = typeof r.prompt === "string" ? [r.prompt] : typeof r.prompt[0] === "number" ? [r.prompt as number[]] : r.prompt as (string | number[])[];
  const options: GenerateOptions = {
    ...samplingOptions(r), raw: true, maxTokens: r.max_tokens ?? DEFAULT_MAX_TOKENS,
    ...(r.stop === undefined ? {} : { stop: r.stop }), ...(r.logprobs === undefined ? {} : { logprobs: r.logprobs }),
  };
  return list.flatMap((p) => {
    const prompt: Prompt = typeof p === "string" ? p : { ids: p };
    return Array.from({ length: r.n ?? 1 }, (_, i) => ({ prompt, options: i === 0 || options.seed === undefined ? options : { ...options, seed: (options.seed + i) % Number.MAX_SAFE_INTEGER } }));
  });
}

type Logprobs = ReturnType<typeof completionLogprobs>;
interface Piece { index: number; text: string; logprobs: Logprobs | null; finish?: Finish }

async function* pieces(serving: Serving, r: CompletionRequest, jobs: readonly Job[], signal: AbortSignal): AsyncGenerator<Piece, void> {
  const state = jobs.map(() => ({ tokens: new PendingTokens(), characters: 0 }));
  for await (const { index, part } of answer(serving, jobs, signal, COMPLETION_FIELDS)) {
    const s = state[index]!;
    const logprobs = (): Logprobs | null => {
      if (r.logprobs === undefined) return null;
      const made = completionLogprobs(s.tokens.take(), s.characters);
      s.characters += made.tokens.reduce((n, t) => n + t.length, 0);
      return made;
    };
    // This API has one text: what a model marks as a thought or a call is left out of it.
    if (part.type === "token") s.tokens.push(part);
    else if (part.type === "text") yield { index, text: part.text, logprobs: logprobs() };
    else if (part.type === "finish") {
      if (part.reason !== "length") s.tokens.drop();
      yield { index, text: "", logprobs: logprobs(), finish: part };
    }
  }
}

const finishReason = (f: Finish): string => (f.reason === "length" ? "length" : "stop");
const head = (serving: Serving): object => ({ id: newId("cmpl-"), object: "text_completion", created: nowSeconds(), model: serving.name });

export async function completion(serving: Serving, r: CompletionRequest, signal: AbortSignal): Promise<object> {
  const jobs = jobsOf(r);
  const choices = jobs.map(() => ({ text: "", logprobs: [] as Logprobs[], finish: undefined as Finish | undefined }));
  for await (const { index, text, logprobs, finish } of pieces(serving, r, jobs, signal)) {
    const c = choices[index]!;
    c.text += text;
    if (logprobs) c.logprobs.push(logprobs);
    if (finish) c.finish = finish;
  }
  return {
    ...head(serving),
    choices: choices.map((c, index) => ({ index, text: c.text, logprobs: r.logprobs === undefined ? null : joined(c.logprobs), finish_reason: finishReason(c.finish!) })),
    usage: usageOf(choices.map((c) => c.finish!.usage), r.n ?? 1), ...(jobs.length === 1 ? { timings: timingsOf(choices[0]!.finish!.usage) } : {}),
  };
}

const joined = (list: readonly Logprobs[]): Logprobs => ({
  tokens: list.flatMap((l) => l.tokens), token_logprobs: list.flatMap((l) => l.token_logprobs), top_logprobs: list.flatMap((l) => l.top_logprobs), text_offset: list.flatMap((l) => l.text_offset),
});

export async function* completionEvents(serving: Serving, r: CompletionRequest, signal: AbortSignal): AsyncGenerator<string, void> {
  const jobs = jobsOf(r), base = head(serving), withUsage = r.stream_options?.include_usage ?? false, finished: Finish[] = [];
  const chunk = (choices: object[], more: object = {}): string => event({ ...base, choices, ...(withUsage ? { usage: null } : {}), ...more });
  for await (const { index, text, logprobs, finish } of pieces(serving, r, jobs, signal)) {
    if (finish) finished[index] = finish;
    yield chunk([{ index, text, logprobs, finish_reason: finish ? finishReason(finish) : null }], finish && jobs.length === 1 ? { timings: timingsOf(finish.usage) } : {});
  }
  if (withUsage) yield chunk([], { usage: usageOf(finished.map((f) => f.usage), r.n ?? 1) });
  yield event("[DONE]");
}
