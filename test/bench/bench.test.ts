// Benchmarks as programs: they cover every op, run, write JSON that can be plotted and compared. Never a time: that is what they measure.
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { compare, compareText, readResults, type Results, type Row } from "../../scripts/bench/results.ts";
import { allCases, caseName, select } from "../../scripts/bench/select.ts";
import { MODEL_NAMES } from "../../scripts/bench/models.ts";
import { Svg } from "../../scripts/bench/svg.ts";
import { BenchRig } from "../../scripts/bench/rig.ts";
import { Device, type View } from "../../src/native/objects.ts";
import { BAO } from "../../src/native/symbols.ts";

setDefaultTimeout(120_000);
const root = join(import.meta.dir, "../.."), folder = mkdtempSync(join(tmpdir(), "bao-bench-test-"));
afterAll(() => { rmSync(folder, { recursive: true, force: true }); });

async function bench(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const child = Bun.spawn([process.execPath, join(root, "scripts/bench", args[0]!), ...args.slice(1)], { cwd: folder, stdout: "pipe", stderr: "pipe" });
  const [out, err] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
  return { code: await child.exited, out, err };
}

describe("cases", () => {
  const cases = allCases();
  test("every op of bao.h has cases", () => {
    const ops = Object.keys(BAO).filter((k) => k.startsWith("OP_") && k !== "OP_COUNT").map((k) => k.slice(3).toLowerCase());
    expect([...new Set(cases.map((c) => c.op))].sort()).toEqual(ops.sort());
  });
  test("names are unique, and every size has cases", () => {
    expect(new Set(cases.map(caseName)).size).toBe(cases.length);
    expect([...new Set(cases.map((c) => c.model))].sort()).toEqual([...MODEL_NAMES].sort());
  });
  test("bytes and operations of a matrix are its own and its rows'", () => {
    const c = cases.find((x) => caseName(x) === "matmul e2b ffn down q4_k n=8")!;
    // 1536 rows of 6144 values in blocks of 256 that take 144 bytes.
    expect(c.bytes).toBe((1536 * 6144 / 256) * 144 + 8 * (1536 + 6144) * 4);
    expect(c.flops).toBe(2 * 8 * 1536 * 6144);
  });
  test("a sliding layer reads no more than its window", () => {
    const bytes = (name: string): number => cases.find((x) => caseName(x) === name)!.coldBytes;
    expect(bytes("attention e2b sliding @ 4096 f16 n=1")).toBe(512 * 2 * 256 * 2);
    expect(bytes("attention e2b global @ 4096 f16 n=1")).toBe(4097 * 2 * 512 * 2);
  });
  test("one row of each expert op reads the experts it uses", () => {
    const c = cases.find((x) => caseName(x) === "moe_matmul_glu 26b-a4b experts gate up q4_k n=1")!;
    expect(c.coldBytes).toBe(8 * 2 * 704 * (2816 / 256) * 144);
  });
  test("filters narrow, and names that no row has are refused", () => {
    const chosen = select({ all: true, ops: ["matmul"], dtypes: ["q4_k"], models: ["e2b"], rows: [1], filter: "output" });
    expect(chosen.map(caseName)).toContain("matmul e2b output q4_k n=1");
    expect(select({ all: false }).length).toBeLessThan(select({ all: true }).length / 4);
    expect(() => select({ all: false, ops: ["softmax"] })).toThrow("--op softmax");
  });
});

test("an op that writes over its operand stays away from subnormal numbers", () => {
  using device = new Device({ backend: "cpu", threads: 1 });
  const cases = allCases().filter((c) => ["rms_norm", "rope", "head_norm_rope_append"].includes(c.op) && c.rows === 1);
  expect(cases.length).toBeGreaterThan(20);
  for (const c of cases) {
    const rig = new BenchRig(device, c.step);
    const views: View[] = [], make = rig.view.bind(rig);
    rig.view = (...shape) => { const view = make(...shape); views.push(view); return view; };
    const { op } = c.prepare(rig);
    rig.record(2000, 1, op);
    rig.run();
    for (const view of views) {
      const values = new Float32Array(view.d1 * view.d2);
      view.buffer.read(values);
      expect(values.filter((v) => !Number.isFinite(v) || (v !== 0 && Math.abs(v) < 2 ** -126)).length, caseName(c)).toBe(0);
    }
    rig.dispose();
  }
});

