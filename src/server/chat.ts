// POST /v1/chat/completions: request to job, parts to a message or to chunks. Answers whole or as a stream.
import { z } from "zod";
import type { GenerateOptions } from "../engine/generate.ts";
import { answer, newId, nowSeconds, timingsOf, usageOf, type Finish, type Job, type ServedModel, type Serving } from "./answer.ts";
import { ApiError, malformedCall } from "./errors.ts";
import { effortField, harmlessFields, maxTokensField, samplingFields, samplingOptions, stopField, thinkingOf } from "./fields.ts";
import { formatField, formatOf, formOptions, functionSpec, toolChoiceField, toolInput } from "./form.ts";
import { chatLogprobs, PendingTokens } from "./logprobs.ts";
import { messageSchema, toMessage } from "./messages.ts";
import { event } from "./sse.ts";
import { harmless, refused, validate } from "./validate.ts";

const schema = z.strictObject({
  model: z.string().optional(),
  messages: z.array(messageSchema).min(1),
  stream: z.boolean().optional(),
  stream_options: z.strictObject({ include_usage: z.boolean().optional(), include_obfuscation: harmless }).optional(),
  max_tokens: maxTokensField, max_completion_tokens: maxTokensField,
  stop: stopField, n: z.int().min(1).max(16).optional(),
  logprobs: z.boolean().optional(), top_logprobs: z.int().min(0).max(20).optional(),
  tools: z.array(z.strictObject({ type: z.literal("function"), function: functionSpec })).max(128).optional(),
  tool_choice: toolChoiceField,
  parallel_tool_calls: z.boolean().optional(),
  response_format: formatField,
  reasoning_effort: effortField,
  chat_template_kwargs: z.strictObject({ enable_thinking: z.boolean().optional() }).optional(),
  ...samplingFields, ...harmlessFields, prediction: harmless,
  verbosity: refused("Verbosity", "medium"), modalities: refused("Output other than text", ["text"]), audio: refused("Audio output"),
  functions: refused("The older form of tools", []), function_call: refused("The older form of tool_choice", "none", "auto"), web_search_options: refused("Web search"),
});
export type ChatRequest = z.infer<typeof schema>;
export const CHAT_FIELDS = { prompt: "messages", maxTokens: "max_tokens", format: "response_format" } as const;

/** A body as a request. Throws ApiError. */
export function parseChat(body: unknown): ChatRequest { return validate(schema, body); }

/** The engine's job of a request; `n` of them are wanted. */
function chatJob(model: ServedModel, r: ChatRequest): Job {
  const options: GenerateOptions = {
    ...samplingOptions(r),
    ...formOptions(model, {
      tools: r.tools?.map((t) => toolInput(t.function)), choice: typeof r.tool_choice === "object" ? r.tool_choice.function : r.tool_choice, parallel: r.parallel_tool_calls,
      format: formatOf(r.response_format), thinking: thinkingOf(r.reasoning_effort) ?? r.chat_template_kwargs?.enable_thinking, thinkingField: r.reasoning_effort === undefined ? "chat_template_kwargs" : "reasoning_effort",
    }),
  };
  const maxTokens = r.max_completion_tokens ?? r.max_tokens;
  if (maxTokens !== undefined) options.maxTokens = maxTokens;
  if (r.stop !== undefined) options.stop = r.stop;
  if (r.top_logprobs !== undefined && !r.logprobs) throw new ApiError(400, "invalid_value", "top_logprobs: needs logprobs to be true.", "top_logprobs");
  if (r.logprobs) options.logprobs = r.top_logprobs ?? 0;
  return { prompt: r.messages.map(toMessage), options, firstCallOnly: r.parallel_tool_calls === false };
}

/** Choices differ by their seed, so that `n` of a seeded request are distinct and repeatable. */
function chatJobs(model: ServedModel, r: ChatRequest): Job[] {
  const job = chatJob(model, r);
  return Array.from({ length: r.n ?? 1 }, (_, i) => (i === 0 || job.options.seed === undefined ? job : { ...job, options: { ...job.options, seed: (job.options.seed + i) % Number.MAX_SAFE_INTEGER } }));
}

type Delta = { content?: string; reasoning_content?: string; tool_calls?: object[] };

interface Choice { index: number; delta: Delta; logprobs: object[]; finish?: Finish }

