// The element type of every tensor. The expected types were written down from files that llama-quantize made of models of these structures.
import { expect, test } from "bun:test";
import type { GgmlTypeName } from "../../src/gguf/index.ts";
import { UsageError } from "../../src/errors.ts";
import { readConfig } from "../../src/convert/checkpoint.ts";
import { expectedTensors } from "../../src/convert/names.ts";
import { chooseTypes, FILE_TYPES, fileType, type FileType } from "../../src/convert/types.ts";
import { config, RELEASED, type Config } from "./checkpoints.ts";

function types(c: Config, type: FileType, source: "F32" | "F16" | "BF16" = "BF16", extra: { name: string; shape: number[] }[] = []): Map<string, GgmlTypeName> {
  const tensors = [...expectedTensors(readConfig(c, "config.json")), ...extra].map(({ name, shape }) => ({ name, shape, source }));
  return chooseTypes(tensors, type, Number(c["num_hidden_layers"]), Number(c["num_experts"] ?? 0));
}

function histogram(chosen: Map<string, GgmlTypeName>): Partial<Record<GgmlTypeName, number>> {
  const counts: Partial<Record<GgmlTypeName, number>> = {};
  for (const type of chosen.values()) counts[type] = (counts[type] ?? 0) + 1;
  return counts;
}

/** Blocks whose tensor `part` has type `type`. */
const blocks = (chosen: Map<string, GgmlTypeName>, part: string, type: GgmlTypeName): number[] =>
  [...chosen].flatMap(([name, t]) => (t === type && name.endsWith(`.${part}.weight`) ? [Number(name.split(".")[1])] : []));

/** Every third block between the first and the last eighth, and these, of 30 blocks. */
const MORE_BITS_OF_30 = [0, 1, 2, 5, 8, 11, 14, 17, 20, 23, 26, 27, 28, 29];

test("Q4_K_M of 26B-A4B, tensor by tensor", () => {
  const chosen = types(RELEASED["26b-a4b"], "q4_k_m");
  expect(chosen.size).toBe(658);
  expect(histogram(chosen)).toEqual({ F32: 392, Q4_K: 192, Q5_0: 32, Q8_0: 28, Q6_K: 14 });
  expect(chosen.get("token_embd.weight")).toBe("Q6_K");
  // Rows of 2112 and 704 are no whole K blocks: Q6_K becomes Q8_0 and Q4_K becomes Q5_0.
  for (const part of ["ffn_down", "ffn_down_exps"]) {
    expect(blocks(chosen, part, "Q8_0")).toEqual(MORE_BITS_OF_30);
    expect(blocks(chosen, part, "Q5_0").length).toBe(16);
  }
  // attn_v exists on the 25 sliding blocks; the rule counts these, so the places are 0-2, 5, 8, ... of the 25.
  expect(blocks(chosen, "attn_v", "Q6_K")).toEqual([0, 1, 2, 6, 9, 13, 16, 20, 24, 25, 26, 27, 28]);
  expect(blocks(chosen, "attn_v", "Q4_K").length).toBe(12);
  for (const part of ["attn_q", "attn_k", "attn_output", "ffn_gate", "ffn_up", "ffn_gate_up_exps"]) expect(blocks(chosen, part, "Q4_K").length).toBe(30);
  for (const name of ["blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ffn_gate_inp.scale", "blk.0.ffn_down_exps.scale", "blk.0.attn_q_norm.weight", "blk.0.layer_output_scale.weight", "rope_freqs.weight", "output_norm.weight"]) {
    expect([name, chosen.get(name)]).toEqual([name, "F32"]);
  }
});

