// Device objects of one benchmark: a step block with a fixed step, views with random values, rotated weights, filled KV pools, a recording.
// Everything is freed by dispose. Knows no op and no model.
import { ggmlType, type GgmlTypeName } from "../../src/gguf/index.ts";
import { Recorder } from "../../src/model/recorder.ts";
import { KvPool, StepBlock, Stream, VectorWeight, View, Weight, WeightMap, type Device, type KvType, type RowsOf } from "../../src/native/objects.ts";
import { BAO } from "../../src/native/symbols.ts";
import { cold, fillRandom, placeSets, randomValues, weightMemory } from "./memory.ts";

const PAGE = BAO.KV_PAGE_TOKENS;

export interface SamplerShape { readonly temperature?: number; readonly topK?: number; readonly topP?: number; readonly penalties?: boolean; readonly topLogprobs?: number; readonly mask?: boolean }

/** What the slot of a benchmark's step holds. */
export interface StepShape {
  readonly rows: number;
  /** One sequence with all rows, at positions depth, depth + 1 ...; else a sequence a row, each at position depth. */
  readonly prefill: boolean;
  readonly depth: number;
  /** Pages of the rows' positions, no further back than this; 0 = all, undefined = the step has no KV. */
  readonly window?: number;
  readonly vocabulary?: number;
  readonly sampler?: SamplerShape;
}

/** Matrices of one op: [experts][rows][columns] of one type. */
export interface MatrixShape { readonly type: GgmlTypeName; readonly rows: number; readonly columns: number; readonly experts?: number }

export const matrixBytes = (m: MatrixShape): number => {
  const { blockElements, blockBytes } = ggmlType(m.type);
  return (m.rows * m.columns / blockElements) * blockBytes * (m.experts ?? 1);
};

const MAX_COPIES = 2048;

export class BenchRig {
  readonly step: StepBlock;
  readonly stream: Stream;
  readonly r: Recorder;
  /** Pages that the step's rows can reach, over all sequences. */
  readonly pages: number;
  readonly #owned: { dispose(): void }[] = [];
  #seed = 1;

  constructor(readonly device: Device, readonly shape: StepShape) {
    const { rows } = shape, deltas = pageDeltas(shape);
    this.pages = deltas.length;
    const perSequence = 1 + Math.max(0, ...deltas.map(([, index]) => index));
    // The capacity for deltas grows with the entries of a table, so a table as long as all deltas always has room for them.
    this.step = this.own(new StepBlock(device, { slots: 1, maxRows: rows, maxOutputs: rows, maxSequences: shape.prefill ? 1 : rows, vocabulary: shape.vocabulary ?? 4096, maxBias: 1, pages: [Math.max(perSequence, deltas.length, 1)] }));
    this.stream = this.own(new Stream(device, this.step));
    this.r = new Recorder(this.stream);
    this.#fill(deltas);
  }

