// What a cache must never do: cost memory that nobody announced, run twice what it has, or change a bit of an answer.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { LocalModel } from "../../src/engine/model.ts";
import { load, type GenerateOptions, type Model, type StreamPart } from "../../src/index.ts";
import { shapeConfig } from "../../src/convert/shapes.ts";
import { kvKinds, type ModelConfig } from "../../src/model/config.ts";
import { pageBytes, planRun, poolPages } from "../../src/model/estimate.ts";
import { DEMO, randomIds } from "../engine/fixtures.ts";

setDefaultTimeout(120_000);

describe("the same prompt again (window 256)", () => {
  let model: Model;
  beforeAll(async () => { model = await load(DEMO, { device: { threads: 1 }, context: 1024, sessions: 2, warmup: false }); });
  afterAll(async () => { await model.dispose(); });
  const ask: GenerateOptions = { temperature: 0, maxTokens: 6, logprobs: 20, ignoreStop: true };
  // Log-probabilities of 20 tokens, as the device's float32: equal ones mean equal logits.
  const logits = (parts: readonly StreamPart[]): unknown[] => parts.filter((p) => p.type === "token");

  test.each([20, 64, 200, 300, 700])("%i tokens: the second prefill is at most one page, its logits are those of a fresh one, bit for bit", async (length) => {
    const ids = randomIds(length, length, 4096);
    await using session = await model.session();
    const first = await session.generate({ ids }, ask).result(), second = await session.generate({ ids }, ask).result();
    expect(first.usage.cachedTokens).toBe(0);
    expect(second.usage.promptTokens - second.usage.cachedTokens).toBeWithin(1, 64 + 1);
    expect(logits(second.parts)).toEqual(logits(first.parts));
    expect(logits(first.parts).length).toBe(6);
  });
  test("an edited last turn runs what is new only, past the window as well, and says what a fresh session says", async () => {
    const head = randomIds(7, 600, 4096), one = [...head, ...randomIds(8, 30, 4096)], other = [...head, ...randomIds(9, 40, 4096)];
    await using session = await model.session();
    await session.generate({ ids: head }, { ...ask, maxTokens: 1 }).result();
    await session.generate({ ids: one }, ask).result();
    const edited = await session.generate({ ids: other }, ask).result();
    expect(edited.usage.promptTokens - edited.usage.cachedTokens).toBeLessThanOrEqual(40 + 64);
    await using fresh = await model.session();
    const alone = await fresh.generate({ ids: other }, ask).result();
    expect([alone.usage.cachedTokens, logits(alone.parts)]).toEqual([0, logits(edited.parts)]);
  });
  test("snapshots, forks and rewinds change when things are computed, never what comes out", async () => {
    const ids = randomIds(11, 420, 4096);
    const plain = await (async () => { await using s = await model.session(); return await s.generate({ ids }, ask).result(); })();
    await using session = await model.session();
    await session.generate({ ids: ids.slice(0, 350) }, { ...ask, maxTokens: 3 }).result();
    const place = await session.snapshot();
    await using fork = await session.fork();
    await session.generate({ ids: [...await session.tokens(), ...randomIds(12, 60, 4096)] }, { ...ask, maxTokens: 2 }).result();
    await session.rewind(place);
    const after = await session.generate({ ids }, ask).result(), forked = await fork.generate({ ids }, ask).result();
    expect([logits(after.parts), logits(forked.parts)]).toEqual([logits(plain.parts), logits(plain.parts)]);
  });
});

describe("memory of the cache", () => {
  test.each(["e2b", "e4b", "12b", "26b-a4b", "31b"] as const)("%s: windows count as windows, layers that share a cache once", (name) => {
    const config = shapeConfig(name), context = 131_072;
    // What a family makes of a file of this shape, as far as caches go.
    const layers = config.layers.map((l, index) => ({ index, window: l.sliding ? config.window : 0, kvHeads: l.kvHeads, headDim: l.headDim, kvSource: l.ownsKv ? index : 0 }));
    const model = { layers, contextLength: context } as unknown as ModelConfig, plan = planRun(model, { context });
    const planned = kvKinds(model).reduce((n, k) => n + poolPages(k, plan) * pageBytes(k, plan.kvType), 0);
    // By hand: K and V in f16 of the tokens that each layer can still see, its own cache only.
    const own = config.layers.filter((l) => l.ownsKv);
    const seen = own.reduce((n, l) => n + 2 * 2 * l.kvHeads * l.headDim * (l.sliding ? Math.min(context, config.window) : context), 0);
    const full = config.layers.reduce((n, l) => n + 2 * 2 * l.kvHeads * l.headDim * context, 0);
    // More than that: a chunk, whole pages, and the windows that two snapshots pin.
    const chunked = own.reduce((n, l) => n + 2 * 2 * l.kvHeads * l.headDim * (l.sliding ? 3 * config.window + plan.chunk + 8 * 64 : context + 3 * 64), 0);
    expect(planned).toBeWithin(seen, chunked + 1);
    expect(planned).toBeLessThan(full / 2);
  });

  test.each([[{ context: 1024, sequences: 3, kvType: "f32" }], [{ context: 4096 }], [{ context: 2048, sequences: 2, kvType: "q8_0" }]] as const)("pools and buffers are what was estimated, within 2 %%: %j", async (options) => {
    using model = await LocalModel.load(DEMO, { device: { threads: 1 }, warmup: false, ...options });
    const { runner, estimate } = model;
    const pools = runner.stores.reduce((n, s) => n + s.allocator.capacity * s.pageBytes, 0), buffers = runner.device.memory("buffers");
    expect(Math.abs((pools + buffers) / estimate.allocated - 1)).toBeLessThan(0.02);
    // A pool grows with its use, and never past its plan: full contexts, twice, with what snapshots pin.
    const sessions = Array.from({ length: runner.plan.sequences }, () => model.session());
    for (const [i, s] of sessions.entries()) {
      await s.prefill(randomIds(i, runner.plan.context - 70, 4096));
      await s.prefill([...s.ids.slice(0, -40), ...randomIds(i + 9, 110, 4096)]);
      expect(s.full).toBe(true);
    }
    expect(runner.device.memory("kv")).toBeWithin(1, estimate.kv + 1);
    for (const s of sessions) s.dispose();
  });
});
