// Measures one case on one device with mitata: a recording of as many ops as make a pass long enough, submitted and waited for again and again.
import { measure as sampled } from "mitata";
import type { Device } from "../../src/native/objects.ts";
import { openHost } from "../../src/native/library.ts";
import { BAO } from "../../src/native/symbols.ts";
import type { BenchCase } from "./case.ts";
import { cold, memoryBudget } from "./memory.ts";
import { BenchRig } from "./rig.ts";
import type { Peaks, Row } from "./results.ts";

/** A pass is at least this long, so that submitting and waking threads do not count, and no longer than the other where operands allow it. */
const SHORT_PASS_NS = 1e6;
const LONG_PASS_NS = 2e8;
const MAX_OPS = 2048;

export interface Budget {
  /** Seconds of samples a row. */
  readonly seconds: number;
  readonly minSamples: number;
}

/** Samples of fn in nanoseconds, never batched. */
export async function samples(fn: () => void, budget: Budget): Promise<{ time: Row["time"]; samples: number }> {
  const s = await sampled(fn, { min_cpu_time: budget.seconds * 1e9, min_samples: budget.minSamples, batch_threshold: 0, warmup_samples: 1 });
  return { time: { min: s.min, p25: s.p25, p50: s.p50, p75: s.p75, max: s.max }, samples: s.ticks };
}

const passTime = (rig: BenchRig): number => { const start = Bun.nanoseconds(); rig.run(); return Bun.nanoseconds() - start; };

/** How many ops a pass records: all copies, or as many as fit into a long pass, but two; short ones several times. */
function opsPerPass(rig: BenchRig, copies: number, op: (copy: number) => void): number {
  const probe = Math.min(copies, 4);
  rig.record(probe, copies, op);
  const first = passTime(rig), once = (first > LONG_PASS_NS ? first : passTime(rig)) / probe;
  const wanted = Math.max(copies, Math.ceil(SHORT_PASS_NS / once));
  return Math.max(1, Math.min(wanted, MAX_OPS, Math.max(Math.min(copies, 2), Math.floor(LONG_PASS_NS / once))));
}

/** One row, without its device. Throws what the device throws. */
export async function measureCase(device: Device, c: BenchCase, peaks: Peaks, budget: Budget): Promise<Omit<Row, "device">> {
  const rig = new BenchRig(device, c.step);
  try {
    const { copies, op } = c.prepare(rig);
    const count = opsPerPass(rig, copies, op);
    rig.record(count, copies, op);
    const { time, samples: n } = await samples(() => rig.run(), budget);
    const one = Object.fromEntries(Object.entries(time).map(([k, v]) => [k, v / count])) as unknown as Row["time"];
    const fromMemory = c.coldBytes > 0 && Math.min(count, copies) * c.coldBytes >= 0.9 * Math.min(cold.bytes, copies * c.coldBytes) && copies * c.coldBytes >= 0.5 * cold.bytes;
    return {
      op: c.op, model: c.model, site: c.site, dtype: c.dtype, rows: c.rows, shape: c.shape, time: one, samples: n, opsPerPass: count,
      bytes: c.bytes, flops: c.flops, operands: fromMemory ? "memory" : "cache", ...bound(device, c, peaks, one.p50),
    };
  } finally {
    rig.dispose();
  }
}

/** The peak that takes longer for this op bounds it. Quantised weights in fast precision meet int8 activations, everything else is f32. */
function bound(device: Device, c: BenchCase, peaks: Peaks, ns: number): Pick<Row, "bound" | "share"> {
  const quantised = device.precision !== "exact" && (c.op.includes("matmul") || c.op === "router") && /^(i?q\d|mxfp4|nvfp4)/.test(c.dtype);
  const kind = quantised ? "int8" : "f32", memoryNs = peaks.bytes > 0 ? (c.bytes / peaks.bytes) * 1e9 : 0;
  const computeNs = peaks[kind] > 0 ? (c.flops / peaks[kind]) * 1e9 : 0;
  if (memoryNs === 0 && computeNs === 0) return { bound: "none", share: 0 };
  return memoryNs >= computeNs ? { bound: "memory", share: memoryNs / ns } : { bound: kind, share: computeNs / ns };
}

// ---------------------------------------------------------------- peaks

const ISA: Record<string, number> = { base: BAO.ISA_BASE, avx2: BAO.ISA_AVX2, avx512: BAO.ISA_AVX512, neon: BAO.ISA_NEON };

/** Peaks of the device at its own number of threads. Takes a second or two. */
export async function measurePeaks(device: Device): Promise<Peaks> {
  const bytes = Math.min(Math.max(2 ** 28, 2 * cold.bytes), memoryBudget());
  if (device.backend !== "cpu") return { bytes: await copyPeak(device, bytes), f32: 0, int8: 0 };
  const host = openHost(), { threads, isa } = device.info, code = ISA[isa] ?? BAO.ISA_AUTO;
  return { bytes: host.hostReadBandwidth(threads, bytes, 5), f32: host.hostArithmetic(threads, code, BAO.ARITHMETIC_F32, 5), int8: host.hostArithmetic(threads, code, BAO.ARITHMETIC_INT8, 5) };
}

/** Bytes read and written a second by bao_copy on buffers far larger than the caches. */
export async function copyPeak(device: Device, bytes: number): Promise<number> {
  const columns = 2 ** 18, rows = Math.max(1, Math.floor(bytes / 2 / columns / 4));
  const rig = new BenchRig(device, { rows, prefill: true, depth: 0 });
  try {
    const buffers = [0, 1].map(() => rig.own(device.buffer(rows * columns * 4))), [x, dst] = buffers.map((b) => rig.own(b.view("step", rows, 1, columns)));
    rig.record(4, 1, () => rig.r.copy(dst!, x!));
    const { time } = await samples(() => rig.run(), { seconds: 0.2, minSamples: 5 });
    return (4 * 2 * rows * columns * 4 / time.min) * 1e9;
  } finally {
    rig.dispose();
  }
}
