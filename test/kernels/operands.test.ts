// Operands that do not fit an op: a typed error that names op and argument, and nothing is recorded. Shapes, element types, row counts, weights,
// scalars; contract.test.ts does the same for everything that is no op.
import { describe, expect, test } from "bun:test";
import { openLibrary } from "../../src/native/library.ts";
import { BAO, type Kernels } from "../../src/native/symbols.ts";
import { allowTime, Random, type Rig, TEST_BACKEND } from "./harness.ts";
import { refused, using } from "./refused.ts";

allowTime();

const { k } = openLibrary(TEST_BACKEND);

describe("operands", () => {
  /** Every refused call leaves the recording without ops. */
  function recording(body: (rig: Rig, s: number, k: Kernels) => void): void {
    using((rig) => {
      rig.stream.record(() => {
        body(rig, rig.stream.handle, k);
        expect(k.streamOps(rig.stream.handle)).toBe(0);
      });
    });
  }

  test("scalars that are no numbers", () => {
    recording((rig, s) => {
      const x = rig.view(2, 2, 8).handle, w = rig.weight({ dtype: BAO.F32, rows: 97, columns: 16 }).handle;
      for (const bad of [NaN, Infinity, -Infinity]) {
        refused(() => k.embed(s, x, w, bad), 4);
        refused(() => k.rmsNorm(s, x, x, 0, bad, 1), 5);
        refused(() => k.rmsNorm(s, x, x, 0, 1e-6, bad), 6);
        refused(() => k.scale(s, x, x, bad), 4);
        refused(() => k.softcap(s, x, x, bad), 4);
      }
      for (const eps of [0, -1]) refused(() => k.rmsNorm(s, x, x, 0, eps, 1), 5);
      for (const cap of [0, -30]) refused(() => k.softcap(s, x, x, cap), 4);
      const t = rig.view(2, 2, 4).handle;
      for (const n of [0, -2, 3, 7]) refused(() => k.ropeTable(s, t, 0, n, 10_000, 1), 4);
      for (const base of [0, -1, NaN]) refused(() => k.ropeTable(s, t, 0, 8, base, 1), 5);
      for (const scale of [0, -1, NaN]) refused(() => k.ropeTable(s, t, 0, 8, 10_000, scale), 6);
      for (const mode of [-1, 2]) refused(() => k.rope(s, x, x, t, mode), 5);
      for (const activation of [-1, 2]) refused(() => k.glu(s, x, x, x, activation), 5);
    });
  });

  test("element types, shapes and ways of counting rows", () => {
    recording((rig, s) => {
      const x = rig.view(4, 2, 8).handle, ints = rig.view(4, 2, 8, { dtype: "i32" }).handle, narrow = rig.view(4, 2, 7).handle, output = rig.view(4, 2, 8, { rowsOf: "output" }).handle;
      const fixed = rig.view(4, 2, 8, { rowsOf: "fixed" }).handle, fewer = rig.view(3, 2, 8, { rowsOf: "fixed" }).handle, flat = rig.view(4, 1, 16).handle;
      for (const bad of [ints, narrow, output, fixed, flat]) {
        refused(() => k.add(s, x, bad, x), 3);
        refused(() => k.add(s, x, x, bad), 4);
        refused(() => k.copy(s, x, bad), 3);
        refused(() => k.scale(s, x, bad, 1), 3);
        refused(() => k.rmsNorm(s, x, bad, 0, 1e-6, 1), 3);
        refused(() => k.normAdd(s, x, bad, x, 0, 1e-6, 1), 3);
        refused(() => k.addNorm(s, x, x, x, bad, 0, 1e-6), 5);
        refused(() => k.pleCombine(s, x, x, bad, 0, 1e-6, 1, 1), 4);
      }
      refused(() => k.copy(s, fixed, fewer), 3);
      refused(() => k.gatherRows(s, x, x), 2);
      refused(() => k.gatherRows(s, output, output), 3);
      refused(() => k.gatherRows(s, output, narrow), 3);
      refused(() => k.poolRows(s, x, x), 2);
      refused(() => k.poolRows(s, fixed, x), 2); // fewer rows than sequences
      refused(() => k.argmax(s, x, x), 2);
      refused(() => k.argmax(s, rig.view(4, 1, 2, { dtype: "i32" }).handle, x), 2);
      const seven = rig.vector(new Float32Array(new ArrayBuffer(28))).handle;
      refused(() => k.rmsNorm(s, x, x, seven, 1e-6, 1), 4);
      refused(() => k.glu(s, x, narrow, x, 0), 3);
      refused(() => k.glu(s, x, x, 0, 0), 3);           // packed needs twice the columns
      refused(() => k.ropeTable(s, fixed, 0, 16, 1e4, 1), 2);
    });
  });

  test("weights that do not fit, or were made for another use", () => {
    recording((rig, s) => {
      const x = rig.view(4, 1, 256), y = rig.view(4, 1, 10), other = rig.view(4, 1, 256).handle;
      const w = rig.weight({ dtype: BAO.Q4_K, rows: 10, columns: 256, use: BAO.USE_MATMUL }), rowsOnly = rig.weight({ dtype: BAO.Q4_K, rows: 10, columns: 256, use: BAO.USE_ROWS });
      const experts = rig.weight({ dtype: BAO.Q8_0, rows: 10, columns: 256, experts: 3 }), vector = rig.vector(new Random(1).f32(256));
      refused(() => k.matmul(s, y.handle, x.handle, rowsOnly.handle), 4);
      refused(() => k.matmul(s, y.handle, x.handle, vector.handle), 4);
      refused(() => k.matmul(s, y.handle, x.handle, experts.handle), 4);
      refused(() => k.matmul(s, other, x.handle, w.handle), 2);
      refused(() => k.matmul(s, x.handle, y.handle, w.handle), 4);
      refused(() => k.embed(s, x.handle, w.handle, 1), 3);        // use
      refused(() => k.embed(s, x.handle, rowsOnly.handle, 1), 3); // fewer rows than the vocabulary
      refused(() => k.rmsNorm(s, x.handle, x.handle, w.handle, 1e-6, 1), 4);
      refused(() => k.matmulGroup(s, y.handle, 0, 0, x.handle, 0, 0, 0));
      refused(() => k.matmulGroup(s, y.handle, y.handle, 0, x.handle, w.handle, 0, 0));
      refused(() => k.matmulGroup(s, 0, y.handle, 0, x.handle, 0, w.handle, 0));
      refused(() => k.matmulGlu(s, rig.view(4, 1, 9).handle, x.handle, rig.weight({ dtype: BAO.F16, rows: 9, columns: 256 }).handle, 0, 0), 4); // odd rows
      // dst over x: undefined for most ops, refused for a matmul, whose dst must not overlap.
      const square = rig.weight({ dtype: BAO.F32, rows: 256, columns: 256 });
      refused(() => k.matmul(s, x.handle, x.handle, square.handle), 2);
    });
  });

  test("experts: ids of the right type and number, k within limits", () => {
    recording((rig, s) => {
      const x = rig.view(2, 1, 32).handle, w = rig.weight({ dtype: BAO.Q8_0, rows: 6, columns: 32, experts: 4 }).handle, ids = rig.view(2, 1, 2, { dtype: "i32" }).handle, weights = rig.view(2, 1, 2).handle;
      const dst = rig.view(2, 2, 6).handle, sum = rig.view(2, 1, 6).handle;
      refused(() => k.moeMatmul(s, dst, x, w, weights), 5);
      refused(() => k.moeMatmul(s, rig.view(2, 3, 6).handle, x, w, ids), 2);
      refused(() => k.moeMatmul(s, dst, rig.view(2, 3, 32).handle, w, ids), 3);
      refused(() => k.moeMatmulSum(s, sum, rig.view(2, 2, 32).handle, w, ids, rig.view(2, 1, 3).handle), 6);
      refused(() => k.moeSum(s, sum, dst, rig.view(2, 1, 3).handle), 4);
      const logits = (n: number): number => rig.view(2, 1, n).handle, top = (n: number): [number, number] => [rig.view(2, 1, n, { dtype: "i32" }).handle, rig.view(2, 1, n).handle];
      refused(() => k.topkSoftmax(s, ...top(4), logits(3), 0), undefined, "unsupported");
      refused(() => k.topkSoftmax(s, ...top(33), logits(64), 0), undefined, "unsupported");
      refused(() => k.topkSoftmax(s, ...top(2), logits(1025), 0), undefined, "unsupported");
      for (const flag of [-1, 2]) refused(() => k.topkSoftmax(s, ...top(2), logits(8), flag), 5);
      refused(() => k.router(s, ids, weights, x, w, 0), 5);
    });
  });

  test("attention: layers, heads and windows", () => {
    recording((rig, s) => {
      const pool = rig.pool({ kvHeads: 2, headDim: 32, type: "f32", pages: 1, layers: 2 }).handle, kv = rig.view(3, 2, 32).handle, q = rig.view(3, 4, 32).handle, o = rig.view(3, 4, 32).handle;
      for (const layer of [-1, 2]) { refused(() => k.kvAppend(s, pool, layer, kv, kv), 3); refused(() => k.attention(s, o, q, pool, layer, 0, 1), 5); }
      for (const window of [-1, -0x80000000]) refused(() => k.attention(s, o, q, pool, 0, window, 1), 6);
      for (const scale of [NaN, Infinity]) refused(() => k.attention(s, o, q, pool, 0, 0, scale), 7);
      const odd = rig.view(3, 3, 32).handle, wide = rig.view(3, 4, 64).handle;
      refused(() => k.attention(s, odd, rig.view(3, 3, 32).handle, pool, 0, 0, 1), 3);
      refused(() => k.attention(s, wide, rig.view(3, 4, 64).handle, pool, 0, 0, 1), 3);
      refused(() => k.kvAppend(s, pool, 0, q, kv), 4);
      refused(() => k.kvAppend(s, pool, 0, kv, rig.view(3, 2, 16).handle), 5);
      refused(() => k.kvAppend(s, pool, 0, rig.view(3, 2, 32, { rowsOf: "fixed" }).handle, kv), 4);
      refused(() => k.kvAppend(s, rig.pool({ table: 3, kvHeads: 2, headDim: 32, type: "f32", pages: 1 }).handle, 0, kv, kv), 2); // a table that the step lacks
      const table = rig.view(3, 2, 16).handle;
      refused(() => k.headNormRopeAppend(s, q, 0, kv, 0, 0, table, 0, pool, 0, 0, 1e-6), 4);
      refused(() => k.headNormRopeAppend(s, q, kv, kv, 0, 0, rig.view(3, 2, 17).handle, 0, pool, 0, 0, 1e-6), 7);
      refused(() => k.headNormRopeAppend(s, q, kv, kv, 0, 0, table, 0, 0, 0, 0, 1e-6), 9);
      refused(() => k.headNormRopeAppend(s, q, kv, kv, 0, 0, table, 0, pool, 0, 2, 1e-6), 11);
    });
  });

  test("sampling: logits of output rows and the whole vocabulary, a mask of bits", () => {
    recording((rig, s) => {
      const good = rig.view(2, 1, 97, { rowsOf: "output" }).handle;
      for (const bad of [rig.view(2, 1, 97).handle, rig.view(2, 1, 96, { rowsOf: "output" }).handle, rig.view(2, 97, 1, { rowsOf: "output" }).handle]) {
        refused(() => k.sample(s, bad), 2);
        refused(() => k.logprobs(s, bad), 2);
        refused(() => k.logitsProcess(s, bad, 0), 2);
      }
      for (const mask of [rig.view(2, 1, 4, { rowsOf: "output" }).handle, rig.view(2, 1, 3, { rowsOf: "output", dtype: "i32" }).handle, rig.view(2, 1, 4, { dtype: "i32" }).handle]) refused(() => k.logitsProcess(s, good, mask), 3);
    });
  });

  test("a refused op leaves the recording as it was, and the recording runs", () => {
    using((rig) => {
      const x = rig.input(Float32Array.of(1, 2, 3, 4), 1, 2), s = rig.stream.handle;
      rig.run({ rows: 2, outputs: [] }, (r) => {
        r.scale(x, x, 2);
        refused(() => k.add(s, x.handle, x.handle, 0), 4);
        refused(() => k.scale(s, x.handle, x.handle, NaN), 4);
        r.scale(x, x, 10);
        expect(k.streamOps(s)).toBe(2);
        expect([0, 1].map((i) => k.streamOp(s, i))).toEqual([BAO.OP_SCALE, BAO.OP_SCALE]);
      });
      expect([...rig.f32(x)]).toEqual([20, 40, 60, 80]);
    });
  });
});
