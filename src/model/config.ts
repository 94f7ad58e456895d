// What a model is, as numbers and switches that the one graph understands. Families fill it from GGUF metadata; nothing here reads files.

/** How positions are turned into angles for a kind of layer. */
export interface RopeConfig {
  /** Values of a head that rotate. */
  readonly nRot: number;
  readonly base: number;
  /** Multiplies inverse frequencies (linear scaling: 1 / factor). */
  readonly freqScale: number;
  /** Divide inverse frequencies by the file's rope_freqs tensor. */
  readonly factors: boolean;
}

/** One transformer layer. */
export interface LayerConfig {
  readonly index: number;
  /** Positions visible to a query, itself included; 0 = all. */
  readonly window: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Index into `ropes`. */
  readonly rope: number;
  /** Layer whose KV cache is read; equals `index` for layers that own one. */
  readonly kvSource: number;
  /** V is the raw K projection (no attn_v tensor). */
  readonly kEqualsV: boolean;
  /** Width of the dense FFN. */
  readonly ffn: number;
}

export interface MoeConfig {
  readonly experts: number;
  readonly used: number;
  readonly ffn: number;
}

export interface ModelConfig {
  readonly architecture: string;
  readonly name: string;
  readonly vocabulary: number;
  readonly hidden: number;
  readonly heads: number;
  readonly layers: readonly LayerConfig[];
  readonly ropes: readonly RopeConfig[];
  readonly ropeMode: "neox" | "interleaved";
  readonly contextLength: number;
  readonly eps: number;
  readonly embedScale: number;
  readonly attentionScale: number;
  readonly activation: "gelu" | "silu";
  /** Gemma: norms after attention and FFN, before the residual add. Llama: none. */
  readonly postNorms: boolean;
  readonly normV: boolean;
  readonly moe?: MoeConfig;
  /** Width of per-layer embeddings, 0 = none. */
  readonly perLayerWidth: number;
  /** logits = cap * tanh(logits / cap); 0 = none. */
  readonly softcap: number;
}

/** Layers that share the geometry of their KV pages: one pool and one page table. */
export interface KvKind {
  readonly table: number;
  readonly window: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Layers that own KV of this kind, in order; the pool's layer number is the index here. */
  readonly layers: readonly number[];
}

/** Groups the KV-owning layers by window and head geometry; at most four kinds. */
export function kvKinds(config: ModelConfig): KvKind[] {
  const kinds = new Map<string, { window: number; kvHeads: number; headDim: number; layers: number[] }>();
  for (const l of config.layers) {
    if (l.kvSource !== l.index) continue;
    const key = `${l.window}/${l.kvHeads}/${l.headDim}`;
    const kind = kinds.get(key) ?? { window: l.window, kvHeads: l.kvHeads, headDim: l.headDim, layers: [] };
    kind.layers.push(l.index);
    kinds.set(key, kind);
  }
  return [...kinds.values()].map((k, table) => ({ table, ...k }));
}

/** First layer from which no layer owns KV (E-series): from there on only rows that want logits need to run. Equals the layer count otherwise. */
export function tailStart(config: ModelConfig): number {
  let start = config.layers.length;
  while (start > 0 && config.layers[start - 1]!.kvSource !== start - 1) start--;
  return start;
}
