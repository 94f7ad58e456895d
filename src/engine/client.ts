// The caller's side of the engine Worker: models, sessions and generations as objects. Holds no native memory itself.
import { BaoError, DisposedError, UsageError } from "../errors.ts";
import { isSchemaObject, plainSchema, plainTool } from "../chat/index.ts";
import { resolveModel } from "../hub/index.ts";
import type { GenerateOptions, Prompt, StreamPart, Usage } from "./generate.ts";
import { COMPILED, embeddedFiles } from "./compiled.ts";
import { checkKeys } from "./keys.ts";
import type { EmbedOptions, EstimateOptions, LoadModelOptions } from "./options.ts";
import type { LoadProgress } from "./model.ts";
import { unpackError, type Call, type Embedding, type FromWorker, type ModelEstimate, type ModelInfo, type SessionDeed, type ToWorker } from "./protocol.ts";

/** What a request hears of before its end. */
interface Listeners { parts?: (parts: readonly StreamPart[]) => void; progress?: (progress: LoadProgress) => void }
interface Pending extends Listeners { done(value: unknown): void; fail(error: unknown): void }

/** The one engine Worker of this process. It is kept for good; it holds the process open only while a request is running. */
class Engine {
  static #instance: Engine | undefined;
  static get(): Engine { return (Engine.#instance ??= new Engine()); }

  #worker: Worker | undefined;
  /** What waits for the Worker, which a compiled program has to find first. */
  readonly #outbox: ToWorker[] = [];
  readonly #pending = new Map<number, Pending>();
  #next = 1;

  private constructor() {
    if (!COMPILED) { this.#start(new Worker(new URL("./worker.ts", import.meta.url).href)); return; }
    embeddedFiles().then(({ worker, libraries }) => {
      this.#outbox.unshift({ libraries });
      this.#start(new Worker(worker));
    }, (e: unknown) => this.#fail(e));
  }
  #start(worker: Worker): void {
    this.#worker = worker;
    worker.onmessage = (event: MessageEvent<FromWorker>) => this.#receive(event.data);
    // An error outside any request is a defect of ours: every waiting caller hears of it.
    worker.onerror = (event: ErrorEvent) => this.#fail(new BaoError("engine_failed", `The engine stopped: ${event.message}`, "This is a defect of Bao: please report it."));
    if (this.#pending.size === 0) worker.unref();
    for (const message of this.#outbox.splice(0)) worker.postMessage(message);
  }
  #fail(error: unknown): void {
    for (const p of this.#pending.values()) p.fail(error);
    this.#pending.clear();
    Engine.#instance = undefined;
  }
  #post(message: ToWorker): void {
    if (this.#worker) this.#worker.postMessage(message);
    else this.#outbox.push(structuredClone(message));
  }

  /** Sends a call; `cancel` asks the engine to end it early. */
  send(call: Call, listeners: Listeners = {}): { result: Promise<unknown>; cancel(): void } {
    const request = this.#next++;
    const result = new Promise<unknown>((done, fail) => {
      this.#pending.set(request, { ...listeners, done, fail });
      if (this.#pending.size === 1) this.#worker?.ref();
      try {
        this.#post({ request, call });
      } catch (e) {
        // A request that never left must not hold the process open.
        this.#settle(request);
        throw new UsageError("bad_option", `The options cannot be passed to the engine: ${(e as Error).message}`, "Pass plain data: no functions, no class instances.", { cause: e });
      }
    });
    return { result, cancel: () => { if (this.#pending.has(request)) this.#post({ request, cancel: true }); } };
  }
  #receive(message: FromWorker): void {
    const pending = this.#pending.get(message.request);
    if (!pending) return;
    if ("parts" in message) { pending.parts?.(message.parts); return; }
    if ("progress" in message) { pending.progress?.(message.progress); return; }
    this.#settle(message.request);
    if ("error" in message) pending.fail(unpackError(message.error)); else pending.done(message.done);
  }
  #settle(request: number): void {
    this.#pending.delete(request);
    if (this.#pending.size === 0) this.#worker?.unref();
  }
}

/** Runs a call under a signal: aborting rejects with its reason. */
async function calling(call: Call, signal?: AbortSignal, listeners?: Listeners): Promise<unknown> {
  signal?.throwIfAborted();
  const { result, cancel } = Engine.get().send(call, listeners);
  signal?.addEventListener("abort", cancel, { once: true });
  try {
    return await result;
  } catch (e) {
    throw signal?.aborted ? signal.reason : e;
  } finally {
    signal?.removeEventListener("abort", cancel);
  }
}

/** A place in a session that it can go back to. */
export interface SessionSnapshot { readonly tokens: number }

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
    const { result, cancel } = Engine.get().send(call, { parts: (parts) => {
      this.#queue.push(...parts);
      this.#wake?.();
    } });
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

/** Options as plain data, which is all that reaches another thread. */
function plain({ signal: _, ...options }: GenerateOptions): Omit<GenerateOptions, "signal"> {
  const { tools, responseFormat: format } = options;
  if (Array.isArray(tools)) options.tools = tools.map(plainTool);
  if (format?.type === "json_schema" && isSchemaObject(format.schema)) options.responseFormat = { ...format, schema: plainSchema(format.schema) };
  return options;
}

/** A conversation with a cache of its own: what a prompt shares with the former one is not computed again. Calls run in order, one after another. */
export class ModelSession implements AsyncDisposable {
  #disposed: Promise<unknown> | undefined;
  constructor(private readonly model: number, private readonly id: number) {}
  generate(prompt: Prompt, options: GenerateOptions = {}): Generation {
    this.#alive();
    checkKeys("generate", options);
    return new Generation({ kind: "generate", model: this.model, session: this.id, prompt, options: plain(options) }, options.signal);
  }
  /** Ids of the tokens in the cache. */
  async tokens(): Promise<number[]> { return await this.#do({ kind: "tokens" }) as number[]; }
  /** A new session that goes on from here; both share what they have in common. Takes one of the model's `sessions`: UsageError `too_many_sequences`. */
  async fork(): Promise<ModelSession> { return new ModelSession(this.model, await this.#do({ kind: "fork" }) as number); }
  /** Remembers this place for `rewind`, also behind a sliding window. The oldest is forgotten when there are more than two; prompts take some too. */
  async snapshot(): Promise<SessionSnapshot> { return { tokens: await this.#do({ kind: "snapshot" }) as number }; }
  /**
   * Forgets the last `tokens` tokens, or goes back to a snapshot; gives how many are left. Throws UsageError `rewind_unreachable` for places behind the
   * sliding window that no snapshot holds: the session is unchanged then.
   */
  async rewind(back: number | SessionSnapshot): Promise<number> {
    const deed: SessionDeed = typeof back === "number" ? { kind: "rewind", by: back } : { kind: "rewind", to: back?.tokens };
    return await this.#do(deed) as number;
  }
  /** Writes tokens and cache to a file, whole or not at all. Throws UsageError `session_unwritable`. */
  async save(path: string): Promise<void> { await this.#do({ kind: "save", path: pathOf("save", path) }); }
  /**
   * Becomes what `save` wrote, with the same model and KV type. Throws UsageError `session_unreadable`, `session_mismatch` or `session_damaged`; of the
   * latter the session may come out empty.
   */
  async restore(path: string): Promise<void> { await this.#do({ kind: "restore", path: pathOf("restore", path) }); }
  /** Waits for an answer in flight, then frees the session's cache. Does nothing more the second time, or when the model is gone. */
  async dispose(): Promise<void> {
    await (this.#disposed ??= calling({ kind: "closeSession", model: this.model, session: this.id }));
  }
  async [Symbol.asyncDispose](): Promise<void> { await this.dispose(); }
  async #do(does: SessionDeed): Promise<unknown> {
    this.#alive();
    return await calling({ kind: "session", model: this.model, session: this.id, does });
  }
  #alive(): void { if (this.#disposed) throw new DisposedError("Session"); }
}

/** A model loaded in the engine Worker. */
export class Model implements AsyncDisposable {
  #disposed: Promise<unknown> | undefined;
  constructor(private readonly id: number, readonly info: ModelInfo) {}

  /** Answers a text (one user message), a conversation, or token ids. Concurrent calls share the model's steps, as many at once as it has `sessions`. */
  generate(prompt: Prompt, options: GenerateOptions = {}): Generation {
    this.#alive();
    checkKeys("generate", options);
    return new Generation({ kind: "generate", model: this.id, session: 0, prompt, options: plain(options) }, options.signal);
  }
  /** Reserves one of the model's sequences. */
  async session(): Promise<ModelSession> {
    this.#alive();
    return new ModelSession(this.id, await calling({ kind: "openSession", model: this.id }) as number);
  }
  /** The mean of a text's hidden states after the last norm, [hidden]. Texts get one BOS; token ids are taken as they are. Errors are those of generate. */
  async embed(input: string | { readonly ids: readonly number[] }, options?: EmbedOptions): Promise<Embedding>;
  async embed(inputs: readonly (string | { readonly ids: readonly number[] })[], options?: EmbedOptions): Promise<Embedding[]>;
  async embed(input: string | { readonly ids: readonly number[] } | readonly (string | { readonly ids: readonly number[] })[], options: EmbedOptions = {}): Promise<Embedding | Embedding[]> {
    this.#alive();
    checkKeys("embed", options);
    const single = !Array.isArray(input), inputs = (single ? [input] : input) as readonly unknown[];
    const plain = inputs.map((x) => {
      if (typeof x === "string") return x;
      if (typeof x === "object" && x !== null && "ids" in x && Array.isArray(x.ids)) return x.ids as readonly number[];
      throw new UsageError("bad_prompt", `embed: expected texts, or { ids }; found ${x === null ? "null" : typeof x}`);
    });
    const out = await calling({ kind: "embed", model: this.id, inputs: plain, normalize: options.normalize ?? true }, options.signal) as Embedding[];
    return single ? out[0]! : out;
  }
  /** Ids of a text; special tokens in it stay text unless `parse` says otherwise. */
  async tokenize(text: string, options: { parse?: "none" | "markers" | "all"; bos?: boolean } = {}): Promise<number[]> {
    this.#alive();
    checkKeys("tokenize", options);
    if (typeof (text as unknown) !== "string") throw new UsageError("bad_option", `tokenize: expected a text, found ${typeof text}`);
    return await calling({ kind: "tokenize", model: this.id, text, options }) as number[];
  }
  /** Text of ids; control tokens are left out unless `special`. */
  async detokenize(ids: readonly number[], options: { special?: boolean } = {}): Promise<string> {
    this.#alive();
    checkKeys("detokenize", options);
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
 * Loads a GGUF model in the engine Worker: a file, or a name on the hub (`hf:org/repo:Q4_K_M`), which is fetched if it is not here. The caller's event loop
 * keeps running.
 * Throws ModelFileError for a bad file, ResourceError when memory, device or kernel library is missing, UsageError for bad options.
 */
export async function load(path: string, options: LoadModelOptions = {}): Promise<Model> {
  checkKeys("load", options);
  const { sessions, signal, onProgress, ...rest } = options;
  const file = await resolveModel(pathOf("load", path), { signal, onProgress: (p) => onProgress?.({ phase: "fetch", done: p.total > 0 ? p.done / p.total : 0 }) });
  const call: Call = { kind: "load", path: file, options: { ...rest, sequences: sessions ?? 1 }, progress: onProgress !== undefined };
  const { model, info } = await calling(call, signal, onProgress ? { progress: onProgress } : {}) as { model: number; info: ModelInfo };
  return new Model(model, info);
}

/** What `load` with the same options would take, from the file's header alone: nothing is loaded, no kernel library is needed. Throws as `load` does. */
export async function estimate(path: string, options: EstimateOptions = {}): Promise<ModelEstimate> {
  checkKeys("estimate", options);
  const { sessions, ...rest } = options;
  return await calling({ kind: "estimate", path: await resolveModel(pathOf("estimate", path)), options: { ...rest, sequences: sessions ?? 1 } }) as ModelEstimate;
}

function pathOf(call: string, path: unknown): string {
  if (typeof path === "string") return path;
  throw new UsageError("bad_option", `${call}: expected the path of a file as a text, found ${path === null ? "null" : typeof path}`, "Of a file URL, give Bun.fileURLToPath(url).");
}
