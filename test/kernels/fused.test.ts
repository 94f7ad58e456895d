// Fused ops against the composition of plain ops that defines them (UnfusedRecorder), on the device itself, and against the reference.
// Bit for bit on batch-invariant devices; elsewhere within rounding, because a fused kernel may sum in another order.
import { describe, test } from "bun:test";
import { Recorder, UnfusedRecorder } from "../../src/model/recorder.ts";
import { BAO } from "../../src/native/symbols.ts";
import type { Device, KvPool, Precision, View } from "../../src/native/objects.ts";
import { activations, allowTime, batchInvariant, DTYPES, expectClose, isas, KV_TYPES, manyRows, ON_CPU, oracle, type Outputs, play, Random, type Rig, subject } from "./harness.ts";
import { blockOf, dtypeName } from "./weights.ts";

allowTime();

type Body = (rig: Rig, r: Recorder) => () => Outputs;
const PRECISIONS: readonly Precision[] = ON_CPU ? ["exact", "fast-int8"] : ["exact", "fast-int8", "fast-bf16"];

function played(device: Device, rows: number, fused: boolean, body: Body, pages?: number): Outputs {
  return play(device, (rig) => {
    const scratch = new Map<string, View>();
    const r = fused ? new Recorder(rig.stream) : new UnfusedRecorder(rig.stream, (name, like, d1, d2) => {
      const key = `${name} ${d1} ${d2}`;
      let view = scratch.get(key);
      if (!view) scratch.set(key, view = rig.view(like.d0, d1, d2));
      return view;
    });
    let read: (() => Outputs) | undefined;
    const shuffled = pages ? new Random(pages).shuffled(pages) : [];
    const made = (): void => { rig.stream.record(() => { read = body(rig, r); }); };
    made();
    rig.submit({
      rows: Array.from({ length: rows }, (_, i) => ({ sequence: i < rows / 2 ? 1 : 4, position: i < rows / 2 ? 60 + i : 130 + i, id: i })), outputs: [],
      pages: shuffled.map((page, i) => [0, i % 2 ? 4 : 1, i >> 1, page] as const),
    });
    return read!();
  }, { maxRows: 64, pages: [16] });
}

/** Fused = composition on every instruction set, and composition of the reference = fused op of the reference = device within `tolerance`. */
function agree(label: string, rows: number, precision: Precision, tolerance: number | Record<string, number>, body: Body, pages?: number): void {
  const reference = oracle(precision), expected = played(reference, rows, true, body, pages);
  expectClose(played(reference, rows, false, body, pages), expected, 0, `${label}: the reference's composition`);
  for (const isa of isas()) {
    const device = subject({ isa, precision });
    const fused = played(device, rows, true, body, pages), composed = played(device, rows, false, body, pages);
    expectClose(fused, composed, batchInvariant(device) ? 0 : tolerance, `${label} on ${isa}: fused against composed`);
    expectClose(fused, expected, tolerance, `${label} on ${isa}: against the reference`);
  }
}

const f32 = (rig: Rig, views: Record<string, View>): (() => Outputs) => () => Object.fromEntries(Object.entries(views).map(([k, v]) => [k, v.dtype === "i32" ? rig.i32(v) : rig.f32(v)]));

