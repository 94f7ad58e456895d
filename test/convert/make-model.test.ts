// Files of a size's exact shape with random weights: the known tensor counts and parameters of the released sizes, blocks of the right scale,
// a vocabulary that loads, and a model that runs through all its layers with finite logits.
import { expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { dummyTokenizer } from "../../src/convert/dummy-tokenizer.ts";
import { expectedTensors } from "../../src/convert/names.ts";
import { RandomBlocks } from "../../src/convert/random.ts";
import { SHAPE_NAMES, shapeConfig, shapeName } from "../../src/convert/shapes.ts";
import { LocalModel } from "../../src/engine/model.ts";
import { ggmlType, openGguf, type GgmlTypeName } from "../../src/gguf/index.ts";
import { openHost } from "../../src/native/library.ts";
import { resolveSampling } from "../../src/sample/params.ts";
import { createTokenizer, tokenizerSource } from "../../src/tokenizer/index.ts";

const script = join(import.meta.dir, "../../scripts/make-model.ts"), demo = join(import.meta.dir, "../../models/demo.gguf");

class Folder implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), "bao-make-model-"));
  make(name: string, ...args: string[]): { code: number; path: string; err: string } {
    const path = join(this.path, name);
    const child = Bun.spawnSync([process.execPath, script, "-o", path, ...args]);
    return { code: child.exitCode, path, err: child.stderr.toString() };
  }
  [Symbol.dispose](): void { rmSync(this.path, { recursive: true }); }
}

test("the five sizes have the tensors and parameters of the released models", () => {
  const facts = SHAPE_NAMES.filter((name) => name !== "demo").map((name) => {
    const tensors = expectedTensors(shapeConfig(name));
    return [name, tensors.length, (tensors.reduce((n, t) => n + t.shape.reduce((a, b) => a * b, 1), 0) / 1e9).toFixed(2)];
  });
  expect(facts).toEqual([["e2b", 541, "4.63"], ["e4b", 666, "7.46"], ["12b", 667, "11.91"], ["26b-a4b", 658, "25.23"], ["31b", 833, "30.70"]]);
});

test("layers of a smaller model keep the pattern, and the last one is global", () => {
  expect(shapeConfig("e2b").layers.flatMap((l, i) => (l.sliding ? [] : [i]))).toEqual([4, 9, 14, 19, 24, 29, 34]);
  expect([shapeConfig("e2b", { layers: 12 }).layers.map((l) => `${l.sliding ? "s" : "g"}${l.ownsKv ? "" : "-"}`).join(" "), shapeConfig("e2b", { layers: 12 }).sharedKvLayers])
    .toEqual(["s s s s g s s s s g s- g-", 2]);
  const three = shapeConfig("26b-a4b", { layers: 3, vocabulary: 512 });
  expect([three.layers.map((l) => l.sliding), three.layers.map((l) => l.kvHeads), three.vocabulary]).toEqual([[true, true, false], [8, 8, 2], 512]);
  expect(() => shapeName("27b")).toThrow("27b is no shape");
  expect(() => shapeConfig("e2b", { layers: 0 })).toThrow("layers");
});

test("the demo shape is the demo model's, type by type", () => {
  using folder = new Folder();
  const made = folder.make("demo.gguf", "--shape", "demo", "--type", "q4_k_m", "--tokenizer", demo);
  expect([made.code, made.err]).toEqual([0, ""]);
  const real = openGguf(demo), ours = openGguf(made.path);
  const list = (file: typeof real): string[] => [...file.tensors.values()].map((t) => `${t.name} ${t.type.name} ${t.shape.join("x")}`).sort();
  expect(list(ours)).toEqual(list(real));
  const keys = [...real.metadata.keys()].filter((k) => k.startsWith("gemma4.") || k.startsWith("tokenizer."));
  expect(keys.map((k) => [k, ours.metadata.get(k)])).toEqual(keys.map((k) => [k, real.metadata.get(k)]));
}, 60_000);

