// Builds the CPU kernel library when it is missing, so that a fresh checkout runs with one command. Installs nothing.
import { existsSync } from "node:fs";
import { availableParallelism } from "node:os";
import { join } from "node:path";
import { env } from "../env.ts";
import { ResourceError } from "../errors.ts";
import { findLibrary } from "../native/library.ts";
import { noteLine } from "./output.ts";

const root = join(import.meta.dir, "../..");

/** Makes sure that a CPU library can be found, with `make cpu` in the package folder. Throws ResourceError `kernels_missing` or `kernels_build`. */
export async function ensureKernels(): Promise<void> {
  if (findLibrary("cpu")) return;
  if (!existsSync(join(root, "Makefile"))) return; // openLibrary says where it looked
  if (!Bun.which("make")) throw new ResourceError("kernels_missing", "The CPU kernel library has to be built first, and `make` is not installed", "Install make and a C++20 compiler, or point BAO_KERNELS at a folder with the library.");
  const compiler = env.CXX?.split(" ")[0] ?? ["g++", "c++", "clang++"].find((name) => Bun.which(name));
  if (!compiler || !Bun.which(compiler)) {
    throw new ResourceError("kernels_missing", `The CPU kernel library has to be built first, and ${compiler ?? "a C++ compiler"} is not installed`, "Install a C++20 compiler (g++ 11 or clang 14 and later), or set CXX to one.");
  }
  noteLine("bao: building the CPU kernel library (once, about a minute)");
  const build = Bun.spawn(["make", "cpu", `-j${availableParallelism()}`, `CXX=${env.CXX ?? compiler}`], { cwd: root, stdin: "ignore", stdout: 2, stderr: 2 });
  if (await build.exited !== 0) throw new ResourceError("kernels_build", `Building the CPU kernel library failed: \`make cpu\` in ${root}`, "The compiler's messages are above; it must know C++20.");
}
