// Scores of sliding windows against the same windows worked out one by one.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { join } from "node:path";
import { LocalModel } from "../../src/engine/model.ts";
import { perplexityOf, scoreIds, surprise } from "../../src/engine/perplexity.ts";
import { everyRow, promptRows } from "../../src/engine/rows.ts";

const PATH = join(import.meta.dir, "../fixtures/stories260K.gguf");
let model: LocalModel, ids: number[];
beforeAll(async () => {
  model = await LocalModel.load(PATH, everyRow(PATH, { device: { precision: "exact" }, chunk: 5, warmup: false }));
  ids = model.tokenizer.encode("Once upon a time, there was a little girl named Lily. She loved her red ball.", { bos: false });
});
afterAll(() => { model.dispose(); });

/** -ln p of ids[i] after BOS and ids[begin .. i). */
async function oneByOne(begin: number, i: number): Promise<number> {
  const content = [model.tokenizer.bosId!, ...ids.slice(begin, i)];
  let nll = NaN;
  for await (const part of promptRows(model, content, { first: content.length - 1 })) nll = surprise(part.logits(), ids[i]!);
  return nll;
}

test("every token is scored once, from the beginning of its window", async () => {
  for (const [window, stride] of [[9, 3], [9, 8], [9, 9], [64, 32]] as const) {
    const room = window - 1; // BOS takes a place
    let expected = 0;
    for (let begin = 0, scored = 0; scored < ids.length; begin += Math.min(stride, room)) {
      const end = Math.min(ids.length, begin + room);
      for (let i = scored; i < end; i++) expected += await oneByOne(begin, i);
      scored = end;
    }
    const score = await scoreIds(model, ids, { window, stride });
    expect(score.tokens).toBe(ids.length);
    expect(score.nll).toBeCloseTo(expected, 4);
    expect(perplexityOf(score)).toBeCloseTo(Math.exp(expected / ids.length), 3);
  }
});

test("sizes that make no sense are refused, and so is a text without tokens", async () => {
  for (const [window, stride] of [[1, 1], [4096, 1], [9, 0], [9, 10]] as const) expect(scoreIds(model, ids, { window, stride })).rejects.toThrow(/expected/);
  expect(scoreIds(model, [], { window: 9, stride: 3 })).rejects.toThrow(/no token/);
});

test("an aborted run throws the signal's reason and leaves the model usable", async () => {
  expect(scoreIds(model, ids, { window: 9, stride: 3, signal: AbortSignal.abort(new Error("enough")) })).rejects.toThrow("enough");
  expect((await scoreIds(model, ids.slice(0, 4), { window: 9, stride: 3 })).tokens).toBe(4);
});