describe("runs", () => {
  test("two small benchmarks write JSON, plots and a comparison", async () => {
    const path = join(folder, "out.json");
    const run = await bench("run.ts", "--op", "rms_norm,router", "--model", "26b-a4b", "--rows", "1", "--dtype", "f32", "--device", "cpu", "--threads", "1", "--seconds", "0.001", "--cold", "2", "--json", path);
    expect(run.err).toBe("");
    expect(run.code).toBe(0);
    const results = readResults(path);
    expect(results.devices).toMatchObject([{ backend: "cpu", threads: 1, precision: "fast" }]);
    for (const peak of Object.values(results.devices[0]!.peaks)) expect(peak).toBeGreaterThan(0);
    expect(results.rows.map(caseName).sort()).toEqual(select({ all: false, ops: ["rms_norm", "router"], models: ["26b-a4b"], rows: [1], dtypes: ["f32"] }).map(caseName).sort());
    for (const row of results.rows) {
      expect(row.time.min).toBeGreaterThan(0);
      expect(row.time.p25).toBeLessThanOrEqual(row.time.p75);
      expect(row.samples).toBeGreaterThan(0);
      expect(row.bytes).toBeGreaterThan(0);
      expect(["memory", "f32", "int8"]).toContain(row.bound);
      expect(row.share).toBeGreaterThan(0);
    }
    // Weights rotate, norms stay where they are.
    expect(Object.fromEntries(results.rows.map((r) => [r.op, r.operands]))).toEqual({ rms_norm: "cache", router: "memory" });
    expect(results.skipped).toEqual([]);

    const plot = await bench("plot.ts", path);
    expect(plot.err).toBe("");
    for (const kind of ["roofline", "bars"]) {
      const svg = readFileSync(join(folder, `out.${kind}.svg`), "utf8");
      expect(svg).toStartWith("<svg ");
      expect(svg).toContain("26b-a4b");
      expect(svg).not.toContain("NaN");
    }
    const compared = await bench("run.ts", "--compare", path, path);
    expect(compared.out).toContain(`geometric mean 1.000x over ${results.rows.length} rows`);
    expect(compared.out).not.toContain("SLOWER");
  });
  test("a file that is no result is refused with its name", async () => {
    const path = join(folder, "other.json");
    writeFileSync(path, "{}");
    const { code, err } = await bench("run.ts", "--compare", path, path);
    expect(code).toBe(2);
    expect(err).toContain("other.json is no benchmark result");
    expect(existsSync(join(folder, "other.bars.svg"))).toBe(false);
  });
});

describe("comparison", () => {
  const row = (p25: number, p50: number, p75: number): Row => ({
    device: 0, op: "add", model: "e2b", site: "hidden", dtype: "f32", rows: 1, shape: "1536", time: { min: p25, p25, p50, p75, max: p75 }, samples: 5, opsPerPass: 1, bytes: 1, flops: 0, operands: "cache", bound: "memory", share: 1,
  });
  const results = (...rows: Row[]): Results => ({
    format: "bao-bench", version: 1, date: "", machine: { platform: "", arch: "", cpu: "", bun: "" }, coldBytes: 1, rows, skipped: [],
    devices: [{ backend: "cpu", name: "", isa: "avx2", threads: 2, precision: "fast", peaks: { bytes: 1e9, f32: 1e9, int8: 1e9 } }],
  });
  test("a difference counts when the quartile ranges lie apart", () => {
    expect(compare(results(row(9, 10, 11)), results(row(4, 5, 6))).rows).toMatchObject([{ ratio: 2, exceeds: true }]);
    expect(compare(results(row(9, 10, 11)), results(row(10, 10.5, 12))).rows).toMatchObject([{ exceeds: false }]);
    expect(compareText(results(row(4, 5, 6)), results(row(9, 10, 11)))).toContain("SLOWER");
  });
  test("rows of one file only are counted, not compared", () => {
    const other = { ...row(1, 2, 3), site: "elsewhere" };
    expect(compare(results(row(1, 2, 3)), results(other))).toMatchObject({ rows: [], missing: [expect.stringContaining("elsewhere"), expect.stringContaining("hidden")] });
  });
});

test("text in pictures is escaped", () => {
  const svg = new Svg(10, 10, "a < b & c");
  svg.text(1, 2, `"<x>"`);
  expect(svg.toString()).toContain("<title>a &lt; b &amp; c</title>");
  expect(svg.toString()).toContain("&quot;&lt;x&gt;&quot;");
});
