// Whole conversions of small random checkpoints: values, keys, what is reported, and what happens when something goes wrong.
import { expect, test } from "bun:test";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { ModelFileError, UsageError } from "../../src/errors.ts";
import { convertCheckpoint, type ConvertOptions, type ConvertProgress, type ConvertReport } from "../../src/convert/index.ts";
import { expectedTensors } from "../../src/convert/names.ts";
import { readConfig } from "../../src/convert/checkpoint.ts";
import { openGguf, type GgufFile } from "../../src/gguf/index.ts";
import { openHost } from "../../src/native/library.ts";
import { config, Folder, prefixed, randomWeights, storedTensors, tiny, tokenizerJson, type Config, type Dtype } from "./checkpoints.ts";

interface Outcome { readonly report: ConvertReport; readonly gguf: GgufFile; readonly values: Map<string, Float32Array> }

async function convert(folder: Folder, c: Config, dtype: Dtype, type: ConvertOptions["type"], more: Partial<ConvertOptions> & { files?: Record<string, unknown> } = {}): Promise<Outcome> {
  const { files, ...options } = more;
  const weights = randomWeights(prefixed(c), dtype);
  const source = folder.checkpoint(c, weights, files);
  const report = await convertCheckpoint({ source, output: folder.file("out.gguf"), type, ...options });
  return { report, gguf: openGguf(report.path), values: weights.values };
}

/** A tensor's bytes in the file. */
function data(gguf: GgufFile, name: string): Uint8Array {
  const tensor = gguf.tensors.get(name)!;
  return new Uint8Array(readFileSync(tensor.path).subarray(tensor.offsetBytes, tensor.offsetBytes + tensor.bytes));
}

/** Tensor of the checkpoint behind a tensor of the file. */
function sourceOf(c: Config): Map<string, string> {
  const stored = storedTensors(c);
  return new Map(expectedTensors(readConfig(c, "config.json")).flatMap((t) => {
    const source = t.sources.find((s) => stored.has(s));
    return source === undefined ? [] : [[t.name, `model.${source}`] as const];
  }));
}

async function failure(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(() => undefined, (error: unknown) => error);
}

test.each([["moe", "F32"], ["moe", "BF16"], ["ple", "F16"], ["ple", "BF16"]] as const)("%s, %s to f32: every value is exact", async (kind, dtype) => {
  using folder = new Folder();
  const { gguf, values, report } = await convert(folder, tiny(kind), dtype, "f32");
  const sources = sourceOf(tiny(kind));
  expect(gguf.tensors.size).toBe(values.size + 1);
  for (const [name, source] of sources) {
    expect([name, gguf.tensors.get(name)!.type.name]).toEqual([name, "F32"]);
    expect([name, Buffer.compare(data(gguf, name), new Uint8Array(values.get(source)!.buffer))]).toEqual([name, 0]);
  }
  const factors = new Float32Array(data(gguf, "rope_freqs.weight").buffer);
  expect([...factors]).toEqual([1, 1, 1, 1, ...new Array<number>(12).fill(Math.fround(1e30))]);
  expect(report.types.map((t) => [t.type, t.relativeRms, t.worst])).toEqual([["F32", 0, undefined]]);
  expect(report.bytes).toBe(readFileSync(report.path).length);
});

test("bf16 to bf16: the bits of the checkpoint", async () => {
  using folder = new Folder();
  const c = tiny("ple");
  const { gguf, values, report } = await convert(folder, c, "BF16", "bf16");
  let matrices = 0;
  for (const [name, source] of sourceOf(c)) {
    const tensor = gguf.tensors.get(name)!;
    if (tensor.type.name !== "BF16") continue;
    matrices++;
    const bits = Uint16Array.from(new Uint32Array(values.get(source)!.buffer), (w) => w >>> 16);
    expect([name, Buffer.compare(data(gguf, name), new Uint8Array(bits.buffer))]).toEqual([name, 0]);
  }
  // 2 owning layers have q, k, v, 2 do not; all have o, gate, up, down, inp_gate, proj; 3 global matrices.
  expect(matrices).toBe(2 * 3 + 2 * 1 + 4 * 6 + 3);
  expect(gguf.tensors.get("per_layer_model_proj.weight")!.type.name).toBe("BF16");
  expect(report.types.every((t) => t.relativeRms === 0)).toBe(true);
});

