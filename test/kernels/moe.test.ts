// Expert matmuls against the plain reference: repeated, unused and invalid experts, factors, one x for all slots or one each.
import { describe, expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import type { Precision } from "../../src/native/objects.ts";
import { activations, allowTime, DTYPES, FULL, manyRows, ON_CPU, type Outputs, parity, Random, type Scenario } from "./harness.ts";
import { blockOf, dtypeName } from "./weights.ts";

allowTime();

// As for matmul, relative to the row's largest output (2 or more numbers of independent experts); the activation of gate * up and the sum over slots add three roundings of their own.
const SUM = 1e-5, GLU = 2e-5;
const PRECISIONS: readonly Precision[] = ON_CPU ? ["exact", "fast-int8"] : ["exact", "fast-int8", "fast-bf16"];
const ROWS = FULL ? [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33, 64] : [1, 2, 4, 5, 9, 33];

/** The bound for every output of a scenario. */
const bounds = (bound: number, precision: Precision): Record<string, number> =>
  Object.fromEntries(ROWS.flatMap((rows) => Array.from({ length: rows }, (_, r) => [`${rows} rows, row ${r}`, manyRows(bound, precision, rows)])));

interface Case { dtype: number; experts: number; k: number; rows: number; columns: number; each: boolean; factors?: "one" | "each"; content?: "blocks" }

/** Ids by row: random, all the same, one expert never, several invalid ones. */
function expertIds(random: Random, rows: number, k: number, experts: number): Int32Array {
  const ids = random.i32(rows * k, experts);
  for (let r = 0; r < rows; r++) for (let s = 0; s < k; s++) {
    const at = r * k + s;
    if (r % 7 === 1) ids[at] = experts - 1;
    else if (experts > 2 && ids[at] === 1) ids[at] = 0; // expert 1 is never asked for
    if (r % 5 === 3 && s === 0) ids[at] = [-1, experts, 0x7fffffff, -0x80000000][(r / 5 | 0) % 4]!;
  }
  return ids;
}

function scenario(c: Case, op: "matmul" | "glu" | "packed" | "sum"): Scenario {
  return (rig) => {
    const random = new Random(c.experts * 100 + c.k), most = ROWS.at(-1)!;
    const spec = { dtype: c.dtype, columns: c.columns, experts: c.experts, ...(c.content ? { content: c.content } : {}) };
    const w = rig.weight({ ...spec, rows: op === "packed" ? 2 * c.rows : c.rows }), up = op === "glu" ? rig.weight({ ...spec, rows: c.rows, seed: 2 }) : undefined;
    if (c.factors) w.map.device.k.weightScale(w.handle, rig.vector(random.f32(c.factors === "one" ? 1 : c.experts)).handle);
    const each = c.each || op === "sum", slots = each ? c.k : 1;
    const x = rig.input(activations(random, most * slots, c.columns), slots, c.columns, { gapBytes: 4 });
    const ids = rig.input(expertIds(random, most, c.k, c.experts), 1, c.k, { offsetBytes: 4, gapBytes: 8 }), weights = rig.input(random.f32(most * c.k), 1, c.k);
    const dst = op === "sum" ? rig.view(most + 1, 1, c.rows) : rig.view(most + 1, c.k, c.rows, { offsetBytes: 4, gapBytes: 4 });
    rig.stream.record(() => {
      if (op === "matmul") rig.r.moeMatmul(dst, x, w, ids);
      else if (op === "sum") rig.r.moeMatmulSum(dst, x, w, ids, weights);
      else rig.r.moeMatmulGlu(dst, x, w, up, ids, op === "glu" ? "gelu" : "silu");
    });
    const outputs: Outputs = {}, width = dst.d1 * dst.d2;
    for (const rows of ROWS) {
      rig.submit({ rows, outputs: [] });
      const all = rig.f32(dst, rows);
      for (let r = 0; r < rows; r++) outputs[`${rows} rows, row ${r}`] = all.slice(r * width, (r + 1) * width);
      if (op === "sum") continue;
      const list = rig.i32(ids);
      for (let i = 0; i < rows * c.k; i++) if (list[i]! < 0 || list[i]! >= c.experts) expect(all.subarray(i * c.rows, (i + 1) * c.rows).every((v) => v === 0)).toBe(true);
    }
    return outputs;
  };
}

describe("expert matmuls against the reference", () => {
  for (const dtype of DTYPES) {
    test(dtypeName(dtype), () => {
      const columns = Math.max(blockOf(dtype), blockOf(dtype) === 1 ? 37 : 64);
      for (const precision of PRECISIONS) {
        const label = (op: string): string => `${dtypeName(dtype)} ${op} ${precision}`;
        parity(scenario({ dtype, experts: 5, k: 3, rows: 19, columns, each: false, factors: "each" }, "matmul"), bounds(SUM, precision), { precision, label: label("matmul") });
        parity(scenario({ dtype, experts: 5, k: 2, rows: 7, columns: columns * 2, each: true, content: "blocks" }, "matmul"), bounds(SUM, precision), { precision, label: label("matmul, x each") });
        parity(scenario({ dtype, experts: 4, k: 2, rows: 10, columns, each: false }, "glu"), bounds(GLU, precision), { precision, label: label("glu") });
        parity(scenario({ dtype, experts: 3, k: 2, rows: 9, columns, each: false, factors: "one" }, "packed"), bounds(GLU, precision), { precision, label: label("packed glu") });
        parity(scenario({ dtype, experts: 6, k: 4, rows: 21, columns, each: true, factors: "each" }, "sum"), bounds(GLU, precision), { precision, label: label("sum") });
      }
    });
  }

  test("one expert, one slot, one row of output; and 130 experts, 8 slots", () => {
    for (const precision of PRECISIONS) {
      for (const op of ["matmul", "sum"] as const) {
        parity(scenario({ dtype: BAO.Q8_0, experts: 1, k: 1, rows: 1, columns: 32, each: true }, op), bounds(GLU, precision), { precision });
        parity(scenario({ dtype: BAO.Q4_K, experts: 130, k: 8, rows: 3, columns: 256, each: false }, op), bounds(GLU, precision), { precision });
      }
    }
  });

  test("router: logits of a matmul, largest first", () => {
    for (const precision of PRECISIONS) {
      for (const renormalise of [true, false]) {
        parity((rig) => {
          const random = new Random(15), w = rig.weight({ dtype: BAO.F32, rows: 60, columns: 128 });
          const x = rig.input(random.f32(33 * 128), 1, 128), ids = rig.view(34, 1, 6, { dtype: "i32" }), weights = rig.view(34, 1, 6);
          rig.stream.record(() => rig.r.router(ids, weights, x, w, renormalise));
          const outputs: Outputs = {};
          for (const rows of [1, 4, 5, 33]) {
            rig.submit({ rows, outputs: [] });
            outputs[`${rows} ids`] = rig.i32(ids, rows);
            outputs[`${rows} weights`] = rig.f32(weights, rows);
          }
          return outputs;
        }, SUM, { precision });
      }
    }
  });
});
