// Many requests in shared steps, and steps that run ahead of the host: whatever happens to one request, the others and what comes after it are the
// same bits as when it is served alone and step by step. BAO_TEST_DEVICE=cuda or metal runs the part that such a device promises.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import type { LocalGenerateOptions } from "../../src/engine/generate.ts";
import type { TokenMask } from "../../src/engine/mask.ts";
import { LocalModel } from "../../src/engine/model.ts";
import type { BackendName } from "../../src/native/library.ts";
import type { BatchEntry, Runner } from "../../src/engine/runner.ts";
import type { Session } from "../../src/engine/session.ts";
import { collect, DEMO, failure, random, randomIds, STORIES, type Collected } from "./fixtures.ts";

// An emulated GPU takes its time.
setDefaultTimeout(process.env["BAO_TEST_DEVICE"] === "metal" ? 3_600_000 : 60_000);
const CONTEXT = 640;
/** Of stop strings: 4,700 steps in all, half a second each on an emulated GPU; fewer there, that show every kind of end as well. */
const SEEDS = process.env["BAO_TEST_DEVICE"] === "metal" ? 3 : 12;
const BACKEND = (process.env["BAO_TEST_DEVICE"] || "cpu") as BackendName;
/** Rows on the CPU have the same bits in any company. */
const many = BACKEND === "cpu" ? describe : describe.skip;

interface Watched { readonly steps: { readonly entries: readonly BatchEntry[]; readonly underWay: number }[]; most: number }
/** Takes down every step of a runner, and how many were under way when it was submitted. */
function watch(runner: Runner): Watched {
  const seen: Watched = { steps: [], most: 0 };
  let underWay = 0;
  const submit = runner.submit.bind(runner), gather = runner.collect.bind(runner);
  runner.submit = (entries) => {
    const step = submit(entries);
    seen.steps.push({ entries, underWay });
    seen.most = Math.max(seen.most, ++underWay);
    return step;
  };
  runner.collect = (step) => { underWay--; return gather(step); };
  return seen;
}

const load = (depth: 1 | 2, options: { sequences?: number; chunk?: number; reference?: boolean } = {}): Promise<LocalModel> =>
  LocalModel.load(DEMO, { device: { backend: BACKEND, threads: 2, ...(options.reference ? { reference: true } : {}) }, context: CONTEXT, chunk: options.chunk ?? 64, sequences: options.sequences ?? 1, depth, warmup: false });

/** Everything about an answer and the session after it that anybody can see. */
const seen = (a: Collected, session: Session): unknown => ({
  text: a.text, tokens: a.parts.filter((p) => p.type === "token"), reason: a.finish.reason, stop: a.finish.stop, used: [a.finish.usage.promptTokens, a.finish.usage.cachedTokens, a.finish.usage.completionTokens],
  length: session.length, ids: [...session.ids],
});
const SAMPLED: LocalGenerateOptions = { temperature: 1.2, topK: 0, topP: 0.98, repetitionPenalty: 1.2, presencePenalty: 0.2, frequencyPenalty: 0.1, logprobs: 20 };

