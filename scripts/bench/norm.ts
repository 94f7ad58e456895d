// Cases of the norms: rms_norm (rows and heads), norm_add, add_norm, norm_add_norms, moe_merge, ple_combine. Operands stay in caches,
// as they do between the ops of a step.
import { ALL_ROWS, plainStep, type BenchCase } from "./case.ts";
import type { BenchModel } from "./models.ts";
import type { BenchRig, StepShape } from "./rig.ts";

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [], { name, hidden: d, eps } = model;
  for (const rows of ALL_ROWS) {
    const step: StepShape = plainStep(rows);
    // floats: values that one row reads and writes.
    const push = (op: string, site: string, shape: string, floats: number, record: (rig: BenchRig) => () => void): void => {
      out.push({ op, model: name, site, dtype: "f32", rows, shape, step, bytes: rows * floats * 4, flops: 0, coldBytes: 0, usual: true, prepare: (rig) => ({ copies: 1, op: record(rig) }) });
    };
    push("rms_norm", "hidden", `${d}`, 2 * d, (rig) => {
      const x = rig.view(1, d), dst = rig.view(1, d), w = rig.vector(d);
      return () => rig.r.rmsNorm(dst, x, w, eps);
    });
    for (const a of model.attention) {
      if (!a.ownsKv) continue;
      push("rms_norm", `q heads ${a.site}`, `${a.heads} x ${a.headDim}`, 2 * a.heads * a.headDim, (rig) => {
        const x = rig.view(a.heads, a.headDim), w = rig.ones(a.headDim);
        return () => rig.r.rmsNorm(x, x, w, eps);
      });
    }
    push("norm_add", "hidden", `${d}`, 3 * d, (rig) => {
      const x = rig.view(1, d), residual = rig.view(1, d), dst = rig.view(1, d), w = rig.vector(d);
      return () => rig.r.normAdd(dst, residual, x, w, eps);
    });
    push("add_norm", "hidden", `${d}`, 4 * d, (rig) => {
      const x = rig.view(1, d), residual = rig.view(1, d), sum = rig.view(1, d), dst = rig.view(1, d), w = rig.vector(d);
      return () => rig.r.addNorm(sum, dst, residual, x, w, eps);
    });
    const norms = model.moe ? 3 : 1;
    push("norm_add_norms", "hidden", `${d} to ${norms}`, (3 + norms) * d, (rig) => {
      const x = rig.view(1, d), residual = rig.view(1, d), sum = rig.view(1, d), w = rig.vector(d);
      const y = Array.from({ length: norms }, () => rig.view(1, d)), wy = y.map(() => rig.vector(d));
      return () => rig.r.normAddNorms(sum, [y[0]!, y[1], y[2]], residual, x, w, [wy[0]!, wy[1], wy[2]], 1, eps, 1);
    });
    if (model.moe) {
      push("moe_merge", "hidden", `${d}`, 5 * d, (rig) => {
        const [sum, y, residual, a, b] = [0, 1, 2, 3, 4].map(() => rig.view(1, d)), [wa, wb, w, wy] = [0, 1, 2, 3].map(() => rig.vector(d));
        return () => rig.r.moeMerge(sum!, y!, residual!, a!, wa!, b!, wb!, w!, wy!, eps, 1);
      });
    }
    const p = model.perLayerWidth, n = model.layers;
    if (p > 0) {
      push("ple_combine", "per-layer", `${n} x ${p}`, 3 * n * p, (rig) => {
        const projected = rig.view(n, p), token = rig.view(n, p), dst = rig.view(n, p), w = rig.vector(p);
        return () => rig.r.pleCombine(dst, projected, token, w, eps, 1 / Math.sqrt(d), Math.SQRT1_2);
      });
    }
  }
  return out;
}
