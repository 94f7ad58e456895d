// Which tensors a Gemma 4 GGUF has, with shapes, and which tensor of the checkpoint each one is. The list follows from the configuration
// alone; `planTensors` then holds the checkpoint against it. No tensor data is read here, and values are never permuted or shifted.

import { ModelFileError } from "../errors.ts";
import type { SafetensorsDtype, SafetensorsTensor } from "../safetensors/index.ts";
import type { SourceConfig } from "./checkpoint.ts";

/** A tensor of the GGUF file before its checkpoint counterpart is known. */
export interface ExpectedTensor {
  /** Name in the GGUF file. */
  readonly name: string;
  /** Names in the checkpoint, without the model's prefix, in order of preference. Empty: not stored there. */
  readonly sources: readonly string[];
  /** ne order: shape[0] is the row length. */
  readonly shape: readonly number[];
  /** May be absent from the checkpoint. */
  readonly optional?: boolean;
}

/** A tensor of the GGUF file and where its values come from. */
export interface PlannedTensor {
  readonly name: string;
  readonly shape: readonly number[];
  /** Checkpoint tensor, or the values themselves. */
  readonly from: { readonly tensor: string; readonly dtype: SafetensorsDtype } | { readonly values: Float32Array };
}

export interface TensorPlan {
  readonly tensors: readonly PlannedTensor[];
  /** What was left out on purpose: one sentence for each reason. */
  readonly notices: readonly string[];
}

/** Prefixes of the text model, the multimodal ones first because `model.` is a prefix of theirs. */
const TEXT_PREFIXES = ["model.language_model.", "language_model.model.", "model."];
const HEAD_NAMES = ["lm_head.weight", "model.lm_head.weight", "language_model.lm_head.weight"];
/** Parts of a multimodal checkpoint that are no text model, after an optional `model.`. */
const OTHER_MODALITY = /^(model\.)?(vision|audio|image|video|embed_(vision|audio|image|video)|multi_modal)/;
/** Longest list of names in one message. */
const SHOWN = 8;

/** All tensors of the GGUF file, in file order: global ones, then block by block. */
export function expectedTensors(config: SourceConfig): ExpectedTensor[] {
  const { hidden: d, vocabulary, moe, perLayerWidth: p, heads } = config;
  const count = config.layers.length;
  const list: ExpectedTensor[] = [{ name: "token_embd.weight", sources: ["embed_tokens.weight"], shape: [d, vocabulary] }];
  const add = (name: string, source: string | readonly string[], ...shape: number[]): void => {
    list.push({ name, sources: typeof source === "string" ? [source] : source, shape });
  };
  if (p > 0) {
    add("per_layer_token_embd.weight", "embed_tokens_per_layer.weight", p * count, vocabulary);
    add("per_layer_model_proj.weight", "per_layer_model_projection.weight", d, p * count);
    add("per_layer_proj_norm.weight", "per_layer_projection_norm.weight", p);
  }
  add("output_norm.weight", "norm.weight", d);
  add("rope_freqs.weight", [], config.globalHeadDim / 2);
  for (const [l, layer] of config.layers.entries()) {
    const block = (name: string, source: string | readonly string[], ...shape: number[]): void => {
      const sources = typeof source === "string" ? [source] : source;
      add(`blk.${l}.${name}`, sources.map((s) => `layers.${l}.${s}`), ...shape);
    };
    const q = heads * layer.headDim, kv = layer.kvHeads * layer.headDim;
    block("attn_norm.weight", "input_layernorm.weight", d);
    block("attn_q.weight", "self_attn.q_proj.weight", d, q);
    block("attn_q_norm.weight", "self_attn.q_norm.weight", layer.headDim);
    if (layer.ownsKv) {
      block("attn_k.weight", "self_attn.k_proj.weight", d, kv);
      block("attn_k_norm.weight", "self_attn.k_norm.weight", layer.headDim);
      if (!layer.kEqualsV) block("attn_v.weight", "self_attn.v_proj.weight", d, kv);
    }
    block("attn_output.weight", "self_attn.o_proj.weight", q, d);
    block("post_attention_norm.weight", "post_attention_layernorm.weight", d);
    block("ffn_norm.weight", "pre_feedforward_layernorm.weight", d);
    block("ffn_gate.weight", "mlp.gate_proj.weight", d, layer.ffn);
    block("ffn_up.weight", "mlp.up_proj.weight", d, layer.ffn);
    block("ffn_down.weight", "mlp.down_proj.weight", layer.ffn, d);
    block("post_ffw_norm.weight", "post_feedforward_layernorm.weight", d);
    if (moe) {
      block("ffn_gate_inp.weight", "router.proj.weight", d, moe.experts);
      block("ffn_gate_inp.scale", "router.scale", d);
      block("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight", d);
      // Fused as stored: an expert's gate rows first, then its up rows.
      block("ffn_gate_up_exps.weight", ["experts.gate_up_proj", "experts.gate_up_proj.weight"], d, 2 * moe.ffn, moe.experts);
      block("ffn_down_exps.weight", ["experts.down_proj", "experts.down_proj.weight"], moe.ffn, d, moe.experts);
      block("ffn_down_exps.scale", "router.per_expert_scale", moe.experts);
      block("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight", d);
      block("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight", d);
    }
    if (p > 0) {
      block("inp_gate.weight", "per_layer_input_gate.weight", d, p);
      block("proj.weight", "per_layer_projection.weight", p, d);
      block("post_norm.weight", "post_per_layer_input_norm.weight", d);
    }
    list.push({ name: `blk.${l}.layer_output_scale.weight`, sources: [`layers.${l}.layer_scalar`], shape: [1], optional: true });
  }
  return list;
}

