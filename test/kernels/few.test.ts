// Products of 2 to 32 rows where the device chooses the rounding of activations, against exact products: every count of rows about a tile's end, rows of
// weights and of x that end within one, members of several types, experts that many, one or no pairs ask for.
import { describe, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import { activations, allowTime, DTYPES, expectClose, type Outputs, oracle, play, Random, type Rig, type Scenario, subject, TEST_BACKEND } from "./harness.ts";
import { blockOf, dtypeName, outputSizes, type WeightSpec } from "./weights.ts";

allowTime();

// Relative to |x| |w| / sqrt(columns). f16 activations and weights on CUDA: 2^-11 each; int8 activations elsewhere, and of experts.
const BOUND = TEST_BACKEND === "cuda" ? 5e-3 : 8e-2, INT8 = 8e-2;
const EXPERTS = 40;
const ROWS = [2, 3, 8, 9, 16, 17, 25, 32] as const, MOST = 33;
const TYPES = DTYPES.filter((dtype) => dtype !== BAO.F32 && dtype !== BAO.F16 && dtype !== BAO.BF16);

// More rows than a wave of blocks has on a GPU take the plain reference of a CPU minutes, and show nothing there.
const SHAPES = (block: number): readonly (readonly [rows: number, columns: number, gapBytes: number])[] =>
  [[300, Math.max(block, 32), 0], [17, block * Math.ceil(600 / block), 4], ...(TEST_BACKEND === "cuda" ? [[4400, 2048, 16] as const] : [])];

/** In fast precision as the exact reference, and the same bits again. */
function close(scenario: Scenario, bound: number, label: string): void {
  const step = { maxRows: MOST, maxOutputs: MOST }, found = play(subject({ precision: "fast" }), scenario, step);
  expectClose(found, play(oracle("exact"), scenario, step), bound, label, 1);
  expectClose(play(subject({ precision: "fast" }), scenario, step), found, 0, `${label}, again`);
}

/** Each row divided by its size. */
function rowsOf(all: Float32Array, rows: number, sizes: readonly number[], label: string): Outputs {
  const width = all.length / rows;
  return Object.fromEntries(Array.from({ length: rows }, (_, r) => [`${label} row ${r}`, all.slice(r * width, (r + 1) * width).map((v) => v / sizes[r]!)]));
}

describe("few rows", () => {
  for (const dtype of TYPES) {
    test(dtypeName(dtype), () => {
      const block = blockOf(dtype);
      for (const [rows, columns, gapBytes] of SHAPES(block)) {
        const spec: WeightSpec = { dtype, rows, columns }, x = activations(new Random(columns), MOST, columns), sizes = outputSizes(x, spec);
        close((rig) => {
          const w = rig.weight(spec), vx = rig.input(x, 1, columns, { gapBytes }), dst = rig.view(MOST + 1, 1, rows, { gapBytes }), out: Outputs = {};
          rig.stream.record(() => rig.r.matmul(dst, vx, w));
          for (const count of rows > 4000 ? [32] : ROWS) {
            rig.submit({ rows: count, outputs: [] });
            Object.assign(out, rowsOf(rig.f32(dst, count), count, sizes, `${count} rows,`));
          }
          return out;
        }, BOUND, `${dtypeName(dtype)} ${rows} x ${columns}`);
      }
    });
  }

  test("gate and up as two weights or one, with factors; groups of several types", () => {
    for (const dtype of [BAO.Q4_K, BAO.Q6_K, BAO.Q8_0, BAO.IQ4_XS] as const) {
      close((rig) => {
        const columns = 768, x = rig.input(activations(new Random(3), MOST, columns), 1, columns, { gapBytes: 4 }), spec = { dtype, columns };
        const gate = rig.weight({ ...spec, rows: 150 }), up = rig.weight({ ...spec, rows: 150, seed: 2 }), both = rig.weight({ ...spec, rows: 2 * 144, seed: 3 });
        rig.device.k.weightScale(gate.handle, rig.vector(Float32Array.of(0.75)).handle);
        rig.device.k.weightScale(up.handle, rig.vector(Float32Array.of(-1.5)).handle);
        const members = [{ dtype, rows: 500 }, { dtype: BAO.Q8_0, rows: 16 }, { dtype: BAO.Q5_K, rows: 33 }].map((m, i) => rig.weight({ ...m, columns, seed: 5 + i }));
        const two = rig.view(MOST, 1, 150), one = rig.view(MOST, 1, 144, { gapBytes: 4 }), group = [500, 16, 33].map((n) => rig.view(MOST, 1, n)), out: Outputs = {};
        rig.stream.record(() => {
          rig.r.matmulGlu(two, x, gate, up, "gelu");
          rig.r.matmulGlu(one, x, both, undefined, "silu");
          rig.r.matmulGroup([group[0]!, group[1], group[2]], x, [members[0]!, members[1], members[2]]);
        });
        for (const rows of ROWS) {
          rig.submit({ rows, outputs: [] });
          [two, one, ...group].forEach((view, i) => { out[`${rows} rows, ${i}`] = rig.f32(view, rows); });
        }
        return out;
      }, TEST_BACKEND === "cuda" ? BOUND : INT8, dtypeName(dtype));
    }
  });

  for (const [name, idOf] of [["all", () => 3], ["few", (i: number) => i % 7], ["spread", (i: number) => (i * 17) % EXPERTS], ["bad", (i: number) => (i % 5 === 0 ? -1 : i % 11 === 0 ? EXPERTS : i % 3)]] as const) {
    test(`experts that pairs share: ${name}`, () => {
      const k = 4, outputs = 200;
      for (const dtype of [BAO.Q4_K, BAO.Q5_0, BAO.Q8_0, BAO.Q6_K] as const) {
        const columns = blockOf(dtype) === 256 ? 1024 : 704, ids = Int32Array.from({ length: MOST * k }, (_, i) => idOf(i)), spec = { dtype, columns, experts: EXPERTS };
        const body = (op: "glu" | "matmul" | "sum"): Scenario => (rig: Rig) => {
          const slots = op === "glu" ? 1 : k, x = rig.input(activations(new Random(columns), MOST * slots, columns), slots, columns, { gapBytes: 4 }), vi = rig.input(ids, 1, k);
          const w = rig.weight({ ...spec, rows: op === "glu" ? 2 * 192 : outputs }), weights = rig.input(new Random(6).f32(MOST * k), 1, k), out: Outputs = {};
          rig.device.k.weightScale(w.handle, rig.vector(Float32Array.from({ length: EXPERTS }, (_, e) => 1 - e / 20)).handle);
          const dst = op === "sum" ? rig.view(MOST, 1, outputs) : rig.view(MOST, k, op === "glu" ? 192 : outputs, { gapBytes: 8 });
          rig.stream.record(() => {
            if (op === "glu") rig.r.moeMatmulGlu(dst, x, w, undefined, vi, "gelu");
            else if (op === "matmul") rig.r.moeMatmul(dst, x, w, vi);
            else rig.r.moeMatmulSum(dst, x, w, vi, weights);
          });
          for (const rows of ROWS) {
            rig.submit({ rows, outputs: [] });
            Object.assign(out, rowsOf(rig.f32(dst, rows), rows, Array.from({ length: rows }, () => 1), `${rows} rows,`));
          }
          return out;
        };
        for (const op of ["glu", "matmul", "sum"] as const) close(body(op), INT8, `${name} ${dtypeName(dtype)} ${op}`);
      }
    });
  }
});
