// How long the GPU idles between submits of a run, by the device's clock: BAO_CUDA_STAMPS=stamps.tsv bao bench ...; bun scripts/cuda/idle.ts stamps.tsv [--last 256]
// A decode step is two submits, the forward pass and the draw. Two events a submit are what it costs: compare tokens a second with and without.
import { parseArgs } from "node:util";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { last: { type: "string" } } });
const submits = (await Bun.file(positionals[0]!).text()).trim().split("\n").map((line) => line.split("\t").map(Number) as [start: number, end: number]).slice(-Number(values.last ?? 256));
const gaps = submits.slice(1).map(([start], i) => start - submits[i]![1]), idle = gaps.reduce((sum, gap) => sum + gap, 0), whole = submits.at(-1)![1] - submits[0]![0];
const sorted = gaps.toSorted((a, b) => a - b);
console.log(`${submits.length} submits in ${(whole / 1000).toFixed(2)} ms: ${((idle / whole) * 100).toFixed(2)} % between the end of one and the start of the next (median ${sorted[sorted.length >> 1]!.toFixed(2)} us, longest ${sorted.at(-1)!.toFixed(2)} us)`);
