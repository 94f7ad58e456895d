// Records ops on a stream in terms of views and weights. `UnfusedRecorder` replaces every fused op by its definition in plain ops.
import type { KvPool, Stream, View, VectorWeight, Weight } from "../native/objects.ts";
import { BAO, type Kernels } from "../native/symbols.ts";

type W = Weight | VectorWeight;
type Maybe<T> = T | undefined;
const h = (x: Maybe<{ handle: number }>): number => (x === undefined ? 0 : x.handle);

export type Activation = "gelu" | "silu";
export type RopeMode = "neox" | "interleaved";
const ACTIVATION: Record<Activation, number> = { gelu: BAO.ACTIVATION_GELU, silu: BAO.ACTIVATION_SILU };
const ROPE: Record<RopeMode, number> = { neox: BAO.ROPE_NEOX, interleaved: BAO.ROPE_INTERLEAVED };

/** One recording. Every method records the op of the same name in kernels/bao.h; shapes and meaning are there. */
export class Recorder {
  protected readonly k: Kernels;
  constructor(protected readonly stream: Stream) { this.k = stream.device.k; }
  protected get s(): number { return this.stream.handle; }

  embed(dst: View, w: W, scale: number): void { this.k.embed(this.s, dst.handle, w.handle, scale); }
  rmsNorm(dst: View, x: View, w: Maybe<W>, eps: number, scale = 1): void { this.k.rmsNorm(this.s, dst.handle, x.handle, h(w), eps, scale); }
  normAdd(dst: View, residual: View, x: View, w: W, eps: number, scale = 1): void { this.k.normAdd(this.s, dst.handle, residual.handle, x.handle, w.handle, eps, scale); }
  addNorm(sum: View, dst: View, residual: View, x: View, w: W, eps: number): void { this.k.addNorm(this.s, sum.handle, dst.handle, residual.handle, x.handle, w.handle, eps); }
  ropeTable(dst: View, factors: Maybe<W>, nRot: number, base: number, freqScale: number): void { this.k.ropeTable(this.s, dst.handle, h(factors), nRot, base, freqScale); }
  rope(dst: View, x: View, table: View, mode: RopeMode): void { this.k.rope(this.s, dst.handle, x.handle, table.handle, ROPE[mode]); }
  kvAppend(pool: KvPool, layer: number, k: View, v: View): void { this.k.kvAppend(this.s, pool.handle, layer, k.handle, v.handle); }
  attention(dst: View, q: View, pool: KvPool, layer: number, window: number, scale: number): void { this.k.attention(this.s, dst.handle, q.handle, pool.handle, layer, window, scale); }
  matmul(dst: View, x: View, w: W): void { this.k.matmul(this.s, dst.handle, x.handle, w.handle); }
  glu(dst: View, gate: View, up: Maybe<View>, activation: Activation): void { this.k.glu(this.s, dst.handle, gate.handle, h(up), ACTIVATION[activation]); }
  topkSoftmax(ids: View, weights: View, logits: View, renormalise: boolean): void { this.k.topkSoftmax(this.s, ids.handle, weights.handle, logits.handle, renormalise ? 1 : 0); }
  moeMatmul(dst: View, x: View, w: W, ids: View): void { this.k.moeMatmul(this.s, dst.handle, x.handle, w.handle, ids.handle); }
  moeSum(dst: View, x: View, weights: View): void { this.k.moeSum(this.s, dst.handle, x.handle, weights.handle); }
  add(dst: View, a: View, b: View): void { this.k.add(this.s, dst.handle, a.handle, b.handle); }
  scale(dst: View, x: View, factor: number): void { this.k.scale(this.s, dst.handle, x.handle, factor); }
  softcap(dst: View, x: View, cap: number): void { this.k.softcap(this.s, dst.handle, x.handle, cap); }
  copy(dst: View, x: View): void { this.k.copy(this.s, dst.handle, x.handle); }
  gatherRows(dst: View, x: View): void { this.k.gatherRows(this.s, dst.handle, x.handle); }
  pleCombine(dst: View, projected: View, token: View, w: W, eps: number, projectedScale: number, scale: number): void {
    this.k.pleCombine(this.s, dst.handle, projected.handle, token.handle, w.handle, eps, projectedScale, scale);
  }
  poolRows(dst: View, x: View): void { this.k.poolRows(this.s, dst.handle, x.handle); }
  logitsProcess(logits: View, mask: Maybe<View>): void { this.k.logitsProcess(this.s, logits.handle, h(mask)); }
  logprobs(logits: View): void { this.k.logprobs(this.s, logits.handle); }
  sample(logits: View): void { this.k.sample(this.s, logits.handle); }

