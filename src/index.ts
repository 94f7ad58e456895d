// The public API of bao-llm. Exports only.
export { load, Generation, Model, ModelSession, type LoadModelOptions } from "./engine/client.ts";
export type { FinishReason, GenerateOptions, Prompt, StreamPart, Usage } from "./engine/generate.ts";
export type { ModelInfo } from "./engine/protocol.ts";
export type { Message, Part, ToolCall, ToolInput } from "./chat/index.ts";
export type { SamplingOptions, TokenLogprob } from "./sample/params.ts";
export type { MemoryEstimate, RunPlan } from "./model/estimate.ts";
export { BaoError, DisposedError, KernelError, ModelFileError, ResourceError, UsageError, type ErrorClass } from "./errors.ts";
