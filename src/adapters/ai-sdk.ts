// A loaded model as a language model of the Vercel AI SDK (specification V4), in this process, without HTTP. Types of @ai-sdk/provider only: nothing of it
// runs here. What the SDK asks for and the engine has not becomes a warning, as the SDK wants it; what would lose a part of the prompt is refused.
import type {
  EmbeddingModelV4, LanguageModelV4, LanguageModelV4CallOptions, LanguageModelV4Content, LanguageModelV4FinishReason, LanguageModelV4GenerateResult, LanguageModelV4StreamPart, LanguageModelV4Usage, SharedV4Warning,
} from "@ai-sdk/provider";
import type { FinishReason, GenerateOptions, Prompt, StreamPart, Usage } from "../engine/generate.ts";
import type { ModelInfo } from "../engine/protocol.ts";
import { BaoError } from "../errors.ts";
import { modelName } from "../server/name.ts";
import { toMessages } from "./ai-sdk-prompt.ts";

/** What the adapter needs of a model; `load()` gives one. */
export interface AdaptedModel {
  readonly info: Pick<ModelInfo, "path" | "chat">;
  generate(prompt: Prompt, options?: GenerateOptions): AsyncIterable<StreamPart>;
}

/** The same for embeddings. */
export interface EmbeddingSource {
  readonly info: { readonly path: string };
  embed(inputs: readonly string[], options?: { signal?: AbortSignal }): Promise<readonly { readonly vector: Float32Array; readonly tokens: number }[]>;
}

/** Settings of ours that the SDK has no name for: `providerOptions: { bao: { ... } }`. */
const OWN_OPTIONS = ["minP", "repetitionPenalty"] as const;

/** A language model for `generateText`, `streamText` and the rest of the SDK. The model stays the caller's, who disposes of it. */
export function languageModel(model: AdaptedModel, modelId: string = modelName(model.info.path)): LanguageModelV4 {
  return {
    specificationVersion: "v4", provider: "bao", modelId, supportedUrls: {},
    async doGenerate(options) {
      const { call, warnings } = callOf(model, options);
      return collect(model.generate(toMessages(options.prompt), call), warnings, modelId);
    },
    async doStream(options) {
      const { call, warnings } = callOf(model, options);
      // An error of ours belongs to the first read: the SDK turns it into an error part of its own.
      const parts = streamed(model.generate(toMessages(options.prompt), call), warnings, modelId);
      return {
        stream: new ReadableStream<LanguageModelV4StreamPart>({
          async pull(controller) {
            try {
              const { value, done } = await parts.next();
              if (done) controller.close();
              else controller.enqueue(value);
            } catch (e) {
              controller.error(e);
            }
          },
          // Leaving the generation's loop ends its work.
          async cancel() { await parts.return(); },
        }),
      };
    },
  };
}

/** An embedding model for `embed` and `embedMany`: vectors of length 1. The model stays the caller's. */
export function embeddingModel(model: EmbeddingSource, modelId: string = modelName(model.info.path)): EmbeddingModelV4 {
  return {
    specificationVersion: "v4", provider: "bao", modelId, maxEmbeddingsPerCall: undefined, supportsParallelCalls: true,
    async doEmbed({ values, dimensions, abortSignal }) {
      const made = await model.embed(values, abortSignal ? { signal: abortSignal } : {});
      return {
        embeddings: made.map((m) => [...m.vector]), usage: { tokens: made.reduce((n, m) => n + m.tokens, 0) },
        warnings: dimensions === undefined ? [] : [{ type: "unsupported", feature: "dimensions", details: "Vectors have the model's own size." }],
      };
    },
  };
}