const TABLE: [keyof typeof RELEASED, FileType, Partial<Record<GgmlTypeName, number>>][] = [
  ["26b-a4b", "q5_k_m", { F32: 392, Q5_K: 192, Q5_1: 32, Q8_0: 28, Q6_K: 14 }],
  ["26b-a4b", "q6_k", { F32: 392, Q6_K: 206, Q8_0: 60 }],
  ["26b-a4b", "q4_0", { F32: 392, Q4_0: 265, Q6_K: 1 }],
  ["26b-a4b", "q5_0", { F32: 392, Q5_0: 265, Q6_K: 1 }],
  ["26b-a4b", "q8_0", { F32: 392, Q8_0: 266 }],
  ["26b-a4b", "bf16", { F32: 392, BF16: 266 }],
  ["26b-a4b", "f16", { F32: 392, F16: 266 }],
  ["26b-a4b", "f32", { F32: 658 }],
  ["12b", "q4_k_m", { F32: 338, Q4_K: 284, Q6_K: 45 }],
  ["31b", "q4_k_m", { F32: 422, Q4_K: 355, Q6_K: 56 }],
  ["e2b", "q4_k_m", { F32: 263, BF16: 1, Q4_K: 251, Q6_K: 26 }],
  ["e4b", "q5_k_m", { F32: 321, BF16: 1, Q5_K: 309, Q6_K: 35 }],
];
test.each(TABLE)("%s as %s", (size, type, counts) => {
  expect(histogram(types(RELEASED[size], type))).toEqual(counts);
});

test("E series: both embeddings as the output matrix would be, the model projection as the checkpoint has it", () => {
  for (const source of ["F32", "F16", "BF16"] as const) {
    const chosen = types(RELEASED.e2b, "q4_k_m", source);
    expect(chosen.get("per_layer_token_embd.weight")).toBe("Q6_K");
    expect(chosen.get("per_layer_model_proj.weight")).toBe(source);
  }
  expect(types(RELEASED.e2b, "q8_0").get("per_layer_token_embd.weight")).toBe("Q8_0");
  expect(types(RELEASED.e2b, "f16").get("per_layer_model_proj.weight")).toBe("F16");
});

test("an untied model: output as Q6_K, embedding as the other matrices", () => {
  const chosen = types(RELEASED["12b"], "q4_k_m", "BF16", [{ name: "output.weight", shape: [3840, 262144] }]);
  expect([chosen.get("output.weight"), chosen.get("token_embd.weight")]).toEqual(["Q6_K", "Q4_K"]);
});

test("eight experts: k and v as Q8_0 in every quantised file, the attention output as Q5_K in Q4_K_M", () => {
  const eight = config(8, 4, {
    hidden_size: 256, head_dim: 64, global_head_dim: 128, num_attention_heads: 4, num_key_value_heads: 2, num_global_key_value_heads: 1, intermediate_size: 512,
    enable_moe_block: true, num_experts: 8, top_k_experts: 2, moe_intermediate_size: 192, vocab_size: 4096,
  });
  const counts: [FileType, Partial<Record<GgmlTypeName, number>>][] = [
    ["q4_0", { F32: 106, Q4_0: 56, Q6_K: 1, Q8_0: 14 }],
    ["q6_k", { F32: 106, Q6_K: 49, Q8_0: 22 }],
    ["q4_k_m", { F32: 106, Q4_K: 36, Q8_0: 18, Q5_K: 8, Q6_K: 5, Q5_0: 4 }],
    ["q5_k_m", { F32: 106, Q5_K: 44, Q8_0: 18, Q6_K: 5, Q5_1: 4 }],
  ];
  for (const [type, expected] of counts) expect([type, histogram(types(eight, type))]).toEqual([type, expected]);
  const chosen = types(eight, "q4_k_m");
  expect(blocks(chosen, "attn_v", "Q8_0")).toEqual([0, 1, 2, 4, 5, 6]);
  expect(blocks(chosen, "attn_output", "Q5_K").length).toBe(8);
  expect(blocks(chosen, "ffn_down", "Q6_K")).toEqual([0, 3, 6, 7]);
});

test("rows that fit no block type become F16", () => {
  const odd = config(2, 2, { hidden_size: 40, head_dim: 16, global_head_dim: 32, num_attention_heads: 2, num_key_value_heads: 1, intermediate_size: 96 });
  const chosen = types(odd, "q4_k_m");
  expect([chosen.get("blk.0.ffn_up.weight"), chosen.get("blk.0.ffn_down.weight")]).toEqual(["F16", "Q5_0"]);
});

test("type names in any case, a typo is a usage error that lists them", () => {
  expect(fileType("Q4_K_M")).toBe("q4_k_m");
  expect(() => fileType("q4km")).toThrow(UsageError);
  expect(() => fileType("constructor")).toThrow(UsageError);
  expect(FILE_TYPES.q4_k_m.id).toBe(15);
});
