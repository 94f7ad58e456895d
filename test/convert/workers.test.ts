// Conversion on several threads: the same bytes, sums and errors as on one, in the same order and in little memory, and no thread that outlives it.
import { afterEach, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { convertCheckpoint, FILE_TYPES, type ConvertOptions, type ConvertProgress, type FileType } from "../../src/convert/index.ts";
import { readConfig } from "../../src/convert/checkpoint.ts";
import { planTensors } from "../../src/convert/names.ts";
import type { Piece } from "../../src/convert/piece.ts";
import { PIECE_VALUES, tensorStream, type StreamTensor } from "../../src/convert/stream.ts";
import { chooseTypes } from "../../src/convert/types.ts";
import { ConvertWorkers } from "../../src/convert/workers.ts";
import { openSafetensors, type SafetensorsFile } from "../../src/safetensors/index.ts";
import { config, Folder, prefixed, randomWeights, type Weights } from "./checkpoints.ts";

setDefaultTimeout(60_000);

/** Rows of whole K blocks, rows that are not, and an embedding of more than one piece. */
const model = (vocabulary: number): Record<string, unknown> => config(4, 2, {
  hidden_size: 256, head_dim: 64, global_head_dim: 64, num_attention_heads: 4, num_key_value_heads: 2, num_global_key_value_heads: 1, intermediate_size: 96,
  vocab_size: vocabulary, enable_moe_block: true, num_experts: 4, top_k_experts: 2, moe_intermediate_size: 24,
});
const SMALL = model(4200);
/** Enough for two Workers: see PIECES_A_WORKER. */
const LARGE = model(34_000);
let whole: Weights | undefined;
/** LARGE with nothing amiss. */
const large = (folder: Folder): string => folder.checkpoint(LARGE, (whole ??= randomWeights(prefixed(LARGE), "BF16")));

// Counts the Workers that run, and may start another program in their place.
const RealWorker = globalThis.Worker;
let started = 0, running = 0, answers = 0, broken: string | undefined;
beforeEach(() => {
  started = running = answers = 0;
  broken = undefined;
  globalThis.Worker = class extends RealWorker {
    constructor(program: string | URL) {
      super(broken ?? program);
      started++;
      running++;
      this.addEventListener("message", () => { answers++; });
      this.addEventListener("close", () => { running--; });
    }
  };
});
afterEach(() => { globalThis.Worker = RealWorker; });

async function failure(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(() => undefined, (error: unknown) => error);
}

function tensorsOf(c: Record<string, unknown>, checkpoint: SafetensorsFile, type: FileType): StreamTensor[] {
  const plan = planTensors(readConfig(c, "config.json"), checkpoint.tensors, checkpoint.path);
  const types = chooseTypes(plan.tensors.map(({ name, shape }) => ({ name, shape, source: "BF16" })), type, 4, 4);
  return plan.tensors.map((tensor) => ({ tensor, target: types.get(tensor.name)! }));
}

/** All that a stream gives, byte for byte. */
async function collect(stream: ReturnType<typeof tensorStream>): Promise<[number, number, number, bigint | number][]> {
  const out: [number, number, number, bigint | number][] = [];
  for await (const { index, bytes, error, square } of stream) out.push([index, error, square, Bun.hash(new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength))]);
  return out;
}

const TYPES = Object.keys(FILE_TYPES) as FileType[];
test.each([["BF16", TYPES], ["F32", ["bf16", "f16", "q4_k_m"]], ["F16", ["bf16", "f32", "q5_0"]]] as const)("from %s to %p: the pieces of several threads are those of one", async (dtype, types) => {
  using folder = new Folder();
  using checkpoint = openSafetensors(folder.checkpoint(SMALL, randomWeights(prefixed(SMALL), dtype)));
  for (const type of types) {
    const tensors = tensorsOf(SMALL, checkpoint, type), alone = await collect(tensorStream(checkpoint, tensors));
    await using workers = new ConvertWorkers(3);
    expect([type, await collect(tensorStream(checkpoint, tensors, workers))]).toEqual([type, alone]);
    expect(alone.length).toBe(tensors.length + 1);
  }
  expect(started).toBe(3 * types.length);
});

