// Finds, opens and binds kernel libraries, and turns their statuses into typed errors. Never closes a library (a call after dlclose is fatal).
import { dlopen, type Library } from "bun:ffi";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { BaoError, KernelError, ResourceError } from "../errors.ts";
import { env } from "../env.ts";
import { BAO, bindHost, bindKernels, hostSymbols, kernelSymbols, type Host, type Kernels } from "./symbols.ts";
import { traced } from "./trace.ts";

export type BackendName = "cpu" | "cuda" | "metal";

/** One opened kernel library: the functions of bao.h. */
export interface KernelLibrary {
  readonly backend: BackendName;
  readonly path: string;
  readonly k: Kernels;
}

const SUFFIX = process.platform === "darwin" ? "dylib" : "so";
const packageRoot = join(import.meta.dir, "../..");
const opened = new Map<BackendName, KernelLibrary>();
/** Inside a compiled program: paths of the libraries that it carries, used when no folder has one. Filled by whoever knows. */
export const embeddedLibraries = new Map<BackendName, string>();
let host: Host | undefined;

/** Folders that may hold the kernel libraries, in order of preference: BAO_KERNELS, this package's build folder, the platform package. */
export function kernelFolders(): string[] {
  const folders = [join(packageRoot, "build")];
  const override = env.BAO_KERNELS;
  if (override) folders.unshift(override);
  try {
    const manifest = Bun.resolveSync(`@bao-llm/${process.platform}-${process.arch}/package.json`, packageRoot);
    folders.push(join(manifest, ".."));
  } catch { /* the platform package is optional */ }
  return folders;
}

/** Path of a backend's library, or undefined when it has not been built or installed. */
export function findLibrary(backend: BackendName): string | undefined {
  // Off Apple machines there is only the emulated device of the tests, in a folder that nothing else looks into.
  if (backend === "metal" && process.platform !== "darwin") {
    const emulated = join(packageRoot, "build/metal-emulator/libmetal_kernels.so");
    return env.BAO_METAL_EMULATOR && existsSync(emulated) ? emulated : undefined;
  }
  return kernelFolders().map((f) => join(f, `lib${backend}_kernels.${SUFFIX}`)).find(existsSync) ?? embeddedLibraries.get(backend);
}

/** Opens a backend's kernel library (once per thread). Throws ResourceError `no_device`, `kernels_missing` or `kernels_mismatch`. */
export function openLibrary(backend: BackendName): KernelLibrary {
  const known = opened.get(backend);
  if (known) return known;
  const path = findLibrary(backend);
  if (!path) {
    if (backend === "metal" && process.platform !== "darwin") throw new ResourceError("no_device", "Metal needs macOS on Apple Silicon", "Use --device cpu or --device auto.");
    throw new ResourceError("kernels_missing", `lib${backend}_kernels.${SUFFIX} was not found in ${kernelFolders().join(", ")}`,
      `Run \`make ${backend}\` in the bao-llm folder, or point BAO_KERNELS at a folder that holds it.`);
  }
  const symbols = bind(backend, path, kernelSymbols);
  const version = symbols.bao_abi_version();
  if (version !== BAO.ABI_VERSION) {
    throw new ResourceError("kernels_mismatch", `${path} speaks ABI ${version}, this Bao speaks ${BAO.ABI_VERSION}`, `Rebuild it with \`make ${backend}\`.`);
  }
  const fail = failWith(() => ({ text: String(symbols.bao_last_error() ?? ""), status: symbols.bao_last_status() }));
  const k = bindKernels(symbols, fail);
  const library = { backend, path, k: env.BAO_TRACE ? traced(k) : k };
  opened.set(backend, library);
  return library;
}

/** The host functions of the CPU library (file maps, row conversion). */
export function openHost(): Host {
  if (host) return host;
  const { path, k } = openLibrary("cpu");
  const symbols = bind("cpu", path, hostSymbols);
  host = bindHost(symbols, failWith(() => ({ text: k.lastError(), status: k.lastStatus() })));
  return host;
}

// A library that is older than its header lacks symbols: that is its user's to mend, by building it again.
function bind<T extends typeof kernelSymbols | typeof hostSymbols>(backend: BackendName, path: string, symbols: T): Library<T>["symbols"] {
  try {
    return dlopen(path, symbols).symbols;
  } catch (e) {
    throw new ResourceError("kernels_unusable", `${path}: ${(e as Error).message}`, `Rebuild it with \`make ${backend}\`.`, { cause: e });
  }
}

function failWith(last: () => { text: string; status: number }): (fn: string, status: number) => never {
  return (fn, status) => {
    const { text, status: lastStatus } = last();
    throw statusError(fn, status < 0 ? lastStatus : status, text);
  };
}

/** The typed error of a failed call; `text` is bao_last_error(). */
export function statusError(fn: string, status: number, text: string): BaoError {
  const message = text || `${fn} failed with status ${status}`;
  switch (status & 0xff) {
    case BAO.OUT_OF_MEMORY: return new ResourceError("out_of_memory", message, "Use a smaller context, a smaller model or a smaller KV type.");
    case BAO.TIMEOUT: return new ResourceError("device_timeout", message, "Nothing is lost: try again, with fewer tokens at once where it happens again.");
    case BAO.DEVICE: return new ResourceError("device_lost", message, "Close the model and open it again.");
    case BAO.UNSUPPORTED:
      // Which instructions a processor has is no failure of a kernel.
      if (fn === "bao_device_open") return new ResourceError("device_unsupported", message, "Leave the choice to Bao: --isa auto, and --device cpu where no such device works.");
      return new KernelError("unsupported", message, fn, status, "This device cannot run it; try --device cpu.");
    case BAO.CANCELLED: return new KernelError("cancelled", message, fn, status);
    case BAO.INVALID: return new KernelError("invalid_argument", message, fn, status);
    default: return new KernelError("internal", message, fn, status, "This is a defect of Bao: please report it.");
  }
}
