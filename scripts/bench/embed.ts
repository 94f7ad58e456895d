// Cases of embed: token embeddings, and the per-layer embeddings of E-series models. Their tables are cut to fit the memory of the benchmark.
import { BAO } from "../../src/native/symbols.ts";
import { ALL_ROWS, plainStep, typesFor, type BenchCase } from "./case.ts";
import type { BenchModel } from "./models.ts";
import { matrixBytes, type MatrixShape } from "./rig.ts";

/** Rows of a table: more than any step looks up. */
const VOCABULARY = 4096;

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [];
  const tables = [{ site: "tokens", columns: model.hidden }, ...(model.perLayerWidth > 0 ? [{ site: "per-layer", columns: model.perLayerWidth * model.layers }] : [])];
  for (const { site, columns } of tables) {
    for (const type of typesFor(columns)) {
      for (const rows of ALL_ROWS) {
        const shape: MatrixShape = { type, rows: VOCABULARY, columns }, read = (matrixBytes(shape) / VOCABULARY) * rows;
        out.push({
          op: "embed", model: model.name, site, dtype: type.toLowerCase(), rows, shape: `${columns}`, step: { ...plainStep(rows), vocabulary: VOCABULARY },
          bytes: read + rows * columns * 4, flops: 0, coldBytes: read, memory: matrixBytes(shape), usual: type === "Q6_K",
          prepare(rig) {
            const sets = rig.weights([shape], BAO.USE_ROWS), dst = rig.view(1, columns);
            return { copies: sets.length, op: (i) => rig.r.embed(dst, sets[i]![0]!, 1) };
          },
        });
      }
    }
  }
  return out;
}
