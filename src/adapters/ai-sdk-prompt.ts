// The AI SDK's prompt as the engine's messages. Refuses what is no text by name: a file left out in silence would be a wrong answer.
import type { LanguageModelV4Prompt, LanguageModelV4ToolResultPart } from "@ai-sdk/provider";
import type { Message, ToolCall } from "../chat/index.ts";
import { UsageError } from "../errors.ts";

function refuse(what: string): never {
  throw new UsageError("unsupported_content", `${what} in the prompt is not supported`, "Send text only.");
}

/** Messages of a prompt. Throws UsageError `unsupported_content`. */
export function toMessages(prompt: LanguageModelV4Prompt): Message[] {
  return prompt.flatMap((message): Message[] => {
    switch (message.role) {
      case "system": return [{ role: "system", content: message.content }];
      case "user": return [{ role: "user", content: message.content.map((p) => (p.type === "text" ? { type: "text", text: p.text } : refuse(`A file (${p.mediaType})`))) }];
      case "tool": return message.content.map((p) => (p.type === "tool-result" ? { role: "tool", toolCallId: p.toolCallId, name: p.toolName, content: resultOf(p.output) } : refuse("A tool approval")));
      case "assistant": {
        let text = "", reasoning = "";
        const toolCalls: ToolCall[] = [];
        for (const p of message.content) {
          if (p.type === "text") text += p.text;
          else if (p.type === "reasoning") reasoning += p.text;
          else if (p.type === "tool-call") toolCalls.push({ id: p.toolCallId, name: p.toolName, arguments: (p.input ?? {}) as Record<string, unknown> });
          else refuse(`A part of type ${p.type}`);
        }
        return [{ role: "assistant", content: text, ...(reasoning === "" ? {} : { reasoning }), ...(toolCalls.length === 0 ? {} : { toolCalls }) }];
      }
    }
  });
}

function resultOf(output: LanguageModelV4ToolResultPart["output"]): string | Readonly<Record<string, unknown>> {
  switch (output.type) {
    case "text": case "error-text": return output.value;
    case "json": case "error-json": return typeof output.value === "object" && output.value !== null && !Array.isArray(output.value) ? output.value as Record<string, unknown> : JSON.stringify(output.value);
    case "execution-denied": return `The user did not allow this call${output.reason === undefined ? "." : `: ${output.reason}`}`;
    case "content": return output.value.map((p) => (p.type === "text" ? p.text : refuse(`A tool's result of type ${p.type}`))).join("\n");
  }
}
