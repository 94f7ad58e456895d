// Sessions of the public API: fork, rewind, save and restore; embeddings, estimates, progress; options that do not exist; and aborts in time.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { DisposedError, estimate, load, type GenerateOptions, type LoadProgress, type Model, type ModelSession, type StreamPart } from "../../src/index.ts";
import { DEMO, failure, randomIds, STORIES, TemporaryFolder } from "./fixtures.ts";

setDefaultTimeout(60_000);
const folder = new TemporaryFolder();
afterAll(() => folder[Symbol.dispose]());
const CPU = { device: { threads: 1 } } as const;
const GREEDY: GenerateOptions = { temperature: 0, logprobs: 3, maxTokens: 20, ignoreStop: true };
const tokens = async (from: Model | ModelSession, ids: readonly number[], options: GenerateOptions = {}): Promise<{ parts: StreamPart[]; ids: number[]; cached: number }> => {
  const { parts, usage } = await from.generate({ ids }, { ...GREEDY, ...options }).result(), drawn = parts.filter((p) => p.type === "token");
  return { parts: drawn, ids: drawn.map((p) => p.id), cached: usage.cachedTokens };
};

describe("sessions past the sliding window", () => {
  let model: Model;
  beforeAll(async () => { model = await load(DEMO, { ...CPU, context: 1024, sessions: 4 }); });
  afterAll(async () => { await model.dispose(); });
  const start = randomIds(1, 400, 4096);

  test("a fork goes its own way: nothing is computed again, neither disturbs the other", async () => {
    await using a = await model.session();
    const first = await tokens(a, start), history = [...start, ...first.ids];
    await using b = await a.fork();
    expect(await b.tokens()).toEqual(await a.tokens());
    // At the same time, from the same place, and again from an edited turn.
    const [left, right] = await Promise.all([tokens(a, [...history, 5, 6, 7]), tokens(b, [...history, 8, 9])]);
    expect([left.cached, right.cached]).toEqual([history.length - 1, history.length - 1]);
    expect((await tokens(b, [...start, 11, 12])).cached).toBeGreaterThanOrEqual(start.length - 1);
    await using fresh = await model.session();
    expect((await tokens(fresh, [...history, 5, 6, 7])).parts).toEqual(left.parts);
    await using other = await model.session();
    expect((await tokens(other, [...history, 8, 9])).parts).toEqual(right.parts);
    // The model's fifth.
    expect(await failure(a.fork())).toMatchObject({ name: "UsageError", code: "too_many_sequences" });
    await a.dispose();
    expect((await tokens(b, [...start, 11, 12, 13])).cached).toBe(start.length + 2);
  });

  test("rewind by a number, and to a snapshot behind the window; what cannot be reached is refused and changes nothing", async () => {
    await using session = await model.session();
    await tokens(session, start, { maxTokens: 1 });
    const mark = await session.snapshot();
    expect(mark).toEqual({ tokens: 400 });
    const answer = await tokens(session, [...start, ...randomIds(2, 330, 4096)], { maxTokens: 10 });
    const all = await session.tokens();
    expect(all.length).toBe(400 + 330 + 9);
    expect(await session.rewind(9)).toBe(730);
    expect(await session.rewind(0)).toBe(730);
    expect((await tokens(session, all.slice(0, 730), { maxTokens: 10 })).parts).toEqual(answer.parts);
    expect(await failure(session.rewind(600))).toMatchObject({ name: "UsageError", code: "rewind_unreachable" });
    for (const bad of [-1, 1.5, NaN, 5000]) expect(await failure(session.rewind(bad))).toMatchObject({ name: "UsageError", code: "bad_option" });
    expect(await failure(session.rewind({} as never))).toMatchObject({ name: "UsageError", code: "bad_option" });
    expect(await session.tokens()).toEqual(all);
    expect(await session.rewind(mark)).toBe(400);
    expect(await session.tokens()).toEqual(start);
    const again = await tokens(session, [...start, 3, 4, 5]);
    expect(again.cached).toBe(400);
    await using fresh = await model.session();
    expect(again.parts).toEqual((await tokens(fresh, [...start, 3, 4, 5])).parts);
    expect(await session.rewind((await session.tokens()).length)).toBe(0);
  });

  test("saved and restored, also by another process's model: the same tokens, nothing computed again", async () => {
    const path = folder.file("a.session");
    await using session = await model.session();
    const first = await tokens(session, start), history = await session.tokens();
    await session.save(path);
    const on = await tokens(session, [...history, 5, 6, 7]);
    await using other = await model.session();
    await tokens(other, randomIds(9, 50, 4096));
    await other.restore(path);
    expect(await other.tokens()).toEqual(history);
    const restored = await tokens(other, [...history, 5, 6, 7]);
    expect([restored.cached, restored.parts]).toEqual([history.length, on.parts]);
    await using second = await load(DEMO, { ...CPU, context: 512 });
    await using third = await second.session();
    await third.restore(path);
    expect((await tokens(third, [...history, 5, 6, 7])).parts).toEqual(on.parts);
    expect(first.ids.length).toBe(20);
  });

  test("files that do not fit: named, typed, and the session stays", async () => {
    const path = folder.file("b.session");
    await using session = await model.session();
    await tokens(session, start);
    await session.save(path);
    const held = await session.tokens();
    await using stories = await load(STORIES, CPU);
    await using foreign = await stories.session();
    expect(await failure(foreign.restore(path))).toMatchObject({ name: "UsageError", code: "session_mismatch" });
    await using wide = await load(DEMO, { ...CPU, context: 1024, kvType: "f32" });
    await using widely = await wide.session();
    expect(await failure(widely.restore(path))).toMatchObject({ code: "session_mismatch", hint: expect.stringContaining("f16") });
    await using small = await load(DEMO, { ...CPU, context: 256 });
    await using smaller = await small.session();
    expect(await failure(smaller.restore(path))).toMatchObject({ code: "session_mismatch", hint: expect.stringContaining("context") });
    writeFileSync(path, readFileSync(path).subarray(0, 5000));
    expect(await failure(session.restore(path))).toMatchObject({ name: "UsageError", code: "session_damaged" });
    expect(await failure(session.restore(folder.file("none")))).toMatchObject({ code: "session_unreadable" });
    expect(await failure(session.save(folder.file("no/folder")))).toMatchObject({ code: "session_unwritable" });
    for (const path of [undefined, 3, null]) expect(await failure(session.save(path as never))).toMatchObject({ code: "bad_option" });
    expect(existsSync(folder.file("no"))).toBe(false);
    expect(await session.tokens()).toEqual(held);
    expect((await tokens(session, [...held, 5])).cached).toBe(held.length);
  });

  test("calls on one session run in order, whatever they are", async () => {
    await using session = await model.session();
    const answer = tokens(session, start, { maxTokens: 30 }), length = session.tokens(), fork = session.fork(), rewound = session.rewind(29);
    expect((await length).length).toBe(429);
    await using other = await fork;
    expect([await rewound, (await other.tokens()).length, (await answer).ids.length]).toEqual([400, 429, 30]);
  });

  test("after dispose every call says so by name", async () => {
    const session = await model.session(), calls = [() => session.generate("Hi"), () => session.fork(), () => session.rewind(0), () => session.snapshot(), () => session.tokens(), () => session.save("x"), () => session.restore("x")];
    await session.dispose();
    for (const call of calls) {
      const error = await failure(async () => await call());
      expect(error).toBeInstanceOf(DisposedError);
      expect(error.message).toContain("Session");
    }
    const other = await load(STORIES, CPU);
    await other.dispose();
    for (const call of [() => other.generate("Hi"), () => other.session(), () => other.embed("x"), () => other.tokenize("x"), () => other.detokenize([1])]) {
      const error = await failure(async () => await call());
      expect(error).toBeInstanceOf(DisposedError);
      expect(error.message).toContain("Model");
    }
  });
});

