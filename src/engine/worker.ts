// The engine Worker: owns every loaded model and does all FFI, so that the caller's event loop keeps running. Created once, never terminated.
import { BaoError, DisposedError, UsageError } from "../errors.ts";
import { embeddedLibraries, type BackendName } from "../native/library.ts";
import { familyOf } from "../model/registry.ts";
import { chooseDevice } from "./choose.ts";
import { encodePrompt, generateParts } from "./generate.ts";
import { LocalModel, openModel, requireText, type LoadOptions } from "./model.ts";
import type { Call, Embedding, FromWorker, ModelEstimate, ModelInfo, SessionDeed, ToWorker, WorkerOptions } from "./protocol.ts";
import { packError } from "./protocol.ts";
import type { Session } from "./session.ts";

declare const self: { postMessage(message: FromWorker): void; onmessage: ((event: { data: ToWorker }) => void) | null };

/** `used`: when an answer last began, in answers of the model. */
interface Held { readonly session: Session; busy: boolean; readonly reserved: boolean; used: number }
interface Loaded { readonly model: LocalModel; readonly sessions: Map<number, Held>; readonly waiting: (() => void)[]; disposing: boolean; running: number; answers: number }

const models = new Map<number, Loaded>();
const cancels = new Map<number, AbortController>();
// Ids are never those of an earlier Worker: objects that outlived a failed engine must not reach a new one's models.
let nextId = 1 + Math.trunc(Math.random() * 2 ** 40);

self.onmessage = ({ data }) => {
  if ("libraries" in data) { for (const [backend, path] of Object.entries(data.libraries)) embeddedLibraries.set(backend as BackendName, path); return; }
  if ("cancel" in data) { cancels.get(data.request)?.abort(); return; }
  void handle(data.request, data.call);
};

async function handle(request: number, call: Call): Promise<void> {
  const controller = new AbortController();
  cancels.set(request, controller);
  try {
    self.postMessage({ request, done: await answer(request, call, controller.signal) });
  } catch (e) {
    self.postMessage({ request, error: packError(e) });
  } finally {
    cancels.delete(request);
  }
}

async function answer(request: number, call: Call, signal: AbortSignal): Promise<unknown> {
  switch (call.kind) {
    case "load": {
      const { options, warnings } = onDevice(call.options);
      const model = await LocalModel.load(call.path, { ...options, ...(call.progress ? { onProgress: (progress) => self.postMessage({ request, progress }) } : {}) });
      if (signal.aborted) { model.dispose(); throw signal.reason; }
      models.set(nextId, { model, sessions: new Map(), waiting: [], disposing: false, running: 0, answers: 0 });
      return { model: nextId++, info: infoOf(model, warnings) };
    }
    case "estimate": return estimateOf(call.path, call.options);
    case "generate": return generate(request, call, signal);
    case "embed": return embed(call, signal);
    case "session": return withSession(loaded(call.model), call.session, signal, (held) => perform(call, held.session, signal));
    case "tokenize": return loaded(call.model).model.tokenizer.encode(call.text, call.options);
    case "detokenize": return loaded(call.model).model.tokenizer.decode(call.ids, { special: call.special });
    case "openSession": {
      const l = loaded(call.model);
      await makeRoom(l, signal);
      return reserve(l, l.model.session());
    }
    case "closeSession": {
      const l = models.get(call.model), held = l?.sessions.get(call.session);
      // A model that is disposed of takes its sessions along.
      if (!l || l.disposing) return undefined;
      if (held) {
        while (held.busy) await new Promise<void>((resolve) => l.waiting.push(resolve));
        held.session.dispose();
        l.sessions.delete(call.session);
        wake(l);
      }
      return undefined;
    }
    case "dispose": {
      const l = loaded(call.model);
      l.disposing = true;
      wake(l);
      while (l.running > 0) await new Promise<void>((resolve) => l.waiting.push(resolve));
      await l.model.scheduler.idle();
      // The ends of these answers leave first.
      await new Promise((resolve) => setImmediate(resolve));
      for (const h of l.sessions.values()) h.session.dispose();
      models.delete(call.model);
      l.model.dispose();
      return undefined;
    }
  }
}

