// Text generation over a session: prompt to ids, decode loop, stop ids and stop strings, typed parts, usage. One loop for library, CLI and server.
import { BaoError, UsageError } from "../errors.ts";
import { PartStream, type Message, type Part, type ToolInput } from "../chat/index.ts";
import { compileConstraint, type ResponseFormat, type ToolChoice } from "../structured/index.ts";
import type { TokenMask } from "./mask.ts";
import { resolveSampling, type Drawn, type SamplingOptions } from "../sample/params.ts";
import { requireText, type LocalModel } from "./model.ts";
import { latestTurns } from "./overflow.ts";
import type { Session } from "./session.ts";
import { StopStrings } from "./stop.ts";

/** What to continue: raw text, a conversation, or token ids as they are (`opensThought`: they end inside a thought). */
export type Prompt = string | readonly Message[] | EncodedPrompt;
/** `droppedMessages`: how many were left out because of `overflow`. */
export interface EncodedPrompt { readonly ids: readonly number[]; readonly opensThought?: boolean; readonly droppedMessages?: number }

export interface GenerateOptions extends SamplingOptions {
  /** Tokens to generate at most; default: as many as fit the context. */
  maxTokens?: number;
  /** Texts that end the answer; they are not part of it. */
  stop?: string | readonly string[];
  /** A string prompt is one user message (default) or continued as it is. */
  raw?: boolean;
  /** System message in front of a string prompt. */
  system?: string;
  /** Let the model think first. Throws UsageError `thinking_unsupported` for a model that does not. */
  thinking?: boolean;
  /** Functions that the model may call. Throws UsageError `tools_unsupported` when its chat template does not tell it of them and no call is forced. */
  tools?: readonly ToolInput[];
  /** Whether and which tools are called. Default: as the model sees fit. A call that begins is always one of the tools', with arguments of its schema. */
  toolChoice?: ToolChoice;
  /** Several calls in one answer. Default true. */
  parallelToolCalls?: boolean;
  /** The answer is JSON, of a schema or any; thoughts stay free. Throws `unsupported_schema` for a schema that cannot be guaranteed. */
  responseFormat?: ResponseFormat;
  /**
   * A conversation that leaves no room for an answer in the context: an error before anything is computed (default), or it goes without its oldest turns.
   * The system message and the last question always stay; `usage.droppedMessages` tells how many did not. Room is kept for maxTokens, at most half the context.
   */
  overflow?: "error" | "drop_oldest";
  /** Ends the answer early. By default the iteration throws signal.reason; with onAbort "stop" it finishes with reason "abort". */
  signal?: AbortSignal;
  onAbort?: "throw" | "stop";
  /** Go on past stop ids (benchmarks, --token-ids runs). */
  ignoreStop?: boolean;
}

/** What callers in the engine's own thread may ask for besides. */
export interface LocalGenerateOptions extends GenerateOptions {
  /** Called after every prefill step with the prompt tokens in the cache and their total. */
  onPrefill?: (done: number, total: number) => void;
  /** Constrains the answer token by token, instead of what responseFormat and tools say. */
  mask?: TokenMask;
}

export interface Usage {
  promptTokens: number;
  /** Prompt tokens that were in the cache already. */
  cachedTokens: number;
  completionTokens: number;
  /** Those of them that gave thoughts. */
  thoughtTokens: number;
  /** Messages that were left out: see `overflow`. */
  droppedMessages?: number;
  /** Milliseconds. */
  prefillMs: number;
  decodeMs: number;
}
export type FinishReason = "stop" | "length" | "tool_calls" | "abort";

/** A token that might have come, most likely first. `text` is U+FFFD for a part of a character. */
export interface TokenLogprob { readonly id: number; readonly text: string; readonly logprob: number }

/** A typed piece of an answer. Text and thought parts are deltas. `token` parts come only when log-probabilities were asked for. */
export type StreamPart =
  | Part
  | { readonly type: "token"; readonly id: number; readonly text: string; readonly logprob: number; readonly top: readonly TokenLogprob[] }
  | { readonly type: "finish"; readonly reason: FinishReason; readonly stop?: string; readonly usage: Usage };

