// docs/acceptance.md names tests that exist.
import { expect, test } from "bun:test";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dir, "../.."), page = readFileSync(join(root, "docs/acceptance.md"), "utf8");

test("every test that the table names stands in the file that it names", () => {
  const rows = [...page.matchAll(/^\| .*\| (test\/\S+\.test\.ts): (.+) \|$/gm)].map((m) => [m[1]!, m[2]!] as const);
  expect(rows.length).toBeGreaterThan(40);
  expect(page.split("\n").filter((l) => l.startsWith("|") && !/^\|( must hold \| test \||---)/.test(l)).length).toBe(rows.length); // no row without one
  const sources = new Map<string, string>();
  const source = (file: string): string => sources.get(file) ?? sources.set(file, existsSync(join(root, file)) ? readFileSync(join(root, file), "utf8") : "").get(file)!;
  expect(rows.filter(([file, name]) => !source(file).includes(`"${name}"`))).toEqual([]);
});

test("so do scripts and folders", () => {
  expect([...page.matchAll(/`(scripts\/[\w/.-]+)`/g)].map((m) => m[1]!).filter((path) => !existsSync(join(root, path)))).toEqual([]);
});