async function generate(request: number, call: Extract<Call, { kind: "generate" }>, signal: AbortSignal): Promise<void> {
  const l = loaded(call.model), options = { ...call.options, signal };
  const prompt = encodePrompt(l.model, call.prompt, options), { system: _, ...rest } = options;
  let began = false;
  try {
    await withSession(l, call.session, signal, async ({ session }) => {
      began = true;
      for await (const part of generateParts(l.model, session, prompt, rest)) self.postMessage({ request, parts: [part] });
    }, prompt.ids);
  } catch (e) {
    if (began || !signal.aborted || options.onAbort !== "stop") throw e;
    self.postMessage({ request, parts: [{ type: "finish", reason: "abort", usage: { promptTokens: prompt.ids.length, cachedTokens: 0, completionTokens: 0, thoughtTokens: 0, prefillMs: 0, decodeMs: 0 } }] });
  }
}

/** As many inputs at once as the model has sequences: their rows share steps. */
async function embed(call: Extract<Call, { kind: "embed" }>, signal: AbortSignal): Promise<Embedding[]> {
  const l = loaded(call.model), { tokenizer, runner } = l.model;
  if (call.inputs.some((x) => typeof x === "string")) requireText(l.model);
  const all = call.inputs.map((x) => (typeof x === "string" ? tokenizer.encode(x) : x)), left = all.entries(), out: Embedding[] = [];
  let failed = false;
  await Promise.all(Array.from({ length: Math.min(runner.plan.sequences, all.length) }, async () => {
    for (const [i, ids] of left) {
      if (failed) return;
      try {
        const vector = await withSession(l, 0, signal, ({ session }) => session.embed(ids, signal), ids), length = call.normalize ? Math.hypot(...vector) : 1;
        out[i] = { vector: length > 0 ? vector.map((x) => x / length) : vector, tokens: ids.length };
      } catch (e) {
        failed = true;
        throw e;
      }
    }
  }));
  return out;
}

async function perform({ model, does }: { readonly model: number; readonly does: SessionDeed }, session: Session, signal: AbortSignal): Promise<unknown> {
  const l = loaded(model);
  switch (does.kind) {
    case "tokens": return session.ids.slice(0, session.length);
    case "snapshot": session.snapshot(); return session.length;
    case "rewind": session.rewind(does.by === undefined ? does.to as number : session.length - does.by); return session.length;
    case "save": return session.save(does.path, l.model.savedFor);
    case "restore": return session.restore(does.path, l.model.savedFor);
    case "fork":
      await makeRoom(l, signal);
      return reserve(l, session.fork());
  }
}

/** Waits until one more session can be opened; an idle shared one gives up its place. */
async function makeRoom(l: Loaded, signal: AbortSignal): Promise<void> {
  const { sequences } = l.model.runner.plan;
  while (l.sessions.size >= sequences) {
    const idle = [...l.sessions].filter(([, h]) => !h.busy && !h.reserved).sort(([, a], [, b]) => a.used - b.used)[0];
    if (idle) {
      idle[1].session.dispose();
      l.sessions.delete(idle[0]);
    } else if ([...l.sessions.values()].every((h) => h.reserved)) {
      throw new UsageError("too_many_sequences", `${sequences} sessions are open already`, "Load the model with more `sessions`, or dispose of one.");
    } else {
      await turn(l, signal);
    }
  }
}

/** Keeps a session for its caller; gives its id. */
function reserve(l: Loaded, session: Session): number {
  l.sessions.set(nextId, { session, busy: false, reserved: true, used: l.answers });
  return nextId++;
}

/** Does something with a session: the named one, or (0) a shared one that holds much of `ids` already. Waits for its turn. */
async function withSession<T>(l: Loaded, id: number, signal: AbortSignal, work: (held: Held) => Promise<T>, ids: readonly number[] = []): Promise<T> {
  l.running++;
  let held: Held | undefined;
  try {
    held = await takeSession(l, id, signal, ids);
    return await work(held);
  } finally {
    if (held) held.busy = false;
    l.running--;
    wake(l);
  }
}

