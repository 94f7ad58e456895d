// bao bench on the embedded model: which tests a command line asks for, figures that agree with each other, every output format, and mistakes.
import { expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PeerChild } from "../../scripts/bench/peer-protocol.ts";
import { benchContext, benchTests, medianOf, readPeak, testName } from "../../src/engine/bench.ts";

const root = join(import.meta.dir, "../.."), cli = join(root, "src/cli/bao.ts"), demo = join(root, "models/demo.gguf");

function bench(...args: string[]): { code: number; out: string; err: string } {
  const child = Bun.spawnSync([process.execPath, cli, "bench", "-m", demo, ...args], { stdin: "ignore" });
  return { code: child.exitCode, out: child.stdout.toString(), err: child.stderr.toString() };
}

interface Row { test: string; kind: string; tokens: number; depth: number; draw: string; threads: number; tokensPerSecond: number; bytesPerToken?: number; gbPerSecond?: number; shareOfReadPeak?: number;
  samplesMs: number[]; wallMs: number; kernelsMs: number; ffiMs: number; waitingMs: number; scriptMs: number; samplingMs: number; ffiCalls: number; tokenizerMsPerToken: number; ops: { op: string; count: number; ms: number }[] }

test("tests are all combinations, depth by depth; 0 leaves a kind out", () => {
  const tests = benchTests([512, 64], [128], [0, 4096], true);
  expect(tests.map((t) => `${testName(t)} ${t.sampling}`)).toEqual([
    "pp512 greedy", "pp64 greedy", "tg128 greedy", "tg128 sampled", "pp512 @ d4096 greedy", "pp64 @ d4096 greedy", "tg128 @ d4096 greedy", "tg128 @ d4096 sampled",
  ]);
  expect([benchContext(tests), benchTests([0], [8], [0], false).map(testName), benchTests([0], [0], [0], true)]).toEqual([4096 + 512 + 1, ["tg8"], []]);
  expect([medianOf([5, 1, 3]), medianOf([4, 1, 3, 2])]).toEqual([3, 2.5]);
});

test("the read peak is a bandwidth of this world", () => {
  const gb = readPeak(1) / 1e9;
  expect([gb > 0.1, gb < 2000]).toEqual([true, true]);
}, 60_000);

test("JSON: rows for every combination, whose figures follow from their samples", () => {
  const { code, out } = bench("-p", "16", "-n", "8", "-d", "0,300", "-r", "3", "--threads", "1,2", "--no-peak", "--json");
  expect(code).toBe(0);
  const report = JSON.parse(out) as { rows: Row[]; runs: { threads: number; start: Record<string, number>; peak?: number; peakRss: number; ops: number }[] };
  expect(report.rows.map((r) => `${r.threads} ${r.test} ${r.draw}`)).toEqual([1, 2].flatMap((t) => ["pp16 greedy", "tg8 greedy", "tg8 sampled", "pp16 @ d300 greedy", "tg8 @ d300 greedy", "tg8 @ d300 sampled"].map((n) => `${t} ${n}`)));
  for (const row of report.rows) {
    expect(row.samplesMs.length).toBe(3);
    expect(row.tokensPerSecond).toBeCloseTo((1000 * row.tokens) / medianOf(row.samplesMs), 6);
    expect(row.samplingMs + row.kernelsMs).toBeGreaterThan(0);
    // A step is told apart without a rest, up to what ops that run beside the script hide.
    expect(row.kernelsMs + row.samplingMs + row.ffiMs + row.waitingMs + row.scriptMs).toBeGreaterThan(0.99 * row.wallMs);
    expect(row.ops.find((o) => o.op === "attention")!.count).toBe(8);
    if (row.kind === "prefill") { expect(row.bytesPerToken).toBeUndefined(); continue; }
    expect(row.shareOfReadPeak).toBeUndefined();
    expect(row.gbPerSecond).toBeCloseTo((row.bytesPerToken! * row.tokensPerSecond) / 1e9, 9);
    // Two recordings a step, each submitted and waited for (more than once where a wait runs out).
    expect(row.ffiCalls).toBeGreaterThanOrEqual(4);
    expect(row.tokenizerMsPerToken).toBeGreaterThan(0);
  }
  const bytes = (name: string): number => report.rows.find((r) => r.test === name)!.bytesPerToken!;
  expect(bytes("tg8 @ d300")).toBeGreaterThan(bytes("tg8")); // keys and values
  expect(report.runs.map((r) => [r.threads, r.peak])).toEqual([[1, undefined], [2, undefined]]);
  const { start, peakRss, ops } = report.runs[0]!;
  expect([start["total"]! >= start["open"]! + start["tokenizer"]! + start["weights"]! + start["firstToken"]!, peakRss > 10e6, ops > 50]).toEqual([true, true, true]);
}, 120_000);

