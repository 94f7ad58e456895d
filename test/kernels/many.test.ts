// Matmuls of 17 to 512 rows, where GPUs use tensor cores: tiles that are not full, columns that end within a step, experts with 0, 1 or many rows.
// Against the plain reference with activations in bf16 (int8 on the CPU).
import { describe, expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import type { Precision } from "../../src/native/objects.ts";
import { activations, allowTime, DTYPES, expectClose, manyRows, ON_CPU, oracle, type Outputs, parity, play, Random, type Rig, type Scenario, subject, TEST_BACKEND } from "./harness.ts";
import { blockOf, dtypeName, outputSizes, type WeightSpec } from "./weights.ts";

allowTime();

const PRECISION: Precision = ON_CPU ? "fast-int8" : "fast-bf16";
// As in matmul.test.ts and moe.test.ts where activations are int8.
const BOUND = manyRows(2e-5, PRECISION, 17);
const STEP = { maxRows: 512, maxOutputs: 512 };
const TYPES = ON_CPU ? [BAO.Q4_K, BAO.Q8_0] : DTYPES.filter((dtype) => dtype !== BAO.F32);

/** Against the reference, in the precision that forces the rounding and in the one that leaves it to the device; and the same bits again. */
function close(scenario: Scenario, label: string, precisions: readonly Precision[] = ON_CPU ? [PRECISION] : [PRECISION, "fast"]): void {
  const expected = play(oracle(PRECISION), scenario, STEP);
  for (const precision of precisions) {
    const device = subject({ precision }), found = play(device, scenario, STEP);
    // Left to it, a GPU rounds up to 32 rows to int8: another rounding than the oracle's.
    expectClose(found, expected, precision === "fast" ? Math.max(BOUND, 8e-2) : BOUND, `${label} in ${precision}`);
    expectClose(play(device, scenario, STEP), found, 0, `${label} in ${precision}, again`);
  }
}

/** Each row of a view divided by its size, under names that tell the row. */
function rowsOf(rig: Rig, view: Parameters<Rig["f32"]>[0], rows: number, sizes: readonly number[], label: string): Outputs {
  const all = rig.f32(view, rows), width = view.d1 * view.d2;
  return Object.fromEntries(Array.from({ length: rows }, (_, r) => [`${label} row ${r}`, all.slice(r * width, (r + 1) * width).map((v) => v / sizes[r]!)]));
}

const columnsOf = (dtype: number): number => blockOf(dtype) === 1 ? 328 : blockOf(dtype) === 32 ? 352 : blockOf(dtype) === 64 ? 320 : 768;

describe("many rows", () => {
  for (const dtype of TYPES) {
    test(`matmul ${dtypeName(dtype)}`, () => {
      for (const content of ["quantised", "blocks"] as const) {
        const spec: WeightSpec = { dtype, rows: 300, columns: columnsOf(dtype), content };
        close((rig) => {
          const x = activations(new Random(dtype), 300, spec.columns), sizes = outputSizes(x, spec);
          const w = rig.weight(spec), vx = rig.input(x, 1, spec.columns, { gapBytes: 16 }), dst = rig.view(301, 1, spec.rows, { offsetBytes: 4, gapBytes: 12 });
          rig.stream.record(() => rig.r.matmul(dst, vx, w));
          const out: Outputs = {};
          for (const rows of ON_CPU ? [17, 130] : [17, 33, 64, 65, 130, 300]) {
            rig.submit({ rows, outputs: [] });
            Object.assign(out, rowsOf(rig, dst, rows, sizes, `${rows} rows,`));
          }
          return out;
        }, `${dtypeName(dtype)} ${content}`);
      }
    });

    test(`experts ${dtypeName(dtype)}`, () => {
      const columns = columnsOf(dtype), k = 2, experts = 5;
      // Expert 1 is never asked for, expert 2 once, expert 3 by half of all pairs; now and then an id that is none.
      const ids = new Random(5).i32(200 * k, 100).map((v, i) => (i === 77 ? 2 : v < 50 ? 3 : v < 75 ? 0 : v < 97 ? 4 : v === 97 ? -1 : v === 98 ? experts : 0x7fffffff));
      for (const op of ["matmul", "glu", "packed", "sum"] as const) {
        close((rig) => {
          const each = op === "sum", slots = each ? k : 1, x = activations(new Random(dtype), 200 * slots, columns), random = new Random(9);
          const gate = rig.weight({ dtype, rows: op === "packed" ? 288 : 144, columns, experts }), up = op === "glu" ? rig.weight({ dtype, rows: 144, columns, experts, seed: 2 }) : undefined;
          rig.device.k.weightScale(gate.handle, rig.vector(Float32Array.of(1, -2, 0.5, 3, 1.25)).handle);
          const vx = rig.input(x, slots, columns, { gapBytes: 4 }), vi = rig.input(ids, 1, k, { gapBytes: 8 }), weights = rig.input(random.f32(200 * k), 1, k);
          const dst = op === "sum" ? rig.view(201, 1, 144) : rig.view(201, k, 144, { offsetBytes: 4, gapBytes: 4 });
          rig.stream.record(() => {
            if (op === "matmul") rig.r.moeMatmul(dst, vx, gate, vi);
            else if (op === "sum") rig.r.moeMatmulSum(dst, vx, gate, vi, weights);
            else rig.r.moeMatmulGlu(dst, vx, gate, up, vi, op === "glu" ? "gelu" : "silu");
          });
          const out: Outputs = {};
          for (const rows of [17, 200]) {
            rig.submit({ rows, outputs: [] });
            Object.assign(out, rowsOf(rig, dst, rows, Array.from({ length: rows }, () => 1), `${rows} rows,`));
            if (op === "sum") continue;
            const all = rig.f32(dst, rows);
            for (let i = 0; i < rows * k; i++) if (ids[i]! < 0 || ids[i]! >= experts) expect(all.subarray(i * 144, (i + 1) * 144).every((v) => v === 0)).toBe(true);
          }
          return out;
        }, `${op} ${dtypeName(dtype)}`);
      }
    });
  }

  test("a group and a gate/up pair of several types, and rows that are fixed or outputs", () => {
    for (const [types, rowsOf] of [[[BAO.Q4_K, BAO.Q4_K, BAO.Q6_K], "step"], [[BAO.Q8_0, BAO.F16], "output"], [[BAO.Q5_K, BAO.BF16, BAO.Q3_K], "fixed"]] as const) {
      close((rig) => {
        const x = rig.input(activations(new Random(3), 70, 512), 2, 256, { rowsOf, gapBytes: 4 }), widths = [272, 16, 33];
        const w = types.map((dtype, i) => rig.weight({ dtype, rows: widths[i]!, columns: 512, seed: i + 1 })), d = types.map((_, i) => rig.view(70, 1, widths[i]!, { rowsOf }));
        const glu = rig.view(70, 1, 33, { rowsOf, gapBytes: 4 }), gate = rig.weight({ dtype: types[0], rows: 33, columns: 512, seed: 8 }), up = rig.weight({ dtype: types[1], rows: 33, columns: 512, seed: 9 });
        const packed = rig.view(70, 1, 144, { rowsOf }), both = rig.weight({ dtype: types[0], rows: 288, columns: 512, seed: 4 });
        const rows = 60, outputs = Array.from({ length: 41 }, (_, i) => i), count = rowsOf === "step" ? rows : rowsOf === "output" ? outputs.length : 70;
        rig.run({ rows, outputs }, (r) => {
          r.matmulGroup([d[0]!, d[1], d[2]], x, [w[0]!, w[1], w[2]]);
          r.matmulGlu(glu, x, gate, up, "gelu");
          r.matmulGlu(packed, x, both, undefined, "silu");
        });
        return { ...Object.fromEntries(d.map((view, i) => [`dst${i}`, rig.f32(view, count)])), glu: rig.f32(glu, count), packed: rig.f32(packed, count) };
      }, `${types.map(dtypeName).join(" ")}, ${rowsOf} rows`);
    }
  });

  test("NaN and infinities stay in their row; rows of 1e6, 1e30, 1e-30 and 1e-40 keep their precision", () => {
    // Metal may flush denormal floats.
    const smallest = TEST_BACKEND === "metal" ? 1e-33 : 1e-40;
    for (const dtype of ON_CPU ? [BAO.Q4_K] : [BAO.F16, BAO.BF16, BAO.Q8_0, BAO.Q4_K, BAO.Q6_K, BAO.MXFP4] as const) {
      const spec: WeightSpec = { dtype, rows: 40, columns: 256 }, x = new Random(9).f32(20 * 256), factors = [1, 1, 1, 1e6, 1e30, 1e-30, smallest, 0];
      for (let r = 0; r < 20; r++) for (let c = 0; c < 256; c++) x[r * 256 + c]! *= factors[r % 8]!;
      x[3] = NaN;
      x[256 + 255] = Infinity;
      const sizes = outputSizes(x, spec);
      let broken: Float32Array[] = [];
      close((rig) => {
        const w = rig.weight(spec), vx = rig.input(x, 1, 256), dst = rig.view(20, 1, 40);
        rig.run({ rows: 20, outputs: [] }, (r) => r.matmul(dst, vx, w));
        const out = rowsOf(rig, dst, 20, sizes, "");
        broken = [" row 0", " row 1"].map((name) => out[name] as Float32Array);
        delete out[" row 0"], delete out[" row 1"];
        return out;
      }, dtypeName(dtype), [PRECISION]);
      for (const row of broken) expect(row.some(Number.isFinite)).toBe(false);
    }
  });

  test("router: pieces of the columns, tiles that are not full, as many experts as a warp ranks", () => {
    for (const [experts, columns, k, most] of [[128, 2816, 8, 300], [5, 36, 2, 70], [256, 132, 32, 130], [60, 1024, 6, 1100]] as const) {
      if (ON_CPU && most > 300) continue;
      for (const renormalise of [true, false]) {
        parity((rig) => {
          const w = rig.weight({ dtype: BAO.F32, rows: experts, columns, scale: 1 / Math.sqrt(columns) }), x = rig.input(new Random(experts).f32(most * columns), 1, columns, { gapBytes: 16 });
          rig.device.k.weightScale(w.handle, rig.vector(Float32Array.of(1.5)).handle);
          const ids = rig.view(most, 1, k, { dtype: "i32" }), weights = rig.view(most, 1, k, { gapBytes: 4 });
          rig.stream.record(() => rig.r.router(ids, weights, x, w, renormalise));
          const out: Outputs = {};
          for (const rows of [17, 64, 65, most]) {
            rig.submit({ rows, outputs: [] });
            out[`${rows} ids`] = rig.i32(ids, rows);
            out[`${rows} weights`] = rig.f32(weights, rows);
          }
          return out;
        }, 2e-5, { step: { maxRows: most, maxOutputs: 1 }, label: `router of ${experts}` });
      }
    }
  });

  // Each block has several units, of any number of steps. The emulated GPU has few multiprocessors, and is slow.
  const EMULATED = Boolean(process.env["BAO_METAL_EMULATOR"]);
  for (const columns of [32, 192, 448]) {
    test.skipIf(ON_CPU)(`more units of work than multiprocessors: ${columns} columns`, () => {
      const spec: WeightSpec = { dtype: BAO.Q8_0, rows: EMULATED ? 1500 : 9000, columns };
      close((rig) => {
        const x = activations(new Random(columns), 512, columns), w = rig.weight(spec), vx = rig.input(x, 1, columns), dst = rig.view(512, 1, spec.rows), out: Outputs = {};
        rig.stream.record(() => rig.r.matmul(dst, vx, w));
        for (const rows of [40, 512]) {
          rig.submit({ rows, outputs: [] });
          out[`${rows} rows`] = rig.f32(dst, rows);
        }
        return out;
      }, `${columns} columns`);
    });
  }

  // Experts with 0 to 200 pairs, ids that are none; gate and up end within a half unit.
  for (const op of ["glu", "sum"] as const) {
    test.skipIf(ON_CPU)(`more units of work than multiprocessors: experts, ${op}`, () => {
      const experts = 64, k = 4, rows = 512, columns = 512, outputs = EMULATED ? 176 : 704, random = new Random(8);
      const ids = random.i32(rows * k, 1000).map((v) => (v < 100 ? 7 : v < 160 ? 9 : v < 990 ? v % 60 : v < 995 ? -1 : experts));
      close((rig) => {
        const gate = rig.weight({ dtype: BAO.Q4_K, rows: outputs, columns, experts }), up = op === "glu" ? rig.weight({ dtype: BAO.Q4_K, rows: outputs, columns, experts, seed: 2 }) : undefined;
        const slots = op === "sum" ? k : 1, vx = rig.input(activations(new Random(4), rows * slots, columns), slots, columns), vi = rig.input(ids, 1, k), weights = rig.input(new Random(5).f32(rows * k), 1, k);
        const dst = rig.view(rows, op === "sum" ? 1 : k, outputs);
        rig.run({ rows, outputs: [] }, (r) => {
          if (op === "sum") r.moeMatmulSum(dst, vx, gate, vi, weights);
          else r.moeMatmulGlu(dst, vx, gate, up, vi, "gelu");
        });
        return rowsOf(rig, dst, rows, Array.from({ length: rows }, () => 1), "");
      }, `experts, ${op}`);
    });
  }

  test("512 rows of several blocks", () => {
    const spec: WeightSpec = { dtype: BAO.Q4_K, rows: ON_CPU ? 96 : 528, columns: 1024 };
    close((rig) => {
      const x = activations(new Random(1), 512, spec.columns), sizes = outputSizes(x, spec), w = rig.weight(spec), vx = rig.input(x, 1, spec.columns), dst = rig.view(512, 1, spec.rows);
      rig.run({ rows: 512, outputs: [] }, (r) => r.matmul(dst, vx, w));
      return rowsOf(rig, dst, 512, sizes, "");
    }, "512 rows");
  });
});
