// Messages between the caller's thread and the engine Worker, and errors across that border.
import { BaoError, DisposedError, KernelError, ModelFileError, ResourceError, UsageError, type ErrorClass } from "../errors.ts";
import type { DeviceInfo } from "../native/objects.ts";
import type { MemoryEstimate, RunPlan } from "../model/estimate.ts";
import type { GenerateOptions, Prompt, StreamPart } from "./generate.ts";
import type { LoadOptions, LoadTimes } from "./model.ts";

/** What a loaded model says of itself. */
export interface ModelInfo {
  readonly path: string;
  readonly name: string;
  readonly architecture: string;
  readonly vocabulary: number;
  readonly contextLength: number;
  readonly plan: RunPlan;
  readonly estimate: MemoryEstimate;
  readonly device: DeviceInfo;
  readonly loadTimes: LoadTimes;
  /** Oddities of the file that were worked around. */
  readonly warnings: readonly string[];
}

export type WorkerOptions = Omit<LoadOptions, "onOp" | "keepHidden">;
export type WorkerGenerateOptions = Omit<GenerateOptions, "signal">;

/** `session` 0 = any idle session of the model. */
export type Call =
  | { readonly kind: "load"; readonly path: string; readonly options: WorkerOptions }
  | { readonly kind: "generate"; readonly model: number; readonly session: number; readonly prompt: Prompt; readonly options: WorkerGenerateOptions }
  | { readonly kind: "tokenize"; readonly model: number; readonly text: string; readonly options: { parse?: "none" | "markers" | "all"; bos?: boolean } }
  | { readonly kind: "detokenize"; readonly model: number; readonly ids: readonly number[]; readonly special: boolean }
  | { readonly kind: "openSession"; readonly model: number }
  | { readonly kind: "closeSession"; readonly model: number; readonly session: number }
  | { readonly kind: "dispose"; readonly model: number };

export type ToWorker = { readonly request: number; readonly call: Call } | { readonly request: number; readonly cancel: true };
export type FromWorker =
  | { readonly request: number; readonly parts: readonly StreamPart[] }
  | { readonly request: number; readonly done: unknown }
  | { readonly request: number; readonly error: PackedError };

export interface PackedError { readonly name: string; readonly code: string; readonly message: string; readonly hint: string; readonly kind: ErrorClass; readonly fn: string; readonly status: number; readonly stack: string }

/** An error as plain values. */
export function packError(e: unknown): PackedError {
  const error = e instanceof Error ? e : new Error(String(e));
  const known = error instanceof BaoError ? error : undefined;
  return {
    name: error.name, code: known?.code ?? "internal", message: error.message, hint: known?.hint ?? "", kind: known?.kind ?? "runtime",
    fn: error instanceof KernelError ? error.fn : "", status: error instanceof KernelError ? error.status : 0, stack: error.stack ?? "",
  };
}

/** The same error, of its own class, in the other thread. */
export function unpackError(p: PackedError): BaoError {
  const cause = { cause: p.stack };
  switch (p.name) {
    case "UsageError": return new UsageError(p.code, p.message, p.hint, cause);
    case "ModelFileError": return new ModelFileError(p.code, p.message, p.hint, cause);
    case "ResourceError": return new ResourceError(p.code, p.message, p.hint, cause);
    case "KernelError": return new KernelError(p.code, p.message, p.fn, p.status, p.hint);
    case "DisposedError": return new DisposedError(p.message.replace(/ was used after.*/, ""));
    default: return new BaoError(p.code, p.message, p.hint, cause);
  }
}
