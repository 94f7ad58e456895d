// What the bridge between TypeScript and the kernels costs: one call, recording a step of 500 ops, and the share of calls in a decode step
// of that many ops at the shapes of E2B.
import { do_not_optimize, measure } from "mitata";
import type { Device } from "../../src/native/objects.ts";
import { samples, type Budget } from "./measure.ts";
import { MODELS } from "./models.ts";
import type { Row } from "./results.ts";
import { BenchRig, type MatrixShape } from "./rig.ts";

const OPS = 500;
const DEPTH = 512;
/** How long the engine waits at a time before it looks at its messages. */
const WAIT_NS = 20e6;

type FfiRow = Omit<Row, "device">;

function row(site: string, time: Row["time"], count: number, opsPerPass: number, note?: string): FfiRow {
  return { op: "ffi", model: "e2b", site, dtype: "f32", rows: 1, shape: "", time, samples: count, opsPerPass, bytes: 0, flops: 0, operands: "cache", bound: "none", share: 0, ...(note ? { note } : {}) };
}

/** Mean costs of calls that take nanoseconds: mitata runs them in batches of thousands. */
async function call(site: string, fn: () => unknown): Promise<FfiRow> {
  const s = await measure(() => do_not_optimize(fn()), { min_cpu_time: 5e7, min_samples: 5 });
  return row(site, { min: s.min, p25: s.p25, p50: s.p50, p75: s.p75, max: s.max }, s.ticks, 1);
}

export async function ffiRows(device: Device, budget: Budget): Promise<FfiRow[]> {
  const m = MODELS[0]!, a = m.attention[0]!, d = m.hidden, f = m.ffns[0]!.width, p = m.perLayerWidth;
  const rig = new BenchRig(device, { rows: 1, prefill: false, depth: DEPTH, window: a.window });
  try {
    const q = a.heads * a.headDim, kv = a.kvHeads * a.headDim, matrix = (rows: number, columns: number): MatrixShape => ({ type: "Q4_K", rows, columns });
    const sets = rig.weights([matrix(q, d), matrix(kv, d), matrix(kv, d), matrix(d, q), matrix(f, d), matrix(f, d), matrix(d, f), matrix(p, d), matrix(d, p)]);
    const pool = rig.pool({ layers: 32, kvHeads: a.kvHeads, headDim: a.headDim, type: "f16" });
    const [x, n, o2] = [0, 1, 2].map(() => rig.view(1, d)), w = rig.vector(d), wh = rig.vector(a.headDim), h = rig.view(1, f), g = rig.view(1, p), ple = rig.view(1, p), table = rig.view(2, a.nRot / 2);
    // The same memory as a row and as heads, as the model has it.
    const both = (heads: number): ReturnType<BenchRig["view"]>[] => { const flat = rig.view(1, heads * a.headDim); return [flat, rig.own(flat.buffer.view("step", 1, heads, a.headDim))]; };
    const [q1, qh] = both(a.heads), [k1, kh] = both(a.kvHeads), [v1, vh] = both(a.kvHeads), [o1, oh] = both(a.heads), { r } = rig;
    // One layer of the graph of src/model/graph.ts, 12 ops.
    const layer = (l: number): void => {
      const [wq, wk, wv, wo, gate, up, down, pleGate, pleProjection] = sets[l % sets.length]!;
      r.matmulGroup([q1!, k1, v1], n!, [wq!, wk, wv]);
      r.headNormRopeAppend(qh!, kh, vh, wh, wh, table, "neox", pool, l % 32, true, m.eps);
      r.attention(oh!, qh!, pool, l % 32, a.window, 1);
      r.matmul(o2!, o1!, wo!);
      r.normAddNorms(x!, [n!], x!, o2!, w, [w], 1, m.eps, 1);
      r.matmulGlu(h, n!, gate!, up, "gelu");
      r.matmul(o2!, h, down!);
      r.normAdd(x!, x!, o2!, w, m.eps);
      r.matmul(g, x!, pleGate!);
      r.glu(g, g, ple, "gelu");
      r.matmul(o2!, g, pleProjection!);
      r.normAddNorms(x!, [n!], x!, o2!, w, [w], 1, m.eps, 1);
    };
    const body = (): void => { for (let l = 0; l < Math.floor(OPS / 12); l++) layer(l); for (let i = 0; i < OPS % 12; i++) r.add(x!, x!, n!); };
    const { k } = device, s = rig.stream.handle;

    const out = [await call("a call without arguments", () => k.abiVersion()), await call("a call with a handle", () => k.streamOps(s))];
    k.streamBegin(s);
    const adds = await samplesOf(() => { k.streamBegin(s); for (let i = 0; i < OPS; i++) k.add(s, x!.handle, x!.handle, n!.handle); }, budget);
    out.push(row("recording one add", scaled(adds.time, OPS), adds.samples, OPS));
    const recording = await samplesOf(() => rig.stream.record(body), budget);
    out.push(row(`recording ${OPS} ops`, recording.time, recording.samples, 1));

    rig.run();
    const submit: number[] = [], step: number[] = [], began = Bun.nanoseconds();
    while (step.length < 2 * budget.minSamples || Bun.nanoseconds() - began < 5e9 * budget.seconds) {
      const t0 = Bun.nanoseconds();
      rig.stream.submit(0);
      const t1 = Bun.nanoseconds();
      while (rig.stream.wait(0, WAIT_NS / 1e6) === "pending") { /* as the engine does */ }
      submit.push(t1 - t0);
      step.push(Bun.nanoseconds() - t0);
    }
    const wait = await call("wait for a finished step", () => k.wait(s, 0, 20)), poll = await call("poll a finished step", () => k.poll(s, 0));
    const submitted = quantiles(submit), steps = quantiles(step), waits = Math.ceil(steps.p50 / WAIT_NS);
    const calls = submitted.p50 + waits * wait.time.p50 + poll.time.p50, percent = (ns: number): string => `${((100 * ns) / steps.p50).toFixed(3)}%`;
    out.push(row("submit", submitted, submit.length, 1), wait, poll);
    out.push(row(`decode step of ${OPS} ops`, steps, step.length, 1, `FFI ${percent(calls)} (submit, ${waits} waits, poll); ${percent(calls + recording.time.p50)} if recorded anew each step`));
    return out;
  } finally {
    rig.dispose();
  }
}

const samplesOf = (fn: () => void, budget: Budget): ReturnType<typeof samples> => samples(fn, { ...budget, minSamples: 20 });
const scaled = (t: Row["time"], by: number): Row["time"] => ({ min: t.min / by, p25: t.p25 / by, p50: t.p50 / by, p75: t.p75 / by, max: t.max / by });

function quantiles(values: number[]): Row["time"] {
  const v = values.toSorted((x, y) => x - y), at = (q: number): number => v[Math.floor(q * (v.length - 1))]!;
  return { min: at(0), p25: at(0.25), p50: at(0.5), p75: at(0.75), max: at(1) };
}
