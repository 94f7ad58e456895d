// docs/api.md says the truth: its blocks pass the type checker, run one after another, and print what stands behind them.
import { expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import * as library from "../../src/index.ts";

setDefaultTimeout(180_000);
const root = join(import.meta.dir, "../.."), page = readFileSync(join(root, "docs/api.md"), "utf8");
const [beginning, ...blocks] = [...page.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map((m) => m[1]!);
if (!beginning) throw new Error("docs/api.md has no TypeScript blocks");

/** Block `i` as a module: its own imports, the common beginning, the rest. */
function program(block: string): string {
  const own = block.split("\n"), imports = own.filter((l) => l.startsWith("import ")), rest = own.filter((l) => !l.startsWith("import "));
  return [...imports, beginning, ...rest].join("\n");
}
const expected = blocks.map((b) => [...b.matchAll(/console\.log\(.*\);.*?\/\/ (.+)$/gm)].map((m) => m[1]!));

test("every block passes the type checker, and prints what its comments say", async () => {
  // Inside the package, so that "bao-llm" is the package itself.
  const folder = join(root, "build", `api-${process.pid}`);
  mkdirSync(folder, { recursive: true });
  try {
    const files = blocks.map((b, i) => {
      writeFileSync(join(folder, `block-${i + 1}.ts`), program(b));
      return join(folder, `block-${i + 1}.ts`);
    });
    const checked = Bun.spawnSync([process.execPath, "check", "--no-script", ...files], { cwd: root });
    expect(checked.stdout.toString() + checked.stderr.toString()).toContain("No type errors");
    writeFileSync(join(folder, "all.ts"), files.map((f) => `await import(${JSON.stringify(f)});\nconsole.log("-- end of block");`).join("\n"));
    const ran = Bun.spawnSync([process.execPath, join(folder, "all.ts")], { cwd: root, stderr: "inherit", timeout: 150_000 });
    const printed = ran.stdout.toString().split("-- end of block\n").slice(0, -1).map((lines) => lines.split("\n").slice(0, -1));
    expect(printed).toEqual(expected);
    expect(ran.exitCode).toBe(0);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("every block has something to compare, and every value that the package exports is on the page", () => {
  expect(expected.filter((lines) => lines.length === 0)).toEqual([]);
  // Classes of objects that other calls give are described with those calls.
  const made = ["Model", "ModelSession", "Generation", "Acting"];
  expect(Object.keys(library).filter((name) => !made.includes(name) && !new RegExp(`\\b${name}\\b`).test(page))).toEqual([]);
});

test("every option of the public calls is on the page", () => {
  const keys = readFileSync(join(root, "src/engine/keys.ts"), "utf8");
  const names = [...keys.matchAll(/(\w+): true/g)].map((m) => m[1]!);
  expect(names.length).toBeGreaterThan(30);
  const hidden = ["reference"]; // the plain kernels: for tests of kernels
  expect([...new Set(names)].filter((name) => !hidden.includes(name) && !new RegExp(`\\b${name}\\b`).test(page))).toEqual([]);
});
