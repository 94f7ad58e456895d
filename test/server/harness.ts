// What the server's tests share: the demo model behind a server, a model that plays back given parts, and a reader of event streams.
import { join } from "node:path";
import type { GenerateOptions, Prompt, StreamPart, Usage } from "../../src/engine/generate.ts";
import { load, type LoadModelOptions, type Model } from "../../src/index.ts";
import { createApp, type AppOptions, type ServedModel } from "../../src/server/index.ts";

export const DEMO = join(import.meta.dir, "../../models/demo.gguf");
export const STORY = { role: "user", content: "Tell me a story about a little dog." } as const;

/** The demo model on one thread in exact precision: every greedy answer is the same whatever runs beside it. */
export const loadDemo = (options: LoadModelOptions = {}): Promise<Model> => load(DEMO, { context: 1024, sessions: 4, device: { threads: 1, precision: "exact" }, ...options });

export const USAGE: Usage = { promptTokens: 7, cachedTokens: 3, completionTokens: 5, thoughtTokens: 2, prefillMs: 2, decodeMs: 8 };
export const finish = (reason: "stop" | "length" | "tool_calls" = "stop"): StreamPart => ({ type: "finish", reason, usage: USAGE });

export interface Asked { readonly prompt: Prompt; readonly options: GenerateOptions }
/** A model that answers everything with `parts`, and remembers what it was asked. A part may be a wait, or an error to throw. */
export function scripted(parts: readonly (StreamPart | Error | (() => Promise<void>))[], sequences = 2): ServedModel & { readonly asked: Asked[]; readonly ended: string[] } {
  const asked: Asked[] = [], ended: string[] = [];
  return {
    asked, ended,
    info: { path: "/models/scripted-00001-of-00002.gguf", name: "Scripted", architecture: "gemma4", contextLength: 4096, vocabulary: 100, chat: { tools: true, thinking: true }, plan: { context: 2048, sequences } },
    async *generate(prompt, options = {}) {
      asked.push({ prompt, options });
      try {
        for (const part of parts) {
          if (options.signal?.aborted) {
            if (options.onAbort !== "stop") throw options.signal.reason;
            yield { type: "finish", reason: "abort", usage: USAGE };
            return;
          }
          if (part instanceof Error) throw part;
          if (typeof part === "function") await part();
          else yield part;
        }
      } finally {
        ended.push(options.signal?.aborted ? "aborted" : "whole");
      }
    },
  };
}

/** Calls an application as a host does. */
export function caller(model: ServedModel, options: AppOptions = {}) {
  const app = createApp(model, options);
  const post = (path: string, body: unknown, more: RequestInit = {}): Promise<Response> =>
    Promise.resolve(app.fetch(new Request(`http://localhost${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), ...more })));
  return { app, post, chat: (body: object, more: RequestInit = {}) => post("/v1/chat/completions", { messages: [STORY], ...body }, more) };
}

export interface SseEvent { readonly name: string | undefined; readonly data: any } // eslint-disable-line
/** The events and comments of a stream. Throws on lines that the protocol does not know. */
export async function readEvents(response: Response): Promise<{ events: SseEvent[]; comments: string[] }> {
  const events: SseEvent[] = [], comments: string[] = [];
  const text = await response.text();
  if (!text.endsWith("\n\n")) throw new Error("the stream ends inside an event");
  for (const block of text.slice(0, -2).split("\n\n")) {
    let name: string | undefined, data: string | undefined;
    for (const line of block.split("\n")) {
      if (line.startsWith(":")) comments.push(line.slice(1).trim());
      else if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data = line.slice(6);
      else throw new Error(`no line of an event stream: ${line}`);
    }
    if (data !== undefined) events.push({ name, data: data === "[DONE]" ? data : JSON.parse(data) });
  }
  return { events, comments };
}
