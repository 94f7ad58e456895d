// Cases of kv_append and head_norm_rope_append: what each layer that owns KV writes, in every KV type.
import type { KvType } from "../../src/native/objects.ts";
import { ALL_ROWS, plainStep, type BenchCase } from "./case.ts";
import type { BenchModel } from "./models.ts";

/** KV types and the bytes of one stored value (q8_0: an f32 scale for 32 values). */
export const KV_TYPES: readonly (readonly [KvType, number])[] = [["f32", 4], ["f16", 2], ["q8_0", 1.125]];

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [];
  for (const a of model.attention) {
    if (!a.ownsKv) continue;
    const { heads, kvHeads, headDim } = a, kv = kvHeads * headDim, q = heads * headDim;
    for (const [type, valueBytes] of KV_TYPES) {
      for (const rows of ALL_ROWS) {
        const common = { model: model.name, site: a.site, dtype: type, rows, step: { ...plainStep(rows), window: 0 }, flops: 0, coldBytes: 0, usual: type === "f16" } as const;
        out.push({
          ...common, op: "kv_append", shape: `2 x ${kvHeads} x ${headDim}`, bytes: rows * 2 * kv * (4 + valueBytes),
          prepare(rig) {
            const pool = rig.pool({ layers: 1, kvHeads, headDim, type }), k = rig.view(kvHeads, headDim), v = rig.view(kvHeads, headDim);
            return { copies: 1, op: () => rig.r.kvAppend(pool, 0, k, v) };
          },
        }, {
          ...common, op: "head_norm_rope_append", shape: `${heads} + 2 x ${kvHeads} x ${headDim}`,
          bytes: rows * ((2 * q + a.nRot + (a.kEqualsV ? 1 : 2) * kv) * 4 + 2 * kv * valueBytes),
          prepare(rig) {
            const pool = rig.pool({ layers: 1, kvHeads, headDim, type }), table = rig.rotations(a.nRot / 2), wq = rig.ones(headDim), wk = rig.ones(headDim);
            const qs = rig.view(heads, headDim), k = rig.view(kvHeads, headDim), v = a.kEqualsV ? undefined : rig.view(kvHeads, headDim);
            return { copies: 1, op: () => rig.r.headNormRopeAppend(qs, k, v, wq, wk, table, "neox", pool, 0, true, model.eps) };
          },
        });
      }
    }
  }
  return out;
}
