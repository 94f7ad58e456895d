// Shared by the model tests and scripts/reference/verify.ts: runs a converted checkpoint against what transformers computed for it.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { openGguf } from "../../src/gguf/index.ts";
import { Runner, type RunnerOptions, type Sequence } from "../../src/engine/runner.ts";
import { openSafetensors } from "../../src/safetensors/index.ts";
import type { BackendName } from "../../src/native/library.ts";
import type { Sampling } from "../../src/sample/params.ts";

/** Where the model tests run: BAO_TEST_DEVICE=cpu|cuda|metal. */
export const TEST_DEVICE = (process.env["BAO_TEST_DEVICE"] || "cpu") as BackendName;

/** Milliseconds that a test may take: an emulated GPU needs minutes for thousands of tokens. */
export const TIME_LIMIT = TEST_DEVICE === "metal" ? 3_600_000 : 60_000;

/** What transformers computed (float32) for one checkpoint. */
export interface Reference {
  readonly prompts: Record<string, number[]>;
  readonly greedy: Record<string, number[]>;
  /** Values of a tensor of reference.safetensors. */
  tensor(name: string): Float32Array;
  has(name: string): boolean;
}

export function readReference(folder: string): Reference {
  const json = JSON.parse(readFileSync(join(folder, "reference.json"), "utf8")) as { prompts: Record<string, number[]>; greedy: Record<string, number[]> };
  const file = openSafetensors(join(folder, "reference.safetensors"));
  return {
    ...json,
    has: (name) => file.tensors.has(name),
    tensor: (name) => { const bytes = file.read(name); return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength)); },
  };
}

/** Norm of the difference over norm of the reference. */
export function relativeError(found: Float32Array, expected: Float32Array): number {
  if (found.length !== expected.length) throw new Error(`${found.length} values against ${expected.length}`);
  let difference = 0, norm = 0;
  for (let i = 0; i < found.length; i++) { difference += (found[i]! - expected[i]!) ** 2; norm += expected[i]! ** 2; }
  return Math.sqrt(difference / norm);
}

export const GREEDY: Sampling = { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, seed: 0, logitBias: new Map(), logprobs: -1 };

export interface RunOptions { chunk?: number; outputs?: number; threads?: number; unfused?: boolean; reference?: boolean; keepHidden?: boolean; sequences?: number; precision?: "exact" | "fast"; isa?: "auto" | "base" | "avx2" | "avx512"; kvType?: "f32" | "f16" | "q8_0"; context?: number }

/** A runner in exact precision with an f32 cache, every row of a step able to give logits. */
export function openRunner(path: string, o: RunOptions = {}): Runner {
  const chunk = o.chunk ?? 64;
  const options: RunnerOptions = {
    device: { backend: o.reference ? "cpu" : TEST_DEVICE, threads: o.threads ?? 1, precision: o.precision ?? "exact", reference: o.reference ?? false, isa: o.isa ?? "auto" },
    plan: { chunk, outputs: o.outputs ?? chunk, context: o.context ?? 512, kvType: o.kvType ?? "f32", sequences: o.sequences ?? 1 },
    ...(o.unfused ? { unfused: true } : {}), ...(o.keepHidden ? { keepHidden: true } : {}),
  };
  return new Runner(openGguf(path), options);
}

/** Logits of the last `rows` (default all) positions of a prompt, in chunks of the runner's size. */
export async function promptLogits(runner: Runner, sequence: Sequence, ids: readonly number[], last = ids.length): Promise<Float32Array> {
  const vocabulary = runner.config.vocabulary, out = new Float32Array(last * vocabulary), from = ids.length - last;
  for (let at = 0; at < ids.length; at += runner.plan.chunk) {
    const chunk = ids.slice(at, at + runner.plan.chunk), end = at + chunk.length;
    const result = await runner.run([{ sequence, ids: chunk, logits: end > from ? "all" : "none" }]);
    if (result === "cancelled") throw new Error("cancelled");
    if (end <= from) continue;
    const skip = Math.max(0, from - at);
    out.set(runner.logits(result[0]!.outputRow + skip, chunk.length - skip), (at + skip - from) * vocabulary);
  }
  return out;
}

/** Greedy continuation of a prompt by decode steps. */
export async function greedy(runner: Runner, ids: readonly number[], count: number): Promise<number[]> {
  const sequence = runner.open();
  try {
    const out: number[] = [];
    for (let at = 0; at < ids.length; at += runner.plan.chunk) {
      const chunk = ids.slice(at, at + runner.plan.chunk), last = at + chunk.length === ids.length;
      const r = await runner.run([{ sequence, ids: chunk, logits: last ? "last" : "none", ...(last ? { sampling: GREEDY } : {}) }]);
      if (r !== "cancelled" && last) out.push(r[0]!.drawn!.id);
    }
    while (out.length < count) {
      const r = await runner.run([{ sequence, ids: "next", logits: "last", sampling: GREEDY }]);
      if (r === "cancelled") throw new Error("cancelled");
      out.push(r[0]!.drawn!.id);
    }
    return out;
  } finally {
    runner.close(sequence);
  }
}