/** The engine's options, and what of the SDK's was left out. */
function callOf({ info: { chat } }: AdaptedModel, o: LanguageModelV4CallOptions): { call: GenerateOptions; warnings: SharedV4Warning[] } {
  const call: GenerateOptions = {}, warnings: SharedV4Warning[] = [];
  const unsupported = (feature: string, details?: string): void => { warnings.push({ type: "unsupported", feature, ...(details === undefined ? {} : { details }) }); };
  if (o.maxOutputTokens !== undefined) call.maxTokens = o.maxOutputTokens;
  if (o.temperature !== undefined) call.temperature = o.temperature;
  if (o.topP !== undefined) call.topP = o.topP;
  if (o.topK !== undefined) call.topK = o.topK;
  if (o.presencePenalty !== undefined) call.presencePenalty = o.presencePenalty;
  if (o.frequencyPenalty !== undefined) call.frequencyPenalty = o.frequencyPenalty;
  if (o.seed !== undefined) call.seed = o.seed;
  if (o.stopSequences?.length) call.stop = o.stopSequences;
  if (o.abortSignal) call.signal = o.abortSignal;
  if (o.reasoning !== undefined && o.reasoning !== "provider-default") {
    const wanted = o.reasoning !== "none";
    if (wanted && chat?.thinking === false) unsupported("reasoning", "This model does not think before it answers.");
    else call.thinking = wanted;
    if (call.thinking) warnings.push({ type: "compatibility", feature: "reasoning", details: "Thinking is on or off: its effort is up to the model." });
  }
  // Guaranteed by a grammar; a schema that cannot be is an error of the engine's.
  if (o.responseFormat?.type === "json") call.responseFormat = o.responseFormat.schema === undefined ? { type: "json_object" } : { type: "json_schema", schema: o.responseFormat.schema as Record<string, unknown> };
  for (const [key, value] of Object.entries(o.providerOptions?.["bao"] ?? {})) {
    const own = OWN_OPTIONS.find((name) => name === key);
    if (own && typeof value === "number") call[own] = value;
    else unsupported(`providerOptions.bao.${key}`);
  }
  if (o.tools?.length) {
    if (o.toolChoice) call.toolChoice = o.toolChoice.type === "tool" ? { name: o.toolChoice.toolName } : o.toolChoice.type;
    if ((o.toolChoice?.type ?? "auto") === "auto" && chat?.tools === false) unsupported("tools", "This model's chat template does not tell it of tools.");
    call.tools = o.tools.flatMap((t) => {
      if (t.type !== "function") { unsupported(`provider tool ${t.id}`); return []; }
      if (t.inputExamples?.length) unsupported("tool input examples");
      return [{ name: t.name, ...(t.description === undefined ? {} : { description: t.description }), parameters: t.inputSchema as Record<string, unknown>, ...(t.strict ? { strict: true } : {}) }];
    });
  }
  return { call, warnings };
}

const usageOf = (u: Usage): LanguageModelV4Usage => ({
  inputTokens: { total: u.promptTokens, noCache: u.promptTokens - u.cachedTokens, cacheRead: u.cachedTokens, cacheWrite: undefined },
  outputTokens: { total: u.completionTokens, text: u.completionTokens - u.thoughtTokens, reasoning: u.thoughtTokens },
  raw: { ...u },
});
const REASONS = { stop: "stop", length: "length", tool_calls: "tool-calls", abort: "other" } as const satisfies Record<FinishReason, LanguageModelV4FinishReason["unified"]>;

/** Parts as the SDK's: stretches of text and thought get a start, an end and an id. A call that cannot be read is an error part, and the finish says so. */
async function* streamed(parts: AsyncIterable<StreamPart>, warnings: SharedV4Warning[], modelId: string): AsyncGenerator<LanguageModelV4StreamPart, void> {
  yield { type: "stream-start", warnings };
  yield { type: "response-metadata", id: crypto.randomUUID(), modelId, timestamp: new Date() };
  let open: { kind: "text" | "reasoning"; id: string } | undefined, stretches = 0, failed = false;
  const close = function* (): Generator<LanguageModelV4StreamPart> {
    if (open) yield { type: `${open.kind}-end`, id: open.id };
    open = undefined;
  };
  for await (const part of parts) {
    if (part.type === "text" || part.type === "thought") {
      const kind = part.type === "text" ? "text" : "reasoning";
      if (open?.kind !== kind) {
        yield* close();
        open = { kind, id: String(stretches++) };
        yield { type: `${kind}-start`, id: open.id };
      }
      yield { type: `${kind}-delta`, id: open.id, delta: part.text };
    } else if (part.type === "tool_call") {
      yield* close();
      const id = crypto.randomUUID(), input = JSON.stringify(part.arguments);
      yield { type: "tool-input-start", id, toolName: part.name };
      yield { type: "tool-input-delta", id, delta: input };
      yield { type: "tool-input-end", id };
      yield { type: "tool-call", toolCallId: id, toolName: part.name, input };
    } else if (part.type === "error") {
      yield* close();
      failed = true;
      yield { type: "error", error: new BaoError(part.code, part.message, `The model wrote: ${part.raw}`) };
    } else if (part.type === "finish") {
      yield* close();
      yield { type: "finish", usage: usageOf(part.usage), finishReason: { unified: failed ? "error" : REASONS[part.reason], raw: part.reason } };
    }
  }
}

/** The same parts as one result. Throws the error of a call that cannot be read. */
async function collect(parts: AsyncIterable<StreamPart>, warnings: SharedV4Warning[], modelId: string): Promise<LanguageModelV4GenerateResult> {
  const content: LanguageModelV4Content[] = [];
  for await (const part of streamed(parts, warnings, modelId)) {
    const last = content.at(-1);
    switch (part.type) {
      case "text-start": content.push({ type: "text", text: "" }); break;
      case "reasoning-start": content.push({ type: "reasoning", text: "" }); break;
      case "text-delta": case "reasoning-delta": if (last?.type === "text" || last?.type === "reasoning") last.text += part.delta; break;
      case "tool-call": content.push(part); break;
      case "error": throw part.error;
      case "finish": return { content, finishReason: part.finishReason, usage: part.usage, warnings, response: { modelId, timestamp: new Date() } };
    }
  }
  throw new BaoError("internal", "The generation ended without a finish part");
}
