// Programs made by `bun build --compile`: where the engine Worker and the kernel libraries lie inside of them. `make embed` writes the Worker's file.
import { ResourceError } from "../errors.ts";
import type { BackendName } from "../native/library.ts";

/** Whether this module runs inside a compiled program, where nothing of the package lies beside it. */
export const COMPILED = import.meta.dir.startsWith("/$bunfs/") || /^[A-Z]:[\\/]~BUN/.test(import.meta.dir);

export interface EmbeddedFiles { readonly worker: string; readonly libraries: Partial<Record<BackendName, string>> }

/** What `bun build --compile` has embedded. Throws ResourceError `engine_missing`. */
export async function embeddedFiles(): Promise<EmbeddedFiles> {
  let worker: string | undefined;
  const libraries: Partial<Record<BackendName, string>> = {};
  // Each import becomes a file of the program if there is one when it is compiled; the bundler lets a missing one pass only right inside of a try.
  try { worker = (await import("../../build/engine-worker.js", { with: { type: "file" } })).default; } catch { /* reported below */ }
  try { libraries.cpu = (await import("../../build/libcpu_kernels.so", { with: { type: "file" } })).default; } catch { /* macOS */ }
  try { libraries.cpu ??= (await import("../../build/libcpu_kernels.dylib", { with: { type: "file" } })).default; } catch { /* Linux */ }
  try { libraries.cuda = (await import("../../build/libcuda_kernels.so", { with: { type: "file" } })).default; } catch { /* not built */ }
  try { libraries.metal = (await import("../../build/libmetal_kernels.dylib", { with: { type: "file" } })).default; } catch { /* not built */ }
  if (worker === undefined) throw new ResourceError("engine_missing", "This program was compiled without Bao's engine", "Run `make embed` in the bao-llm folder, then `bun build --compile` again.");
  return { worker, libraries };
}
