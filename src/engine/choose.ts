// Which device runs a model: the one that was asked for, or metal, then cuda, then cpu. Says why; never falls back from an explicit choice.
import { BaoError, ResourceError } from "../errors.ts";
import { findLibrary, openLibrary, type BackendName } from "../native/library.ts";

export interface DeviceChoice {
  readonly backend: BackendName;
  /** Why this one, in words. */
  readonly why: string;
  /** Faster devices whose library is here and cannot be used. */
  readonly warnings: readonly string[];
}

/** Chooses the backend. Throws ResourceError when an explicitly named one is not built (`kernels_missing`) or has no device (`no_device`). */
export function chooseDevice(wanted: "auto" | BackendName): DeviceChoice {
  if (wanted !== "auto") {
    requireDevice(wanted);
    return { backend: wanted, why: "asked for", warnings: [] };
  }
  const passed: string[] = [], warnings: string[] = [];
  for (const backend of ["metal", "cuda"] as const) {
    // Off Apple machines a Metal library can only be the emulated one of the tests, which is there to be asked for by name.
    if (backend === "metal" && process.platform !== "darwin") { passed.push("metal needs macOS"); continue; }
    if (!findLibrary(backend)) { passed.push(`no ${backend} library`); continue; }
    try {
      requireDevice(backend);
      return { backend, why: ["auto", ...passed].join(", "), warnings };
    } catch (e) {
      if (!(e instanceof BaoError)) throw e;
      passed.push(`no ${backend} device`);
      // No GPU in the machine is ordinary; a library that does not load is not.
      if (e.code !== "no_device") warnings.push(e.message);
    }
  }
  return { backend: "cpu", why: ["auto", ...passed].join(", "), warnings };
}

function requireDevice(backend: BackendName): void {
  const { k } = openLibrary(backend);
  if (k.deviceCount() > 0) return;
  throw new ResourceError("no_device", `No ${backend} device: ${k.lastError() || "none was found"}`, "Use --device cpu or --device auto.");
}