async function takeSession(l: Loaded, id: number, signal: AbortSignal, ids: readonly number[]): Promise<Held> {
  const take = (held: Held): Held => {
    held.busy = true;
    held.used = ++l.answers;
    return held;
  };
  for (;;) {
    if (l.disposing) throw new DisposedError("Model");
    signal.throwIfAborted();
    if (id !== 0) {
      const held = l.sessions.get(id);
      if (!held) throw new DisposedError("Session");
      if (!held.busy) return take(held);
    } else {
      const idle = [...l.sessions.values()].filter((h) => !h.busy && !h.reserved).map((held) => ({ held, shared: held.session.shared(ids) }));
      const best = idle.sort((a, b) => b.shared - a.shared || a.held.used - b.held.used)[0];
      // Another's conversation is not written over for a few tokens at its beginning, while there is room.
      const room = l.sessions.size < l.model.runner.plan.sequences;
      if (best && (!room || best.shared * 2 >= best.held.session.length)) return take(best.held);
      if (room) {
        const held: Held = { session: l.model.session(), busy: false, reserved: false, used: 0 };
        l.sessions.set(nextId++, held);
        return take(held);
      }
      if ([...l.sessions.values()].every((h) => h.reserved)) {
        throw new UsageError("no_session", "Every sequence of the model is reserved by a session", "Load the model with more `sessions`, or generate through a session.");
      }
    }
    await turn(l, signal);
  }
}

/** Resolves when something about the model's sessions has changed; throws when aborted or when the model is being disposed of. */
async function turn(l: Loaded, signal: AbortSignal): Promise<void> {
  await new Promise<void>((resolve) => { l.waiting.push(resolve); signal.addEventListener("abort", () => resolve(), { once: true }); });
  signal.throwIfAborted();
  if (l.disposing) throw new DisposedError("Model");
}

function wake(l: Loaded): void { for (const resume of l.waiting.splice(0)) resume(); }

function loaded(id: number): Loaded {
  const l = models.get(id);
  if (!l || l.disposing) throw new DisposedError("Model");
  return l;
}

/** The options with their device by name, and what keeps a faster one from being used. What only a CPU knows means a CPU. */
function onDevice({ device = {}, ...rest }: WorkerOptions): { options: LoadOptions; warnings: readonly string[] } {
  const { backend = "auto", ...how } = device, onCpu = how.reference === true || (how.isa ?? "auto") !== "auto";
  if (backend !== "auto" || onCpu) return { options: { ...rest, device: { ...how, backend: backend === "auto" ? "cpu" : backend } }, warnings: [] };
  const choice = chooseDevice("auto");
  return { options: { ...rest, device: { ...how, backend: choice.backend } }, warnings: choice.warnings };
}

function estimateOf(path: string, wanted: WorkerOptions): ModelEstimate {
  const { file, plan, estimate } = openModel(path, onDevice(wanted).options), { name, architecture, contextLength } = familyOf(file).configure(file);
  return { path: file.path, name, architecture, contextLength, plan, memory: estimate };
}

function infoOf(model: LocalModel, warnings: readonly string[]): ModelInfo {
  const { config, plan, device } = model.runner;
  return {
    path: model.file.path, name: config.name, architecture: config.architecture, vocabulary: config.vocabulary, contextLength: config.contextLength,
    plan, estimate: model.estimate, device: device.info, loadTimes: model.loadTimes, warnings: [...warnings, ...model.tokenizer.warnings],
    chat: chatOf(model),
  };
}

/** What its template can do; nothing for a model that is no chat model, whose conversations are refused when one comes. */
function chatOf(model: LocalModel): ModelInfo["chat"] {
  try {
    const { supportsTools, supportsThinking } = model.template;
    return { tools: supportsTools, thinking: supportsThinking };
  } catch (e) {
    if (e instanceof BaoError) return undefined;
    throw e;
  }
}
