// Cases of attention: decode rows at some depth of context, and prefill chunks. Layers of the pool rotate, so that K and V come from memory.
import { ALL_ROWS, PREFILL_ROWS, type BenchCase } from "./case.ts";
import { KV_TYPES } from "./kv.ts";
import { cold } from "./memory.ts";
import type { AttentionShape, BenchModel } from "./models.ts";

const DEPTHS = [512, 4096, 32_768] as const;
const MAX_LAYERS = 64;

/** Visible positions, summed over the rows, and how many of them are distinct within a sequence. */
function visible(a: AttentionShape, rows: number, prefill: boolean, depth: number): { sum: number; distinct: number } {
  const seen = (position: number): number => Math.min(position + 1, a.window > 0 ? a.window : Infinity);
  if (!prefill) return { sum: rows * seen(depth), distinct: rows * seen(depth) };
  let sum = 0;
  for (let row = 0; row < rows; row++) sum += seen(depth + row);
  return { sum, distinct: Math.min(depth + rows, a.window > 0 ? a.window + rows - 1 : Infinity) };
}

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [];
  for (const a of model.attention) {
    if (!a.ownsKv) continue; // a layer that reads another one's KV does the same work
    const { heads, kvHeads, headDim, window } = a;
    for (const [type, valueBytes] of KV_TYPES) {
      for (const rows of ALL_ROWS) {
        const prefill = rows === PREFILL_ROWS;
        for (const depth of prefill ? [0, ...DEPTHS] : DEPTHS) {
          // Beyond the window nothing changes.
          if (window > 0 && depth > 4096) continue;
          const { sum, distinct } = visible(a, rows, prefill, depth), kvBytes = distinct * 2 * kvHeads * headDim * valueBytes;
          out.push({
            op: "attention", model: model.name, site: `${a.site} @ ${depth}`, dtype: type, rows, shape: `${heads} on ${kvHeads} x ${headDim}`,
            step: { rows, prefill, depth, window }, bytes: kvBytes + 2 * rows * heads * headDim * 4, flops: 4 * heads * headDim * sum, coldBytes: kvBytes,
            usual: type === "f16" && depth === (prefill ? 0 : 4096),
            prepare(rig) {
              const copies = Math.max(1, Math.min(MAX_LAYERS, Math.ceil(cold.bytes / kvBytes)));
              const pool = rig.pool({ layers: copies, kvHeads, headDim, type }), q = rig.view(heads, headDim), dst = rig.view(heads, headDim);
              return { copies, op: (i) => rig.r.attention(dst, q, pool, i, window, 1) };
            },
          });
        }
      }
    }
  }
  return out;
}
