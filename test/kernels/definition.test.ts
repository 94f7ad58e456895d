// The oracle itself: the plain reference of norms, GLU, RoPE, expert choice and sums against their definitions in double.
// Matmuls, attention and sampling have theirs beside their own tests.
import { describe, expect, test } from "bun:test";
import { allowTime, oracle, play, Random } from "./harness.ts";

allowTime();

describe("the reference against definitions in double", () => {
  // One shape each: what the oracle itself is checked by. 1e-6: the reference rounds a sum in double once.
  const rows = 3, n = 40;
  const close = (found: ArrayLike<number>, expected: (i: number) => number): void => {
    for (let i = 0; i < found.length; i++) expect(Math.abs(found[i]! - expected(i))).toBeLessThan(1e-6 * (1 + Math.abs(expected(i))));
  };
  const rms = (x: ArrayLike<number>, row: number, i: number, eps: number): number => {
    let sum = 0;
    for (let j = 0; j < n; j++) sum += x[row * n + j]! ** 2;
    return x[row * n + i]! / Math.sqrt(sum / n + eps);
  };

  test("norms, GLU, softcap, ple_combine, moe_sum", () => {
    play(oracle(), (rig) => {
      const random = new Random(77), a = random.f32(rows * n), b = random.f32(rows * n), w = random.f32(n);
      const va = rig.input(a, 1, n), vb = rig.input(b, 1, n), vw = rig.vector(w), d = Array.from({ length: 8 }, () => rig.view(rows, 1, n));
      const m = rig.input(a.slice(), 4, n / 4), mw = rig.input(b.slice(0, rows * 4), 1, 4), md = rig.view(rows, 1, n / 4);
      const eps = 0.25;
      rig.run({ rows, outputs: [] }, (r) => {
        r.rmsNorm(d[0]!, va, vw, eps, 2);
        r.normAdd(d[1]!, va, vb, vw, eps, 3);
        r.addNorm(d[2]!, d[3]!, va, vb, vw, eps);
        r.glu(d[4]!, va, vb, "gelu");
        r.glu(d[5]!, va, vb, "silu");
        r.softcap(d[6]!, va, 1.5);
        r.pleCombine(d[7]!, va, vb, vw, eps, 0.5, 0.7);
        r.moeSum(md, m, mw);
      });
      const out = d.map((view) => rig.f32(view));
      close(out[0]!, (i) => rms(a, Math.floor(i / n), i % n, eps) * w[i % n]! * 2);
      close(out[1]!, (i) => (a[i]! + rms(b, Math.floor(i / n), i % n, eps) * w[i % n]!) * 3);
      const sum = a.map((v, i) => v + b[i]!);
      close(out[2]!, (i) => sum[i]!);
      close(out[3]!, (i) => rms(sum, Math.floor(i / n), i % n, eps) * w[i % n]!);
      close(out[4]!, (i) => 0.5 * a[i]! * (1 + Math.tanh(0.7978845608028654 * a[i]! * (1 + 0.044715 * a[i]! ** 2))) * b[i]!);
      close(out[5]!, (i) => a[i]! / (1 + Math.exp(-a[i]!)) * b[i]!);
      close(out[6]!, (i) => 1.5 * Math.tanh(a[i]! / 1.5));
      const half = a.map((v) => v * 0.5);
      close(out[7]!, (i) => (rms(half, Math.floor(i / n), i % n, eps) * w[i % n]! + b[i]!) * 0.7);
      close(rig.f32(md), (i) => {
        const row = Math.floor(i / 10), c = i % 10;
        let s = 0;
        for (let slot = 0; slot < 4; slot++) s += b[row * 4 + slot]! * a[row * n + slot * 10 + c]!;
        return s;
      });
      return {};
    });
  });

  test("rope pairs (i, i + half) or (2i, 2i + 1); topk_softmax is a softmax", () => {
    play(oracle(), (rig) => {
      const random = new Random(78), x = random.f32(rows * 10), angles = random.f32(rows * 3), logits = random.f32(rows * 6);
      const table = rig.input(Float32Array.from({ length: rows * 6 }, (_, i) => { const r = Math.floor(i / 6), j = i % 6; return j < 3 ? Math.cos(angles[r * 3 + j]!) : Math.sin(angles[r * 3 + j - 3]!); }), 2, 3);
      const vx = rig.input(x, 1, 10), d = [rig.view(rows, 1, 10), rig.view(rows, 1, 10)];
      const vl = rig.input(logits, 1, 6), ids = rig.view(rows, 1, 2, { dtype: "i32" }), weights = rig.view(rows, 1, 2);
      rig.run({ rows, outputs: [] }, (r) => { r.rope(d[0]!, vx, table, "neox"); r.rope(d[1]!, vx, table, "interleaved"); r.topkSoftmax(ids, weights, vl, false); });
      for (const [m, pair] of [[0, (i: number): [number, number] => [i, i + 3]], [1, (i: number): [number, number] => [2 * i, 2 * i + 1]]] as const) {
        const expected = Float64Array.from(x);
        for (let r = 0; r < rows; r++) for (let i = 0; i < 3; i++) {
          const [p, q] = pair(i), c = Math.cos(angles[r * 3 + i]!), s = Math.sin(angles[r * 3 + i]!), a = x[r * 10 + p]!, b = x[r * 10 + q]!;
          expected[r * 10 + p] = a * c - b * s;
          expected[r * 10 + q] = b * c + a * s;
        }
        close(rig.f32(d[m]!), (i) => expected[i]!);
      }
      const foundIds = rig.i32(ids), found = rig.f32(weights);
      for (let r = 0; r < rows; r++) {
        const row = [...logits.slice(r * 6, r * 6 + 6)], total = row.reduce((s, v) => s + Math.exp(v), 0);
        const order = row.map((_, i) => i).sort((p, q) => row[q]! - row[p]!);
        for (let s = 0; s < 2; s++) {
          expect(foundIds[r * 2 + s]).toBe(order[s]!);
          expect(Math.abs(found[r * 2 + s]! - Math.exp(row[order[s]!]!) / total)).toBeLessThan(1e-6);
        }
      }
      return {};
    });
  });
});
