// Command buffers of the Metal library: how many a step is, and that their number changes no bit.
import { afterEach, describe, expect, test } from "bun:test";
import { LocalModel } from "../../src/engine/model.ts";
import { Device } from "../../src/native/objects.ts";
import { collect, DEMO } from "../engine/fixtures.ts";
import { allowTime, fill, Random, Rig } from "../kernels/harness.ts";
import { buffersRun, EMULATED, setC } from "./emulated.ts";

allowTime();
afterEach(() => { setC("BAO_METAL_COMMIT_MS", ""); setC("METAL_EMULATOR_DELAY_US", ""); });

/** Command buffers and results of steps of `rows` rows and 50 ops each: one when nothing else runs, and two at once. */
function run(rows: number): { alone: number; two: number; result: Float32Array } {
  using device = new Device({ backend: "metal", precision: "exact" });
  const rig = new Rig(device), x = rig.input(new Random(1).f32(64 * 32), 1, 32), dst = rig.view(64, 1, 32);
  rig.stream.record(() => {
    rig.r.scale(dst, x, 1);
    for (let i = 1; i < 50; i++) rig.r.add(dst, dst, x);
  });
  const count = (work: () => void): number => { const from = buffersRun(); work(); return buffersRun() - from; };
  const alone = count(() => rig.submit({ rows }));
  setC("METAL_EMULATOR_DELAY_US", "20000");
  const two = count(() => {
    for (const slot of [0, 1]) {
      fill(rig.step.slots[slot]!, { rows }, 97);
      rig.stream.submit(slot);
    }
    for (const slot of [0, 1]) expect(rig.stream.wait(slot, 60_000)).toBe("done");
  });
  setC("METAL_EMULATOR_DELAY_US", "");
  const result = rig.f32(dst, rows);
  rig.dispose();
  return { alone, two, result };
}

describe.skipIf(!EMULATED)("a step", () => {
  test("is one command buffer; its first part is committed alone when the GPU has nothing to do", () => {
    for (const rows of [1, 64]) expect(run(rows)).toMatchObject({ alone: 2, two: 3 });
  });

  test("of a prefill is as many as its estimated work asks for", () => {
    const whole = [4, 64].map((rows) => run(rows).result);
    setC("BAO_METAL_COMMIT_MS", "0.05"); // 25 us, which is 10 launches, and then comes another command buffer
    const decode = run(4), prefill = run(64);
    expect(decode).toMatchObject({ alone: 2, two: 3 });
    expect(prefill.alone).toBeWithin(5, 9);
    expect([decode.result, prefill.result]).toEqual(whole);
    // Wherever the ends fall, the early one among them, no launch is lost.
    for (const ms of ["0.004", "0.01", "0.02", "0.03", "0.07", "0.13"]) {
      setC("BAO_METAL_COMMIT_MS", ms);
      expect({ ms, result: run(64).result }).toEqual({ ms, result: whole[1]! });
    }
  });
});

describe.skipIf(!EMULATED)("an answer", () => {
  test("is the same to the bit however its steps are cut", async () => {
    const answer = async (): Promise<unknown> => {
      using model = await LocalModel.load(DEMO, { device: { backend: "metal", precision: "exact" }, context: 256, warmup: false });
      using session = model.session();
      const { parts, text } = await collect(model, session, "Tell me a story about a little dog who found a very big red ball in the garden.", { maxTokens: 6, temperature: 0, logprobs: 3 });
      return { text, parts: parts.filter((p) => p.type === "token") };
    };
    const from = buffersRun(), whole = await answer(), few = buffersRun() - from;
    setC("BAO_METAL_COMMIT_MS", "0.02");
    const between = buffersRun();
    expect(await answer()).toEqual(whole);
    expect(buffersRun() - between).toBeGreaterThan(3 * few);
  });
});
