// Every kind of Gemma 4 against what transformers computed for small random checkpoints (scripts/reference/make.py), in exact precision.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { convertCheckpoint } from "../../src/convert/index.ts";
import { GREEDY, greedy, openRunner, promptLogits, readReference, relativeError, TEST_DEVICE, TIME_LIMIT, type Reference, type RunOptions } from "./reference.ts";

setDefaultTimeout(TIME_LIMIT);

const MODELS = ["dense", "moe", "many-experts", "ple", "wide-heads", "long"] as const;
const fixtures = join(import.meta.dir, "../fixtures/reference");
let folder: string;
const gguf = (model: string, type = "f32"): string => join(folder, `${model}-${type}.gguf`);

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), "bao-reference-"));
  for (const model of MODELS) for (const type of ["f32", "bf16"] as const) await convertCheckpoint({ source: join(fixtures, model), output: gguf(model, type), type });
}, TIME_LIMIT);
afterAll(() => rmSync(folder, { recursive: true, force: true }));

async function logits(model: string, ids: number[], last: number, o: RunOptions = {}, type = "f32"): Promise<Float32Array> {
  using runner = openRunner(gguf(model, type), { chunk: 256, context: ids.length + 64, ...o });
  return await promptLogits(runner, runner.open(), ids, last);
}
const rowsOf = (reference: Reference, length: string): number => reference.tensor(`logits.${length}`).length / 128;
const bytes = (a: Float32Array): Uint8Array => new Uint8Array(a.buffer, a.byteOffset, a.byteLength);
/** Bit for bit on the CPU, whose rows do not depend on their company; elsewhere within rounding. */
const same = (a: Float32Array, b: Float32Array): boolean => (TEST_DEVICE === "cpu" ? Buffer.compare(bytes(a), bytes(b)) === 0 : relativeError(a, b) < 3e-4);

for (const model of MODELS) {
  describe(model, () => {
    const reference = readReference(join(fixtures, model));
    for (const [length, ids] of Object.entries(reference.prompts)) {
      test(`logits of ${length} tokens`, async () => {
        const error = relativeError(await logits(model, ids, rowsOf(reference, length)), reference.tensor(`logits.${length}`));
        expect(error).toBeLessThan(3e-4);
      });
      test(`greedy tokens after ${length}`, async () => {
        using runner = openRunner(gguf(model), { chunk: 256, context: ids.length + 64 });
        expect(await greedy(runner, ids, reference.greedy[length]!.length)).toEqual(reference.greedy[length]!);
      });
    }
    if (model !== "long") {
      test("hidden states of 40 tokens", async () => {
        using runner = openRunner(gguf(model), { keepHidden: true });
        await promptLogits(runner, runner.open(), reference.prompts["40"]!);
        const hidden = runner.hidden(40);
        expect(hidden.length).toBe(runner.config.layers.length + 1);
        hidden.forEach((h, l) => expect(relativeError(h, reference.tensor(`hidden.40.${l}`))).toBeLessThan(3e-4));
      });
    }
    const length = model === "long" ? "1025" : "150", ids = reference.prompts[length]!;
    test("the same bits by any chunk size, token by token, unfused, with 2 threads, as BF16", async () => {
      const expected = await logits(model, ids, 8);
      const variants: RunOptions[] = [{ chunk: 64 }, { chunk: 7 }, { unfused: true }, { threads: 2 }, ...(model === "long" ? [] : [{ chunk: 1 }])];
      for (const o of variants) expect({ o, same: same(await logits(model, ids, 8, o), expected) }).toEqual({ o, same: true });
      expect(same(await logits(model, ids, 8, {}, "bf16"), expected)).toBe(true);
    });
    test("the same bits in a batch with other sequences", async () => {
      const alone = await logits(model, ids.slice(0, 100), 1);
      using runner = openRunner(gguf(model), { chunk: 128, sequences: 3, outputs: 8, context: 256 });
      const [a, b, c] = [runner.open(), runner.open(), runner.open()];
      const other = ids.slice().reverse();
      await runner.run([{ sequence: b, ids: other.slice(0, 30), logits: "last", sampling: GREEDY }, { sequence: c, ids: other.slice(5, 8), logits: "last", sampling: GREEDY }]);
      await runner.run([{ sequence: b, ids: "next", logits: "last", sampling: GREEDY }, { sequence: a, ids: ids.slice(0, 57), logits: "none" }, { sequence: c, ids: other.slice(0, 9), logits: "none" }]);
      const result = await runner.run([{ sequence: c, ids: other.slice(9, 17), logits: "last" }, { sequence: a, ids: ids.slice(57, 100), logits: "last" }, { sequence: b, ids: "next", logits: "last", sampling: GREEDY }]);
      if (result === "cancelled") throw new Error("cancelled");
      expect(same(runner.logits(result[1]!.outputRow, 1), alone)).toBe(true);
    });
    test("the plain reference kernels agree", async () => {
      const plain = await logits(model, ids, 8, { reference: true });
      expect(relativeError(await logits(model, ids, 8), plain)).toBeLessThan(3e-4);
    });
  });
}
