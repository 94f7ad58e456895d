// A file that another program wrote: stories260K, a Llama of 260,032 parameters, converted by llama.cpp (model: MIT licence, A. Karpathy).

import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { openGguf } from "../../src/gguf/index.ts";

const path = join(import.meta.dir, "../fixtures/stories260K.gguf");

test("metadata", () => {
  const { metadata, version, alignment } = openGguf(path);
  expect([version, alignment, metadata.size]).toEqual([3, 32, 19]);
  expect(metadata.string("general.architecture")).toBe("llama");
  expect(metadata.u32("llama.block_count")).toBe(5);
  expect(metadata.u32("llama.attention.head_count_kv")).toBe(4);
  expect(metadata.u32Each("llama.attention.head_count", 5)).toEqual([8, 8, 8, 8, 8]);
  expect(metadata.f32("llama.attention.layer_norm_rms_epsilon")).toBe(Math.fround(1e-5));
  // Ids of 0xffffffff stand for "none" in many files.
  expect(metadata.u32("tokenizer.ggml.padding_token_id")).toBe(0xffffffff);
  expect(metadata.strings("tokenizer.ggml.tokens")?.slice(0, 4)).toEqual(["<unk>", "<s>", "</s>", "<0x00>"]);
  expect(metadata.floats("tokenizer.ggml.scores")?.length).toBe(512);
  expect(metadata.ints("tokenizer.ggml.token_type")?.length).toBe(512);
});

test("the tensors fill the file without a gap, as llama.cpp lays them", () => {
  const { tensors, shards } = openGguf(path);
  expect(tensors.size).toBe(48);
  const inOrder = [...tensors.values()];
  for (const [i, tensor] of inOrder.entries()) {
    const next = inOrder[i + 1]?.offsetBytes ?? shards[0]?.sizeBytes ?? 0;
    expect(Math.ceil((tensor.offsetBytes + tensor.bytes) / 32) * 32).toBe(next);
  }
  expect(tensors.get("blk.4.ffn_down.weight")).toMatchObject({ shape: [172, 64], type: { name: "F32" }, bytes: 172 * 64 * 4 });
});

test("data lies where the header says: norm weights are near 1, embeddings near 0", () => {
  const { tensors } = openGguf(path);
  const file = readFileSync(path).buffer;
  const mean = (name: string): number => {
    const tensor = tensors.get(name);
    if (tensor === undefined) throw new Error(name);
    const values = new Float32Array(file.slice(tensor.offsetBytes, tensor.offsetBytes + tensor.bytes));
    return values.reduce((sum, value) => sum + value, 0) / values.length;
  };
  for (let layer = 0; layer < 5; layer++) expect(mean(`blk.${layer}.attn_norm.weight`)).toBeGreaterThan(0.3);
  expect(Math.abs(mean("token_embd.weight"))).toBeLessThan(0.05);
});
