// The emulator runs correct code correctly: the Objective-C runtime, and the example's kernels in each of its modes.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { BUILT } from "./rig.ts";

setDefaultTimeout(120_000);

function run(command: string[], env: Record<string, string> = {}): { code: number; out: string } {
  const p = Bun.spawnSync(command, { env: { ...process.env, ...env }, stdout: "pipe", stderr: "pipe" });
  return { code: p.exitCode, out: p.stdout.toString() + p.stderr.toString() };
}

test("the Objective-C runtime and the device's own rules", () => {
  expect(run([join(BUILT, "objc_test")], { METAL_EMULATOR_BUN: process.execPath })).toMatchObject({ code: 0, out: expect.stringContaining("0 failures") });
});

describe("the example's kernels", () => {
  const kernels = [process.execPath, join(import.meta.dir, "run_kernels.ts")];
  const modes: Record<string, Record<string, string>> = {
    plain: {}, "on one thread": { METAL_EMULATOR_THREADS: "1" }, checked: { METAL_EMULATOR_CHECKED: "1" }, "matrices laid out otherwise": { METAL_EMULATOR_LAYOUT: "1" },
    ...Object.fromEntries([1, 2, 3].map((seed) => [`random order ${seed}`, { METAL_EMULATOR_RANDOM: "1", METAL_EMULATOR_SEED: String(seed) }])),
  };
  for (const [name, env] of Object.entries(modes)) {
    test(name, () => {
      const { code, out } = run(kernels, env);
      expect(out).not.toContain("FAIL");
      expect({ code, lines: out.match(/^ok/gm)?.length }).toEqual({ code: 0, lines: 8 });
    });
  }
});
