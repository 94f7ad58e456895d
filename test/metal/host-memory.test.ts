// Memory of the Metal library: where weights may begin, what the working set holds, and residency.
import { describe, expect, test } from "bun:test";
import { Device } from "../../src/native/objects.ts";
import { BAO } from "../../src/native/symbols.ts";
import { allowTime, DTYPES, Random, Rig } from "../kernels/harness.ts";
import { blockOf, dtypeName, weightValues } from "../kernels/weights.ts";
import { EMULATED } from "./emulated.ts";

allowTime();

describe.skipIf(!EMULATED)("a weight in a file", () => {
  test("at an address that kernels cannot read from is refused; MXFP4, read by bytes, is not", () => {
    using device = new Device({ backend: "metal", precision: "exact" });
    const rig = new Rig(device), x = new Random(1).f32(4 * 256);
    for (const dtype of DTYPES) {
      const spec = { dtype, rows: 8, columns: blockOf(dtype) === 1 ? 64 : 256 };
      for (const offset of dtype === BAO.F32 ? [1, 2, 3] : [1, 3, 17]) {
        if (dtype === BAO.MXFP4) continue;
        expect(() => rig.weight({ ...spec, offset })).toThrow(expect.objectContaining({ name: "KernelError", code: "unsupported", message: expect.stringContaining("general.alignment"), hint: expect.stringContaining("--device cpu") }));
      }
    }
    const odd = { dtype: BAO.MXFP4, rows: 8, columns: 256, offset: 17 }, w = rig.weight(odd), values = weightValues(odd), dst = rig.view(4, 1, 8), from = rig.input(x, 1, 256);
    rig.run({ rows: 4 }, (r) => r.matmul(dst, from, w));
    rig.f32(dst).forEach((found, i) => {
      let sum = 0;
      for (let c = 0; c < 256; c++) sum += x[(i >> 3) * 256 + c]! * values[(i & 7) * 256 + c]!;
      expect(Math.abs(found - sum), `${dtypeName(odd.dtype)} output ${i}`).toBeLessThan(1e-4);
    });
    rig.dispose();
  });
});
