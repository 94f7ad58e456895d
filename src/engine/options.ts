// Options of the public API that are not about an answer.
import type { LoadProgress } from "./model.ts";
import type { WorkerOptions } from "./protocol.ts";

/** What decides how much memory a model takes. */
export interface EstimateOptions extends Pick<WorkerOptions, "device" | "context" | "kvType" | "chunk"> {
  /** Conversations that can be kept, and answered, at the same time, each with its own cache. Default 1. */
  sessions?: number;
}
export interface LoadModelOptions extends EstimateOptions, Pick<WorkerOptions, "unfused" | "warmup"> {
  signal?: AbortSignal;
  onProgress?: (progress: LoadProgress) => void;
}
export interface EmbedOptions {
  /** Divide by the length, so that a dot product is the cosine. Default true. */
  normalize?: boolean;
  signal?: AbortSignal;
}
