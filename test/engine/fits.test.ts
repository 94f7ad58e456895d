// A model that does not fit is refused with the numbers, and the context that the hint names does fit.
import { expect, test } from "bun:test";
import { totalmem } from "node:os";
import { checkFits } from "../../src/engine/fits.ts";
import { LocalModel } from "../../src/engine/model.ts";
import { openGguf } from "../../src/gguf/index.ts";
import { estimateMemory, planRun } from "../../src/model/estimate.ts";
import { familyOf } from "../../src/model/registry.ts";
import { DEMO, failure } from "./fixtures.ts";

const file = openGguf(DEMO), config = familyOf(file).configure(file);
const device = (free: number, backend: string) => ({ memory: () => free, info: { name: "a device", backend } }) as unknown as Parameters<typeof checkFits>[0];

test.each([["cpu", 0], ["cuda", 1], ["metal", 1]] as const)("%s: what has to be in memory besides the KV cache", async (backend, resident) => {
  for (const sequences of [1, 8]) {
    const plan = planRun(config, { context: 4096, sequences }), all = estimateMemory(file, config, plan), need = all.allocated + resident * all.weights;
    checkFits(device(need, backend), file, config, plan);
    checkFits(device(-1, backend), file, config, plan);
    for (const share of [0.999, 0.97]) {
      const free = Math.trunc(need * share), error = await failure(() => checkFits(device(free, backend), file, config, plan));
      expect(error).toMatchObject({ name: "ResourceError", code: "model_too_large", message: expect.stringContaining("GB are free") });
      const context = Number(/--ctx (\d+)/.exec(error.hint!)![1]);
      expect(context).toBeWithin(256, 4096);
      checkFits(device(free, backend), file, config, planRun(config, { context, sequences }));
      // And no much longer one.
      await failure(() => checkFits(device(free, backend), file, config, planRun(config, { context: Math.min(4096, context + 512), sequences })));
    }
    expect((await failure(() => checkFits(device(1000, backend), file, config, plan))).hint).toContain("smaller model");
  }
});

test.skipIf(totalmem() > 40e9)("a load that asks for more than there is", async () => {
  expect(await failure(LocalModel.load(DEMO, { device: { threads: 1 }, context: 4096, sequences: 1024, chunk: 1 << 16, outputs: 1 << 16, kvType: "f32" }))).toMatchObject({ name: "ResourceError", code: "model_too_large" });
});
