// The public API through the engine Worker: concurrency, aborts, disposal, errors across the border, and that the caller's thread stays free.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { cpSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { BaoError, DisposedError, load, ModelFileError, ResourceError, UsageError, type GenerateOptions, type Model, type ModelSession } from "../../src/index.ts";
import { chooseDevice } from "../../src/engine/choose.ts";
import { DEMO, failure, randomIds, STORIES, TemporaryFolder } from "./fixtures.ts";

setDefaultTimeout(60_000);
const root = join(import.meta.dir, "../..");
const CPU = { device: { backend: "cpu", threads: 1 } } as const;

/** Runs a program with the library; `{LIB}` stands for its path. */
async function child(program: string, options: { env?: Record<string, string>; lib?: string } = {}): Promise<{ out: string; code: number | null }> {
  const lib = options.lib ?? join(root, "src/index.ts");
  const p = Bun.spawn([process.execPath, "-e", program.replaceAll("{LIB}", JSON.stringify(lib))], { cwd: root, env: { ...process.env, ...options.env }, stdout: "pipe", stderr: "pipe", timeout: 40_000 });
  const [out, err] = await Promise.all([new Response(p.stdout).text(), new Response(p.stderr).text()]);
  await p.exited;
  return { out: out + err, code: p.exitCode };
}

test("without a device, the fastest one that is here; what only a CPU knows means a CPU; a named one is taken", async () => {
  const backendOf = async (device?: NonNullable<Parameters<typeof load>[1]>["device"]): Promise<string> => {
    await using model = await load(STORIES, { context: 64, warmup: false, ...(device ? { device } : {}) });
    return model.info.device.backend;
  };
  const fastest = chooseDevice("auto").backend;
  expect([await backendOf(), await backendOf({ backend: "auto", threads: 1 }), await backendOf({ isa: "base" }), await backendOf({ backend: "cpu" })]).toEqual([fastest, fastest, "cpu", "cpu"]);
  // The emulated Metal device of the tests is there to be asked for by name.
  const { out } = await child(`const { load } = await import({LIB}); await using m = await load(${JSON.stringify(STORIES)}, { context: 64, warmup: false }); console.log(m.info.device.backend);`, { env: { BAO_METAL_EMULATOR: "1" } });
  expect(out.trim()).toBe(fastest);
});

