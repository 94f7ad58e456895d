// The README's program does what the README says: it is taken from there and run as it stands.
import { expect, test } from "bun:test";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dir, "..");

test("the library example of the README runs as shown", () => {
  const program = /```ts\n([\s\S]*?)```/.exec(readFileSync(join(root, "README.md"), "utf8"))?.[1];
  if (!program) throw new Error("the README has no TypeScript example");
  // Inside the package, so that "bao-llm" is the package itself.
  const folder = join(root, "build", `readme-${process.pid}`), path = join(folder, "example.ts");
  mkdirSync(folder, { recursive: true });
  try {
    writeFileSync(path, program);
    const run = (): { out: string; code: number } => {
      const child = Bun.spawnSync([process.execPath, path], { cwd: root, stderr: "inherit" });
      return { out: child.stdout.toString(), code: child.exitCode };
    };
    const first = run();
    expect(first.code).toBe(0);
    expect(first.out).toMatch(/^\S[\s\S]{40,}\n\[(length, 60|stop, \d+) tokens\]\n$/);
    expect(run()).toEqual(first); // the example fixes the seed
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}, 60_000);
