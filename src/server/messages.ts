// OpenAI's chat messages as the engine's: roles, content parts, calls and their results. Refuses what cannot be carried over, never drops it.
import { z } from "zod";
import type { Message } from "../chat/index.ts";
import { harmless, refused, unsupportedIssue } from "./validate.ts";

/** Text, or a list of parts of which only text is understood. */
const part = z.looseObject({ type: z.string(), text: z.string().optional() }).superRefine((p, ctx) => {
  if (p.type !== "text") return unsupportedIssue(ctx, ["type"], `Content of type ${JSON.stringify(p.type)} is not supported, only text`);
  if (p.text === undefined) ctx.addIssue({ code: "custom", path: ["text"], message: "expected a text" });
});
const content = z.union([z.string(), z.array(part)], "expected a text or a list of parts");
const name = refused("A participant's name");

const toolCall = z.strictObject({
  id: z.string(),
  type: z.literal("function").optional(),
  index: harmless,
  function: z.strictObject({ name: z.string(), arguments: z.string() }),
});

export const messageSchema = z.discriminatedUnion("role", [
  z.strictObject({ role: z.enum(["system", "developer"]), content, name }),
  z.strictObject({ role: z.literal("user"), content, name }),
  z.strictObject({
    role: z.literal("assistant"), content: content.nullish(), name,
    reasoning_content: z.string().nullish(), tool_calls: z.array(toolCall).nullish(),
    refusal: refused("An earlier refusal", null), audio: refused("Audio", null), function_call: refused("The older form of calls", null), annotations: harmless,
  }),
  z.strictObject({ role: z.literal("tool"), content, tool_call_id: z.string(), name: z.string().optional() }),
]);

type Content = z.infer<typeof content>;
const texts = (c: Content): string | { type: "text"; text: string }[] => (typeof c === "string" ? c : c.map((p) => ({ type: "text", text: p.text ?? "" })));

/** One message for the engine. */
export function toMessage(m: z.infer<typeof messageSchema>): Message {
  switch (m.role) {
    case "system": case "developer": return { role: "system", content: texts(m.content) };
    case "user": return { role: "user", content: texts(m.content) };
    case "assistant": return {
      role: "assistant",
      ...(m.content == null ? {} : { content: texts(m.content) }),
      ...(m.reasoning_content ? { reasoning: m.reasoning_content } : {}),
      ...(m.tool_calls?.length ? { toolCalls: m.tool_calls.map((c) => ({ id: c.id, name: c.function.name, arguments: c.function.arguments })) } : {}),
    };
    case "tool": return { role: "tool", content: texts(m.content), toolCallId: m.tool_call_id, ...(m.name === undefined ? {} : { name: m.name }) };
  }
}
