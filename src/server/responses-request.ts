// The Responses API's requests: its input items as messages, its fields as options. Stateless: whatever would need a stored response is refused.
import { z } from "zod";
import type { Message, ToolCall } from "../chat/index.ts";
import type { GenerateOptions } from "../engine/generate.ts";
import type { Job, ServedModel } from "./answer.ts";
import { ApiError } from "./errors.ts";
import { effortField, harmlessFields, maxTokensField, samplingFields, samplingOptions, stopField, thinkingOf } from "./fields.ts";
import { flatFormatField, flatFunctionTool, flatToolChoiceField, formatOf, formOptions, toolInput } from "./form.ts";
import { harmless, refused, unsupportedIssue, validate } from "./validate.ts";

const STORED = "This server keeps no responses: send the whole conversation as input. That";

const part = z.looseObject({ type: z.string(), text: z.string().optional() }).superRefine((p, ctx) => {
  if (!["input_text", "output_text", "text"].includes(p.type)) return unsupportedIssue(ctx, ["type"], `Content of type ${JSON.stringify(p.type)} is not supported, only text`);
  if (p.text === undefined) ctx.addIssue({ code: "custom", path: ["text"], message: "expected a text" });
});
const content = z.union([z.string(), z.array(part)], "expected a text or a list of parts");
const id = harmless, status = harmless;

const message = z.strictObject({ type: z.literal("message").optional(), role: z.enum(["system", "developer", "user", "assistant"]), content, id, status, phase: harmless });
const functionCall = z.strictObject({ type: z.literal("function_call"), call_id: z.string(), name: z.string(), arguments: z.string(), id, status });
const functionOutput = z.strictObject({ type: z.literal("function_call_output"), call_id: z.string(), output: content, id, status });
const reasoning = z.strictObject({ type: z.literal("reasoning"), id, status, summary: harmless, encrypted_content: harmless, content: z.array(z.looseObject({ type: z.string(), text: z.string() })).nullish() });
const item = z.unknown().superRefine((value, ctx) => {
  const type = (value as { type?: unknown } | null)?.type ?? "message";
  const of = { message, function_call: functionCall, function_call_output: functionOutput, reasoning }[type as string];
  if (!of) return unsupportedIssue(ctx, ["type"], `Input items of type ${JSON.stringify(type)} are not supported`);
  const result = of.safeParse(value);
  if (!result.success) for (const issue of result.error.issues) ctx.addIssue(issue as never);
}).transform((value) => value as z.infer<typeof message | typeof functionCall | typeof functionOutput | typeof reasoning>);

const schema = z.strictObject({
  model: z.string().optional(),
  input: z.union([z.string(), z.array(item).min(1)], "expected a text or a list of items"),
  instructions: z.string().optional(),
  stream: z.boolean().optional(), stream_options: harmless,
  max_output_tokens: maxTokensField, stop: stopField,
  tools: z.array(z.union([flatFunctionTool, refused("A tool that is no function")])).max(128).optional(),
  tool_choice: flatToolChoiceField,
  parallel_tool_calls: z.boolean().optional(),
  text: z.strictObject({ format: flatFormatField, verbosity: refused("Verbosity", "medium", null) }).optional(),
  reasoning: z.strictObject({ effort: effortField.nullable(), summary: refused("A summary of the reasoning", "auto", null), generate_summary: refused("A summary of the reasoning", null) }).optional(),
  include: z.array(z.enum(["message.output_text.logprobs", "reasoning.encrypted_content"])).optional(),
  top_logprobs: z.int().min(0).max(20).optional(),
  ...samplingFields, ...harmlessFields,
  truncation: refused("Truncation", "disabled"), background: refused("Work in the background", false), conversation: refused(STORED), previous_response_id: refused(STORED),
  prompt: refused("A stored prompt"), max_tool_calls: refused("A limit of built-in tool calls"), context_management: refused("Context management"), moderation: refused("Moderation"),
});
export type ResponsesRequest = z.infer<typeof schema>;
export const RESPONSES_FIELDS = { prompt: "input", maxTokens: "max_output_tokens", format: "text.format" } as const;

export function parseResponses(body: unknown): ResponsesRequest { return validate(schema, body); }

export const wantsLogprobs = (r: ResponsesRequest): boolean => r.include?.includes("message.output_text.logprobs") ?? false;

/** The engine's job of a request. Throws ApiError. */
export function responsesJob(model: ServedModel, r: ResponsesRequest): Job {
  const tools = (r.tools ?? []) as z.infer<typeof flatFunctionTool>[];
  const options: GenerateOptions = {
    ...samplingOptions(r),
    ...formOptions(model, {
      tools: tools.map((t) => toolInput(t)), choice: typeof r.tool_choice === "object" ? { name: r.tool_choice.name } : r.tool_choice, parallel: r.parallel_tool_calls,
      format: formatOf(r.text?.format), thinking: thinkingOf(r.reasoning?.effort ?? undefined), thinkingField: "reasoning.effort",
    }),
  };
  if (r.max_output_tokens !== undefined) options.maxTokens = r.max_output_tokens;
  if (r.stop !== undefined) options.stop = r.stop;
  if (wantsLogprobs(r)) options.logprobs = r.top_logprobs ?? 0;
  else if (r.top_logprobs !== undefined) throw new ApiError(400, "invalid_value", 'top_logprobs: needs "message.output_text.logprobs" in include.', "top_logprobs");
  return { prompt: messagesOf(r), options, firstCallOnly: r.parallel_tool_calls === false };
}

type Text = z.infer<typeof content>;
const text = (c: Text): string => (typeof c === "string" ? c : c.map((p) => p.text ?? "").join("\n"));

/** Items as messages: calls join the assistant's message before them, a thought the one after it. */
function messagesOf(r: ResponsesRequest): Message[] {
  const out: Message[] = r.instructions === undefined ? [] : [{ role: "system", content: r.instructions }];
  if (typeof r.input === "string") return [...out, { role: "user", content: r.input }];
  let thought: { reasoning?: string } = {};
  for (const given of r.input) {
    if (given.type === "reasoning") {
      const reasoned = given.content?.map((c) => c.text).join("") ?? "";
      if (reasoned !== "") thought = { reasoning: reasoned };
    } else if (given.type === "function_call") {
      const call: ToolCall = { id: given.call_id, name: given.name, arguments: given.arguments };
      const last = out.at(-1);
      if (last?.role === "assistant") out[out.length - 1] = { ...last, toolCalls: [...(last.toolCalls ?? []), call], ...thought };
      else out.push({ role: "assistant", toolCalls: [call], ...thought });
      thought = {};
    } else if (given.type === "function_call_output") out.push({ role: "tool", content: text(given.output), toolCallId: given.call_id });
    else if (given.role === "assistant") {
      out.push({ role: "assistant", content: text(given.content), ...thought });
      thought = {};
    } else out.push({ role: given.role === "user" ? "user" : "system", content: text(given.content) });
  }
  return out;
}
