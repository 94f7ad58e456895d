// What a request asks of an answer's form: tools, JSON, thinking. The two chat APIs spell it differently and mean the same.
import { z } from "zod";
import type { ToolInput } from "../chat/index.ts";
import type { GenerateOptions } from "../engine/generate.ts";
import type { ResponseFormat, ToolChoice } from "../structured/index.ts";
import type { ServedModel } from "./answer.ts";
import { ApiError, unsupported } from "./errors.ts";

const functionFields = {
  name: z.string(),
  description: z.string().nullish(),
  parameters: z.record(z.string(), z.unknown()).nullish(),
  strict: z.boolean().nullish(),
};
export const functionSpec = z.strictObject(functionFields);
/** The Responses API has a tool's fields beside its type. */
export const flatFunctionTool = z.strictObject({ type: z.literal("function"), ...functionFields });

/** A tool for the engine. */
export function toolInput({ name, description, parameters, strict }: z.infer<typeof functionSpec>): ToolInput {
  return { name, ...(description ? { description } : {}), ...(parameters ? { parameters } : {}), ...(strict ? { strict } : {}) };
}

const CHOICES = "expected auto, none, required, or one function";
export const toolChoiceField = z.union([z.enum(["auto", "none", "required"]), z.strictObject({ type: z.literal("function"), function: z.strictObject({ name: z.string() }) })], CHOICES).optional();
export const flatToolChoiceField = z.union([z.enum(["auto", "none", "required"]), z.strictObject({ type: z.literal("function"), name: z.string() })], CHOICES).optional();

const schemaFields = { name: z.string(), description: z.string().nullish(), schema: z.record(z.string(), z.unknown()).optional(), strict: z.boolean().nullish() };
const text = z.strictObject({ type: z.literal("text") }), anyObject = z.strictObject({ type: z.literal("json_object") });
export const formatField = z.discriminatedUnion("type", [text, anyObject, z.strictObject({ type: z.literal("json_schema"), json_schema: z.strictObject(schemaFields) })]).optional();
export const flatFormatField = z.discriminatedUnion("type", [text, anyObject, z.strictObject({ type: z.literal("json_schema"), ...schemaFields })]).optional();

/** The engine's format; a schema is always guaranteed, `strict` or not. */
export function formatOf(f: z.infer<typeof formatField> | z.infer<typeof flatFormatField>): ResponseFormat | undefined {
  if (f === undefined || f.type === "text") return undefined;
  if (f.type === "json_object") return { type: "json_object" };
  // Without a schema the engine says what is missing.
  const { schema } = "json_schema" in f ? f.json_schema : f;
  return { type: "json_schema", schema: schema as Record<string, unknown> };
}

export interface Form {
  readonly tools: readonly ToolInput[] | undefined;
  readonly choice: ToolChoice | undefined;
  readonly parallel: boolean | undefined;
  readonly format: ResponseFormat | undefined;
  readonly thinking: boolean | undefined;
  /** What the request calls the wish to think. */
  readonly thinkingField: string;
}

/** Options of a form. Throws ApiError when the model cannot even be told of it, which would otherwise pass in silence. */
export function formOptions(model: ServedModel, { tools, choice, parallel, format, thinking, thinkingField }: Form): GenerateOptions {
  const can = model.info.chat;
  if (thinking && can && !can.thinking) throw unsupported(thinkingField, `${thinkingField}: this model does not think before it answers.`);
  // A forced call is held to its form by a grammar; a voluntary one would never come.
  if (tools?.length && (choice ?? "auto") === "auto" && can && !can.tools) throw new ApiError(400, "tools_unsupported", "tools: this model's chat template does not tell it of tools.", "tools");
  return {
    ...(tools?.length ? { tools } : {}), ...(choice === undefined ? {} : { toolChoice: choice }), ...(parallel === undefined ? {} : { parallelToolCalls: parallel }),
    ...(format === undefined ? {} : { responseFormat: format }), ...(thinking === undefined ? {} : { thinking }),
  };
}
