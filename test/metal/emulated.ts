// What tests of the Metal library ask of the emulated device beneath it: failures, counts, settings. BAO_METAL_EMULATOR=1 or nothing is run.
import { dlopen, FFIType as T } from "bun:ffi";
import { existsSync } from "node:fs";
import { join } from "node:path";

const library = join(import.meta.dir, "../../build/metal-emulator/libmetal_emulator.so");
/** Whether the emulated device is to be used here. */
export const EMULATED = process.env["BAO_METAL_EMULATOR"] === "1" && existsSync(library);
if (!EMULATED) console.warn("Metal host tests are skipped: they need make metal-emulated and BAO_METAL_EMULATOR=1");

const open = () => dlopen(library, {
  emu_fail_buffer: { args: [T.i64, T.i64, T.i64], returns: T.void }, emu_buffers: { args: [], returns: T.u64 }, emu_allocated: { args: [], returns: T.u64 },
  emu_resident: { args: [], returns: T.i64 }, emu_residency_requests: { args: [], returns: T.u64 },
}).symbols;
let symbols: ReturnType<typeof open> | undefined;
const emulator = (): ReturnType<typeof open> => (symbols ??= open());

/** The n-th command buffer from now fails with a code of MTLCommandBufferError, after `operations` of its operations. 0: none does. */
export const failBuffer = (n: number, code = 0, operations = 0): void => emulator().emu_fail_buffer(n, code, operations);
/** Command buffers that have run; bytes of Metal buffers that exist. */
export const buffersRun = (): number => Number(emulator().emu_buffers());
export const allocated = (): number => Number(emulator().emu_allocated());

/** Bytes that are asked to be resident, and how often that was asked for. */
export const resident = (): number => Number(emulator().emu_resident());
export const residencyRequests = (): number => Number(emulator().emu_residency_requests());

/** Sets an environment variable where C reads it, which assigning to process.env does not; "" unsets it. */
export function setC(name: string, value: string): void {
  const libc = dlopen("libc.so.6", { setenv: { args: [T.cstring, T.cstring, T.i32], returns: T.i32 } }).symbols;
  libc.setenv(Buffer.from(`${name}\0`), Buffer.from(`${value}\0`), 1);
}