describe("one model, three sequences", () => {
  let model: Model;
  beforeAll(async () => { model = await load(DEMO, { ...CPU, context: 1024, sessions: 3, chunk: 128 }); });
  afterAll(async () => { await model.dispose(); });
  const greedy = (more: GenerateOptions = {}): GenerateOptions => ({ temperature: 0, maxTokens: 40, ...more });

  test("what the model says of itself", () => {
    expect(model.info).toMatchObject({ path: DEMO, architecture: "gemma4", vocabulary: 4096, contextLength: 4096, plan: { context: 1024, sequences: 3, chunk: 128 }, device: { backend: "cpu", threads: 1 }, warnings: [] });
    expect(model.info.estimate.weights).toBeGreaterThan(10e6);
  });

  test("iterate, text() and result() tell the same", async () => {
    let text = "", last;
    for await (const part of model.generate("Tell me a story.", greedy())) {
      if (part.type === "text") text += part.text;
      last = part;
    }
    expect(text.length).toBeGreaterThan(50);
    expect(last).toMatchObject({ type: "finish", reason: "length", usage: { completionTokens: 40 } });
    expect(await model.generate("Tell me a story.", greedy()).text()).toBe(text);
    const result = await model.generate([{ role: "user", content: "Tell me a story." }], greedy()).result();
    expect([result.text, result.finish.reason, result.usage.completionTokens, result.parts.at(-1)!.type]).toEqual([text, "length", 40, "finish"]);
  });

  test("a generation is read once", async () => {
    const g = model.generate("Hi", greedy({ maxTokens: 2 }));
    await g.text();
    expect(await failure(g.text())).toMatchObject({ name: "BaoError", code: "already_consumed" });
  });

  test("a generation starts at once, and can be read later", async () => {
    const g = model.generate("Hi", greedy({ maxTokens: 5 }));
    await Bun.sleep(100);
    expect((await g.result()).usage.completionTokens).toBe(5);
  });

  test("eight at the same time on three sequences: each says what it says alone, and they take turns", async () => {
    const prompts = ["Tell me a story.", "Tell me about a cat.", "What is your name?", "Tell me about a dog.", "Hello", "Who are you?", "A tree", "The sea"];
    const alone: string[] = [];
    for (const p of prompts) alone.push(await model.generate(p, greedy()).text());
    const order: number[] = [];
    const texts = await Promise.all(prompts.map(async (p, i) => {
      let text = "";
      for await (const part of model.generate(p, greedy())) if (part.type === "text") { text += part.text; order.push(i); }
      return text;
    }));
    expect(texts).toEqual(alone);
    // The first three run side by side.
    expect(order.lastIndexOf(0)).toBeGreaterThan(order.indexOf(1));
    expect(order.lastIndexOf(1)).toBeGreaterThan(order.indexOf(0));
  });

  test("the same options and seed, drawn from any sequence", async () => {
    const options = { seed: 11, temperature: 1, maxTokens: 30 };
    const alone = await model.generate("Tell me a story.", options).text();
    const many = await Promise.all(Array.from({ length: 5 }, (_, i) => model.generate("Tell me a story.", { ...options, seed: i === 2 || i === 4 ? 11 : i }).text()));
    expect([many[2], many[4]]).toEqual([alone, alone]);
    expect(new Set(many).size).toBe(4);
  });

  test("log-probabilities, biases and stops cross the border", async () => {
    const { parts, text } = await model.generate("Tell me a story.", greedy({ logprobs: 3, maxTokens: 5 })).result();
    const tokens = parts.filter((p) => p.type === "token");
    expect(tokens.length).toBe(5);
    expect(tokens.map((t) => t.text).join("")).toBe(text);
    for (const t of tokens) expect([t.top.length, t.top[0]!.id, t.logprob]).toEqual([3, t.id, t.top[0]!.logprob]);
    const other = await model.generate("Tell me a story.", greedy({ logprobs: 0, maxTokens: 5, logitBias: new Map([[tokens[0]!.id, -Infinity]]) })).result();
    expect(other.parts.find((p) => p.type === "token")!.id).not.toBe(tokens[0]!.id);
    expect(await model.generate("Tell me a story.", greedy({ stop: [text.slice(3, 8)] })).text()).toBe(text.slice(0, 3));
  });

  test("leaving the loop cancels the work: the place is free long before the answer would have ended", async () => {
    for (let i = 0; i < 6; i++) {
      for await (const part of model.generate("Tell me a story.", greedy({ maxTokens: 900, ignoreStop: true }))) if (part.type === "text") break;
    }
    const start = performance.now();
    const long = model.generate({ ids: randomIds(1, 60, 4096) }, greedy({ maxTokens: 900, ignoreStop: true }));
    for await (const part of long) if (part.type === "text") break;
    expect(await model.generate("Hi", greedy({ maxTokens: 3 })).text()).toBeString();
    expect(performance.now() - start).toBeLessThan(10_000);
  });

  test("abort: in a prefill, in a decode and in the queue; thrown with its reason, or a finish part", async () => {
    const long = { ids: randomIds(2, 1000, 4096) };
    for (const [prompt, wait] of [[long, 5], ["Tell me a story.", 60]] as const) {
      for (const onAbort of ["throw", "stop"] as const) {
        const controller = new AbortController(), reason = new Error("enough");
        const g = model.generate(prompt, greedy({ signal: controller.signal, onAbort, maxTokens: 20_000, ignoreStop: true })).result();
        g.catch(() => {});
        await Bun.sleep(wait);
        const at = performance.now();
        controller.abort(reason);
        if (onAbort === "throw") expect(await failure(g)).toBe(reason);
        else expect((await g).finish.reason).toBe("abort");
        expect(performance.now() - at).toBeLessThan(2000);
      }
    }
    // All places taken: a fourth waits.
    const stop = new AbortController(), busy = Array.from({ length: 3 }, (_, i) => model.generate({ ids: randomIds(i, 40, 4096) }, greedy({ maxTokens: 900, ignoreStop: true, signal: stop.signal, onAbort: "stop" })).result());
    const queued = new AbortController();
    const thrown = model.generate("Hi", greedy({ signal: queued.signal })).text();
    const stopped = model.generate("Hi", greedy({ signal: queued.signal, onAbort: "stop" })).result();
    thrown.catch(() => {});
    await Bun.sleep(30);
    queued.abort();
    expect((await failure(thrown)).name).toBe("AbortError");
    expect((await stopped).finish).toMatchObject({ reason: "abort", usage: { completionTokens: 0 } });
    stop.abort();
    for (const b of busy) expect((await b).finish.reason).toBe("abort");
    // Aborted before it began.
    expect((await failure(model.generate("Hi", { signal: AbortSignal.abort() }).text())).name).toBe("AbortError");
    expect((await model.generate("Hi", { signal: AbortSignal.abort(), onAbort: "stop" }).result()).finish.reason).toBe("abort");
    expect(await model.generate("Tell me a story.", greedy()).text()).toBe(await model.generate("Tell me a story.", greedy()).text());
  });

  test("the caller's event loop runs during a prefill", async () => {
    let ticks = 0;
    const timer = setInterval(() => ticks++, 1);
    await model.generate({ ids: randomIds(3, 1000, 4096) }, greedy({ maxTokens: 1 })).result();
    clearInterval(timer);
    expect(ticks).toBeGreaterThan(10);
  });

  test("the Worker answers others while it generates", async () => {
    const g = model.generate("Tell me a story.", greedy({ maxTokens: 900, ignoreStop: true }));
    let done = false;
    const end = g.text().then(() => { done = true; });
    await Bun.sleep(20);
    expect(await model.detokenize(await model.tokenize("a b"))).toBe("a b");
    expect(done).toBe(false);
    await end;
  });

  test("tokens and text: special tokens stay text unless asked for", async () => {
    const bos = (await model.tokenize(""))[0]!;
    expect((await model.tokenize("<bos>", { bos: false })).includes(bos)).toBe(false);
    expect(await model.tokenize("<bos>", { bos: false, parse: "all" })).toEqual([bos]);
    expect([await model.detokenize([bos]), await model.detokenize([bos], { special: true })]).toEqual(["", "<bos>"]);
  });

  test("errors arrive with class, code and hint, and the model goes on", async () => {
    const cases: [() => Promise<unknown>, new (...a: never[]) => BaoError, string][] = [
      [() => model.generate({ ids: randomIds(1, 1025, 4096) }).text(), UsageError, "context_length_exceeded"],
      [() => model.generate({ ids: [] }).text(), UsageError, "empty_prompt"],
      [() => model.generate({ ids: [4096] }).text(), UsageError, "bad_token"],
      [() => model.generate("Hi", { temperature: -1 }).text(), UsageError, "bad_sampling"],
      [() => model.generate("Hi", { maxTokens: 0 }).text(), UsageError, "bad_option"],
      [() => model.generate("Hi", { stop: "" }).text(), UsageError, "bad_option"],
      [() => model.generate("Hi", { tools: [() => {}] as never }).text(), UsageError, "bad_option"],
      [() => model.generate(undefined as never).text(), UsageError, "bad_prompt"],
      [() => model.generate(7 as never).text(), UsageError, "bad_prompt"],
      [() => model.generate({ ids: "abc" } as never).text(), UsageError, "bad_prompt"],
      [() => model.generate("Hi", { stop: 5 } as never).text(), UsageError, "bad_option"],
      [() => model.generate("Hi", { stop: [1] } as never).text(), UsageError, "bad_option"],
      [() => model.generate("Hi", { logitBias: { 5: 1 } } as never).text(), UsageError, "bad_sampling"],
      [() => model.generate("Hi", { logitBias: new Map([[5, 1e39]]) }).text(), UsageError, "bad_sampling"],
      [() => model.tokenize(5 as never), UsageError, "bad_option"],
      [() => model.detokenize(null as never), UsageError, "bad_option"],
      [() => load(undefined as never), UsageError, "bad_option"],
      [() => load(new URL("file:///nowhere") as never), UsageError, "bad_option"],
    ];
    for (const [run, type, code] of cases) {
      const error = await failure(run());
      expect([code, error instanceof type, error instanceof BaoError, error.code, error.name]).toEqual([code, true, true, code, type.name]);
      expect(error.message.length).toBeGreaterThan(5);
    }
    const overflow = await failure(model.generate({ ids: randomIds(1, 1025, 4096) }).text());
    expect([overflow.message, overflow.hint, overflow.kind]).toEqual([expect.stringMatching(/1025.*1024/), expect.stringContaining("--ctx"), "usage"]);
    for (const messages of [[], [{ role: "nobody", content: "x" }], ["x"], [null]] as never[]) {
      const error = await failure(model.generate(messages).text());
      expect([JSON.stringify(messages), error instanceof UsageError, error.code !== "internal"]).toEqual([JSON.stringify(messages), true, true]);
    }
    expect(await model.generate("Hi", greedy({ maxTokens: 3 })).text()).toBeString();
  });
});

