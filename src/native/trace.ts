// FFI tracing (BAO_TRACE=1): counts and times every call of a bound library. Without the variable none of this is on the path.
import type { Kernels } from "./symbols.ts";

/** Calls and total nanoseconds of one function. */
export interface CallStats { calls: number; nanoseconds: number }

const stats = new Map<string, CallStats>();

/** Wraps every function of `k` so that `traceReport` can tell how often it ran and how long it took. */
export function traced(k: Kernels): Kernels {
  const wrapped: Record<string, unknown> = {};
  for (const [name, f] of Object.entries(k) as [string, (...args: unknown[]) => unknown][]) {
    const s: CallStats = { calls: 0, nanoseconds: 0 };
    stats.set(name, s);
    wrapped[name] = (...args: unknown[]): unknown => {
      const start = Bun.nanoseconds();
      try { return f(...args); } finally { s.calls++; s.nanoseconds += Bun.nanoseconds() - start; }
    };
  }
  return wrapped as unknown as Kernels;
}

/** Functions that were called, most time first. `wait` includes the device's work on a CPU. */
export function traceReport(): [name: string, stats: CallStats][] {
  return [...stats].filter(([, s]) => s.calls > 0).sort((a, b) => b[1].nanoseconds - a[1].nanoseconds);
}

/** Counts and times every call through `k` from now on, whatever BAO_TRACE says; the result stops that and gives the calls by name. For benchmarks. */
export function countCalls(k: Kernels): () => Map<string, CallStats> {
  const calls = new Map<string, CallStats>(), record = k as unknown as Record<string, (...args: unknown[]) => unknown>;
  const originals = Object.entries(record);
  for (const [name, f] of originals) {
    const s: CallStats = { calls: 0, nanoseconds: 0 };
    record[name] = (...args: unknown[]): unknown => {
      if (s.calls === 0) calls.set(name, s);
      const start = Bun.nanoseconds();
      try { return f(...args); } finally { s.calls++; s.nanoseconds += Bun.nanoseconds() - start; }
    };
  }
  return () => {
    for (const [name, f] of originals) record[name] = f;
    return calls;
  };
}
