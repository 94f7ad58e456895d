// Gemma 4, all sizes: dense (12B, 31B), MoE (26B-A4B) and E-series (E2B, E4B: per-layer embeddings, KV shared by the tail layers).
import { ModelFileError } from "../../errors.ts";
import type { GgufFile } from "../../gguf/index.ts";
import { kvKinds, type LayerConfig, type ModelConfig } from "../config.ts";
import type { ModelWeights, WeightSource } from "../weights.ts";
import { embeddingRows, Keys, LIMITS, type Family } from "./family.ts";

function configure(file: GgufFile): ModelConfig {
  const keys = new Keys(file, "gemma4");
  const count = keys.int("block_count", 1, LIMITS.layers);
  const hidden = keys.int("embedding_length", 1, LIMITS.hidden);
  const heads = keys.int("attention.head_count", 1, LIMITS.heads);
  const kvHeads = keys.intEach("attention.head_count_kv", count, 1, heads, heads);
  const headDim = keys.even("attention.key_length", LIMITS.headDim);
  const headDimSliding = keys.even("attention.key_length_swa", LIMITS.headDim, headDim);
  for (const [key, expected] of [["attention.value_length", headDim], ["attention.value_length_swa", headDimSliding]] as const) {
    const found = keys.int(key, 1, LIMITS.headDim, expected);
    if (found !== expected) throw keys.bad(key, `${expected}, the key length`, found);
  }
  const window = keys.int("attention.sliding_window", 1, LIMITS.context);
  const sliding = keys.bools("attention.sliding_window_pattern");
  if (sliding?.length !== count) throw keys.bad("attention.sliding_window_pattern", `${count} booleans`, sliding?.length ?? "nothing");
  const shared = keys.int("attention.shared_kv_layers", 0, count - 1, 0);
  const owners = count - shared;
  const ffn = keys.intEach("feed_forward_length", count, 1, LIMITS.ffn);
  const experts = keys.int("expert_count", 0, LIMITS.experts, 0);

  // A tail layer reads the cache of the last owning layer of its own kind.
  const sourceOf = (l: number): number => {
    for (let s = owners - 1; s >= 0; s--) if (sliding[s] === sliding[l]) return s;
    throw keys.bad("attention.shared_kv_layers", `a layer with KV for the ${sliding[l] ? "sliding" : "global"} layer ${l}`, shared);
  };
  const layers = Array.from({ length: count }, (_, l): LayerConfig => {
    if (heads % kvHeads[l]! !== 0) throw keys.bad("attention.head_count_kv", `a divisor of ${heads} heads`, kvHeads[l]);
    return {
      index: l, window: sliding[l] ? window : 0, kvHeads: kvHeads[l]!, headDim: sliding[l] ? headDimSliding : headDim, rope: sliding[l] ? 0 : 1,
      kvSource: l < owners ? l : sourceOf(l), kEqualsV: l < owners && !file.tensors.has(`blk.${l}.attn_v.weight`), ffn: ffn[l]!,
    };
  });
  const used = experts > 0 ? keys.int("expert_used_count", 1, Math.min(experts, 32)) : 0;
  return {
    architecture: "gemma4", name: file.metadata.string("general.name") ?? "Gemma 4",
    vocabulary: embeddingRows(file, hidden), hidden, heads, layers,
    ropes: [
      { nRot: keys.even("rope.dimension_count_swa", headDimSliding, headDimSliding), base: keys.float("rope.freq_base_swa", 0, 10_000), freqScale: 1, factors: false },
      { nRot: keys.even("rope.dimension_count", headDim, headDim), base: keys.float("rope.freq_base", 0, 1_000_000), freqScale: 1, factors: true },
    ],
    ropeMode: "neox", contextLength: keys.int("context_length", 1, LIMITS.context), eps: keys.float("attention.layer_norm_rms_epsilon", 0),
    embedScale: Math.fround(Math.sqrt(hidden)), attentionScale: 1, activation: "gelu", postNorms: true, normV: true,
    ...(experts > 0 ? { moe: { experts, used, ffn: keys.int("expert_feed_forward_length", 1, LIMITS.ffn) } } : {}),
    perLayerWidth: keys.int("embedding_length_per_layer_input", 0, LIMITS.hidden, 0),
    softcap: keys.float("final_logit_softcapping", -1, 30),
  };
}

/** Factors of the global layers' rope when the file has none: the first quarter of the pairs rotates, the rest stands still. */
function defaultRopeFactors(headDim: number): Float32Array {
  const rotating = Math.trunc((headDim * 0.25) / 2);
  return Float32Array.from({ length: headDim / 2 }, (_, i) => (i < rotating ? 1 : 1e30));
}

