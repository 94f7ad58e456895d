// The same request gives the same bits: on every run, on any number of threads, in any batch and in any chunks; each instruction set agrees with
// the plain reference. Played by a small model of all layers' ops, so that no op can hide behind another.
import { describe, expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import type { Device, KvType, Precision } from "../../src/native/objects.ts";
import { allowTime, batchInvariant, difference, expectClose, isas, oracle, type Outputs, play, Random, type Rig, type RowSpec, subject } from "./harness.ts";

allowTime();

const N = 256, HEADS = 4, KV_HEADS = 2, HEAD = 64, F = 320, EXPERTS = 6, K = 2, VOCABULARY = 97, EPS = 1e-6;

/** Records a layer with attention, a dense and an expert branch, twice, and the output matrix. Gives the logits of one step. */
function model(rig: Rig, type: KvType): (rows: readonly RowSpec[], first: boolean) => Float32Array {
  const { r } = rig, most = 48, random = new Random(99);
  const view = (d1: number, d2: number): ReturnType<Rig["view"]> => rig.view(most, d1, d2);
  const [x, h, h1, h2, q, k, v, a, y, z, m] = [view(1, N), view(1, N), view(1, N), view(1, N), view(HEADS, HEAD), view(KV_HEADS, HEAD), view(KV_HEADS, HEAD), view(HEADS, HEAD), view(1, N), view(1, F), view(1, N)];
  const table = view(2, HEAD / 2), ids = rig.view(most, 1, K, { dtype: "i32" }), weights = view(1, K), e = view(K, 64);
  const last = rig.view(most, 1, N, { rowsOf: "output" }), logits = rig.view(most, 1, VOCABULARY, { rowsOf: "output" });
  const w = (dtype: number, rows: number, columns: number, seed: number, experts = 1): ReturnType<Rig["weight"]> => rig.weight({ dtype, rows, columns, seed, experts, scale: 1 / Math.sqrt(columns) });
  const norm = (n = N): ReturnType<Rig["vector"]> => rig.vector(random.f32(n, 0.2).map((g) => 1 + g));
  const embedding = w(BAO.Q6_K, VOCABULARY, N, 1), pool = rig.pool({ layers: 2, kvHeads: KV_HEADS, headDim: HEAD, type, pages: 12 });
  rig.stream.record(() => {
    r.embed(x, embedding, 16);
    r.ropeTable(table, undefined, HEAD, 10_000, 1);
    for (let layer = 0; layer < 2; layer++) {
      r.rmsNorm(h, x, norm(), EPS);
      r.matmulGroup([q, k, v], h, [w(BAO.Q4_K, HEADS * HEAD, N, 2 + layer), w(BAO.Q8_0, KV_HEADS * HEAD, N, 4), w(BAO.Q6_K, KV_HEADS * HEAD, N, 5)]);
      r.headNormRopeAppend(q, k, v, norm(HEAD), norm(HEAD), table, "neox", pool, layer, layer === 1, EPS);
      r.attention(a, q, pool, layer, layer === 0 ? 40 : 0, 1 / 8);
      r.matmul(y, a, w(BAO.Q5_K, N, HEADS * HEAD, 6));
      r.normAddNorms(x, [h, h1, h2], x, y, norm(), [norm(), norm(), norm()], 0.1, EPS, 1);
      r.matmulGlu(z, h, w(BAO.Q4_0, F, N, 7), w(BAO.Q4_0, F, N, 8), "gelu");
      r.matmul(m, z, w(BAO.F16, N, F, 9));
      r.router(ids, weights, h1, w(BAO.F32, EXPERTS, N, 10), true);
      r.moeMatmulGlu(e, h2, w(BAO.Q4_1, 128, N, 11, EXPERTS), undefined, ids, "silu");
      r.moeMatmulSum(y, e, w(BAO.Q8_0, N, 64, 12, EXPERTS), ids, weights);
      r.moeMerge(x, h, x, m, norm(), y, norm(), norm(), norm(), EPS, 0.9);
    }
    r.gatherRows(last, h);
    r.matmul(logits, last, embedding);
    r.softcap(logits, logits, 30);
  });
  const pages = new Random(4).shuffled(12).map((page, i) => [0, i % 4, i >> 2, page] as const);
  return (rows, first) => {
    rig.submit({ rows, ...(first ? { pages } : {}) });
    return rig.f32(logits, rows.length);
  };
}

const TOKENS = 70; // of each sequence, over one page
const tokenOf = (sequence: number, position: number): number => (sequence * 31 + position * 17 + position * position) % VOCABULARY;

/** Runs sequences in interleaved chunks; gives the logits of every position. */
function run(device: Device, type: KvType, sequences: readonly number[], chunk: number): Outputs {
  return play(device, (rig) => {
    const step = model(rig, type), out: Outputs = {};
    let first = true;
    for (let from = 0; from < TOKENS; from += chunk) {
      const rows = sequences.flatMap((sequence) => Array.from({ length: Math.min(chunk, TOKENS - from) }, (_, i) => ({ sequence, position: from + i, id: tokenOf(sequence, from + i) })));
      const logits = step(rows, first);
      first = false;
      rows.forEach((row, i) => { out[`${row.sequence} ${row.position}`] = logits.slice(i * VOCABULARY, (i + 1) * VOCABULARY); });
    }
    return out;
  }, { vocabulary: VOCABULARY, pages: [4] });
}

function expectSameBits(found: Outputs, expected: Outputs, label: string): void {
  for (const [k, v] of Object.entries(found)) expectClose({ [k]: v }, { [k]: expected[k]! }, 0, label);
}

describe("the same bits", () => {
  const settings: readonly (readonly [Precision, KvType])[] = [["exact", "f32"], ["fast", "f16"], ["fast", "q8_0"]];
  for (const [precision, type] of settings) {
    test(`${precision} with a ${type} cache: runs, threads, batches, chunks`, () => {
      for (const isa of isas()) {
        const device = subject({ isa, precision, threads: 1 }), expected = run(device, type, [2], 12);
        expect(Object.values(expected).every((row) => row.every((v) => Number.isFinite(v)))).toBe(true);
        expect(Math.max(...Object.values(expected).flatMap((row) => [...row].map(Math.abs)))).toBeGreaterThan(1);
        expectSameBits(run(device, type, [2], 12), expected, `${isa} again`);
        if (!batchInvariant(device)) continue;
        for (const threads of [2, 3]) expectSameBits(run(subject({ isa, precision, threads }), type, [2], 12), expected, `${isa} on ${threads} threads`);
        for (const chunk of [1, 7, 45]) expectSameBits(run(device, type, [2], chunk), expected, `${isa} in chunks of ${chunk}`);
        const together = run(subject({ isa, precision, threads: 3 }), type, [1, 2, 0, 3], 12);
        expectSameBits(expected, together, `${isa} in a batch of four`);
      }
    });
  }

  // Few rows may be read in another order than many: by type, and where an op's weights differ.
  test("fast: one row, two and five, of weights of every form", () => {
    const columns = 512, most = 5, types: readonly (readonly [gate: number, up: number])[] = [[BAO.Q4_K, BAO.Q4_K], [BAO.Q4_K, BAO.Q6_K], [BAO.Q5_K, BAO.Q8_0], [BAO.Q8_0, BAO.Q4_0], [BAO.F16, BAO.Q6_K], [BAO.Q5_0, BAO.Q5_0]];
    for (const isa of isas()) {
      const device = subject({ isa, precision: "fast", threads: 2 });
      if (!batchInvariant(device)) continue;
      const found = play(device, (rig) => {
        const { r } = rig, x = rig.input(new Random(1).f32(most * columns), 1, columns), ids = rig.input(Int32Array.of(2, 0, 1, 2, 0, 2, 2, 1, 0, 1), 1, 2), weights = rig.input(new Random(2).f32(most * 2), 1, 2);
        const views: ReturnType<Rig["view"]>[] = [], view = (d1: number, d2: number): ReturnType<Rig["view"]> => views[views.push(rig.view(most, d1, d2)) - 1]!;
        const w = (dtype: number, rows: number, experts = 1): ReturnType<Rig["weight"]> => rig.weight({ dtype, rows, columns, experts, seed: rows + dtype });
        rig.stream.record(() => {
          for (const [gate, up] of types) {
            r.matmulGlu(view(1, 72), x, w(gate, 72), w(up, 72), "gelu");
            r.matmulGroup([view(1, 64), view(1, 24), view(1, 20)], x, [w(gate, 64), w(up, 24), w(gate, 20)]);
            r.moeMatmulGlu(view(2, 48), x, w(gate, 48, 3), w(up, 48, 3), ids, "silu");
            r.moeMatmulGlu(view(2, 40), x, w(gate, 80, 3), undefined, ids, "gelu");
            r.moeMatmulSum(view(1, 136), x, w(up, 136, 3), ids, weights);
          }
        });
        const out: Outputs = {};
        for (const rows of [most, 1, 2]) {
          rig.submit({ rows, outputs: [] });
          views.forEach((v, i) => { out[`${rows} rows, output ${i}`] = rig.f32(v, rows); });
        }
        return out;
      }, { maxRows: most });
      for (const [name, values] of Object.entries(found)) expectClose({ [name]: values }, { [name]: found[name.replace(/^\d+/, String(most))]!.slice(0, values.length) }, 0, `${isa}: ${name}`);
    }
  });

  test("in exact precision every instruction set computes what the reference computes", () => {
    const expected = run(oracle(), "f32", [2, 0], 24);
    for (const isa of isas()) {
      const found = run(subject({ isa }), "f32", [2, 0], 24);
      // Two layers of about twenty roundings of 1e-6 each, amplified by the norms between them.
      for (const [k, v] of Object.entries(found)) {
        const d = difference(v, expected[k]!, 2e-4);
        if (d.firstBad >= 0) throw new Error(`${isa}, position ${k}: max rel ${d.maxRel}`);
      }
    }
  });
});
