// `bun run bench`: measures the ops of kernels/bao.h at the shapes of the Gemma 4 sizes, on every device that is there. docs/speed.md says how to
// read it. Times kernels only; `bao bench` times whole models.
import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { parseArgs } from "node:util";
import { BaoError, UsageError } from "../../src/errors.ts";
import { findLibrary, openLibrary, type BackendName } from "../../src/native/library.ts";
import { Device, type Isa, type Precision } from "../../src/native/objects.ts";
import type { BenchCase } from "./case.ts";
import { ffiRows } from "./ffi.ts";
import { measureCase, measurePeaks, type Budget } from "./measure.ts";
import { cold, memoryBudget } from "./memory.ts";
import { compareText, deviceLine, legend, readResults, tableHead, tableRow, type Peaks, type Results } from "./results.ts";
import { caseName, select } from "./select.ts";

const USAGE = `bun run bench [options]

  --all              every op, type, model and row count (hours); default: a set of about 5 minutes
  --op A,B           ops of kernels/bao.h without "bao_", or ffi
  --dtype A,B        weight or KV types: q4_k, q8_0, f16 ...
  --model A,B        e2b, e4b, 12b, 26b-a4b, 31b (default: e2b, 26b-a4b)
  --rows A,B         rows of the step: 1, 8, 32, 512
  --filter TEXT      only rows whose name holds TEXT
  --device A,B       cpu, cuda, metal (default: all that are there)
  --threads N        CPU threads (default: all cores)
  --isa NAME         auto, base, avx2, avx512, neon
  --precision NAME   fast (default), exact
  --seconds S        measured time of a row (default 0.2)
  --cold MIB         memory that operands rotate over (default: 4 times the last-level cache, at least 256)
  --list             names the rows and measures nothing
  --json FILE        writes the results
  --compare A B      compares two such files and measures nothing
`;

const text = { type: "string" } as const, flag = { type: "boolean" } as const;

function parse(args: string[]) {
  const { values, positionals } = parseArgs({
    args, allowPositionals: true,
    options: {
      all: flag, op: text, dtype: text, model: text, rows: text, filter: text, device: text, threads: text, isa: text, precision: text, seconds: text, cold: text,
      list: flag, json: text, compare: text, help: { ...flag, short: "h" },
    },
  });
  if (positionals.length !== (values.compare === undefined ? 0 : 1)) throw new UsageError("usage", values.compare === undefined ? `unexpected ${positionals[0]}` : "--compare takes two files", "See --help.");
  return { ...values, other: positionals[0] };
}

const list = (value: string | undefined): string[] | undefined => value?.toLowerCase().split(",").map((v) => v.trim()).filter(Boolean);

function number(option: string, value: string | undefined, fallback: number, least: number): number {
  if (value === undefined) return fallback;
  const n = Number(value);
  if (!Number.isFinite(n) || n < least) throw new UsageError("usage", `--${option}: expected a number from ${least}, found ${value}`);
  return n;
}
function oneOf<T extends string>(option: string, value: string | undefined, fallback: T, names: readonly T[]): T {
  if (value === undefined) return fallback;
  const found = names.find((n) => n === value.toLowerCase());
  if (!found) throw new UsageError("usage", `--${option}: ${value} is none of ${names.join(", ")}`);
  return found;
}

const BACKENDS = ["cpu", "cuda", "metal"] as const satisfies readonly BackendName[];

function backends(wanted: string | undefined): BackendName[] {
  const names = list(wanted)?.map((name) => oneOf("device", name, "cpu", BACKENDS));
  return names ?? BACKENDS.filter((b) => b === "cpu" || (findLibrary(b) !== undefined && openLibrary(b).k.deviceCount() > 0));
}

/** Cases by the type of their weights within an op, so that few files of weights are made. */
function ordered(cases: readonly BenchCase[]): BenchCase[] {
  const rank = new Map<string, number>();
  for (const c of cases) { const key = `${c.op} ${c.dtype}`; if (!rank.has(key)) rank.set(key, rank.size); }
  return [...cases].sort((a, b) => rank.get(`${a.op} ${a.dtype}`)! - rank.get(`${b.op} ${b.dtype}`)!);
}