test("f32 to bf16 and f16 rounds to nearest, ties to even, and reports the loss", async () => {
  using folder = new Folder();
  const c = tiny("moe"), name = "model.layers.0.mlp.up_proj.weight";
  const exact = [1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, -(1 + 2 ** -8), 0, -0];
  const weights = randomWeights(prefixed(c), "F32", (tensor, values) => { if (tensor === name) values.set(exact); });
  const source = folder.checkpoint(c, weights);
  const report = await convertCheckpoint({ source, output: folder.file("b.gguf"), type: "bf16" });
  const halves = new Uint16Array(data(openGguf(report.path), "blk.0.ffn_up.weight").buffer);
  expect([...halves.subarray(0, 6)]).toEqual([0x3f80, 0x3f82, 0x3f81, 0xbf80, 0, 0x8000]);
  const loss = report.types.find((t) => t.type === "BF16")!;
  // Uniform values rounded to 8 bits of mantissa: about 2^-9 / sqrt(3) of their size.
  expect(loss.relativeRms).toBeGreaterThan(5e-4);
  expect(loss.relativeRms).toBeLessThan(3e-3);
  expect(loss.worst!.tensor).toMatch(/weight$/);
  const f16 = await convertCheckpoint({ source, output: folder.file("h.gguf"), type: "f16" });
  const values = new Float16Array(data(openGguf(f16.path), "blk.1.attn_q.weight").buffer);
  expect([...values]).toEqual([...Float16Array.from(weights.values.get("model.layers.1.self_attn.q_proj.weight")!)]);
});

test("quantised rows are the native quantiser's, and the reported error is the measured one", async () => {
  using folder = new Folder();
  const c = config(4, 2, {
    hidden_size: 256, head_dim: 64, global_head_dim: 64, num_attention_heads: 4, num_key_value_heads: 2, num_global_key_value_heads: 1, intermediate_size: 96,
    vocab_size: 300, enable_moe_block: true, num_experts: 4, top_k_experts: 2, moe_intermediate_size: 32,
  });
  const { gguf, values, report } = await convert(folder, c, "BF16", "q4_k_m");
  const host = openHost(), sources = sourceOf(c), seen = new Set<string>();
  const sums = new Map<string, { error: number; square: number; worst: number; tensor: string }>();
  for (const { name, type, shape } of gguf.tensors.values()) {
    if (name === "rope_freqs.weight" || type.name === "F32") continue;
    seen.add(type.name);
    const original = values.get(sources.get(name)!)!, columns = shape[0]!, rows = original.length / columns, stored = data(gguf, name);
    const expected = new Uint8Array(stored.length), back = new Float32Array(original.length);
    host.quantize(type.id, original, original.byteLength, expected, expected.length, rows, columns);
    expect([name, Buffer.compare(stored, expected)]).toEqual([name, 0]);
    host.dequantize(type.id, stored, stored.length, back, back.byteLength, rows, columns);
    let error = 0, square = 0;
    for (const [i, x] of original.entries()) { error += (back[i]! - x) ** 2; square += x ** 2; }
    const sum = sums.get(type.name) ?? { error: 0, square: 0, worst: 0, tensor: "" };
    sum.error += error;
    sum.square += square;
    if (Math.sqrt(error / square) > sum.worst) { sum.worst = Math.sqrt(error / square); sum.tensor = name; }
    sums.set(type.name, sum);
  }
  expect([...seen].sort()).toEqual(["Q4_K", "Q5_0", "Q6_K", "Q8_0"]);
  for (const [type, { error, square, worst, tensor }] of sums) {
    const told = report.types.find((t) => t.type === type)!;
    expect(told.relativeRms).toBeCloseTo(Math.sqrt(error / square), 6);
    expect(told.worst!.tensor).toBe(tensor);
    expect(told.worst!.relativeRms).toBeCloseTo(worst, 6);
  }
  expect(report.tensors).toBe(gguf.tensors.size);
  expect(report.parameters).toBe([...values.values()].reduce((n, v) => n + v.length, 0) + 32);
});

test("a tensor of many pieces arrives whole, and progress covers it", async () => {
  using folder = new Folder();
  const c = tiny("moe", { vocab_size: 40_000 });
  const seen: ConvertProgress[] = [];
  const { gguf, values, report } = await convert(folder, c, "BF16", "f32", { onProgress: (p) => seen.push(p) });
  expect(Buffer.compare(data(gguf, "token_embd.weight"), new Uint8Array(values.get("model.embed_tokens.weight")!.buffer))).toBe(0);
  expect(seen.filter((p) => p.tensor === "token_embd.weight").map((p) => p.bytes)).toEqual([2 ** 22, 2 ** 23, 40_000 * 64 * 4]);
  expect(seen.at(-1)).toMatchObject({ index: report.tensors, tensors: report.tensors, bytes: seen[0]!.totalBytes });
});

test("keys: name, type, caller's metadata, tokenizer and template", async () => {
  using folder = new Folder();
  const files = { "tokenizer.json": tokenizerJson(290), "chat_template.jinja": "TEMPLATE", "generation_config.json": { top_k: 5 }, "tokenizer_config.json": { chat_template: "other" } };
  const { gguf, report } = await convert(folder, tiny("moe"), "BF16", "f16", { files, metadata: { "general.license": "mit", "general.sampling.temp": 0.5 } });
  const m = gguf.metadata;
  expect([m.string("general.name"), m.u32("general.file_type"), m.string("general.license"), m.f32("general.sampling.temp"), m.u32("general.sampling.top_k")]).toEqual(["checkpoint", 1, "mit", 0.5, 5]);
  expect([m.u32("gemma4.block_count"), m.string("tokenizer.ggml.model"), m.strings("tokenizer.ggml.tokens")!.length, m.string("tokenizer.chat_template")]).toEqual([4, "gemma4", 300, "TEMPLATE"]);
  expect(report.notices).toEqual([]);
  const given = await convertCheckpoint({ source: folder.file("checkpoint"), output: folder.file("two.gguf"), type: "f16", name: "N", chatTemplate: "MINE" });
  const second = openGguf(given.path).metadata;
  expect([second.string("general.name"), second.string("tokenizer.chat_template")]).toEqual(["N", "MINE"]);
});

