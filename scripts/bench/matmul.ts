// Cases of matmul and matmul_group: every weight matrix of a layer, and the output matrix. (matmul_glu: glu.ts; experts: moe.ts.)
import { BAO } from "../../src/native/symbols.ts";
import { ALL_ROWS, DECODE_ROWS, plainStep, typesFor, usualType, type BenchCase, type WeightType } from "./case.ts";
import type { BenchModel } from "./models.ts";
import { matrixBytes, type MatrixShape } from "./rig.ts";

function matmul(model: BenchModel, site: string, type: WeightType, rows: number, outputs: number, columns: number, usual = usualType(columns)): BenchCase {
  const shape: MatrixShape = { type, rows: outputs, columns }, bytes = matrixBytes(shape);
  return {
    op: "matmul", model: model.name, site, dtype: type.toLowerCase(), rows, shape: `${outputs} x ${columns}`, step: plainStep(rows),
    bytes: bytes + rows * (columns + outputs) * 4, flops: 2 * rows * outputs * columns, coldBytes: bytes, usual: type === usual,
    prepare(rig) {
      const sets = rig.weights([shape], BAO.USE_MATMUL), x = rig.view(1, columns), dst = rig.view(1, outputs);
      return { copies: sets.length, op: (i) => rig.r.matmul(dst, x, sets[i]![0]!) };
    },
  };
}

function group(model: BenchModel, site: string, type: WeightType, rows: number, widths: readonly number[]): BenchCase {
  const columns = model.hidden, shapes = widths.map((w): MatrixShape => ({ type, rows: w, columns }));
  const bytes = shapes.reduce((sum, s) => sum + matrixBytes(s), 0), outputs = widths.reduce((a, b) => a + b, 0);
  return {
    op: "matmul_group", model: model.name, site, dtype: type.toLowerCase(), rows, shape: `${widths.join(" + ")} x ${columns}`, step: plainStep(rows),
    bytes: bytes + rows * (columns + outputs) * 4, flops: 2 * rows * outputs * columns, coldBytes: bytes, usual: type === usualType(columns),
    prepare(rig) {
      const sets = rig.weights(shapes, BAO.USE_MATMUL), x = rig.view(1, columns), dst = widths.map((w) => rig.view(1, w));
      return { copies: sets.length, op: (i) => rig.r.matmulGroup([dst[0]!, dst[1], dst[2]], x, [sets[i]![0]!, sets[i]![1], sets[i]![2]]) };
    },
  };
}

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [], { hidden, perLayerWidth: p } = model;
  const each = (columns: number, rowCounts: readonly number[], make: (type: WeightType, rows: number) => BenchCase): void => {
    for (const type of typesFor(columns)) for (const rows of rowCounts) out.push(make(type, rows));
  };
  for (const a of model.attention) {
    const q = a.heads * a.headDim, kv = a.kvHeads * a.headDim;
    each(hidden, ALL_ROWS, a.ownsKv
      ? (type, rows) => group(model, `q k${a.kEqualsV ? "" : " v"} ${a.site}`, type, rows, a.kEqualsV ? [q, kv] : [q, kv, kv])
      : (type, rows) => matmul(model, `q ${a.site}`, type, rows, q, hidden));
    // Layers that share KV have the same output matrix as those that own it.
    if (a.ownsKv) each(q, ALL_ROWS, (type, rows) => matmul(model, `attention output ${a.site}`, type, rows, hidden, q));
  }
  for (const f of model.ffns) each(f.width, ALL_ROWS, (type, rows) => matmul(model, `${f.site} down`, type, rows, hidden, f.width));
  if (p > 0) {
    each(hidden, ALL_ROWS, (type, rows) => matmul(model, "per-layer gate", type, rows, p, hidden));
    each(p, ALL_ROWS, (type, rows) => matmul(model, "per-layer projection", type, rows, hidden, p));
    // Files keep this one in the checkpoint's precision.
    each(hidden, ALL_ROWS, (type, rows) => matmul(model, "per-layer inputs", type, rows, p * model.layers, hidden, "BF16"));
  }
  // Only rows whose logits are wanted meet the output matrix; it is tied to the embedding, which Q4_K_M files keep in Q6_K.
  each(hidden, DECODE_ROWS, (type, rows) => matmul(model, "output", type, rows, model.vocabulary, hidden, "Q6_K"));
  return out;
}
