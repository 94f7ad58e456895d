// Batches: whatever company a row has, and in whatever pieces a prompt is run, its logits are the same bits. On the CPU this holds always.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { openGguf } from "../../src/gguf/index.ts";
import { Runner, type BatchEntry, type Sequence } from "../../src/engine/runner.ts";
import type { Sampling } from "../../src/sample/params.ts";
import { convertReference, DEMO, failure, random, randomIds, STORIES, TemporaryFolder } from "./fixtures.ts";

setDefaultTimeout(60_000);

/** Every sequence with settings of its own; seeds belong to the sequence, not to its place in a batch. */
const samplingOf = (n: number): Sampling => n % 3 === 0
  ? { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, seed: n, logitBias: new Map(), logprobs: -1 }
  : { temperature: 1 + n / 10, topK: n % 3 === 1 ? 40 : 0, topP: 0.95, minP: n % 2 ? 0 : 0.02, repetitionPenalty: 1.1, presencePenalty: 0.1, frequencyPenalty: 0.05, seed: 1000 + n, logitBias: new Map([[n + 5, 2.5], [n + 9, -Infinity]]), logprobs: 5 };

/** What one sequence sees: logits that were looked at, by position, and the tokens drawn. */
interface Story { readonly prompt: number[]; readonly logits: Map<number, string>; readonly drawn: unknown[] }
const story = (prompt: number[]): Story => ({ prompt, logits: new Map(), drawn: [] });
const bits = (runner: Runner, row: number, rows: number): string[] => {
  const all = runner.logits(row, rows), width = all.length / rows;
  return Array.from({ length: rows }, (_, i) => Bun.hash(new Uint8Array(all.buffer, i * width * 4, width * 4)).toString(16));
};

/** Runs one entry of a batch for a story and takes down what came. */
function record(s: Story, n: number, runner: Runner, entry: BatchEntry, start: number, result: { outputRow: number; drawn?: unknown }): void {
  const count = entry.ids === "next" ? 1 : entry.ids.length;
  if (entry.logits !== "none") {
    const rows = entry.logits === "all" ? count : 1;
    bits(runner, result.outputRow, rows).forEach((b, i) => s.logits.set(start + count - rows + i, `${n} ${b}`));
  }
  if (result.drawn) s.drawn.push(result.drawn);
}

/** The whole prompt in one piece (or pieces of the chunk), then `count` tokens, alone in the runner. */
async function alone(runner: Runner, prompt: number[], n: number, count: number): Promise<Story> {
  const sequence = runner.open(), s = story(prompt), sampling = samplingOf(n);
  for (let at = 0; at < prompt.length; at += runner.plan.chunk) {
    const ids = prompt.slice(at, at + runner.plan.chunk), last = at + ids.length === prompt.length;
    const entry: BatchEntry = { sequence, ids, logits: "all", ...(last ? { sampling } : {}) };
    record(s, n, runner, entry, at, ((await runner.run([entry])) as { outputRow: number }[])[0]!);
  }
  while (s.drawn.length < count) {
    const entry: BatchEntry = { sequence, ids: "next", logits: "last", sampling }, start = sequence.pages.length;
    record(s, n, runner, entry, start, ((await runner.run([entry])) as { outputRow: number }[])[0]!);
  }
  runner.close(sequence);
  return s;
}