/** Frequency factors of the global layers: 1 for the pairs that rotate, 1e30 (standing still) for the rest. [headDim / 2] */
export function ropeFactors(config: SourceConfig): Float32Array {
  const rotating = Math.trunc((config.globalHeadDim * config.globalRotaryFactor) / 2);
  return Float32Array.from({ length: config.globalHeadDim / 2 }, (_, i) => (i < rotating ? 1 : 1e30));
}

/**
 * Finds the source of every tensor. `stored` are the checkpoint's tensors, `path` is for messages. Throws ModelFileError
 * `convert_missing_tensor`, `convert_shape`, `convert_dtype`, and `convert_unknown_tensor` for a tensor of the text model that nothing would use.
 */
export function planTensors(config: SourceConfig, stored: ReadonlyMap<string, SafetensorsTensor>, path: string): TensorPlan {
  const prefix = TEXT_PREFIXES.find((p) => stored.has(`${p}embed_tokens.weight`)) ?? "model.";
  const expected = expectedTensors(config);
  const tensors: PlannedTensor[] = [], missing: string[] = [], used = new Set<string>(), notices: string[] = [];
  const head = config.tied ? undefined : HEAD_NAMES.find((name) => stored.has(name));
  if (!config.tied && head === undefined) missing.push(HEAD_NAMES[0]!);

  for (const { name, sources, shape, optional } of expected) {
    if (sources.length === 0) {
      tensors.push({ name, shape, from: { values: ropeFactors(config) } });
      continue;
    }
    const tensor = sources.map((s) => stored.get(prefix + s)).find((t) => t !== undefined);
    if (tensor === undefined) {
      if (!optional) missing.push(prefix + sources[0]!);
      continue;
    }
    used.add(tensor.name);
    tensors.push({ name, shape, from: checked(tensor, shape) });
    if (name === "token_embd.weight" && head !== undefined) {
      used.add(head);
      tensors.push({ name: "output.weight", shape, from: checked(stored.get(head)!, shape) });
    }
  }
  if (missing.length > 0) {
    throw new ModelFileError(
      "convert_missing_tensor",
      `${path}: ${listed(missing)} ${missing.length > 1 ? "are" : "is"} missing`,
      "config.json asks for these tensors: fetch all files of one version of the checkpoint.",
    );
  }
  notices.push(...leftOut(config, stored, used, prefix, path));
  return { tensors, notices };
}

/** Sorts out the checkpoint's other tensors: modalities and unused copies become notices, anything else is an error. */
function leftOut(config: SourceConfig, stored: ReadonlyMap<string, SafetensorsTensor>, used: ReadonlySet<string>, prefix: string, path: string): string[] {
  const modality: string[] = [], unused: string[] = [], unknown: string[] = [];
  for (const name of stored.keys()) {
    if (used.has(name)) continue;
    if (isUnused(config, name, prefix)) unused.push(name);
    else if (OTHER_MODALITY.test(name)) modality.push(name);
    else unknown.push(name);
  }
  if (unknown.length > 0) {
    throw new ModelFileError(
      "convert_unknown_tensor",
      `${path}: ${listed(unknown)} ${unknown.length > 1 ? "have" : "has"} no place in a Gemma 4 text model`,
      "Leaving weights out would change the model. Adapters and quantised checkpoints must be merged or dequantised first.",
    );
  }
  const notices: string[] = [];
  if (modality.length > 0) notices.push(`${modality.length} vision and audio tensors are left out: only the text model is converted.`);
  if (unused.length > 0) notices.push(`${unused.length} tensors that no layer reads are left out (${listed(unused)}).`);
  return notices;
}

/** Tensors that checkpoints carry and the model never reads. */
function isUnused(config: SourceConfig, name: string, prefix: string): boolean {
  if (HEAD_NAMES.includes(name)) return config.tied;
  if (!name.startsWith(prefix)) return false;
  const match = /^layers\.(\d+)\.self_attn\.(k_proj|v_proj|k_norm)\.weight$/.exec(name.slice(prefix.length));
  const layer = match === null ? undefined : config.layers[Number(match[1])];
  if (match === null || layer === undefined) return false;
  // Written out, an unused attn_v would be taken for a used one.
  return !layer.ownsKv || (match[2] === "v_proj" && layer.kEqualsV);
}

function checked(tensor: SafetensorsTensor, shape: readonly number[]): PlannedTensor["from"] {
  const expected = shape.toReversed();
  const found = tensor.shape.length === 0 ? [1] : tensor.shape;
  if (found.length !== expected.length || found.some((n, i) => n !== expected[i])) {
    throw new ModelFileError(
      "convert_shape",
      `${tensor.path}: tensor ${tensor.name} has shape [${tensor.shape.join(", ")}], expected [${expected.join(", ")}]`,
      "config.json and the tensors are of different models, or the tensor is packed: fetch the unquantised checkpoint.",
    );
  }
  const { dtype } = tensor;
  if (dtype !== "F32" && dtype !== "F16" && dtype !== "BF16") {
    throw new ModelFileError(
      "convert_dtype",
      `${tensor.path}: tensor ${tensor.name} is ${dtype}, expected F32, F16 or BF16`,
      "Convert from the unquantised checkpoint.",
    );
  }
  return { tensor: tensor.name, dtype };
}

function listed(names: readonly string[]): string {
  const shown = names.slice(0, SHOWN).join(", ");
  return names.length > SHOWN ? `${shown} and ${names.length - SHOWN} more` : names.length === 1 ? `tensor ${shown}` : `tensors ${shown}`;
}