async function main(args: string[]): Promise<void> {
  const o = parse(args), print = (line: string): void => { process.stdout.write(`${line}\n`); };
  if (o.help) return print(USAGE.trimEnd());
  if (o.compare !== undefined) return print(compareText(readResults(o.compare), readResults(o.other!)));
  if (o.cold !== undefined) cold.bytes = number("cold", o.cold, 256, 1) * 2 ** 20;
  const ops = list(o.op), rows = list(o.rows)?.map((n) => number("rows", n, 1, 1));
  const cases = ordered(select({ all: o.all ?? false, ops, dtypes: list(o.dtype), models: list(o.model), rows, filter: o.filter }));
  const withFfi = ops ? ops.includes("ffi") : !o.dtype && !o.model && !o.rows && !o.filter;
  if (cases.length === 0 && !withFfi) throw new UsageError("usage", "no row is selected", "Add --all, or see --list.");
  if (o.list) return print(cases.map(caseName).join("\n"));

  const budget: Budget = { seconds: number("seconds", o.seconds, 0.2, 0.001), minSamples: 5 };
  const results: Results = {
    format: "bao-bench", version: 1, date: new Date().toISOString(), coldBytes: cold.bytes,
    machine: { platform: process.platform, arch: process.arch, cpu: cpus()[0]?.model ?? "unknown", bun: Bun.version }, devices: [], rows: [], skipped: [],
  };
  for (const backend of backends(o.device)) {
    using device = new Device({
      backend, threads: number("threads", o.threads, 0, 1), precision: oneOf<Precision>("precision", o.precision, "fast", ["fast", "exact"]),
      isa: backend === "cpu" ? oneOf<Isa>("isa", o.isa, "auto", ["auto", "base", "avx2", "avx512", "neon"]) : "auto",
    });
    await measureDevice(device, cases, withFfi, budget, results, print);
  }
  print(legend(cold.bytes));
  if (o.json !== undefined) writeFileSync(o.json, `${JSON.stringify(results, null, 1)}\n`);
}

async function measureDevice(device: Device, cases: readonly BenchCase[], withFfi: boolean, budget: Budget, results: Results, print: (line: string) => void): Promise<void> {
  const { backend, name, isa, threads, precision } = device.info, index = results.devices.length, start = Bun.nanoseconds();
  const peaks: Peaks = await measurePeaks(device);
  results.devices.push({ backend, name, isa, threads, precision, peaks });
  print(deviceLine(results.devices[index]!));
  print(tableHead());
  for (const c of cases) {
    const needs = Math.max(cold.bytes, c.coldBytes, c.memory ?? 0) + c.step.rows * 4 * 2 ** 16, skip = (reason: string): void => {
      results.skipped.push({ device: index, name: caseName(c), reason });
      print(`${caseName(c)}: skipped, ${reason}`);
    };
    if (needs > memoryBudget()) { skip(`needs ${(needs / 2 ** 30).toFixed(1)} GiB`); continue; }
    try {
      const row = { device: index, ...(await measureCase(device, c, peaks, budget)) };
      results.rows.push(row);
      print(tableRow(row));
    } catch (e) {
      if (!(e instanceof BaoError) || (e.code !== "unsupported" && e.code !== "out_of_memory" && e.code !== "no_space")) throw e;
      skip(e.message);
    }
  }
  if (withFfi) {
    for (const row of await ffiRows(device, budget)) {
      results.rows.push({ device: index, ...row });
      print(tableRow(results.rows.at(-1)!));
    }
  }
  // A busy machine shows here: then the shares above are too high or too low.
  const after = await measurePeaks(device);
  if (Math.abs(after.bytes / peaks.bytes - 1) > 0.05) print(`the memory's peak was ${(peaks.bytes / 1e9).toFixed(2)} GB/s before and is ${(after.bytes / 1e9).toFixed(2)} GB/s now: the machine is not quiet, measure again`);
  results.devices[index] = { ...results.devices[index]!, peaksAfter: after };
  print(`${results.rows.filter((r) => r.device === index).length} rows in ${((Bun.nanoseconds() - start) / 1e9).toFixed(0)} s\n`);
}

try {
  await main(process.argv.slice(2));
} catch (e) {
  const { message } = e as Error, hint = e instanceof BaoError ? e.hint : undefined;
  process.stderr.write(`bench: ${e instanceof BaoError || (e as { code?: string }).code?.startsWith("ERR_PARSE_ARGS") ? message : (e as Error).stack}\n${hint ? `${hint}\n` : ""}`);
  process.exitCode = 2;
}
