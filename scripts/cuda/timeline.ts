// Reads what timeline.cpp recorded: bun scripts/cuda/timeline.ts kernels.tsv [--steps 20] [--one]
// A step is what lies between two starts of a forward pass. Prints the median step: time in kernels, gaps, idle between steps, and each kernel's share;
// --one lists every launch of one step in order.
import { parseArgs } from "node:util";

interface Launch { start: number; end: number; grid: string; block: number; registers: number; shared: number; name: string }

const { values, positionals } = parseArgs({ allowPositionals: true, options: { steps: { type: "string" }, one: { type: "boolean" } } });
const launches: Launch[] = (await Bun.file(positionals[0]!).text()).split("\n").filter((line) => line.split("\t").length === 7).map((line) => {
  const [start, end, grid, block, registers, shared, name] = line.split("\t") as [string, string, string, string, string, string, string];
  return { start: Number(start), end: Number(end), grid, block: Number(block), registers: Number(registers), shared: Number(shared), name: short(name) };
}).sort((a, b) => a.start - b.start);

/** A mangled name down to what tells kernels apart. */
function short(name: string): string {
  return name.replace(/^_ZN?/, "").replace(/\d+bao\d*|_GLOBAL__N__[0-9a-f_]+(cu_[0-9a-f_]+)?|E?v?P?K?N?S_.*$/g, "").slice(0, 60);
}

// Every submit starts with begin_kernel; the forward pass and the draw are two of them, so a step is a pair.
const begins = launches.flatMap((l, i) => (l.name.includes("begin_kernel") ? [i] : []));
const most = Number(values.steps ?? 20), steps: Launch[][] = [];
for (let b = Math.max(0, begins.length - 1 - 2 * most); b + 2 < begins.length; b += 2) steps.push(launches.slice(begins[b], begins[b + 2]));
const us = (ns: number): string => (ns / 1000).toFixed(1).padStart(9);
const median = (v: number[]): number => v.sort((a, b) => a - b)[v.length >> 1] ?? 0;

/** Nanoseconds in which at least one launch ran: with dependent launch two overlap. */
function busy(step: readonly Launch[]): number {
  let sum = 0, until = 0;
  for (const l of step) { sum += Math.max(0, l.end - Math.max(l.start, until)); until = Math.max(until, l.end); }
  return sum;
}
const wall = median(steps.map((s, i) => (steps[i + 1]?.[0]?.start ?? s.at(-1)!.end) - s[0]!.start)), busyTime = median(steps.map(busy));
console.log(`${steps.length} steps; median: ${us(wall)} us from start to start, ${us(busyTime)} us with a kernel running (${((busyTime / wall) * 100).toFixed(1)} %), ${median(steps.map((s) => s.length))} launches`);

const kinds = new Map<string, { count: number; ns: number; launch: Launch }>();
for (const l of steps.flat()) {
  const key = `${l.name} ${l.grid}`, k = kinds.get(key) ?? { count: 0, ns: 0, launch: l };
  k.count++;
  k.ns += l.end - l.start;
  kinds.set(key, k);
}
console.log("us a step   count   us each   grid x block, registers, shared   kernel");
for (const k of [...kinds.values()].sort((a, b) => b.ns - a.ns).slice(0, 40)) {
  console.log(`${us(k.ns / steps.length)} ${(k.count / steps.length).toFixed(1).padStart(7)} ${us(k.ns / k.count)}   ${k.launch.grid} x ${k.launch.block}, ${k.launch.registers}, ${k.launch.shared}   ${k.launch.name}`);
}
if (values.one) {
  const step = steps.at(-1)!;
  let before = step[0]!.start;
  for (const l of step) { console.log(`${us(l.start - step[0]!.start)} gap ${us(l.start - before)} takes ${us(l.end - l.start)}  ${l.grid} x ${l.block}  ${l.name}`); before = l.end; }
}
