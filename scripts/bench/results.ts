// What a run of benchmarks leaves: JSON of this shape, and its table for people. Two of them can be compared.
import { readFileSync } from "node:fs";
import { UsageError } from "../../src/errors.ts";

/** Peaks of one device, measured in the same run with the same threads; 0 = not measured there. */
export interface Peaks {
  /** Bytes a second: a read-only loop over memory on the CPU, a copy (read and written bytes) elsewhere. */
  readonly bytes: number;
  /** Operations a second in registers: f32 multiply-adds, and int8 dot products. */
  readonly f32: number;
  readonly int8: number;
}

export interface DeviceResult {
  readonly backend: string;
  readonly name: string;
  readonly isa: string;
  readonly threads: number;
  readonly precision: string;
  /** Before the first row, which shares refer to, and after the last. */
  readonly peaks: Peaks;
  readonly peaksAfter?: Peaks;
}

export interface Row {
  /** Index into `devices`. */
  readonly device: number;
  readonly op: string;
  readonly model: string;
  readonly site: string;
  readonly dtype: string;
  readonly rows: number;
  readonly shape: string;
  /** Nanoseconds of one op: each sample is a pass over `opsPerPass` of them, submitted and waited for. */
  readonly time: { readonly min: number; readonly p25: number; readonly p50: number; readonly p75: number; readonly max: number };
  readonly samples: number;
  readonly opsPerPass: number;
  readonly bytes: number;
  readonly flops: number;
  /** memory: weights or KV come from main memory. cache: operands stay in caches between two ops, as in a step. */
  readonly operands: "memory" | "cache";
  /** Which peak bounds the op, and the share of it that was reached; "none" when no peak is known. */
  readonly bound: "memory" | "f32" | "int8" | "none";
  readonly share: number;
  readonly note?: string;
}

export interface Results {
  readonly format: "bao-bench";
  readonly version: 1;
  readonly date: string;
  readonly machine: { readonly platform: string; readonly arch: string; readonly cpu: string; readonly bun: string };
  /** Bytes that a pass touches at least where operands are "memory". */
  readonly coldBytes: number;
  readonly devices: DeviceResult[];
  readonly rows: Row[];
  readonly skipped: { readonly device: number; readonly name: string; readonly reason: string }[];
}

/** Reads a file that --json wrote. Throws UsageError for anything else. */
export function readResults(path: string): Results {
  let found: Partial<Results>;
  try {
    found = JSON.parse(readFileSync(path, "utf8")) as Partial<Results>;
  } catch (e) {
    throw new UsageError("usage", `${path}: ${(e as Error).message}`, "Give a file that --json wrote.");
  }
  if (found.format !== "bao-bench" || found.version !== 1 || !Array.isArray(found.rows)) throw new UsageError("usage", `${path} is no benchmark result`, "Give a file that --json wrote.");
  return found as Results;
}

// ---------------------------------------------------------------- table

export function formatTime(ns: number): string {
  if (ns >= 1e9) return `${(ns / 1e9).toFixed(2)} s`;
  if (ns >= 1e6) return `${(ns / 1e6).toFixed(2)} ms`;
  return ns >= 1e3 ? `${(ns / 1e3).toFixed(2)} us` : `${ns.toFixed(1)} ns`;
}
export function formatBytes(bytes: number): string {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(2)} GB`;
  return bytes >= 1e6 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e3).toFixed(1)} kB`;
}

/** Half of the distance between the quartiles, as a share of the median. */
export const spread = (row: Row): number => (row.time.p75 - row.time.p25) / 2 / row.time.p50;

const COLUMNS = [["op", 22], ["model", 8], ["site", 24], ["dtype", 6], ["n", -4], ["time", -10], ["+-", -6], ["bytes", -9], ["GB/s", -8], ["GFLOP/s", -8], ["bound", 7], ["peak", -7]] as const;

function line(cells: readonly string[]): string {
  return cells.map((cell, i) => { const width = COLUMNS[i]?.[1] ?? 0; return width < 0 ? cell.padStart(-width) : cell.padEnd(width); }).join(" ").trimEnd();
}

export const tableHead = (): string => line(COLUMNS.map(([name]) => name));