function weights<W>(config: ModelConfig, source: WeightSource<W>): ModelWeights<W> {
  const d = config.hidden, { moe, perLayerWidth: p } = config, count = config.layers.length;
  const embedding = source.matrix("token_embd.weight", d, config.vocabulary, "both");
  const globalRot = config.ropes[1]!.nRot;
  return {
    embedding,
    output: source.has("output.weight") ? source.matrix("output.weight", d, config.vocabulary) : embedding,
    outputNorm: source.vector("output_norm.weight", d),
    ropeFactors: source.optionalVector("rope_freqs.weight", globalRot / 2) ?? source.constant("rope_freqs.weight", defaultRopeFactors(globalRot)),
    perLayer: p === 0 ? undefined : {
      tokenEmbedding: source.matrix("per_layer_token_embd.weight", p * count, config.vocabulary, "rows"),
      modelProjection: source.matrix("per_layer_model_proj.weight", d, p * count),
      projectionNorm: source.vector("per_layer_proj_norm.weight", p),
    },
    layers: config.layers.map((l) => {
      const blk = `blk.${l.index}.`, owns = l.kvSource === l.index;
      const q = config.heads * l.headDim, kv = l.kvHeads * l.headDim;
      return {
        attnNorm: source.vector(`${blk}attn_norm.weight`, d),
        q: source.matrix(`${blk}attn_q.weight`, d, q),
        k: owns ? source.matrix(`${blk}attn_k.weight`, d, kv) : undefined,
        v: owns && !l.kEqualsV ? source.matrix(`${blk}attn_v.weight`, d, kv) : undefined,
        o: source.matrix(`${blk}attn_output.weight`, q, d),
        qNorm: source.vector(`${blk}attn_q_norm.weight`, l.headDim),
        kNorm: owns ? source.vector(`${blk}attn_k_norm.weight`, l.headDim) : undefined,
        postAttentionNorm: source.vector(`${blk}post_attention_norm.weight`, d),
        ffnNorm: source.vector(`${blk}ffn_norm.weight`, d),
        gate: source.matrix(`${blk}ffn_gate.weight`, d, l.ffn),
        up: source.matrix(`${blk}ffn_up.weight`, d, l.ffn),
        down: source.matrix(`${blk}ffn_down.weight`, l.ffn, d),
        postFfwNorm: source.vector(`${blk}post_ffw_norm.weight`, d),
        moe: !moe ? undefined : {
          router: source.matrix(`${blk}ffn_gate_inp.weight`, d, moe.experts),
          routerScale: source.vector(`${blk}ffn_gate_inp.scale`, d),
          expertNorm: source.vector(`${blk}pre_ffw_norm_2.weight`, d),
          densePostNorm: source.vector(`${blk}post_ffw_norm_1.weight`, d),
          expertPostNorm: source.vector(`${blk}post_ffw_norm_2.weight`, d),
          experts: source.has(`${blk}ffn_gate_exps.weight`)
            ? { gate: source.experts(`${blk}ffn_gate_exps.weight`, d, moe.ffn, moe.experts), up: source.experts(`${blk}ffn_up_exps.weight`, d, moe.ffn, moe.experts), down: source.experts(`${blk}ffn_down_exps.weight`, moe.ffn, d, moe.experts) }
            : { gate: source.experts(`${blk}ffn_gate_up_exps.weight`, d, 2 * moe.ffn, moe.experts), up: undefined, down: source.experts(`${blk}ffn_down_exps.weight`, moe.ffn, d, moe.experts) },
        },
        perLayer: p === 0 ? undefined : {
          gate: source.matrix(`${blk}inp_gate.weight`, d, p), projection: source.matrix(`${blk}proj.weight`, p, d), postNorm: source.vector(`${blk}post_norm.weight`, d),
        },
        outputScale: source.scalar(`${blk}layer_output_scale.weight`, 1),
      };
    }),
  };
}

export const gemma4: Family = {
  architectures: ["gemma4"],
  configure(file) {
    const config = configure(file);
    if (config.moe && config.perLayerWidth > 0) {
      throw new ModelFileError("model_unsupported", `${file.path}: a Gemma 4 with both experts and per-layer embeddings`, "No released Gemma 4 is built like this.");
    }
    if (kvKinds(config).length > 4) {
      throw new ModelFileError("model_unsupported", `${file.path}: its layers have ${kvKinds(config).length} kinds of KV cache, at most 4 are supported`, "Kinds differ in window, KV heads or head size; released models have two.");
    }
    return config;
  },
  weights,
};