/** Prompt as ids, with exactly one BOS, and whether the template left a thought open. */
export function encodePrompt(model: LocalModel, prompt: Prompt, options: GenerateOptions): EncodedPrompt & { readonly opensThought: boolean } {
  const given: unknown = prompt; // callers without types
  if (typeof given !== "string" && !Array.isArray(given) && !(typeof given === "object" && given !== null && "ids" in given && Array.isArray(given.ids))) {
    throw new UsageError("bad_prompt", `A prompt is a text, a list of messages, or { ids }; found ${given === null ? "null" : typeof given}`);
  }
  if (options.system !== undefined && (typeof prompt !== "string" || options.raw)) throw new UsageError("bad_option", "system: goes in front of a string prompt that is not raw", "Make it the first message of the conversation.");
  if (typeof prompt === "object" && "ids" in prompt) return { ...prompt, opensThought: prompt.opensThought ?? false };
  requireText(model);
  if (typeof prompt === "string" && options.raw) return { ids: model.tokenizer.encode(prompt), opensThought: false };
  // A forced call is held to its form by a grammar; a voluntary one would never come.
  if (options.tools?.length && (options.toolChoice ?? "auto") === "auto" && !model.template.supportsTools) throw new UsageError("tools_unsupported", "This model's chat template does not tell it of tools", "Use a model that was trained to call tools, or force a call with toolChoice.");
  if (options.thinking && !model.template.supportsThinking) throw new UsageError("thinking_unsupported", "This model does not think before it answers", "Leave thinking out: Model.info.chat says what a model's chat template knows of.");
  const messages: readonly Message[] = typeof prompt !== "string" ? prompt
    : [...(options.system === undefined ? [] : [{ role: "system", content: options.system } as const]), { role: "user", content: prompt }];
  const encode = (some: readonly Message[]): EncodedPrompt & { readonly opensThought: boolean } => {
    const rendered = model.template.render(some, {
      ...(options.tools ? { tools: options.tools } : {}), ...(options.thinking === undefined ? {} : { thinking: options.thinking }), addGenerationPrompt: true,
    });
    return { ids: model.tokenizer.encodePieces(rendered.pieces), opensThought: rendered.opensThought };
  };
  if ((options.overflow ?? "error") === "error") return encode(messages);
  if (options.overflow !== "drop_oldest") throw new UsageError("bad_option", `overflow: expected error or drop_oldest, found ${String(options.overflow)}`);
  const { context } = model.runner.plan, room = context - Math.min(options.maxTokens ?? Infinity, context >> 1);
  const kept = latestTurns(messages, (some) => encode(some).ids.length <= room), dropped = messages.length - kept.length;
  return { ...encode(kept), ...(dropped > 0 ? { droppedMessages: dropped } : {}) };
}

/** Sampling that a file recommends (general.sampling.*), used where the caller says nothing. */
function fileSampling(model: LocalModel): SamplingOptions {
  const m = model.file.metadata, base: SamplingOptions = {};
  const temperature = m.f32("general.sampling.temp"), topP = m.f32("general.sampling.top_p"), topK = m.u32("general.sampling.top_k");
  if (temperature !== undefined) base.temperature = temperature;
  if (topP !== undefined) base.topP = topP;
  if (topK !== undefined) base.topK = topK;
  return base;
}

