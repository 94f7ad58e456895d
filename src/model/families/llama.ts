// Llama 2 and 3 (dense): no post norms, SiLU, interleaved rope, optional frequency factors, tied or separate output matrix.
import type { GgufFile } from "../../gguf/index.ts";
import type { LayerConfig, ModelConfig } from "../config.ts";
import type { ModelWeights, WeightSource } from "../weights.ts";
import { embeddingRows, Keys, LIMITS, type Family } from "./family.ts";

function configure(file: GgufFile): ModelConfig {
  const keys = new Keys(file, "llama");
  const count = keys.int("block_count", 1, LIMITS.layers);
  const hidden = keys.int("embedding_length", 1, LIMITS.hidden);
  const heads = keys.int("attention.head_count", 1, LIMITS.heads);
  const kvHeads = keys.int("attention.head_count_kv", 1, heads, heads);
  if (heads % kvHeads !== 0) throw keys.bad("attention.head_count_kv", `a divisor of ${heads} heads`, kvHeads);
  if (hidden % heads !== 0 && !file.metadata.has("llama.attention.key_length")) throw keys.bad("attention.head_count", `a divisor of embedding_length ${hidden}`, heads);
  const headDim = keys.even("attention.key_length", LIMITS.headDim, hidden / heads);
  const ffn = keys.intEach("feed_forward_length", count, 1, LIMITS.ffn);
  if (keys.int("expert_count", 0, LIMITS.experts, 0) > 0) throw keys.bad("expert_count", "0: a dense Llama", "experts");
  return {
    architecture: "llama", name: file.metadata.string("general.name") ?? "Llama",
    vocabulary: embeddingRows(file, hidden), hidden, heads,
    layers: Array.from({ length: count }, (_, l): LayerConfig => ({ index: l, window: 0, kvHeads, headDim, rope: 0, kvSource: l, kEqualsV: false, ffn: ffn[l]! })),
    ropes: [{ nRot: keys.even("rope.dimension_count", headDim, headDim), base: keys.float("rope.freq_base", 0, 10_000), freqScale: 1 / keys.float("rope.scaling.factor", 0, 1), factors: file.tensors.has("rope_freqs.weight") }],
    ropeMode: "interleaved", contextLength: keys.int("context_length", 1, LIMITS.context), eps: keys.float("attention.layer_norm_rms_epsilon", 0),
    embedScale: 1, attentionScale: 1 / Math.sqrt(headDim), activation: "silu", postNorms: false, normV: false, perLayerWidth: 0, softcap: 0,
  };
}

function weights<W>(config: ModelConfig, source: WeightSource<W>): ModelWeights<W> {
  const d = config.hidden;
  const embedding = source.matrix("token_embd.weight", d, config.vocabulary, "both");
  return {
    embedding,
    output: source.has("output.weight") ? source.matrix("output.weight", d, config.vocabulary) : embedding,
    outputNorm: source.vector("output_norm.weight", d),
    ropeFactors: source.optionalVector("rope_freqs.weight", config.ropes[0]!.nRot / 2),
    perLayer: undefined,
    layers: config.layers.map((l) => {
      const blk = `blk.${l.index}.`, q = config.heads * l.headDim, kv = l.kvHeads * l.headDim;
      return {
        attnNorm: source.vector(`${blk}attn_norm.weight`, d),
        q: source.matrix(`${blk}attn_q.weight`, d, q), k: source.matrix(`${blk}attn_k.weight`, d, kv), v: source.matrix(`${blk}attn_v.weight`, d, kv),
        o: source.matrix(`${blk}attn_output.weight`, q, d),
        qNorm: undefined, kNorm: undefined, postAttentionNorm: undefined,
        ffnNorm: source.vector(`${blk}ffn_norm.weight`, d),
        gate: source.matrix(`${blk}ffn_gate.weight`, d, l.ffn), up: source.matrix(`${blk}ffn_up.weight`, d, l.ffn), down: source.matrix(`${blk}ffn_down.weight`, l.ffn, d),
        postFfwNorm: undefined, moe: undefined, perLayer: undefined, outputScale: 1,
      };
    }),
  };
}

export const llama: Family = { architectures: ["llama"], configure, weights };
