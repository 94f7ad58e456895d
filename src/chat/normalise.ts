// Rewrites a conversation into the shape that chat templates were written for. Never renders; texts pass through `hold`.

import { UsageError } from "../errors.ts";
import type { Content, Message, ToolCall } from "./messages.ts";
import { callArguments, checkName, withoutNulls } from "./tools.ts";

/** What a template can do, found out by rendering samples. */
export interface Abilities {
  /** Results of calls belong to the calling message as `tool_responses`. */
  readonly foldsTools: boolean;
  /** Content may be a list of parts. */
  readonly takesParts: boolean;
  /** Earlier answers lose what stands between `<|channel>` and `<channel|>`. */
  readonly stripsChannels: boolean;
  /** Earlier answers lose everything up to `</think>`. */
  readonly stripsThink: boolean;
}

export type Hold = (text: string, joinsNext?: boolean) => string;

/** A message as templates see it. */
export interface TemplateMessage {
  role: string;
  content: unknown;
  reasoning_content?: string;
  tool_calls?: { id?: string; type: "function"; function: { name: string; arguments: unknown } }[];
  tool_responses?: { name: string; response: unknown }[];
  tool_call_id?: string;
  name?: string;
}

/** Text of a message. Throws UsageError for parts that are not text. */
export function textOf(content: Content | null | undefined, separator = "\n"): string {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  return content.map(partText).join(separator);
}

function partText(part: { type: string; text?: unknown }): string {
  if (part.type === "text" && typeof part.text === "string") return part.text;
  throw new UsageError("unsupported_content", `message parts of type ${JSON.stringify(part.type)} are not supported`, "Send text only.");
}

/** `messages` for a template's context. Throws UsageError for unknown roles, lone tool results and ill-formed calls. */
export function templateMessages(messages: readonly Message[], can: Abilities, hold: Hold): TemplateMessage[] {
  const out: TemplateMessage[] = [];
  const calls: (readonly ToolCall[])[] = [];
  for (const message of messages) {
    switch (message.role) {
      case "system":
        // Templates take the system text for a string even where they take parts from users.
        out.push({ role: "system", content: hold(textOf(message.content)) });
        break;
      case "user":
        out.push({ role: "user", content: userContent(message.content, can, hold) });
        break;
      case "assistant":
        pushAssistant(out, message, can, hold);
        if (message.toolCalls?.length) calls.push(message.toolCalls);
        break;
      case "tool":
        pushResult(out, message, calls.at(-1) ?? [], can, hold);
        break;
      default:
        throw new UsageError("chat_role", `unknown role ${JSON.stringify((message as { role: unknown }).role)}`, "Roles are system, user, assistant and tool.");
    }
  }
  return out;
}

function userContent(content: Content, can: Abilities, hold: Hold): unknown {
  if (typeof content === "string" || !can.takesParts) return hold(textOf(content));
  return content.map((part) => ({ type: "text", text: hold(partText(part)) }));
}

function pushAssistant(out: TemplateMessage[], message: Extract<Message, { role: "assistant" }>, can: Abilities, hold: Hold): void {
  const text = withoutThoughts(textOf(message.content), can);
  const reasoning = message.reasoning === undefined ? {} : { reasoning_content: hold(message.reasoning) };
  const last = out.at(-1);
  // The answer to a tool's result continues the turn of the call.
  const open = can.foldsTools && last?.tool_responses !== undefined && last.content === "" ? last : undefined;
  if (!message.toolCalls?.length) {
    if (open !== undefined) open.content = hold(text);
    else out.push({ role: "assistant", content: hold(text), ...reasoning });
    return;
  }
  const tool_calls = message.toolCalls.map((call) => ({
    ...(call.id === undefined ? {} : { id: call.id }),
    type: "function" as const,
    function: { name: checkName(call.name), arguments: holdDeep(callArguments(call), hold) },
  }));
  if (!can.foldsTools) {
    out.push({ role: "assistant", content: hold(text), tool_calls, ...reasoning });
    return;
  }
  // These templates print a message's text after its calls, so text that came first needs a message of its own.
  if (text.trim() !== "") {
    if (open !== undefined) open.content = hold(text, true);
    else out.push({ role: "assistant", content: hold(text, true) });
  }
  out.push({ role: "assistant", content: "", tool_calls, ...reasoning });
}