  own<T extends { dispose(): void }>(object: T): T { this.#owned.push(object); return object; }

  /** A view [rows of the step, d1, d2] with random values. */
  view(d1: number, d2: number, rowsOf: RowsOf = "step", d0 = this.shape.rows): View {
    const buffer = this.own(this.device.buffer(d0 * d1 * d2 * 4)), values = new Float32Array(new ArrayBuffer(buffer.bytes));
    fillRandom(values, this.#seed++);
    buffer.write(values);
    return this.own(buffer.view(rowsOf, d0, d1, d2));
  }
  /** A view of int32 [rows of the step, 1, d2]. */
  ints(values: Int32Array, d2: number, rowsOf: RowsOf = "step"): View {
    const buffer = this.own(this.device.buffer(this.shape.rows * d2 * 4));
    buffer.write(values);
    return this.own(buffer.view(rowsOf, this.shape.rows, 1, d2, { dtype: "i32" }));
  }
  vector(length: number): VectorWeight { return this.own(new VectorWeight(this.device, randomValues(length, this.#seed++).map((v) => 1 + 0.1 * v))); }
  // An op that writes over its operand is applied to its own results thousands of times. With factors that differ all values but the largest would
  // become subnormal, which some processors take a hundred times as long for.
  ones(length: number): VectorWeight { return this.own(new VectorWeight(this.device, new Float32Array(length).fill(1))); }
  /** Cosines, then sines: [rows of the step, 2, pairs]. */
  rotations(pairs: number): View {
    const view = this.view(2, pairs), angles = randomValues(pairs, this.#seed++, Math.PI);
    for (let row = 0; row < this.shape.rows; row++) view.buffer.write(Float32Array.from([...angles.map(Math.cos), ...angles.map(Math.sin)]), row * pairs * 8);
    return view;
  }

  /** Sets of weights of these shapes (all of one type), at different places until a pass over all sets is out of reach of the caches. */
  weights(shapes: readonly MatrixShape[], use: number = BAO.USE_MATMUL, limit = MAX_COPIES): Weight[][] {
    const { type } = shapes[0]!;
    const { bytes, sets } = placeSets(type, shapes.map(matrixBytes), limit);
    const file = weightMemory(type, Math.max(bytes, cold.bytes));
    const map = new WeightMap(this.device, file);
    const made = sets.map((offsets) => shapes.map((s, i) => new Weight(map, offsets[i]!, { dtype: ggmlType(s.type).id, rows: s.rows, columns: s.columns, experts: s.experts ?? 1 }, use)));
    this.own(map); // freed after its weights: dispose goes backwards
    for (const w of made.flat()) this.own(w);
    while (this.device.k.weightsReady(this.device.handle, 1000) === BAO.PENDING) { /* an upload runs */ }
    return made;
  }

  /** A pool for the step's pages, with random K and V everywhere. */
  pool(shape: { layers: number; kvHeads: number; headDim: number; type: KvType }): KvPool {
    const pool = this.own(new KvPool(this.device, { table: 0, ...shape, maxPages: Math.max(1, this.pages) }));
    pool.commit(Math.max(1, this.pages));
    fillPage(this.device, pool);
    for (let page = 1; page < this.pages; page++) pool.copyPage(page, 0, PAGE);
    return pool;
  }

  /** Records `count` ops, the i-th with copy i % copies. */
  record(count: number, copies: number, op: (copy: number) => void): void {
    this.stream.record(() => { for (let i = 0; i < count; i++) op(i % copies); });
  }
  /** One pass over the recording. */
  run(): void {
    this.stream.submit(0);
    while (this.stream.wait(0, 10_000) === "pending") { /* a long one */ }
  }
  dispose(): void {
    for (const object of this.#owned.toReversed()) object.dispose();
    this.#owned.length = 0;
  }

  // The same step in every pass: the serial stays, so that pages are set once and each submit repeats the step.
  #fill(deltas: readonly PageDelta[]): void {
    const slot = this.step.slots[0]!, { rows, prefill, depth, sampler = {} } = this.shape, vocabulary = this.step.options.vocabulary;
    slot.header.fill(0);
    slot.header[BAO.HEADER_ROWS] = rows;
    slot.header[BAO.HEADER_OUTPUTS] = rows;
    slot.header[BAO.HEADER_PAGE_DELTAS] = deltas.length;
    slot.header[BAO.HEADER_SEQUENCE_DELTAS] = prefill ? 1 : rows;
    slot.header[BAO.HEADER_SERIAL] = 1;
    deltas.forEach(([sequence, index, page], i) => slot.pageDelta.set([0, sequence, index, page], i * 4));
    for (let row = 0; row < rows; row++) {
      slot.rowSequence[row] = prefill ? 0 : row;
      slot.rowPosition[row] = depth + (prefill ? row : 0);
      slot.rowId[row] = (row * 7919 + 1) % vocabulary;
      slot.outputRow[row] = row;
      const at = row * BAO.SAMPLER_WORDS;
      slot.samplerF32[at + BAO.SAMPLER_TEMPERATURE] = sampler.temperature ?? 0;
      slot.sampler[at + BAO.SAMPLER_TOP_K] = sampler.topK ?? 0;
      slot.samplerF32[at + BAO.SAMPLER_TOP_P] = sampler.topP ?? 1;
      slot.samplerF32[at + BAO.SAMPLER_REPETITION] = sampler.penalties ? 1.0001 : 1;
      slot.samplerF32[at + BAO.SAMPLER_PRESENCE] = sampler.penalties ? 1e-3 : 0;
      slot.samplerF32[at + BAO.SAMPLER_FREQUENCY] = sampler.penalties ? 1e-3 : 0;
      slot.sampler[at + BAO.SAMPLER_SEED_LOW] = row;
      slot.sampler[at + BAO.SAMPLER_TOP_LOGPROBS] = sampler.topLogprobs ?? -1;
      // HOLD: every pass is the same step, and no sequence moves on.
      slot.sampler[at + BAO.SAMPLER_FLAGS] = BAO.SAMPLE_HOLD | (sampler.mask ? BAO.SAMPLE_MASK : 0);
    }
    // 64 ids of history each, which penalties look at.
    for (let s = 0; s < (prefill ? 1 : rows); s++) slot.sequenceDelta.set([s, depth, 1, 64, ...Array.from({ length: 64 }, (_, i) => (i * 31 + s) % vocabulary)], s * 68);
  }
}

type PageDelta = readonly [sequence: number, index: number, page: number];

/** Every sequence has pages of its own, as sequences without a common prefix do. */
function pageDeltas({ rows, prefill, depth, window }: StepShape): PageDelta[] {
  if (window === undefined) return [];
  const first = window > 0 ? Math.floor(Math.max(0, depth - window + 1) / PAGE) : 0, last = Math.floor((depth + (prefill ? rows - 1 : 0)) / PAGE);
  const out: PageDelta[] = [];
  for (let sequence = 0; sequence < (prefill ? 1 : rows); sequence++) for (let index = first; index <= last; index++) out.push([sequence, index, out.length]);
  return out;
}

/** Appends 64 random tokens to page 0, in all layers of the pool. */
function fillPage(device: Device, pool: KvPool): void {
  const rig = new BenchRig(device, { rows: PAGE, prefill: true, depth: 0, window: 0 });
  try {
    const { layers, kvHeads, headDim } = pool.options, k = rig.view(kvHeads, headDim), v = rig.view(kvHeads, headDim);
    rig.record(layers, layers, (layer) => rig.r.kvAppend(pool, layer, k, v));
    rig.run();
  } finally {
    rig.dispose();
  }
}
