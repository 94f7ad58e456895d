// Cases of rope_table and rope, for each kind of attention layer.
import { ALL_ROWS, plainStep, type BenchCase } from "./case.ts";
import type { BenchModel } from "./models.ts";

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [];
  for (const a of model.attention) {
    if (!a.ownsKv) continue;
    for (const rows of ALL_ROWS) {
      // At a position where the angles need their range reduced.
      const common = { model: model.name, site: a.site, dtype: "f32", rows, step: { ...plainStep(rows), depth: 4096 }, flops: 0, coldBytes: 0, usual: true } as const;
      out.push({
        ...common, op: "rope_table", shape: `2 x ${a.nRot / 2}`, bytes: rows * a.nRot * 4,
        prepare(rig) {
          const dst = rig.view(2, a.nRot / 2);
          return { copies: 1, op: () => rig.r.ropeTable(dst, undefined, a.nRot, a.ropeBase, 1) };
        },
      }, {
        ...common, op: "rope", shape: `${a.heads} x ${a.headDim}, ${a.nRot} rotate`, bytes: rows * (2 * a.heads * a.headDim + a.nRot) * 4,
        prepare(rig) {
          const table = rig.rotations(a.nRot / 2), x = rig.view(a.heads, a.headDim), dst = rig.view(a.heads, a.headDim);
          return { copies: 1, op: () => rig.r.rope(dst, x, table, "neox") };
        },
      });
    }
  }
  return out;
}
