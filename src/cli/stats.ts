// What --stats and --json say of a run: where time and memory went, and which device did the work. Formats; measures nothing.
import { basename } from "node:path";
import type { Usage } from "../engine/generate.ts";
import { BAO } from "../native/symbols.ts";
import type { Loaded } from "./load.ts";
import { bytes, milliseconds, rate } from "./units.ts";

const perSecond = (n: number): string => `${n >= 100 ? n.toFixed(0) : n.toFixed(2)} tok/s`;

/** Numbers of one answer. The first token comes out of the prefill, so decoding made one less than were generated. */
export interface Timings {
  prefillTokens: number;
  prefillMs: number;
  prefillTokensPerSecond: number;
  decodeTokens: number;
  decodeMs: number;
  decodeTokensPerSecond: number;
  /** Weights that decoding read, in GB/s. */
  weightGBPerSecond: number;
}
export function timings(usage: Usage, bytesPerToken: number): Timings {
  const prefillTokens = usage.promptTokens - usage.cachedTokens, decodeTokens = Math.max(0, usage.completionTokens - 1);
  const decodeTokensPerSecond = rate(decodeTokens, usage.decodeMs);
  return {
    prefillTokens, prefillMs: usage.prefillMs, prefillTokensPerSecond: rate(prefillTokens, usage.prefillMs),
    decodeTokens, decodeMs: usage.decodeMs, decodeTokensPerSecond, weightGBPerSecond: (decodeTokensPerSecond * bytesPerToken) / 1e9,
  };
}

/** Lines about the model, the device and its memory. */
export function modelLines(loaded: Loaded): string[] {
  const { model, choice } = loaded, { runner, estimate, loadTimes } = model, { device, config, plan } = runner, { info } = device;
  const used = (what: "weights" | "kv" | "scratch" | "buffers"): string => bytes(Math.max(0, device.memory(what)));
  const file = model.file.shards.reduce((n, s) => n + s.sizeBytes, 0);
  return [
    `model      ${basename(loaded.path)}: ${config.architecture}, ${config.layers.length} layers, ${bytes(file)}${runner.unused.length > 0 ? `, ${runner.unused.length} tensors unused` : ""}`,
    `device     ${info.backend}: ${info.name}, ${info.isa}, ${info.threads} threads (${choice.why})`,
    `precision  ${info.precision}, KV ${plan.kvType}`,
    `load       open ${milliseconds(loadTimes.open)}, tokenizer ${milliseconds(loadTimes.tokenizer)}, weights ${milliseconds(loadTimes.weights)}, warm-up ${milliseconds(loadTimes.warmup)}`,
    `memory     weights ${bytes(estimate.weights)} ${device.caps & BAO.CAP_HOST_MEMORY ? "mapped" : `mapped, ${used("weights")} on the device`}, KV ${used("kv")}, activations ${used("buffers")}, scratch ${used("scratch")}`,
    `context    ${plan.context} tokens, prefill in chunks of ${plan.chunk}, ${plan.outputs} rows with logits a step`,
  ];
}

/** Lines about one answer. */
export function runLines(usage: Usage, bytesPerToken: number): string[] {
  const t = timings(usage, bytesPerToken);
  return [
    `prefill    ${t.prefillTokens} tokens in ${milliseconds(t.prefillMs)}: ${perSecond(t.prefillTokensPerSecond)}${usage.cachedTokens > 0 ? `, ${usage.cachedTokens} more were cached` : ""}`,
    `decode     ${t.decodeTokens} tokens in ${milliseconds(t.decodeMs)}: ${perSecond(t.decodeTokensPerSecond)}; ${bytes(bytesPerToken)} of weights a token, ${t.weightGBPerSecond.toFixed(2)} GB/s`,
  ];
}
