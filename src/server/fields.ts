// What the endpoints' requests have in common: sampling fields, stop texts, and fields that only matter elsewhere. Schemas and their meaning.
import { z } from "zod";
import type { GenerateOptions } from "../engine/generate.ts";
import { harmless } from "./validate.ts";

const whole = (min: number, max = Number.MAX_SAFE_INTEGER): z.ZodNumber => z.int().min(min).max(max);

/** Sampling, as OpenAI has it, and what llama.cpp's and vLLM's clients send besides. Limits are the engine's. */
export const samplingFields = {
  temperature: z.number().min(0).max(100).optional(),
  top_p: z.number().gt(0).max(1).optional(),
  top_k: whole(0, 2 ** 30).optional(),
  min_p: z.number().min(0).max(1).optional(),
  repetition_penalty: z.number().min(0.01).max(100).optional(),
  presence_penalty: z.number().min(-100).max(100).optional(),
  frequency_penalty: z.number().min(-100).max(100).optional(),
  seed: z.int().optional(),
  logit_bias: z.record(z.string().regex(/^\d{1,9}$/, "token ids are whole numbers"), z.number().min(-100).max(100)).optional(),
};

const samplingSchema = z.object(samplingFields);

/** The engine's options of these fields. */
export function samplingOptions(r: z.infer<typeof samplingSchema>): GenerateOptions {
  const options: GenerateOptions = {};
  if (r.temperature !== undefined) options.temperature = r.temperature;
  if (r.top_p !== undefined) options.topP = r.top_p;
  if (r.top_k !== undefined) options.topK = r.top_k;
  if (r.min_p !== undefined) options.minP = r.min_p;
  if (r.repetition_penalty !== undefined) options.repetitionPenalty = r.repetition_penalty;
  if (r.presence_penalty !== undefined) options.presencePenalty = r.presence_penalty;
  if (r.frequency_penalty !== undefined) options.frequencyPenalty = r.frequency_penalty;
  // The engine's seeds start at 0; negative ones are as good as any other.
  if (r.seed !== undefined) options.seed = r.seed >= 0 ? r.seed : Number.MAX_SAFE_INTEGER + r.seed + 1;
  // -100 stands for "never" in OpenAI's documentation.
  if (r.logit_bias !== undefined) options.logitBias = new Map(Object.entries(r.logit_bias).map(([id, bias]) => [Number(id), bias === -100 ? -Infinity : bias]));
  return options;
}

export const stopField = z.union([z.string().min(1), z.array(z.string().min(1)).max(16)], "expected a text, or at most 16").optional();
export const maxTokensField = whole(1).optional();

/** Fields of every endpoint that neither mean nor cost anything here. */
export const harmlessFields = {
  user: harmless, metadata: harmless, store: harmless, service_tier: harmless, safety_identifier: harmless, prompt_cache_key: harmless, prompt_cache_retention: harmless,
};

/** `reasoning_effort`: thinking is on or off; how hard a model thinks is its own business. */
export const effortField = z.enum(["none", "minimal", "low", "medium", "high", "xhigh", "max"]).optional();
export const thinkingOf = (effort: z.infer<typeof effortField>): boolean | undefined => (effort === undefined ? undefined : effort !== "none");
