// Gemma 4 checkpoints for tests: config.json objects, the tensors that Hugging Face files of them hold (written out here, not taken from the
// code under test), and small random files.

import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { SafetensorsTensor } from "../../src/safetensors/index.ts";
import { build } from "../safetensors/build.ts";

export type Config = Record<string, unknown>;

/** config.json of a text model; `layers` and `period` give the pattern: every period-th layer is global. */
export function config(layers: number, period: number, more: Config): Config {
  return {
    architectures: ["Gemma4ForCausalLM"], model_type: "gemma4_text", bos_token_id: 2, eos_token_id: 1, pad_token_id: 0, final_logit_softcapping: 30,
    head_dim: 256, global_head_dim: 512, hidden_size_per_layer_input: 0, num_hidden_layers: layers, num_kv_shared_layers: 0, rms_norm_eps: 1e-6,
    layer_types: Array.from({ length: layers }, (_, l) => (l % period === period - 1 ? "full_attention" : "sliding_attention")),
    max_position_embeddings: 262144, sliding_window: 1024, tie_word_embeddings: true, use_double_wide_mlp: false, vocab_size: 262144,
    attention_k_eq_v: true, enable_moe_block: false, num_global_key_value_heads: null, num_experts: null, moe_intermediate_size: null, top_k_experts: null,
    rope_parameters: {
      full_attention: { partial_rotary_factor: 0.25, rope_theta: 1000000, rope_type: "proportional" },
      sliding_attention: { rope_theta: 10000, rope_type: "default" },
    },
    ...more,
  };
}

const E_SERIES = { attention_k_eq_v: false, hidden_size_per_layer_input: 256, sliding_window: 512, max_position_embeddings: 131072, num_attention_heads: 8 };

/** The released models. */
export const RELEASED = {
  e2b: config(35, 5, { ...E_SERIES, hidden_size: 1536, num_key_value_heads: 1, intermediate_size: 6144, num_kv_shared_layers: 20, use_double_wide_mlp: true }),
  e4b: config(42, 6, { ...E_SERIES, hidden_size: 2560, num_key_value_heads: 2, intermediate_size: 10240, num_kv_shared_layers: 18 }),
  "12b": config(48, 6, { hidden_size: 3840, num_attention_heads: 16, num_key_value_heads: 8, num_global_key_value_heads: 1, intermediate_size: 15360 }),
  "26b-a4b": config(30, 6, {
    hidden_size: 2816, num_attention_heads: 16, num_key_value_heads: 8, num_global_key_value_heads: 2, intermediate_size: 2112,
    enable_moe_block: true, num_experts: 128, top_k_experts: 8, moe_intermediate_size: 704,
  }),
  "31b": config(60, 6, { hidden_size: 5376, num_attention_heads: 32, num_key_value_heads: 16, num_global_key_value_heads: 4, intermediate_size: 21504 }),
} as const;

/** A model of a few hundred kilobytes with every part: `kind` of moe has experts and K = V, of ple per-layer embeddings and shared KV. */
export function tiny(kind: "moe" | "ple", more: Config = {}): Config {
  const common = { hidden_size: 64, head_dim: 16, global_head_dim: 32, num_attention_heads: 4, vocab_size: 300, max_position_embeddings: 512, sliding_window: 32 };
  return kind === "moe"
    ? config(4, 2, { ...common, num_key_value_heads: 2, num_global_key_value_heads: 1, intermediate_size: 96, enable_moe_block: true, num_experts: 4, top_k_experts: 2, moe_intermediate_size: 32, ...more })
    : config(4, 2, { ...common, attention_k_eq_v: false, num_key_value_heads: 1, intermediate_size: 96, hidden_size_per_layer_input: 32, num_kv_shared_layers: 2, use_double_wide_mlp: true, ...more });
}