/** All stories at once: each step takes random pieces of prompts, and decode rows of those that are past theirs, in random order. */
async function together(runner: Runner, prompts: number[][], count: number, seed: number): Promise<{ stories: Story[]; mixed: number }> {
  const next = random(seed), stories = prompts.map(story), sequences: Sequence[] = [];
  // Slots in another order than the stories.
  for (const i of [...prompts.keys()].sort(() => next() - 0.5)) sequences[i] = runner.open();
  let mixed = 0;
  for (;;) {
    const entries: BatchEntry[] = [], who: number[] = [];
    let rows = 0, outputs = 0;
    for (const i of [...prompts.keys()].sort(() => next() - 0.5)) {
      const s = stories[i]!, sequence = sequences[i]!, at = sequence.pages.length, left = s.prompt.length - at;
      if (s.drawn.length >= count || next() < 0.2) continue;
      const n = Math.min(left, runner.plan.chunk - rows, 1 + Math.trunc(next() * next() * runner.plan.chunk));
      if (left > 0 && n > 0) {
        const last = n === left, all = outputs + n <= runner.plan.outputs && next() < 0.6;
        if (last && !all && outputs === runner.plan.outputs) continue;
        entries.push({ sequence, ids: s.prompt.slice(at, at + n), logits: all ? "all" : last ? "last" : "none", ...(last ? { sampling: samplingOf(i) } : {}) });
        rows += n;
        outputs += all ? n : last ? 1 : 0;
        who.push(i);
      } else if (left <= 0 && rows < runner.plan.chunk && outputs < runner.plan.outputs) {
        entries.push({ sequence, ids: "next", logits: "last", sampling: samplingOf(i) });
        rows++;
        outputs++;
        who.push(i);
      }
    }
    if (entries.length === 0) {
      if (stories.every((s) => s.drawn.length >= count)) break;
      continue;
    }
    if (entries.some((e) => e.ids === "next") && entries.some((e) => e.ids !== "next")) mixed++;
    const starts = entries.map((e) => e.sequence.pages.length), results = await runner.run(entries);
    if (results === "cancelled") throw new Error("cancelled");
    entries.forEach((e, k) => record(stories[who[k]!]!, who[k]!, runner, e, starts[k]!, results[k]!));
  }
  for (const s of sequences) runner.close(s);
  return { stories, mixed };
}

const folder = new TemporaryFolder();
afterAll(() => folder[Symbol.dispose]());

const MODELS: [name: string, path: () => Promise<string>, context: number, longest: number][] = [
  ["Llama", async () => STORIES, 256, 150],
  ["Gemma 4 with experts", async () => DEMO, 640, 420],
  ["E-series", () => convertReference("ple", folder), 256, 150],
  ["K = V, experts", () => convertReference("moe", folder), 256, 150],
  ["wide heads", () => convertReference("wide-heads", folder), 256, 150],
  ["many experts", () => convertReference("many-experts", folder), 256, 150],
];

describe.each(MODELS)("%s", (_name, path, context, longest) => {
  let runner: Runner;
  beforeAll(async () => {
    runner = new Runner(openGguf(await path()), { device: { threads: 2 }, plan: { context, sequences: 5, chunk: 64, outputs: 64, kvType: "f16" } });
  });
  afterAll(() => { expect(runner.kvPagesUsed).toBe(0); runner.dispose(); });

  test("random batches of five sequences: the bits and the tokens of each alone", async () => {
    const prompts = [3, 64, longest, 90, 1].map((n, i) => randomIds(40 + i, n, runner.config.vocabulary));
    const expected: Story[] = [];
    for (const [i, p] of prompts.entries()) expected.push(await alone(runner, p, i, 12));
    let mixed = 0;
    for (const seed of [1, 2, 3]) {
      const got = await together(runner, prompts, 12, seed);
      mixed += got.mixed;
      got.stories.forEach((s, i) => {
        expect([seed, i, s.drawn]).toEqual([seed, i, expected[i]!.drawn]);
        for (const [position, hash] of s.logits) expect([seed, i, position, hash]).toEqual([seed, i, position, expected[i]!.logits.get(position)!]);
      });
    }
    expect(mixed).toBeGreaterThan(10);
  });

  test("chunk sizes, output rows and threads: the same bits", async () => {
    const prompt = randomIds(50, Math.min(150, longest), runner.config.vocabulary), expected = await alone(runner, prompt, 1, 3);
    for (const [chunk, outputs, threads] of [[1, 1, 1], [7, 7, 2], [100, 100, 1]] as const) {
      using other = new Runner(runner.file, { device: { threads }, plan: { context, chunk, outputs } });
      const s = await alone(other, prompt, 1, 3);
      expect(s.drawn).toEqual(expected.drawn);
      expect([...s.logits]).toEqual([...expected.logits]);
    }
  });

  test("only the last row's logits, as a prefill asks for them: the same bits as with all rows", async () => {
    const prompt = randomIds(51, 70, runner.config.vocabulary), expected = await alone(runner, prompt, 0, 1);
    const sequence = runner.open();
    await runner.run([{ sequence, ids: prompt.slice(0, 40), logits: "none" }]);
    const r = await runner.run([{ sequence, ids: prompt.slice(40), logits: "last", sampling: samplingOf(0) }]);
    expect(r).not.toBe("cancelled");
    expect(`0 ${bits(runner, 0, 1)[0]}`).toBe(expected.logits.get(69)!);
    runner.close(sequence);
  });
});

