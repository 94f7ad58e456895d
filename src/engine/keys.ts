// The option names that the public API knows: anything else is a mistake that would change nothing in silence.
import { UsageError } from "../errors.ts";
import type { GenerateOptions } from "./generate.ts";
import type { EmbedOptions, EstimateOptions, LoadModelOptions } from "./options.ts";
import type { WantedDevice } from "./protocol.ts";

type Names<T> = Readonly<Record<keyof T, true>>;
const DEVICE: Names<WantedDevice> = { backend: true, index: true, threads: true, isa: true, precision: true, reference: true };
const ESTIMATE: Names<EstimateOptions> = { device: true, context: true, kvType: true, chunk: true, sessions: true };
const LOAD: Names<LoadModelOptions> = { ...ESTIMATE, unfused: true, warmup: true, signal: true, onProgress: true };
const GENERATE: Names<GenerateOptions> = {
  maxTokens: true, stop: true, raw: true, system: true, thinking: true, tools: true, toolChoice: true, parallelToolCalls: true, responseFormat: true, signal: true, onAbort: true, ignoreStop: true, overflow: true,
  temperature: true, topK: true, topP: true, minP: true, repetitionPenalty: true, presencePenalty: true, frequencyPenalty: true, seed: true, logitBias: true, logprobs: true,
};
const EMBED: Names<EmbedOptions> = { normalize: true, signal: true };
const KNOWN = { load: LOAD, estimate: ESTIMATE, generate: GENERATE, embed: EMBED, tokenize: { parse: true, bos: true }, detokenize: { special: true } } as const;

/** Throws UsageError `unknown_option` that names the key when `options` has one that `call` does not know, `bad_option` when it is no object. */
export function checkKeys(call: keyof typeof KNOWN, options: unknown): void {
  check(call, options, KNOWN[call]);
  const device = call === "load" || call === "estimate" ? (options as LoadModelOptions).device : undefined;
  if (device !== undefined) check(`${call}: device`, device, DEVICE);
}

function check(what: string, options: unknown, known: object): void {
  if (typeof options !== "object" || options === null || Array.isArray(options)) throw new UsageError("bad_option", `${what}: expected an object of options, found ${options === null ? "null" : Array.isArray(options) ? "a list" : typeof options}`);
  for (const key of Object.keys(options)) {
    if (!Object.hasOwn(known, key)) throw new UsageError("unknown_option", `${what}: there is no option ${JSON.stringify(key)}`, `Options are ${Object.keys(known).join(", ")}.`);
  }
}
