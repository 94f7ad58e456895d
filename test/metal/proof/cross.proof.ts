// The library that `make metal-cross` linked for arm64 macOS: it exports what kernels/bao.h declares, is signed, and was compiled by flags that
// refuse what macOS 13 does not have. That it loads and runs, only a Mac can show.
import { expect, setDefaultTimeout, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";

setDefaultTimeout(120_000);

const root = join(import.meta.dir, "../../.."), library = join(root, "build/metal-cross/libmetal_kernels.dylib");
const run = (command: string[]): { code: number; out: string } => {
  const p = Bun.spawnSync(command, { cwd: root, stdout: "pipe", stderr: "pipe" });
  return { code: p.exitCode, out: p.stdout.toString() + p.stderr.toString() };
};

test("an arm64 dylib with the exports of the emulated one, signed ad hoc", () => {
  const exported = (path: string, flags: string[]): string[] => run(["llvm-nm-19", ...flags, "--defined-only", "--format=just-symbols", path]).out.split("\n").map((name) => name.trim().replace(/^_(?=bao_)/, "").replace(/@.*/, "")).filter((name) => name.startsWith("bao_")).sort();
  const found = exported(library, ["--extern-only"]);
  expect(found.length).toBeGreaterThan(30);
  expect(found).toEqual(exported(join(root, "build/metal-emulator/libmetal_kernels.so"), ["-D"]));
  const headers = run(["llvm-objdump-19", "--macho", "--private-headers", library]).out;
  for (const word of ["ARM64", "DYLIB", "LC_CODE_SIGNATURE", "minos 13.0", "Metal.framework", "libobjc.A.dylib"]) expect(headers).toContain(word);
  expect(readFileSync(library).readUInt32LE(0)).toBe(0xfeedfacf);
});

test("what is newer than macOS 13 and not guarded does not compile", () => {
  const { code, out } = run(["make", "-s", "build/metal-cross/obj/test/metal/cross/unguarded.o"]);
  expect(code).not.toBe(0);
  expect(out).toContain("'setMathMode:' is only available on macOS 15.0 or newer");
});
