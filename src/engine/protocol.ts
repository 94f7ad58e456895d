// Messages between the caller's thread and the engine Worker, and errors across that border.
import { BaoError, DisposedError, KernelError, ModelFileError, ResourceError, UsageError, type ErrorClass } from "../errors.ts";
import type { BackendName } from "../native/library.ts";
import type { DeviceInfo, DeviceOptions } from "../native/objects.ts";
import type { MemoryEstimate, RunPlan } from "../model/estimate.ts";
import type { GenerateOptions, Prompt, StreamPart } from "./generate.ts";
import type { LoadOptions, LoadProgress, LoadTimes } from "./model.ts";

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
  /** Oddities of the file that were worked around; a faster device that is here and cannot be used. */
  readonly warnings: readonly string[];
  /** What the file's chat template knows of; undefined without a usable one. */
  readonly chat: { readonly tools: boolean; readonly thinking: boolean } | undefined;
}

/** What a file would take if it were loaded. */
export interface ModelEstimate {
  readonly path: string;
  readonly name: string;
  readonly architecture: string;
  readonly contextLength: number;
  readonly plan: RunPlan;
  readonly memory: MemoryEstimate;
}

/** A text's mean hidden state, and how many tokens it had. */
export interface Embedding { readonly vector: Float32Array; readonly tokens: number }

/** Where to run. `auto`, the default, is the fastest device that is here: metal, then cuda, then cpu. */
export interface WantedDevice extends Omit<DeviceOptions, "backend"> { backend?: BackendName | "auto" }
export type WorkerOptions = Omit<LoadOptions, "onOp" | "keepHidden" | "onProgress" | "device"> & { device?: WantedDevice };
export type WorkerGenerateOptions = Omit<GenerateOptions, "signal">;

/** What a session is asked besides answers. `rewind` takes tokens away, or goes back to a length. */
export type SessionDeed =
  | { readonly kind: "fork" | "snapshot" | "tokens" }
  | { readonly kind: "rewind"; readonly by?: number; readonly to?: number }
  | { readonly kind: "save" | "restore"; readonly path: string };

/** `session` 0 = any idle session of the model. */
export type Call =
  | { readonly kind: "load"; readonly path: string; readonly options: WorkerOptions; readonly progress: boolean }
  | { readonly kind: "generate"; readonly model: number; readonly session: number; readonly prompt: Prompt; readonly options: WorkerGenerateOptions }
  | { readonly kind: "tokenize"; readonly model: number; readonly text: string; readonly options: { parse?: "none" | "markers" | "all"; bos?: boolean } }
  | { readonly kind: "detokenize"; readonly model: number; readonly ids: readonly number[]; readonly special: boolean }
  | { readonly kind: "openSession"; readonly model: number }
  | { readonly kind: "estimate"; readonly path: string; readonly options: WorkerOptions }
  | { readonly kind: "embed"; readonly model: number; readonly inputs: readonly (string | readonly number[])[]; readonly normalize: boolean }
  | { readonly kind: "session"; readonly model: number; readonly session: number; readonly does: SessionDeed }
  | { readonly kind: "closeSession"; readonly model: number; readonly session: number }
  | { readonly kind: "dispose"; readonly model: number };

/** `libraries`: first of all, in a compiled program. */
export type ToWorker = { readonly libraries: Partial<Record<BackendName, string>> } | { readonly request: number; readonly call: Call } | { readonly request: number; readonly cancel: true };
export type FromWorker =
  | { readonly request: number; readonly parts: readonly StreamPart[] }
  | { readonly request: number; readonly progress: LoadProgress }
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