/** Parts of all choices as deltas of messages. */
async function* deltas(serving: Serving, r: ChatRequest, signal: AbortSignal): AsyncGenerator<Choice, void> {
  const jobs = chatJobs(serving.model, r);
  const state = jobs.map(() => ({ tokens: new PendingTokens(), calls: 0 }));
  for await (const { index, part } of answer(serving, jobs, signal, CHAT_FIELDS)) {
    const { tokens } = state[index]!;
    switch (part.type) {
      case "token": tokens.push(part); break;
      case "text": yield { index, delta: { content: part.text }, logprobs: chatLogprobs(tokens.take()) }; break;
      case "thought": tokens.drop(); yield { index, delta: { reasoning_content: part.text }, logprobs: [] }; break;
      case "tool_call": {
        tokens.drop();
        const call = { index: state[index]!.calls++, id: newId("call_"), type: "function", function: { name: part.name, arguments: JSON.stringify(part.arguments) } };
        yield { index, delta: { tool_calls: [call] }, logprobs: [] };
        break;
      }
      case "error": throw malformedCall(part);
      case "finish": {
        // What is left are tokens whose text a stop text swallowed, or the model's own stop token, which is no part of the answer.
        const rest = part.reason === "length" ? chatLogprobs(tokens.take()) : [];
        yield { index, delta: {}, logprobs: rest, finish: part };
      }
    }
  }
}

const finishReason = (f: Finish): string => (f.reason === "abort" ? "stop" : f.reason);
const head = (serving: Serving, object: string): object => ({ id: newId("chatcmpl-"), object, created: nowSeconds(), model: serving.name });

/** The whole answer as one object. */
export async function chatCompletion(serving: Serving, r: ChatRequest, signal: AbortSignal): Promise<object> {
  const n = r.n ?? 1;
  const choices = Array.from({ length: n }, () => ({ content: "", reasoning: "", calls: [] as object[], logprobs: [] as object[], finish: undefined as Finish | undefined }));
  for await (const { index, delta, logprobs, finish } of deltas(serving, r, signal)) {
    const c = choices[index]!;
    c.content += delta.content ?? "";
    c.reasoning += delta.reasoning_content ?? "";
    for (const { index: _, ...call } of (delta.tool_calls ?? []) as { index: number }[]) c.calls.push(call);
    c.logprobs.push(...logprobs);
    if (finish) c.finish = finish;
  }
  const usages = choices.map((c) => c.finish!.usage);
  return {
    ...head(serving, "chat.completion"),
    choices: choices.map((c, index) => ({
      index,
      message: {
        role: "assistant", content: c.content === "" && c.calls.length > 0 ? null : c.content, refusal: null,
        ...(c.reasoning === "" ? {} : { reasoning_content: c.reasoning }), ...(c.calls.length === 0 ? {} : { tool_calls: c.calls }),
      },
      logprobs: r.logprobs ? { content: c.logprobs, refusal: null } : null,
      finish_reason: finishReason(c.finish!),
    })),
    usage: usageOf(usages, n), ...(n === 1 ? { timings: timingsOf(usages[0]!) } : {}),
  };
}

/** The same answer as events: a role per choice, deltas, a finish per choice, usage if asked for, [DONE]. */
export async function* chatEvents(serving: Serving, r: ChatRequest, signal: AbortSignal): AsyncGenerator<string, void> {
  const n = r.n ?? 1, base = head(serving, "chat.completion.chunk"), withUsage = r.stream_options?.include_usage ?? false;
  const chunk = (choices: object[], more: object = {}): string => event({ ...base, choices, ...(withUsage ? { usage: null } : {}), ...more });
  const started = new Set<number>(), finished: Finish[] = [];
  for await (const { index, delta, logprobs, finish } of deltas(serving, r, signal)) {
    const choice = (d: object, finish_reason: string | null = null): object => ({
      index, delta: d, logprobs: r.logprobs && logprobs.length > 0 ? { content: logprobs, refusal: null } : null, finish_reason,
    });
    if (!started.has(index)) {
      started.add(index);
      yield chunk([{ index, delta: { role: "assistant", content: "" }, logprobs: null, finish_reason: null }]);
    }
    if (!finish) { yield chunk([choice(delta)]); continue; }
    finished[index] = finish;
    yield chunk([choice({}, finishReason(finish))], n === 1 ? { timings: timingsOf(finish.usage) } : {});
  }
  if (withUsage) yield chunk([], { usage: usageOf(finished.map((f) => f.usage), n) });
  yield event("[DONE]");
}
