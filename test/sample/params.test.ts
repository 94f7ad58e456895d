// Sampling options: defaults, bounds, and that they end up in the step block as they were given.
import { expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import type { StepSlot } from "../../src/native/objects.ts";
import { MAX_BIAS, readResult, resolveSampling, writeSampler, type SamplingOptions } from "../../src/sample/params.ts";

test("defaults, the file's recommendations below the caller's options", () => {
  expect(resolveSampling({ seed: 1 }, 100)).toEqual({ temperature: 0.8, topK: 40, topP: 0.95, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, seed: 1, logitBias: new Map(), logprobs: -1 });
  const s = resolveSampling({ temperature: 0, topK: 0, seed: 5 }, 100, { temperature: 1, topK: 64, topP: 0.9, seed: 9 });
  expect([s.temperature, s.topK, s.topP, s.seed]).toEqual([0, 0, 0.9, 5]);
});

test("without a seed every request has its own, a whole number that survives JSON", () => {
  const seeds = Array.from({ length: 20 }, () => resolveSampling({}, 100).seed);
  expect(new Set(seeds).size).toBe(20);
  expect(seeds.every(Number.isSafeInteger)).toBe(true);
});

test.each<[keyof SamplingOptions, number[]]>([
  ["temperature", [-0.1, 101, NaN, Infinity]], ["topK", [-1, 1.5, NaN]], ["topP", [0, -0.1, 1.1, NaN]], ["minP", [-0.1, 1.1, NaN]], ["repetitionPenalty", [0, -1, NaN, 101]],
  ["presencePenalty", [-101, NaN, Infinity]], ["frequencyPenalty", [101, NaN]], ["seed", [-1, 0.5, 2 ** 53, NaN]], ["logprobs", [21, -2, 1.5, NaN]],
])("%s out of range is named", (name, values) => {
  for (const value of values) {
    expect(() => resolveSampling({ [name]: value }, 100)).toThrow(expect.objectContaining({ name: "UsageError", code: "bad_sampling", message: expect.stringMatching(new RegExp(`${name}.*${String(value).replace(/[.+]/g, ".")}`)) }));
  }
});

test("logit bias: ids of the vocabulary, finite or -Infinity, a bounded number", () => {
  const bias = (...entries: [number, number][]) => () => resolveSampling({ logitBias: new Map(entries) }, 100);
  for (const bad of [bias([100, 1]), bias([-1, 1]), bias([1.5, 1]), bias([3, NaN]), bias([3, Infinity])]) expect(bad).toThrow(expect.objectContaining({ code: "bad_sampling", message: expect.stringContaining("logitBias") }));
  expect(bias([99, -Infinity], [0, 3])).not.toThrow();
  const many = (n: number) => new Map(Array.from({ length: n }, (_, i): [number, number] => [i, 1]));
  expect(() => resolveSampling({ logitBias: many(MAX_BIAS + 1) }, 5000)).toThrow(expect.objectContaining({ code: "bad_sampling" }));
  expect(resolveSampling({ logitBias: many(MAX_BIAS) }, 5000).logitBias.size).toBe(MAX_BIAS);
});

test("a bias that float32 cannot hold is refused here, not by the device in the middle of an answer", () => {
  expect(() => resolveSampling({ logitBias: new Map([[5, 1e39]]) }, 100)).toThrow(expect.objectContaining({ name: "UsageError", code: "bad_sampling", message: expect.stringContaining("1e+39") }));
  expect(() => resolveSampling({ logitBias: new Map([[5, 3e38], [6, -1e39]]) }, 100)).not.toThrow();
});

test("biases that are no Map and numbers that are texts are refused, not left out or guessed", () => {
  for (const logitBias of [{ 5: 1 }, [[5, 1]], "5=1"]) expect(() => resolveSampling({ logitBias } as never, 100)).toThrow(expect.objectContaining({ name: "UsageError", code: "bad_sampling", message: expect.stringContaining("Map") }));
  expect(() => resolveSampling({ logitBias: new Map([[5, "1"]]) } as never, 100)).toThrow(expect.objectContaining({ code: "bad_sampling" }));
  for (const name of ["temperature", "topP", "topK", "seed"]) expect(() => resolveSampling({ [name]: "1" }, 100)).toThrow(expect.objectContaining({ code: "bad_sampling", message: expect.stringContaining(`${name}: expected a number`) }));
});

/** A slot of plain memory. */
function slotOf(outputs: number): StepSlot {
  const sampler = new ArrayBuffer(outputs * BAO.SAMPLER_WORDS * 4), bias = new ArrayBuffer(64 * 8), result = new ArrayBuffer(outputs * BAO.RESULT_WORDS * 4);
  return { sampler: new Int32Array(sampler), samplerF32: new Float32Array(sampler), bias: new Int32Array(bias), biasF32: new Float32Array(bias), result: new Int32Array(result), resultF32: new Float32Array(result) } as unknown as StepSlot;
}

test("a record in the step block: every field, a seed of 53 bits, biases one after another", () => {
  const slot = slotOf(2), seed = 0x1f_ffff_fff0_0001 % Number.MAX_SAFE_INTEGER;
  const s = resolveSampling({ temperature: 0.5, topK: 7, topP: 0.9, minP: 0.1, repetitionPenalty: 1.2, presencePenalty: -1, frequencyPenalty: 2, seed, logprobs: 3, logitBias: new Map([[9, -Infinity], [4, 1.5]]) }, 100);
  expect(writeSampler(slot, 0, resolveSampling({ seed: 1, logitBias: new Map([[2, 1]]) }, 100), 0, true)).toBe(1);
  expect(writeSampler(slot, 1, s, 1, false)).toBe(3);
  const at = BAO.SAMPLER_WORDS, f = slot.samplerF32, i = slot.sampler;
  expect([BAO.SAMPLER_TEMPERATURE, BAO.SAMPLER_TOP_P, BAO.SAMPLER_MIN_P, BAO.SAMPLER_REPETITION, BAO.SAMPLER_PRESENCE, BAO.SAMPLER_FREQUENCY].map((w) => f[at + w])).toEqual([0.5, 0.9, 0.1, 1.2, -1, 2].map(Math.fround));
  expect([i[at + BAO.SAMPLER_TOP_K], i[at + BAO.SAMPLER_TOP_LOGPROBS], i[at + BAO.SAMPLER_BIAS_START], i[at + BAO.SAMPLER_BIAS_COUNT], i[at + BAO.SAMPLER_FLAGS]]).toEqual([7, 3, 1, 2, 0]);
  expect(i[BAO.SAMPLER_FLAGS]).toBe(BAO.SAMPLE_HOLD);
  expect((i[at + BAO.SAMPLER_SEED_LOW]! >>> 0) + (i[at + BAO.SAMPLER_SEED_HIGH]! >>> 0) * 2 ** 32).toBe(seed);
  expect([slot.bias[0], slot.bias[2], slot.biasF32[3], slot.bias[4], slot.biasF32[5]]).toEqual([2, 9, -Infinity, 4, 1.5]);
});

test("a result in the step block", () => {
  const slot = slotOf(2), at = BAO.RESULT_WORDS;
  slot.result[at + BAO.RESULT_ID] = 17;
  slot.result[at + BAO.RESULT_FINITE] = 1;
  slot.resultF32[at + BAO.RESULT_LOGPROB] = -0.5;
  slot.result[at + BAO.RESULT_TOP_COUNT] = 2;
  slot.result.set([17, 3], at + BAO.RESULT_TOP_IDS);
  slot.resultF32.set([-0.5, -1.25], at + BAO.RESULT_TOP_LOGPROBS);
  expect(readResult(slot, 1, false)).toEqual({ id: 17, finite: true });
  expect(readResult(slot, 1, true)).toEqual({ id: 17, finite: true, logprob: -0.5, top: [{ id: 17, logprob: -0.5 }, { id: 3, logprob: -1.25 }] });
  expect(readResult(slot, 0, false)).toEqual({ id: 0, finite: false });
});
