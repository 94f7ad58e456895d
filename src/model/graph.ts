// The forward pass: one graph with switches for every family, recorded once and replayed for prefill and decode.
// Formulas and their order: docs/gemma.md. Rows run through all layers, except in the tail of E-series models, which only output rows need.
import type { KvPool, View } from "../native/objects.ts";
import type { Activations } from "./activations.ts";
import { kvKinds, tailStart, type LayerConfig, type ModelConfig } from "./config.ts";
import type { Recorder } from "./recorder.ts";
import type { LayerWeights, ModelWeights } from "./weights.ts";

/** Where a layer's KV lives: pool, and the layer's number in it. */
export interface KvPlace { readonly pool: KvPool; readonly layer: number }

/** Called while recording, for diagnostics. `rows` says which rows the view holds. */
export interface GraphHooks {
  /** Residual stream before layer `index` (0 = embedding); the last one (index = layers) is after the output norm. */
  hidden?(index: number, view: View): void;
  /** A layer's ops start being recorded; -1 = embedding, layers = head. */
  layer?(index: number): void;
}

export interface GraphInput {
  readonly config: ModelConfig;
  readonly weights: ModelWeights;
  readonly pools: readonly KvPool[];
  /** All rows of the step, and the rows that want logits. */
  readonly step: Activations;
  readonly output: Activations;
  readonly hooks?: GraphHooks;
  /** (sequences, 1, hidden): takes the sum of each sequence's rows after the output norm, instead of logits. Every row then runs through every layer. */
  readonly pooled?: View;
}

/** Widths in floats of everything that a row set keeps alive; the memory estimate counts the same list. */
export function rowWidths(config: ModelConfig): Record<string, number> {
  const max = (f: (l: LayerConfig) => number): number => Math.max(...config.layers.map(f));
  const { moe } = config, perLayer = config.perLayerWidth * config.layers.length;
  return {
    x: config.hidden, n: config.hidden, m: config.hidden,
    q: config.heads * max((l) => l.headDim), k: max((l) => l.kvHeads * l.headDim), v: max((l) => l.kvHeads * l.headDim), o: config.heads * max((l) => l.headDim),
    h: Math.max(max((l) => l.ffn), config.perLayerWidth),
    ...Object.fromEntries(config.ropes.map((r, i) => [`rope${i}`, r.nRot])),
    ...(moe ? { u: config.hidden, r: config.hidden, e: config.hidden, ids: moe.used, gates: moe.used, eh: moe.used * moe.ffn } : {}),
    ...(perLayer ? { ple: perLayer, pleProjected: perLayer, pleToken: perLayer, g: config.perLayerWidth } : {}),
  };
}

/** Records the forward pass up to `logits` (output rows, 1, vocabulary), which it returns, or to `pooled`. */
export function recordForward(ops: Recorder, input: GraphInput): View {
  const { config, weights, hooks } = input, d = config.hidden, count = config.layers.length;
  const places = kvPlaces(config, input.pools);
  const tail = input.pooled ? count : tailStart(config);
  const widths = rowWidths(config);
  for (const rows of tail < count ? [input.step, input.output] : [input.step]) for (const [name, width] of Object.entries(widths)) rows.reserve(name, width);

  let rows = input.step;
  hooks?.layer?.(-1);
  let x = rows.view("x", 1, d), n = rows.view("n", 1, d);
  ops.embed(x, weights.embedding, config.embedScale);
  recordRopeTables(ops, config, weights, rows);
  if (weights.perLayer) recordPerLayerInputs(ops, config, weights.perLayer, rows, x);
  ops.rmsNorm(n, x, weights.layers[0]!.attnNorm, config.eps);

  for (let l = 0; l < count; l++) {
    if (l === tail) {
      // Tail layers write no KV: only rows whose logits are wanted go on.
      const from = rows;
      rows = input.output;
      for (const [name, width] of [["x", d], ["n", d], ["ple", config.perLayerWidth * count]] as const) {
        if (width > 0) ops.gatherRows(rows.view(name, 1, width), from.view(name, 1, width));
      }
      recordRopeTables(ops, config, weights, rows);
      x = rows.view("x", 1, d);
      n = rows.view("n", 1, d);
    }
    hooks?.layer?.(l);
    hooks?.hidden?.(l, x);
    const next = weights.layers[l + 1]?.attnNorm ?? weights.outputNorm;
    recordLayer(ops, config, config.layers[l]!, weights.layers[l]!, places[l]!, rows, next);
  }
  hooks?.layer?.(count);
  hooks?.hidden?.(count, n);
  if (input.pooled) {
    ops.poolRows(input.pooled, n);
    return input.pooled;
  }
  if (rows === input.step) {
    ops.gatherRows(input.output.view("n", 1, d), n);
    n = input.output.view("n", 1, d);
  }
  const logits = input.output.view("logits", 1, config.vocabulary);
  ops.matmul(logits, n, weights.output);
  if (config.softcap > 0) ops.softcap(logits, logits, config.softcap);
  return logits;
}

function kvPlaces(config: ModelConfig, pools: readonly KvPool[]): KvPlace[] {
  const kinds = kvKinds(config);
  return config.layers.map((l) => {
    const kind = kinds.find((k) => k.layers.includes(l.kvSource))!;
    return { pool: pools[kind.table]!, layer: kind.layers.indexOf(l.kvSource) };
  });
}

function recordRopeTables(ops: Recorder, config: ModelConfig, weights: ModelWeights, rows: Activations): void {
  config.ropes.forEach((r, i) => ops.ropeTable(rows.view(`rope${i}`, 2, r.nRot / 2), r.factors ? weights.ropeFactors : undefined, r.nRot, r.base, r.freqScale));
}

