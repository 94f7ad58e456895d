// Cases of glu and matmul_glu: the gated FFN of every width.
import { BAO } from "../../src/native/symbols.ts";
import { ALL_ROWS, plainStep, typesFor, usualType, type BenchCase } from "./case.ts";
import type { BenchModel } from "./models.ts";
import { matrixBytes, type MatrixShape } from "./rig.ts";

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [], { name, hidden } = model;
  for (const { site, width } of model.ffns) {
    for (const rows of ALL_ROWS) {
      out.push({
        op: "glu", model: name, site, dtype: "f32", rows, shape: `${width}`, step: plainStep(rows), bytes: rows * width * 12, flops: 0, coldBytes: 0, usual: true,
        prepare(rig) {
          const gate = rig.view(1, width), up = rig.view(1, width), dst = rig.view(1, width);
          return { copies: 1, op: () => rig.r.glu(dst, gate, up, "gelu") };
        },
      });
      for (const type of typesFor(hidden)) {
        const shape: MatrixShape = { type, rows: width, columns: hidden }, bytes = 2 * matrixBytes(shape);
        out.push({
          op: "matmul_glu", model: name, site, dtype: type.toLowerCase(), rows, shape: `2 x ${width} x ${hidden}`, step: plainStep(rows),
          bytes: bytes + rows * (hidden + width) * 4, flops: 4 * rows * width * hidden, coldBytes: bytes, usual: type === usualType(hidden),
          prepare(rig) {
            const sets = rig.weights([shape, shape], BAO.USE_MATMUL), x = rig.view(1, hidden), dst = rig.view(1, width);
            return { copies: sets.length, op: (i) => rig.r.matmulGlu(dst, x, sets[i]![0]!, sets[i]![1], "gelu") };
          },
        });
      }
    }
  }
  return out;
}
