// One device under test and its oracle: scenarios are played on both with the same seeded inputs, and their outputs compared.
// BAO_TEST_DEVICE=cpu|cuda|metal picks the device under test; the oracle is always the plain reference of the CPU library.
import { expect, setDefaultTimeout } from "bun:test";
import { Recorder } from "../../src/model/recorder.ts";
import { Device, KvPool, StepBlock, Stream, VectorWeight, View, Weight, WeightMap, type DeviceOptions, type Isa, type KvType, type Precision, type RowsOf, type StepOptions, type StepSlot } from "../../src/native/objects.ts";
import { findLibrary, openLibrary, type BackendName } from "../../src/native/library.ts";
import { BAO } from "../../src/native/symbols.ts";
import { weightFile, type WeightSpec } from "./weights.ts";

/** To be called by each test file: a loaded machine of one core is no failure (the default is 5 seconds a test), nor is an emulated GPU that checks every access. */
export function allowTime(): void { setDefaultTimeout(TEST_BACKEND === "metal" || ONCE ? 1_800_000 : 120_000); }

/** The backend under test. */
export const TEST_BACKEND = (process.env["BAO_TEST_DEVICE"] || "cpu") as BackendName;
/** More shapes, for an evening. */
export const FULL = process.env["BAO_TEST_FULL"] === "1";
export const ON_CPU = TEST_BACKEND === "cpu";
/**
 * Under a memory checker (BAO_TEST_ONCE=1) a scenario is played once in each precision, on the device under test alone, and `expectClose` compares nothing:
 * accesses are judged, not results, and each launch takes a hundred times as long.
 */
export const ONCE = process.env["BAO_TEST_ONCE"] === "1";

if (!["cpu", "cuda", "metal"].includes(TEST_BACKEND)) throw new Error(`BAO_TEST_DEVICE is ${TEST_BACKEND}, expected cpu, cuda or metal`);
if (TEST_BACKEND !== "cpu" && (!findLibrary(TEST_BACKEND) || openLibrary(TEST_BACKEND).k.deviceCount() === 0)) {
  throw new Error(`BAO_TEST_DEVICE=${TEST_BACKEND}: no such library or device here, nothing was tested`);
}

/** Every weight type. */
export const DTYPES = [BAO.F32, BAO.F16, BAO.BF16, BAO.Q4_0, BAO.Q4_1, BAO.Q5_0, BAO.Q5_1, BAO.Q8_0, BAO.Q2_K, BAO.Q3_K, BAO.Q4_K, BAO.Q5_K, BAO.Q6_K, BAO.IQ4_NL, BAO.IQ4_XS, BAO.MXFP4, BAO.NVFP4] as const;
export const KV_TYPES: readonly KvType[] = ["f32", "f16", "q8_0"];

// ---------------------------------------------------------------- devices

export interface TestDevice { threads?: number; isa?: Isa; precision?: Precision }
const devices = new Map<string, Device>();

function shared(options: DeviceOptions): Device {
  const key = JSON.stringify(options);
  let device = devices.get(key);
  if (!device || device.disposed) devices.set(key, device = new Device(options));
  return device;
}

/** The device under test, opened once for each set of options. */
export function subject(options: TestDevice = {}): Device {
  return shared({ backend: TEST_BACKEND, threads: options.threads ?? 2, isa: ON_CPU ? options.isa ?? "auto" : "auto", precision: options.precision ?? "exact" });
}

/** The plain reference at the same precision. */
export function oracle(precision: Precision = "exact"): Device {
  return shared({ backend: "cpu", threads: 1, precision, reference: true });
}

/** Instruction sets that this machine can run, beside "auto"; only "auto" off the CPU. BAO_TEST_ISA=NAME: that one alone, whether it runs or not. */
export function isas(): Isa[] {
  if (!ON_CPU) return ["auto"];
  if (process.env["BAO_TEST_ISA"]) return [process.env["BAO_TEST_ISA"] as Isa];
  return (["base", "avx2", "avx512", "neon"] as const).filter((isa) => {
    try { shared({ backend: "cpu", threads: 2, isa, precision: "exact" }); return true; } catch { return false; }
  });
}

/** Whether rows must not change with their batch, bit for bit. */
export const batchInvariant = (device: Device): boolean => (device.caps & BAO.CAP_BATCH_INVARIANT) !== 0;

// ---------------------------------------------------------------- random numbers