/** P[l] = (rms(Wp x / sqrt(d)) w + E[token] sqrt(p)) / sqrt(2), for all layers at once. */
function recordPerLayerInputs(ops: Recorder, config: ModelConfig, w: NonNullable<ModelWeights["perLayer"]>, rows: Activations, x: View): void {
  const p = config.perLayerWidth, count = config.layers.length;
  ops.matmul(rows.view("pleProjected", 1, p * count), x, w.modelProjection);
  ops.embed(rows.view("pleToken", 1, p * count), w.tokenEmbedding, Math.fround(Math.sqrt(p)));
  ops.pleCombine(rows.view("ple", count, p), rows.view("pleProjected", count, p), rows.view("pleToken", count, p), w.projectionNorm, config.eps, 1 / Math.sqrt(config.hidden), Math.SQRT1_2);
}

/** One layer: n holds norm(x) on entry; on exit x is the new residual stream and n its norm by `next`. */
function recordLayer(ops: Recorder, config: ModelConfig, layer: LayerConfig, w: LayerWeights, kv: KvPlace, rows: Activations, next: LayerWeights["attnNorm"]): void {
  const d = config.hidden, { eps } = config, owns = layer.kvSource === layer.index;
  const x = rows.view("x", 1, d), n = rows.view("n", 1, d), m = rows.view("m", 1, d);

  const qWidth = config.heads * layer.headDim, kvWidth = layer.kvHeads * layer.headDim;
  ops.matmulGroup(
    [rows.view("q", 1, qWidth), owns ? rows.view("k", 1, kvWidth) : undefined, w.v ? rows.view("v", 1, kvWidth) : undefined],
    n, [w.q, w.k, w.v]);
  const q = rows.view("q", config.heads, layer.headDim);
  ops.headNormRopeAppend(q, owns ? rows.view("k", layer.kvHeads, layer.headDim) : undefined, w.v ? rows.view("v", layer.kvHeads, layer.headDim) : undefined,
    w.qNorm, w.kNorm, rows.view(`rope${layer.rope}`, 2, config.ropes[layer.rope]!.nRot / 2), config.ropeMode, kv.pool, kv.layer, config.normV, eps);
  ops.attention(rows.view("o", config.heads, layer.headDim), q, kv.pool, kv.layer, layer.window, config.attentionScale);
  ops.matmul(m, rows.view("o", 1, qWidth), w.o);

  const h = rows.view("h", 1, layer.ffn);
  if (!config.postNorms) {
    ops.addNorm(x, n, x, m, w.ffnNorm, eps);
    ops.matmulGlu(h, n, w.gate, w.up, config.activation);
    ops.matmul(m, h, w.down);
    ops.addNorm(x, n, x, m, next, eps);
    return;
  }
  if (w.moe) {
    recordMoe(ops, config, w, w.moe, rows, x, n, m, h, next);
    return;
  }
  ops.normAddNorms(x, [n], x, m, w.postAttentionNorm!, [w.ffnNorm], 1, eps, 1);
  ops.matmulGlu(h, n, w.gate, w.up, config.activation);
  ops.matmul(m, h, w.down);
  if (!w.perLayer) {
    ops.normAddNorms(x, [n], x, m, w.postFfwNorm!, [next], 1, eps, w.outputScale);
    return;
  }
  // Per-layer input gate: x2 = x1 + rms(Wp (gelu(Wg x1) * P[l])) w, on the residual stream itself.
  const p = config.perLayerWidth, g = rows.view("g", 1, p);
  ops.normAdd(x, x, m, w.postFfwNorm!, eps);
  ops.matmul(g, x, w.perLayer.gate);
  ops.glu(g, g, rows.columns("ple", p * config.layers.length, p * layer.index, p), config.activation);
  ops.matmul(m, g, w.perLayer.projection);
  ops.normAddNorms(x, [n], x, m, w.perLayer.postNorm, [next], 1, eps, w.outputScale);
}

/** Gemma 4's expert layer: a dense branch and the routed experts, both from the residual after attention. */
function recordMoe(ops: Recorder, config: ModelConfig, w: LayerWeights, moe: NonNullable<LayerWeights["moe"]>, rows: Activations, x: View, n: View, m: View, h: View, next: LayerWeights["attnNorm"]): void {
  const d = config.hidden, { used, ffn } = config.moe!, { eps } = config;
  const u = rows.view("u", 1, d), r = rows.view("r", 1, d), e = rows.view("e", 1, d);
  const ids = rows.view("ids", 1, used, "i32"), gates = rows.view("gates", 1, used), eh = rows.view("eh", used, ffn);
  ops.normAddNorms(x, [n, r, u], x, m, w.postAttentionNorm!, [w.ffnNorm, moe.routerScale, moe.expertNorm], 1 / Math.sqrt(d), eps, 1);
  // Ops of the two branches in turns: neighbours that do not depend on each other run side by side on a GPU.
  ops.matmulGlu(h, n, w.gate, w.up, config.activation);
  ops.router(ids, gates, r, moe.router, true);
  ops.moeMatmulGlu(eh, u, moe.experts.gate, moe.experts.up, ids, config.activation);
  ops.matmul(m, h, w.down);
  ops.moeMatmulSum(e, eh, moe.experts.down, ids, gates);
  ops.moeMerge(x, n, x, m, moe.densePostNorm, e, moe.expertPostNorm, w.postFfwNorm!, next, eps, w.outputScale);
}