/** Name (without `model.`) and row-major shape of every tensor of the checkpoint. */
export function storedTensors(c: Config): Map<string, number[]> {
  const n = (key: string): number => Number(c[key]);
  const d = n("hidden_size"), p = n("hidden_size_per_layer_input"), layers = n("num_hidden_layers"), heads = n("num_attention_heads");
  const out = new Map<string, number[]>([["embed_tokens.weight", [n("vocab_size"), d]], ["norm.weight", [d]]]);
  if (p > 0) {
    out.set("embed_tokens_per_layer.weight", [n("vocab_size"), p * layers]);
    out.set("per_layer_model_projection.weight", [p * layers, d]);
    out.set("per_layer_projection_norm.weight", [p]);
  }
  for (let l = 0; l < layers; l++) {
    const global = (c["layer_types"] as string[])[l] === "full_attention", shared = l >= layers - n("num_kv_shared_layers");
    const hd = n(global ? "global_head_dim" : "head_dim"), kEqualsV = global && c["attention_k_eq_v"] === true;
    const kv = kEqualsV ? n("num_global_key_value_heads") : n("num_key_value_heads");
    const ffn = n("intermediate_size") * (shared && c["use_double_wide_mlp"] === true ? 2 : 1);
    const set = (name: string, ...shape: number[]): void => void out.set(`layers.${l}.${name}`, shape);
    for (const norm of ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"]) set(`${norm}.weight`, d);
    set("self_attn.q_proj.weight", heads * hd, d);
    set("self_attn.q_norm.weight", hd);
    set("self_attn.o_proj.weight", d, heads * hd);
    if (!shared) {
      set("self_attn.k_proj.weight", kv * hd, d);
      set("self_attn.k_norm.weight", hd);
      if (!kEqualsV) set("self_attn.v_proj.weight", kv * hd, d);
    }
    set("mlp.gate_proj.weight", ffn, d);
    set("mlp.up_proj.weight", ffn, d);
    set("mlp.down_proj.weight", d, ffn);
    if (c["enable_moe_block"] === true) {
      const experts = n("num_experts"), width = n("moe_intermediate_size");
      for (const norm of ["pre_feedforward_layernorm_2", "post_feedforward_layernorm_1", "post_feedforward_layernorm_2"]) set(`${norm}.weight`, d);
      set("router.proj.weight", experts, d);
      set("router.scale", d);
      set("router.per_expert_scale", experts);
      set("experts.gate_up_proj", experts, 2 * width, d);
      set("experts.down_proj", experts, d, width);
    }
    if (p > 0) {
      set("per_layer_input_gate.weight", p, d);
      set("per_layer_projection.weight", d, p);
      set("post_per_layer_input_norm.weight", d);
    }
    set("layer_scalar", 1);
  }
  return out;
}

/** What openSafetensors would say of it, without a file. */
export function listing(c: Config, prefix = "model.", dtype: SafetensorsTensor["dtype"] = "BF16"): Map<string, SafetensorsTensor> {
  const out = new Map<string, SafetensorsTensor>();
  for (const [name, shape] of storedTensors(c)) out.set(prefix + name, entry(prefix + name, shape, dtype));
  return out;
}

/** One tensor of such a listing. */
export function entry(name: string, shape: number[], dtype: SafetensorsTensor["dtype"] = "BF16"): SafetensorsTensor {
  return { name, shape, dtype, bytes: 0, offsetBytes: 0, path: "model.safetensors" };
}

export type Dtype = "F32" | "F16" | "BF16";

/** Bytes of a checkpoint's one file, and the values of each tensor as they are stored. */
export interface Weights { readonly bytes: Uint8Array; readonly values: Map<string, Float32Array> }

/** Random weights of `dtype` for `tensors` (full names, row-major shapes), reproducible. `change` may edit them before they are stored. */
export function randomWeights(tensors: Map<string, number[]>, dtype: Dtype, change?: (name: string, values: Float32Array) => void): Weights {
  const values = new Map<string, Float32Array>(), header: Record<string, unknown> = {}, parts: Uint8Array[] = [];
  let state = 1, offset = 0;
  const random = (): number => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
  for (const [name, shape] of tensors) {
    const made = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => 0.1 * random());
    change?.(name, made);
    const stored = store(made, dtype);
    header[name] = { dtype, shape, data_offsets: [offset, offset + stored.byteLength] };
    offset += stored.byteLength;
    parts.push(new Uint8Array(stored.buffer));
    values.set(name, made);
  }
  return { bytes: build(header, new Uint8Array(Buffer.concat(parts))), values };
}

/** Rounds `values` to what `dtype` holds (in place) and gives the stored form. */
function store(values: Float32Array, dtype: Dtype): Float32Array | Float16Array | Uint16Array {
  if (dtype === "F32") return values.slice();
  if (dtype === "F16") {
    const halves = Float16Array.from(values);
    values.set(halves);
    return halves;
  }
  const words = new Uint32Array(values.buffer);
  const halves = Uint16Array.from(words, (w) => w >>> 16);
  for (let i = 0; i < words.length; i++) words[i] = halves[i]! << 16;
  return halves;
}

/** A folder that is removed at the end of the `using` block. */
export class Folder implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), "bao-convert-"));
  file(name: string): string { return join(this.path, name); }
  write(name: string, data: unknown): string {
    writeFileSync(this.file(name), data instanceof Uint8Array || typeof data === "string" ? data : JSON.stringify(data));
    return this.file(name);
  }
  /** A checkpoint folder inside this one. */
  checkpoint(c: Config, weights: Weights, files: Record<string, unknown> = {}): string {
    const folder = this.file("checkpoint");
    mkdirSync(folder, { recursive: true });
    for (const [name, data] of Object.entries({ "config.json": c, "model.safetensors": weights.bytes, ...files })) {
      this.write(join("checkpoint", name), data);
    }
    return folder;
  }
  [Symbol.dispose](): void { rmSync(this.path, { recursive: true, force: true }); }
}

/** `storedTensors` with the text model's prefix. */
export function prefixed(c: Config, prefix = "model."): Map<string, number[]> {
  return new Map([...storedTensors(c)].map(([name, shape]) => [prefix + name, shape]));
}

/** A tokenizer.json of the Gemma kind with `size` tokens: ten specials, the bytes, a few letters and merges, then fillers. */
export function tokenizerJson(size: number): Config {
  const special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"];
  const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`);
  const texts = [...special, ...bytes, "\u2581", "a", "b", "\n", "ab", "\u2581a", "\n\n"];
  const vocab: Record<string, number> = {};
  for (let id = 0; id < size; id++) vocab[texts[id] ?? String.fromCodePoint(0x4e00 + id)] = id;
  return {
    added_tokens: special.map((content, id) => ({ id, content, special: !content.includes("channel") })),
    normalizer: { type: "Replace", pattern: { String: " " }, content: "\u2581" }, pre_tokenizer: null,
    model: { type: "BPE", unk_token: "<unk>", byte_fallback: true, vocab, merges: [["a", "b"], ["\u2581", "a"], ["\n", "\n"]] },
  };
}