describe("sessions", () => {
  test("each keeps its own cache; closed ones are errors by name", async () => {
    await using model = await load(DEMO, { ...CPU, context: 512, sessions: 2 });
    const a = await model.session(), b = await model.session();
    const usage = async (s: ModelSession, prompt: string): Promise<number> => (await s.generate(prompt, { temperature: 0, maxTokens: 5 }).result()).usage.cachedTokens;
    expect([await usage(a, "One"), await usage(b, "Two two"), await usage(a, "One")]).toEqual([0, 0, expect.any(Number)]);
    const again = await a.generate("One", { temperature: 0, maxTokens: 5 }).result();
    expect(again.usage.cachedTokens).toBe(again.usage.promptTokens - 1);
    // All places are reserved.
    expect(await failure(model.session())).toMatchObject({ name: "UsageError", code: "too_many_sequences" });
    expect(await failure(model.generate("Hi").text())).toMatchObject({ name: "UsageError", code: "no_session" });
    await a.dispose();
    await a.dispose();
    expect(await failure(() => a.generate("Hi"))).toMatchObject({ name: "DisposedError", code: "disposed", message: expect.stringContaining("Session") });
    expect(await model.generate("Hi", { maxTokens: 2 }).text()).toBeString();
  });

  test("answers of one session queue up; a session waits for a shared answer to end", async () => {
    await using model = await load(DEMO, { ...CPU, context: 512 });
    const shared = model.generate("Tell me a story.", { temperature: 0, maxTokens: 100, ignoreStop: true }).result();
    await using session = await model.session();
    expect((await shared).usage.completionTokens).toBe(100);
    const alone = await session.generate("Tell me a story.", { temperature: 0, maxTokens: 20 }).text();
    expect(await Promise.all([0, 1, 2].map(() => session.generate("Tell me a story.", { temperature: 0, maxTokens: 20 }).text()))).toEqual([alone, alone, alone]);
  });

  test("three at the same time on one sequence: one after the other, each as alone", async () => {
    await using model = await load(DEMO, { ...CPU, context: 512 });
    const prompts = ["A cat", "A dog", "A fish"], options = { temperature: 0, maxTokens: 15 };
    const alone: string[] = [];
    for (const p of prompts) alone.push(await model.generate(p, options).text());
    expect(await Promise.all(prompts.map((p) => model.generate(p, options).text()))).toEqual(alone);
  });

  test("dispose waits for work in flight, refuses new work, and can be called in any order", async () => {
    const model = await load(DEMO, { ...CPU, context: 512, sessions: 2 });
    const session = await model.session();
    const running = session.generate("Tell me a story.", { temperature: 0, maxTokens: 100, ignoreStop: true }).result();
    running.catch(() => {});
    await Bun.sleep(30);
    let ended = false;
    void running.then(() => { ended = true; });
    const first = model.dispose(), second = model.dispose();
    expect(await failure(() => model.generate("Hi"))).toBeInstanceOf(DisposedError);
    expect(await failure(model.tokenize("Hi"))).toBeInstanceOf(DisposedError);
    expect(await failure(model.session())).toMatchObject({ name: "DisposedError", message: expect.stringContaining("Model") });
    await second;
    expect(ended).toBe(true);
    await first;
    expect((await running).usage.completionTokens).toBe(100);
    await session.dispose();
    expect(await failure(() => session.generate("Hi"))).toBeInstanceOf(DisposedError);
  });

  test("a session that is closed during its answer waits for it", async () => {
    await using model = await load(DEMO, { ...CPU, context: 512 });
    const session = await model.session();
    const running = session.generate("Tell me a story.", { temperature: 0, maxTokens: 60, ignoreStop: true }).result();
    await session.dispose();
    expect((await running).usage.completionTokens).toBe(60);
  });

  test("two models side by side; what one says does not depend on the other", async () => {
    await using a = await load(DEMO, { ...CPU, context: 512 });
    await using b = await load(STORIES, CPU);
    const options = { temperature: 0, maxTokens: 20 };
    const [x, y] = [await a.generate("A cat", options).text(), await b.generate("Once", { ...options, raw: true }).text()];
    expect(await Promise.all([a.generate("A cat", options).text(), b.generate("Once", { ...options, raw: true }).text()])).toEqual([x, y]);
    // A model without a chat template takes raw text.
    expect(y.length).toBeGreaterThan(20);
  });
});