/** One row of the table; "~" marks shares of operands that stay in caches. */
export function tableRow(row: Row): string {
  const { p50 } = row.time;
  return line([
    row.op, row.model, row.site, row.dtype, String(row.rows), formatTime(p50), `${(100 * spread(row)).toFixed(1)}%`, row.bytes > 0 ? formatBytes(row.bytes) : "",
    row.bytes > 0 ? (row.bytes / p50).toFixed(2) : "", row.flops > 0 ? (row.flops / p50).toFixed(1) : "", row.bound === "none" ? "" : row.bound,
    row.bound === "none" ? "" : `${row.operands === "cache" ? "~" : ""}${(100 * row.share).toFixed(1)}%`, ...(row.note ? [row.note] : []),
  ]);
}

export function deviceLine(d: DeviceResult): string {
  const { bytes, f32, int8 } = d.peaks, what = d.backend === "cpu" ? "read" : "copy";
  const arithmetic = f32 > 0 ? `, f32 multiply-add ${(f32 / 1e9).toFixed(0)} GFLOP/s, int8 dot ${(int8 / 1e9).toFixed(0)} Gop/s` : "";
  return `${d.backend}: ${d.name}, ${d.isa}, ${d.threads} threads, ${d.precision}. Peaks of this run: ${what} ${(bytes / 1e9).toFixed(2)} GB/s${arithmetic}`;
}

export function legend(coldBytes: number): string {
  return `n: rows of the step. time: median of one op inside a recording, +- half the distance of the quartiles. peak: share of the bound's measured peak.
Rows without ~ take weights or KV from memory: operands rotate over at least ${(coldBytes / 2 ** 20).toFixed(0)} MiB in every pass. ~: operands stay in caches, as they do
between the ops of a step, so that the share of the memory's peak may pass 100 %.`;
}

// ---------------------------------------------------------------- comparison

export interface Comparison { readonly name: string; readonly before: Row; readonly after: Row; readonly ratio: number; readonly exceeds: boolean }

/** Rows of b against the same rows of a. ratio: speed of b over speed of a; exceeds: the quartile ranges do not overlap. */
export function compare(a: Results, b: Results): { rows: Comparison[]; missing: string[] } {
  const nameOf = (results: Results, row: Row): string => {
    const d = results.devices[row.device];
    return `${row.op} ${row.model} ${row.site} ${row.dtype} n=${row.rows} on ${d?.backend} ${d?.isa} ${d?.threads} threads ${d?.precision}`;
  };
  const before = new Map(a.rows.map((row) => [nameOf(a, row), row])), rows: Comparison[] = [], missing: string[] = [];
  for (const after of b.rows) {
    const name = nameOf(b, after), was = before.get(name);
    if (!was) { missing.push(name); continue; }
    before.delete(name);
    rows.push({ name, before: was, after, ratio: was.time.p50 / after.time.p50, exceeds: was.time.p25 > after.time.p75 || after.time.p25 > was.time.p75 });
  }
  return { rows, missing: [...missing, ...before.keys()] };
}

/** The comparison for people. */
export function compareText(a: Results, b: Results): string {
  const { rows, missing } = compare(a, b);
  const width = Math.max(4, ...rows.map((r) => r.name.length));
  const out = [`${"row".padEnd(width)} ${"before".padStart(10)} ${"after".padStart(10)} ${"speed".padStart(7)}  beyond the spread`];
  for (const r of rows) out.push(`${r.name.padEnd(width)} ${formatTime(r.before.time.p50).padStart(10)} ${formatTime(r.after.time.p50).padStart(10)} ${r.ratio.toFixed(3).padStart(6)}x  ${r.exceeds ? (r.ratio > 1 ? "faster" : "SLOWER") : "no"}`);
  if (rows.length > 0) out.push(`geometric mean ${Math.exp(rows.reduce((sum, r) => sum + Math.log(r.ratio), 0) / rows.length).toFixed(3)}x over ${rows.length} rows`);
  if (missing.length > 0) out.push(`${missing.length} rows are in one file only`);
  a.devices.forEach((d, i) => {
    const peak = b.devices[i]?.peaks.bytes ?? 0;
    if (peak > 0 && Math.abs(peak / d.peaks.bytes - 1) > 0.05) out.push(`the ${d.backend}'s memory peak was ${(d.peaks.bytes / 1e9).toFixed(2)} GB/s before and ${(peak / 1e9).toFixed(2)} GB/s after: the machine was not the same`);
  });
  return out.join("\n");
}
