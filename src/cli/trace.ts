// What BAO_TRACE=1 prints at the end: FFI calls, submits, waits, and time by kind of op. Costs nothing when it is off.
import { env } from "../env.ts";
import type { LocalModel } from "../engine/model.ts";
import { BAO } from "../native/symbols.ts";
import { traceReport, type CallStats } from "../native/trace.ts";
import { colours, noteLine } from "./output.ts";
import { milliseconds } from "./units.ts";

const OP_NAMES = new Map(Object.entries(BAO).filter(([name]) => name.startsWith("OP_") && name !== "OP_COUNT").map(([name, kind]) => [kind as number, name.slice(3).toLowerCase()]));
/** Calls that wait for the device; on the CPU they are the work itself. */
const WAITS = new Set(["wait", "poll"]);

type Snapshot = Map<string, CallStats>;
const snapshot = (): Snapshot => new Map(traceReport().map(([name, s]) => [name, { ...s }]));

export interface Trace {
  /** Decoding begins: what comes from here on counts as decode steps. */
  decoding(): void;
  print(): void;
}

/** Starts counting, if BAO_TRACE says so. */
export function startTrace(model: LocalModel): Trace {
  if (!env.BAO_TRACE) return { decoding: () => {}, print: () => {} };
  model.runner.profile(true);
  const begin = snapshot();
  let decode: { at: number; calls: Snapshot } | undefined;
  return {
    decoding() { decode ??= { at: Bun.nanoseconds(), calls: snapshot() }; },
    print() {
      const end = snapshot(), now = Bun.nanoseconds(), c = colours(2);
      noteLine(c.bold("FFI calls"));
      for (const [name, calls, ns] of difference(begin, end)) noteLine(`  ${name.padEnd(24)} ${String(calls).padStart(9)} calls ${milliseconds(ns / 1e6).padStart(10)} ${(ns / calls / 1000).toFixed(2).padStart(10)} us each`);
      const ops = [...model.runner.opTimes()].sort((a, b) => b[1].nanoseconds - a[1].nanoseconds);
      const total = ops.reduce((n, [, t]) => n + t.nanoseconds, 0);
      noteLine(c.bold("Ops, all steps"));
      for (const [kind, t] of ops) noteLine(`  ${(OP_NAMES.get(kind) ?? `op ${kind}`).padEnd(24)} ${String(t.count).padStart(4)} a step ${milliseconds(t.nanoseconds / 1e6).padStart(14)} ${((100 * t.nanoseconds) / (total || 1)).toFixed(1).padStart(8)} %`);
      if (!decode) return;
      const calls = difference(decode.calls, end);
      const steps = (calls.find(([name]) => name === "submit")?.[1] ?? 0) / 2; // forward and sample
      const bridge = calls.filter(([name]) => !WAITS.has(name)).reduce((n, [, , ns]) => n + ns, 0), all = now - decode.at;
      if (steps > 0) noteLine(`${c.bold("Decode step")}  ${milliseconds(all / steps / 1e6)}, of which ${(bridge / steps / 1000).toFixed(1)} us (${((100 * bridge) / all).toFixed(2)} %) in FFI calls other than waiting, tracing included`);
    },
  };
}

function difference(from: Snapshot, to: Snapshot): [name: string, calls: number, nanoseconds: number][] {
  return [...to].map(([name, s]): [string, number, number] => [name, s.calls - (from.get(name)?.calls ?? 0), s.nanoseconds - (from.get(name)?.nanoseconds ?? 0)]).filter(([, calls]) => calls > 0);
}