describe("what cannot be loaded", () => {
  test("files: missing, a folder, text, HTML, cut short, empty: named and typed", async () => {
    using folder = new TemporaryFolder();
    const file = (name: string, content: Uint8Array | string): string => { writeFileSync(folder.file(name), content); return folder.file(name); };
    const bytes = new Uint8Array(await Bun.file(STORIES).arrayBuffer());
    const cases = [
      folder.file("missing.gguf"), folder.path, file("text.gguf", "hello, this is no model at all"), file("page.gguf", "<!DOCTYPE html><html></html>"),
      file("cut.gguf", bytes.slice(0, bytes.length - 1)), file("head.gguf", bytes.slice(0, 100)), file("empty.gguf", ""),
    ];
    for (const path of cases) {
      const error = await failure(load(path, CPU));
      expect([path, error instanceof ModelFileError, error.message.includes(path), error.hint !== ""]).toEqual([path, true, true, true]);
    }
    await using model = await load(STORIES, CPU);
    expect(model.info.architecture).toBe("llama");
  });

  test.each([
    [{ context: 0 }, "bad_option"], [{ context: 1.5 }, "bad_option"], [{ context: NaN }, "bad_option"], [{ context: 5000 }, "context_too_large"], [{ chunk: 0 }, "bad_option"], [{ chunk: 1e9 }, "bad_option"],
    [{ sessions: 0 }, "bad_option"], [{ sessions: -1 }, "bad_option"], [{ kvType: "q4" as never }, "bad_option"],
    [{ device: { isa: "mmx" as never } }, "bad_option"], [{ device: { precision: "low" as never } }, "bad_option"], [{ device: { backend: "npu" as never } }, "bad_option"], [{ device: { threads: -1 } }, "bad_option"], [{ device: { threads: 1.5 } }, "bad_option"],
  ])("options: %o", async (options, code) => {
    expect(await failure(load(DEMO, { ...CPU, ...options }))).toMatchObject({ name: "UsageError", code });
  });

  test("an aborted load", async () => {
    const reason = new Error("no");
    expect(await failure(load(DEMO, { signal: AbortSignal.abort(reason) }))).toBe(reason);
    const controller = new AbortController(), loading = load(DEMO, { signal: controller.signal });
    controller.abort(reason);
    expect(await failure(loading)).toBe(reason);
  });
});