/** Generates an answer in `session`, whose cache is reused for whatever the prompt shares with it. Yields parts, a finish part last. */
export async function* generateParts(model: LocalModel, session: Session, prompt: Prompt, options: LocalGenerateOptions = {}): AsyncGenerator<StreamPart, void> {
  const { tokenizer } = model, { signal } = options, { vocabulary } = model.runner.config;
  const maxTokens = options.maxTokens ?? Infinity;
  if (!(maxTokens >= 1) || (maxTokens !== Infinity && !Number.isInteger(maxTokens))) throw new UsageError("bad_option", `maxTokens: expected a whole number from 1, found ${options.maxTokens}`);
  const stopTexts = typeof options.stop === "string" ? [options.stop] : options.stop ?? [];
  if (!Array.isArray(stopTexts) || !stopTexts.every((t) => typeof t === "string")) throw new UsageError("bad_option", "stop: expected a text, or a list of texts");
  if (stopTexts.includes("")) throw new UsageError("bad_option", "stop: an empty text would end every answer at once", "Leave it out.");
  const bias = tokenizer.suppressIds.length === 0 ? options.logitBias
    : new Map([...tokenizer.suppressIds.filter((id) => id < vocabulary).map((id): [number, number] => [id, -Infinity]), ...(options.logitBias ?? [])]);
  const sampling = resolveSampling({ ...options, ...(bias ? { logitBias: bias } : {}) }, vocabulary, fileSampling(model));
  const { ids, opensThought, droppedMessages } = encodePrompt(model, prompt, options);
  const text = tokenizer.model !== "none";
  const { tools, toolChoice, parallelToolCalls, responseFormat: format, thinking } = options;
  using constraint = options.mask || (!tools && !toolChoice && !format) ? undefined : await compileConstraint(tokenizer, { format, tools, toolChoice, parallelToolCalls, thinking, opensThought });
  const parts = text ? new PartStream(tokenizer, { inThought: opensThought }) : undefined;
  const stops = new StopStrings(stopTexts);
  const usage: Usage = { promptTokens: ids.length, ...(droppedMessages ? { droppedMessages } : {}), cachedTokens: 0, completionTokens: 0, thoughtTokens: 0, prefillMs: 0, decodeMs: 0 };
  let reason = "length" as FinishReason, called = false;

  // What the answer has produced and nobody has read yet; its length is bounded by the context.
  const produced: StreamPart[] = [];
  let wake = (): void => {}, ended = false, failed: { readonly error: unknown } | undefined;
  // Stop strings apply to the visible answer: text parts pass through the filter, other parts as they are.
  const emit = (made: readonly Part[]): void => {
    for (const p of made) {
      if (stops.stopped !== undefined) return;
      if (p.type === "tool_call") called = true;
      if (p.type !== "text") { produced.push(p); continue; }
      const visible = stops.push(p.text);
      if (visible !== "") produced.push({ type: "text", text: visible });
    }
  };
  const piece = (id: number): string => (text ? tokenizer.piece(id) : "");
  const start = Bun.nanoseconds();
  let decodeStart = start;
  /** Takes one token; false when it was the last. */
  const onToken = (drawn: Drawn): boolean => {
    if (usage.completionTokens === 0) {
      decodeStart = Bun.nanoseconds();
      usage.prefillMs = (decodeStart - start) / 1e6;
    }
    checkFinite(drawn, usage.completionTokens);
    usage.completionTokens++;
    if (sampling.logprobs >= 0) produced.push({ type: "token", id: drawn.id, text: piece(drawn.id), logprob: drawn.logprob!, top: drawn.top!.map(({ id, logprob }) => ({ id, text: piece(id), logprob })) });
    if (!options.ignoreStop && tokenizer.stopIds.has(drawn.id)) reason = "stop";
    else if (parts) {
      const made = parts.push(drawn.id);
      if (made.some((p) => p.type === "thought")) usage.thoughtTokens++;
      emit(made);
    }
    else produced.push({ type: "text", text: `${drawn.id} ` });
    if (stops.stopped !== undefined) reason = "stop";
    wake();
    return reason !== "stop" && usage.completionTokens < maxTokens && !session.full;
  };
  try {
    const answer = session.answer(ids, { sampling, mask: options.mask ?? constraint, limit: maxTokens, signal, onPrefill: options.onPrefill, onToken });
    usage.cachedTokens = answer.reused;
    const over = (): void => { ended = true; wake(); };
    answer.ended.then(over, (error: unknown) => { failed = { error }; over(); });
    try {
      while (!ended || produced.length > 0) {
        const part = produced.shift();
        if (part) yield part; else await new Promise<void>((resolve) => { wake = resolve; });
      }
    } finally {
      // The reader has left.
      if (!ended) session.stop(new BaoError("abandoned", "Nobody reads the answer any more"));
    }
    if (failed) throw (failed as { readonly error: unknown }).error;
  } catch (e) {
    if (!(signal?.aborted && e === signal.reason) || options.onAbort !== "stop") throw e;
    reason = "abort";
  }
  if (parts && stops.stopped === undefined) {
    emit(parts.end({ cut: reason !== "stop" }));
    const rest = stops.end();
    if (rest !== "") produced.push({ type: "text", text: rest });
    yield* produced;
  }
  usage.decodeMs = (Bun.nanoseconds() - decodeStart) / 1e6;
  yield { type: "finish", reason: called && reason === "stop" ? "tool_calls" : reason, ...(stops.stopped === undefined ? {} : { stop: stops.stopped }), usage };
}

function checkFinite(drawn: Drawn, at: number): void {
  if (drawn.finite) return;
  throw new BaoError("not_finite", `The logits of token ${at + 1} are not finite`, "Every token is forbidden by a bias, or the model file is damaged: --check-finite finds the layer.");
}
