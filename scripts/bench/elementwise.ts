// Cases of add, scale, softcap, copy, gather_rows and pool_rows: at the width where a step has them.
import { ALL_ROWS, DECODE_ROWS, plainStep, type BenchCase } from "./case.ts";
import type { BenchModel } from "./models.ts";
import type { BenchRig } from "./rig.ts";

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [], { hidden } = model;
  const push = (op: string, site: string, rows: number, width: number, operands: number, record: (rig: BenchRig) => () => void): void => {
    out.push({
      op, model: model.name, site, dtype: "f32", rows, shape: `${width}`, step: plainStep(rows), bytes: rows * width * operands * 4, flops: 0, coldBytes: 0, usual: true,
      prepare: (rig) => ({ copies: 1, op: record(rig) }),
    });
  };
  for (const rows of ALL_ROWS) {
    push("add", "hidden", rows, hidden, 3, (rig) => {
      const a = rig.view(1, hidden), b = rig.view(1, hidden), dst = rig.view(1, hidden);
      return () => rig.r.add(dst, a, b);
    });
    push("scale", "hidden", rows, hidden, 2, (rig) => {
      const x = rig.view(1, hidden), dst = rig.view(1, hidden);
      return () => rig.r.scale(dst, x, 1.5);
    });
    push("copy", "hidden", rows, hidden, 2, (rig) => {
      const x = rig.view(1, hidden), dst = rig.view(1, hidden);
      return () => rig.r.copy(dst, x);
    });
    push("gather_rows", "hidden", rows, hidden, 2, (rig) => {
      const x = rig.view(1, hidden), dst = rig.view(1, hidden, "output");
      return () => rig.r.gatherRows(dst, x);
    });
    push("pool_rows", "hidden", rows, hidden, 2, (rig) => {
      const x = rig.view(1, hidden), dst = rig.view(1, hidden, "fixed", rig.step.options.maxSequences), { k } = rig.device;
      return () => k.poolRows(rig.stream.handle, dst.handle, x.handle);
    });
  }
  for (const rows of DECODE_ROWS) {
    push("softcap", "logits", rows, model.vocabulary, 2, (rig) => {
      const x = rig.view(1, model.vocabulary), dst = rig.view(1, model.vocabulary);
      return () => rig.r.softcap(dst, x, model.softcap);
    });
  }
  return out;
}
