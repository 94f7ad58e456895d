// A conversation as chat keeps, saves and loads it, and the settings that can be changed in its course.
import { readFileSync, renameSync, writeFileSync } from "node:fs";
import type { Message } from "../chat/index.ts";
import { ModelFileError, UsageError } from "../errors.ts";
import { replaceTarget } from "../gguf/index.ts";
import { reason } from "./input.ts";

const FORMAT = "bao-conversation";
const VERSION = 1;

export class Conversation {
  system: string | undefined;
  readonly messages: Message[] = [];
  /** All messages, the system message first. */
  all(): Message[] { return [...(this.system === undefined ? [] : [{ role: "system", content: this.system } as const]), ...this.messages]; }
}

/** Writes a conversation, whole or not at all. */
export function writeConversation(path: string, conversation: Conversation, model: string): void {
  const content = { format: FORMAT, version: VERSION, model, ...(conversation.system === undefined ? {} : { system: conversation.system }), messages: conversation.messages };
  try {
    const target = replaceTarget(path);
    writeFileSync(`${target}.part`, `${JSON.stringify(content, null, 2)}\n`);
    renameSync(`${target}.part`, target);
  } catch (e) {
    if (e instanceof UsageError) throw e;
    throw new ModelFileError("file_unwritable", `${path}: ${reason(e)}`, "Choose another name.", { cause: e });
  }
}

/** Reads what `writeConversation` wrote. Throws ModelFileError `bad_conversation`. */
export function readConversation(path: string): Conversation {
  let value: unknown;
  try {
    value = JSON.parse(readFileSync(path, "utf8"));
  } catch (e) {
    throw new ModelFileError("bad_conversation", `${path}: ${e instanceof SyntaxError ? "is not JSON" : reason(e)}`, "Name a file that /save has written.", { cause: e });
  }
  const bad = (what: string): never => { throw new ModelFileError("bad_conversation", `${path}: ${what}`, "Name a file that /save has written."); };
  const { format, version, system, messages } = (typeof value === "object" && value !== null ? value : {}) as Record<string, unknown>;
  if (format !== FORMAT) bad(`expected "format": "${FORMAT}"`);
  if (version !== VERSION) bad(`expected version ${VERSION}, found ${String(version)}`);
  if (system !== undefined && typeof system !== "string") bad("system is not a text");
  if (!Array.isArray(messages)) return bad("messages is not a list");
  const conversation = new Conversation();
  conversation.system = system as string | undefined;
  for (const [i, m] of (messages as Record<string, unknown>[]).entries()) {
    if (m === null || typeof m !== "object" || (m["role"] !== "user" && m["role"] !== "assistant") || typeof m["content"] !== "string" || (m["reasoning"] !== undefined && typeof m["reasoning"] !== "string")) bad(`message ${i + 1} is not a text of user or assistant`);
    conversation.messages.push(m as unknown as Message);
  }
  return conversation;
}

interface Setting { readonly option: string; parse(text: string): unknown }
const numeric = (option: string, whole = false): Setting => ({
  option,
  parse(text) {
    const n = Number(text);
    if (text === "" || Number.isNaN(n) || (whole && !Number.isSafeInteger(n))) throw new UsageError("bad_option", `${option}: expected a ${whole ? "whole " : ""}number, found ${JSON.stringify(text)}`);
    return n;
  },
});

/** What /set knows, by the names of the command line options. */
export const SETTINGS: Readonly<Record<string, Setting>> = {
  temperature: numeric("temperature"), "top-k": numeric("topK", true), "top-p": numeric("topP"), "min-p": numeric("minP"),
  "repetition-penalty": numeric("repetitionPenalty"), "presence-penalty": numeric("presencePenalty"), "frequency-penalty": numeric("frequencyPenalty"),
  seed: numeric("seed", true), "max-tokens": numeric("maxTokens", true),
  stop: { option: "stop", parse: (text) => [text] },
  thinking: {
    option: "thinking",
    parse(text) {
      if (text !== "on" && text !== "off") throw new UsageError("bad_option", `thinking: expected on or off, found ${JSON.stringify(text)}`);
      return text === "on";
    },
  },
};
