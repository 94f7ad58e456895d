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