  normAddNorms(sum: View, y: readonly [View, Maybe<View>?, Maybe<View>?], residual: View, x: View, w: W, wy: readonly [W, Maybe<W>?, Maybe<W>?], scale1: number, eps: number, scale: number): void {
    this.k.normAddNorms(this.s, sum.handle, y[0].handle, h(y[1]), h(y[2]), residual.handle, x.handle, w.handle, wy[0].handle, h(wy[1]), h(wy[2]), scale1, eps, scale);
  }
  moeMerge(sum: View, y: View, residual: View, a: View, wa: W, b: View, wb: W, w: W, wy: W, eps: number, scale: number): void {
    this.k.moeMerge(this.s, sum.handle, y.handle, residual.handle, a.handle, wa.handle, b.handle, wb.handle, w.handle, wy.handle, eps, scale);
  }
  /** wq, wk undefined: no head norm. k undefined: nothing is appended. v undefined: V is the raw k. */
  headNormRopeAppend(q: View, k: Maybe<View>, v: Maybe<View>, wq: Maybe<W>, wk: Maybe<W>, table: View, mode: RopeMode, pool: KvPool, layer: number, normV: boolean, eps: number): void {
    this.k.headNormRopeAppend(this.s, q.handle, h(k), h(v), h(wq), h(wk), table.handle, ROPE[mode], pool.handle, layer, normV ? 1 : 0, eps);
  }
  matmulGroup(dst: readonly [View, Maybe<View>?, Maybe<View>?], x: View, w: readonly [W, Maybe<W>?, Maybe<W>?]): void {
    this.k.matmulGroup(this.s, dst[0].handle, h(dst[1]), h(dst[2]), x.handle, w[0].handle, h(w[1]), h(w[2]));
  }
  matmulGlu(dst: View, x: View, gate: W, up: Maybe<W>, activation: Activation): void { this.k.matmulGlu(this.s, dst.handle, x.handle, gate.handle, h(up), ACTIVATION[activation]); }
  router(ids: View, weights: View, x: View, w: W, renormalise: boolean): void { this.k.router(this.s, ids.handle, weights.handle, x.handle, w.handle, renormalise ? 1 : 0); }
  moeMatmulGlu(dst: View, x: View, gate: W, up: Maybe<W>, ids: View, activation: Activation): void { this.k.moeMatmulGlu(this.s, dst.handle, x.handle, gate.handle, h(up), ids.handle, ACTIVATION[activation]); }
  moeMatmulSum(dst: View, x: View, w: W, ids: View, weights: View): void { this.k.moeMatmulSum(this.s, dst.handle, x.handle, w.handle, ids.handle, weights.handle); }
}

/** Makes (and keeps) a scratch view of the same rows as `like`, [d1, d2]. */
export type Scratch = (name: string, like: View, d1: number, d2: number) => View;

/** The definition of every fused op in plain ops: same bits, more launches. */
export class UnfusedRecorder extends Recorder {
  constructor(stream: Stream, private readonly scratch: Scratch) { super(stream); }