describe("a batch that cannot run", () => {
  let runner: Runner;
  beforeAll(() => { runner = new Runner(openGguf(STORIES), { device: { threads: 1 }, plan: { context: 128, sequences: 3, chunk: 32, outputs: 4 } }); });
  afterAll(() => runner.dispose());

  test("is refused whole: no sequence has changed, and the next step is right", async () => {
    const prompt = randomIds(1, 30, 512), expected = await alone2(runner, prompt);
    const a = runner.open(), b = runner.open(), sampling = samplingOf(0);
    await runner.run([{ sequence: a, ids: prompt.slice(0, 10), logits: "none" }]);
    const bad: [code: string, entries: BatchEntry[]][] = [
      ["empty_batch", [{ sequence: a, ids: prompt.slice(10, 12), logits: "none" }, { sequence: b, ids: [], logits: "none" }]],
      ["batch_too_large", [{ sequence: a, ids: prompt.slice(10, 20), logits: "none" }, { sequence: b, ids: prompt.slice(0, 23), logits: "none" }]],
      ["batch_too_large", [{ sequence: a, ids: prompt.slice(10, 13), logits: "all" }, { sequence: b, ids: prompt.slice(0, 2), logits: "all" }]],
      ["bad_batch", [{ sequence: a, ids: prompt.slice(10, 12), logits: "none" }, { sequence: a, ids: [5], logits: "none" }]],
      ["bad_batch", [{ sequence: b, ids: prompt, logits: "none" }, { sequence: a, ids: "next", logits: "last", sampling }]],
      ["bad_batch", [{ sequence: a, ids: prompt.slice(10, 12), logits: "none", sampling }]],
      // Caught in C, when the pages are reserved already.
      ["invalid_argument", [{ sequence: a, ids: prompt.slice(10, 12), logits: "none" }, { sequence: b, ids: [5, 512], logits: "none" }]],
      ["invalid_argument", [{ sequence: a, ids: prompt.slice(10, 12), logits: "last", sampling: { ...sampling, topP: -1 } }, { sequence: b, ids: prompt, logits: "none" }]],
    ];
    for (const [code, entries] of bad) {
      expect(await failure(runner.run(entries))).toMatchObject({ code });
      expect([code, a.pages.length, b.pages.length]).toEqual([code, 10, 0]);
    }
    const r = await runner.run([{ sequence: a, ids: prompt.slice(10), logits: "last", sampling }]);
    expect(r).toMatchObject([{ drawn: { id: expected } }]);
    const r2 = await runner.run([{ sequence: b, ids: prompt, logits: "last", sampling }]);
    expect(r2).toMatchObject([{ drawn: { id: expected } }]);
    runner.close(a);
    runner.close(b);
  });

  test("a full pool refuses the step; the others go on", async () => {
    // Snapshots that nobody drops take the pages away.
    const a = runner.open(), b = runner.open();
    const held = [];
    await runner.run([{ sequence: a, ids: randomIds(2, 20, 512), logits: "none" }]);
    let error: { code?: string } | undefined;
    for (let i = 0; i < 100 && !error; i++) {
      held.push(a.pages.snapshot());
      a.pages.rewind(0);
      a.ids.length = 0;
      await runner.run([{ sequence: a, ids: randomIds(i, 20, 512), logits: "none" }]).catch((e: { code?: string }) => { error = e; });
    }
    expect(error).toMatchObject({ name: "ResourceError", code: "kv_full" });
    for (const s of held) a.pages.drop(s);
    await runner.run([{ sequence: b, ids: randomIds(3, 20, 512), logits: "none" }, { sequence: a, ids: [5], logits: "none" }]);
    runner.close(a);
    runner.close(b);
    expect(runner.kvPagesUsed).toBe(0);
  });
});

/** The greedy token after a prompt. */
async function alone2(runner: Runner, prompt: number[]): Promise<number> {
  const sequence = runner.open();
  const r = await runner.run([{ sequence, ids: prompt, logits: "last", sampling: samplingOf(0) }]);
  runner.close(sequence);
  if (r === "cancelled") throw new Error("cancelled");
  return r[0]!.drawn!.id;
}
