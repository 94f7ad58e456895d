// Sampling parameters: defaults, checks, and how they are written into a step block. The drawing itself happens on the device.
import { UsageError } from "../errors.ts";
import type { StepSlot } from "../native/objects.ts";
import { BAO } from "../native/symbols.ts";

export interface SamplingOptions {
  /** 0 = greedy. */
  temperature?: number;
  /** Keep the k most likely tokens; 0 = all. */
  topK?: number;
  /** Keep the smallest set of tokens whose mass reaches p; 1 = off. */
  topP?: number;
  /** Drop tokens less likely than minP times the most likely one; 0 = off. */
  minP?: number;
  /** Penalties over the last 64 tokens, prompt included; 1, 0 and 0 = off. */
  repetitionPenalty?: number;
  presencePenalty?: number;
  frequencyPenalty?: number;
  /** Same seed, same prompt, same options: same text. */
  seed?: number;
  /** Added to the logits of single tokens; -Infinity forbids one. */
  logitBias?: ReadonlyMap<number, number>;
  /** Report log-probabilities, with this many alternatives (0-20). */
  logprobs?: number;
}

export type Sampling = Required<Omit<SamplingOptions, "logprobs" | "logitBias">> & { logprobs: number; logitBias: ReadonlyMap<number, number> };

export const MAX_BIAS = 1024;
const RANGES = {
  temperature: [0, 100], topK: [0, 1 << 30], topP: [0, 1], minP: [0, 1], repetitionPenalty: [0.01, 100], presencePenalty: [-100, 100], frequencyPenalty: [-100, 100],
  seed: [0, Number.MAX_SAFE_INTEGER], logprobs: [-1, 20],
} as const;

/** Options with defaults filled in and every value checked. Throws UsageError `bad_sampling` that names the option. */
export function resolveSampling(options: SamplingOptions, vocabulary: number, base: SamplingOptions = {}): Sampling {
  const pick = <K extends keyof SamplingOptions>(k: K): SamplingOptions[K] => options[k] ?? base[k];
  const s: Sampling = {
    temperature: pick("temperature") ?? 0.8, topK: pick("topK") ?? 40, topP: pick("topP") ?? 0.95, minP: pick("minP") ?? 0,
    repetitionPenalty: pick("repetitionPenalty") ?? 1, presencePenalty: pick("presencePenalty") ?? 0, frequencyPenalty: pick("frequencyPenalty") ?? 0,
    seed: pick("seed") ?? Math.trunc(Math.random() * 2 ** 48), logitBias: pick("logitBias") ?? new Map(), logprobs: pick("logprobs") ?? -1,
  };
  for (const [name, [min, max]] of Object.entries(RANGES)) {
    const value = s[name as keyof typeof RANGES];
    if (typeof value !== "number" || !(value >= min && value <= max)) throw new UsageError("bad_sampling", `${name}: expected a number from ${min} to ${max}, found ${typeof value === "string" ? JSON.stringify(value) : value}`);
  }
  if (s.topP === 0) throw new UsageError("bad_sampling", "topP: expected more than 0", "Use temperature 0 for greedy decoding.");
  for (const name of ["topK", "seed", "logprobs"] as const) if (!Number.isInteger(s[name])) throw new UsageError("bad_sampling", `${name}: expected a whole number, found ${s[name]}`);
  // Anything else has no size, and would be left out in silence.
  if (!(s.logitBias instanceof Map)) throw new UsageError("bad_sampling", "logitBias: expected a Map of token ids to numbers", "For example new Map([[17, -5]]).");
  if (s.logitBias.size > MAX_BIAS) throw new UsageError("bad_sampling", `logitBias: at most ${MAX_BIAS} tokens, found ${s.logitBias.size}`);
  for (const [id, bias] of s.logitBias) {
    if (!Number.isInteger(id) || id < 0 || id >= vocabulary) throw new UsageError("bad_sampling", `logitBias: token ${id} is not in the vocabulary of ${vocabulary}`);
    // The device adds float32: 1e39 would be infinite there.
    if (typeof bias !== "number" || !(Math.fround(bias) < Infinity)) throw new UsageError("bad_sampling", `logitBias: the bias of token ${id} is ${bias}`);
  }
  return s;
}

/** Writes one output row's sampler record; returns the next free bias entry. */
export function writeSampler(slot: StepSlot, output: number, s: Sampling, biasStart: number, hold: boolean): number {
  const at = output * BAO.SAMPLER_WORDS, f = slot.samplerF32, i = slot.sampler;
  f[at + BAO.SAMPLER_TEMPERATURE] = s.temperature;
  i[at + BAO.SAMPLER_TOP_K] = s.topK;
  f[at + BAO.SAMPLER_TOP_P] = s.topP;
  f[at + BAO.SAMPLER_MIN_P] = s.minP;
  f[at + BAO.SAMPLER_REPETITION] = s.repetitionPenalty;
  f[at + BAO.SAMPLER_PRESENCE] = s.presencePenalty;
  f[at + BAO.SAMPLER_FREQUENCY] = s.frequencyPenalty;
  i[at + BAO.SAMPLER_SEED_LOW] = s.seed % 2 ** 32 | 0;
  i[at + BAO.SAMPLER_SEED_HIGH] = Math.trunc(s.seed / 2 ** 32) | 0;
  i[at + BAO.SAMPLER_TOP_LOGPROBS] = s.logprobs;
  i[at + BAO.SAMPLER_FLAGS] = hold ? BAO.SAMPLE_HOLD : 0;
  i[at + BAO.SAMPLER_BIAS_START] = biasStart;
  i[at + BAO.SAMPLER_BIAS_COUNT] = s.logitBias.size;
  let next = biasStart;
  for (const [id, bias] of s.logitBias) {
    slot.bias[next * 2] = id;
    slot.biasF32[next * 2 + 1] = bias;
    next++;
  }
  return next;
}

/** One of the most likely tokens of a row. */
export interface RankedToken { id: number; logprob: number }
/** What the device drew for one output row. */
export interface Drawn { id: number; finite: boolean; logprob?: number; top?: RankedToken[] }

/** Reads one row of a slot's RESULT field. */
export function readResult(slot: StepSlot, output: number, withLogprobs: boolean): Drawn {
  const at = output * BAO.RESULT_WORDS, i = slot.result, f = slot.resultF32;
  const drawn: Drawn = { id: i[at + BAO.RESULT_ID]!, finite: i[at + BAO.RESULT_FINITE] !== 0 };
  if (!withLogprobs) return drawn;
  drawn.logprob = f[at + BAO.RESULT_LOGPROB]!;
  drawn.top = Array.from({ length: i[at + BAO.RESULT_TOP_COUNT]! }, (_, n) => ({ id: i[at + BAO.RESULT_TOP_IDS + n]!, logprob: f[at + BAO.RESULT_TOP_LOGPROBS + n]! }));
  return drawn;
}