describe("fused ops are their compositions", () => {
  test("norm_add_norms", () => {
    for (const [rows, n] of [[1, 1], [3, 31], [9, 640], [2, 2816], [17, 2817]] as const) {
      for (const present of [1, 2, 3]) {
        // Each norm adds three roundings to a cancelling sum.
        agree(`norm_add_norms ${rows} x ${n}, ${present} outputs`, rows, "exact", 1e-5, (rig, r) => {
          const random = new Random(n + present), spec = n % 4 ? { offsetBytes: 4, gapBytes: 4 } : { offsetBytes: 16, gapBytes: 16 };
          const residual = rig.input(random.f32(rows * n), 1, n, spec), x = rig.input(random.f32(rows * n), 1, n);
          const [w, w0, w1, w2] = [0, 1, 2, 3].map(() => rig.vector(random.f32(n)));
          const sum = present === 2 ? residual : rig.view(rows, 1, n, spec), y = [0, 1, 2].map(() => rig.view(rows, 1, n, spec));
          r.normAddNorms(sum, [y[0]!, present > 1 ? y[1]! : undefined, present > 2 ? y[2]! : undefined], residual, x, w!, [w0!, present > 1 ? w1! : undefined, present > 2 ? w2! : undefined], 0.04, 1e-6, 0.9);
          return f32(rig, { sum, y0: y[0]!, ...(present > 1 ? { y1: y[1]! } : {}), ...(present > 2 ? { y2: y[2]! } : {}) });
        });
      }
    }
  });

  test("moe_merge", () => {
    for (const [rows, n] of [[1, 2], [5, 63], [33, 704], [2, 2816]] as const) {
      agree(`moe_merge ${rows} x ${n}`, rows, "exact", 2e-5, (rig, r) => {
        const random = new Random(n), view = (scale: number): View => rig.input(random.f32(rows * n, scale), 1, n, { gapBytes: n % 4 ? 8 : 16 });
        const residual = view(1), a = view(5), b = view(0.1), sum = rig.view(rows, 1, n), y = rig.view(rows, 1, n);
        const [wa, wb, w, wy] = [0, 1, 2, 3].map(() => rig.vector(random.f32(n)));
        r.moeMerge(sum, y, residual, a, wa!, b, wb!, w!, wy!, 1e-6, 1.1);
        return f32(rig, { sum, y });
      });
    }
  });

  test("head_norm_rope_append, every KV type and absent operand", () => {
    const cases = [
      { v: true, wq: true, wk: true, normV: true }, { v: true, wq: true, wk: true, normV: false }, { v: false, wq: true, wk: true, normV: true },
      { v: true, wq: false, wk: false, normV: false }, { v: false, wq: false, wk: true, normV: false }, { k: false, v: false, wq: true, wk: false, normV: false },
    ];
    const shapes = [
      ...KV_TYPES.map((type) => [type, 4, 2, 64, 64, "neox"] as const),
      ["f16", 8, 1, 128, 32, "neox"], ["f32", 3, 3, 32, 32, "interleaved"], ["q8_0", 2, 1, 256, 256, "neox"],
    ] as const;
    // Pages are compared bit for bit with the composition; with the reference by value, in attention.test.ts.
    const tolerance = { q: 3e-6, ...Object.fromEntries(Array.from({ length: 8 }, (_, page) => [`page ${page}`, Infinity])) };
    for (const [type, heads, kvHeads, headDim, nRot, mode] of shapes) {
      cases.forEach((c, i) => {
        const rows = [1, 5, 12][i % 3]!;
        agree(`head_norm_rope_append ${type} ${heads}/${kvHeads} x ${headDim} case ${i}`, rows, "exact", tolerance, (rig, r) => {
          const random = new Random(headDim + i), pool: KvPool = rig.pool({ kvHeads, headDim, type, pages: 8, layers: 2 });
          const q = rig.input(random.f32(rows * heads * headDim), heads, headDim, { gapBytes: 4 });
          const k = c.k === false ? undefined : rig.input(random.f32(rows * kvHeads * headDim), kvHeads, headDim, { gapBytes: 4 });
          const v = c.v ? rig.input(random.f32(rows * kvHeads * headDim), kvHeads, headDim) : undefined;
          const table = rig.input(Float32Array.from({ length: rows * nRot }, (_, j) => { const row = Math.floor(j / nRot), p = j % nRot, a = row + (p % (nRot / 2)) / 9; return p < nRot / 2 ? Math.cos(a) : Math.sin(a); }), 2, nRot / 2);
          r.headNormRopeAppend(q, k, v, c.wq ? rig.vector(random.f32(headDim)) : undefined, c.wk ? rig.vector(random.f32(headDim)) : undefined, table, mode, pool, 1, c.normV, 1e-6);
          return () => {
            const out: Outputs = { q: rig.f32(q) };
            for (let page = 0; page < 8; page++) {
              const bytes = new Uint8Array(new ArrayBuffer(pool.pageBytes));
              pool.readPage(page, bytes);
              out[`page ${page}`] = new Int32Array(bytes.buffer);
            }
            return out;
          };
        }, 8);
      });
    }
  });

  test("head_norm_rope_append of aligned wide heads with f16 KV, what it appends by value", () => {
    for (const [heads, kvHeads, headDim] of [[4, 2, 256], [3, 1, 512]] as const) {
      for (const [rows, c] of [[1, { v: true, wq: true, wk: true, normV: true }], [5, { v: false, wq: true, wk: true, normV: true }], [12, { v: true, wq: false, wk: true, normV: false }], [2, { k: false, wq: true }]] as const) {
        const name = `head_norm_rope_append f16 ${heads}/${kvHeads} x ${headDim}, ${rows} rows ${JSON.stringify(c)}`, owns = !("k" in c);
        agree(name, rows, "exact", { q: 3e-6, kv: 1e-3 }, (rig, r) => {
          const random = new Random(headDim + rows), pool: KvPool = rig.pool({ kvHeads, headDim, type: "f16", pages: 8, layers: 1 }), zeros = new Uint8Array(new ArrayBuffer(pool.pageBytes));
          for (let page = 0; page < 8; page++) pool.writePage(page, zeros);
          const input = (count: number): View => rig.input(random.f32(rows * count * headDim), count, headDim, { gapBytes: 16 });
          const q = input(heads), k = owns ? input(kvHeads) : undefined, v = owns && c.v ? input(kvHeads) : undefined;
          const angles = Float32Array.from({ length: rows * headDim }, (_, j) => { const p = j % headDim, a = Math.floor(j / headDim) + (p % (headDim / 2)) / 9; return p < headDim / 2 ? Math.cos(a) : Math.sin(a); });
          const weight = (there: boolean) => (there ? rig.vector(random.f32(headDim)) : undefined);
          r.headNormRopeAppend(q, k, v, weight(c.wq), weight(owns && c.wk), rig.input(angles, 2, headDim / 2), "neox", pool, 0, owns && c.normV, 1e-6);
          return () => {
            const kv = new Float32Array(pool.pageBytes * 4), bytes = new Uint8Array(new ArrayBuffer(pool.pageBytes));
            for (let page = 0; page < 8; page++) {
              pool.readPage(page, bytes);
              kv.set(new Float16Array(bytes.buffer), page * pool.pageBytes / 2);
            }
            return { q: rig.f32(q), kv };
          };
        }, 8);
      }
    }
  });

  test("an expert layer's ops one after the other, which a device may run beside each other", () => {
    for (const precision of PRECISIONS) {
      for (const [rows, dtype] of [[1, BAO.Q4_K], [1, BAO.Q8_0], [2, BAO.Q6_K], [5, BAO.Q4_K]] as const) {
        // Every product rounds what the one before it gave: a difference there may move a rounding.
        agree(`expert layer ${dtypeName(dtype)} x ${rows} ${precision}`, rows, precision, precision === "exact" ? 1e-4 : 3e-2, (rig, r) => {
          const n = 512, f = 256, used = 3, random = new Random(rows), vector = (): ReturnType<Rig["vector"]> => rig.vector(random.f32(n));
          const x = rig.input(random.f32(rows * n), 1, n), m = rig.input(random.f32(rows * n), 1, n), y = [0, 1, 2].map(() => rig.view(rows, 1, n)), e = rig.view(rows, 1, n);
          const ids = rig.view(rows, 1, used, { dtype: "i32" }), gates = rig.view(rows, 1, used), h = rig.view(rows, 1, f), eh = rig.view(rows, used, f), out = rig.view(rows, 1, n);
          const weight = (rows: number, columns: number, seed: number, experts?: number) => rig.weight({ dtype, rows, columns, seed, ...(experts ? { experts } : {}) });
          r.normAddNorms(x, [y[0]!, y[1]!, y[2]!], x, m, vector(), [vector(), vector(), vector()], 0.05, 1e-6, 1);
          r.router(ids, gates, y[1]!, rig.weight({ dtype: BAO.F32, rows: 16, columns: n }), true);
          r.matmulGlu(h, y[0]!, weight(2 * f, n, 1), undefined, "gelu");
          r.moeMatmulGlu(eh, y[2]!, weight(2 * f, n, 2, 16), undefined, ids, "gelu");
          r.matmul(m, h, weight(n, f, 3));
          r.moeMatmulSum(e, eh, weight(n, f, 4, 16), ids, gates);
          r.moeMerge(x, out, x, m, vector(), e, vector(), vector(), vector(), 1e-6, 0.9);
          return f32(rig, { ids, gates, h, eh, m, e, x, out });
        });
      }
    }
  });

  test("matmul_group with members of different types", () => {
    for (const precision of PRECISIONS) {
      for (const rows of [1, 2, 7, 33]) {
        for (const types of [[BAO.Q4_K, BAO.Q4_K, BAO.Q6_K], [BAO.Q8_0, BAO.F16], [BAO.F32, BAO.Q4_0, BAO.BF16], [BAO.Q5_K], [BAO.NVFP4, BAO.MXFP4, BAO.IQ4_XS]]) {
          agree(`group ${types.map(dtypeName).join(" ")} x ${rows} ${precision}`, rows, precision, manyRows(1e-5, precision, rows), (rig, r) => {
            const x = rig.input(activations(new Random(rows), rows, 512), 1, 512, { gapBytes: 4 });
            const w = types.map((dtype, i) => rig.weight({ dtype, rows: [40, 8, 17][i]!, columns: 512, seed: i + 1 })), d = types.map((_, i) => rig.view(rows, 1, [40, 8, 17][i]!));
            r.matmulGroup([d[0]!, d[1], d[2]], x, [w[0]!, w[1], w[2]]);
            return f32(rig, Object.fromEntries(d.map((view, i) => [`dst${i}`, view])));
          });
        }
      }
    }
  });

  test("matmul_glu and moe_matmul_glu, two weights or one", () => {
    for (const precision of PRECISIONS) {
      DTYPES.forEach((dtype, i) => {
        const columns = Math.max(blockOf(dtype), 96 - 96 % blockOf(dtype)) * 2, rows = [1, 3, 8, 17][i % 4]!, activation = i % 2 ? "gelu" : "silu";
        for (const packed of [false, true]) {
          const random = new Random(dtype + 1), x = activations(random, rows, columns), list = random.i32(rows * 2, 5).map((id) => id - 1); // -1 now and then
          agree(`matmul_glu ${dtypeName(dtype)} ${precision}`, rows, precision, manyRows(2e-5, precision, rows), (rig, r) => {
            const gate = rig.weight({ dtype, rows: packed ? 42 : 21, columns }), up = packed ? undefined : rig.weight({ dtype: precision === "exact" ? dtype : BAO.F16, rows: 21, columns, seed: 2 });
            const dst = rig.view(rows, 1, 21, { gapBytes: 4 });
            r.matmulGlu(dst, rig.input(x, 1, columns), gate, up, activation);
            return f32(rig, { dst });
          });
          agree(`moe_matmul_glu ${dtypeName(dtype)} ${precision}`, rows, precision, manyRows(2e-5, precision, rows), (rig, r) => {
            const gate = rig.weight({ dtype, rows: packed ? 14 : 7, columns, experts: 4 }), up = packed ? undefined : rig.weight({ dtype, rows: 7, columns, experts: 4, seed: 2 });
            const dst = rig.view(rows, 2, 7), ids = rig.input(list, 1, 2);
            r.moeMatmulGlu(dst, rig.input(x, 1, columns), gate, up, ids, activation);
            return f32(rig, { dst });
          });
        }
      });
    }
  });

  test("router and moe_matmul_sum", () => {
    for (const precision of PRECISIONS) {
      // In bf16 a device may round the weights of a matmul of more rows, not those of a router: near ties would turn.
      for (const rows of [1, 3, 5, precision === "fast-bf16" ? 16 : 32]) {
        for (const dtype of [BAO.F32, BAO.Q8_0, BAO.Q6_K, BAO.Q4_K] as const) {
          agree(`router ${dtypeName(dtype)} x ${rows} ${precision}`, rows, precision, 1e-5, (rig, r) => {
            const ids = rig.view(rows, 1, 4, { dtype: "i32" }), weights = rig.view(rows, 1, 4), w = rig.weight({ dtype, rows: 24, columns: 256 });
            r.router(ids, weights, rig.input(new Random(rows).f32(rows * 256), 1, 256), w, true);
            return f32(rig, { ids, weights });
          });
          agree(`moe_matmul_sum ${dtypeName(dtype)} x ${rows} ${precision}`, rows, precision, manyRows(2e-5, precision, rows), (rig, r) => {
            const random = new Random(rows + 50), w = rig.weight({ dtype, rows: 19, columns: 256, experts: 4 });
            rig.device.k.weightScale(w.handle, rig.vector(Float32Array.of(0.5, 1.7, -1.2, 3)).handle);
            const x = rig.input(random.f32(rows * 3 * 256), 3, 256), ids = rig.input(random.i32(rows * 3, 5), 1, 3), weights = rig.input(random.f32(rows * 3), 1, 3);
            const dst = rig.view(rows, 1, 19);
            r.moeMatmulSum(dst, x, w, ids, weights);
            return f32(rig, { dst });
          });
        }
      }
    }
  });
});