test("with the read peak, decode has a share of it and a ceiling", () => {
  const { rows, runs } = JSON.parse(bench("-p", "0", "-n", "2", "-r", "1", "--threads", "1", "--no-sampled", "--json").out) as { rows: (Row & { ceilingTokensPerSecond: number })[]; runs: { peak: number }[] };
  expect(rows[0]!.ceilingTokensPerSecond).toBeCloseTo(runs[0]!.peak / rows[0]!.bytesPerToken!, 6);
  expect(rows[0]!.shareOfReadPeak).toBeCloseTo(rows[0]!.tokensPerSecond / rows[0]!.ceilingTokensPerSecond, 9);
}, 60_000);

test("table, Markdown and CSV have the same rows; -o writes a file; --ops adds a table for each", () => {
  const folder = mkdtempSync(join(tmpdir(), "bao-bench-")), file = join(folder, "out.csv");
  try {
    const short = ["-p", "4", "-n", "3", "-r", "1", "--no-warmup", "--threads", "1"];
    const table = bench(...short, "--no-peak", "--ops");
    expect([table.code, table.out.match(/^(pp|tg)\d+ +(greedy|sampled) +1 +[\d.]+ /gm)?.length, table.out.match(/^Ops of /gm)?.length]).toEqual([0, 3, 3]);
    expect(table.out).toMatch(/^moe_matmul_glu +8 +[\d.]+ +[\d.]+ %$/m);
    const markdown = bench(...short, "--no-peak", "--markdown", "--no-sampled");
    expect([markdown.code, markdown.out.match(/^\| (pp4|tg3) \| greedy \| 1 \|/gm)?.length, markdown.out.includes("sampled")]).toEqual([0, 2, false]);
    const csv = bench(...short, "--no-peak", "--csv", "-o", file), lines = readFileSync(file, "utf8").trimEnd().split("\n").map((l) => l.split(","));
    expect([csv.code, csv.out, lines.length, lines.every((l) => l.length === lines[0]!.length), lines[1]!.slice(0, 3)]).toEqual([0, "", 4, true, ["demo.gguf", "pp4", "prefill"]]);
  } finally {
    rmSync(folder, { recursive: true });
  }
}, 120_000);

test("mistakes are usage errors", () => {
  for (const [words, args] of [
    ["nothing to measure", ["-p", "0", "-n", "0"]], ["-p: expected whole numbers", ["-p", "many"]], ["--threads: expected", ["--threads", "0"]], ["--ctx 8", ["--ctx", "8"]], ["used together", ["--json", "--csv"]],
  ] as [string, string[]][]) {
    const { code, err, out } = bench(...args);
    expect([code, out, err.includes(words) ? words : err]).toEqual([2, "", words]);
  }
}, 60_000);

test("Bao's side of the peer benchmark answers, and says what went wrong", async () => {
  for (const mode of ["low", "api"] as const) {
    await using child = new PeerChild(mode, [process.execPath, join(root, "scripts/bench/peer-bao.ts"), mode], root);
    const { firstToken } = await child.ask({ do: "load", setup: { model: demo, threads: 1, context: 128, kvType: "f16" } });
    const answers = mode === "low" ? [await child.ask({ do: "prefill", tokens: 8 }), await child.ask({ do: "decode", tokens: 4 })] : [await child.ask({ do: "api", prompt: 8, tokens: 4 })];
    expect([firstToken! > 0, answers.every((a) => a.ms! > 0), (await child.ask({ do: "memory" })).peak! >= 0]).toEqual([true, true, true]);
    await expect(child.ask({ do: "load", setup: { model: "none.gguf", threads: 1, context: 128, kvType: "f16" } })).rejects.toThrow("none.gguf");
  }
}, 60_000);