test("no more pieces are read ahead than two a thread", async () => {
  using folder = new Folder();
  using checkpoint = openSafetensors(large(folder));
  let read = 0, used = 0, most = 0;
  const counting = { path: checkpoint.path, read: (...args: Parameters<SafetensorsFile["read"]>) => { read++; return checkpoint.read(...args); } } as SafetensorsFile;
  const tensors = tensorsOf(LARGE, checkpoint, "q8_0").filter(({ tensor }) => "dtype" in tensor.from);
  await using workers = new ConvertWorkers(2);
  for await (const _ of tensorStream(counting, tensors, workers)) {
    used++;
    most = Math.max(most, read - used);
  }
  expect([most, read]).toEqual([4, used]);
  expect(used).toBeGreaterThan(9);
});

/** A piece that takes a while. */
const SLOW: Piece = { name: "a", source: "a", path: "", dtype: "F32", target: "Q6_K", rows: 4096, columns: 256, start: 0 };

test("an abort is not kept waiting by what is under way, and nothing begins after it", async () => {
  const abort = new AbortController(), reason = new Error("enough"), early = new AbortController();
  await using workers = new ConvertWorkers(1, abort.signal);
  const result = workers.convert(SLOW, (into) => into.fill(1));
  abort.abort(reason);
  expect([await failure(result), await failure(workers.convert(SLOW, () => {})), answers]).toEqual([reason, reason, 0]);
  early.abort(reason);
  await using others = new ConvertWorkers(1, early.signal);
  expect(await failure(others.convert(SLOW, () => {}))).toBe(reason);
});

test("pieces that wait when a conversion ends are not converted any more", async () => {
  const workers = new ConvertWorkers(2);
  for (let i = 0; i < workers.depth; i++) void workers.convert(SLOW, (into) => into.fill(i));
  await workers[Symbol.asyncDispose]();
  // One that a Worker has begun already it finishes.
  expect(answers).toBeLessThanOrEqual(2);
  expect([started, running]).toEqual([2, 0]);
});

interface Run { readonly file: Buffer; readonly report: unknown; readonly progress: ConvertProgress[] }
async function run(folder: Folder, source: string, threads: number, type: FileType): Promise<Run> {
  const progress: ConvertProgress[] = [];
  const report = await convertCheckpoint({ source, output: folder.file("out.gguf"), type, threads, onProgress: (p) => progress.push(p) });
  return { file: readFileSync(report.path), report, progress };
}

test.each(["q8_0", "f16"] as const)("%s: file, report and progress do not depend on the threads, and none is left", async (type) => {
  using folder = new Folder();
  const source = large(folder);
  const one = await run(folder, source, 1, type);
  expect(started).toBe(0);
  const four = await run(folder, source, 4, type);
  expect([started, running]).toEqual([2, 0]);
  expect(four.file.equals(one.file)).toBe(true);
  expect(four.report).toEqual(one.report);
  expect(four.progress).toEqual(one.progress);
});

test("little to convert, or nothing that takes long, starts no thread", async () => {
  using folder = new Folder();
  await convertCheckpoint({ source: folder.checkpoint(SMALL, randomWeights(prefixed(SMALL), "BF16")), output: folder.file("small.gguf"), type: "q8_0", threads: 8 });
  const source = large(folder);
  for (const type of ["bf16", "f32"] as const) await convertCheckpoint({ source, output: folder.file("large.gguf"), type, threads: 8 });
  expect(started).toBe(0);
});

/** A conversion on two threads that has to fail: gives its error, and that nothing of it is left. */
async function fails(folder: Folder, source: string, more: Partial<ConvertOptions> = {}): Promise<unknown> {
  const error = await failure(convertCheckpoint({ source, output: folder.file("out.gguf"), type: "q8_0", threads: 2, ...more }));
  expect([started, running, readdirSync(folder.path)]).toEqual([2, 0, ["checkpoint"]]);
  return error;
}

