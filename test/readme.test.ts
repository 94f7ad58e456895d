// The README's program does what the README says: it is taken from there and run as it stands.
import { expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dir, ".."), readme = readFileSync(join(root, "README.md"), "utf8");

test("the library example of the README runs as shown, in ten lines", () => {
  const program = /```ts\n([\s\S]*?)```/.exec(readme)?.[1];
  if (!program) throw new Error("the README has no TypeScript example");
  expect(program.trim().split("\n").length).toBeLessThanOrEqual(10);
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

test("commands, links and folders of the README exist", () => {
  const { scripts } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { scripts: Record<string, string> };
  const commands = [...readme.matchAll(/bun run ([\w:]+)/g)].map((m) => m[1]!), targets = [...readme.matchAll(/^make (\w+)/gm)].map((m) => m[1]!);
  const links = [...readme.matchAll(/\]\(([^)#:]+)\)/g)].map((m) => m[1]!);
  const tree = /## Where things are\n\n([\s\S]*?)\n\n/.exec(readme)![1]!;
  const folders = tree.split("\n").flatMap((line) => {
    const [first, ...others] = line.trim().split(/ {2,}/)[0]!.split(" ");
    return [first!, ...others.map((o) => (first!.startsWith("src/") && !o.startsWith("src/") ? `src/${o}` : o))];
  });
  expect([commands.length > 4, targets.length > 1, links.length > 10, folders.length > 15]).toEqual([true, true, true, true]);
  expect(commands.filter((c) => !(c in scripts))).toEqual([]);
  const makefile = readFileSync(join(root, "Makefile"), "utf8");
  expect(targets.filter((t) => !new RegExp(`^${t}:`, "m").test(makefile))).toEqual([]);
  expect([...links, ...folders].filter((path) => !existsSync(join(root, path)))).toEqual([]);
});
