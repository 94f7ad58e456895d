// Embeddings: the mean of the hidden states after the last norm, whatever the chunks, and whoever else is in the step.
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { LocalModel } from "../../src/engine/model.ts";
import { everyRow, promptRows } from "../../src/engine/rows.ts";
import { collect, convertReference, DEMO, failure, randomIds, STORIES, TemporaryFolder } from "./fixtures.ts";

setDefaultTimeout(60_000);
const folder = new TemporaryFolder();
afterAll(() => folder[Symbol.dispose]());
const EXACT = { device: { threads: 2, precision: "exact" }, context: 256, warmup: false } as const;

/** From the hidden states of every row, which diagnostics keep. */
async function meanOfRows(path: string, ids: readonly number[]): Promise<Float64Array> {
  using model = await LocalModel.load(path, { ...everyRow(path, EXACT), keepHidden: true });
  const sum = new Float64Array(model.runner.config.hidden);
  for await (const part of promptRows(model, ids)) part.hidden().at(-1)!.forEach((x, i) => { sum[i % sum.length]! += x; });
  return sum.map((x) => x / ids.length);
}

describe.each([["Llama", async () => STORIES], ["Gemma 4 with experts", async () => DEMO], ["E-series", () => convertReference("ple", folder)]] as const)("%s", (_name, path) => {
  test("the mean of all rows' hidden states", async () => {
    const file = await path();
    using model = await LocalModel.load(file, EXACT);
    for (const n of [1, 2, 64, 200]) {
      const ids = randomIds(n, n, model.runner.config.vocabulary), expected = await meanOfRows(file, ids);
      using session = model.session();
      const found = await session.embed(ids);
      const scale = Math.hypot(...expected);
      found.forEach((x, i) => expect(Math.abs(x - expected[i]!) / scale).toBeLessThan(1e-5));
      expect(scale).toBeGreaterThan(0.1);
    }
  });

  test("chunks, company and what the session held before change no bit; answers go on beside", async () => {
    const file = await path();
    using whole = await LocalModel.load(file, EXACT);
    using parts = await LocalModel.load(file, { ...EXACT, chunk: 16, sequences: 4 });
    const texts = [3, 90, 16, 150].map((n) => randomIds(n, n, whole.runner.config.vocabulary));
    using alone = whole.session();
    const expected: Float32Array[] = [];
    for (const ids of texts) expected.push(await alone.embed(ids));
    const sessions = texts.slice(0, 3).map(() => parts.session());
    using talking = parts.session();
    await sessions[1]!.prefill(texts[3]!);
    const answer = collect(parts, talking, { ids: texts[1]! }, { temperature: 0, maxTokens: 40, ignoreStop: true, logprobs: 0 });
    const found = await Promise.all(sessions.map((s, i) => s.embed(texts[i]!)));
    expect(found).toEqual(expected.slice(0, 3));
    expect(await sessions[0]!.embed(texts[3]!)).toEqual(expected[3]!);
    alone.reset();
    expect((await answer).ids).toEqual((await collect(whole, alone, { ids: texts[1]! }, { temperature: 0, maxTokens: 40, ignoreStop: true, logprobs: 0 })).ids);
    // What was embedded is a prefix like any other.
    expect((await sessions[1]!.prefill([...texts[1]!, 5])).reused).toBe(90);
    for (const s of sessions) s.dispose();
  });
});

test("an aborted embedding; another of the same step begins again and is right", async () => {
  using model = await LocalModel.load(DEMO, { device: { threads: 1, reference: true }, context: 256, chunk: 128, sequences: 2, warmup: false });
  using a = model.session(), b = model.session();
  const ids = randomIds(1, 40, 4096), expected = await a.embed(ids), abort = new AbortController();
  const broken = b.embed(randomIds(2, 60, 4096), abort.signal), whole = a.embed(ids);
  await Bun.sleep(50);
  abort.abort(new Error("stop"));
  expect(await failure(broken)).toMatchObject({ message: "stop" });
  expect(await whole).toEqual(expected);
});

test("nothing, too much, and ids out of range", async () => {
  using model = await LocalModel.load(STORIES, { ...EXACT, context: 32 });
  using session = model.session();
  expect(await failure(session.embed([]))).toMatchObject({ code: "empty_prompt" });
  expect(await failure(session.embed(new Array<number>(33).fill(4)))).toMatchObject({ code: "context_length_exceeded" });
  expect(await failure(session.embed([512]))).toMatchObject({ code: "bad_token" });
  expect((await session.embed([4])).length).toBe(model.runner.config.hidden);
});
