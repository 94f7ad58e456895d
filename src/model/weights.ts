// The weights of a model by role, and the loader interface through which a family names them. Loading never copies: a weight is a range of a map.
import type { Weight } from "../native/objects.ts";

/** Expert matrices of one layer; `up` is absent when gate and up rows are fused in `gate`. */
export interface ExpertWeights<W = Weight> { gate: W; up: W | undefined; down: W }

export interface LayerWeights<W = Weight> {
  attnNorm: W;
  q: W;
  k: W | undefined;
  v: W | undefined;
  o: W;
  qNorm: W | undefined;
  kNorm: W | undefined;
  postAttentionNorm: W | undefined;
  ffnNorm: W;
  gate: W;
  up: W;
  down: W;
  postFfwNorm: W | undefined;
  moe: { router: W; routerScale: W; expertNorm: W; densePostNorm: W; expertPostNorm: W; experts: ExpertWeights<W> } | undefined;
  perLayer: { gate: W; projection: W; postNorm: W } | undefined;
  /** Multiplies the residual stream after the layer. */
  outputScale: number;
}

export interface ModelWeights<W = Weight> {
  embedding: W;
  /** Output matrix; the embedding itself when tied. */
  output: W;
  outputNorm: W;
  ropeFactors: W | undefined;
  perLayer: { tokenEmbedding: W; modelProjection: W; projectionNorm: W } | undefined;
  layers: LayerWeights<W>[];
}

export type MatrixUse = "matmul" | "rows" | "both";

/** How a family asks for its tensors. Shapes are (columns = values per row, rows); a shape that differs is an error, a missing tensor is collected. */
export interface WeightSource<W = Weight> {
  has(name: string): boolean;
  matrix(name: string, columns: number, rows: number, use?: MatrixUse): W;
  experts(name: string, columns: number, rows: number, experts: number): W;
  vector(name: string, length: number): W;
  optionalVector(name: string, length: number): W | undefined;
  /** A vector whose values are computed, not read from the file. */
  constant(name: string, values: Float32Array): W;
  /** Value of a one-element tensor, or the default when absent. */
  scalar(name: string, absent: number): number;
}
