// POST /v1/embeddings: texts or token ids to vectors of length 1, as numbers or as base64 of little-endian float32.
import { z } from "zod";
import type { Serving } from "./answer.ts";
import { apiError, unsupported } from "./errors.ts";
import { harmlessFields } from "./fields.ts";
import { refused, validate } from "./validate.ts";

const text = z.string().min(1), ids = z.array(z.int().min(0)).min(1);
const schema = z.strictObject({
  model: z.string().optional(),
  input: z.union([text, ids, z.array(text).min(1).max(2048), z.array(ids).min(1).max(2048)], "expected a text that is not empty, token ids, or a list of either"),
  encoding_format: z.enum(["float", "base64"]).optional(),
  dimensions: refused("A number of dimensions other than the model's"),
  ...harmlessFields,
});
export type EmbeddingRequest = z.infer<typeof schema>;
export const EMBEDDING_FIELDS = { prompt: "input", maxTokens: "input", format: "input" } as const;

export function parseEmbedding(body: unknown): EmbeddingRequest { return validate(schema, body); }

export async function embeddings(serving: Serving, r: EmbeddingRequest, signal: AbortSignal): Promise<object> {
  const { model, admission, metrics } = serving;
  if (!model.embed) throw unsupported("input", "This model gives no embeddings.");
  const list = typeof r.input === "string" ? [r.input] : typeof r.input[0] === "number" ? [r.input as number[]] : r.input as (string | number[])[];
  using _place = admission.enter(1);
  try {
    const made = await model.embed(list.map((x) => (typeof x === "string" ? x : { ids: x })), { signal });
    const tokens = made.reduce((n, m) => n + m.tokens, 0);
    metrics.promptTokens(tokens);
    return {
      object: "list", model: serving.name, usage: { prompt_tokens: tokens, total_tokens: tokens },
      data: made.map(({ vector: v }, index) => ({ object: "embedding", index, embedding: r.encoding_format === "base64" ? Buffer.from(v.buffer, v.byteOffset, v.byteLength).toString("base64") : [...v] })),
    };
  } catch (e) {
    if (signal.aborted) throw signal.reason;
    const error = apiError(e, EMBEDDING_FIELDS);
    if (error.status >= 500) serving.onError(e);
    throw error;
  }
}