/** A seeded generator of uniform 32-bit words (SplitMix32): the same inputs on every machine. */
export class Random {
  #state: number;
  constructor(seed: number) { this.#state = seed | 0; }
  u32(): number {
    this.#state = (this.#state + 0x9e3779b9) | 0;
    let z = this.#state;
    z = Math.imul(z ^ (z >>> 16), 0x21f0aaad);
    z = Math.imul(z ^ (z >>> 15), 0x735a2d97);
    return (z ^ (z >>> 15)) >>> 0;
  }
  /** In [0, 1). */
  unit(): number { return this.u32() / 4294967296; }
  below(n: number): number { return Math.floor(this.unit() * n); }
  /** Roughly normal, mean 0, deviation 1. */
  normal(): number { return (this.unit() + this.unit() + this.unit() + this.unit() - 2) * 1.7320508; }
  f32(n: number, scale = 1): Float32Array<ArrayBuffer> {
    const out = new Float32Array(new ArrayBuffer(n * 4));
    for (let i = 0; i < n; i++) out[i] = this.normal() * scale;
    return out;
  }
  i32(n: number, below: number): Int32Array<ArrayBuffer> {
    const out = new Int32Array(new ArrayBuffer(n * 4));
    for (let i = 0; i < n; i++) out[i] = this.below(below);
    return out;
  }
  shuffled(n: number): number[] {
    const out = Array.from({ length: n }, (_, i) => i);
    for (let i = n - 1; i > 0; i--) { const j = this.below(i + 1); [out[i], out[j]] = [out[j]!, out[i]!]; }
    return out;
  }
}

/** Activations as models have them: a few large channels, rows of different size, one row of zeros. */
export function activations(random: Random, rows: number, columns: number): Float32Array<ArrayBuffer> {
  const x = random.f32(rows * columns);
  for (let r = 0; r < rows; r++) {
    const size = [1, 0.01, 30, 1, 0][r % 5]!;
    for (let c = 0; c < columns; c++) x[r * columns + c]! *= size * (c % 61 === 7 ? 40 : 1);
  }
  return x;
}

// ---------------------------------------------------------------- steps

export interface RowSpec { sequence: number; id?: number; position?: number }
export interface SamplerSpec {
  temperature?: number; topK?: number; topP?: number; minP?: number; repetition?: number; presence?: number; frequency?: number;
  seed?: [low: number, high: number]; topLogprobs?: number; mask?: boolean; hold?: boolean; bias?: [start: number, count: number];
}
export interface StepSpec {
  /** A number n: rows 0 ... n - 1 of sequence 0, from position 0 on. */
  rows: number | readonly RowSpec[];
  /** Rows that want logits; default: all. */
  outputs?: readonly number[];
  samplers?: readonly SamplerSpec[];
  pages?: readonly (readonly [table: number, sequence: number, index: number, page: number])[];
  sequences?: readonly { sequence: number; length: number; next: number; history?: readonly number[] }[];
  bias?: readonly (readonly [id: number, value: number])[];
}

let serial = 0;

/** Fills one slot; ids default to row * 7 + 1 within the vocabulary. */
export function fill(slot: StepSlot, spec: StepSpec, vocabulary: number): void {
  const rows = typeof spec.rows === "number" ? Array.from({ length: spec.rows }, (_, i): RowSpec => ({ sequence: 0, position: i })) : spec.rows;
  const outputs = spec.outputs ?? rows.map((_, i) => i);
  slot.header.fill(0);
  slot.header[BAO.HEADER_ROWS] = rows.length;
  slot.header[BAO.HEADER_OUTPUTS] = outputs.length;
  slot.header[BAO.HEADER_PAGE_DELTAS] = spec.pages?.length ?? 0;
  slot.header[BAO.HEADER_SEQUENCE_DELTAS] = spec.sequences?.length ?? 0;
  slot.header[BAO.HEADER_SERIAL] = serial = (serial % 0x7fffffff) + 1;
  rows.forEach((row, i) => {
    slot.rowSequence[i] = row.sequence;
    slot.rowPosition[i] = row.position ?? -1;
    slot.rowId[i] = row.id ?? (row.position === undefined ? -1 : (i * 7 + 1) % vocabulary);
  });
  outputs.forEach((row, i) => { slot.outputRow[i] = row; fillSampler(slot, i, spec.samplers?.[i] ?? {}); });
  spec.pages?.forEach((delta, i) => slot.pageDelta.set(delta, i * 4));
  spec.sequences?.forEach((s, i) => {
    const history = s.history ?? [];
    slot.sequenceDelta.set([s.sequence, s.length, s.next, history.length, ...history], i * 68);
  });
  spec.bias?.forEach(([id, value], i) => { slot.bias[i * 2] = id; slot.biasF32[i * 2 + 1] = value; });
}

function fillSampler(slot: StepSlot, output: number, s: SamplerSpec): void {
  const at = output * BAO.SAMPLER_WORDS, { sampler, samplerF32 } = slot;
  sampler.fill(0, at, at + BAO.SAMPLER_WORDS);
  samplerF32[at + BAO.SAMPLER_TEMPERATURE] = s.temperature ?? 0;
  sampler[at + BAO.SAMPLER_TOP_K] = s.topK ?? 0;
  samplerF32[at + BAO.SAMPLER_TOP_P] = s.topP ?? 1;
  samplerF32[at + BAO.SAMPLER_MIN_P] = s.minP ?? 0;
  samplerF32[at + BAO.SAMPLER_REPETITION] = s.repetition ?? 1;
  samplerF32[at + BAO.SAMPLER_PRESENCE] = s.presence ?? 0;
  samplerF32[at + BAO.SAMPLER_FREQUENCY] = s.frequency ?? 0;
  sampler[at + BAO.SAMPLER_SEED_LOW] = s.seed?.[0] ?? 0;
  sampler[at + BAO.SAMPLER_SEED_HIGH] = s.seed?.[1] ?? 0;
  sampler[at + BAO.SAMPLER_TOP_LOGPROBS] = s.topLogprobs ?? -1;
  sampler[at + BAO.SAMPLER_FLAGS] = (s.mask ? BAO.SAMPLE_MASK : 0) | (s.hold ? BAO.SAMPLE_HOLD : 0);
  sampler[at + BAO.SAMPLER_BIAS_START] = s.bias?.[0] ?? 0;
  sampler[at + BAO.SAMPLER_BIAS_COUNT] = s.bias?.[1] ?? 0;
}

// ---------------------------------------------------------------- rig

export interface ViewSpec {
  rowsOf?: RowsOf;
  /** Bytes before the first row, and between the end of a row and the next: filled with a pattern that no op may change. */
  offsetBytes?: number;
  gapBytes?: number;
  dtype?: "f32" | "i32";
}

/** A device with a step block and a stream, and everything that one scenario makes on them. */
export class Rig {
  readonly step: StepBlock;
  readonly stream: Stream;
  readonly r: Recorder;
  readonly #owned: { dispose(): void }[] = [];
  readonly #guards: { view: View; label: string }[] = [];
  constructor(readonly device: Device, step: Partial<StepOptions> = {}) {
    this.step = this.own(new StepBlock(device, { slots: 2, maxRows: 64, maxOutputs: 64, maxSequences: 8, vocabulary: 97, maxBias: 16, pages: [64], ...step }));
    this.stream = this.own(new Stream(device, this.step));
    this.r = new Recorder(this.stream);
  }
  own<T extends { dispose(): void }>(object: T): T { this.#owned.push(object); return object; }

  /** An empty view of [d0, d1, d2] with guarded gaps. */
  view(d0: number, d1: number, d2: number, spec: ViewSpec = {}): View {
    const row = d1 * d2 * 4, stride = row + (spec.gapBytes ?? 0), offset = spec.offsetBytes ?? 0;
    const buffer = this.own(this.device.buffer(offset + stride * d0 + 64));
    buffer.write(pattern(buffer.bytes));
    const view = this.own(buffer.view(spec.rowsOf ?? "step", d0, d1, d2, { offsetBytes: offset, rowStrideBytes: stride, dtype: spec.dtype ?? "f32" }));
    this.#guards.push({ view, label: `[${d0}, ${d1}, ${d2}] at ${offset} + ${stride} a row` });
    return view;
  }
  /** A view that holds `values`, row after row. */
  input(values: Float32Array | Int32Array, d1: number, d2: number, spec: ViewSpec = {}): View {
    const d0 = values.length / (d1 * d2);
    const view = this.view(d0, d1, d2, { dtype: values instanceof Int32Array ? "i32" : "f32", ...spec });
    this.put(view, values);
    return view;
  }
  put(view: View, values: Float32Array | Int32Array): void {
    const columns = view.d1 * view.d2;
    for (let row = 0; row * columns < values.length; row++) view.buffer.write(values.slice(row * columns, (row + 1) * columns), view.offsetBytes + row * view.rowStrideBytes);
  }
  f32(view: View, rows = view.d0): Float32Array { return view.readF32(rows); }
  i32(view: View, rows = view.d0): Int32Array { return new Int32Array(view.readF32(rows).buffer); }

  weight(spec: WeightSpec): Weight {
    const { file, offset } = weightFile(spec);
    const map = this.own(new WeightMap(this.device, file));
    return this.own(new Weight(map, offset, { dtype: spec.dtype, rows: spec.rows, columns: spec.columns, experts: spec.experts ?? 1 }, spec.use ?? BAO.USE_MATMUL | BAO.USE_ROWS));
  }
  vector(values: Float32Array): VectorWeight { return this.own(new VectorWeight(this.device, values)); }
  pool(options: { table?: number; layers?: number; kvHeads: number; headDim: number; type: KvType; pages: number; maxPages?: number }): KvPool {
    const pool = this.own(new KvPool(this.device, { table: options.table ?? 0, layers: options.layers ?? 1, kvHeads: options.kvHeads, headDim: options.headDim, type: options.type, maxPages: options.maxPages ?? options.pages }));
    pool.commit(options.pages);
    return pool;
  }

  /** Records, submits and waits. */
  run(step: StepSpec, body: (r: Recorder) => void): void {
    this.stream.record(() => body(this.r));
    this.submit(step);
  }
  /** Submits the current recording with slot 0 and waits; throws unless it ends as done. */
  submit(step: StepSpec, stream = this.stream): void {
    fill(this.step.slots[0]!, step, this.step.options.vocabulary);
    this.resubmit(stream);
  }
  /** Submits what the slot holds. */
  resubmit(stream = this.stream): void {
    stream.submit(0);
    let state = stream.wait(0, 20_000);
    // A checker, or an emulated device on a busy machine, takes minutes.
    if (state === "pending") state = stream.wait(0, TEST_BACKEND === "metal" || ONCE ? 1_200_000 : 60_000);
    if (state !== "done") throw new Error(`the submit ended as ${state}`);
  }
  /** Fails when a byte outside the rows of any view changed. */
  checkGuards(): void {
    for (const { view, label } of this.#guards) {
      if (view.disposed) continue;
      const bytes = new Uint8Array(new ArrayBuffer(view.buffer.bytes)), expected = pattern(bytes.length), row = view.d1 * view.d2 * 4;
      view.buffer.read(bytes);
      let from = 0;
      for (let r = 0; r <= view.d0; r++) {
        const to = r < view.d0 ? view.offsetBytes + r * view.rowStrideBytes : bytes.length;
        if (Buffer.compare(bytes.subarray(from, to), expected.subarray(from, to)) !== 0) throw new Error(`view ${label}: bytes ${from} to ${to}, outside its rows, were written`);
        from = to + row;
      }
    }
  }
  dispose(): void { for (const object of this.#owned.toReversed()) object.dispose(); this.#owned.length = 0; }
}

// Bytes that read as unlikely floats: a kernel that reads or writes beside its rows shows. Grown once, never written again.
let patternBytes = new Uint8Array(0);
function pattern(bytes: number): Uint8Array {
  if (patternBytes.length < bytes) {
    patternBytes = new Uint8Array(new ArrayBuffer(2 * bytes));
    for (let i = 0; i < patternBytes.length; i++) patternBytes[i] = 0x7b ^ (i * 37 & 0x1f);
  }
  return patternBytes.subarray(0, bytes);
}

export type Outputs = Record<string, Float32Array | Int32Array>;
/** Plays one scenario; what it returns is compared between devices. Must depend on nothing but the rig. */
export type Scenario = (rig: Rig) => Outputs;

const played = new WeakMap<Scenario, Map<Device, Outputs>>();

/** Outputs that are made when somebody looks at them. */
function lazily(make: () => Outputs): Outputs {
  let made: Outputs | undefined;
  const outputs = (): Outputs => made ??= make();
  return new Proxy({}, { get: (_, name) => Reflect.get(outputs(), name), has: (_, name) => name in outputs(), ownKeys: () => Reflect.ownKeys(outputs()), getOwnPropertyDescriptor: (_, name) => Object.getOwnPropertyDescriptor(outputs(), name) });
}

/** Plays a scenario on a device; no view may be written outside its rows. */
export function play(device: Device, scenario: Scenario, step: Partial<StepOptions> = {}): Outputs {
  if (!ONCE) return playNow(device, scenario, step);
  if (device.backend !== TEST_BACKEND) return lazily(() => playNow(device, scenario, step));
  const devices = played.get(scenario) ?? new Map<Device, Outputs>(), outputs = devices.get(device) ?? playNow(device, scenario, step);
  played.set(scenario, devices.set(device, outputs));
  return outputs;
}

/** The same under a checker as without: for scenarios that leave results beside their outputs. */
export function playNow(device: Device, scenario: Scenario, step: Partial<StepOptions> = {}): Outputs {
  const rig = new Rig(device, step);
  try {
    const outputs = scenario(rig);
    rig.checkGuards();
    return outputs;
  } finally {
    rig.dispose();
  }
}

// ---------------------------------------------------------------- comparison

/**
 * `bound`, or more where a device multiplies more than 16 rows on tensor cores: weights are f16 there, their scale, minimum and element each rounded by
 * up to 2^-12; an output that hangs on a few large ones differs by several of that.
 */
export const manyRows = (bound: number, precision: Precision, rows: number): number => !ON_CPU && precision === "fast-bf16" && rows > 16 ? Math.max(bound, 1e-2) : bound;

/** Bit for bit (NaNs of any payload are equal). */
export const EXACT_BITS = 0;

/** Metal may flush denormal floats (below 2^-126), and products of them: smaller values than this agree. Elsewhere they count like any other. */
const FLUSHED = TEST_BACKEND === "metal" ? 2 ** -118 : 0;

export interface Difference { maxAbs: number; maxRel: number; firstBad: number; found: number; expected: number }

/** Largest difference, absolute and relative to the largest value of the output (or to `floor`); `tolerance` bounds the relative one. NaN equals NaN only. */
export function difference(found: ArrayLike<number>, expected: ArrayLike<number>, tolerance: number, floor = 0): Difference {
  let norm = floor;
  for (let i = 0; i < expected.length; i++) { const v = Math.abs(expected[i]!); if (v > norm && v < Infinity) norm = v; }
  if (norm === 0) norm = 1;
  const d: Difference = { maxAbs: 0, maxRel: 0, firstBad: found.length === expected.length ? -1 : Math.min(found.length, expected.length), found: NaN, expected: NaN };
  for (let i = 0; i < Math.min(found.length, expected.length); i++) {
    const a = found[i]!, b = expected[i]!;
    if (Object.is(a, b) || (Math.abs(a) < FLUSHED && Math.abs(b) < FLUSHED)) continue;
    const abs = Number.isFinite(a) && Number.isFinite(b) ? Math.abs(a - b) : a === b ? 0 : Infinity;
    if (abs > d.maxAbs) { d.maxAbs = abs; d.maxRel = abs / norm; }
    const bad = tolerance === EXACT_BITS ? true : abs / norm > tolerance;
    if (bad && d.firstBad < 0) { d.firstBad = i; d.found = a; d.expected = b; }
  }
  return d;
}

/** Fails with max abs, max rel and the first bad index when an output differs by more than `tolerance` of the output's largest value. */
export function expectClose(found: Outputs, expected: Outputs, tolerance: number | Record<string, number>, label: string, floor = 0): void {
  if (ONCE) return;
  expect(Object.keys(found)).toEqual(Object.keys(expected));
  for (const name of Object.keys(expected)) {
    const bound = typeof tolerance === "number" ? (expected[name] instanceof Int32Array ? EXACT_BITS : tolerance) : tolerance[name] ?? EXACT_BITS;
    const d = difference(found[name]!, expected[name]!, bound, floor);
    if (d.firstBad >= 0) {
      throw new Error(`${label}: ${name} differs: max abs ${d.maxAbs.toExponential(3)}, max rel ${d.maxRel.toExponential(3)} (allowed ${bound}), first bad index ${d.firstBad} of ${expected[name]!.length}: ${d.found}, expected ${d.expected}`);
    }
  }
}

export interface ParityOptions extends TestDevice {
  step?: Partial<StepOptions>;
  label?: string;
  /** Differences are relative to the output's largest value, or to this where it is larger. */
  floor?: number;
}

/** Plays the scenario on the device under test and on the plain reference, and compares. Gives the outputs of the device under test. */
export function parity(scenario: Scenario, tolerance: number | Record<string, number>, options: ParityOptions = {}): Outputs {
  const expected = play(oracle(options.precision ?? "exact"), scenario, options.step);
  for (const isa of options.isa ? [options.isa] : isas()) {
    const found = play(subject({ ...options, isa }), scenario, options.step);
    expectClose(found, expected, tolerance, `${options.label ?? "scenario"} on ${isa}`, options.floor);
    if (isa === isas().at(-1)) return found;
  }
  return expected;
}
