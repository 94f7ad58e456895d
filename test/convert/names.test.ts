// The tensor list of every released size, and what a checkpoint may and may not hold.
import { expect, test } from "bun:test";
import { ModelFileError } from "../../src/errors.ts";
import { readConfig } from "../../src/convert/checkpoint.ts";
import { planTensors, ropeFactors } from "../../src/convert/names.ts";
import { entry, listing, RELEASED, tiny, type Config } from "./checkpoints.ts";

const plan = (c: Config, stored = listing(c)): ReturnType<typeof planTensors> => planTensors(readConfig(c, "config.json"), stored, "model.safetensors");
const shapes = (c: Config): Record<string, readonly number[]> => Object.fromEntries(plan(c).tensors.map((t) => [t.name, t.shape]));
const sources = (c: Config): Record<string, string> =>
  Object.fromEntries(plan(c).tensors.map((t) => [t.name, "tensor" in t.from ? t.from.tensor : "(made)"]));

function refused(code: string, action: () => unknown): string {
  let error: unknown;
  try { action(); } catch (e) { error = e; }
  expect(error).toBeInstanceOf(ModelFileError);
  expect((error as ModelFileError).code).toBe(code);
  expect((error as ModelFileError).hint).not.toBe("");
  return (error as ModelFileError).message;
}

test.each([["e2b", 541], ["e4b", 666], ["12b", 667], ["26b-a4b", 658], ["31b", 833]] as const)("%s has %i tensors, all from a place of their own", (size, count) => {
  const { tensors, notices } = plan(RELEASED[size]);
  expect(tensors.length).toBe(count);
  expect(new Set(tensors.map((t) => t.name)).size).toBe(count);
  const from = tensors.flatMap((t) => ("tensor" in t.from ? [t.from.tensor] : []));
  expect(new Set(from).size).toBe(count - 1);
  expect(notices).toEqual([]);
});

test("names and shapes of a sliding and a global block of 26B-A4B", () => {
  const from = sources(RELEASED["26b-a4b"]), shape = shapes(RELEASED["26b-a4b"]);
  const block = (l: number): Record<string, unknown> =>
    Object.fromEntries(Object.keys(from).filter((n) => n.startsWith(`blk.${l}.`)).map((n) => [n.slice(`blk.${l}.`.length), [from[n]!.replace(`model.layers.${l}.`, ""), shape[n]]]));
  const common = {
    "attn_norm.weight": ["input_layernorm.weight", [2816]],
    "post_attention_norm.weight": ["post_attention_layernorm.weight", [2816]],
    "ffn_norm.weight": ["pre_feedforward_layernorm.weight", [2816]],
    "ffn_gate.weight": ["mlp.gate_proj.weight", [2816, 2112]],
    "ffn_up.weight": ["mlp.up_proj.weight", [2816, 2112]],
    "ffn_down.weight": ["mlp.down_proj.weight", [2112, 2816]],
    "post_ffw_norm.weight": ["post_feedforward_layernorm.weight", [2816]],
    "ffn_gate_inp.weight": ["router.proj.weight", [2816, 128]],
    "ffn_gate_inp.scale": ["router.scale", [2816]],
    "pre_ffw_norm_2.weight": ["pre_feedforward_layernorm_2.weight", [2816]],
    "ffn_gate_up_exps.weight": ["experts.gate_up_proj", [2816, 1408, 128]],
    "ffn_down_exps.weight": ["experts.down_proj", [704, 2816, 128]],
    "ffn_down_exps.scale": ["router.per_expert_scale", [128]],
    "post_ffw_norm_1.weight": ["post_feedforward_layernorm_1.weight", [2816]],
    "post_ffw_norm_2.weight": ["post_feedforward_layernorm_2.weight", [2816]],
    "layer_output_scale.weight": ["layer_scalar", [1]],
  };
  expect(block(0)).toEqual({
    ...common,
    "attn_q.weight": ["self_attn.q_proj.weight", [2816, 4096]], "attn_q_norm.weight": ["self_attn.q_norm.weight", [256]],
    "attn_k.weight": ["self_attn.k_proj.weight", [2816, 2048]], "attn_k_norm.weight": ["self_attn.k_norm.weight", [256]],
    "attn_v.weight": ["self_attn.v_proj.weight", [2816, 2048]], "attn_output.weight": ["self_attn.o_proj.weight", [4096, 2816]],
  });
  expect(block(5)).toEqual({
    ...common,
    "attn_q.weight": ["self_attn.q_proj.weight", [2816, 8192]], "attn_q_norm.weight": ["self_attn.q_norm.weight", [512]],
    "attn_k.weight": ["self_attn.k_proj.weight", [2816, 1024]], "attn_k_norm.weight": ["self_attn.k_norm.weight", [512]],
    "attn_output.weight": ["self_attn.o_proj.weight", [8192, 2816]],
  });
  expect([from["token_embd.weight"], from["output_norm.weight"], from["rope_freqs.weight"]]).toEqual(["model.embed_tokens.weight", "model.norm.weight", "(made)"]);
});