function pushResult(out: TemplateMessage[], message: Extract<Message, { role: "tool" }>, calls: readonly ToolCall[], can: Abilities, hold: Hold): void {
  const { content, toolCallId } = message;
  const structured = typeof content === "object" && !Array.isArray(content) ? content : undefined;
  const last = out.at(-1);
  const answered = last?.tool_responses?.length ?? 0;
  const byId = calls.find((call) => call.id !== undefined && call.id === toolCallId);
  const name = byId?.name ?? message.name ?? calls[can.foldsTools ? answered : 0]?.name;
  if (name === undefined) {
    throw new UsageError("tool_message", "a tool message answers no call", "Put it after the assistant message whose call it answers, with the same call id.");
  }
  checkName(name);
  if (!can.foldsTools) {
    const text = structured === undefined ? textOf(content as Content) : JSON.stringify(structured);
    out.push({ role: "tool", name, content: hold(text), ...(toolCallId === undefined ? {} : { tool_call_id: toolCallId }) });
    return;
  }
  if (last?.role !== "assistant" || last.tool_calls === undefined || last.content !== "") {
    throw new UsageError("tool_message", "a tool message does not follow an assistant message with calls", "Put results directly after the calls that they answer.");
  }
  const response = structured === undefined ? hold(textOf(content as Content)) : holdDeep(withoutNulls(structured), hold);
  (last.tool_responses ??= []).push({ name, response });
}

/** Every string inside a JSON value, held. Keys stay: templates sort by them, and they have been checked. */
export function holdDeep(value: unknown, hold: Hold): unknown {
  if (typeof value === "string") return hold(value);
  if (Array.isArray(value)) return value.map((item) => holdDeep(item, hold));
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, holdDeep(member, hold)]));
}

/** What the template would strip from an earlier answer, done here because a template only ever sees holders. */
function withoutThoughts(text: string, can: Abilities): string {
  let kept = text;
  if (can.stripsChannels && kept.includes("<channel|>")) {
    kept = kept
      .split("<channel|>")
      .map((part) => part.split("<|channel>")[0] ?? "")
      .join("");
  } else if (can.stripsChannels && kept.includes("<|channel>")) {
    kept = kept.split("<|channel>")[0] ?? "";
  }
  if (can.stripsThink && kept.includes("</think>")) kept = (kept.split("</think>").at(-1) ?? "").replace(/^\n+/, "");
  return kept;
}

/** For templates that insist on alternating roles: neighbours of one role become one message. */
export function mergeNeighbours(messages: readonly Message[]): Message[] {
  const out: Message[] = [];
  for (const message of messages) {
    const last = out.at(-1);
    const plain = message.role === "user" || message.role === "system" || (message.role === "assistant" && !message.toolCalls?.length);
    if (last !== undefined && plain && last.role === message.role && !("toolCalls" in last && last.toolCalls?.length)) {
      const content = `${textOf(last.content as Content)}\n\n${textOf(message.content)}`;
      out[out.length - 1] = { ...last, content } as Message;
    } else {
      out.push(message);
    }
  }
  return out;
}

/** For templates without a system role, or with one at the start only: system texts open the next user message. */
export function foldSystem(messages: readonly Message[], keepFirst: boolean): Message[] {
  const out: Message[] = [];
  let waiting = "";
  for (const [i, message] of messages.entries()) {
    if (message.role === "system" && !(keepFirst && i === 0)) {
      waiting += `${textOf(message.content)}\n\n`;
    } else if (message.role === "user" && waiting !== "") {
      out.push({ role: "user", content: waiting + textOf(message.content) });
      waiting = "";
    } else {
      out.push(message);
    }
  }
  if (waiting !== "") out.push({ role: "user", content: waiting.trimEnd() });
  return out;
}
