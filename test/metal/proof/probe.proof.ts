// The probe for a Mac's GPU (make metal-probe) finds on the emulated device what is taken for granted, and says so when it is otherwise.
import { expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { BUILT } from "./rig.ts";

setDefaultTimeout(120_000);

function assumptions(env: Record<string, string>): { code: number; differs: string[]; ok: number } {
  const p = Bun.spawnSync([join(BUILT, "assumptions"), join(import.meta.dir, "../probe/assumptions.metal"), "1"], { env: { ...process.env, METAL_EMULATOR_BUN: process.execPath, ...env }, stdout: "pipe", stderr: "pipe" });
  const lines = p.stdout.toString().split("\n");
  return { code: p.exitCode, differs: lines.filter((l) => l.startsWith("DIFFERS")), ok: lines.filter((l) => l.startsWith("ok ")).length };
}

test("nothing differs, plainly and with every access checked", () => {
  for (const env of [{}, { METAL_EMULATOR_CHECKED: "1" }] as Record<string, string>[]) {
    const { code, differs, ok } = assumptions(env);
    expect({ code, differs }).toEqual({ code: 0, differs: [] });
    expect(ok).toBeGreaterThan(15);
  }
});

test("a GPU that lays out matrices otherwise is told from Apple's", () => {
  const { code, differs } = assumptions({ METAL_EMULATOR_LAYOUT: "1" });
  expect(code).toBe(1);
  expect(differs).toHaveLength(1);
  expect(differs[0]).toStartWith("DIFFERS  places of an 8 x 8 matrix in its lanes:");
});
