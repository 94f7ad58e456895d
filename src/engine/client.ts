// The caller's side of the engine Worker: models, sessions and generations as objects. Holds no native memory itself.
import { BaoError, DisposedError, UsageError } from "../errors.ts";
import type { GenerateOptions, Prompt, StreamPart, Usage } from "./generate.ts";
import { unpackError, type Call, type FromWorker, type ModelInfo, type ToWorker, type WorkerOptions } from "./protocol.ts";

interface Pending { parts?: (parts: readonly StreamPart[]) => void; done(value: unknown): void; fail(error: unknown): void }

/** The one engine Worker of this process. It is kept for good; it holds the process open only while a request is running. */
class Engine {
  static #instance: Engine | undefined;
  static get(): Engine { return (Engine.#instance ??= new Engine()); }

  readonly #worker = new Worker(new URL("./worker.ts", import.meta.url).href);
  readonly #pending = new Map<number, Pending>();
  #next = 1;

  private constructor() {
    this.#worker.onmessage = (event: MessageEvent<FromWorker>) => this.#receive(event.data);
    // An error outside any request is a defect of ours: every waiting caller hears of it.
    this.#worker.onerror = (event: ErrorEvent) => {
      const error = new BaoError("engine_failed", `The engine stopped: ${event.message}`, "This is a defect of Bao: please report it.");
      for (const p of this.#pending.values()) p.fail(error);
      this.#pending.clear();
      Engine.#instance = undefined;
    };
    this.#worker.unref();
  }

  /** Sends a call; `cancel` asks the engine to end it early. */
  send(call: Call, parts?: (parts: readonly StreamPart[]) => void): { result: Promise<unknown>; cancel(): void } {
    const request = this.#next++;
    const result = new Promise<unknown>((done, fail) => {
      this.#pending.set(request, { ...(parts ? { parts } : {}), done, fail });
      if (this.#pending.size === 1) this.#worker.ref();
      try {
        this.#worker.postMessage({ request, call } satisfies ToWorker);
      } catch (e) {
        // A request that never left must not hold the process open.
        this.#settle(request);
        throw new UsageError("bad_option", `The options cannot be passed to the engine: ${(e as Error).message}`, "Pass plain data: no functions, no class instances.", { cause: e });
      }
    });
    return { result, cancel: () => { if (this.#pending.has(request)) this.#worker.postMessage({ request, cancel: true } satisfies ToWorker); } };
  }
  #receive(message: FromWorker): void {
    const pending = this.#pending.get(message.request);
    if (!pending) return;
    if ("parts" in message) { pending.parts?.(message.parts); return; }
    this.#settle(message.request);
    if ("error" in message) pending.fail(unpackError(message.error)); else pending.done(message.done);
  }
  #settle(request: number): void {
    this.#pending.delete(request);
    if (this.#pending.size === 0) this.#worker.unref();
  }
}

/** Runs a call under a signal: aborting rejects with its reason. */
async function calling(call: Call, signal?: AbortSignal): Promise<unknown> {
  signal?.throwIfAborted();
  const { result, cancel } = Engine.get().send(call);
  signal?.addEventListener("abort", cancel, { once: true });
  try {
    return await result;
  } catch (e) {
    throw signal?.aborted ? signal.reason : e;
  } finally {
    signal?.removeEventListener("abort", cancel);
  }
}

export interface LoadModelOptions extends Omit<WorkerOptions, "sequences" | "outputs"> {
  /** Conversations that can be kept at the same time, each with its own cache. Default 1. */
  sessions?: number;
  signal?: AbortSignal;
}

/** One answer while it is being written: iterate it for typed parts, or await `text()`. It starts at once and can be iterated once. */
export class Generation implements AsyncIterable<StreamPart> {
  readonly #queue: StreamPart[] = [];
  #ended = false;
  #error: unknown;
  #wake: (() => void) | undefined;
  #taken = false;
  readonly #cancel: () => void;

  constructor(call: Extract<Call, { kind: "generate" }>, signal: AbortSignal | undefined) {
    const stop = (error?: unknown): void => {
      this.#ended = true;
      this.#error = error;
      signal?.removeEventListener("abort", this.#cancel);
      this.#wake?.();
    };
    if (signal?.aborted && call.options.onAbort !== "stop") {
      this.#cancel = () => {};
      stop(signal.reason);
      return;
    }
    const { result, cancel } = Engine.get().send(call, (parts) => {
      this.#queue.push(...parts);
      this.#wake?.();
    });
    this.#cancel = cancel;
    if (signal?.aborted) cancel();
    signal?.addEventListener("abort", cancel, { once: true });
    result.then(() => stop(), (e: unknown) => stop(signal?.aborted ? signal.reason : e));
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<StreamPart, void> {
    if (this.#taken) throw new BaoError("already_consumed", "This generation was read already", "Start another one with generate().");
    this.#taken = true;
    try {
      for (;;) {
        const part = this.#queue.shift();
        if (part) { yield part; continue; }
        if (this.#ended) {
          if (this.#error !== undefined) throw this.#error;
          return;
        }
        await new Promise<void>((resolve) => { this.#wake = resolve; });
      }
    } finally {
      // Leaving the loop early ends the work.
      if (!this.#ended) this.#cancel();
    }
  }
  /** The whole answer's text, thoughts and tool calls left out. */
  async text(): Promise<string> { return (await this.result()).text; }
  /** The whole answer: text, every part, why it ended, and usage. */
  async result(): Promise<{ text: string; parts: StreamPart[]; finish: Extract<StreamPart, { type: "finish" }>; usage: Usage }> {
    const parts: StreamPart[] = [];
    let text = "", finish: Extract<StreamPart, { type: "finish" }> | undefined;
    for await (const part of this) {
      parts.push(part);
      if (part.type === "text") text += part.text;
      if (part.type === "finish") finish = part;
    }
    if (!finish) throw new BaoError("internal", "The generation ended without a finish part");
    return { text, parts, finish, usage: finish.usage };
  }
}

const withoutSignal = ({ signal: _, ...options }: GenerateOptions): Omit<GenerateOptions, "signal"> => options;

/** A conversation with a cache of its own: what a prompt shares with the former one is not computed again. */
export class ModelSession implements AsyncDisposable {
  #disposed: Promise<unknown> | undefined;
  constructor(private readonly model: number, private readonly id: number) {}
  generate(prompt: Prompt, options: GenerateOptions = {}): Generation {
    if (this.#disposed) throw new DisposedError("Session");
    return new Generation({ kind: "generate", model: this.model, session: this.id, prompt, options: withoutSignal(options) }, options.signal);
  }
  /** Waits for an answer in flight, then frees the session's cache. Does nothing more the second time, or when the model is gone. */
  async dispose(): Promise<void> {
    await (this.#disposed ??= calling({ kind: "closeSession", model: this.model, session: this.id }));
  }
  async [Symbol.asyncDispose](): Promise<void> { await this.dispose(); }
}

/** A model loaded in the engine Worker. */
export class Model implements AsyncDisposable {
  #disposed: Promise<unknown> | undefined;
  constructor(private readonly id: number, readonly info: ModelInfo) {}

  /** Answers a text (one user message), a conversation, or token ids. Concurrent calls take turns step by step. */
  generate(prompt: Prompt, options: GenerateOptions = {}): Generation {
    this.#alive();
    return new Generation({ kind: "generate", model: this.id, session: 0, prompt, options: withoutSignal(options) }, options.signal);
  }
  /** Reserves one of the model's sequences. */
  async session(): Promise<ModelSession> {
    this.#alive();
    return new ModelSession(this.id, await calling({ kind: "openSession", model: this.id }) as number);
  }
  /** Ids of a text; special tokens in it stay text unless `parse` says otherwise. */
  async tokenize(text: string, options: { parse?: "none" | "markers" | "all"; bos?: boolean } = {}): Promise<number[]> {
    this.#alive();
    if (typeof (text as unknown) !== "string") throw new UsageError("bad_option", `tokenize: expected a text, found ${typeof text}`);
    return await calling({ kind: "tokenize", model: this.id, text, options }) as number[];
  }
  /** Text of ids; control tokens are left out unless `special`. */
  async detokenize(ids: readonly number[], options: { special?: boolean } = {}): Promise<string> {
    this.#alive();
    if (!Array.isArray(ids)) throw new UsageError("bad_option", "detokenize: expected a list of token ids");
    return await calling({ kind: "detokenize", model: this.id, ids, special: options.special ?? false }) as string;
  }
  /** Refuses new work, waits for what is running, then frees everything. A second call waits for the same. */
  async dispose(): Promise<void> {
    await (this.#disposed ??= calling({ kind: "dispose", model: this.id }));
  }
  async [Symbol.asyncDispose](): Promise<void> { await this.dispose(); }
  #alive(): void { if (this.#disposed) throw new DisposedError("Model"); }
}

/**
 * Loads a GGUF model in the engine Worker. The caller's event loop keeps running.
 * Throws ModelFileError for a bad file, ResourceError when memory, device or kernel library is missing, UsageError for bad options.
 */
export async function load(path: string, options: LoadModelOptions = {}): Promise<Model> {
  if (typeof (path as unknown) !== "string") throw new UsageError("bad_option", `load: expected the path of a GGUF file as a text, found ${path === null ? "null" : typeof path}`, "Of a file URL, give Bun.fileURLToPath(url).");
  const { sessions, signal, ...rest } = options;
  const { model, info } = await calling({ kind: "load", path, options: { ...rest, sequences: sessions ?? 1 } }, signal) as { model: number; info: ModelInfo };
  return new Model(model, info);
}
