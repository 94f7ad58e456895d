// act(): lets a model call the caller's functions until it has an answer. Functions run in the caller's thread; the model stays where it is.
import { isSchemaObject, type JsonSchema, type Message, type SchemaObject, type ToolCall } from "./chat/index.ts";
import type { FinishReason, GenerateOptions, Prompt, StreamPart, Usage } from "./engine/generate.ts";
import { BaoError, UsageError } from "./errors.ts";

/** What a function hears besides its arguments. */
export interface ToolContext {
  readonly id: string;
  /** Aborted when `act` is. */
  readonly signal: AbortSignal | undefined;
}
/** A function that a model may call. `parameters`: a schema of zod (arguments are checked by it before `run`), or JSON Schema. */
export interface Tool<Input = unknown> {
  readonly name: string;
  readonly description?: string;
  readonly parameters?: JsonSchema | SchemaObject;
  readonly strict?: boolean;
  /** What it gives goes back to the model: text, or anything that JSON can hold. What it throws goes back as an error's message. */
  run(input: Input, context: ToolContext): unknown;
}
type Arguments<S> = S extends { readonly "~standard": { readonly types?: infer T } } ? NonNullable<T> extends { readonly output: infer O } ? O : unknown : Record<string, unknown>;

/** A tool whose `run` knows the type of its arguments from the schema. */
export function tool<S extends JsonSchema | SchemaObject>(definition: Omit<Tool, "parameters" | "run"> & { readonly parameters: S; run(input: Arguments<S>, context: ToolContext): unknown }): Tool {
  return definition as unknown as Tool;
}

export interface ActOptions extends Omit<GenerateOptions, "tools"> {
  /** Rounds of calls at most; the answer after the last one is asked for without tools. Default 8. */
  maxRounds?: number;
}
/** Parts of all rounds, with what the functions gave. */
export type ActPart =
  | Exclude<StreamPart, { type: "tool_call" | "finish" }>
  | { readonly type: "tool_call"; readonly id: string; readonly name: string; readonly arguments: Record<string, unknown> }
  | { readonly type: "tool_result"; readonly id: string; readonly name: string; readonly result: unknown; /** The function failed, and the model was told so. */ readonly failed: boolean }
  | { readonly type: "round"; readonly number: number; readonly usage: Usage }
  | { readonly type: "finish"; readonly reason: FinishReason; readonly stop?: string };

export interface ActResult {
  /** The last round's text. */
  readonly text: string;
  /** The whole conversation, to go on with. */
  readonly messages: readonly Message[];
  readonly rounds: number;
  readonly reason: FinishReason;
}

/** What can answer: a model, or a session of one (which reads nothing twice). */
export interface Answerer { generate(prompt: Prompt, options?: GenerateOptions): AsyncIterable<StreamPart> }

/**
 * Answers `prompt`; when the model calls tools, runs them (those of one round at the same time), tells it what they gave, and goes on. Iterate it for
 * parts, or await `result()`; it starts when read. `toolChoice` other than auto is for the first round. Throws what generate throws, and signal.reason.
 */
export function act(model: Answerer, prompt: string | readonly Message[], tools: readonly Tool[], options: ActOptions = {}): Acting {
  for (const t of tools) if (typeof t?.run !== "function") throw new UsageError("bad_option", `act: the tool ${JSON.stringify(t?.name)} has no function to run`);
  const { maxRounds = 8 } = options;
  if (!Number.isInteger(maxRounds) || maxRounds < 1) throw new UsageError("bad_option", `maxRounds: expected a whole number from 1, found ${maxRounds}`);
  return new Acting(model, prompt, tools, options, maxRounds);
}

export class Acting implements AsyncIterable<ActPart> {
  readonly #messages: Message[];
  #text = "";
  #rounds = 0;
  #reason: FinishReason = "stop";
  #taken = false;

  constructor(private readonly model: Answerer, prompt: string | readonly Message[], private readonly tools: readonly Tool[], private readonly options: ActOptions, private readonly maxRounds: number) {
    const { system } = options;
    if (system !== undefined && typeof prompt !== "string") throw new UsageError("bad_option", "system: goes in front of a string prompt", "Make it the first message of the conversation.");
    this.#messages = typeof prompt === "string" ? [...(system === undefined ? [] : [{ role: "system", content: system } as const]), { role: "user", content: prompt }] : [...prompt];
  }