describe("one step ahead of the host", () => {
  let plain: LocalModel, ahead: LocalModel, watched: Watched;
  beforeAll(async () => {
    [plain, ahead] = [await load(1), await load(2)];
    watched = watch(ahead.runner);
  });
  afterAll(async () => {
    for (const m of [plain, ahead]) {
      await m.scheduler.idle();
      expect(m.runner.kvPagesUsed).toBe(0);
      m.dispose();
    }
  });

  /** The same calls on both, in sessions of their own; gives what was seen on the plain one. */
  async function both(script: (model: LocalModel, session: Session) => Promise<unknown>): Promise<unknown> {
    const found: unknown[] = [];
    for (const model of [plain, ahead]) {
      using session = model.session();
      found.push(await script(model, session));
    }
    expect(found[1]).toEqual(found[0]!);
    return found[0];
  }

  // Prompts that end before, on and behind the edge of a page and of the window, and answers that cross both.
  test.each([1, 62, 63, 64, 65, 127, 128, 191, 192, 250, 255, 256, 257, 300, 319, 320])("a prompt of %i tokens: stopped by maxTokens, then asked again", async (n) => {
    watched.most = 0;
    await both(async (model, session) => {
      const ids = randomIds(n, n, 4096), out: unknown[] = [];
      for (const maxTokens of [1, 2, 3, 70]) out.push(seen(await collect(model, session, { ids }, { ...SAMPLED, seed: n, maxTokens, ignoreStop: true }), session));
      // What the first answer wrote is reused, or written over.
      const longer = [...ids, ...session.ids.slice(n, n + 40), ...randomIds(n + 1, 30, 4096)];
      out.push(seen(await collect(model, session, { ids: longer }, { ...SAMPLED, seed: 2, maxTokens: 20, ignoreStop: true }), session));
      return out;
    });
    expect(watched.most).toBe(2);
  });

  test("stop strings and stop ids, which come as a surprise: what ran ahead is as if it had not been", async () => {
    const kinds = new Set<string>();
    for (let seed = 0; seed < SEEDS; seed++) {
      const out = await both(async (model, session) => {
        const all: unknown[] = [];
        for (let turn = 0; turn < 3; turn++) {
          const prompt = { ids: randomIds(seed * 7 + turn, 20 + 17 * seed, 4096) };
          const whole = await collect(model, session, prompt, { ...SAMPLED, seed, maxTokens: 40 });
          // A stop string from the middle of that text.
          const stop = whole.text.slice(whole.text.length >> 1).slice(0, 3);
          all.push(seen(whole, session), seen(await collect(model, session, prompt, { ...SAMPLED, seed, maxTokens: 40, ...(stop ? { stop } : {}) }), session));
          all.push(seen(await collect(model, session, { ids: [...prompt.ids, ...session.ids.slice(prompt.ids.length), 17, 18] }, { ...SAMPLED, seed, maxTokens: 5 }), session));
        }
        return all;
      });
      for (const o of out as { reason: string; stop?: string }[]) kinds.add(`${o.reason} ${o.stop === undefined ? "" : "string"}`);
    }
    expect([...kinds].sort()).toEqual(["length ", "stop ", "stop string"]);
  });

  test("the end of the context", async () => {
    await both(async (model, session) => seen(await collect(model, session, { ids: randomIds(3, CONTEXT - 5, 4096) }, { ...SAMPLED, seed: 1, ignoreStop: true }), session));
    await both(async (model, session) => seen(await collect(model, session, { ids: randomIds(4, CONTEXT, 4096) }, { ...SAMPLED, seed: 1, ignoreStop: true }), session));
  });

  // A reused prefix cuts a prompt elsewhere: the same bits only where they do not depend on rows.
  test.skipIf(BACKEND !== "cpu")("a reader who leaves, and a signal: what is asked next gets what it gets in a fresh session", async () => {
    for (let n = 1; n < 12; n++) {
      const prompt = randomIds(n, 200 + n * 11, 4096), next = [...prompt.slice(0, 150 + n), ...randomIds(n + 50, 60, 4096)];
      const answers: unknown[] = [];
      for (const model of [plain, ahead]) {
        using session = model.session();
        const abort = new AbortController();
        let tokens = 0;
        const work = (async () => {
          for await (const part of (await import("../../src/engine/generate.ts")).generateParts(model, session, { ids: prompt }, { ...SAMPLED, seed: n, ignoreStop: true, signal: abort.signal })) {
            if (part.type === "token" && ++tokens === n) { if (n % 2) break; abort.abort(new Error("enough")); }
          }
        })();
        if (n % 2) await work; else expect(await failure(work)).toMatchObject({ message: "enough" });
        const after = await collect(model, session, { ids: next }, { ...SAMPLED, seed: 9, maxTokens: 30, ignoreStop: true });
        answers.push(after.parts.filter((p) => p.type === "token"));
      }
      using fresh = plain.session();
      const expected = await collect(plain, fresh, { ids: next }, { ...SAMPLED, seed: 9, maxTokens: 30, ignoreStop: true });
      expect(answers).toEqual([expected.parts.filter((p) => p.type === "token"), expected.parts.filter((p) => p.type === "token")]);
    }
  });

  test("token by token through next(), after steps that were dropped", async () => {
    await both(async (model, session) => {
      const { resolveSampling } = await import("../../src/sample/params.ts");
      const sampling = resolveSampling({ ...SAMPLED, seed: 4 }, 4096), out: unknown[] = [];
      // Ends by the caller's word at the tenth token, when the eleventh is under way.
      let count = 0;
      await session.answer(randomIds(5, 100, 4096), { sampling, onToken: (d) => { out.push(d); return ++count < 10; } }).ended;
      for (let i = 0; i < 10; i++) out.push(await session.next(sampling));
      return [out, session.length, session.ids];
    });
  });

  test("masks: made from the tokens before, applied to the next", async () => {
    // Forbids what was drawn before, and everything odd at every third token.
    const mask = (): TokenMask & { calls: string[] } => {
      const drawn: number[] = [], calls: string[] = [];
      return {
        calls,
        next() {
          calls.push("next");
          if (drawn.length % 3 === 1) return undefined;
          const bits = new Uint32Array(128).fill(drawn.length % 3 === 2 ? 0x55555555 : 0xffffffff);
          for (const id of drawn) bits[id >> 5]! &= ~(1 << (id & 31));
          return bits;
        },
        accept(id) { calls.push("accept"); drawn.push(id); },
      };
    };
    const ids = randomIds(6, 90, 4096);
    const masked = await both(async (model, session) => {
      const m = mask(), a = await collect(model, session, { ids }, { ...SAMPLED, temperature: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, maxTokens: 30, ignoreStop: true, mask: m });
      for (const [i, id] of a.ids.entries()) {
        if (i % 3 === 2) expect(id % 2).toBe(0);
        if (i % 3 !== 1) expect(a.ids.slice(0, i)).not.toContain(id);
      }
      return [seen(a, session), m.calls];
    });
    const [, calls] = masked as [unknown, string[]];
    expect(calls.slice(0, 4)).toEqual(["next", "accept", "next", "accept"]);
    expect([calls.filter((c) => c === "next").length, calls.filter((c) => c === "accept").length]).toEqual([30, 29]);
    // A mask that fails ends its answer; the session goes on.
    await both(async (model, session) => {
      const broken = { next: () => { throw new Error("no such rule"); }, accept: () => {} };
      expect(await failure(collect(model, session, { ids }, { maxTokens: 4, mask: broken }))).toMatchObject({ message: "no such rule" });
      expect(await failure(collect(model, session, { ids }, { maxTokens: 4, mask: { next: () => new Uint32Array(3), accept: () => {} } }))).toMatchObject({ code: "bad_mask" });
      return seen(await collect(model, session, { ids }, { ...SAMPLED, seed: 1, maxTokens: 5 }), session);
    });
  });
});

