// The engine Worker: owns every loaded model and does all FFI, so that the caller's event loop keeps running. Created once, never terminated.
import { DisposedError, UsageError } from "../errors.ts";
import { generateParts } from "./generate.ts";
import { LocalModel } from "./model.ts";
import type { Call, FromWorker, ModelInfo, ToWorker } from "./protocol.ts";
import { packError } from "./protocol.ts";
import type { Session } from "./session.ts";

declare const self: { postMessage(message: FromWorker): void; onmessage: ((event: { data: ToWorker }) => void) | null };

interface Held { readonly session: Session; busy: boolean; reserved: boolean }
interface Loaded { readonly model: LocalModel; readonly sessions: Map<number, Held>; readonly waiting: (() => void)[]; disposing: boolean; running: number }

const models = new Map<number, Loaded>();
const cancels = new Map<number, AbortController>();
// Ids are never those of an earlier Worker: objects that outlived a failed engine must not reach a new one's models.
let nextId = 1 + Math.trunc(Math.random() * 2 ** 40);

self.onmessage = ({ data }) => {
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
      const model = await LocalModel.load(call.path, call.options);
      if (signal.aborted) { model.dispose(); throw signal.reason; }
      models.set(nextId, { model, sessions: new Map(), waiting: [], disposing: false, running: 0 });
      return { model: nextId++, info: infoOf(model) };
    }
    case "generate": return generate(request, call, signal);
    case "tokenize": return loaded(call.model).model.tokenizer.encode(call.text, call.options);
    case "detokenize": return loaded(call.model).model.tokenizer.decode(call.ids, { special: call.special });
    case "openSession": {
      const l = loaded(call.model), { sequences } = l.model.runner.plan;
      while (l.sessions.size >= sequences) {
        // A shared session gives up its place, when its answer has ended.
        const idle = [...l.sessions].find(([, h]) => !h.busy && !h.reserved);
        if (idle) { idle[1].session.dispose(); l.sessions.delete(idle[0]); break; }
        if ([...l.sessions.values()].every((h) => h.reserved)) throw new UsageError("too_many_sequences", `${sequences} sessions are open already`, "Load the model with more `sessions`, or dispose of one.");
        await turn(l, signal);
      }
      l.sessions.set(nextId, { session: l.model.session(), busy: false, reserved: true });
      return nextId++;
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
      for (const h of l.sessions.values()) h.session.dispose();
      models.delete(call.model);
      l.model.dispose();
      return undefined;
    }
  }
}

async function generate(request: number, call: Extract<Call, { kind: "generate" }>, signal: AbortSignal): Promise<void> {
  const l = loaded(call.model);
  l.running++;
  let held: Held | undefined;
  try {
    try {
      held = await takeSession(l, call.session, signal);
    } catch (e) {
      if (!signal.aborted || call.options.onAbort !== "stop") throw e;
      self.postMessage({ request, parts: [{ type: "finish", reason: "abort", usage: { promptTokens: 0, cachedTokens: 0, completionTokens: 0, prefillMs: 0, decodeMs: 0 } }] });
      return;
    }
    for await (const part of generateParts(l.model, held.session, call.prompt, { ...call.options, signal })) self.postMessage({ request, parts: [part] });
  } finally {
    if (held) held.busy = false;
    l.running--;
    wake(l);
  }
}

/** A session for one answer: the named one, or an idle shared one; waits for its turn. */
async function takeSession(l: Loaded, id: number, signal: AbortSignal): Promise<Held> {
  for (;;) {
    if (l.disposing) throw new DisposedError("Model");
    signal.throwIfAborted();
    if (id !== 0) {
      const held = l.sessions.get(id);
      if (!held) throw new DisposedError("Session");
      if (!held.busy) { held.busy = true; return held; }
    } else {
      const idle = [...l.sessions.values()].find((h) => !h.busy && !h.reserved);
      if (idle) { idle.busy = true; return idle; }
      if (l.sessions.size < l.model.runner.plan.sequences) {
        const held = { session: l.model.session(), busy: true, reserved: false };
        l.sessions.set(nextId++, held);
        return held;
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

function infoOf(model: LocalModel): ModelInfo {
  const { config, plan, device } = model.runner;
  return {
    path: model.file.path, name: config.name, architecture: config.architecture, vocabulary: config.vocabulary, contextLength: config.contextLength,
    plan, estimate: model.estimate, device: device.info, loadTimes: model.loadTimes, warnings: model.tokenizer.warnings,
  };
}
