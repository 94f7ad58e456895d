// Memory that a model will take, before anything is loaded: weights, KV pages (windows and shared layers counted once), activations.
import { UsageError } from "../errors.ts";
import type { GgufFile } from "../gguf/index.ts";
import { pagesFor, PAGE_TOKENS } from "../kv/pages.ts";
import type { KvType } from "../native/objects.ts";
import { kvKinds, tailStart, type KvKind, type ModelConfig } from "./config.ts";
import { rowWidths } from "./graph.ts";
import { TensorSizes } from "./loader.ts";
import { familyOf } from "./registry.ts";

/** Sizes that a run is planned with. */
export interface RunPlan {
  /** Tokens a sequence may hold. */
  context: number;
  sequences: number;
  /** Rows of one prefill step. */
  chunk: number;
  /** Rows of one step that may ask for logits. */
  outputs: number;
  kvType: KvType;
}

/** Snapshots (end of prompt, end of turn) that a sequence may pin. */
export const SNAPSHOTS = 2;
const BYTES_PER_VALUE: Record<KvType, number> = { f32: 4, f16: 2, q8_0: 1 + 4 / 32 };
const align = (n: number): number => Math.ceil(n / 128) * 128;

/** Default plan: the chunk is fixed from shapes alone, never from measured time. Throws UsageError `bad_option` that names the option. */
export function planRun(config: ModelConfig, options: Partial<RunPlan> = {}): RunPlan {
  const whole = (name: string, value: number, max: number): void => {
    if (!Number.isInteger(value) || value < 1 || value > max) throw new UsageError("bad_option", `${name}: expected a whole number from 1 to ${max}, found ${value}`);
  };
  if (options.context !== undefined) whole("context", options.context, 1 << 28);
  if (options.sequences !== undefined) whole("sequences", options.sequences, 1024);
  if (options.chunk !== undefined) whole("chunk", options.chunk, 1 << 16);
  const sequences = options.sequences ?? 1;
  const chunk = options.chunk ?? 256;
  if (options.outputs !== undefined) whole("outputs", options.outputs, chunk);
  if (options.kvType !== undefined && !Object.hasOwn(BYTES_PER_VALUE, options.kvType)) throw new UsageError("bad_option", `kvType: expected ${Object.keys(BYTES_PER_VALUE).join(", ")}, found ${options.kvType}`);
  const uneven = options.kvType === "q8_0" ? config.layers.find((l) => l.headDim % 32 !== 0) : undefined;
  if (uneven) throw new UsageError("bad_option", `kvType: q8_0 needs heads of a multiple of 32 values, this model has ${uneven.headDim}`, "Use f16.");
  return { context: options.context ?? Math.min(config.contextLength, 4096), sequences, chunk, outputs: options.outputs ?? Math.min(sequences, chunk), kvType: options.kvType ?? "f16" };
}

/** Pages a pool of this kind needs: every sequence's reachable pages, one chunk more, and what its snapshots can pin. */
export function poolPages(kind: KvKind, plan: RunPlan): number {
  const all = pagesFor(plan.context);
  if (kind.window === 0) return plan.sequences * (all + 1 + SNAPSHOTS);
  const reach = Math.min(all, pagesFor(kind.window + plan.chunk) + 1);
  const pinned = Math.min(all, pagesFor(kind.window) + 1) + 1;
  return plan.sequences * (reach + 1 + SNAPSHOTS * pinned);
}

/** Bytes of one page of a kind, all its layers (the layout of bao_kv_pool_create). */
export function pageBytes(kind: KvKind, type: KvType): number {
  const values = PAGE_TOKENS * kind.headDim;
  const plane = type === "q8_0" ? align(values) + align((values / 32) * 4) : align(values * BYTES_PER_VALUE[type]);
  return kind.layers.length * 2 * kind.kvHeads * plane;
}

export interface MemoryEstimate {
  /** File pages that stay mapped (reclaimable, shared between processes). */
  weights: number;
  kv: number;
  activations: number;
  logits: number;
  /** kv + activations + logits: memory that the process allocates. */
  allocated: number;
  /** Bytes of weights that one decoded token reads. */
  bytesPerToken: number;
}

/** Estimate for a file whose family and tensors are valid; throws ModelFileError otherwise. */
export function estimateMemory(file: GgufFile, config: ModelConfig, plan: RunPlan): MemoryEstimate {
  const sizes = new TensorSizes(file);
  familyOf(file).weights(config, sizes);
  sizes.check.finish();
  const kv = kvKinds(config).reduce((n, k) => n + poolPages(k, plan) * pageBytes(k, plan.kvType), 0);
  const width = Object.values(rowWidths(config)).reduce((a, b) => a + b, 0);
  const activations = (plan.chunk + (tailStart(config) < config.layers.length ? plan.outputs : 1)) * width * 4;
  const logits = plan.outputs * config.vocabulary * 4;
  const { moe } = config;
  const tied = !file.tensors.has("output.weight");
  // A separate output matrix makes the embedding a row lookup.
  const embedding = tied ? 0 : (file.tensors.get("token_embd.weight")?.bytes ?? 0);
  const bytesPerToken = sizes.matmulBytes - embedding + (moe ? sizes.expertBytes * (moe.used / moe.experts) : 0);
  return { weights: sizes.bytes, kv, activations, logits, allocated: kv + activations + logits, bytesPerToken };
}
