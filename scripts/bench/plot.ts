// `bun run bench:plot IN.json`: draws the roofline of each device and a bar for each row's share of its peak, as SVG files beside the input.
import { writeFileSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { parseArgs } from "node:util";
import { BaoError, UsageError } from "../../src/errors.ts";
import { formatTime, readResults, spread, type DeviceResult, type Results, type Row } from "./results.ts";
import { caseName } from "./select.ts";
import { decades, logScale, Svg } from "./svg.ts";

// Okabe and Ito's colours, which colour-blind readers tell apart.
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999"];
const AXIS = { fill: "#555" } as const, GRID = { stroke: "#e4e4e4" } as const;

const deviceTitle = (d: DeviceResult): string => `${d.name}, ${d.backend} ${d.isa}, ${d.threads} threads, ${d.precision}`;
const tick = (v: number): string => (v >= 1e-3 && v < 1e5 ? String(Number(v.toPrecision(1))) : v.toExponential(0).replace("e+", "e"));

/** Operations a second against operations a byte, under the roofs that were measured in the same run. */
export function roofline(results: Results, device: number): string {
  const d = results.devices[device]!, rows = results.rows.filter((r) => r.device === device && r.flops > 0 && r.bytes > 0);
  if (rows.length === 0) throw new UsageError("usage", "no row counts operations: nothing to draw a roofline from", "Measure matmul or attention rows.");
  const intensity = (r: Row): number => r.flops / r.bytes, speed = (r: Row): number => r.flops / r.time.p50;
  const roofs = [["int8 dot", d.peaks.int8 / 1e9], ["f32 multiply-add", d.peaks.f32 / 1e9]].filter(([, v]) => (v as number) > 0) as [string, number][];
  const xs = decades(Math.min(...rows.map(intensity)), Math.max(...rows.map(intensity), ...roofs.map(([, v]) => v / (d.peaks.bytes / 1e9))));
  const ys = decades(Math.min(...rows.map(speed)), Math.max(...rows.map(speed), ...roofs.map(([, v]) => v)));
  const svg = new Svg(960, 600, `Roofline: ${deviceTitle(d)}`), left = 70, right = 740, top = 50, bottom = 540;
  const x = logScale(xs[0]!, xs.at(-1)!, left, right), y = logScale(ys[0]!, ys.at(-1)!, bottom, top);
  svg.text(left, 26, svg.title, { "font-size": 15 });
  for (const v of xs) { svg.line(x(v), top, x(v), bottom, GRID); svg.text(x(v), bottom + 18, tick(v), { "text-anchor": "middle", ...AXIS }); }
  for (const v of ys) { svg.line(left, y(v), right, y(v), GRID); svg.text(left - 8, y(v) + 4, tick(v), { "text-anchor": "end", ...AXIS }); }
  svg.text((left + right) / 2, bottom + 40, "operations per byte moved", { "text-anchor": "middle" });
  svg.text(18, (top + bottom) / 2, "Gop/s", { "text-anchor": "middle", transform: `rotate(-90 18 ${(top + bottom) / 2})` });
  const memory = d.peaks.bytes / 1e9, highest = roofs.length > 0 ? Math.max(...roofs.map(([, v]) => v)) : ys.at(-1)!;
  if (memory > 0) {
    const from = Math.max(xs[0]!, ys[0]! / memory), to = Math.min(xs.at(-1)!, highest / memory);
    svg.line(x(from), y(from * memory), x(to), y(to * memory), { "stroke-width": 2 });
    svg.text(x(from) + 6, y(from * memory) - 8, `memory ${memory.toFixed(1)} GB/s`, { transform: `rotate(${(Math.atan2(y(to * memory) - y(from * memory), x(to) - x(from)) * 180) / Math.PI} ${x(from)} ${y(from * memory)})` });
  }
  for (const [name, value] of roofs) {
    svg.line(memory > 0 ? x(Math.max(xs[0]!, value / memory)) : left, y(value), right, y(value), { "stroke-width": 2 });
    svg.text(right - 4, y(value) - 6, `${name} ${value.toFixed(0)} Gop/s`, { "text-anchor": "end" });
  }
  const ops = [...new Set(rows.map((r) => r.op))];
  for (const r of rows) {
    const colour = COLOURS[ops.indexOf(r.op) % COLOURS.length]!;
    svg.dot(x(intensity(r)), y(speed(r)), 4, `${caseName(r)}: ${formatTime(r.time.p50)}, ${speed(r).toFixed(1)} Gop/s, ${(100 * r.share).toFixed(0)} % of ${r.bound}`,
      { fill: r.operands === "memory" ? colour : "none", stroke: colour, "fill-opacity": 0.7 });
  }
  ops.forEach((op, i) => { svg.dot(right + 24, top + 10 + i * 20, 5, op, { fill: COLOURS[i % COLOURS.length]! }); svg.text(right + 36, top + 14 + i * 20, op); });
  svg.text(right + 18, top + 30 + ops.length * 20, "hollow: operands in caches", AXIS);
  return svg.toString();
}

/** Share of the bound's peak of every row whose operands come from memory. */
export function bars(results: Results, device: number): string {
  const d = results.devices[device]!, rows = results.rows.filter((r) => r.device === device && r.bound !== "none" && r.operands === "memory");
  if (rows.length === 0) throw new UsageError("usage", "no row takes its operands from memory: nothing to draw bars from", "Measure matmul, moe or attention rows.");
  const label = 380, full = 420, pitch = 16, top = 80, scale = full / Math.max(1, ...rows.map((r) => r.share));
  const svg = new Svg(label + full + 150, top + rows.length * pitch + 20, `Share of the measured peak: ${deviceTitle(d)}`), bottom = svg.height - 20;
  svg.text(20, 26, svg.title, { "font-size": 15 });
  for (let share = 0; share * scale <= full + 0.5; share += 0.25) {
    svg.line(label + share * scale, top - 6, label + share * scale, bottom, share === 1 ? { stroke: "#888" } : GRID);
    svg.text(label + share * scale, top - 10, `${share * 100} %`, { "text-anchor": "middle", ...AXIS });
  }
  const bounds = ["memory", "int8", "f32"];
  rows.forEach((r, i) => {
    const y = top + i * pitch, end = label + r.share * scale, half = spread(r) * r.share * scale;
    svg.text(label - 8, y + 11, caseName(r), { "text-anchor": "end", "font-size": 11 });
    svg.rect(label, y + 2, r.share * scale, pitch - 4, { fill: COLOURS[bounds.indexOf(r.bound)]! });
    svg.line(end - half, y + pitch / 2, end + half, y + pitch / 2, { stroke: "#222" });
    svg.text(Math.max(end + half, end) + 6, y + 11, r.bound === "memory" ? `${(r.bytes / r.time.p50).toFixed(1)} GB/s` : `${(r.flops / r.time.p50).toFixed(0)} Gop/s`, { "font-size": 11 });
  });
  bounds.forEach((bound, i) => { svg.rect(20 + i * 90, 40, 10, 10, { fill: COLOURS[i]! }); svg.text(35 + i * 90, 49, bound); });
  return svg.toString();
}

/** Writes NAME.roofline.svg and NAME.bars.svg (with the backend's name when there are several devices); gives the paths. */
export function writePlots(input: string, folder = dirname(input)): string[] {
  const results = readResults(input), name = basename(input).replace(/\.json$/, ""), written: string[] = [], reasons: string[] = [];
  results.devices.forEach((d, i) => {
    for (const [kind, draw] of [["roofline", roofline], ["bars", bars]] as const) {
      const path = join(folder, `${name}${results.devices.length > 1 ? `.${d.backend}` : ""}.${kind}.svg`);
      try {
        writeFileSync(path, draw(results, i));
        written.push(path);
      } catch (e) {
        if (!(e instanceof UsageError)) throw e;
        reasons.push(e.message);
      }
    }
  });
  if (written.length === 0) throw new UsageError("usage", reasons[0] ?? `${input} holds no device`, "Measure matmul, moe or attention rows.");
  return written;
}

if (import.meta.main) {
  try {
    const { values, positionals } = parseArgs({ allowPositionals: true, options: { out: { type: "string" } } });
    if (positionals.length !== 1) throw new UsageError("usage", "one file that --json wrote is needed", "bun run bench:plot IN.json [--out FOLDER]");
    for (const path of writePlots(positionals[0]!, values.out)) process.stdout.write(`${path}\n`);
  } catch (e) {
    process.stderr.write(`bench:plot: ${(e as Error).message}\n${e instanceof BaoError && e.hint ? `${e.hint}\n` : ""}`);
    process.exitCode = 2;
  }
}
