// Options that several commands share: which model on which device, and how tokens are drawn. Turns them into what the engine takes.
import type { Options } from "yargs";
import { UsageError } from "../errors.ts";
import type { GenerateOptions } from "../engine/generate.ts";
import type { LoadOptions } from "../engine/model.ts";
import { parseBias } from "./input.ts";

/** The last of a repeated option, which yargs gives as an array. */
const last = <T>(value: T | T[]): T => (Array.isArray(value) ? value.at(-1)! : value);

export function text(description: string, more: Options = {}): Options {
  return { type: "string", description, requiresArg: true, coerce: last, ...more };
}
export function flag(description: string, more: Options = {}): Options {
  return { type: "boolean", description, coerce: last, ...more };
}
export function choice(description: string, choices: readonly string[], more: Options = {}): Options {
  return { type: "string", description, choices, requiresArg: true, coerce: last, ...more };
}
export function list(description: string, more: Options = {}): Options {
  return { type: "string", array: true, description, requiresArg: true, ...more };
}
/** Options that are numbers, so that help can say so. */
export const NUMBERS = new Set<string>();

/** A number; `whole` and `min` are checked here, finer limits by the engine. */
export function number(name: string, description: string, limits: { whole?: boolean; min?: number } = {}, more: Options = {}): Options {
  const check = (given: string | string[]): number => {
    const word = last(given), n = word.trim() === "" ? NaN : Number(word), { whole = false, min = -Infinity } = limits;
    if (Number.isNaN(n) || (whole && !Number.isSafeInteger(n)) || n < min) {
      throw new UsageError("bad_option", `--${name}: expected a ${whole ? "whole " : ""}number${min === -Infinity ? "" : `, ${min} or more`}, found ${JSON.stringify(word)}`);
    }
    return n;
  };
  NUMBERS.add(name);
  // A text for the parser: of numbers it adds a repeated 1 up instead of replacing what was there.
  return { type: "string", description, requiresArg: true, coerce: check, ...more };
}

const MODEL = { group: "Model:" };
const SAMPLING = { group: "Sampling:" };

/** Which model, where and how it runs. */
export const modelOptions = {
  model: text("GGUF file, or a name on the hub: hf:org/repo:Q4_K_M (default: the model embedded in the package)", { alias: "m", ...MODEL }),
  ctx: number("ctx", "Tokens of context (default: the model's, at most 4096)", { whole: true, min: 1 }, MODEL),
  device: choice("Where to run; auto = metal, then cuda, then cpu", ["auto", "cpu", "cuda", "metal"], { default: "auto", ...MODEL }),
  threads: number("threads", "CPU threads, the waiting one included (default: all cores)", { whole: true, min: 1 }, MODEL),
  precision: choice("exact = float32 activations and KV; fast = 8-bit or bfloat16 activations, float16 KV", ["exact", "fast"], { default: "fast", ...MODEL }),
  "kv-type": choice("Type of the KV cache (default: f32 in exact, f16 in fast precision)", ["f32", "f16", "q8_0"], MODEL),
  chunk: number("chunk", "Prompt tokens of one prefill step", { whole: true, min: 1 }, MODEL),
  isa: choice("CPU instruction set", ["auto", "base", "avx2", "avx512", "neon"], { default: "auto", ...MODEL }),
  reference: flag("Run every op by its plain reference kernel (slow; CPU only)", MODEL),
  unfused: flag("Run every fused op as the plain ops it is made of", MODEL),
  "no-warmup": flag("Skip the short run after loading", MODEL),
} as const satisfies Record<string, Options>;

/** How tokens are drawn. */
export const samplingOptions = {
  temperature: number("temperature", "0 = always the most likely token (default: the model's, or 0.8)", { min: 0 }, { alias: "t", ...SAMPLING }),
  "top-k": number("top-k", "Keep the k most likely tokens; 0 = all (default: the model's, or 40)", { whole: true, min: 0 }, SAMPLING),
  "top-p": number("top-p", "Keep the smallest set with this mass; 1 = off (default: the model's, or 0.95)", { min: 0 }, SAMPLING),
  "min-p": number("min-p", "Drop tokens less likely than this times the most likely one; 0 = off", { min: 0 }, SAMPLING),
  "repetition-penalty": number("repetition-penalty", "Divides logits of tokens among the last 64; 1 = off", {}, SAMPLING),
  "presence-penalty": number("presence-penalty", "Subtracted from logits of tokens among the last 64; 0 = off", {}, SAMPLING),
  "frequency-penalty": number("frequency-penalty", "The same, for every occurrence; 0 = off", {}, SAMPLING),
  seed: number("seed", "Same seed, prompt and options: same text (default: random)", { whole: true, min: 0 }, SAMPLING),
  "logit-bias": list("id=value, added to the logit of a token; -inf forbids it (repeatable)", SAMPLING),
} as const satisfies Record<string, Options>;

export interface ModelArguments {
  model?: string | undefined;
  ctx?: number | undefined;
  device: string;
  threads?: number | undefined;
  precision: string;
  kvType?: string | undefined;
  chunk?: number | undefined;
  isa: string;
  reference?: boolean | undefined;
  unfused?: boolean | undefined;
  noWarmup?: boolean | undefined;
}

export interface SamplingArguments {
  temperature?: number | undefined;
  topK?: number | undefined;
  topP?: number | undefined;
  minP?: number | undefined;
  repetitionPenalty?: number | undefined;
  presencePenalty?: number | undefined;
  frequencyPenalty?: number | undefined;
  seed?: number | undefined;
  logitBias?: string[] | undefined;
}

type Defined<T> = { [K in keyof T]?: Exclude<T[K], undefined> };
/** Without the members that are undefined. */
export function defined<T extends object>(value: T): Defined<T> {
  return Object.fromEntries(Object.entries(value).filter(([, v]) => v !== undefined)) as Defined<T>;
}

/** The options of LocalModel.load, but for the backend. */
export function loadOptions(a: ModelArguments): LoadOptions {
  return {
    device: defined({ threads: a.threads, isa: a.isa, precision: a.precision, reference: a.reference || undefined }) as NonNullable<LoadOptions["device"]>,
    ...(defined({ context: a.ctx, kvType: a.kvType, chunk: a.chunk, unfused: a.unfused || undefined }) as LoadOptions),
    ...(a.noWarmup ? { warmup: false } : {}),
  };
}

/** Sampling options; a random seed is chosen here, so that it can be reported. */
export function sampling(a: SamplingArguments): GenerateOptions & { seed: number } {
  return {
    ...(defined({
      temperature: a.temperature, topK: a.topK, topP: a.topP, minP: a.minP,
      repetitionPenalty: a.repetitionPenalty, presencePenalty: a.presencePenalty, frequencyPenalty: a.frequencyPenalty,
    }) as GenerateOptions),
    ...(a.logitBias ? { logitBias: parseBias(a.logitBias) } : {}),
    seed: a.seed ?? Math.trunc(Math.random() * 2 ** 32),
  };
}
