// KV append and attention against the plain reference, which is itself checked against a softmax in double: page sizes, splits, windows, grouped
// heads, ragged batches, shuffled pages. Rows of one chunk and rows one by one are the same bits on batch-invariant devices.
import { describe, expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import { Stream, type Device, type KvPool, type KvType, type Precision, type View } from "../../src/native/objects.ts";
import { allowTime, batchInvariant, expectClose, FULL, isas, KV_TYPES, ON_CPU, oracle, type Outputs, play, playNow, Random, type Rig, type RowSpec, subject } from "./harness.ts";

allowTime();

// Relative to the row's largest output. Exact: exp by polynomial, sums of up to 2,000 weights in f32 by page. Fast on a GPU: q and the
// probabilities may be rounded to f16 (bao.h), 2^-11 each.
const bound = (type: KvType, precision: Precision): number => (precision !== "exact" && type !== "f32" && !ON_CPU ? 3e-3 : 1e-5);
const PAGE = BAO.KV_PAGE_TOKENS;

interface Case {
  type: KvType; headDim: number; heads: number; kvHeads: number; window: number; scale?: number;
  /** Sequence -> tokens before the rows that are compared. */
  context: Readonly<Record<number, number>>;
  /** Rows compared, for each sequence of `context`. */
  rows: number;
  /** Sequence -> its rows, where they are fewer. */
  fewer?: Readonly<Record<number, number>>;
  /** Rows of one submit; 0 = all at once. */
  chunk?: number;
  layer?: number; layers?: number; seed?: number; layout?: { offsetBytes?: number; gapBytes?: number };
  /** Values of K, V and q are multiplied by these. */
  sizes?: readonly [k: number, v: number, q: number];
}

const known = new Map<string, Float32Array>();

/** K, V or q of one token: a function of sequence and position alone, so that any chunking gives the same. */
function token(c: Case, what: number, sequence: number, position: number, n: number): Float32Array {
  const size = c.sizes?.[what] ?? 1, key = `${c.seed ?? 1} ${what} ${sequence} ${position} ${n} ${size}`;
  let values = known.get(key);
  if (!values) known.set(key, values = new Random(((c.seed ?? 1) * 1009 + sequence) * 65_537 + position * 4 + what).f32(n, size));
  return values;
}

const MAX_ROWS = 128;
const rowsOf = (c: Case, sequence: number): number => c.fewer?.[sequence] ?? c.rows;

class KvRig {
  readonly pool: KvPool;
  readonly k: View; readonly v: View; readonly q: View; readonly dst: View;
  readonly #append: Stream; readonly #attend: Stream;
  readonly #placed: (readonly [number, number, number, number])[];
  #pages: (readonly [number, number, number, number])[] = [];
  constructor(readonly rig: Rig, readonly c: Case) {
    const { heads, kvHeads, headDim, type } = c, sequences = Object.keys(c.context).map(Number);
    const each = sequences.map((s) => Math.ceil((c.context[s]! + rowsOf(c, s)) / PAGE)), total = each.reduce((a, b) => a + b, 0) + 2;
    this.pool = rig.pool({ table: 2, layers: c.layers ?? 1, kvHeads, headDim, type, pages: total, maxPages: total + 5 });
    const shuffled = new Random(total * 3 + 1).shuffled(total);
    // Page 0, and never the same order as the positions.
    sequences.forEach((s, i) => { for (let index = 0; index < each[i]!; index++) this.#pages.push([2, s, index, shuffled.pop()!]); });
    this.#placed = [...this.#pages];
    this.k = rig.view(MAX_ROWS, kvHeads, headDim, c.layout);
    this.v = rig.view(MAX_ROWS, kvHeads, headDim, c.layout);
    const most = sequences.reduce((sum, s) => sum + Math.min(c.chunk || c.rows, rowsOf(c, s)), 0);
    this.q = rig.view(most, heads, headDim, c.layout);
    this.dst = rig.view(most, heads, headDim, c.layout);
    this.#append = rig.own(new Stream(rig.device, rig.step));
    this.#append.record(() => rig.device.k.kvAppend(this.#append.handle, this.pool.handle, c.layer ?? 0, this.k.handle, this.v.handle));
    this.#attend = rig.own(new Stream(rig.device, rig.step));
    this.#attend.record(() => {
      rig.device.k.kvAppend(this.#attend.handle, this.pool.handle, c.layer ?? 0, this.k.handle, this.v.handle);
      rig.device.k.attention(this.#attend.handle, this.dst.handle, this.q.handle, this.pool.handle, c.layer ?? 0, c.window, c.scale ?? 1 / Math.sqrt(headDim));
    });
  }
  get pages(): number[] { return this.#placed.map(([, , , page]) => page); }
  /** Unsets entries of a sequence's page table with the next submit; gives the pages that they held. */
  release(sequence: number, indices: readonly number[]): number[] {
    const gone = this.#placed.filter(([, s, index]) => s === sequence && indices.includes(index));
    this.#pages = gone.map(([table, s, index]) => [table, s, index, -1]);
    return gone.map(([, , , page]) => page);
  }
  #submit(rows: readonly RowSpec[], stream: Stream, withQ: boolean, decode = false): void {
    const { c, rig } = this, kv = c.kvHeads * c.headDim, qn = c.heads * c.headDim;
    const k = new Float32Array(rows.length * kv), v = new Float32Array(rows.length * kv), q = new Float32Array(withQ ? rows.length * qn : 0);
    rows.forEach((row, i) => {
      k.set(token(c, 0, row.sequence, row.position!, kv), i * kv);
      v.set(token(c, 1, row.sequence, row.position!, kv), i * kv);
      if (withQ) q.set(token(c, 2, row.sequence, row.position!, qn), i * qn);
    });
    rig.put(this.k, k);
    rig.put(this.v, v);
    if (withQ) rig.put(this.q, q);
    // Rows marked -1 take position and id from the device region, which a delta sets.
    rig.submit(decode
      ? { rows: rows.map(({ sequence }) => ({ sequence })), outputs: [], pages: this.#pages, sequences: rows.map((row) => ({ sequence: row.sequence, length: row.position!, next: 0 })) }
      : { rows, outputs: [], pages: this.#pages }, stream);
    this.#pages = [];
  }
  /** Appends the contexts in chunks of an odd size. */
  prefill(chunk = 101): void {
    for (const [s, length] of Object.entries(this.c.context)) {
      for (let p = 0; p < length; p += chunk) {
        this.#submit(Array.from({ length: Math.min(chunk, length - p) }, (_, i) => ({ sequence: Number(s), position: p + i, id: 0 })), this.#append, false);
      }
    }
  }
  /** The attention outputs of the compared rows, by sequence and position. */
  attend(decode = false): Outputs {
    const { c } = this, out: Outputs = {}, width = c.heads * c.headDim, sequences = Object.keys(c.context).map(Number), chunk = c.chunk || c.rows;
    for (let from = 0; from < c.rows; from += chunk) {
      const rows = sequences.flatMap((s) => Array.from({ length: Math.max(0, Math.min(chunk, rowsOf(c, s) - from)) }, (_, i) => ({ sequence: s, position: c.context[s]! + from + i, id: 0 })));
      this.#submit(rows, this.#attend, true, decode);
      const all = this.rig.f32(this.dst, rows.length);
      rows.forEach((row, i) => { out[`sequence ${row.sequence} position ${row.position}`] = all.slice(i * width, (i + 1) * width); });
    }
    return out;
  }
}

const STEP = { maxRows: MAX_ROWS, pages: [0, 0, 64, 0] };
function outputs(device: Device, c: Case): Outputs {
  return play(device, (rig) => {
    const kv = new KvRig(rig, c);
    kv.prefill();
    return kv.attend();
  }, STEP);
}

const nameOf = (c: Case): string => `${c.type} head_dim ${c.headDim} heads ${c.heads}:${c.kvHeads} window ${c.window} context ${JSON.stringify(c.context)} + ${c.rows}`;

/** Against the reference; then one by one and in threes, bit for bit; alone and in company, bit for bit. */
function check(c: Case, precision: Precision = "exact", only = isas()): void {
  known.clear();
  const expected = outputs(oracle(precision), c);
  for (const isa of only) {
    const device = subject({ isa, precision }), found = outputs(device, c);
    expectClose(found, expected, bound(c.type, precision), `${nameOf(c)} on ${isa}`);
    if (!batchInvariant(device)) continue;
    for (const chunk of c.rows > 3 ? [1, 3] : [1]) expectClose(sorted(outputs(device, { ...c, chunk })), sorted(found), 0, `${nameOf(c)} on ${isa} in chunks of ${chunk}`);
    const [first] = Object.keys(c.context);
    if (Object.keys(c.context).length > 1) {
      const alone = outputs(device, { ...c, context: { [first!]: c.context[Number(first)]! } });
      for (const [k, v] of Object.entries(alone)) expectClose({ [k]: v }, { [k]: found[k]! }, 0, `${nameOf(c)} on ${isa} alone`);
    }
  }
}
const sorted = (o: Outputs): Outputs => Object.fromEntries(Object.entries(o).toSorted(([a], [b]) => (a < b ? -1 : 1)));

describe("attention against the reference", () => {
  for (const type of KV_TYPES) {
    test(`${type}: head sizes and grouped heads`, () => {
      const shapes = [[16, 1, 1], [48, 4, 4], [64, 8, 2], [128, 8, 1], [256, 16, 2], [512, 16, 1], [64, 16, 1], [96, 3, 3]] as const;
      for (const [headDim, heads, kvHeads] of shapes) {
        if (type === "q8_0" && headDim % 32 !== 0) continue;
        check({ type, headDim, heads, kvHeads, window: 0, context: { 0: 0, 3: 70, 1: 127 }, rows: 5, seed: headDim, layout: headDim === 64 ? { offsetBytes: 4, gapBytes: 12 } : {} });
      }
    });

    test(`${type}: windows`, () => {
      for (const window of [1, 16, 64, 65, 100, 1024]) {
        check({ type, headDim: 64, heads: 4, kvHeads: 2, window, context: { 2: 0, 5: 61, 7: 300 }, rows: 7, seed: window });
      }
    });

    test(`${type}: contexts over pages and splits`, () => {
      for (const length of [1, 63, 64, 65, 255, 256, 257, 1000, ...(FULL ? [2047, 3900] : [])]) {
        check({ type, headDim: 32, heads: 2, kvHeads: 1, window: 0, context: { 0: length }, rows: 2 });
      }
      check({ type, headDim: 32, heads: 2, kvHeads: 1, window: 700, context: { 0: 1500, 1: 650 }, rows: 3 });
    });
  }

  test("pages that left the window may be given back", () => {
    for (const type of KV_TYPES) {
      // A head size of the plain kernels, and one that f16 tensor core kernels take, one row a block and in tiles.
      for (const [headDim, rows, device] of [[32, 4, oracle()], ...isas().flatMap((isa) => ((ON_CPU ? [[32, 4], [64, 4], [64, 100]] : [[32, 4], [64, 4], [64, 100], [256, 100], [512, 100]]) as readonly (readonly [number, number])[]).map(([d, n]) => [d, n, subject({ isa, precision: n > 64 ? "fast-int8" : "exact" })] as const))] as const) {
        const c: Case = { type, headDim, heads: 4, kvHeads: 2, window: 70, context: { 3: 300 }, rows };
        const expected = outputs(device, c);
        const found = play(device, (rig) => {
          const kv = new KvRig(rig, c);
          kv.prefill();
          // Position 300 reaches back to 231, in page 3: pages 0, 1 and 2 are unset and their memory is scribbled over.
          const old = kv.release(3, [0, 1, 2]), bytes = new Uint8Array(new ArrayBuffer(kv.pool.pageBytes)).fill(0xff);
          for (const page of old) kv.pool.writePage(page, bytes);
          return kv.attend();
        }, STEP);
        expectClose(found, expected, 0, `${nameOf(c)} on ${device.info.isa}`);
      }
    }
  });

  test("what a page holds beyond its last token does not matter", () => {
    for (const type of KV_TYPES) {
      for (const headDim of ON_CPU ? [64] : [64, 128, 256, 512]) {
        for (const rows of [3, 60]) {
          const c: Case = { type, headDim, heads: 4, kvHeads: 2, window: rows === 3 ? 0 : 70, context: { 0: 5, 2: 130 }, rows };
          for (const device of isas().map((isa) => subject({ isa, precision: "fast-int8" }))) {
            const found = play(device, (rig) => {
              const kv = new KvRig(rig, c), bytes = new Uint8Array(new ArrayBuffer(kv.pool.pageBytes)).fill(0xff);
              for (const page of kv.pages) kv.pool.writePage(page, bytes);
              kv.prefill();
              return kv.attend();
            }, STEP);
            expectClose(found, outputs(device, c), 0, `${nameOf(c)} on ${device.info.isa}`);
          }
        }
      }
    }
  });

  test("rows marked -1 attend from the sequence's length", () => {
    for (const type of KV_TYPES) {
      const c: Case = { type, headDim: 64, heads: 4, kvHeads: 1, window: 0, context: { 1: 64, 6: 200, 2: 0 }, rows: 1 };
      for (const device of [oracle(), ...isas().map((isa) => subject({ isa }))]) {
        const found = play(device, (rig) => {
          const kv = new KvRig(rig, c);
          kv.prefill();
          return kv.attend(true);
        }, STEP);
        expectClose(found, outputs(device, c), 0, `${nameOf(c)} on ${device.info.isa}`);
      }
    }
  });

  test("fast precision reads the same cache", () => {
    for (const type of KV_TYPES) check({ type, headDim: 128, heads: 8, kvHeads: 2, window: 0, context: { 0: 200, 1: 5 }, rows: 4 }, "fast-int8");
  });

  test("a chunk of 60 rows across a page, and eight sequences at once", () => {
    check({ type: "f16", headDim: 64, heads: 8, kvHeads: 1, window: 0, context: { 0: 40 }, rows: 60 });
    check({ type: "f32", headDim: 64, heads: 4, kvHeads: 4, window: 33, context: { 0: 0, 1: 64 }, rows: 60 });
    check({ type: "q8_0", headDim: 64, heads: 8, kvHeads: 2, window: 0, context: { 0: 1, 1: 500, 2: 64, 3: 63, 4: 129, 5: 0, 6: 300, 7: 65 }, rows: 1 });
  });

  test("many rows of one sequence in exact precision: every cache type, heads that fill more than a tile", () => {
    const shapes = [[64, 2, 1], [128, 6, 2], [256, 3, 1], [512, 17, 1]] as const;
    for (const type of KV_TYPES) {
      for (const [headDim, heads, kvHeads] of ON_CPU ? shapes.slice(0, 1) : shapes) {
        check({ type, headDim, heads, kvHeads, window: headDim === 256 ? 50 : 0, context: { 0: 37, 3: 120 }, rows: 15, fewer: { 3: 9 }, seed: headDim });
      }
    }
  });

  test("head sizes of no tile, beyond 512 and of no whole vectors", () => {
    for (const [headDim, heads, type] of [[1024, 5, "f32"], [720, 8, "f16"], [34, 3, "f16"], [18, 9, "f32"], [544, 2, "q8_0"]] as const) {
      check({ type, headDim, heads, kvHeads: 1, window: 0, context: { 0: 70, 1: 0 }, rows: headDim === 34 ? 10 : 3, seed: headDim });
    }
  });

  test("f16, one row at a time: contexts that split over blocks, tiles and windows that end inside them", () => {
    for (const [headDim, heads, kvHeads] of [[256, 4, 2], [512, 8, 1], [128, 3, 1], [64, 9, 1]] as const) {
      for (const window of ON_CPU ? [70] : [0, 1024, 70]) check({ type: "f16", headDim, heads, kvHeads, window, context: { 0: 1500, 1: 15, 2: 16, 3: 17, 4: 1023, 5: 1040 }, rows: 1, seed: headDim });
    }
    check({ type: "f16", headDim: 512, heads: 8, kvHeads: 1, window: 0, context: { 0: 3000 }, rows: 1, sizes: [1, 1, 3e5] });
    check({ type: "f16", headDim: 256, heads: 2, kvHeads: 1, window: 0, context: { 0: 300 }, rows: 2, sizes: [3, 30, 1e-6], scale: 1e6 });
  });

  test("f16 in fast precision: tiles of rows, of one sequence and of several, windows that begin and end inside pages", () => {
    const shapes = [[64, 4, 4], [128, 12, 2], [128, 3, 1], [256, 4, 2], [512, 16, 1], [512, 8, 1]] as const;
    for (const [headDim, heads, kvHeads] of ON_CPU ? shapes.slice(0, 1) : shapes) {
      for (const window of ON_CPU ? [30] : [0, 30, 64, 100]) {
        check({ type: "f16", headDim, heads, kvHeads, window, context: { 0: 37 }, rows: 90, seed: headDim }, "fast-int8");
        check({ type: "f16", headDim, heads, kvHeads, window, context: { 2: 0, 5: 64, 7: 300 }, rows: 33, seed: headDim }, ON_CPU ? "fast-int8" : "fast-bf16");
      }
    }
    // A row each of many sequences; q beyond what f16 holds; a first page that the window has left.
    check({ type: "f16", headDim: 256, heads: 4, kvHeads: 2, window: 70, context: { 0: 5, 1: 64, 2: 200, 3: 63, 4: 128, 5: 0, 6: 77, 7: 300 }, rows: 9 }, "fast-int8");
    check({ type: "f16", headDim: 128, heads: 8, kvHeads: 1, window: 0, context: { 1: 50 }, rows: 70, sizes: [1, 1, 3e5], scale: 1e-6 }, "fast-int8");
    check({ type: "f16", headDim: 64, heads: 2, kvHeads: 1, window: 0, context: { 0: 3000 }, rows: 66 }, "fast-int8");
  });

  test("f16 in fast precision: decode rows and short runs beside prompts", () => {
    const context = { 0: 1500, 1: 37, 2: 0, 3: 200, 4: 64, 5: 1023, 6: 130 }, fewer = { 0: 1, 2: 1, 3: 8, 4: 9, 5: 1, 6: 2 };
    for (const [headDim, heads, kvHeads] of ON_CPU ? [[64, 2, 1] as const] : [[512, 16, 2], [256, 16, 8], [128, 8, 1], [64, 3, 3]] as const) {
      for (const window of ON_CPU ? [70] : [0, 70, 1024]) check({ type: "f16", headDim, heads, kvHeads, window, context, rows: 90, fewer, seed: headDim }, "fast-int8");
    }
  });

  test("the second of three layers, other layers untouched", () => {
    for (const type of KV_TYPES) {
      const c: Case = { type, headDim: 32, heads: 2, kvHeads: 2, window: 0, context: { 4: 66 }, rows: 3, layer: 1, layers: 3 };
      check(c);
      for (const device of [oracle(), subject()]) {
        play(device, (rig) => {
          const kv = new KvRig(rig, c);
          kv.prefill();
          kv.attend();
          let used = 0;
          for (let page = 0; page < 4; page++) {
            const bytes = new Uint8Array(new ArrayBuffer(kv.pool.pageBytes)), third = bytes.length / 3;
            kv.pool.readPage(page, bytes);
            expect(bytes.subarray(0, third).every((b) => b === 0)).toBe(true);
            expect(bytes.subarray(2 * third).every((b) => b === 0)).toBe(true);
            if (bytes.subarray(third, 2 * third).some((b) => b !== 0)) used++;
          }
          expect(used).toBe(2);
          return {};
        }, STEP);
      }
    }
  });

  test("peaked and flat softmax, scale of one, equal scores", () => {
    for (const [sizes, scale] of [[[8, 1, 8], 1], [[0, 1, 1], 1], [[1, 1, 1], 0], [[1, 1, 1], 1], [[3, 1, 3], -0.5]] as const) {
      check({ type: "f32", headDim: 64, heads: 2, kvHeads: 1, window: 0, context: { 0: 150 }, rows: 2, sizes, scale });
    }
  });

  test("values beyond 65504 survive in f32 and q8_0", () => {
    for (const type of ["f32", "q8_0"] as const) {
      const c: Case = { type, headDim: 64, heads: 2, kvHeads: 1, window: 0, context: { 0: 70 }, rows: 2, sizes: [1, 3e5, 1] };
      check(c);
      const out = Object.values(outputs(subject(), c)).flatMap((v) => [...v]);
      expect(out.every(Number.isFinite)).toBe(true);
      expect(Math.max(...out.map(Math.abs))).toBeGreaterThan(65_504);
    }
  });

  test("a NaN in one sequence does not reach another", () => {
    for (const device of isas().map((isa) => subject({ isa }))) {
      play(device, (rig) => {
        const c: Case = { type: "f32", headDim: 32, heads: 2, kvHeads: 1, window: 0, context: { 0: 3, 1: 3 }, rows: 1 };
        const kv = new KvRig(rig, c);
        kv.prefill();
        const clean = kv.attend()["sequence 1 position 3"]!;
        const poisoned = new KvRig(rig, { ...c, sizes: [1, 1, 1], seed: 1 });
        poisoned.prefill();
        const page = new Uint8Array(new ArrayBuffer(poisoned.pool.pageBytes));
        // The last page popped from the shuffle is sequence 1's, the one before it sequence 0's; poison whatever is not sequence 1's.
        const before = poisoned.attend()["sequence 1 position 3"]!;
        expect(before).toEqual(clean);
        for (let p = 0; p < 4; p++) {
          poisoned.pool.readPage(p, page);
          const f = new Float32Array(page.buffer.slice(0));
          if (f[0] !== token(c, 0, 0, 0, 32)[0]) continue;
          f.fill(NaN, 32, 64);
          poisoned.pool.writePage(p, new Uint8Array(f.buffer));
        }
        const after = poisoned.attend();
        expect([...after["sequence 1 position 3"]!]).toEqual([...clean]);
        expect(after["sequence 0 position 3"]!.every(Number.isNaN)).toBe(true);
        return {};
      }, STEP);
    }
  });
});

describe("the reference against a softmax in double", () => {
  test("f32 cache, grouped heads, with and without window", () => {
    for (const window of [0, 20]) {
      const c: Case = { type: "f32", headDim: 16, heads: 4, kvHeads: 2, window, context: { 0: 80 }, rows: 1, scale: 0.3 }, p = 80;
      const found = outputs(oracle(), c)["sequence 0 position 80"]!, q = token(c, 2, 0, p, 64), first = window ? p - window + 1 : 0;
      for (let h = 0; h < 4; h++) {
        const g = h >> 1, scores: number[] = [], dot = (j: number): number => { const k = token(c, 0, 0, j, 32); let s = 0; for (let i = 0; i < 16; i++) s += q[h * 16 + i]! * k[g * 16 + i]!; return s; };
        for (let j = first; j <= p; j++) scores.push(dot(j) * Math.fround(0.3));
        const max = Math.max(...scores), weights = scores.map((s) => Math.exp(s - max)), total = weights.reduce((a, b) => a + b, 0);
        for (let i = 0; i < 16; i++) {
          let sum = 0;
          weights.forEach((w, j) => { sum += w / total * token(c, 1, 0, first + j, 32)[g * 16 + i]!; });
          expect(Math.abs(found[h * 16 + i]! - sum)).toBeLessThan(1e-6);
        }
      }
    }
  });
});

describe("what a page holds", () => {
  const one = (type: KvType, values: Float32Array, device: Device): Uint8Array => {
    const page = new Uint8Array(new ArrayBuffer(1 << 20));
    let bytes = 0;
    playNow(device, (rig) => {
      const pool = rig.pool({ kvHeads: 2, headDim: 32, type, pages: 2 }), k = rig.input(values, 2, 32), v = rig.input(values.map((x) => -x), 2, 32);
      rig.run({ rows: [{ sequence: 6, position: 63, id: 0 }], outputs: [], pages: [[0, 6, 0, 1]] }, (r) => r.kvAppend(pool, 0, k, v));
      bytes = pool.pageBytes;
      pool.readPage(1, page.subarray(0, bytes));
      return {};
    });
    return page.slice(0, bytes);
  };
  const values = new Random(31).f32(64, 3);
  values.set([0, -0, 1e-8, 65_504, -65_504, 65_520, 1e30, 2.5, 3.5, 1 + 2 ** -11, 1 + 3 * 2 ** -11], 0);

  test("every device stores the same bytes as the reference: K planes, then V planes, the last token of the page", () => {
    for (const type of KV_TYPES) {
      const expected = one(type, values, oracle());
      for (const isa of isas()) expect(Buffer.compare(one(type, values, subject({ isa })), expected)).toBe(0);
    }
  });

  test("f32 and f16 as IEEE says, q8_0 as an int8 plane and a plane of f32 scales", () => {
    const plane = (bytes: number): number => Math.ceil(bytes / 128) * 128;
    const f32 = new Float32Array(one("f32", values, oracle()).buffer), stride = plane(64 * 32 * 4) / 4;
    for (let h = 0; h < 2; h++) {
      expect([...f32.slice(h * stride + 63 * 32, h * stride + 64 * 32)]).toEqual([...values.slice(h * 32, h * 32 + 32)]);
      expect(f32[(2 + h) * stride + 63 * 32 + 5]).toBe(-values[h * 32 + 5]!);
    }
    const f16 = new Float16Array(one("f16", values, oracle()).buffer), half = plane(64 * 32 * 2) / 2;
    for (let i = 0; i < 64; i++) expect(f16[(i >> 5) * half + 63 * 32 + i % 32]!).toBe(Math.f16round(values[i]!));
    const q8 = one("q8_0", values, oracle()), q = new Int8Array(q8.buffer), d = new Float32Array(q8.buffer), size = plane(64 * 32 + 64 * 4);
    for (let h = 0; h < 2; h++) {
      const max = Math.max(...values.slice(h * 32, h * 32 + 32).map(Math.abs)), scale = d[(h * size + 64 * 32) / 4 + 63]!;
      expect(scale).toBe(Math.fround(max / 127));
      for (let i = 0; i < 32; i++) expect(Math.abs(q[h * size + 63 * 32 + i]! * scale - values[h * 32 + i]!)).toBeLessThanOrEqual(scale * 0.50001);
    }
  });

  test("page copies take the first tokens only; a page round trip is the identity", () => {
    for (const type of KV_TYPES) {
      play(subject(), (rig) => {
        const pool = rig.pool({ layers: 2, kvHeads: 2, headDim: 32, type, pages: 3 }), random = new Random(2);
        const source = new Uint8Array(new ArrayBuffer(pool.pageBytes)), target = source.slice(), back = source.slice();
        for (let i = 0; i < source.length; i++) { source[i] = random.u32(); target[i] = random.u32(); }
        pool.writePage(1, source);
        pool.readPage(1, back);
        expect(Buffer.compare(back, source)).toBe(0);
        for (const tokens of [0, 1, 37, 64]) {
          pool.writePage(0, target);
          pool.copyPage(0, 1, tokens);
          pool.readPage(0, back);
          const planes = 2 * 2 * 2, size = back.length / planes, element = type === "f32" ? 4 : type === "f16" ? 2 : 1;
          for (let p = 0; p < planes; p++) {
            const cut = tokens * 32 * element;
            for (const [from, to, expected] of [[0, cut, source], [cut, 64 * 32 * element, target]] as const) {
              expect(Buffer.compare(back.subarray(p * size + from, p * size + to), expected.subarray(p * size + from, p * size + to))).toBe(0);
            }
            if (type === "q8_0") expect(Buffer.compare(back.subarray(p * size + 64 * 32, p * size + 64 * 32 + tokens * 4), source.subarray(p * size + 64 * 32, p * size + 64 * 32 + tokens * 4))).toBe(0);
          }
        }
        return {};
      });
    }
  });
});