describe("in a process of its own", () => {
  test("the process ends by itself: models open, disposed, an unread answer, an unsendable request", async () => {
    const { out, code } = await child(`
      import { load } from {LIB};
      const model = await load(${JSON.stringify(STORIES)}, { device: { threads: 2 } });
      console.log((await model.generate("Once", { raw: true, temperature: 0, maxTokens: 5 }).text()).length > 0);
      model.generate("Once", { raw: true, maxTokens: 5 });
      await model.generate("Hi", { tools: [() => {}] }).text().catch((e) => console.log(e.name));
      console.log("end");
    `);
    expect([out, code]).toEqual(["true\nUsageError\nend\n", 0]);
  });

  test("a running answer holds the process open until it is done", async () => {
    const { out, code } = await child(`
      import { load } from {LIB};
      const model = await load(${JSON.stringify(STORIES)}, { device: { threads: 1 } });
      model.generate("Once", { raw: true, temperature: 0, maxTokens: 200, ignoreStop: true }).result().then((r) => console.log(r.usage.completionTokens));
    `);
    expect([out, code]).toEqual(["200\n", 0]);
  });

  test("without kernel libraries: the error says what to run; models can still be inspected", async () => {
    // A copy of the package that was never built.
    using folder = new TemporaryFolder();
    cpSync(join(root, "src"), folder.file("src"), { recursive: true });
    cpSync(join(root, "package.json"), folder.file("package.json"));
    symlinkSync(join(root, "node_modules"), folder.file("node_modules"));
    mkdirSync(folder.file("nothing"));
    const program = `
      import { load, ResourceError } from {LIB};
      import { openModel } from ${JSON.stringify(folder.file("src/engine/model.ts"))};
      console.log(openModel(${JSON.stringify(STORIES)}).file.tensors.size);
      try { await load(${JSON.stringify(STORIES)}); } catch (e) { console.log(e instanceof ResourceError, e.code, e.message, e.hint); }
    `;
    const missing = await child(program, { lib: folder.file("src/index.ts"), env: { BAO_KERNELS: folder.file("nothing") } });
    expect(missing.out).toContain("true kernels_missing");
    expect(missing.out).toContain(folder.file("nothing"));
    expect(missing.out).toContain("make cpu");
    expect(missing.code).toBe(0);
    // A file that is no library.
    const suffix = process.platform === "darwin" ? "dylib" : "so";
    writeFileSync(folder.file(`nothing/libcpu_kernels.${suffix}`), "not a library");
    const broken = await child(program, { lib: folder.file("src/index.ts"), env: { BAO_KERNELS: folder.file("nothing") } });
    expect(broken.out).toContain("true kernels_unusable");
    // BAO_KERNELS pointing at the real one.
    const found = await child(program, { lib: folder.file("src/index.ts"), env: { BAO_KERNELS: join(root, "build") } });
    expect([found.out.trim().split("\n").length, found.code]).toEqual([1, 0]);
  });

  test("classes are the package's own on both sides of the border", async () => {
    expect(await failure(load("/nowhere/model.gguf"))).toBeInstanceOf(ModelFileError);
    expect(new ResourceError("x", "y")).toBeInstanceOf(BaoError);
  });
});