describe("shared sessions", () => {
  test("a conversation comes back to the cache that holds it, whoever asks in between; unrelated ones take a free place, then the oldest", async () => {
    await using model = await load(DEMO, { ...CPU, context: 512, sessions: 3 });
    const talks = [1, 2, 3].map((n) => randomIds(n, 100, 4096));
    const short = { maxTokens: 2 };
    for (const t of talks) expect((await tokens(model, t, short)).cached).toBe(0);
    for (const t of [talks[1]!, talks[0]!, talks[2]!]) expect((await tokens(model, [...t, 7], short)).cached).toBeGreaterThanOrEqual(100);
    // A stranger writes over talk 1, which waited longest.
    expect((await tokens(model, randomIds(4, 100, 4096), short)).cached).toBe(0);
    expect((await tokens(model, [...talks[0]!, 8], short)).cached).toBeGreaterThanOrEqual(100);
    expect((await tokens(model, [...talks[2]!, 8], short)).cached).toBeGreaterThanOrEqual(100);
    expect((await tokens(model, [...talks[1]!, 8], short)).cached).toBe(0);
  });
});

describe("embeddings", () => {
  test("one text, many, ids; normalised or not; like texts are near each other", async () => {
    await using model = await load(DEMO, { ...CPU, context: 256, sessions: 3 });
    const one = await model.embed("Tell me a story about a cat.");
    expect(one.tokens).toBe((await model.tokenize("Tell me a story about a cat.")).length);
    expect(Math.hypot(...one.vector)).toBeCloseTo(1, 5);
    const raw = await model.embed({ ids: await model.tokenize("Tell me a story about a cat.") }, { normalize: false }), length = Math.hypot(...raw.vector);
    raw.vector.forEach((x, i) => expect(Math.abs(x / length - one.vector[i]!)).toBeLessThan(1e-6));
    const many = await model.embed(["Tell me a story about a dog.", "Tell me a story about a cat.", "{ \"a\": [1, 2, 3] }", "x"]);
    expect(many[1]).toEqual(one);
    const dot = (a: Float32Array, b: Float32Array): number => a.reduce((n, x, i) => n + x * b[i]!, 0);
    expect(dot(one.vector, many[0]!.vector)).toBeGreaterThan(dot(one.vector, many[2]!.vector));
    expect(await model.embed([])).toEqual([]);
    for (const bad of [3, null, [3], { id: [] }]) expect(await failure(model.embed(bad as never))).toMatchObject({ name: "UsageError", code: "bad_prompt" });
    expect(await failure(model.embed("x ".repeat(600)))).toMatchObject({ code: "context_length_exceeded" });
    expect((await failure(model.embed("Hi", { signal: AbortSignal.abort() }))).name).toBe("AbortError");
  });

  test("a thousand in a row while answers are written: every one the same as the first of its text", async () => {
    await using model = await load(STORIES, { ...CPU, sessions: 4 });
    const texts = Array.from({ length: 10 }, (_, i) => `Once upon a time there were ${i} cats`), first = await model.embed(texts);
    const story = model.generate("Once upon a time", { raw: true, temperature: 0, maxTokens: 300, ignoreStop: true }).text();
    for (let n = 0; n < 1000; n += 50) {
      const found = await model.embed(Array.from({ length: 50 }, (_, i) => texts[(n + i) % 10]!));
      found.forEach((e, i) => { if (!Bun.deepEquals(e, first[(n + i) % 10])) throw new Error(`embedding ${n + i}`); });
    }
    expect((await story).length).toBeGreaterThan(100);
    const all = await model.embed(Array.from({ length: 1000 }, (_, i) => texts[i % 10]!));
    all.forEach((e, i) => { if (!Bun.deepEquals(e, first[i % 10])) throw new Error(`embedding ${i}`); });
    expect(all.length).toBe(1000);
    // One that cannot be ends the call; the model goes on.
    expect(await failure(model.embed([...texts, "x ".repeat(2000), ...texts]))).toMatchObject({ code: "context_length_exceeded" });
    expect(await model.embed(texts)).toEqual(first);
  });
});