many.each([1, 2] as const)("many requests, %i steps under way at most", (depth) => {
  const SEQUENCES = 6;
  let model: LocalModel, one: LocalModel, watched: Watched;
  beforeAll(async () => {
    [one, model] = [await load(1), await load(depth, { sequences: SEQUENCES })];
    watched = watch(model.runner);
  });
  afterAll(async () => {
    await model.scheduler.idle();
    expect([model.runner.kvPagesUsed, one.runner.kvPagesUsed]).toEqual([0, 0]);
    model.dispose();
    one.dispose();
  });
  const request = (n: number): [ids: number[], options: LocalGenerateOptions] => [
    randomIds(n, 1 + ((n * 97) % 400), 4096), n % 3 === 0 ? { temperature: 0, logprobs: 3, maxTokens: 5 + (n % 30) } : { ...SAMPLED, seed: n, maxTokens: 5 + ((n * 7) % 40) }];
  const alone = async (n: number): Promise<Collected> => {
    using session = one.session();
    const [ids, options] = request(n);
    return await collect(one, session, { ids }, options);
  };

  test("random arrivals, aborts, readers who leave, bad prompts, failing masks: each answer is that of the request alone", async () => {
    const next = random(depth), expected = new Map<number, Collected>();
    for (let n = 0; n < 30; n++) expected.set(n, await alone(n));
    let left = 30, ended = 0;
    const client = async (): Promise<void> => {
      using session = model.session();
      while (left > 0) {
        const n = --left, [ids, options] = request(n), kind = next();
        await Bun.sleep(next() * 5);
        if (kind < 0.15) {
          const abort = new AbortController();
          setTimeout(() => abort.abort(), next() * 60);
          await collect(model, session, { ids }, { ...options, maxTokens: 200, ignoreStop: true, signal: abort.signal, onAbort: "stop" });
        } else if (kind < 0.25) {
          expect(await failure(collect(model, session, { ids: [...ids, 5000] }, options))).toMatchObject({ code: "bad_token" });
          expect(await failure(collect(model, session, { ids: new Array<number>(CONTEXT + 1).fill(7) }, options))).toMatchObject({ code: "context_length_exceeded" });
        } else if (kind < 0.35) {
          let calls = 0;
          const broken: TokenMask = { next: () => { if (++calls === 3) throw new Error("broken"); return undefined; }, accept: () => {} };
          expect(await failure(collect(model, session, { ids }, { ...options, maxTokens: 9, ignoreStop: true, mask: broken }))).toMatchObject({ message: "broken" });
        }
        const found = await collect(model, session, { ids }, options), want = expected.get(n)!;
        expect([n, found.text, found.finish.reason]).toEqual([n, want.text, want.finish.reason]);
        expect(found.parts.filter((p) => p.type === "token")).toEqual(want.parts.filter((p) => p.type === "token"));
        ended++;
      }
    };
    watched.steps.length = 0;
    await Promise.all(Array.from({ length: SEQUENCES }, client));
    expect(ended).toBe(30);
    // They did share steps, and prompts ran beside decode rows.
    const shared = watched.steps.filter((s) => s.entries.length > 1), mixed = shared.filter((s) => s.entries.some((e) => e.ids === "next") && s.entries.some((e) => e.ids !== "next"));
    expect(shared.length).toBeGreaterThan(20);
    expect(mixed.length).toBeGreaterThan(10);
    expect(watched.most).toBe(depth);
  });

  test("a long prompt takes a small part of each step while others decode, and the whole step when it is alone", async () => {
    watched.steps.length = 0;
    using a = model.session(), b = model.session();
    const decoding = collect(model, a, { ids: randomIds(1, 10, 4096) }, { temperature: 0, ignoreStop: true, maxTokens: 60 });
    await Bun.sleep(5);
    await Promise.all([decoding, collect(model, b, { ids: randomIds(2, 600, 4096) }, { temperature: 0, maxTokens: 1 })]);
    const rows = (e: BatchEntry): number => (e.ids === "next" ? 1 : e.ids.length);
    const mixed = watched.steps.filter((s) => s.entries.length > 1), prompt = watched.steps.flatMap((s) => s.entries.filter((e) => rows(e) > 1 && s.entries.length === 1));
    expect(mixed.length).toBeGreaterThan(30);
    // No decode step goes without its row while the prompt runs.
    for (const s of mixed) expect([s.entries.filter((e) => e.ids === "next").length, s.entries.reduce((n, e) => n + rows(e), 0) <= 1 + 64 / 8]).toEqual([1, true]);
    expect(Math.max(...prompt.map(rows))).toBe(64);
  });

  test("several prompts share the rows in turn: a short one does not wait for a long one's end", async () => {
    using a = model.session(), b = model.session();
    const ends: string[] = [];
    await Promise.all([
      collect(model, a, { ids: randomIds(1, 600, 4096) }, { temperature: 0, maxTokens: 1 }).then(() => ends.push("long")),
      collect(model, b, { ids: randomIds(2, 30, 4096) }, { temperature: 0, maxTokens: 1 }).then(() => ends.push("short")),
    ]);
    expect(ends).toEqual(["short", "long"]);
  });

  test("an abort in a shared step: heard at once, and the others' tokens are the same", async () => {
    const want = [await alone(3), await alone(4)], abort = new AbortController();
    using a = model.session(), b = model.session(), c = model.session();
    const others = [a, b].map((s, i) => { const [ids, options] = request(3 + i); return collect(model, s, { ids }, options); });
    const aborted = collect(model, c, { ids: randomIds(5, 600, 4096) }, { temperature: 0, signal: abort.signal });
    await Bun.sleep(3);
    abort.abort(new Error("stop"));
    expect(await failure(aborted)).toMatchObject({ message: "stop" });
    for (const [i, o] of others.entries()) expect((await o).text).toBe(want[i]!.text);
    expect((await collect(model, c, ...((): [{ ids: number[] }, LocalGenerateOptions] => { const [ids, o] = request(4); return [{ ids }, o]; })())).text).toBe(want[1]!.text);
  });

  test("one session, two answers at once: the second is refused, the first goes on", async () => {
    using session = model.session();
    const [ids, options] = request(6), first = collect(model, session, { ids }, options);
    await Bun.sleep(0);
    expect(await failure(collect(model, session, { ids }, options))).toMatchObject({ code: "sequence_busy" });
    expect((await first).text).toBe((await alone(6)).text);
  });

  test("a session that is disposed while it answers: its reader hears of it, the others do not", async () => {
    const a = model.session();
    using b = model.session();
    const [ids, options] = request(7), going = collect(model, a, { ids: randomIds(1, 300, 4096) }, { temperature: 0, ignoreStop: true }), other = collect(model, b, { ids }, options);
    await Bun.sleep(2);
    a.dispose();
    expect(await failure(going)).toMatchObject({ name: "DisposedError" });
    expect((await other).text).toBe((await alone(7)).text);
  });
});