  override normAddNorms(sum: View, y: readonly [View, Maybe<View>?, Maybe<View>?], residual: View, x: View, w: W, wy: readonly [W, Maybe<W>?, Maybe<W>?], scale1: number, eps: number, scale: number): void {
    this.normAdd(sum, residual, x, w, eps, scale);
    y.forEach((view, i) => { if (view) this.rmsNorm(view, sum, wy[i], eps, i === 1 ? scale1 : 1); });
  }
  override moeMerge(sum: View, y: View, residual: View, a: View, wa: W, b: View, wb: W, w: W, wy: W, eps: number, scale: number): void {
    const m = this.scratch("moe_a", a, a.d1, a.d2), n = this.scratch("moe_b", b, b.d1, b.d2);
    this.rmsNorm(m, a, wa, eps);
    this.rmsNorm(n, b, wb, eps);
    this.add(m, m, n);
    this.normAdd(sum, residual, m, w, eps, scale);
    this.rmsNorm(y, sum, wy, eps);
  }
  override headNormRopeAppend(q: View, k: Maybe<View>, v: Maybe<View>, wq: Maybe<W>, wk: Maybe<W>, table: View, mode: RopeMode, pool: KvPool, layer: number, normV: boolean, eps: number): void {
    if (wq) this.rmsNorm(q, q, wq, eps);
    this.rope(q, q, table, mode);
    if (!k) return;
    const value = this.scratch("v", k, k.d1, k.d2);
    if (normV) this.rmsNorm(value, v ?? k, undefined, eps); else this.copy(value, v ?? k);
    if (wk) this.rmsNorm(k, k, wk, eps);
    this.rope(k, k, table, mode);
    this.kvAppend(pool, layer, k, value);
  }
  override matmulGroup(dst: readonly [View, Maybe<View>?, Maybe<View>?], x: View, w: readonly [W, Maybe<W>?, Maybe<W>?]): void {
    dst.forEach((view, i) => { if (view) this.matmul(view, x, w[i]!); });
  }
  override matmulGlu(dst: View, x: View, gate: W, up: Maybe<W>, activation: Activation): void {
    const width = dst.d1 * dst.d2;
    const g = this.scratch("gate", dst, 1, up ? width : 2 * width);
    this.matmul(g, x, gate);
    if (!up) return this.glu(dst, g, undefined, activation);
    const u = this.scratch("up", dst, 1, width);
    this.matmul(u, x, up);
    this.glu(dst, g, u, activation);
  }
  override router(ids: View, weights: View, x: View, w: W, renormalise: boolean): void {
    const logits = this.scratch("router", x, 1, (w as Weight).shape.rows);
    this.matmul(logits, x, w);
    this.topkSoftmax(ids, weights, logits, renormalise);
  }
  override moeMatmulGlu(dst: View, x: View, gate: W, up: Maybe<W>, ids: View, activation: Activation): void {
    const g = this.scratch("moe_gate", dst, dst.d1, up ? dst.d2 : 2 * dst.d2);
    this.moeMatmul(g, x, gate, ids);
    if (!up) { // glu splits a whole row in halves, so that it takes one slot at a time
      for (let slot = 0; slot < dst.d1; slot++) this.glu(this.slot(dst, slot), this.slot(g, slot), undefined, activation);
      return;
    }
    const u = this.scratch("moe_up", dst, dst.d1, dst.d2);
    this.moeMatmul(u, x, up, ids);
    this.glu(dst, g, u, activation);
  }
  /** The view of one d1 index, kept as long as this recorder. */
  private slot(view: View, index: number): View {
    const key = `${view.handle} ${index}`;
    let part = this.#slots.get(key);
    if (!part) this.#slots.set(key, part = view.buffer.view(view.rowsOf, view.d0, 1, view.d2, { offsetBytes: view.offsetBytes + index * view.d2 * 4, rowStrideBytes: view.rowStrideBytes }));
    return part;
  }
  readonly #slots = new Map<string, View>();
  override moeMatmulSum(dst: View, x: View, w: W, ids: View, weights: View): void {
    const y = this.scratch("moe_down", x, x.d1, (w as Weight).shape.rows);
    this.moeMatmul(y, x, w, ids);
    this.moeSum(dst, y, weights);
  }
}
