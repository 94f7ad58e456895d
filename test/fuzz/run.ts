// `make fuzz`: property tests on the file parsers (TypeScript) and coverage-guided fuzzing of weights and block formats (C++), half of the time each.
// BAO_FUZZ_SECONDS (default 600) is the whole budget. Uses libFuzzer where clang++ has it, plain random inputs under g++'s sanitizers otherwise.
import { existsSync, mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";

const root = join(import.meta.dir, "../.."), build = join(root, "build/fuzz");
const seconds = Number(process.env["BAO_FUZZ_SECONDS"] ?? 600);

async function run(command: string[], env: Record<string, string> = {}): Promise<boolean> {
  console.log(`$ ${command.join(" ").slice(0, 160)}`);
  const child = Bun.spawn(command, { cwd: root, env: { ...process.env, ...env }, stdout: "inherit", stderr: "inherit" });
  return (await child.exited) === 0;
}

// A quarter for each C++ fuzzer; the parsers' properties (about eight) take an eighth of the other half each.
const share = Math.max(5, Math.trunc(seconds / 4));
let ok = await run([process.execPath, "test", "--timeout", String((seconds + 60) * 1000), "test/gguf/fuzz.test.ts", "test/safetensors/fuzz.test.ts"], { BAO_FUZZ_SECONDS: String(Math.max(5, Math.trunc(share / 4))) });

mkdirSync(build, { recursive: true });
const clang = ["clang++", "clang++-19", "clang++-16", "clang++-14"].find((c) => Bun.which(c));
const libFuzzer = clang !== undefined && Bun.spawnSync([clang, "-fsanitize=fuzzer", "-x", "c++", "-o", join(build, "probe"), "-"], {
  stdin: new TextEncoder().encode('#include <stdint.h>\n#include <stddef.h>\nextern "C" int LLVMFuzzerTestOneInput(const uint8_t*, size_t) { return 0; }'),
}).exitCode === 0;
console.log(libFuzzer ? `libFuzzer of ${clang}` : "no libFuzzer here: random inputs under g++'s sanitizers");
const compiler = libFuzzer ? clang : "g++";
const base = ["-std=c++20", "-O1", "-g", "-ffp-contract=off", "-pthread", ...(process.arch === "x64" ? ["-march=x86-64-v2"] : []), `-fsanitize=${libFuzzer ? "fuzzer," : ""}address,undefined`, "-fno-sanitize-recover=undefined", ...(libFuzzer ? [] : ["-DBAO_FUZZ_MAIN"])];
const sources = (folder: string): string[] => readdirSync(join(root, folder)).filter((f) => f.endsWith(".cpp")).map((f) => `${folder}/${f}`);
/** Compiles a source unless its object is newer. */
async function object(source: string): Promise<string> {
  const out = join(build, `${source.replaceAll("/", "_")}.o`);
  if (existsSync(out) && Bun.file(out).lastModified > Bun.file(join(root, source)).lastModified) return out;
  // Objects of the library are instrumented for coverage, but bring no main of their own.
  const flags = base.map((f) => f.replace("fuzzer,", "fuzzer-no-link,"));
  if (!(await run([compiler, ...flags, "-c", source, "-o", out]))) throw new Error(`${source} does not compile`);
  return out;
}
const library: string[] = [];
for (const folder of ["kernels/common", "kernels/frontend", "kernels/cpu", "kernels/cpu/reference"]) for (const source of sources(folder)) library.push(await object(source));
// The fast kernels come as `make cpu` built them: instrumented, they take ten minutes to compile.
for (const f of readdirSync(join(root, "build/obj/kernels/cpu/fast"))) if (f.endsWith(".o")) library.push(`build/obj/kernels/cpu/fast/${f}`);
for (const target of ["dequantize_fuzz", "weights_fuzz"]) {
  const binary = join(build, target);
  if (!(await run([compiler, ...base, `test/fuzz/${target}.cpp`, ...library, "-o", binary]))) { ok = false; continue; }
  const argument = libFuzzer ? [`-max_total_time=${share}`, "-max_len=4096", "-rss_limit_mb=1024", "-timeout=10", "-print_final_stats=1", "-verbosity=0", `-artifact_prefix=${build}/`] : [String(share * 200), String(Date.now() % 1e6)];
  ok = (await run([binary, ...argument])) && ok;
}
console.log(ok ? "fuzz: nothing found" : "fuzz: FAILED");
process.exit(ok ? 0 : 1);