test("of two bad tensors the first is told, as one thread tells it", async () => {
  using folder = new Folder();
  const spoil = (name: string, values: Float32Array): void => {
    if (name === "model.embed_tokens.weight") values[3 * PIECE_VALUES + 5] = Number.NaN;
    if (name === "model.layers.0.self_attn.q_proj.weight") values[1] = Number.POSITIVE_INFINITY;
  };
  const source = folder.checkpoint(LARGE, randomWeights(prefixed(LARGE), "BF16", spoil));
  const error = await fails(folder, source) as Error;
  const alone = await failure(convertCheckpoint({ source, output: folder.file("out.gguf"), type: "q8_0", threads: 1 })) as Error;
  expect([error.constructor, error]).toEqual([alone.constructor, expect.objectContaining({ code: "convert_not_finite", message: alone.message, hint: (alone as Error & { hint: string }).hint })]);
  expect(error.message).toContain(`embed_tokens.weight: value ${3 * PIECE_VALUES + 5} is NaN`);
});

test("a weight too large for F16, found in another thread", async () => {
  using folder = new Folder();
  const weights = randomWeights(prefixed(LARGE), "F32", (name, values) => { if (name === "model.embed_tokens.weight") values[PIECE_VALUES] = 1e6; });
  const error = await fails(folder, folder.checkpoint(LARGE, weights), { type: "f16" });
  expect(error).toMatchObject({ name: "ModelFileError", code: "convert_range", message: expect.stringContaining("token_embd.weight") });
});

test("an abort, or a fault of the caller's or of the disk, ends all threads", async () => {
  using folder = new Folder();
  const source = large(folder), abort = new AbortController(), reason = new Error("enough");
  expect(await fails(folder, source, { signal: abort.signal, onProgress: ({ index }) => { if (index === 2) abort.abort(reason); } })).toBe(reason);
  started = 0;
  expect(await fails(folder, source, { onProgress: ({ index }) => { if (index === 2) throw reason; } })).toBe(reason);
  started = 0;
  expect(await fails(folder, source, { signal: AbortSignal.abort(reason) })).toBe(reason);
});

test.each([
  ["throws", "self.onmessage = () => { throw new Error('boom'); };", "boom"], ["ends", "self.onmessage = () => process.exit(0);", "it ended by itself"],
  ["cannot start", "this is no program", ""],
])("a thread that %s: an error, and nothing left", async (_, program, words) => {
  using folder = new Folder();
  broken = folder.write("broken.js", program);
  const source = large(folder);
  const error = await failure(convertCheckpoint({ source, output: folder.file("out.gguf"), type: "q8_0", threads: 2 }));
  expect(error).toMatchObject({ name: "BaoError", code: "convert_failed", message: expect.stringContaining(words) });
  expect([started, running, readdirSync(folder.path).sort()]).toEqual([2, 0, ["broken.js", "checkpoint"]]);
});

const cli = join(import.meta.dir, "../../src/cli/bao.ts");

test("Ctrl-C in the middle: exit code 130 and no file, whole or partial", async () => {
  using folder = new Folder();
  const source = large(folder), part = folder.file("out.gguf.part");
  const child = Bun.spawn([process.execPath, cli, "convert", source, "-o", folder.file("out.gguf"), "--type", "q6_k"], { stdout: "ignore", stderr: "ignore" });
  while (!existsSync(part) || Bun.file(part).size < 1000) await Bun.sleep(2);
  child.kill("SIGINT");
  expect([await child.exited, readdirSync(folder.path)]).toEqual([130, ["checkpoint"]]);
});

test("a disk that takes no more: the error of the disk, and no partial file", () => {
  using folder = new Folder();
  const source = large(folder);
  // A limit on the size of files (in blocks) stands in for a full disk.
  const limited = `trap '' XFSZ; ulimit -f 4000; exec "$0" "$@"`;
  const child = Bun.spawnSync(["bash", "-c", limited, process.execPath, cli, "convert", source, "-o", folder.file("out.gguf"), "--type", "q8_0"]);
  expect([child.exitCode, child.stderr.toString(), readdirSync(folder.path)]).toEqual([4, expect.stringContaining("out.gguf.part"), ["checkpoint"]]);
});
