// Memory of the Metal library: where weights may begin, what the working set holds, and residency.
import { statSync } from "node:fs";
import { afterEach, describe, expect, test } from "bun:test";
import { LocalModel } from "../../src/engine/model.ts";
import { estimateMemory } from "../../src/model/estimate.ts";
import { Device } from "../../src/native/objects.ts";
import { BAO } from "../../src/native/symbols.ts";
import { allowTime, DTYPES, Random, Rig } from "../kernels/harness.ts";
import { dtypeName, weightValues } from "../kernels/weights.ts";
import { collect, DEMO, failure } from "../engine/fixtures.ts";
import { allocated, EMULATED, residencyRequests, resident, setC } from "./emulated.ts";

allowTime();

describe.skipIf(!EMULATED)("a weight in a file", () => {
  test("is read where it lies when that is a multiple of 16 bytes, else from a copy that goes with it", () => {
    using device = new Device({ backend: "metal", precision: "exact" });
    const x = new Random(1).f32(4 * 256), before = allocated();
    for (const dtype of DTYPES) {
      for (const offset of [0, 1, 2, 4, 8, 16, 17]) {
        const rig = new Rig(device), spec = { dtype, rows: 8, columns: 256, offset }, w = rig.weight(spec), values = weightValues(spec), dst = rig.view(4, 1, 8), from = rig.input(x, 1, 256);
        rig.run({ rows: 4 }, (r) => r.matmul(dst, from, w));
        rig.f32(dst).forEach((found, i) => {
          let sum = 0;
          for (let c = 0; c < 256; c++) sum += x[(i >> 3) * 256 + c]! * values[(i & 7) * 256 + c]!;
          expect(Math.abs(found - sum), `${dtypeName(dtype)} at ${offset}, output ${i}`).toBeLessThan(1e-4);
        });
        rig.dispose();
        if (offset % 16 !== 0) expect(allocated()).toBe(before);
      }
    }
  });
});

const settings = (working: string, residency = ""): void => { setC("METAL_EMULATOR_WORKING_SET", working); setC("METAL_EMULATOR_RESIDENCY", residency); };
afterEach(() => settings(""));

describe.skipIf(!EMULATED)("the working set", () => {
  test("is the device's memory", () => {
    settings("123456789");
    using device = new Device({ backend: "metal" });
    expect(device.info.memory).toBe(123456789);
    expect(device.memory("total")).toBe(123456789);
    const free = device.memory("free");
    using buffer = device.buffer(1_000_000);
    expect(device.memory("free")).toBe(free - buffer.bytes);
    expect(() => device.buffer(123_000_000)).toThrow(expect.objectContaining({ name: "ResourceError", code: "out_of_memory" }));
  });

  test("holds a model, or the model is refused with a context that it would hold", async () => {
    const before = allocated(), weights = statSync(DEMO).size, device = { backend: "metal" } as const;
    settings(String(before + weights + 11_000_000));
    const error = await failure(LocalModel.load(DEMO, { device, context: 4096 }));
    expect(error).toMatchObject({ name: "ResourceError", code: "model_too_large" });
    expect(error.message).toMatch(/weights .* GB, KV of 4096 tokens/);
    const context = Number(/^A context of (\d+) tokens fits/.exec(error.hint!)![1]);
    {
      using model = await LocalModel.load(DEMO, { device, context, warmup: false });
      const e = estimateMemory(model.file, model.runner.config, model.runner.plan);
      expect(e.weights + e.allocated).toBeLessThan(weights + 11_000_000);
    }
    expect(allocated()).toBe(before);
    settings(String(before + Math.trunc(weights / 2)));
    expect(await failure(LocalModel.load(DEMO, { device, context: 4096 }))).toMatchObject({ code: "model_too_large", hint: expect.stringContaining("smaller model or quantisation") });
    // What the estimate does not see, a weight's buffer does.
    using opened = new Device(device);
    const rig = new Rig(opened);
    settings(String(allocated() + 20_000));
    expect(() => rig.weight({ dtype: BAO.F32, rows: 100, columns: 100 })).toThrow(expect.objectContaining({ code: "out_of_memory", message: expect.stringContaining("has memory for") }));
    rig.dispose();
  });
});

describe.skipIf(!EMULATED)("residency", () => {
  test("of all that a model uses is asked for at load and again while it lives, and given up with it", async () => {
    const before = allocated(), others = resident(); // devices that other test files left open
    {
      using model = await LocalModel.load(DEMO, { device: { backend: "metal" }, context: 256, warmup: false });
      expect(resident() - others).toBeGreaterThan(statSync(DEMO).size);
      using session = model.session();
      await collect(model, session, "Once", { maxTokens: 2, temperature: 0 });
      expect(resident() - others).toBe(allocated() - before);
      const asked = residencyRequests();
      await Bun.sleep(1300);
      expect(residencyRequests() - asked).toBeGreaterThanOrEqual(2);
    }
    expect(resident()).toBe(others);
    expect(allocated()).toBe(before);
  });

  test("where the system has none nothing changes", async () => {
    const others = resident();
    const answer = async (): Promise<{ text: string; asks: boolean }> => {
      using model = await LocalModel.load(DEMO, { device: { backend: "metal" }, context: 256, warmup: false });
      using session = model.session();
      const { text } = await collect(model, session, "Once upon", { maxTokens: 4, temperature: 0 });
      return { text, asks: resident() > others };
    };
    const { text, asks } = await answer();
    settings("", "0");
    expect([asks, await answer()]).toEqual([true, { text, asks: false }]);
  });
});
