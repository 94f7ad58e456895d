// Plain ops against the plain reference: awkward shapes, offsets and strides, each way of counting rows, in place, odd values.
// Tolerances are relative to the largest value of the output: f32 results whose summation order or exp/tanh/sqrt rounding a backend may choose.
import { describe, expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import type { RowsOf, View } from "../../src/native/objects.ts";
import { allowTime, DTYPES, EXACT_BITS, FULL, oracle, type Outputs, parity, play, Random, type Rig, type StepSpec, type ViewSpec } from "./harness.ts";
import { blockOf, dtypeName } from "./weights.ts";

allowTime();

/** One multiplication or addition an element, or a move: IEEE leaves no choice. */
const BITS = EXACT_BITS;
/** A sum of up to 3,000 squares in any order (each partial sum of 8 or more lanes: < 2^-24 * 400), a root, three roundings. */
const NORM = 2e-6;
/** As NORM, on the cancelling sum residual + x * w, and a second norm of it. */
const NORM_TWICE = 6e-6;
/** exp and tanh by polynomials, 4 ulp of a value of at most 1, times x * up. */
const ACTIVATION = 2e-6;

const SHAPES: readonly (readonly [rows: number, d1: number, d2: number])[] = [
  [1, 1, 1], [2, 1, 2], [3, 2, 7], [5, 3, 31], [9, 1, 64], [17, 2, 65], [33, 1, 257], [4, 8, 256], [1, 1, 1536], [6, 1, 2816], [2, 1, 5376], [6, 1, 2817], [64, 1, 15],
  ...(FULL ? [[63, 5, 129], [31, 16, 512], [2, 1, 12289]] as const : []),
];
const LAYOUTS: readonly ViewSpec[] = [{}, { offsetBytes: 4, gapBytes: 12 }, { offsetBytes: 128, gapBytes: 4 }, { offsetBytes: 20, gapBytes: 64 }, { offsetBytes: 16, gapBytes: 32 }];

interface Shape { rows: number; d1: number; d2: number; rowsOf: RowsOf; layout: ViewSpec; random: Random }
interface Op {
  tolerance: number;
  /** Makes inputs and destinations, gives what to record and which views to compare. */
  make(rig: Rig, s: Shape): { record(): void; read: Record<string, View> };
}

// Capacity beyond the counted rows: those rows must keep what they held.
const SPARE = 2;

function operands(rig: Rig, s: Shape): { input(scale?: number, d1?: number, d2?: number): View; output(d1?: number, d2?: number, dtype?: "f32" | "i32"): View; vector(n?: number): ReturnType<Rig["vector"]> } {
  const spec = { ...s.layout, rowsOf: s.rowsOf }, spare = s.rowsOf === "fixed" ? 0 : SPARE;
  return {
    input: (scale = 1, d1 = s.d1, d2 = s.d2) => rig.input(s.random.f32((s.rows + spare) * d1 * d2, scale), d1, d2, spec),
    output: (d1 = s.d1, d2 = s.d2, dtype = "f32") => rig.view(s.rows + spare, d1, d2, { ...spec, dtype }),
    vector: (n = s.d2) => rig.vector(s.random.f32(n)),
  };
}

const OPS: Record<string, Op> = {
  rms_norm: { tolerance: NORM, make(rig, s) {
    const o = operands(rig, s), x = o.input(), dst = o.output(), w = o.vector();
    return { record: () => rig.r.rmsNorm(dst, x, w, 1e-6, 0.75), read: { dst } };
  } },
  "rms_norm without weight, in place": { tolerance: NORM, make(rig, s) {
    const x = operands(rig, s).input(3);
    return { record: () => rig.r.rmsNorm(x, x, undefined, 1e-5), read: { x } };
  } },
  norm_add: { tolerance: NORM_TWICE, make(rig, s) {
    const o = operands(rig, s), residual = o.input(), x = o.input(), dst = o.output(), w = o.vector();
    return { record: () => rig.r.normAdd(dst, residual, x, w, 1e-6, 1.25), read: { dst } };
  } },
  "norm_add in place on residual, then on x": { tolerance: NORM_TWICE, make(rig, s) {
    const o = operands(rig, s), residual = o.input(), x = o.input(), w = o.vector();
    return { record: () => { rig.r.normAdd(residual, residual, x, w, 1e-6, 0.5); rig.r.normAdd(x, residual, x, w, 1e-6); }, read: { residual, x } };
  } },
  add_norm: { tolerance: NORM, make(rig, s) {
    const o = operands(rig, s), residual = o.input(), x = o.input(), sum = o.output(), dst = o.output(), w = o.vector();
    return { record: () => rig.r.addNorm(sum, dst, residual, x, w, 1e-6), read: { sum, dst } };
  } },
  "add_norm with sum = residual": { tolerance: NORM, make(rig, s) {
    const o = operands(rig, s), residual = o.input(), x = o.input(), dst = o.output(), w = o.vector();
    return { record: () => rig.r.addNorm(residual, dst, residual, x, w, 1e-6), read: { residual, dst } };
  } },
  "glu gelu": { tolerance: ACTIVATION, make(rig, s) {
    const o = operands(rig, s), gate = o.input(3), up = o.input(), dst = o.output();
    return { record: () => rig.r.glu(dst, gate, up, "gelu"), read: { dst } };
  } },
  "glu silu, in place on gate": { tolerance: ACTIVATION, make(rig, s) {
    const o = operands(rig, s), gate = o.input(8), up = o.input();
    return { record: () => rig.r.glu(gate, gate, up, "silu"), read: { gate } };
  } },
  "glu packed": { tolerance: ACTIVATION, make(rig, s) {
    const o = operands(rig, s), gate = o.input(4, s.d1, 2 * s.d2), dst = o.output();
    return { record: () => rig.r.glu(dst, gate, undefined, "gelu"), read: { dst } };
  } },
  add: { tolerance: BITS, make(rig, s) {
    const o = operands(rig, s), a = o.input(), b = o.input(), dst = o.output();
    return { record: () => { rig.r.add(dst, a, b); rig.r.add(a, a, b); rig.r.add(b, b, b); }, read: { dst, a, b } };
  } },
  scale: { tolerance: BITS, make(rig, s) {
    const o = operands(rig, s), x = o.input(), dst = o.output();
    return { record: () => { rig.r.scale(dst, x, 55.4256); rig.r.scale(x, x, -0.1); }, read: { dst, x } };
  } },
  softcap: { tolerance: ACTIVATION, make(rig, s) {
    const o = operands(rig, s), x = o.input(40), dst = o.output();
    return { record: () => { rig.r.softcap(dst, x, 30); rig.r.softcap(x, x, 50); }, read: { dst, x } };
  } },
  copy: { tolerance: BITS, make(rig, s) {
    const o = operands(rig, s), x = o.input(), dst = o.output();
    return { record: () => rig.r.copy(dst, x), read: { dst } };
  } },
  argmax: { tolerance: BITS, make(rig, s) {
    const o = operands(rig, s), x = o.input(), dst = o.output(1, 1, "i32");
    return { record: () => rig.device.k.argmax(rig.stream.handle, dst.handle, x.handle), read: { dst } };
  } },
  ple_combine: { tolerance: NORM_TWICE, make(rig, s) {
    const o = operands(rig, s), projected = o.input(), token = o.input(), dst = o.output(), w = o.vector();
    return { record: () => rig.r.pleCombine(dst, projected, token, w, 1e-6, 0.03125, 0.70710678), read: { dst } };
  } },
  moe_sum: { tolerance: 1e-6 /* at most 8 products */, make(rig, s) {
    const o = operands(rig, s), x = o.input(), weights = o.input(1, 1, s.d1), dst = o.output(1, s.d2);
    return { record: () => rig.r.moeSum(dst, x, weights), read: { dst } };
  } },
};

/** The step that counts `rows` rows in the given way; OUTPUT rows are every second row of twice as many. */
function stepOf(rows: number, rowsOf: RowsOf): StepSpec {
  if (rowsOf === "step") return { rows, outputs: [] };
  if (rowsOf === "fixed") return { rows: 1, outputs: [] };
  return { rows: rows + 3, outputs: Array.from({ length: rows }, (_, i) => i + (i >= rows / 2 ? 3 : 0)) };
}

const read = (rig: Rig, views: Record<string, View>): Outputs =>
  Object.fromEntries(Object.entries(views).map(([name, view]) => [name, view.dtype === "i32" ? rig.i32(view) : rig.f32(view)]));

describe("plain ops against the reference", () => {
  for (const [name, op] of Object.entries(OPS)) {
    test(name, () => {
      SHAPES.forEach(([rows, d1, d2], i) => {
        const rowsOf = (["step", "output", "fixed"] as const)[i % 3]!;
        parity((rig) => {
          const made = op.make(rig, { rows, d1, d2, rowsOf, layout: LAYOUTS[i % LAYOUTS.length]!, random: new Random(i * 31 + 7) });
          rig.run(stepOf(rows, rowsOf), () => made.record());
          return read(rig, made.read);
        }, op.tolerance, { label: `${name} [${rows}, ${d1}, ${d2}] ${rowsOf}`, step: { maxRows: 80, maxOutputs: 80 } });
      });
    });
  }

  test("an empty step changes nothing", () => {
    parity((rig) => {
      const outputs: Record<string, View> = {};
      const made = Object.entries(OPS).map(([name, op], i) => {
        const one = op.make(rig, { rows: 3, d1: 2, d2: 16, rowsOf: "step", layout: {}, random: new Random(i) });
        for (const [k, view] of Object.entries(one.read)) outputs[`${name}.${k}`] = view;
        return one;
      });
      const before = read(rig, outputs);
      rig.run({ rows: 0 }, () => made.forEach((m) => m.record()));
      const after = read(rig, outputs);
      expect(after).toEqual(before);
      return after;
    }, BITS);
  });

  test("NaN, infinities and values beyond 65504 stay in their rows", () => {
    const odd = [NaN, Infinity, -Infinity, 3e5, -1e9, 1e-30, 0, -0];
    const rows = odd.length + 2, d2 = 37;
    for (const [name, op] of Object.entries(OPS)) {
      if (name === "argmax") continue; // its own test
      parity((rig) => {
        const random = new Random(5);
        const plain = random.f32.bind(random);
        // The first value of row r of every input is odd[r]; the last rows are ordinary.
        random.f32 = (n, scale) => {
          const out = plain(n, scale), row = n / (rows + SPARE);
          if (Number.isInteger(row)) odd.forEach((v, r) => { out[r * row] = v; });
          return out;
        };
        const made = op.make(rig, { rows, d1: 1, d2, rowsOf: "step", layout: {}, random });
        rig.run({ rows, outputs: [] }, () => made.record());
        const out: Outputs = {};
        // Row by row, because the tolerance is relative to the largest value.
        for (const [k, view] of Object.entries(made.read)) {
          const all = rig.f32(view), width = view.d1 * view.d2;
          for (let r = 0; r < rows; r++) out[`${k} row ${r}`] = all.slice(r * width, (r + 1) * width);
          expect(all.subarray(odd.length * width, rows * width).every(Number.isFinite)).toBe(true);
        }
        return out;
      }, op.tolerance, { label: name });
    }
  });
});

describe("argmax", () => {
  test("ties to the lower id, NaN is the smallest, all NaN gives 0", () => {
    const N = NaN, I = Infinity;
    const rows = [[1, 3, 3, 2, 3], [N, -5, N, -5, -9], [N, N, N, N, N], [-I, -I, -I, N, -I], [I, I, N, 1, I], [-0, 0, 0, -0, 0], [0, -0, 1e-45, 0, 0], [-3, -2, -1, -2, -1]];
    const out = parity((rig) => {
      const x = rig.input(Float32Array.from(rows.flat()), 1, 5), dst = rig.view(rows.length, 1, 1, { dtype: "i32" });
      rig.run({ rows: rows.length, outputs: [] }, () => rig.device.k.argmax(rig.stream.handle, dst.handle, x.handle));
      return { dst: rig.i32(dst) };
    }, BITS);
    expect([...out["dst"]!]).toEqual([1, 1, 0, 0, 0, 0, 2, 2]);
  });

  test("a vocabulary of 262,144 with the largest value at each end", () => {
    const n = 262_144;
    const out = parity((rig) => {
      const random = new Random(3), values = random.f32(3 * n);
      values[0] = 9; values[n - 1] = 9; values[2 * n - 1] = 9; values[2 * n + 77_777] = 9;
      const x = rig.input(values, 1, n), dst = rig.view(3, 1, 1, { dtype: "i32" });
      rig.run({ rows: 3, outputs: [] }, () => rig.device.k.argmax(rig.stream.handle, dst.handle, x.handle));
      return { dst: rig.i32(dst) };
    }, BITS);
    expect([...out["dst"]!]).toEqual([0, n - 1, 77_777]);
  });
});

describe("rows", () => {
  test("gather_rows takes the output rows of step rows", () => {
    for (const [d1, d2, layout] of [[1, 1, {}], [3, 33, LAYOUTS[1]!], [1, 1536, LAYOUTS[3]!]] as const) {
      parity((rig) => {
        const random = new Random(d2), x = rig.input(random.f32(33 * d1 * d2), d1, d2, layout), dst = rig.view(33, d1, d2, { ...layout, rowsOf: "output" });
        const outputs: Outputs = {};
        rig.stream.record(() => rig.r.gatherRows(dst, x));
        for (const [i, picked] of [[0], [32], [0, 5, 6, 31], Array.from({ length: 33 }, (_, r) => r), []].entries()) {
          rig.submit({ rows: 33, outputs: picked });
          outputs[`${i}`] = rig.f32(dst);
          picked.forEach((row, o) => expect(outputs[`${i}`]!.slice(o * d1 * d2, (o + 1) * d1 * d2)).toEqual(rig.f32(x).slice(row * d1 * d2, (row + 1) * d1 * d2)));
        }
        return outputs;
      }, BITS);
    }
  });

  test("pool_rows sums rows of each sequence, and starts again at position 0", () => {
    parity((rig) => {
      const random = new Random(8), n = 65, x = rig.input(random.f32(12 * n), 1, n), dst = rig.view(8, 1, n, { rowsOf: "fixed", gapBytes: 8 });
      rig.stream.record(() => rig.device.k.poolRows(rig.stream.handle, dst.handle, x.handle));
      const row = (sequence: number, position: number): { sequence: number; position: number; id: number } => ({ sequence, position, id: 1 });
      rig.submit({ rows: [row(3, 0), row(3, 1), row(3, 2), row(0, 0), row(7, 0), row(7, 1)], outputs: [] });
      const first = rig.f32(dst);
      rig.submit({ rows: [row(7, 2), row(3, 3), row(3, 4), row(0, 0)], outputs: [] });
      const second = rig.f32(dst);
      const at = (r: number, i: number): number => rig.f32(x)[r * n + i]!;
      // Sequence 3 holds rows 0, 1, 2 of the first step plus rows 1, 2 of the second; ascending order, so the bits are known.
      for (let i = 0; i < n; i++) {
        const f = Math.fround;
        expect(second[3 * n + i]).toBe(f(f(f(f(at(0, i) + at(1, i)) + at(2, i)) + at(1, i)) + at(2, i)));
        expect(second[i]).toBe(at(3, i));
      }
      return { first, second };
    }, BITS);
  });

  test("embed looks up each type's rows", () => {
    for (const dtype of DTYPES) {
      const block = blockOf(dtype);
      for (const [columns, offset] of block === 1 ? [[1, 0], [97, 6], [256, 16]] as const : [[block, 0], [block * 3, 2], [1024, 64]] as const) {
        for (const content of ["quantised", "blocks"] as const) {
          parity((rig) => {
            const w = rig.weight({ dtype, rows: 97, columns, use: BAO.USE_ROWS, offset: dtype === BAO.F32 ? offset & ~3 : offset, content, seed: columns });
            const dst = rig.view(11, 1, columns, { offsetBytes: 4, gapBytes: 4 });
            const ids = [0, 96, 1, 95, 50, 96, 0, 33, 64];
            rig.run({ rows: ids.map((id, position) => ({ sequence: 2, id, position })), outputs: [] }, (r) => r.embed(dst, w, 11.3137085));
            return { dst: rig.f32(dst) };
          }, BITS, { label: `embed ${dtypeName(dtype)} x ${columns} at ${offset} ${content}` });
        }
      }
    }
  });
});

describe("rope", () => {
  const positions = (list: readonly number[]): StepSpec => ({ rows: list.map((position, sequence) => ({ sequence, position, id: 0 })), outputs: [] });

  test("rope_table against the definition in double", () => {
    const f = Math.fround, list = [0, 1, 63, 64, 8193, 131_071, 262_143, 16_777_215];
    for (const [nRot, base, freqScale, scaled] of [[2, 10_000, 1, false], [64, 10_000, 1, false], [128, 1_000_000, 0.125, false], [256, 10_000, 1, true], [96, 500_000, 1, true]] as const) {
      const half = nRot / 2;
      const out = parity((rig) => {
        const factors = scaled ? rig.vector(Float32Array.from({ length: half }, (_, i) => (i < half / 4 ? 1 : i === half - 1 ? 1e30 : 1 + i / 3))) : undefined;
        const dst = rig.view(list.length + 1, 2, half, { offsetBytes: 4, gapBytes: 8 });
        rig.run(positions(list), (r) => r.ropeTable(dst, factors, nRot, base, freqScale));
        return { dst: rig.f32(dst, list.length) };
      }, 3e-7 /* 2 ulp of a value of at most 1 */, { label: `rope_table ${nRot} ${base}`, step: { maxSequences: 16 } })["dst"]!;
      for (const [r, position] of list.entries()) {
        for (let i = 0; i < half; i++) {
          let inverse = f(1 / f(base ** f(2 * i / nRot)));
          if (scaled) inverse = f(inverse / f(i < half / 4 ? 1 : i === half - 1 ? 1e30 : 1 + i / 3));
          const angle = f(f(position) * f(inverse * freqScale));
          expect(Math.abs(out[(r * 2) * half + i]! - Math.cos(angle))).toBeLessThan(3e-7);
          expect(Math.abs(out[(r * 2 + 1) * half + i]! - Math.sin(angle))).toBeLessThan(3e-7);
        }
      }
    }
  });

  test("rope rotates both pairings, part of the head and in place", () => {
    for (const mode of ["neox", "interleaved"] as const) {
      for (const [rows, heads, headDim, nRot] of [[1, 1, 2, 2], [3, 2, 16, 16], [7, 5, 64, 32], [9, 3, 80, 20], [5, 4, 256, 256], [17, 1, 512, 128], [2, 3, 33, 10]] as const) {
        const layout = LAYOUTS[rows % LAYOUTS.length]!;
        parity((rig) => {
          const random = new Random(headDim + nRot), x = rig.input(random.f32((rows + 1) * heads * headDim), heads, headDim, layout);
          const table = rig.input(random.f32((rows + 1) * nRot), 2, nRot / 2), dst = rig.view(rows + 1, heads, headDim, layout);
          rig.run({ rows, outputs: [] }, (r) => { r.rope(dst, x, table, mode); r.rope(x, x, table, mode); });
          expect(rig.f32(dst, rows)).toEqual(rig.f32(x, rows));
          return { dst: rig.f32(dst), x: rig.f32(x) };
        }, 2e-7 /* two products and a sum, fused or not */, { label: `rope ${mode} [${rows}, ${heads}, ${headDim}] of ${nRot}` });
      }
    }
  });
});

describe("topk_softmax", () => {
  test("largest first, ties to the lower id, with and without renormalisation", () => {
    for (const [rows, experts, k] of [[1, 1, 1], [3, 2, 2], [9, 8, 2], [17, 128, 8], [5, 60, 4], [2, 1024, 32], [33, 37, 5]] as const) {
      for (const renormalise of [true, false]) {
        parity((rig) => {
          const random = new Random(experts), logits = random.f32(rows * experts, 2);
          for (let i = 0; i < logits.length; i += 3) logits[i] = Math.round(logits[i]!); // many ties
          const x = rig.input(logits, 1, experts, LAYOUTS[1]), ids = rig.view(rows + 1, 1, k, { dtype: "i32" }), weights = rig.view(rows + 1, 1, k, { gapBytes: 4 });
          rig.run({ rows, outputs: [] }, (r) => r.topkSoftmax(ids, weights, x, renormalise));
          return { ids: rig.i32(ids), weights: rig.f32(weights) };
        }, { weights: 1e-6 /* exp and a sum of positive terms */, ids: BITS }, { label: `topk ${experts} choose ${k}` });
      }
    }
  });

  test("NaN ranks smallest, and the ids are distinct all the same", () => {
    const N = NaN, rows = [[N, 1, N, 0], [N, N, N, N], [-Infinity, N, -Infinity, -Infinity], [2, 2, 2, 2]];
    const out = parity((rig) => {
      const x = rig.input(Float32Array.from(rows.flat()), 1, 4), ids = rig.view(4, 1, 3, { dtype: "i32" }), weights = rig.view(4, 1, 3);
      rig.run({ rows: 4, outputs: [] }, (r) => r.topkSoftmax(ids, weights, x, true));
      return { ids: rig.i32(ids) };
    }, BITS);
    const ids = [...out["ids"]!];
    expect(ids.slice(0, 3)).toEqual([1, 3, 0]);
    expect(ids.slice(3, 6)).toEqual([0, 1, 2]);
    expect(ids.slice(6, 9)).toEqual([0, 2, 3]);
    expect(ids.slice(9, 12)).toEqual([0, 1, 2]);
  });
});
