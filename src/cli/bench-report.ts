// Results of bao bench as text: tables, Markdown, CSV, JSON. Formats; measures nothing.
import { basename } from "node:path";
import { testName, type BenchResult, type StartTimes } from "../engine/bench.ts";
import { json } from "./output.ts";
import { bytes, milliseconds } from "./units.ts";

export type ReportFormat = "table" | "markdown" | "csv" | "json";

/** One test at one number of threads. `peak`: bytes a second that reading memory reaches there. */
export interface BenchRow { readonly threads: number; readonly peak: number | undefined; readonly result: BenchResult }

export interface BenchReport {
  readonly model: { readonly path: string; readonly name: string; readonly architecture: string; readonly bytes: number; readonly layers: number };
  readonly device: { readonly backend: string; readonly name: string; readonly isa: string; readonly precision: string; readonly kvType: string; readonly chunk: number };
  readonly date: string;
  readonly repetitions: number;
  /** One load for each number of threads. `peakRss` counts mapped pages of the model file, `allocated` does not; `ops` = ops of a step. */
  readonly runs: readonly { readonly threads: number; readonly start: StartTimes; readonly peak: number | undefined; readonly peakRss: number; readonly allocated: number; readonly ops: number }[];
  readonly rows: readonly BenchRow[];
}

type Table = readonly (readonly string[])[];

/** The report as text that ends with a newline; `ops` adds the time of each kind of op. */
export function render(report: BenchReport, format: ReportFormat, ops: boolean): string {
  switch (format) {
    case "json": return `${json(document(report))}\n`;
    case "csv": return csv([["model", ...Object.keys(flat(report.rows[0]!))], ...report.rows.map((row) => [basename(report.model.path), ...Object.values(flat(row)).map((v) => (v === undefined ? "" : String(v)))])]);
    default: return tables(report, format, ops);
  }
}

/** Everything, with derived figures beside the samples. */
function document(report: BenchReport): unknown {
  return { ...report, rows: report.rows.map((row) => ({ ...flat(row), samplesMs: row.result.samples, split: row.result.split, ops: row.result.ops })) };
}

/** One row's figures by name, with units in the names. */
function flat({ threads, peak, result }: BenchRow): Record<string, string | number | undefined> {
  const { test, split } = result, rate = gigabytes(result);
  return {
    test: testName(test), kind: test.kind, tokens: test.tokens, depth: test.depth, draw: test.sampling, threads,
    tokensPerSecond: result.tokensPerSecond, spread: result.spread, bytesPerToken: result.bytesPerToken, gbPerSecond: rate,
    shareOfReadPeak: share(rate, peak), ceilingTokensPerSecond: result.bytesPerToken === undefined || peak === undefined ? undefined : peak / result.bytesPerToken,
    wallMs: split.wall, kernelsMs: split.kernels, samplingMs: split.sampling, ffiMs: split.ffi, waitingMs: split.waiting, scriptMs: split.script, ffiCalls: split.calls,
    tokenizerMsPerToken: result.tokenizer,
  };
}
const gigabytes = (r: BenchResult): number | undefined => (r.bytesPerToken === undefined ? undefined : (r.bytesPerToken * r.tokensPerSecond) / 1e9);
const share = (gb: number | undefined, peak: number | undefined): number | undefined => (gb === undefined || peak === undefined ? undefined : (gb * 1e9) / peak);

function tables(report: BenchReport, format: "table" | "markdown", ops: boolean): string {
  const { model, device, rows, runs } = report, draw = format === "markdown" ? markdown : aligned, NONE = "-";
  const several = runs.length > 1;
  const speeds: Table = [
    ["test", "draw", "threads", "tok/s", "spread", "bytes/token", "GB/s", "of peak", "ceiling"],
    ...rows.map(({ threads, peak, result: r }) => {
      const gb = gigabytes(r), part = share(gb, peak);
      return [
        testName(r.test), r.test.sampling, String(threads), significant(r.tokensPerSecond), `${(100 * r.spread).toFixed(1)} %`,
        r.bytesPerToken === undefined ? NONE : bytes(r.bytesPerToken), gb === undefined ? NONE : gb.toFixed(2), part === undefined ? NONE : percent(part),
        r.bytesPerToken === undefined || peak === undefined ? NONE : significant(peak / r.bytesPerToken),
      ];
    }),
  ];
  const where: Table = [
    ["test", "draw", ...(several ? ["threads"] : []), "step", "kernels", "sampling", "FFI", "waiting", "script", "FFI calls", "tokenizer/token"],
    ...rows.map(({ threads, result: { test, split: s, tokenizer } }) => [
      testName(test), test.sampling, ...(several ? [String(threads)] : []), milliseconds(s.wall),
      ...[s.kernels, s.sampling, s.ffi, s.waiting, s.script].map((ms) => percent(ms / s.wall)), s.calls.toFixed(0), tokenizer === undefined ? NONE : `${(1000 * tokenizer).toFixed(2)} us`,
    ]),
  ];
  const starts: Table = [
    ["threads", "open", "tokenizer", "weights", "first token", "in all", "read peak", "peak RSS", "allocated"],
    ...runs.map(({ threads, start: s, peak, peakRss, allocated }) => [
      String(threads), ...[s.open, s.tokenizer, s.weights, s.firstToken, s.total].map(milliseconds), peak === undefined ? NONE : `${(peak / 1e9).toFixed(1)} GB/s`, bytes(peakRss), bytes(allocated),
    ]),
  ];
  const parts = [
    `${basename(model.path)}: ${model.architecture}, ${model.layers} layers, ${bytes(model.bytes)}; ${device.backend}: ${device.name}, ${device.isa}, ${device.precision}, KV ${device.kvType}, chunks of ${device.chunk}; ${report.repetitions} repetitions, median`,
    draw(speeds), `Where a step's time goes (one more run, with clocks on; a prefill is one step; ${runs[0]!.ops} ops)`, draw(where), "Start (prompt of 10 tokens) and memory", draw(starts),
  ];
  if (ops) for (const { threads, result: r } of rows) parts.push(`Ops of ${testName(r.test)}, ${r.test.sampling}${several ? `, ${threads} threads` : ""}`, draw(opTable(r)));
  return `${parts.join("\n\n")}\n`;
}

function opTable({ ops, split }: BenchResult): Table {
  return [["op", "count", "ms", "share"], ...ops.map((o) => [o.op, String(o.count), o.ms.toFixed(o.ms < 10 ? 3 : 1), percent(o.ms / split.wall)])];
}

/** Columns of equal width; the first one to the left, numbers to the right. */
function aligned(table: Table): string {
  const widths = table[0]!.map((_, i) => Math.max(...table.map((row) => row[i]!.length)));
  return table.map((row) => row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]!) : cell.padStart(widths[i]!))).join("  ").trimEnd()).join("\n");
}
function markdown(table: Table): string {
  const line = (row: readonly string[]): string => `| ${row.join(" | ")} |`;
  return [line(table[0]!), line(table[0]!.map((_, i) => (i === 0 ? "---" : "---:"))), ...table.slice(1).map(line)].join("\n");
}
function csv(table: Table): string {
  return `${table.map((row) => row.map((cell) => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell)).join(",")).join("\n")}\n`;
}
const significant = (n: number): string => (n >= 1000 ? n.toFixed(0) : n >= 100 ? n.toFixed(1) : n.toFixed(2));
const percent = (n: number): string => `${(100 * n).toFixed(1)} %`;
