// Steps that are cancelled while the device works on them: no sequence moves on, and what comes after is what it would have been.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { openGguf } from "../../src/gguf/index.ts";
import { Runner, type BatchEntry, type Sequence } from "../../src/engine/runner.ts";
import type { Sampling } from "../../src/sample/params.ts";
import { DEMO, random, randomIds } from "./fixtures.ts";

setDefaultTimeout(60_000);
const SAMPLING: Sampling = { temperature: 1, topK: 40, topP: 1, minP: 0, repetitionPenalty: 1.2, presencePenalty: 0, frequencyPenalty: 0, seed: 5, logitBias: new Map(), logprobs: 2 };

/** Heard once the step has been submitted and did not end within the first wait. */
function inTheMiddle(): () => boolean {
  let calls = 0;
  return () => calls++ > 0;
}

// The plain reference is slow enough that single rows can be caught in the middle.
describe("the plain reference device", () => {
  let runner: Runner;
  beforeAll(() => { runner = new Runner(openGguf(DEMO), { device: { threads: 1, reference: true }, plan: { context: 512, sequences: 2, chunk: 64, outputs: 2 } }); });
  afterAll(() => { expect(runner.kvPagesUsed).toBe(0); runner.dispose(); });

  async function story(prompt: readonly number[], count: number, cancel: () => boolean): Promise<{ drawn: unknown[]; logits: Float32Array; cancelled: number }> {
    const sequence: Sequence = runner.open(), drawn: unknown[] = [];
    let cancelled = 0;
    const run = async (entry: BatchEntry): Promise<void> => {
      for (;;) {
        const before = sequence.pages.length, ids = [...sequence.ids].slice(0, before + (entry.ids === "next" ? 1 : 0));
        const r = await runner.run([entry], cancel() ? inTheMiddle() : () => false);
        if (r !== "cancelled") { if (r[0]!.drawn) drawn.push(r[0]!.drawn); return; }
        cancelled++;
        expect([sequence.pages.length, sequence.ids]).toEqual([before, ids]);
      }
    };
    for (let at = 0; at < prompt.length; at += 20) {
      const last = at + 20 >= prompt.length;
      await run({ sequence, ids: prompt.slice(at, at + 20), logits: last ? "last" : "none", ...(last ? { sampling: SAMPLING } : {}) });
    }
    while (drawn.length < count) await run({ sequence, ids: "next", logits: "last", sampling: SAMPLING });
    const logits = runner.logits(0, 1);
    runner.close(sequence);
    return { drawn, logits, cancelled };
  }

  test("prefill and decode steps cancelled at random, each tried again: the same tokens, the same bits", async () => {
    const prompt = randomIds(1, 45, 4096), next = random(3);
    const plain = await story(prompt, 6, () => false), broken = await story(prompt, 6, () => next() < 0.5);
    expect(broken.cancelled).toBeGreaterThan(2);
    expect(broken.drawn).toEqual(plain.drawn);
    expect(Buffer.compare(new Uint8Array(broken.logits.buffer), new Uint8Array(plain.logits.buffer))).toBe(0);
  });
});

test("long chunks on the fast device, past the window: after a cancelled chunk another prompt may take its place", async () => {
  using runner = new Runner(openGguf(DEMO), { device: { threads: 1, precision: "exact" }, plan: { context: 1536, sequences: 2, chunk: 512, outputs: 1 } });
  const a = randomIds(1, 1200, 4096), b = [...a.slice(0, 512), ...randomIds(2, 600, 4096)];
  const run = async (ids: readonly number[], cancelAt: number[]): Promise<Float32Array> => {
    const sequence = runner.open();
    for (const [i, at] of [0, 512, 1024].entries()) {
      if (cancelAt.includes(i)) {
        // Other tokens, of another number, from the same place.
        const r = await runner.run([{ sequence, ids: randomIds(9 + i, 500, 4096), logits: "last", sampling: SAMPLING }], inTheMiddle());
        expect(r).toBe("cancelled");
      }
      const chunk = ids.slice(at, at + 512);
      await runner.run([{ sequence, ids: chunk, logits: at + 512 >= ids.length ? "last" : "none" }]);
    }
    const logits = runner.logits(0, 1);
    runner.close(sequence);
    return logits;
  };
  for (const ids of [a, b]) {
    const plain = await run(ids, []), broken = await run(ids, [0, 1, 2]);
    expect(Buffer.compare(new Uint8Array(broken.buffer), new Uint8Array(plain.buffer))).toBe(0);
  }
  expect(runner.kvPagesUsed).toBe(0);
});

test("a disposed runner ends what is under way, and refuses what comes", async () => {
  const runner = new Runner(openGguf(DEMO), { device: { threads: 1 }, plan: { context: 512, chunk: 256 } });
  const sequence = runner.open(), running = runner.run([{ sequence, ids: randomIds(1, 256, 4096), logits: "none" }]);
  const queued = runner.run([{ sequence, ids: randomIds(1, 200, 4096), logits: "none" }]);
  expect([await running, await queued].every((r) => r !== "cancelled")).toBe(true);
  expect(sequence.pages.length).toBe(456);
  runner.submit([{ sequence, ids: randomIds(1, 20, 4096), logits: "none" }]);
  runner.dispose();
  runner.dispose();
  expect(await runner.run([]).catch((e: unknown) => e)).toMatchObject({ name: "DisposedError", code: "disposed" });
});
