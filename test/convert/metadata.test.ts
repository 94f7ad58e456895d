// The keys of a converted file: those of the model, the general ones, and a caller's own.
import { expect, test } from "bun:test";
import { ModelFileError, UsageError } from "../../src/errors.ts";
import { readConfig } from "../../src/convert/checkpoint.ts";
import { callerValue, generalMetadata, modelMetadata, parseMeta } from "../../src/convert/metadata.ts";
import { config, RELEASED, tiny, type Config } from "./checkpoints.ts";

/** Keys without prefix as plain values; arrays as [element type, values]. */
function keys(c: Config): Record<string, unknown> {
  return Object.fromEntries([...modelMetadata(readConfig(c, "config.json"))].map(([key, v]) => {
    expect(key.startsWith("gemma4.")).toBe(true);
    return [key.slice(7), v.type === "array" ? [v.value.of, ...(v.value.values as ArrayLike<number> & Iterable<number>)] : v.value];
  }));
}
const global = <T>(layers: number, period: number, sliding: T, full: T): T[] => Array.from({ length: layers }, (_, l) => (l % period === period - 1 ? full : sliding));

test("26B-A4B: every key", () => {
  expect(keys(RELEASED["26b-a4b"])).toEqual({
    vocab_size: 262144, block_count: 30, context_length: 262144, embedding_length: 2816, feed_forward_length: 2112,
    "attention.head_count": 16, "attention.head_count_kv": ["i32", ...global(30, 6, 8, 2)],
    "attention.key_length": 512, "attention.value_length": 512, "attention.key_length_swa": 256, "attention.value_length_swa": 256,
    "attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 1024, "attention.sliding_window_pattern": ["bool", ...global(30, 6, 1, 0)],
    "attention.shared_kv_layers": 0, embedding_length_per_layer_input: 0,
    "rope.dimension_count": 512, "rope.dimension_count_swa": 256, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, final_logit_softcapping: 30,
    expert_count: 128, expert_used_count: 8, expert_feed_forward_length: 704,
  });
});

test("what differs in the other sizes", () => {
  const e2b = keys(RELEASED.e2b);
  expect(e2b["feed_forward_length"]).toEqual(["i32", ...Array.from({ length: 35 }, (_, l) => (l < 15 ? 6144 : 12288))]);
  expect(e2b["attention.head_count_kv"]).toBe(1);
  expect([e2b["attention.shared_kv_layers"], e2b["embedding_length_per_layer_input"]]).toEqual([20, 256]);
  expect(e2b["expert_count"]).toBeUndefined();
  const e4b = keys(RELEASED.e4b);
  expect([e4b["feed_forward_length"], e4b["attention.head_count_kv"]]).toEqual([10240, 2]);
  expect(keys(RELEASED["12b"])["attention.head_count_kv"]).toEqual(["i32", ...global(48, 6, 8, 1)]);
  expect(keys(RELEASED["31b"])["attention.head_count_kv"]).toEqual(["i32", ...global(60, 6, 16, 4)]);
});

test("per_layer_config overrides, and a nested text_config", () => {
  const c = tiny("moe", { global_head_dim: 16, num_global_key_value_heads: 2, per_layer_config: { 1: { head_dim: 32, num_key_value_heads: 1 }, 3: { head_dim: 32, num_key_value_heads: 1 } } });
  expect(keys(c)).toEqual(keys(tiny("moe")));
  expect(keys({ model_type: "gemma4", text_config: c })).toEqual(keys(tiny("moe")));
});

test.each([
  ["layer_types", { layer_types: ["sliding_attention"] }],
  ["hidden_size", { hidden_size: "64" }],
  ["num_attention_heads", { num_attention_heads: 0 }],
  ["divisors of 4 heads", { num_key_value_heads: 3 }],
  ["num_kv_shared_layers", { num_kv_shared_layers: 4 }],
  ["one head size", { per_layer_config: { 0: { head_dim: 8 } } }],
  ["num_experts", { num_experts: null }],
  ["rms_norm_eps", { rms_norm_eps: -1 }],
  ["sliding_window", { sliding_window: null }],
] as [string, Config][])("a config with an odd %s is refused and named", (words, change) => {
  let error: unknown;
  try { readConfig(tiny("moe", change), "here/config.json"); } catch (e) { error = e; }
  expect(error).toBeInstanceOf(ModelFileError);
  expect((error as ModelFileError).code).toBe("convert_config");
  expect((error as ModelFileError).message).toContain("here/config.json");
  expect((error as ModelFileError).message).toContain(words);
});

test("other architectures are refused by name", () => {
  expect(() => readConfig(config(2, 2, { architectures: ["LlamaForCausalLM"] }), "c")).toThrow("LlamaForCausalLM");
  expect(() => readConfig([], "c")).toThrow(ModelFileError);
});

test("general keys and sampling from generation_config.json", () => {
  expect(Object.fromEntries([...generalMetadata("q5_k_m", "N", { temperature: 0.5, top_k: 64, top_p: 0.25, do_sample: true })].map(([k, v]) => [k, [v.type, v.value]]))).toEqual({
    "general.architecture": ["string", "gemma4"], "general.type": ["string", "model"], "general.name": ["string", "N"],
    "general.file_type": ["u32", 17], "general.quantization_version": ["u32", 2],
    "general.sampling.top_k": ["i32", 64], "general.sampling.top_p": ["f32", 0.25], "general.sampling.temp": ["f32", 0.5],
  });
});

test("--meta: text by default, other types by name, mistakes are usage errors", () => {
  expect(parseMeta("general.license=a=b:c")).toEqual(["general.license", { type: "string", value: "a=b:c" }]);
  expect(parseMeta("a.b:f32=0.7")).toEqual(["a.b", { type: "f32", value: 0.7 }]);
  expect(parseMeta("a:i32=-3")[1]).toEqual({ type: "i32", value: -3 });
  expect(parseMeta("a:bool=false")[1]).toEqual({ type: "bool", value: false });
  for (const bad of ["a", "=1", "a:u32=-1", "a:u32=1.5", "a:f32=", "a:f32=x", "a:bool=1", "a:blob=1"]) expect(() => parseMeta(bad)).toThrow(UsageError);
});

test("a caller's keys: values are typed, keys of the model itself are refused", () => {
  expect([callerValue("a", "x"), callerValue("a", true), callerValue("a", 3), callerValue("a", -3), callerValue("a", 0.5)].map((v) => v.type)).toEqual(["string", "bool", "u32", "i32", "f32"]);
  for (const key of ["gemma4.block_count", "general.architecture", "general.alignment", "tokenizer.ggml.model", "split.no", ""]) expect(() => callerValue(key, 1)).toThrow(UsageError);
});
