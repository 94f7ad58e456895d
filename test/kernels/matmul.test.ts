// Matmuls of every weight type, in exact and in fast precision, against the plain reference at the same rounding, and that against double.
import { describe, expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import { Device, type Precision } from "../../src/native/objects.ts";
import { activations, allowTime, difference, DTYPES, FULL, manyRows, ON_CPU, oracle, type Outputs, parity, play, Random, type Scenario } from "./harness.ts";
import { blockOf, dtypeName, outputSizes, weightValues, type WeightSpec } from "./weights.ts";

allowTime();

// Relative to |x| |w| / sqrt(columns), the size of an output that does not cancel (or to the row's largest). Both sides multiply the same rounded values; the reference adds in double, the device in f32 in an order of its
// own: 2^-24 times the root of the number of partial sums, times the cancellation between d * q and the minimum of types that have one.
const SUM = 1e-5;
const ROWS = FULL ? Array.from({ length: 64 }, (_, i) => i + 1) : [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33];
/** bf16 activations: offered by GPUs, and by the reference as their oracle. */
const PRECISIONS: readonly Precision[] = ON_CPU ? ["exact", "fast-int8"] : ["exact", "fast-int8", "fast-bf16"];

/** SUM for every output of `counts`. */
const bounds = (precision: Precision): Record<string, number> =>
  Object.fromEntries(ROWS.flatMap((rows) => Array.from({ length: rows }, (_, r) => [`${rows} rows, row ${r}`, manyRows(SUM, precision, rows)])));

/** One recording, submitted with every row count. */
function counts(spec: WeightSpec, layout: { offsetBytes?: number; gapBytes?: number } = {}, rowCounts: readonly number[] = ROWS): Scenario {
  return (rig) => {
    const most = rowCounts.at(-1)!, w = rig.weight(spec), values = activations(new Random(spec.columns), most, spec.columns);
    const sizes = outputSizes(values, spec), x = rig.input(values, 1, spec.columns, layout), dst = rig.view(most + 1, 1, spec.rows, layout);
    rig.stream.record(() => rig.r.matmul(dst, x, w));
    const outputs: Outputs = {};
    for (const rows of rowCounts) {
      rig.submit({ rows, outputs: [] });
      const all = rig.f32(dst, rows);
      for (let r = 0; r < rows; r++) outputs[`${rows} rows, row ${r}`] = all.slice(r * spec.rows, (r + 1) * spec.rows).map((v) => v / sizes[r]!);
    }
    return outputs;
  };
}

describe("matmul against the reference", () => {
  for (const dtype of DTYPES) {
    for (const precision of PRECISIONS) {
      test(`${dtypeName(dtype)} ${precision}`, () => {
        const block = blockOf(dtype);
        const columns = block === 1 ? [1, 7, 97, 512] : block < 256 ? [block, block * 3, block * 19, 1024, 704] : [256, 768, 1280, 512, 1536];
        columns.forEach((c, i) => {
          const rows = [1, 3, 70, 17, 80][i]!, offset = [0, 16, dtype === BAO.F32 ? 4 : 2, 4][i % 4]!;
          for (const content of ["quantised", "blocks"] as const) {
            const spec = { dtype, rows, columns: c, offset, content, seed: i + 1 };
            parity(counts(spec, [{}, { offsetBytes: 4, gapBytes: 12 }, { offsetBytes: 64, gapBytes: 64 }][i % 3]), bounds(precision), { precision, floor: 1, label: `${dtypeName(dtype)} ${rows} x ${c} ${content} ${precision}` });
          }
        });
      });
    }
  }

  test("factors multiply the output once", () => {
    for (const dtype of [BAO.NVFP4, BAO.Q4_K, BAO.F16] as const) {
      for (const precision of PRECISIONS) {
        const make = (factor: number | undefined): Scenario => (rig) => {
          const w = rig.weight({ dtype, rows: 9, columns: 512 });
          if (factor !== undefined) rig.device.k.weightScale(w.handle, rig.vector(Float32Array.of(factor)).handle);
          const x = rig.input(new Random(4).f32(5 * 512), 1, 512), dst = rig.view(5, 1, 9);
          rig.run({ rows: 5, outputs: [] }, (r) => r.matmul(dst, x, w));
          return { dst: rig.f32(dst) };
        };
        const plain = parity(make(undefined), SUM, { precision }), scaled = parity(make(0.25), SUM, { precision });
        // A power of two: scaling is exact wherever it happens.
        expect(Array.from(scaled["dst"]!, (v) => v * 4)).toEqual(Array.from(plain["dst"]!));
      }
    }
  });

  test("rows of output count, and views wider than a row", () => {
    parity((rig) => {
      const w = rig.weight({ dtype: BAO.Q8_0, rows: 33, columns: 96 }), random = new Random(6);
      const x = rig.input(random.f32(10 * 96), 3, 32, { rowsOf: "output", gapBytes: 4 }), dst = rig.view(10, 3, 11, { rowsOf: "output" });
      rig.run({ rows: 20, outputs: [1, 5, 7, 19] }, (r) => r.matmul(dst, x, w));
      return { dst: rig.f32(dst) };
    }, SUM, { precision: "fast-int8" });
  });

  test("the largest codes and activations: no sum of bytes saturates", () => {
    for (const dtype of DTYPES) {
      if (blockOf(dtype) === 1) continue;
      for (const [rows, outputs] of [[1, 19], [2, 19], [5, 19], [1, 48], [2, 48]] as const) {
        parity((rig) => {
          const w = rig.weight({ dtype, rows: outputs, columns: 512, content: "ones" }), x = new Float32Array(rows * 512).map((_, i) => (i < 512 ? 1 : -1));
          const vx = rig.input(x, 1, 512), dst = rig.view(rows, 1, outputs);
          rig.run({ rows, outputs: [] }, (r) => r.matmul(dst, vx, w));
          return { dst: rig.f32(dst) };
        }, SUM, { precision: "fast-int8", label: `${dtypeName(dtype)}, ${rows} rows, ${outputs} outputs` });
      }
    }
  });

  test("rows of more columns than kernels keep sums of at once", () => {
    for (const [dtype, columns] of [[BAO.Q8_0, 12_384], [BAO.Q4_0, 12_352], [BAO.Q5_0, 25_024], [BAO.Q4_K, 12_800], [BAO.Q5_K, 21_504], [BAO.Q6_K, 12_544]] as const) {
      parity(counts({ dtype, rows: 32, columns }, {}, [1, 2]), bounds("fast-int8"), { precision: "fast-int8", floor: 1, label: `${dtypeName(dtype)} of ${columns} columns` });
    }
  });

  test("NaN and infinities stay in their row, large activations do not overflow", () => {
    for (const precision of PRECISIONS) {
      for (const dtype of [BAO.F32, BAO.F16, BAO.BF16, BAO.Q4_0, BAO.Q8_0, BAO.Q4_K, BAO.Q6_K, BAO.MXFP4] as const) {
        const out = parity((rig) => {
          const w = rig.weight({ dtype, rows: 8, columns: 256 }), x = new Random(9).f32(6 * 256);
          x[0 * 256 + 3] = NaN;
          x[1 * 256 + 255] = Infinity;
          for (let c = 0; c < 256; c++) x[3 * 256 + c]! *= 1e6;
          for (let c = 0; c < 256; c++) x[4 * 256 + c]! *= 1e-30;
          const vx = rig.input(x, 1, 256), dst = rig.view(6, 1, 8), outputs: Outputs = {};
          rig.run({ rows: 6, outputs: [] }, (r) => r.matmul(dst, vx, w));
          for (let r = 0; r < 6; r++) {
            const row = rig.f32(dst).slice(r * 8, r * 8 + 8);
            // An infinity gives infinities in f32 and NaN in int8: not finite in both.
            outputs[`row ${r}`] = r === 1 ? row.map((v) => (Number.isFinite(v) ? v : NaN)) : row;
          }
          rig.submit({ rows: 1, outputs: [] });
          outputs["row 0 alone"] = rig.f32(dst, 1);
          return outputs;
        }, SUM, { precision, label: `${dtypeName(dtype)} ${precision}` });
        expect(out["row 0 alone"]!.every(Number.isNaN)).toBe(true);
        expect(out["row 0"]!.every(Number.isNaN)).toBe(true);
        expect(out["row 1"]!.some(Number.isFinite)).toBe(false);
        for (const r of [2, 3, 4, 5]) expect(out[`row ${r}`]!.every(Number.isFinite)).toBe(true);
      }
    }
  });
});

describe("the reference against definitions in double", () => {
  const rows = 4, columns = 512, outputs = 6;
  const x = activations(new Random(12), rows, columns);
  const product = (w: Float32Array, a: (r: number, c: number) => number): Float64Array => {
    const out = new Float64Array(rows * outputs);
    for (let r = 0; r < rows; r++) for (let j = 0; j < outputs; j++) for (let c = 0; c < columns; c++) out[r * outputs + j]! += w[j * columns + c]! * a(r, c);
    return out;
  };
  const found = (dtype: number, precision: Precision): Float32Array => play(oracle(precision), (rig) => {
    const dst = rig.view(rows, 1, outputs), vx = rig.input(x, 1, columns), w = rig.weight({ dtype, rows: outputs, columns });
    rig.run({ rows, outputs: [] }, (r) => r.matmul(dst, vx, w));
    return { dst: rig.f32(dst) };
  })["dst"] as Float32Array;
  const agree = (a: Float32Array, b: Float64Array, label: string): void => {
    const d = difference(a, b, 2e-7);
    if (d.firstBad >= 0) throw new Error(`${label}: ${d.found} at ${d.firstBad}, expected ${d.expected}`);
  };

  test("exact: f32 activations, for every type", () => {
    for (const dtype of DTYPES) agree(found(dtype, "exact"), product(weightValues({ dtype, rows: outputs, columns }), (r, c) => x[r * columns + c]!), dtypeName(dtype));
  });

  test("int8: scale max|x| / 127 per 32 values, nearest, ties to even; not for F32, F16 and BF16", () => {
    const f = Math.fround, even = (v: number): number => { const n = Math.round(v); return Math.abs(v % 1) === 0.5 && n % 2 !== 0 ? n - 1 : n; };
    const rounded = x.slice();
    for (let b = 0; b < x.length; b += 32) {
      let max = 0;
      for (let i = b; i < b + 32; i++) max = Math.max(max, Math.abs(x[i]!));
      const inverse = max > 0 ? f(127 / max) : 0, d = f(max / 127);
      for (let i = b; i < b + 32; i++) rounded[i] = f(even(f(x[i]! * inverse)) * d);
    }
    for (const dtype of DTYPES) {
      const plain = dtype === BAO.F32 || dtype === BAO.F16 || dtype === BAO.BF16, a = plain ? x : rounded;
      agree(found(dtype, "fast-int8"), product(weightValues({ dtype, rows: outputs, columns }), (r, c) => a[r * columns + c]!), dtypeName(dtype));
    }
  });

  test("bf16: activations to nearest even; not for F32", () => {
    const word = new Uint32Array(x.slice().buffer), out = new Float32Array(new Uint32Array(word.map((u) => ((u + 0x7fff + ((u >>> 16) & 1)) >>> 16 << 16) >>> 0)).buffer);
    for (const dtype of DTYPES) {
      const a = dtype === BAO.F32 ? x : out;
      agree(found(dtype, "fast-bf16"), product(weightValues({ dtype, rows: outputs, columns }), (r, c) => a[r * columns + c]!), dtypeName(dtype));
    }
  });

  test("on the CPU only the reference has bf16 activations", () => {
    expect(() => new Device({ backend: "cpu", threads: 1, precision: "fast-bf16" }).dispose()).toThrow(/bf16|BF16/i);
  });
});