describe("before and while loading", () => {
  test("an estimate without loading is what the loaded model says", async () => {
    const options = { context: 1024, sessions: 3, kvType: "f32" } as const, before = await estimate(DEMO, options);
    expect(before).toMatchObject({ path: DEMO, architecture: "gemma4", contextLength: 4096, plan: { context: 1024, sequences: 3, kvType: "f32" } });
    await using model = await load(DEMO, { ...CPU, ...options });
    expect(before.memory).toEqual(model.info.estimate);
    expect(await failure(estimate(folder.file("none.gguf")))).toMatchObject({ name: "ModelFileError" });
    expect(await failure(estimate(3 as never))).toMatchObject({ code: "bad_option" });
  });

  test("progress: phases in order, never backwards, done at the end", async () => {
    const seen: LoadProgress[] = [];
    await using model = await load(DEMO, { ...CPU, context: 256, onProgress: (p) => seen.push(p) });
    expect(model.info.name).toBeString();
    expect([...new Set(seen.map((p) => p.phase))]).toEqual(["open", "weights", "tokenizer", "warmup", "ready"]);
    seen.forEach((p, i) => expect(p.done).toBeGreaterThanOrEqual(seen[i - 1]?.done ?? 0));
    expect([seen[0]!.done, seen.at(-1)!.done]).toEqual([0, 1]);
  });

  test("options that do not exist are named, wherever they stand", async () => {
    const loads: [key: string, options: object][] = [["sesions", { sesions: 2 }], ["depth", { depth: 2 }], ["thread", { device: { thread: 2 } }], ["outputs", { outputs: 4 }]];
    for (const [key, options] of loads) for (const call of [load, estimate]) expect(await failure(call(STORIES, options as never))).toMatchObject({ name: "UsageError", code: "unknown_option", message: expect.stringContaining(`"${key}"`) });
    for (const options of [null, 3, [], "fast"]) expect(await failure(load(STORIES, options as never))).toMatchObject({ name: "UsageError", code: "bad_option" });
    await using model = await load(STORIES, CPU);
    await using session = await model.session();
    const calls: [string, () => unknown][] = [
      ["max_tokens", () => model.generate("x", { max_tokens: 3 } as never)], ["temprature", () => session.generate("x", { temprature: 0 } as never)],
      ["normalise", () => model.embed("x", { normalise: true } as never)], ["special", () => model.tokenize("x", { special: true } as never)], ["bos", () => model.detokenize([1], { bos: true } as never)],
    ];
    for (const [key, call] of calls) expect(await failure(async () => await call())).toMatchObject({ name: "UsageError", code: "unknown_option", message: expect.stringContaining(`"${key}"`) });
    // A key that says nothing is no mistake.
    expect(await session.generate("Once", { raw: true, maxTokens: 1, temperature: 0, stop: undefined } as never).text()).toBeString();
  });
});

