// The public API of bao-llm. Exports only.
export { estimate, load, Generation, Model, ModelSession, type SessionSnapshot } from "./engine/client.ts";
export type { EmbedOptions, EstimateOptions, LoadModelOptions } from "./engine/options.ts";
export type { FinishReason, GenerateOptions, Prompt, StreamPart, TokenLogprob, Usage } from "./engine/generate.ts";
export type { LoadProgress } from "./engine/model.ts";
export type { Embedding, ModelEstimate, ModelInfo } from "./engine/protocol.ts";
export { act, Acting, tool, type ActOptions, type ActPart, type ActResult, type Answerer, type Tool, type ToolContext } from "./act.ts";
export type { JsonSchema, Message, Part, SchemaObject, ToolCall, ToolInput } from "./chat/index.ts";
export type { ResponseFormat, ToolChoice } from "./structured/index.ts";
export type { SamplingOptions } from "./sample/params.ts";
export type { MemoryEstimate, RunPlan } from "./model/estimate.ts";
export { BaoError, DisposedError, KernelError, ModelFileError, ResourceError, UsageError, type ErrorClass } from "./errors.ts";