test("a vocabulary larger than the header's first buffer", async () => {
  using folder = new Folder();
  const { gguf } = await convert(folder, tiny("moe", { vocab_size: 20_000 }), "BF16", "bf16", { files: { "tokenizer.json": tokenizerJson(20_000) } });
  expect(gguf.metadata.strings("tokenizer.ggml.tokens")!.length).toBe(20_000);
  expect(gguf.metadata.floats("tokenizer.ggml.scores")!.every((s) => s === -1000)).toBe(true);
});

test("without tokenizer.json: model none and a notice; a template has then no place", async () => {
  using folder = new Folder();
  const { gguf, report } = await convert(folder, tiny("moe"), "BF16", "bf16");
  expect(gguf.metadata.string("tokenizer.ggml.model")).toBe("none");
  expect(report.notices).toEqual([expect.stringContaining("no tokenizer.json")]);
  const error = await failure(convertCheckpoint({ source: folder.file("checkpoint"), output: folder.file("x.gguf"), type: "bf16", chatTemplate: "T" }));
  expect((error as UsageError).code).toBe("convert_template");
});

test("a checkpoint in several files is one model", async () => {
  using folder = new Folder();
  const c = tiny("moe"), tensors = [...prefixed(c)], half = Math.floor(tensors.length / 2);
  const first = randomWeights(new Map(tensors.slice(0, half)), "BF16"), second = randomWeights(new Map(tensors.slice(half)), "BF16");
  const index = { weight_map: Object.fromEntries(tensors.map(([name], i) => [name, i < half ? "a.safetensors" : "b.safetensors"])) };
  const source = folder.checkpoint(c, first, { "a.safetensors": first.bytes, "b.safetensors": second.bytes, "model.safetensors.index.json": index });
  const report = await convertCheckpoint({ source, output: folder.file("out.gguf"), type: "f32" });
  const gguf = openGguf(report.path);
  for (const [name, stored] of sourceOf(c)) {
    const values = first.values.get(stored) ?? second.values.get(stored)!;
    expect([name, Buffer.compare(data(gguf, name), new Uint8Array(values.buffer))]).toEqual([name, 0]);
  }
});

test("weights that are not finite, or too large for F16, stop the conversion and leave no file", async () => {
  using folder = new Folder();
  const c = tiny("moe"), name = "model.layers.2.mlp.gate_proj.weight";
  for (const [value, type, code, words] of [
    [Number.NaN, "f32", "convert_not_finite", `${name}: value 7 is NaN`], [Number.NEGATIVE_INFINITY, "q8_0", "convert_not_finite", "value 7 is -Infinity"], [1e6, "f16", "convert_range", "blk.2.ffn_gate.weight"],
  ] as const) {
    const source = folder.checkpoint(c, randomWeights(prefixed(c), "F32", (tensor, values) => { if (tensor === name) values[7] = value; }));
    const error = await failure(convertCheckpoint({ source, output: folder.file("out.gguf"), type }));
    expect(error).toBeInstanceOf(ModelFileError);
    expect((error as ModelFileError).code).toBe(code);
    expect((error as ModelFileError).message).toContain(words);
    expect(readdirSync(folder.path)).toEqual(["checkpoint"]);
  }
});

test("an abort ends the conversion with its reason and keeps the file that was there", async () => {
  using folder = new Folder();
  folder.write("out.gguf", "old");
  const abort = new AbortController();
  const reason = new Error("enough");
  const error = await failure(convert(folder, tiny("moe"), "BF16", "f32", { signal: abort.signal, onProgress: ({ index }) => { if (index === 3) abort.abort(reason); } }));
  expect(error).toBe(reason);
  expect(readFileSync(folder.file("out.gguf"), "utf8")).toBe("old");
  expect(existsSync(folder.file("out.gguf.part"))).toBe(false);
});

test("a folder without config.json, and JSON that is none", async () => {
  using folder = new Folder();
  expect(((await failure(convertCheckpoint({ source: folder.path, output: folder.file("o.gguf"), type: "f32" }))) as UsageError).code).toBe("convert_source");
  folder.write("config.json", "{");
  expect(((await failure(convertCheckpoint({ source: folder.path, output: folder.file("o.gguf"), type: "f32" }))) as ModelFileError).code).toBe("convert_json");
});