test("aborts are heard within 200 ms in prefill, decode and a shared step, and the session goes on", async () => {
  // The plain reference takes seconds for a chunk: only a step that ends early is in time.
  await using model = await load(DEMO, { device: { threads: 1, reference: true }, context: 512, chunk: 256, sessions: 2, warmup: false });
  await using session = await model.session();
  const long = randomIds(1, 400, 4096), want = await tokens(session, long.slice(0, 30), { maxTokens: 3 });
  await using other = await model.session();
  for (const [ids, wait, shared] of [[long, 150, false], [long.slice(0, 31), 700, false], [long, 150, true]] as const) {
    const beside = shared ? tokens(other, long.slice(0, 30), { maxTokens: 3 }) : undefined;
    const abort = new AbortController(), g = session.generate({ ids }, { temperature: 0, maxTokens: 300, ignoreStop: true, signal: abort.signal }).result();
    g.catch(() => {});
    await Bun.sleep(wait);
    const at = performance.now();
    abort.abort(new Error("enough"));
    expect(await failure(g)).toMatchObject({ message: "enough" });
    expect(performance.now() - at).toBeLessThan(200);
    if (beside) expect((await beside).parts).toEqual(want.parts);
    expect((await tokens(session, long.slice(0, 30), { maxTokens: 3 })).parts).toEqual(want.parts);
  }
});