test("random blocks of every type dequantise to the wished deviation, mean 0, and differ from pass to pass", () => {
  const columns = 512, rows = 40, deviation = 1 / Math.sqrt(columns);
  for (const type of ["F32", "F16", "BF16", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"] as GgmlTypeName[]) {
    const { blockBytes, blockElements, id } = ggmlType(type), bytes = (columns / blockElements) * blockBytes * rows;
    const data = new Uint8Array(Buffer.concat([...new RandomBlocks(type, deviation, 7).take(bytes)].map((p) => Buffer.from(p))));
    const values = new Float32Array(columns * rows);
    openHost().dequantize(id, data, data.byteLength, values, values.byteLength, rows, columns);
    let sum = 0, square = 0;
    for (const v of values) { sum += v; square += v * v; }
    const mean = sum / values.length, found = Math.sqrt(square / values.length - mean * mean);
    expect([type, Math.abs(mean) < 0.05 * deviation, found / deviation > 0.95 && found / deviation < 1.05, new Set(values).size > 100]).toEqual([type, true, true, true]);
  }
  const blocks = new RandomBlocks("Q4_K", deviation, 7), first = Buffer.concat([...blocks.take(144 * 64)]);
  const pass = [...blocks.take(144 * 29_123)]; // past the end of the pool
  expect(Buffer.compare(first, pass.at(-1)!.subarray(0, first.length))).not.toBe(0);
  expect(() => new RandomBlocks("IQ2_XXS", 1, 1)).toThrow("IQ2_XXS");
}, 60_000);

test("the same seed gives the same bytes, another seed others; mistakes say what to do", () => {
  using folder = new Folder();
  const small = ["--shape", "demo", "--layers", "3", "--vocab", "320", "--type", "q8_0"];
  const [a, b, c] = [folder.make("a", ...small), folder.make("b", ...small), folder.make("c", ...small, "--seed", "2")].map((m) => Bun.hash(readFileSync(m.path)));
  expect([a === b, a === c]).toEqual([true, false]);
  for (const [args, words] of [
    [["--shape", "e2b", "--type", "q9"], "q9 is no type"], [["--shape", "e5b"], "e5b is no shape"], [["--type", "q8_0"], "--shape"],
    [[...small, "--layers", "x"], "layers"], [[...small, "--tokenizer", "dummy", "--vocab", "100"], "too small"], [[...small, "--tokenizer", demo], "--vocab 4096"],
  ] as [string[], string][]) {
    const made = folder.make("bad", ...args);
    expect([made.code, made.err.includes(words) ? words : made.err]).toEqual([2, words]);
  }
}, 60_000);

test("the dummy vocabulary encodes and decodes text", () => {
  const keys = dummyTokenizer(2000), tokenizer = createTokenizer(tokenizerSource((key) => keys.get(key)));
  const ids = tokenizer.encode("abc de\u00e9!", { bos: true });
  expect([tokenizer.vocabSize, ids[0], tokenizer.decode(ids.slice(1))]).toEqual([2000, 2, "abc de\u00e9!"]);
  expect(ids.length).toBeLessThan(10); // words were merged
  expect([tokenizer.piece(106), tokenizer.piece(105), tokenizer.bosId, tokenizer.eosId]).toEqual(["<turn|>", "<|turn>", 2, 1]);
});

test.each([["e2b", "7", "q4_k_m"], ["demo", "60", "q6_k"], ["demo", "60", "bf16"]])("%s with %s layers in %s gives finite logits", async (shape, layers, type) => {
  using folder = new Folder();
  const made = folder.make("m.gguf", "--shape", shape!, "--type", type!, "--layers", layers!, "--vocab", "512");
  expect([made.code, made.err]).toEqual([0, ""]);
  using model = await LocalModel.load(made.path, { context: 64, warmup: false });
  using session = model.session();
  const sampling = resolveSampling({ temperature: 0, seed: 1, logprobs: 0 }, 512);
  const { drawn } = await session.prefill([2, 300, 17, 4, 99], { sampling });
  const next = await session.next(sampling), logits = model.runner.logits(0, 1);
  expect([drawn!.finite, next.finite, logits.length, logits.every((v) => Math.abs(v) <= 30)]).toEqual([true, true, 512, true]);
  expect(Math.max(...logits) - Math.min(...logits)).toBeGreaterThan(0.5);
}, 60_000);