test.skipIf(BACKEND !== "cpu")("cancelled steps of a slow device, shared by two: whoever was not meant starts that step again", async () => {
  // The plain reference is slow enough for a step to be caught in the middle.
  const model = await load(2, { sequences: 2, reference: true });
  try {
    using a = model.session(), b = model.session();
    const options = { ...SAMPLED, seed: 3, maxTokens: 8, ignoreStop: true }, ids = randomIds(1, 40, 4096);
    const want = await collect(model, a, { ids }, options);
    a.reset();
    const abort = new AbortController(), found = collect(model, a, { ids }, options);
    const broken = collect(model, b, { ids: randomIds(2, 300, 4096) }, { temperature: 0, signal: abort.signal });
    await Bun.sleep(60);
    const at = performance.now();
    abort.abort(new Error("stop"));
    expect(await failure(broken)).toMatchObject({ message: "stop" });
    expect(performance.now() - at).toBeLessThan(200);
    expect((await found).parts.filter((p) => p.type === "token")).toEqual(want.parts.filter((p) => p.type === "token"));
  } finally {
    model.dispose();
  }
});

test("dispose while requests run: each ends by name, nothing hangs", async () => {
  const model = await LocalModel.load(STORIES, { device: { threads: 1 }, context: 256, sequences: 2, depth: 2, warmup: false });
  const a = model.session(), b = model.session();
  const going = [a, b].map((s) => collect(model, s, { ids: randomIds(1, 50, 512) }, { temperature: 0, ignoreStop: true }));
  await Bun.sleep(1);
  model.dispose();
  for (const g of going) expect(await failure(g)).toMatchObject({ name: "DisposedError" });
  await model.scheduler.idle();
});
