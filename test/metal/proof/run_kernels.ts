// Runs each kernel of the example and compares it with its definition in double precision. Prints a line each; exits with 1 when one differs.
import { Example, fromHalves, halves, params, q8, random, source, worst } from "./rig.ts";

const example = new Example(source());
let failed = false;
function report(name: string, error: number, allowed: number): void {
  if (!(error <= allowed)) failed = true;
  console.log(`${error <= allowed ? "ok  " : "FAIL"} ${name.padEnd(28)} largest relative error ${error.toExponential(2)}`);
}

function rmsNorm(): void {
  const n = 512, rows = 3, x = random(n * rows), w = random(n), y = example.buffer(n * rows * 4);
  example.run({ pipeline: example.pipeline("rmsnorm"), operands: [example.put(x), example.put(w), y], params: params(n, { f32: 1e-5 }), at: 3, groups: [rows], threads: 128 });
  const expected = new Float64Array(n * rows);
  for (let r = 0; r < rows; r++) {
    const squares = x.subarray(r * n, r * n + n).reduce((s, v) => s + v * v, 0), factor = 1 / Math.sqrt(squares / n + 1e-5);
    for (let i = 0; i < n; i++) expected[r * n + i] = x[r * n + i]! * factor * w[i]!;
  }
  report("rmsnorm", worst(new Float32Array(y.memory), expected), 1e-4);
}

function matvec(name: string, rows: number, columns: number, biased: boolean): void {
  const { blocks, values } = q8(random(rows * columns)), x = random(columns), bias = random(rows), half = name.endsWith("f16"), y = example.buffer(rows * (half ? 2 : 4));
  example.run({ pipeline: example.pipeline(name, biased ? 1 : 0), operands: [example.put(blocks), example.put(x), y, null, example.put(bias)], params: params(rows, columns), at: 3, groups: [Math.ceil(rows / (half ? 4 : 8))], threads: 128 });
  const expected = Float64Array.from({ length: rows }, (_, r) => x.reduce((s, v, i) => s + v * values[r * columns + i]!, biased ? bias[r]! : 0));
  report(`${name}${biased ? " with bias" : ""}`, worst(half ? fromHalves(new Uint16Array(y.memory)) : new Float32Array(y.memory), expected), half ? 2e-2 : 1e-3);
}

function matmul(): void {
  const m = 64, n = 96, k = 64, a = halves(random(m * k)), b = halves(random(n * k)), c = example.buffer(m * n * 4), left = fromHalves(a), right = fromHalves(b);
  example.run({ pipeline: example.pipeline("gemm_f16"), operands: [example.put(a), example.put(b), c], params: params(m, n, k), at: 3, groups: [n / 32, m / 32], threads: 128, groupMemory: 32 * 16 * 2 * 2 });
  const expected = new Float64Array(m * n);
  for (let i = 0; i < m; i++) for (let j = 0; j < n; j++) for (let l = 0; l < k; l++) expected[i * n + j]! += left[i * k + l]! * right[j * k + l]!;
  report("gemm_f16", worst(new Float32Array(c.memory), expected), 2e-3);
}

function attention(dim: number): void {
  const heads = 8, kvHeads = 2, length = 77, capacity = 128, scale = 1 / Math.sqrt(dim), q = random(heads * dim, 4);
  const k = halves(random(capacity * kvHeads * dim, 4)), v = halves(random(capacity * kvHeads * dim)), out = example.buffer(heads * dim * 4), keys = fromHalves(k), values = fromHalves(v);
  example.run({ pipeline: example.pipeline(`attn_decode_${dim}`), operands: [example.put(q), example.put(k), example.put(v), out], params: params(heads, kvHeads, dim, length, capacity, { f32: scale }), at: 4, groups: [heads], threads: 128 });
  const expected = new Float64Array(heads * dim);
  for (let h = 0; h < heads; h++) {
    const at = (c: number, i: number): number => (c * kvHeads + Math.floor(h / (heads / kvHeads))) * dim + i;
    const scores = Array.from({ length }, (_, c) => { let s = 0; for (let i = 0; i < dim; i++) s += q[h * dim + i]! * keys[at(c, i)]!; return s * scale; });
    const most = Math.max(...scores), weights = scores.map((s) => Math.exp(s - most)), total = weights.reduce((a, b) => a + b);
    for (let i = 0; i < dim; i++) expected[h * dim + i] = weights.reduce((s, w, c) => s + w * values[at(c, i)]!, 0) / total;
  }
  report(`attn_decode_${dim}`, worst(new Float32Array(out.memory), expected), 2e-3);
}

function silu(): void {
  const n = 1000, g = random(n, 8), u = random(n), gate = example.put(g);
  example.run({ pipeline: example.pipeline("silu_mul"), operands: [gate, example.put(u)], params: params(n), at: 2, groups: [Math.ceil(n / 256)], threads: 256 });
  report("silu_mul", worst(new Float32Array(gate.memory), Float64Array.from(g, (x, i) => x / (1 + Math.exp(-x)) * u[i]!)), 1e-4);
}

rmsNorm();
matvec("matvec_q8_0_f32", 301, 512, false);
matvec("matvec_q8_0_f32", 301, 512, true);
matvec("matvec_q8_0_f16", 64, 256, false);
matmul();
attention(64);
attention(128);
silu();
process.exit(failed ? 1 : 0);
