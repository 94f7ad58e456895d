// Calls every function of the headers with arguments that make no sense, many times, then does a sum. Run as a program of its own by
// garbage.test.ts: what it must not do is end early. Usage: bun garbage_calls.ts SEED CALLS
import { dlopen } from "bun:ffi";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { parseHeader } from "../../scripts/abi.ts";
import { findLibrary } from "../../src/native/library.ts";
import { Device } from "../../src/native/objects.ts";
import { BAO, hostSymbols, kernelSymbols } from "../../src/native/symbols.ts";
import { Random, Rig, TEST_BACKEND } from "./harness.ts";

const root = join(import.meta.dir, "../.."), fns = ["bao.h", ...(TEST_BACKEND === "cpu" ? ["host.h"] : [])].flatMap((name) => parseHeader(readFileSync(join(root, "kernels", name), "utf8")).fns);
const symbols = dlopen(findLibrary(TEST_BACKEND)!, (TEST_BACKEND === "cpu" ? { ...kernelSymbols, ...hostSymbols } : kernelSymbols) as typeof kernelSymbols).symbols as unknown as Record<string, (...args: unknown[]) => unknown>;
const random = new Random(Number(process.argv[2])), calls = Number(process.argv[3]);
const pick = <T>(list: readonly T[]): T => list[random.below(list.length)]!;

const DOUBLES = [0, 1, 4, 64, 128, 256, 1024, 4096, -1, 0.5, NaN, Infinity, -Infinity, 2 ** 31, 2 ** 53, 2 ** 53 + 2, 1e300, -1e300, 5e-324];
const INTS = [0, 1, 2, 3, 4, 8, 10, 12, 16, 30, 32, 64, 97, 256, 1024, -1, -2, 65_536, 0x7fffffff, -0x80000000, 0x10000];
const FLOATS = [0, 1, -1, 1e-6, 10_000, NaN, Infinity, -Infinity, 3.4e38, 1e-45];
const memory = new Uint8Array(new ArrayBuffer(1 << 22)), text = new TextEncoder().encode("/nowhere/at/all\0");

let device: Device | undefined, handles: number[] = [];

/** A device with one object of each kind, some of them usable together. */
function renew(): void {
  device?.dispose();
  device = new Device({ backend: TEST_BACKEND, threads: 2, precision: pick(["exact", "fast"] as const) });
  const rig = new Rig(device, { maxRows: 16, maxOutputs: 8, maxSequences: 4, vocabulary: 97, maxBias: 4, pages: [4, 4] });
  const views = [rig.view(16, 1, 32), rig.view(16, 1, 32), rig.view(16, 2, 32), rig.view(16, 2, 16), rig.view(8, 1, 97, { rowsOf: "output" }), rig.view(16, 1, 2, { dtype: "i32" }), rig.view(16, 1, 2), rig.view(4, 1, 32, { rowsOf: "fixed" })];
  const weights = [rig.weight({ dtype: BAO.Q8_0, rows: 97, columns: 32 }), rig.weight({ dtype: BAO.F16, rows: 32, columns: 32 }), rig.weight({ dtype: BAO.Q4_0, rows: 32, columns: 32, experts: 4 }), rig.vector(new Random(1).f32(32)), rig.vector(new Random(1).f32(4))];
  const pool = rig.pool({ kvHeads: 2, headDim: 32, type: "f16", pages: 2, maxPages: 4 });
  rig.stream.record(() => undefined);
  device.k.streamBegin(rig.stream.handle);
  handles = [...views, ...views.map((v) => v.buffer), ...weights, pool, rig.step, rig.stream, rig.stream].map((o) => o.handle);
}

const handle = (): number => (random.below(8) === 0 ? pick(DOUBLES) : random.below(12) === 0 ? pick(handles) + 2 ** 20 : random.below(20) === 0 ? device!.handle : pick(handles));

// Not so many bytes as to pass the caller's memory, nor to measure a bandwidth for minutes.
const withMemory = new Set(fns.filter((fn) => fn.name === "bao_host_read_bandwidth" || fn.parameters.some((p) => p.type.endsWith("void*")) || fn.name === "bao_buffer_create").map((fn) => fn.name));

function argument(fn: string, type: string, name: string): unknown {
  // The only arguments that C cannot check: memory of the caller. Ours is larger than any size below that passes the other checks.
  if (type.endsWith("void*")) return random.below(4) === 0 ? 0 : memory;
  if (type === "const char*") return pick([text, 0]);
  if (type === "bao_handle") {
    if (name === "device" || fn === "bao_device_close") return fn === "bao_device_close" ? pick(DOUBLES) : random.below(4) === 0 ? handle() : device!.handle;
    return handle();
  }
  if (type === "float") return pick(FLOATS);
  if (type === "double") return name === "timeoutMs" ? pick([0, 1, -1, NaN, -Infinity]) : pick(withMemory.has(fn) ? DOUBLES.filter((d) => d !== 2 ** 31) : DOUBLES);
  // As many values as our memory holds.
  if (fn === "bao_vector_create") return pick([-1, 0, 1, 32, 97, 1 << 20]);
  if (name === "passes") return pick([-1, 0, 1, 2000, 1 << 30]); // of a measurement
  // No thousands of threads.
  if (fn === "bao_host_arithmetic" && name === "passes") return pick([-1, 0, 1, 2, 1 << 30]);
  return (fn === "bao_device_open" || fn.startsWith("bao_host_")) && name === "threads" ? pick([-1, 1, 2, 1 << 30]) : pick(INTS);
}

renew();
for (let i = 0; i < calls; i++) {
  const fn = fns[random.below(fns.length)]!;
  // Only the CPU library knows which addresses are mapped files.
  if (fn.name === "bao_map_create" && TEST_BACKEND !== "cpu") continue;
  const result = symbols[fn.name]!(...fn.parameters.map((p) => argument(fn.name, p.type, p.name)));
  if (fn.returns === "bao_handle" && result !== 0 && fn.name !== "bao_device_open") handles.push(result as number);
  if (fn.name === "bao_device_open" && result !== 0) symbols["bao_device_close"]!(result);
  if (i % 400 === 399) renew();
}
renew();
const rig = new Rig(device!), x = rig.input(Float32Array.of(1, 2), 1, 1), y = rig.input(Float32Array.of(10, 20), 1, 1);
rig.run({ rows: 2, outputs: [] }, (r) => r.add(x, x, y));
console.log(`after ${calls} calls: ${[...rig.f32(x)].join(" ")}`);
