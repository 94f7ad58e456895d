// A real Llama-architecture model that others trained (stories260K): known greedy ids and likelihoods.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { LocalModel } from "../../src/engine/model.ts";
import { greedy, openRunner, promptLogits, TIME_LIMIT } from "./reference.ts";

setDefaultTimeout(TIME_LIMIT);

const path = join(import.meta.dir, "../fixtures/stories260K.gguf");
interface Golden { greedy_ids_after_bos: number[]; greedy_text: string; stories: { text: string; ids: number[]; nll_sum: number; n: number }[] }
const golden = JSON.parse(readFileSync(join(import.meta.dir, "../fixtures/stories260K.json"), "utf8")) as Golden;

/** Mean negative log-likelihood of ids[1...], in nats, in double. */
export function meanNll(logits: Float32Array, ids: readonly number[], vocabulary: number): number {
  let total = 0;
  for (let i = 0; i + 1 < ids.length; i++) {
    const row = logits.subarray(i * vocabulary, (i + 1) * vocabulary), max = row.reduce((a, b) => Math.max(a, b));
    let sum = 0;
    for (const l of row) sum += Math.exp(l - max);
    total += max + Math.log(sum) - row[ids[i + 1]!]!;
  }
  return total / (ids.length - 1);
}

describe("stories260K", () => {
  test("256 greedy ids and their text", async () => {
    using runner = openRunner(path, { outputs: 1, context: 512 });
    expect(await greedy(runner, [1], 256)).toEqual(golden.greedy_ids_after_bos);
    using model = await LocalModel.load(path, { device: { threads: 1, precision: "exact" } });
    expect(model.tokenizer.decode(golden.greedy_ids_after_bos)).toBe(golden.greedy_text);
  });
  test("mean NLL of every story within 1e-3", async () => {
    using runner = openRunner(path, { context: 512 });
    for (const story of golden.stories) {
      const sequence = runner.open(), ids = [1, ...story.ids];
      const found = meanNll(await promptLogits(runner, sequence, ids), ids, runner.config.vocabulary);
      runner.close(sequence);
      expect(Math.abs(found - story.nll_sum / story.n)).toBeLessThan(1e-3);
    }
  });
});