test("E2B: per-layer embeddings, shared KV without k and v, double-wide tail", () => {
  const from = sources(RELEASED.e2b), shape = shapes(RELEASED.e2b);
  expect(from["per_layer_token_embd.weight"]).toBe("model.embed_tokens_per_layer.weight");
  expect(shape["per_layer_token_embd.weight"]).toEqual([8960, 262144]);
  expect(shape["per_layer_model_proj.weight"]).toEqual([1536, 8960]);
  expect(from["per_layer_model_proj.weight"]).toBe("model.per_layer_model_projection.weight");
  expect(from["per_layer_proj_norm.weight"]).toBe("model.per_layer_projection_norm.weight");
  expect(from["blk.3.inp_gate.weight"]).toBe("model.layers.3.per_layer_input_gate.weight");
  expect(shape["blk.3.proj.weight"]).toEqual([256, 1536]);
  expect(from["blk.3.post_norm.weight"]).toBe("model.layers.3.post_per_layer_input_norm.weight");
  expect([shape["blk.14.ffn_up.weight"], shape["blk.15.ffn_up.weight"]]).toEqual([[1536, 6144], [1536, 12288]]);
  expect(shape["blk.14.attn_v.weight"]).toEqual([1536, 512]);
  for (const part of ["attn_k", "attn_v", "attn_k_norm"]) expect(from[`blk.15.${part}.weight`]).toBeUndefined();
});

test("rope factors: a quarter of a 512-wide head's pairs rotates", () => {
  const factors = ropeFactors(readConfig(RELEASED["31b"], "config.json"));
  expect(factors.length).toBe(256);
  expect([...factors].map((f) => (f === 1 ? 1 : f === Math.fround(1e30) ? 0 : -1)).join("")).toBe("1".repeat(64) + "0".repeat(192));
});

test("a multimodal checkpoint: nested config, other prefix, encoders left out with one notice", () => {
  const nested = { architectures: ["Gemma4ForConditionalGeneration"], model_type: "gemma4", eos_token_id: [1, 106], text_config: tiny("ple"), vision_config: {} };
  const stored = listing(tiny("ple"), "model.language_model.");
  for (const name of ["model.vision_tower.encoder.layers.0.self_attn.k_proj.weight", "model.embed_vision.embedding_projection.weight", "model.audio_tower.conv.weight", "model.embed_audio.x.weight"]) {
    stored.set(name, entry(name, [2, 3, 4]));
  }
  const { tensors, notices } = plan(nested, stored);
  expect(tensors.map((t) => t.name)).toEqual(plan(tiny("ple")).tensors.map((t) => t.name));
  expect(notices).toEqual(["4 vision and audio tensors are left out: only the text model is converted."]);
});

test("weights that no layer reads are left out and said so: shared layers' k and v, v on K = V layers, a tied head", () => {
  const stored = listing(tiny("ple"));
  for (const name of ["model.layers.3.self_attn.k_proj.weight", "model.layers.3.self_attn.v_proj.weight", "model.layers.3.self_attn.k_norm.weight", "lm_head.weight"]) stored.set(name, entry(name, [1]));
  const shared = plan(tiny("ple"), stored);
  expect(shared.tensors.length).toBe(plan(tiny("ple")).tensors.length);
  expect(shared.notices).toEqual([expect.stringContaining("4 tensors that no layer reads")]);
  const equal = listing(tiny("moe"));
  equal.set("model.layers.1.self_attn.v_proj.weight", entry("model.layers.1.self_attn.v_proj.weight", [32, 64]));
  const { tensors, notices } = plan(tiny("moe"), equal);
  expect(tensors.some((t) => t.name === "blk.1.attn_v.weight")).toBe(false);
  expect(notices.length).toBe(1);
});

test("an untied head becomes output.weight and must be there", () => {
  const c = tiny("moe", { tie_word_embeddings: false });
  const stored = listing(c);
  expect(refused("convert_missing_tensor", () => plan(c, stored))).toContain("lm_head.weight");
  stored.set("lm_head.weight", entry("lm_head.weight", [300, 64]));
  expect(plan(c, stored).tensors.find((t) => t.name === "output.weight")).toEqual({ name: "output.weight", shape: [64, 300], from: { tensor: "lm_head.weight", dtype: "BF16" } });
});

test("a checkpoint without layer_scalar converts without layer_output_scale", () => {
  const stored = listing(tiny("moe"));
  for (let l = 0; l < 4; l++) stored.delete(`model.layers.${l}.layer_scalar`);
  expect(plan(tiny("moe"), stored).tensors.filter((t) => t.name.includes("layer_output_scale"))).toEqual([]);
});

test("missing tensors are named, a long list is cut", () => {
  const one = listing(tiny("moe"));
  one.delete("model.layers.2.router.scale");
  expect(refused("convert_missing_tensor", () => plan(tiny("moe"), one))).toContain("tensor model.layers.2.router.scale is missing");
  const many = new Map([...listing(tiny("moe"))].filter(([name]) => !name.includes("mlp.")));
  expect(refused("convert_missing_tensor", () => plan(tiny("moe"), many))).toContain("and 4 more are missing");
});

test("a wrong shape names both shapes; packed, integer and unknown tensors are refused", () => {
  const name = "model.layers.0.mlp.up_proj.weight";
  const change = (...change: Parameters<typeof entry>): Map<string, ReturnType<typeof entry>> => listing(tiny("moe")).set(change[0], entry(...change));
  expect(refused("convert_shape", () => plan(tiny("moe"), change(name, [64, 96])))).toContain("[64, 96], expected [96, 64]");
  expect(refused("convert_dtype", () => plan(tiny("moe"), change(name, [96, 64], "U8")))).toContain("U8");
  expect(refused("convert_unknown_tensor", () => plan(tiny("moe"), change("model.layers.0.mlp.up_proj.lora_A.weight", [4, 64])))).toContain("lora_A");
  expect(refused("convert_unknown_tensor", () => plan(tiny("moe"), change("model.layers.9.self_attn.k_proj.weight", [4, 64])))).toContain("layers.9");
});
