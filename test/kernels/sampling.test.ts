// Logits to ids: mask, bias, penalties, log-probabilities and the draw against docs/sampling.md in TypeScript. From the logits on every decision is
// an integer's, so ids must be equal on every device and instruction set; only log-probabilities have a tolerance.
import { describe, expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import { Stream, type Device } from "../../src/native/objects.ts";
import { allowTime, fill, isas, oracle, play, playNow, Random, type RowSpec, type SamplerSpec, subject } from "./harness.ts";
import { drawn, massOf, NEUTRAL, philox, processed, type Sampler } from "./sampling_definition.ts";
import { weightValues } from "./weights.ts";

allowTime();

const devices = (): Device[] => [oracle(), ...isas().map((isa) => subject({ isa }))];
const named = (device: Device): string => `${device.backend} ${device.info.isa}`;
/** f32 sums of up to 262,144 exponentials and their log; values of up to 30. */
const LOGPROB = 2e-5;

interface Row {
  logits: Float32Array; sampler?: SamplerSpec; sequence?: number; position?: number; history?: readonly number[];
  mask?: Int32Array; bias?: readonly (readonly [number, number])[];
}
interface Result { id: number; finite: boolean; logprob: number; topIds: number[]; topLogprobs: number[]; logSum: number; words: Int32Array; logits: Float32Array }

/** Runs process, logprobs and sample on rows of one step, each of its own sequence. */
function sampled(device: Device, rows: readonly Row[], withMask = rows.some((r) => r.mask)): Result[] {
  const vocabulary = rows[0]!.logits.length, results: Result[] = [];
  playNow(device, (rig) => {
    const flat = new Float32Array(rows.length * vocabulary), words = Math.ceil(vocabulary / 32), masks = new Int32Array(rows.length * words).fill(-1);
    rows.forEach((row, i) => { flat.set(row.logits, i * vocabulary); if (row.mask) masks.set(row.mask, i * words); });
    const logits = rig.input(flat, 1, vocabulary, { rowsOf: "output", gapBytes: 4 }), mask = withMask ? rig.input(masks, 1, words, { rowsOf: "output" }) : undefined;
    const slot = rig.step.slots[0]!;
    slot.result.fill(0x5a5a5a5a);
    let start = 0;
    const bias = rows.flatMap((row) => row.bias ?? []), samplers = rows.map((row): SamplerSpec => {
      const count = row.bias?.length ?? 0, s: SamplerSpec = { ...row.sampler, bias: [start, count], ...(row.mask ? { mask: true } : {}) };
      start += count;
      return s;
    });
    const specs = rows.map((row, i): RowSpec => ({ sequence: row.sequence ?? i, position: row.position ?? 0, id: 0 }));
    rig.run({
      rows: specs, samplers, bias,
      sequences: specs.map((s, i) => ({ sequence: s.sequence, length: s.position!, next: 0, history: rows[i]!.history ?? [] })),
    }, (r) => { r.logitsProcess(logits, mask); r.logprobs(logits); r.sample(logits); });
    const after = rig.f32(logits);
    rows.forEach((_, i) => {
      const w = slot.result.slice(i * BAO.RESULT_WORDS, (i + 1) * BAO.RESULT_WORDS), g = new Float32Array(w.buffer), n = w[BAO.RESULT_TOP_COUNT]!;
      results.push({
        id: w[BAO.RESULT_ID]!, finite: w[BAO.RESULT_FINITE] === 1, logprob: g[BAO.RESULT_LOGPROB]!, logSum: g[BAO.RESULT_LOG_SUM]!, words: w,
        topIds: [...w.slice(BAO.RESULT_TOP_IDS, BAO.RESULT_TOP_IDS + n)], topLogprobs: [...g.slice(BAO.RESULT_TOP_LOGPROBS, BAO.RESULT_TOP_LOGPROBS + n)],
        logits: after.slice(i * vocabulary, (i + 1) * vocabulary),
      });
    });
    return {};
  }, { vocabulary, maxSequences: 64, maxBias: 256 });
  return results;
}

const spec = (s: Partial<Sampler>): SamplerSpec => ({ ...NEUTRAL, ...s, seed: [...(s.seed ?? NEUTRAL.seed)] });

describe("the definition itself", () => {
  test("Philox4x32-10 gives its authors' known answers", () => {
    const hex = (v: number[]): string[] => v.map((w) => (w >>> 0).toString(16).padStart(8, "0"));
    expect(hex(philox([0, 0, 0, 0], [0, 0]))).toEqual(["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]);
    expect(hex(philox([-1, -1, -1, -1], [-1, -1]))).toEqual(["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]);
    expect(hex(philox([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]))).toEqual(["d16cfe09", "94fdcceb", "5001e420", "24126ea1"]);
  });

  test("mass is exp within 17 units of 2^-30", () => {
    expect(massOf(0)).toBe(1n << 30n);
    for (let d = 0; d > -21; d -= 0.0137) expect(Math.abs(Number(massOf(Math.fround(d))) - Math.exp(Math.fround(d)) * 2 ** 30)).toBeLessThan(17);
    for (const d of [-21, -100, -Infinity, NaN]) expect(massOf(d)).toBe(0n);
  });
});

describe("draw", () => {
  test("temperature 0 and unusable temperatures are argmax, ties to the lower id", () => {
    for (const device of devices()) {
      const rows = [[1, 5, 5, 2], [-1, -3, -1, -1], [0, -0, 0, -0], [-Infinity, -Infinity, 3, 3], [-Infinity, -Infinity, -Infinity, -9]].map((l) => Float32Array.from(l));
      for (const temperature of [0, 1e-45, 1e-40]) expect(sampled(device, rows.map((logits) => ({ logits, sampler: spec({ temperature }) }))).map((r) => r.id)).toEqual([1, 0, 0, 2, 3]);
    }
  });

  test("every combination of cuts draws the id of the definition", () => {
    const cases: { logits: Float32Array; s: Sampler; position: number }[] = [], random = new Random(2024);
    const pick = <T>(...of: T[]): T => of[random.below(of.length)]!;
    const shapes = [[1, 10], [2, 20], [5, 40], [33, 60], [257, 60], [4099, 20]] as const;
    for (const [vocabulary, count] of shapes) {
      for (let i = 0; i < count; i++) {
        const logits = random.f32(vocabulary, pick(0.1, 2, 8)), ties = pick(0, 0, 1);
        if (ties) for (let j = 0; j < vocabulary; j++) logits[j] = Math.round(logits[j]! * 2) / 2;
        if (i % 7 === 3) for (let j = 0; j < vocabulary - 1; j += 2) logits[j] = -Infinity;
        cases.push({ logits, position: pick(0, 1, 77, 262_143), s: {
          ...NEUTRAL, temperature: pick(0.2, 0.7, 1, 1, 2.5), topK: pick(0, 0, 1, 2, 5, 40, 64, vocabulary, vocabulary + 1, 1000),
          topP: pick(1, 1, 0.95, 0.9, 0.5, 0.1, 1e-7, 0.99999), minP: pick(0, 0, 0.05, 0.3, 1, 1e-9), seed: [random.u32() | 0, random.u32() | 0],
        } });
      }
    }
    for (const device of devices()) {
      for (const [vocabulary] of shapes) {
        const mine = cases.filter((c) => c.logits.length === vocabulary);
        const results = sampled(device, mine.map((c) => ({ logits: c.logits, sampler: spec(c.s), position: c.position })));
        mine.forEach((c, i) => {
          const expected = drawn(c.logits, c.s, c.position), { id, finite } = results[i]!;
          if (id !== expected.id || finite !== expected.finite) throw new Error(`${named(device)}: ${JSON.stringify(c.s)} at ${c.position} of ${vocabulary} logits drew ${id} (${finite}), expected ${expected.id} (${expected.finite})`);
        });
      }
    }
  });

  test("a full vocabulary, with and without cuts", () => {
    const random = new Random(9), logits = random.f32(100_003, 3);
    const settings: Sampler[] = [{}, { topK: 64, topP: 0.95 }, { topP: 0.9 }, { minP: 0.02, temperature: 1.3 }, { topK: 3000, topP: 0.8, minP: 0.001 }].map((s, i) => ({ ...NEUTRAL, ...s, seed: [i, 77] }));
    const expected = settings.map((s, i) => drawn(logits, s, i * 100).id);
    for (const device of devices()) expect(sampled(device, settings.map((s, i) => ({ logits, sampler: spec(s), position: i * 100 }))).map((r) => r.id)).toEqual(expected);
  });

  test("thousands of equal logits, and cuts that fall among them", () => {
    const n = 20_011, equal = new Float32Array(n).fill(1.5), steps = Float32Array.from({ length: n }, (_, i) => Math.floor(i * 7919 % n / 9000));
    const settings: Sampler[] = [{ topK: 40 }, { topK: 1024, topP: 0.5 }, { topK: 1025 }, { topP: 0.3 }, { topP: 0.9, minP: 0.5 }, {}, { topK: 9000, topP: 0.999 }].map((s, i) => ({ ...NEUTRAL, ...s, seed: [i, 5] }));
    for (const logits of [equal, steps]) {
      const expected = settings.map((s, i) => drawn(logits, s, i).id);
      for (const device of devices()) expect(sampled(device, settings.map((s, i) => ({ logits, sampler: spec(s), position: i }))).map((r) => r.id)).toEqual(expected);
    }
  });

  test("NaN, +infinity or nothing but -infinity: finite is 0 and the id 0", () => {
    const N = NaN, I = Infinity;
    for (const device of devices()) {
      for (const temperature of [0, 0.8]) {
        const rows = [[1, N, 2, 3, 9], [1, I, 2, 3, 9], [-I, -I, -I, -I, -I], [N, N, N, N, N], [-I, N, -I, -I, -I], [-I, -I, 5, -I, -I]].map((l) => Float32Array.from(l));
        const results = sampled(device, rows.map((logits) => ({ logits, sampler: spec({ temperature, topK: 3, topP: 0.9 }) })));
        expect(results.map((r) => [r.id, r.finite])).toEqual([[0, false], [0, false], [0, false], [0, false], [0, false], [2, true]]);
      }
    }
  });

  test("the same seed and position draw the same id in any slot, sequence and company; other seeds and positions differ", () => {
    const random = new Random(5), logits = random.f32(500, 1), one: Row = { logits, sampler: spec({ seed: [123, 456] }), position: 40 };
    for (const device of devices()) {
      const alone = sampled(device, [one])[0]!.id;
      const others = Array.from({ length: 20 }, (_, i): Row => ({ logits: random.f32(500), sampler: spec({ seed: [i, i], topK: i }), position: i }));
      for (const at of [0, 7, 20]) {
        const rows = others.toSpliced(at, 0, one).map((row, i) => ({ ...row, sequence: 63 - i }));
        expect(sampled(device, rows)[at]!.id).toBe(alone);
      }
      const byPosition = new Set(sampled(device, Array.from({ length: 20 }, (_, i) => ({ ...one, position: i }))).map((r) => r.id));
      const bySeed = new Set(sampled(device, Array.from({ length: 20 }, (_, i) => ({ ...one, sampler: spec({ seed: [0, i] }) }))).map((r) => r.id));
      expect(byPosition.size).toBeGreaterThan(10);
      expect(bySeed.size).toBeGreaterThan(10);
    }
  });

  test("frequencies follow the softmax", () => {
    // 3,840 draws of 6 ids with fixed seeds, so that the outcome is fixed too; 5 degrees of freedom: chi-square is below 20.5 in 999 of 1,000 cases.
    const logits = Float32Array.of(0, 1, -1, 2, 0.5, -20), total = [...logits].reduce((s, l) => s + Math.exp(l), 0);
    for (const device of devices()) {
      const counts = new Float64Array(6);
      for (let batch = 0; batch < 60; batch++) {
        const rows = Array.from({ length: 64 }, (_, i): Row => ({ logits, sampler: spec({ seed: [42, batch] }), position: i * 31 }));
        for (const { id } of sampled(device, rows)) counts[id]!++;
      }
      let chi = 0;
      logits.forEach((l, id) => { const expected = 3840 * Math.exp(l) / total; if (id < 5) chi += (counts[id]! - expected) ** 2 / expected; });
      expect(counts[5]).toBe(0);
      expect(chi).toBeLessThan(20.5);
      expect(chi).toBeGreaterThan(0.2); // nor suspiciously even
    }
  });
});

describe("logits_process", () => {
  test("mask, bias and penalties are the f32 operations of the definition", () => {
    const random = new Random(55), vocabulary = 131;
    const rows = Array.from({ length: 24 }, (_, i): Row & { s: Sampler } => {
      const s: Sampler = { ...NEUTRAL, temperature: 0, repetition: [1, 1.3, 0.7][i % 3]!, presence: [0, 0.5, -0.25][i % 2]!, frequency: [0, 0.1, -0.3, 0.77][i % 4]! };
      const history = Array.from({ length: [0, 1, 7, 63, 64][i % 5]! }, () => random.below(i % 2 ? 5 : vocabulary));
      const mask = random.i32(5, 4294967296), bias = Array.from({ length: i % 4 }, () => [random.below(vocabulary), [1.5, -2.25, -Infinity][random.below(3)]!] as const);
      const logits = random.f32(vocabulary, 4);
      logits[3] = 0;
      return { s, sampler: spec(s), logits, history, bias, ...(i % 3 === 1 ? { mask } : {}) };
    });
    for (const device of devices()) {
      const results = sampled(device, rows);
      rows.forEach((row, i) => {
        const expected = processed(row.logits, row.s, row.history!, row.bias, row.mask);
        expect([...results[i]!.logits]).toEqual([...expected]);
        expect(results[i]!.id).toBe(drawn(expected, row.s, 0).id);
      });
    }
  });

  test("a mask is applied to the rows that ask for it, and needs a mask view", () => {
    const logits = Float32Array.of(1, 2, 3, 4), mask = Int32Array.of(0b0101);
    for (const device of devices()) {
      const [a, b] = sampled(device, [{ logits, sampler: spec({ temperature: 0 }), mask }, { logits, sampler: spec({ temperature: 0 }) }]);
      expect([...a!.logits]).toEqual([1, -Infinity, 3, -Infinity]);
      expect([...b!.logits]).toEqual([...logits]);
      expect([a!.id, b!.id]).toEqual([2, 3]);
      expect(sampled(device, [{ logits, sampler: spec({ temperature: 0 }), mask: Int32Array.of(0) }])[0]).toMatchObject({ id: 0, finite: false });
    }
  });
});

describe("logprobs", () => {
  test("against a softmax in double: sum, drawn id and alternatives", () => {
    const random = new Random(66);
    for (const vocabulary of [1, 3, 20, 21, 1000, 50_021]) {
      const rows = [-1, 0, 1, 5, 20].map((topLogprobs, i): Row => {
        const logits = random.f32(vocabulary, 5);
        if (i % 2) for (let j = 0; j < vocabulary; j++) logits[j] = Math.round(logits[j]!);
        if (i === 4) for (let j = 3; j < vocabulary; j += 2) logits[j] = -Infinity;
        return { logits, sampler: { ...spec({ seed: [i, 3] }), topLogprobs }, position: i };
      });
      for (const device of devices()) {
        sampled(device, rows).forEach((r, i) => {
          const { logits, sampler } = rows[i]!, wanted = sampler!.topLogprobs!;
          if (wanted < 0) {
            for (const word of [BAO.RESULT_LOGPROB, BAO.RESULT_TOP_COUNT, BAO.RESULT_TOP_IDS, BAO.RESULT_TOP_LOGPROBS, BAO.RESULT_LOG_SUM]) expect(r.words[word]).toBe(0x5a5a5a5a);
            return;
          }
          const max = logits.reduce((a, b) => Math.max(a, b));
          let sum = 0;
          for (const l of logits) sum += Math.exp(l - max);
          const logSum = max + Math.log(sum);
          expect(Math.abs(r.logSum - logSum)).toBeLessThan(LOGPROB);
          expect(r.logprob).toBe(Math.fround(logits[r.id]! - r.logSum));
          const order = Array.from(logits, (_, id) => id).filter((id) => logits[id]! > -Infinity).sort((a, b) => logits[b]! - logits[a]! || a - b).slice(0, wanted);
          expect(r.topIds).toEqual(order);
          r.topLogprobs.forEach((p, at) => expect(Math.abs(p - (logits[order[at]!]! - logSum))).toBeLessThan(LOGPROB));
        });
      }
    }
  });

  test("they describe the logits after penalties and before temperature", () => {
    const logits = Float32Array.of(1, 2, 3), s = { ...NEUTRAL, temperature: 0.1, presence: 5 };
    for (const device of devices()) {
      const [r] = sampled(device, [{ logits, sampler: { ...spec(s), topLogprobs: 3 }, history: [2] }]);
      const after = [1, 2, -2], sum = after.reduce((t, l) => t + Math.exp(l), 0);
      expect(r!.topIds).toEqual([1, 0, 2]);
      r!.topLogprobs.forEach((p, i) => expect(Math.abs(p - (after[r!.topIds[i]!]! - Math.log(sum)))).toBeLessThan(LOGPROB));
    }
  });
});

describe("running ahead of the host", () => {
  // The model: logits of the next token = the embedding row of the last one.
  const vocabulary = 61, table = { dtype: BAO.F32, rows: vocabulary, columns: vocabulary, use: BAO.USE_ROWS, scale: 2 };

  /** What the definition gives from `prompt` on: ids at positions prompt.length ... */
  function expectedIds(prompt: readonly number[], s: Sampler, count: number): number[] {
    const rows = weightValues(table), ids: number[] = [], all = [...prompt];
    for (let i = 0; i < count; i++) {
      const logits = rows.slice(all.at(-1)! * vocabulary, (all.at(-1)! + 1) * vocabulary);
      const { id } = drawn(processed(logits, s, all), s, all.length - 1);
      ids.push(id);
      all.push(id);
    }
    return ids;
  }

  test("rows marked -1 continue three sequences through two slots, beyond the 64 ids of the history", () => {
    const settings: Sampler[] = [{ ...NEUTRAL, temperature: 0, repetition: 1.2 }, { ...NEUTRAL, topK: 20, presence: 0.7, frequency: 0.3, seed: [1, 2] }, { ...NEUTRAL, temperature: 1.5, topP: 0.9, repetition: 1.1, seed: [-5, 9] }];
    const prompts = [[3, 1, 4], [15], [9, 2, 6, 5, 35]], order = [4, 0, 2], steps = 80;
    for (const device of devices()) {
      play(device, (rig) => {
        const w = rig.weight(table), x = rig.view(16, 1, vocabulary), logits = rig.view(16, 1, vocabulary, { rowsOf: "output" });
        rig.stream.record(() => { rig.r.embed(x, w, 1); rig.r.gatherRows(logits, x); rig.r.logitsProcess(logits, undefined); rig.r.sample(logits); });
        const got: number[][] = [[], [], []];
        const collect = (slot: number): void => {
          expect(rig.stream.wait(slot, 20_000)).toBe("done");
          order.forEach((_, i) => got[i]!.push(rig.step.slots[slot]!.result[i * BAO.RESULT_WORDS + BAO.RESULT_ID]!));
        };
        const samplers = settings.map(spec);
        fill(rig.step.slots[0]!, {
          rows: order.flatMap((sequence, i) => prompts[i]!.map((id, position) => ({ sequence, position, id }))), outputs: [2, 3, 8], samplers,
          sequences: order.map((sequence, i) => ({ sequence, length: 0, next: 0, history: prompts[i]! })),
        }, vocabulary);
        rig.stream.submit(0);
        for (let step = 1; step < steps; step++) {
          const slot = step % 2;
          fill(rig.step.slots[slot]!, { rows: order.map((sequence) => ({ sequence })), samplers }, vocabulary);
          rig.stream.submit(slot); // before the former step has been waited for
          collect(1 - slot);
        }
        collect((steps - 1) % 2);
        settings.forEach((s, i) => expect(got[i]!).toEqual(expectedIds(prompts[i]!, s, steps)));
        return {};
      }, { vocabulary });
    }
  });

  test("HOLD reports and does not advance; the host's delta resets a sequence", () => {
    for (const device of devices()) {
      play(device, (rig) => {
        const w = rig.weight(table), x = rig.view(4, 1, vocabulary), logits = rig.view(4, 1, vocabulary, { rowsOf: "output" });
        rig.stream.record(() => { rig.r.embed(x, w, 1); rig.r.gatherRows(logits, x); rig.r.sample(logits); });
        const id = (): number => rig.step.slots[0]!.result[BAO.RESULT_ID]!, s = { ...NEUTRAL, seed: [7, 7] as const }, [first, second] = expectedIds([5], s, 2);
        rig.submit({ rows: [{ sequence: 3, position: 0, id: 5 }], samplers: [spec(s)], sequences: [{ sequence: 3, length: 0, next: 5 }] });
        expect(id()).toBe(first!);
        for (let i = 0; i < 3; i++) {
          rig.submit({ rows: [{ sequence: 3 }], samplers: [{ ...spec(s), hold: true }] });
          expect(id()).toBe(second!);
        }
        rig.submit({ rows: [{ sequence: 3 }], samplers: [spec(s)], sequences: [{ sequence: 3, length: 0, next: 5 }] });
        expect(id()).toBe(first!);
        return {};
      }, { vocabulary });
    }
  });

  test("a forward and a sample recording share a serial: deltas are applied once, -1 rows keep what they resolved to", () => {
    for (const device of devices()) {
      play(device, (rig) => {
        const w = rig.weight(table), x = rig.view(4, 1, vocabulary), logits = rig.view(4, 1, vocabulary, { rowsOf: "output" });
        const sample = rig.own(new Stream(device, rig.step));
        rig.stream.record(() => { rig.r.embed(x, w, 1); rig.r.gatherRows(logits, x); });
        sample.record(() => { device.k.logitsProcess(sample.handle, logits.handle, 0); device.k.sample(sample.handle, logits.handle); });
        const s = { ...NEUTRAL, seed: [1, 1] as const, presence: 2 }, got: number[] = [];
        for (let step = 0; step < 6; step++) {
          fill(rig.step.slots[0]!, {
            rows: step ? [{ sequence: 1 }] : [{ sequence: 1, position: 0, id: 8 }], samplers: [spec(s)],
            ...(step ? {} : { sequences: [{ sequence: 1, length: 0, next: 8, history: [8] }] }),
          }, vocabulary);
          rig.resubmit();
          rig.resubmit(sample);
          got.push(rig.step.slots[0]!.result[BAO.RESULT_ID]!);
        }
        expect(got).toEqual(expectedIds([8], s, 6));
        return {};
      }, { vocabulary });
    }
  });
});
