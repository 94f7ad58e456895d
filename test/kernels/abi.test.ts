// The header is the source of truth: the generated files are those of the header, and each library exports exactly its functions.
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { generate, parseHeader } from "../../scripts/abi.ts";
import { findLibrary, openHost } from "../../src/native/library.ts";
import { BAO } from "../../src/native/symbols.ts";
import { allowTime, TEST_BACKEND } from "./harness.ts";

allowTime();

const root = join(import.meta.dir, "../.."), header = (name: string): ReturnType<typeof parseHeader> => parseHeader(readFileSync(join(root, "kernels", name), "utf8"));

test("src/native/symbols.ts and docs/abi.md are generated from the headers as they are", () => {
  for (const [path, text] of generate()) if (readFileSync(join(root, path), "utf8") !== text) throw new Error(`${path} is stale: run bun scripts/abi.ts`);
  const check = Bun.spawnSync([process.execPath, join(root, "scripts/abi.ts"), "--check"], { stdout: "ignore", stderr: "pipe" });
  expect(check.stderr.toString()).toBe("");
  expect(check.exitCode).toBe(0);
});

test("the header is understood whole: every BAO_API line is a function, with a comment", () => {
  for (const name of ["bao.h", "host.h"]) {
    const lines = readFileSync(join(root, "kernels", name), "utf8").split("\n").filter((line) => line.startsWith("BAO_API")), { fns } = header(name);
    expect(fns.length).toBe(lines.length);
    expect(fns.length).toBeGreaterThan(10);
    for (const fn of fns) { expect(fn.doc).not.toBe(""); expect(fn.parameters.length).toBeLessThanOrEqual(16); }
  }
});

test.skipIf(Bun.which("nm") === null)("the library exports the functions of its headers and nothing else", () => {
  const expected = [...header("bao.h").fns, ...(TEST_BACKEND === "cpu" ? header("host.h").fns : [])].map((fn) => fn.name).sort();
  const library = findLibrary(TEST_BACKEND)!, nm = Bun.spawnSync(process.platform === "darwin" ? ["nm", "-gU", library] : ["nm", "-D", "--defined-only", library]);
  const found = nm.stdout.toString().split("\n").map((line) => line.trim().split(/\s+/).at(-1)!.replace(/^_(?=bao_)/, "").replace(/@@.*$/, "")).filter((symbol) => symbol !== "").sort();
  expect(found).toEqual(expected);
});

test("the host says what it is", () => {
  const info = JSON.parse(openHost().hostInfo()) as Record<string, unknown>;
  expect(Object.keys(info).length).toBeGreaterThanOrEqual(4);
  expect(JSON.stringify(info)).toContain(process.arch === "arm64" ? "arm64" : "x86");
});

test("type numbers are GGUF's", () => {
  expect([BAO.F32, BAO.F16, BAO.Q4_0, BAO.Q8_0, BAO.Q4_K, BAO.Q6_K, BAO.IQ4_NL, BAO.I32, BAO.BF16, BAO.MXFP4]).toEqual([0, 1, 2, 8, 12, 14, 20, 26, 30, 39]);
});
