// Uses the example host as host.proof.ts asks (its arguments): many norms with a leak count, a decode loop, or buffers freed at once.
import { dlopen, FFIType as T } from "bun:ffi";
import { Example, live, liveReport, params, q8, random, source, worst, type Buffer } from "./rig.ts";

const task = process.argv[2], option = (name: string, otherwise: number): number => Number(process.env[name] || otherwise);
const example = new Example(source());

function fail(text: string): never {
  console.log(`FAIL ${text}`);
  process.exit(1);
}

function norms(): void {
  const libc = dlopen("libc.so.6", { mmap: { args: [T.ptr, T.u64, T.i32, T.i32, T.i32, T.i64], returns: T.ptr } }).symbols;
  const aligned = Math.ceil(Number(libc.mmap(null, 1 << 20, 3, 0x22, -1, 0)) / 16384) * 16384;
  example.wrap(aligned + option("MISALIGNED", 0), 16384 * 4 + option("EXTRA_BYTES", 0));
  const n = 512, rows = 3;
  let before = 0;
  for (let round = 0; round < 100; round++) {
    if (round === 20) before = live();
    const x = random(n * rows), w = random(n), buffers = [example.put(x), example.put(w), example.buffer(n * rows * 4)];
    example.run({ pipeline: example.pipeline("rmsnorm"), operands: buffers, params: params(n, { f32: 1e-5 }), at: 3, groups: [rows], threads: option("THREADS", 128), groupMemory: option("GROUP_MEMORY", 0) });
    const expected = new Float64Array(n * rows);
    for (let r = 0; r < rows; r++) {
      const factor = 1 / Math.sqrt(x.subarray(r * n, r * n + n).reduce((s, v) => s + v * v, 0) / n + 1e-5);
      for (let i = 0; i < n; i++) expected[r * n + i] = x[r * n + i]! * factor * w[i]!;
    }
    const error = worst(new Float32Array(buffers[2]!.memory), expected);
    if (!(error < 1e-4)) fail(`wrong numbers: ${error}`);
    for (const b of buffers) example.free(b);
  }
  if (live() > before + 3) fail(`a leak: ${before} objects, then ${live()}: ${liveReport()}`);
}

// One layer of a decode step after another in one command buffer: each dispatch needs what the one before it wrote.
function decode(): void {
  const d = 256, x = example.put(random(d)), h = example.buffer(d * 4), none = example.buffer(16);
  const weight = (): Buffer => example.put(q8(random(d * d, 0.2)).blocks), scale = example.put(random(d).map((v) => 1 + v));
  for (let token = 0; token < 2; token++) {
    example.begin();
    for (let layer = 0; layer < 3; layer++) {
      example.dispatch({ pipeline: example.pipeline("rmsnorm"), operands: [x, scale, h], params: params(d, { f32: 1e-5 }), at: 3, groups: [1], threads: 256 });
      example.dispatch({ pipeline: example.pipeline("matvec_q8_0_f32"), operands: [weight(), h, x, null, none], params: params(d, d), at: 3, groups: [d / 8], threads: 128 });
    }
    example.end();
  }
}

function freedAtOnce(): void {
  const n = 512, buffers = [example.put(random(n)), example.put(random(n)), example.buffer(n * 4)];
  example.begin();
  example.dispatch({ pipeline: example.pipeline("rmsnorm"), operands: buffers, params: params(n, { f32: 1e-5 }), at: 3, groups: [1], threads: 128 });
  example.end(false);
  for (const b of buffers) example.free(b);
  example.close();
}

({ norms, decode, freedAtOnce })[task as "norms"]();
