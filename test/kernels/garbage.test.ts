// Arguments without sense must give errors and not end the process: a child process calls every function with them and must get to its last line.
import { expect, test } from "bun:test";
import { join } from "node:path";
import { allowTime, FULL } from "./harness.ts";

allowTime();

for (const seed of FULL ? Array.from({ length: 20 }, (_, i) => i + 1) : [1, 2, 3]) {
  test(`calls without sense, seed ${seed}`, () => {
    const calls = FULL ? 50_000 : 8_000;
    const child = Bun.spawnSync([process.execPath, join(import.meta.dir, "garbage_calls.ts"), String(seed), String(calls)], { stdout: "pipe", stderr: "pipe", timeout: 110_000 });
    expect(`${child.stdout.toString()}${child.stderr.toString().slice(-2000)}${child.signalCode ?? ""}`).toBe(`after ${calls} calls: 11 22\n`);
    expect(child.exitCode).toBe(0);
  });
}
