// Cases of the expert ops: router, topk_softmax, moe_matmul, moe_matmul_glu, moe_sum, moe_matmul_sum. Every row picks its experts at random,
// and each copy of the operands holds other picks, so that no expert's weights stay in a cache between two ops.
import { ggmlType } from "../../src/gguf/index.ts";
import { BAO } from "../../src/native/symbols.ts";
import { ALL_ROWS, plainStep, usualType, WEIGHT_TYPES, type BenchCase } from "./case.ts";
import type { BenchModel } from "./models.ts";
import { matrixBytes, type BenchRig, type MatrixShape } from "./rig.ts";

/** ids[row][slot] of one copy: the first `used` of a shuffle of all experts, the shuffle going on over copies and rows until it is used up. */
function picks(rows: number, used: number, experts: number, copies: number): Int32Array[] {
  let s = 88_172_645, left: number[] = [];
  const below = (n: number): number => { s ^= s << 13; s ^= s >>> 17; s ^= s << 5; return (s >>> 0) % n; };
  const refill = (): void => {
    left = Array.from({ length: experts }, (_, i) => i);
    for (let i = experts - 1; i > 0; i--) { const j = below(i + 1); [left[i], left[j]] = [left[j]!, left[i]!]; }
  };
  return Array.from({ length: copies }, () => {
    const ids = new Int32Array(rows * used);
    for (let row = 0; row < rows; row++) {
      // One row alone walks through all experts copy by copy; rows of a batch choose independently, as tokens do.
      if (rows > 1 || left.length < used) refill();
      ids.set(left.splice(0, used), row * used);
    }
    return ids;
  });
}

const distinct = (ids: Int32Array): number => new Set(ids).size;

interface Operands { ids: ReturnType<BenchRig["ints"]>[]; sets: ReturnType<BenchRig["weights"]>; copies: number }

function operands(rig: BenchRig, shapes: readonly MatrixShape[], picked: readonly Int32Array[], used: number): Operands {
  const sets = rig.weights(shapes, BAO.USE_MATMUL), ids = picked.map((p) => rig.ints(p, used));
  // All picks of one set of weights before the next set.
  return { ids, sets, copies: sets.length * ids.length };
}

export function cases(model: BenchModel): BenchCase[] {
  if (!model.moe) return [];
  const out: BenchCase[] = [], { name, hidden } = model, { experts, used, ffn } = model.moe;
  for (const rows of ALL_ROWS) {
    const step = plainStep(rows), common = { model: name, rows, step } as const;
    out.push({
      ...common, op: "topk_softmax", site: "router", dtype: "f32", shape: `${used} of ${experts}`, bytes: rows * (experts + 2 * used) * 4, flops: 0, coldBytes: 0, usual: true,
      prepare(rig) {
        const logits = rig.view(1, experts), ids = rig.ints(new Int32Array(rows * used), used), weights = rig.view(1, used);
        return { copies: 1, op: () => rig.r.topkSoftmax(ids, weights, logits, true) };
      },
    }, {
      ...common, op: "moe_sum", site: "experts", dtype: "f32", shape: `${used} x ${hidden}`, bytes: rows * ((used + 1) * hidden + used) * 4, flops: 0, coldBytes: 0, usual: true,
      prepare(rig) {
        const x = rig.view(used, hidden), weights = rig.view(1, used), dst = rig.view(1, hidden);
        return { copies: 1, op: () => rig.r.moeSum(dst, x, weights) };
      },
    });
    const oneSet = picks(rows, used, experts, rows === 1 ? Math.floor(experts / used) : 4);
    const touched = oneSet.reduce((sum, ids) => sum + distinct(ids), 0) / oneSet.length;
    for (const type of WEIGHT_TYPES) {
      const dtype = type.toLowerCase();
      // Routers stay f32 in files; the other types run, for files that have them.
      const router: MatrixShape = { type, rows: experts, columns: hidden };
      if (hidden % ggmlType(type).blockElements !== 0) continue;
      out.push({
        ...common, op: "router", site: "router", dtype, shape: `${experts} x ${hidden}`, bytes: matrixBytes(router) + rows * (hidden + 2 * used) * 4,
        flops: 2 * rows * experts * hidden, coldBytes: matrixBytes(router), usual: type === "F32",
        prepare(rig) {
          const sets = rig.weights([router], BAO.USE_MATMUL), x = rig.view(1, hidden), ids = rig.ints(new Int32Array(rows * used), used), weights = rig.view(1, used);
          return { copies: sets.length, op: (i) => rig.r.router(ids, weights, x, sets[i]![0]!, true) };
        },
      });
      const up: MatrixShape = { type, rows: ffn, columns: hidden, experts }, down: MatrixShape = { type, rows: hidden, columns: ffn, experts };
      if (ffn % ggmlType(type).blockElements === 0) {
        const bytes = (matrixBytes(down) / experts) * touched, memory = matrixBytes(down);
        for (const op of ["moe_matmul", "moe_matmul_sum"] as const) {
          const outputs = op === "moe_matmul" ? used * hidden : hidden;
          out.push({
            ...common, op, site: "experts down", dtype, shape: `${used} of ${experts} x ${hidden} x ${ffn}`, bytes: bytes + rows * (used * ffn + outputs + 2 * used) * 4,
            flops: 2 * rows * used * ffn * hidden, coldBytes: bytes, memory, usual: type === usualType(ffn),
            prepare(rig) {
              const { ids, sets, copies } = operands(rig, [down], oneSet, used), x = rig.view(used, ffn), weights = rig.view(1, used);
              const dst = op === "moe_matmul" ? rig.view(used, hidden) : rig.view(1, hidden);
              return { copies, op: (i) => {
                const w = sets[Math.floor(i / ids.length)]![0]!, picked = ids[i % ids.length]!;
                if (op === "moe_matmul") rig.r.moeMatmul(dst, x, w, picked); else rig.r.moeMatmulSum(dst, x, w, picked, weights);
              } };
            },
          });
        }
      }
      const bytes = (2 * matrixBytes(up) / experts) * touched;
      out.push({
        ...common, op: "moe_matmul_glu", site: "experts gate up", dtype, shape: `${used} of ${experts} x 2 x ${ffn} x ${hidden}`,
        bytes: bytes + rows * (hidden + used * ffn + used) * 4, flops: 4 * rows * used * ffn * hidden, coldBytes: bytes, memory: 2 * matrixBytes(up), usual: type === usualType(hidden),
        prepare(rig) {
          const { ids, sets, copies } = operands(rig, [up, up], oneSet, used), x = rig.view(1, hidden), dst = rig.view(used, ffn);
          return { copies, op: (i) => rig.r.moeMatmulGlu(dst, x, sets[Math.floor(i / ids.length)]![0]!, sets[Math.floor(i / ids.length)]![1], ids[i % ids.length]!, "gelu") };
        },
      });
    }
  }
  return out;
}
