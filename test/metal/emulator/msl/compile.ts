// MSL text to a shared object for the executor: compile.ts in.metal -o out.so [--checked] [--fast-math] [-Dname=value] [--keep rewritten.cpp]
// Two passes of clang: one in which address spaces are types and nothing is made, one for this machine in which they are gone.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { MslError } from "./lexer.ts";
import { rewrite } from "./rewrite.ts";

export interface CompileOptions {
  /** Every memory access and every undefined operation is checked when the kernel runs. */
  readonly checked?: boolean;
  readonly fastMath?: boolean;
  /** -Dname=value */
  readonly definitions?: readonly string[];
  /** Where to leave the rewritten text. */
  readonly keep?: string;
}

const CLANG = process.env["METAL_EMULATOR_CLANG"] || "clang-19";
const METAL = ["-D__METAL__=1", "-D__METAL_VERSION__=310", "-D__METAL_MACOS__=1", "-D__HAVE_BFLOAT__=1", "-DMETAL_FUNC=inline __attribute__((always_inline))"];
// Half stays half inside expressions; nothing that is read before it was written is zero.
const LANGUAGE = ["-x", "c++", "-std=c++17", "-I", import.meta.dir, "-I", dirname(import.meta.dir), "-fno-exceptions", "-fno-rtti", "-ftrivial-auto-var-init=pattern", "-Xclang",
  "-ffloat16-excess-precision=none", "-ffp-contract=fast", "-Wall", "-Wshadow", "-Wuninitialized", "-Wconditional-uninitialized", "-Werror=return-type", "-Wno-unused",
  "-Wno-psabi", "-Wno-user-defined-literals", "-Wno-unknown-attributes"];
// Compiling takes most of a short run's time.
const PLAIN = ["-O1", "-fno-unroll-loops", "-g0"];
// Vectorised accesses would not be instrumented. Lines are for the messages.
const CHECKED = ["-O1", "-g1", "-fno-vectorize", "-fno-slp-vectorize", "-fno-sanitize-link-runtime", "-mllvm", "-tsan-instrument-func-entry-exit=0",
  "-fsanitize=thread,bounds,shift,integer-divide-by-zero,signed-integer-overflow,float-cast-overflow,unreachable,return"];

function clang(args: readonly string[]): string {
  const run = spawnSync(CLANG, args, { encoding: "utf8", maxBuffer: 1 << 28 });
  if (run.error) throw new MslError(`${CLANG}: ${run.error.message}`);
  if (run.status !== 0) throw new MslError(run.stderr);
  if (run.stderr) process.stderr.write(run.stderr);
  return run.stdout;
}

// Casts between address spaces are an error in Metal and taken by clang's C++: they show in its syntax tree.
function refuseSpaceCasts(tree: string): void {
  let file = "", line = 0;
  for (const entry of tree.split("\n")) {
    const open = entry.indexOf("<");
    if (open < 0) continue;
    for (const m of entry.slice(open, entry.indexOf(">", open)).matchAll(/(?:([^\s<,]+):(\d+):\d+)|line:(\d+):\d+/g)) {
      if (m[1] && m[1] !== "line") { file = m[1]; line = Number(m[2]); } else line = Number(m[3] ?? m[2]);
    }
    if (entry.includes("<AddressSpaceConversion>") && file.endsWith(".metal")) throw new MslError(`${file}:${line}: error: cast between address spaces to ${/'([^']*)'/.exec(entry)?.[1] ?? "?"}`);
  }
}

/** Compiles a file. Throws MslError with the compiler's text. */
export function compile(path: string, out: string, options: CompileOptions = {}): void {
  const folder = mkdtempSync(join(tmpdir(), "msl-"));
  const work = (suffix: string): string => join(folder, basename(path) + suffix);
  try {
    // Apple's headers are ours, given by the rewritten text's first line.
    writeFileSync(work(".in"), `# 1 "${path}"\n` + readFileSync(path, "utf8").replace(/^[ \t]*#[ \t]*include[ \t]*<metal_\w+>/gm, ""));
    const source = clang(["-E", "-x", "c++", "-std=c++17", "-nostdinc", "-nostdinc++", "-iquote", dirname(path), ...METAL, ...options.definitions ?? [], work(".in")]);
    const cpp = work(".cpp"), code = rewrite(source, path, options.checked ?? false);
    writeFileSync(cpp, code);
    if (options.keep) writeFileSync(options.keep, code);
    refuseSpaceCasts(clang([...LANGUAGE, "-DEMU_CHECK_SPACES=1", "-fsyntax-only", "-Xclang", "-ast-dump", "-fno-color-diagnostics", cpp]));
    clang([...LANGUAGE, ...(options.checked ? CHECKED : PLAIN), ...(options.fastMath ? ["-ffast-math"] : []), "-mavx2", "-mfma", "-mf16c", "-fPIC", "-shared",
      "-fvisibility=hidden", "-Wl,-z,lazy", "-o", out, cpp, "-lm"]);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

if (import.meta.main) {
  const args = process.argv.slice(2);
  const flag = (name: string): boolean => args.includes(name);
  const value = (name: string): string | undefined => args.includes(name) ? args[args.indexOf(name) + 1] : undefined;
  const keep = value("--keep"), out = value("-o"), path = args[0];
  if (!path || !out) throw new Error("usage: compile.ts in.metal -o out.so [--checked] [--fast-math] [-Dname=value]");
  try {
    compile(resolve(path), out, { checked: flag("--checked"), fastMath: flag("--fast-math"), definitions: args.filter((a) => a.startsWith("-D")), ...(keep ? { keep } : {}) });
  } catch (e) {
    if (!(e instanceof MslError)) throw e;
    process.stderr.write(e.message.trimEnd() + "\n");
    process.exit(1);
  }
}