  async text(): Promise<string> { return (await this.result()).text; }
  async result(): Promise<ActResult> {
    for await (const _ of this) { /* what is kept is kept below */ }
    return { text: this.#text, messages: this.#messages, rounds: this.#rounds, reason: this.#reason };
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ActPart, void> {
    if (this.#taken) throw new BaoError("already_consumed", "This answer was read already", "Start another one with act().");
    this.#taken = true;
    const { maxRounds: _, system: __, toolChoice, ...generate } = this.options, { signal } = generate;
    for (;;) {
      const last = ++this.#rounds > this.maxRounds, choice = last ? "none" : this.#rounds === 1 || toolChoice === "none" ? toolChoice : "auto";
      const calls: (ToolCall & { readonly id: string; readonly arguments: Record<string, unknown> })[] = [], unread: string[] = [];
      let thought = "", finish: Extract<StreamPart, { type: "finish" }> | undefined;
      this.#text = "";
      for await (const part of this.model.generate(this.#messages, { ...generate, ...(choice === undefined ? {} : { toolChoice: choice }), tools: this.tools.map(({ run: _, ...spec }) => spec) })) {
        switch (part.type) {
          case "tool_call": {
            const call = { id: `call_${this.#rounds}_${calls.length + 1}`, name: part.name, arguments: part.arguments };
            calls.push(call);
            yield { type: "tool_call", ...call };
            continue;
          }
          case "finish": finish = part; continue;
          case "text": this.#text += part.text; break;
          case "thought": thought += part.text; break;
          case "error": unread.push(part.message); break;
        }
        yield part;
      }
      yield { type: "round", number: this.#rounds, usage: finish!.usage };
      this.#reason = finish!.reason;
      const goOn = !last && finish!.reason !== "abort" && (calls.length > 0 || (unread.length > 0 && finish!.reason !== "length"));
      if (calls.length > 0 || this.#text !== "") this.#messages.push({ role: "assistant", content: this.#text, ...(thought === "" ? {} : { reasoning: thought }), ...(goOn && calls.length > 0 ? { toolCalls: calls } : {}) });
      if (!goOn) {
        yield { type: "finish", reason: finish!.reason, ...(finish!.stop === undefined ? {} : { stop: finish!.stop }) };
        return;
      }
      const results = await aborting(Promise.all(calls.map((call) => this.#run(call))), signal);
      for (const [i, { result, failed }] of results.entries()) {
        const { id, name } = calls[i]!;
        this.#messages.push({ role: "tool", toolCallId: id, name, content: contentOf(result) });
        yield { type: "tool_result", id, name, result, failed };
      }
      // A call that could not be read has no result to answer it with.
      if (unread.length > 0) this.#messages.push({ role: "user", content: `A function call could not be read (${unread.join("; ")}). Write it again.` });
    }
  }

  /** Runs one call. Whatever goes wrong is the model's to mend: it is told, and may try again. */
  async #run(call: { readonly id: string; readonly name: string; readonly arguments: Record<string, unknown> }): Promise<{ result: unknown; failed: boolean }> {
    const { signal } = this.options, found = this.tools.find((t) => t.name === call.name);
    const failure = (error: string): { result: unknown; failed: boolean } => ({ result: { error }, failed: true });
    if (!found) return failure(`there is no function ${call.name}; there are ${this.tools.map((t) => t.name).join(", ")}`);
    try {
      let input: unknown = call.arguments;
      if (isSchemaObject(found.parameters)) {
        const checked = await found.parameters["~standard"].validate(input);
        if (checked.issues) return failure(checked.issues.map((i) => `${(i.path ?? []).map((p) => String(typeof p === "object" ? p.key : p)).join(".")}: ${i.message}`).join("; "));
        input = checked.value;
      }
      const result: unknown = await found.run(input, { id: call.id, signal });
      contentOf(result); // what cannot be told to the model is a failure of the function
      return { result, failed: false };
    } catch (e) {
      return failure(e instanceof Error ? e.message : String(e));
    }
  }
}

/** A result as a message has it: text, or an object, whose fields templates print one by one. */
function contentOf(result: unknown): string | Readonly<Record<string, unknown>> {
  if (typeof result === "string") return result;
  if (result === undefined) return "done";
  const text = JSON.stringify(result) as string | undefined;
  if (text === undefined) throw new Error(`a ${typeof result} cannot be told to the model`);
  const plain = JSON.parse(text) as unknown;
  return typeof plain === "object" && plain !== null && !Array.isArray(plain) ? plain as Record<string, unknown> : text;
}

/** The promise, or signal.reason as soon as it is aborted: a function may not listen. */
async function aborting<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  signal?.throwIfAborted();
  if (!signal) return promise;
  let stop!: () => void;
  const aborted = new Promise<never>((_, reject) => { stop = () => reject(signal.reason as Error); signal.addEventListener("abort", stop, { once: true }); });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", stop);
  }
}
