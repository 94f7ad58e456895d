// bao bench: how fast a model prefills and decodes, beside what the memory allows, and where the time goes. Results on stdout or in a file,
// everything else on stderr. Measures nothing itself.
import { writeFileSync } from "node:fs";
import type { Argv } from "yargs";
import { ResourceError, UsageError } from "../errors.ts";
import { chooseDevice } from "../engine/choose.ts";
import { benchContext, benchTests, measureStart, readPeak, runTest, testName, type BenchTest } from "../engine/bench.ts";
import type { BackendName } from "../native/library.ts";
import { render, type BenchReport, type BenchRow, type ReportFormat } from "./bench-report.ts";
import { Interrupt } from "./interrupt.ts";
import { ensureKernels } from "./kernels.ts";
import { modelPath } from "./load.ts";
import { flag, list, loadOptions, modelOptions, number, text, type ModelArguments } from "./options.ts";
import { colours, noteLine, out } from "./output.ts";
import { busyLine } from "./progress.ts";

const TESTS = { group: "Tests:" };
const OUTPUT = { group: "Output:" };

export function builder(y: Argv): Argv {
  return y.usage(`bao bench [options]

Measures prefill (pp: a prompt of random tokens at once) and decode (tg: one token after another), the latter drawn greedily and by sampling.
Options with several values take them as 512,2048 or repeated; every combination is run.

Examples:
  bao bench -m gemma.gguf
  bao bench -m gemma.gguf -p 512 -n 128 -d 0,4096 --threads 1,2
  bao bench -m gemma.gguf -p 0 -n 64 --ops
  bao bench -m gemma.gguf --json -o run.json`).options({
    prefill: list("Tokens of a prompt; 0 = no prefill test (default: 512)", { alias: "p", ...TESTS }),
    decode: list("Tokens to decode; 0 = no decode test (default: 128)", { alias: "n", ...TESTS }),
    depth: list("Tokens in the cache before a test begins (default: 0)", { alias: "d", ...TESTS }),
    repetitions: number("repetitions", "Repetitions of each test; the median counts (default: 5)", { whole: true, min: 1 }, { alias: "r", ...TESTS }),
    "no-sampled": flag("Leave out the rows that draw by sampling", TESTS),
    ...modelOptions,
    threads: list("CPU threads, the waiting one included (default: all cores)", { group: "Model:" }),
    "no-warmup": flag("Skip the untimed repetition before each test", { group: "Model:" }),
    "no-peak": flag("Leave out the read peak, which takes 1 GiB of memory and some seconds", OUTPUT),
    ops: flag("Also the time of each kind of op", OUTPUT),
    markdown: flag("Markdown tables", OUTPUT),
    json: flag("One JSON document with all samples", OUTPUT),
    csv: flag("One line for each test", OUTPUT),
    output: text("File to write the result to", { alias: "o", ...OUTPUT }),
  }).conflicts({ json: ["csv", "markdown"], csv: ["markdown"] });
}

export interface BenchArguments extends Omit<ModelArguments, "threads"> {
  prefill?: string[]; decode?: string[]; depth?: string[]; repetitions?: number; noSampled?: boolean; threads?: string[];
  noPeak?: boolean; ops?: boolean; markdown?: boolean; json?: boolean; csv?: boolean; output?: string;
}

/** Whole numbers of an option that takes several: "1,2", "1 2", repeated. */
function numbers(name: string, given: readonly string[] | undefined, fallback: number[], least: number): number[] {
  if (given === undefined) return fallback;
  return given.flatMap((word) => word.split(",")).map((word) => {
    const n = word.trim() === "" ? NaN : Number(word);
    if (!Number.isSafeInteger(n) || n < least) throw new UsageError("bad_option", `${name}: expected whole numbers, ${least} or more, found ${JSON.stringify(word)}`);
    return n;
  });
}

export async function run(args: BenchArguments): Promise<void> {
  using interrupt = new Interrupt();
  const tests = benchTests(numbers("-p", args.prefill, [512], 0), numbers("-n", args.decode, [128], 0), numbers("-d", args.depth, [0], 0), !args.noSampled);
  if (tests.length === 0) throw new UsageError("bad_option", "There is nothing to measure", "Give -p or -n more than 0 tokens.");
  const threads = numbers("--threads", args.threads, [0], 1);
  const needed = benchContext(tests);
  if (args.ctx !== undefined && args.ctx < needed) throw new UsageError("bad_option", `--ctx ${args.ctx}: the tests need ${needed} tokens`, "Leave --ctx out.");
  const format: ReportFormat = args.json ? "json" : args.csv ? "csv" : args.markdown ? "markdown" : "table";
  const report = await measure(args, tests, threads, needed, interrupt.signal);
  const rendered = render(report, format, args.ops ?? false);
  if (args.output === undefined) out(rendered);
  else writeResult(args.output, rendered);
}

async function measure(args: BenchArguments, tests: readonly BenchTest[], threads: readonly number[], context: number, signal: AbortSignal): Promise<BenchReport> {
  await ensureKernels();
  const { path } = await modelPath(args.model, signal), choice = chooseDevice(args.device as "auto" | BackendName), c = colours(2);
  for (const warning of choice.warnings) noteLine(`${c.yellow("bao: warning:")} ${warning}`);
  const rows: BenchRow[] = [], runs: BenchReport["runs"][number][] = [], { threads: _, ...rest } = args;
  for (const count of threads) {
    const options = loadOptions({ ...rest, ...(count > 0 ? { threads: count } : {}) } as ModelArguments);
    const { model: loaded, start } = await (async () => {
      using _busy = busyLine("loading");
      return measureStart(path, { ...options, context: args.ctx ?? context, device: { ...options.device, backend: choice.backend } });
    })();
    using model = loaded;
    const { info } = model.runner.device, { plan, config } = model.runner, probes = choice.backend === "cpu" && !args.noPeak;
    // Before and after: another program may disturb one of them, and none makes it faster than it can be.
    let peak = probes ? readPeak(info.threads) : 0;
    const results = [];
    for (const [i, test] of tests.entries()) {
      const name = testName(test);
      using _busy = busyLine(`${name} ${test.sampling}, ${i + 1} of ${tests.length}${threads.length > 1 ? `, ${info.threads} threads` : ""}`);
      results.push(await runTest(model, test, { repetitions: args.repetitions ?? 5, warmup: !args.noWarmup, signal }));
    }
    if (probes) peak = Math.max(peak, readPeak(info.threads));
    runs.push({
      threads: info.threads, start, peak: peak > 0 ? peak : undefined, peakRss: process.resourceUsage().maxRSS * 1024,
      allocated: model.estimate.allocated, ops: model.runner.opCount,
    });
    for (const result of results) rows.push({ threads: info.threads, peak: peak > 0 ? peak : undefined, result });
    if (runs.length === threads.length) {
      const file = model.file.shards.reduce((n, s) => n + s.sizeBytes, 0);
      return {
        model: { path, name: config.name, architecture: config.architecture, bytes: file, layers: config.layers.length },
        device: { backend: info.backend, name: info.name, isa: info.isa, precision: info.precision, kvType: plan.kvType, chunk: plan.chunk },
        date: new Date().toISOString(), repetitions: args.repetitions ?? 5, runs, rows,
      };
    }
  }
  throw new UsageError("bad_option", "--threads: no value");
}

function writeResult(path: string, text: string): void {
  try {
    writeFileSync(path, text);
  } catch (e) {
    throw new ResourceError("file_write", `${path}: ${(e as Error).message}`, "Check that the folder exists and may be written to.", { cause: e });
  }
}
