// Sessions: what is reused of a former prompt, and that reuse never changes what the model says. One thread.
import { setDefaultTimeout, afterAll, beforeAll, describe, expect, test } from "bun:test";
import { LocalModel } from "../../src/engine/model.ts";
import type { Runner } from "../../src/engine/runner.ts";
import { Session } from "../../src/engine/session.ts";
import type { Sampling } from "../../src/sample/params.ts";
import { DEMO, failure, randomIds, STORIES } from "./fixtures.ts";

const GREEDY: Sampling = { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, seed: 0, logitBias: new Map(), logprobs: 20 };
setDefaultTimeout(60_000);
const WINDOW = 256;

interface Turn { ids: number[]; logits: Float32Array[]; reused: number }

/** Prefill and `count` tokens: ids, reported log-probabilities, and the logits of every step, bit by bit. */
async function turn(runner: Runner, session: Session, prompt: readonly number[], count: number): Promise<Turn> {
  const { drawn, reused } = await session.prefill(prompt, { sampling: GREEDY });
  const out: Turn = { ids: [drawn!.id], logits: [runner.logits(0, 1)], reused };
  while (out.ids.length < count) {
    out.ids.push((await session.next(GREEDY)).id);
    out.logits.push(runner.logits(0, 1));
  }
  return out;
}

function expectSame(found: Turn, expected: Turn): void {
  expect(found.ids).toEqual(expected.ids);
  found.logits.forEach((l, i) => expect([i, Buffer.compare(new Uint8Array(l.buffer), new Uint8Array(expected.logits[i]!.buffer))]).toEqual([i, 0]));
}

describe("a sliding window of 256", () => {
  let model: LocalModel, runner: Runner;
  beforeAll(async () => {
    model = await LocalModel.load(DEMO, { device: { threads: 1 }, context: 1536, sequences: 2, chunk: 128, warmup: false });
    runner = model.runner;
    expect(runner.config.layers[0]!.window).toBe(WINDOW);
  });
  afterAll(() => {
    expect(runner.kvPagesUsed).toBe(0);
    model.dispose();
  });

  /** The same turn in a session that has seen nothing. */
  const fresh = async (prompt: readonly number[], count: number): Promise<Turn> => {
    using session = model.session();
    const t = await turn(runner, session, prompt, count);
    expect(t.reused).toBe(0);
    return t;
  };

  // 320 = 256 + 64 and 319: the window's edge falls on a page's edge, where the one token more that is kept costs a page of its own.
  test.each([[1, 3], [40, 8], [64, 8], [255, 6], [300, 80], [319, 80], [320, 80], [600, 300]])("%i tokens twice, %i answered between: one token runs again", async (n, answer) => {
    const prompt = randomIds(n, n, 4096);
    using session = model.session();
    const first = await turn(runner, session, prompt, answer);
    for (let again = 0; again < 3; again++) {
      const second = await turn(runner, session, prompt, again === 1 ? answer : 5);
      expect(second.reused).toBe(n - 1);
      if (again === 1) expectSame(second, first);
    }
    expectSame(await fresh(prompt, Math.min(answer, 30)), { ...first, ids: first.ids.slice(0, 30), logits: first.logits.slice(0, 30) });
  });

  test.each([[100, 20, 30], [300, 90, 40], [500, 200, 150]])("an edited last turn (%i tokens before, %i answered): only what follows the edit runs", async (n, answered, edited) => {
    const start = randomIds(n, n, 4096);
    using session = model.session();
    const one = await turn(runner, session, start, answered);
    const history = [...start, ...one.ids];
    const two = [...history, ...randomIds(n + 1, edited, 4096)];
    const answer = await turn(runner, session, two, answered);
    // The first answer's last token was drawn and never run.
    expect(answer.reused).toBe(history.length - 1);
    for (const seed of [2, 3]) {
      const changed = [...history, ...randomIds(n + seed, edited + seed, 4096)];
      const t = await turn(runner, session, changed, 12);
      expect(t.reused).toBeWithin(history.length - 1, history.length + 1);
      expectSame(t, await fresh(changed, 12));
    }
    // And the turn as it was, once more.
    const back = await turn(runner, session, two, 12);
    expect(back.reused).toBeWithin(history.length - 1, history.length + 1);
    expectSame(back, { ...answer, ids: answer.ids.slice(0, 12), logits: answer.logits.slice(0, 12) });
  });

  test("a conversation that grows past two windows: each turn runs its own tokens, and says what a fresh session says", async () => {
    using session = model.session();
    let history: number[] = [];
    for (let t = 0; t < 6; t++) {
      const prompt = [...history, ...randomIds(50 + t, 60 + 31 * t, 4096)];
      const now = await turn(runner, session, prompt, 40);
      expect(now.reused).toBe(Math.max(0, history.length - 1));
      expectSame(now, { ...(await fresh(prompt, 40)) });
      history = [...prompt, ...now.ids];
    }
    expect(history.length).toBeGreaterThan(3 * WINDOW);
  });

  test("a rewind far behind the window starts over, and says the same", async () => {
    const long = randomIds(8, 900, 4096), other = [...long.slice(0, 300), 7, 8, 9];
    using session = model.session();
    await turn(runner, session, long, 30);
    const t = await turn(runner, session, other, 20);
    expect(t.reused).toBe(0);
    expectSame(t, await fresh(other, 20));
    // A prefix within reach of the present state costs nothing.
    const shorter = await turn(runner, session, other.slice(0, -1), 5);
    expect(shorter.reused).toBe(other.length - 2);
    expectSame(shorter, await fresh(other.slice(0, -1), 5));
  });

  test("chunks and reuse change no bit: the last logits of a prompt run whole, in pieces, and token by token", async () => {
    const prompt = randomIds(9, 400, 4096), whole = await fresh(prompt, 1);
    using session = model.session();
    for (const piece of [1, 63, 64, 65, 128]) {
      session.reset();
      for (let at = piece; at < prompt.length && at < piece * 6; at += piece) await session.prefill(prompt.slice(0, at));
      expectSame(await turn(runner, session, prompt, 1), whole);
    }
  });

  test("random edits of a conversation: always what a fresh session says", async () => {
    const pick = randomIds(77, 60, 4096);
    using session = model.session();
    let prompt: number[] = [];
    for (let n = 0; n < 14; n++) {
      const keep = n % 3 === 0 ? Math.trunc((prompt.length * (pick[n * 3]! % 100)) / 100) : prompt.length - (pick[n * 3]! % 5 > 3 ? 1 : 0);
      prompt = [...prompt.slice(0, keep), ...randomIds(n, 1 + (pick[n * 3 + 1]! % 150), 4096)].slice(0, 1400);
      const t = await turn(runner, session, prompt, 1 + (pick[n * 3 + 2]! % 20));
      const expected = await fresh(prompt, 1);
      expectSame({ ...t, ids: t.ids.slice(0, 1), logits: t.logits.slice(0, 1) }, expected);
      if (pick[n]! % 2) prompt = [...prompt, ...t.ids];
    }
  });

  test("two sessions do not see each other's tokens", async () => {
    using a = model.session(), b = model.session();
    const pa = randomIds(1, 300, 4096), pb = randomIds(2, 310, 4096);
    const ta = await turn(runner, a, pa, 3), tb = await turn(runner, b, pb, 3);
    expectSame(await turn(runner, a, pa, 3), ta);
    expectSame(await turn(runner, b, pb, 3), tb);
    expect(Buffer.compare(new Uint8Array(ta.logits[0]!.buffer), new Uint8Array(tb.logits[0]!.buffer))).not.toBe(0);
  });

  test("more sessions than sequences", async () => {
    using a = model.session(), b = model.session();
    expect([a.length, b.length]).toEqual([0, 0]);
    expect(await failure(() => model.session())).toMatchObject({ name: "UsageError", code: "too_many_sequences" });
  });
});

describe("a context of 128", () => {
  let model: LocalModel, session: Session;
  let steps = 0;
  beforeAll(async () => {
    model = await LocalModel.load(STORIES, { device: { threads: 1, precision: "exact" }, context: 128, chunk: 32, warmup: false });
    const run = model.runner.run.bind(model.runner);
    model.runner.run = (...args) => { steps++; return run(...args); };
    session = model.session();
  });
  afterAll(() => { session.dispose(); model.dispose(); });

  test("a prompt that is too long is refused before any compute, with used and max", async () => {
    steps = 0;
    const error = await failure(session.prefill(randomIds(1, 129, 512)));
    expect(error).toMatchObject({ name: "UsageError", code: "context_length_exceeded" });
    expect(error.message).toMatch(/\b129\b.*\b128\b/);
    expect(error.hint).toContain("--ctx");
    expect([steps, session.length]).toEqual([0, 0]);
  });

  test("the hint to a prompt beyond the model's own length does not offer a context that would be refused", async () => {
    const { contextLength } = model.runner.config;
    for (const [length, hint] of [[contextLength + 1, /shorter prompt/], [contextLength - 10, new RegExp(`--ctx ${contextLength}\\b`)]] as const) {
      const error = await failure(session.prefill(randomIds(1, length, 512)));
      expect(error.hint).toMatch(hint);
      for (const [, offered] of error.hint!.matchAll(/--ctx (\d+)/g)) expect(Number(offered)).toBeLessThanOrEqual(contextLength);
    }
  });

  test("a prompt that fills the context gives one token, and no more", async () => {
    const { drawn } = await session.prefill(randomIds(1, 128, 512), { sampling: GREEDY });
    expect(drawn!.id).toBeWithin(0, 512);
    expect([session.full, session.length]).toEqual([true, 128]);
    expect(await failure(session.next(GREEDY))).toMatchObject({ name: "UsageError", code: "context_length_exceeded" });
    // The refusal has broken nothing.
    expect((await session.prefill(randomIds(1, 128, 512), { sampling: GREEDY })).reused).toBe(127);
  });

  test("an empty prompt and ids out of range are refused, and the session keeps what it had", async () => {
    await session.prefill([1, 5, 6], { sampling: GREEDY });
    expect(await failure(session.prefill([]))).toMatchObject({ name: "UsageError", code: "empty_prompt" });
    for (const id of [-1, 512, 1.5, NaN, Infinity, 2 ** 32, "3" as unknown as number]) {
      expect(await failure(session.prefill([1, id]))).toMatchObject({ name: "UsageError", code: "bad_token" });
    }
    expect(session.ids.slice(0, 3)).toEqual([1, 5, 6]);
    expect((await session.prefill([1, 5, 6, 7], { sampling: GREEDY })).reused).toBe(3);
  });

  test("next() without a drawn token is refused", async () => {
    session.reset();
    expect(await failure(session.next(GREEDY))).toMatchObject({ code: "bad_batch" });
    await session.prefill([1, 5, 6]);
    expect(await failure(session.next(GREEDY))).toMatchObject({ code: "bad_batch" });
  });

  test("an aborted signal is heard before anything runs", async () => {
    session.reset();
    const reason = new Error("no more");
    expect(await failure(session.prefill([1, 5, 6], { signal: AbortSignal.abort(reason) }))).toBe(reason);
    expect(session.length).toBe(0);
  });
});
