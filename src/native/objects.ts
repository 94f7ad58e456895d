// Native objects as disposable TypeScript objects: device, buffers, views, file maps, weights, KV pools, step blocks, streams.
// Each owns one handle; use after dispose throws DisposedError. Nothing here knows about models.
import { toArrayBuffer, type Pointer } from "bun:ffi";
import { BaoError, DisposedError, ResourceError, UsageError } from "../errors.ts";
import { openHost, openLibrary, statusError, type BackendName } from "./library.ts";
import { BAO, type Handle, type Kernels } from "./symbols.ts";

export type Precision = "exact" | "fast" | "fast-int8" | "fast-bf16";
export type Isa = "auto" | "base" | "avx2" | "avx512" | "neon";
/** Which count of the step a view's rows follow. */
export type RowsOf = "fixed" | "step" | "output";

const ISA: Record<Isa, number> = { auto: BAO.ISA_AUTO, base: BAO.ISA_BASE, avx2: BAO.ISA_AVX2, avx512: BAO.ISA_AVX512, neon: BAO.ISA_NEON };
const PRECISION: Record<Precision, number> = { exact: BAO.EXACT, fast: BAO.FAST, "fast-int8": BAO.FAST_INT8, "fast-bf16": BAO.FAST_BF16 };
const ROWS_OF: Record<RowsOf, number> = { fixed: BAO.ROWS_FIXED, step: BAO.ROWS_STEP, output: BAO.ROWS_OUTPUT };

/** Memory at a native address as an ArrayBuffer, not copied; valid only while its owner lives. At most 4 GiB. */
function memoryAt(address: number, bytes: number): ArrayBuffer {
  return toArrayBuffer(address as Pointer, 0, bytes) as ArrayBuffer;
}

abstract class NativeObject {
  #handle: Handle;
  constructor(handle: Handle, private readonly what: string, private readonly free: (h: Handle) => void) {
    this.#handle = handle;
  }
  /** The live handle; throws DisposedError after dispose. */
  get handle(): Handle {
    if (this.#handle === 0) throw new DisposedError(this.what);
    return this.#handle;
  }
  get disposed(): boolean { return this.#handle === 0; }
  dispose(): void {
    const h = this.#handle;
    if (h === 0) return;
    this.#handle = 0;
    this.free(h);
  }
  [Symbol.dispose](): void { this.dispose(); }
}

export interface DeviceOptions {
  backend?: BackendName;
  index?: number;
  /** CPU threads, the waiting one included; 0 = all cores available. */
  threads?: number;
  isa?: Isa;
  precision?: Precision;
  /** Every op by its plain reference (CPU only). */
  reference?: boolean;
}

/** What a device says of itself. */
export interface DeviceInfo { name: string; backend: string; isa: string; threads: number; precision: string; memory: number }

// JavaScript turns an unknown name into undefined and then into 0, which C takes for a valid value.
function checkNames(o: DeviceOptions): void {
  const known = (name: string, value: string | undefined, names: readonly string[]): void => {
    if (value !== undefined && !names.includes(value)) throw new UsageError("bad_option", `device.${name}: expected ${names.join(", ")}, found ${value}`);
  };
  known("backend", o.backend, ["cpu", "cuda", "metal"]);
  known("isa", o.isa, Object.keys(ISA));
  known("precision", o.precision, Object.keys(PRECISION));
  if (o.threads !== undefined && (!Number.isInteger(o.threads) || o.threads < 0 || o.threads > 256)) throw new UsageError("bad_option", `device.threads: expected 0 (all cores) to 256, found ${o.threads}`);
  if (o.index !== undefined && (!Number.isInteger(o.index) || o.index < 0)) throw new UsageError("bad_option", `device.index: expected a whole number from 0, found ${o.index}`);
}

/** An opened device. Disposing it frees everything that was made on it. */
export class Device extends NativeObject {
  readonly k: Kernels;
  readonly backend: BackendName;
  readonly precision: Precision;
  readonly info: DeviceInfo;
  readonly caps: number;
  constructor(options: DeviceOptions = {}) {
    checkNames(options);
    const backend = options.backend ?? "cpu";
    const { k } = openLibrary(backend);
    const precision = options.precision ?? "fast";
    super(k.deviceOpen(options.index ?? 0, options.threads ?? 0, ISA[options.isa ?? "auto"], PRECISION[precision], options.reference ? BAO.OPEN_REFERENCE : 0),
      "Device", (h) => k.deviceClose(h));
    this.k = k;
    this.backend = backend;
    this.precision = precision;
    this.info = JSON.parse(k.deviceInfo(this.handle)) as DeviceInfo;
    this.caps = k.caps(this.handle);
  }
  /** Bytes in use for `what`. */
  memory(what: "total" | "free" | "buffers" | "kv" | "scratch" | "weights"): number {
    const codes = { total: BAO.MEMORY_TOTAL, free: BAO.MEMORY_FREE, buffers: BAO.MEMORY_BUFFERS, kv: BAO.MEMORY_KV, scratch: BAO.MEMORY_SCRATCH, weights: BAO.MEMORY_WEIGHTS };
    return this.k.memory(this.handle, codes[what]);
  }
  buffer(bytes: number, hostVisible = false): DeviceBuffer { return new DeviceBuffer(this, bytes, hostVisible); }
}

/** Zeroed device memory. */
export class DeviceBuffer extends NativeObject {
  readonly #address: number;
  constructor(readonly device: Device, readonly bytes: number, readonly hostVisible: boolean) {
    const { k } = device;
    super(k.bufferCreate(device.handle, bytes, hostVisible ? BAO.BUFFER_HOST_VISIBLE : BAO.BUFFER_DEVICE), "Buffer", (h) => k.bufferFree(h));
    this.#address = k.bufferAddress(this.handle);
  }
  /** The memory itself, for host-visible buffers; valid between steps and until dispose. */
  get memory(): ArrayBuffer {
    void this.handle;
    if (!this.#address) throw new BaoError("not_host_visible", "This buffer has no host address", "Create it host-visible, or use read().");
    return memoryAt(this.#address, this.bytes);
  }
  /** Copies bytes out after all submitted work. */
  read(into: NodeJS.TypedArray, offsetBytes = 0): void { this.device.k.bufferRead(this.handle, offsetBytes, into, into.byteLength); }
  write(from: NodeJS.TypedArray, offsetBytes = 0): void { this.device.k.bufferWrite(this.handle, offsetBytes, from, from.byteLength); }
  /** A view [d0 rows, d1, d2]; rows are rowStrideBytes apart (default: packed). */
  view(rowsOf: RowsOf, d0: number, d1: number, d2: number, options: { offsetBytes?: number; rowStrideBytes?: number; dtype?: "f32" | "i32" } = {}): View {
    return new View(this, rowsOf, d0, d1, d2, options.offsetBytes ?? 0, options.rowStrideBytes ?? d1 * d2 * 4, options.dtype ?? "f32");
  }
}

/** A shaped window of a buffer: [d0 rows, d1, d2]. */
export class View extends NativeObject {
  constructor(readonly buffer: DeviceBuffer, readonly rowsOf: RowsOf, readonly d0: number, readonly d1: number, readonly d2: number,
    readonly offsetBytes: number, readonly rowStrideBytes: number, readonly dtype: "f32" | "i32") {
    const { k } = buffer.device;
    super(k.viewCreate(buffer.handle, offsetBytes, dtype === "f32" ? BAO.F32 : BAO.I32, ROWS_OF[rowsOf], d0, d1, d2, rowStrideBytes), "View", (h) => k.viewFree(h));
  }
  /** Copies `rows` rows out, packed: [rows, d1 * d2]. */
  readF32(rows: number): Float32Array {
    const columns = this.d1 * this.d2;
    const out = new Float32Array(new ArrayBuffer(rows * columns * 4));
    if (this.rowStrideBytes === columns * 4) this.buffer.read(out, this.offsetBytes);
    else for (let r = 0; r < rows; r++) this.buffer.read(out.subarray(r * columns, (r + 1) * columns), this.offsetBytes + r * this.rowStrideBytes);
    return out;
  }
}

/** A file mapped read-only in C. */
export class FileMap extends NativeObject {
  readonly address: number;
  readonly bytes: number;
  constructor(readonly path: string) {
    const host = openHost();
    super(host.fileOpen(path), `Map of ${path}`, (h) => host.fileClose(h));
    this.address = host.fileAddress(this.handle);
    this.bytes = host.fileBytes(this.handle);
  }
  /** A private, writable view of file bytes; no copy until written. Close it with `close` when done (at most 4 GiB). */
  view(offsetBytes: number, bytes: number): { memory: ArrayBuffer; close(): void } {
    const host = openHost();
    const address = host.fileView(this.handle, offsetBytes, bytes);
    const { k } = openLibrary("cpu");
    if (address === 0) throw statusError("bao_file_view", k.lastStatus(), k.lastError());
    let open = true;
    return { memory: memoryAt(address, bytes), close: () => { if (open) { open = false; host.fileViewClose(address, 0); } } };
  }
  advise(offsetBytes: number, bytes: number, advice: "normal" | "willNeed" | "sequential" | "dontNeed"): void {
    const codes = { normal: BAO.ADVISE_NORMAL, willNeed: BAO.ADVISE_WILL_NEED, sequential: BAO.ADVISE_SEQUENTIAL, dontNeed: BAO.ADVISE_DONT_NEED };
    openHost().fileAdvise(this.handle, offsetBytes, bytes, codes[advice]);
  }
}

/** A file map as a source of weights for one device. */
export class WeightMap extends NativeObject {
  constructor(readonly device: Device, readonly file: FileMap) {
    const { k } = device;
    super(k.mapCreate(device.handle, file.address, file.bytes), `Weights of ${file.path}`, (h) => k.mapFree(h));
  }
}

export interface WeightShape { dtype: number; rows: number; columns: number; experts?: number }

/** A weight [experts][rows][columns] of a map. */
export class Weight extends NativeObject {
  constructor(readonly map: WeightMap, offsetBytes: number, readonly shape: WeightShape, readonly use: number) {
    const { device } = map, { k } = device;
    super(k.weightCreate(device.handle, map.handle, offsetBytes, shape.dtype, shape.rows, shape.columns, shape.experts ?? 1, use), "Weight", (h) => k.weightFree(h));
  }
  /** Multiplies every matmul output by `factors` (1, or one an expert). */
  scaleBy(factors: Weight): void { this.map.device.k.weightScale(this.handle, factors.handle); }
}

/** A VECTOR weight of computed values. */
export class VectorWeight extends NativeObject {
  constructor(device: Device, values: Float32Array) {
    const { k } = device;
    super(k.vectorCreate(device.handle, values, values.length), "Weight", (h) => k.weightFree(h));
  }
}

export type KvType = "f32" | "f16" | "q8_0";
const KV_TYPE: Record<KvType, number> = { f32: BAO.F32, f16: BAO.F16, q8_0: BAO.Q8_0 };

export interface KvPoolOptions { table: number; layers: number; kvHeads: number; headDim: number; type: KvType; maxPages: number }

/** Pages of 64 tokens for the layers of one kind. */
export class KvPool extends NativeObject {
  readonly pageBytes: number;
  constructor(readonly device: Device, readonly options: KvPoolOptions) {
    const { k } = device, o = options;
    super(k.kvPoolCreate(device.handle, o.table, o.layers, o.kvHeads, o.headDim, KV_TYPE[o.type], BAO.KV_PLAIN, 0, o.maxPages), "KV pool", (h) => k.kvPoolFree(h));
    this.pageBytes = k.kvPageBytes(this.handle);
  }
  commit(pages: number): void { this.device.k.kvPoolCommit(this.handle, pages); }
  copyPage(destination: number, source: number, tokens: number): void { this.device.k.kvPageCopy(this.handle, destination, source, tokens); }
  readPage(page: number, into: Uint8Array): void { this.device.k.kvPageRead(this.handle, page, into, into.byteLength); }
  writePage(page: number, from: Uint8Array): void { this.device.k.kvPageWrite(this.handle, page, from, from.byteLength); }
}

export interface StepOptions { slots: number; maxRows: number; maxOutputs: number; maxSequences: number; vocabulary: number; maxBias: number; pages: number[] }

/** One host slot of a step block, as typed views. */
export interface StepSlot {
  readonly header: Int32Array;
  readonly rowSequence: Int32Array;
  readonly rowId: Int32Array;
  readonly rowPosition: Int32Array;
  readonly outputRow: Int32Array;
  readonly sampler: Int32Array;
  readonly samplerF32: Float32Array;
  readonly pageDelta: Int32Array;
  readonly sequenceDelta: Int32Array;
  readonly bias: Int32Array;
  readonly biasF32: Float32Array;
  readonly result: Int32Array;
  readonly resultF32: Float32Array;
}

/** What changes from step to step, in host memory that C reads at submit. */
export class StepBlock extends NativeObject {
  readonly slots: readonly StepSlot[];
  constructor(readonly device: Device, readonly options: StepOptions) {
    const { k } = device, o = options;
    super(k.stepCreate(device.handle, o.slots, o.maxRows, o.maxOutputs, o.maxSequences, o.vocabulary, o.maxBias, o.pages[0] ?? 0, o.pages[1] ?? 0, o.pages[2] ?? 0, o.pages[3] ?? 0),
      "Step block", (h) => k.stepFree(h));
    const field = (f: number): number => k.stepField(this.handle, f);
    const bytes = field(BAO.FIELD_END);
    this.slots = Array.from({ length: o.slots }, (_, s): StepSlot => {
      const memory = memoryAt(k.stepAddress(this.handle, s), bytes);
      const part = (f: number): [ArrayBuffer, number, number] => [memory, field(f), (field(f + 1) - field(f)) >> 2];
      return {
        header: new Int32Array(...part(BAO.FIELD_HEADER)), rowSequence: new Int32Array(...part(BAO.FIELD_ROW_SEQUENCE)),
        rowId: new Int32Array(...part(BAO.FIELD_ROW_ID)), rowPosition: new Int32Array(...part(BAO.FIELD_ROW_POSITION)),
        outputRow: new Int32Array(...part(BAO.FIELD_OUTPUT_ROW)),
        sampler: new Int32Array(...part(BAO.FIELD_OUTPUT_SAMPLER)), samplerF32: new Float32Array(...part(BAO.FIELD_OUTPUT_SAMPLER)),
        pageDelta: new Int32Array(...part(BAO.FIELD_PAGE_DELTA)), sequenceDelta: new Int32Array(...part(BAO.FIELD_SEQUENCE_DELTA)),
        bias: new Int32Array(...part(BAO.FIELD_BIAS)), biasF32: new Float32Array(...part(BAO.FIELD_BIAS)),
        result: new Int32Array(...part(BAO.FIELD_RESULT)), resultF32: new Float32Array(...part(BAO.FIELD_RESULT)),
      };
    });
  }
}

/** Recorded work over a step block. */
export class Stream extends NativeObject {
  constructor(readonly device: Device, readonly step: StepBlock) {
    const { k } = device;
    super(k.streamCreate(device.handle, step.handle), "Stream", (h) => k.streamFree(h));
  }
  /** Records what `body` calls. */
  record(body: () => void): void {
    this.device.k.streamBegin(this.handle);
    body();
    this.device.k.streamEnd(this.handle);
  }
  submit(slot: number): void { this.device.k.submit(this.handle, slot); }
  /** Waits up to timeoutMs for a slot's last submit: "done", "pending" or "cancelled"; throws when the work failed. */
  wait(slot: number, timeoutMs: number): "done" | "pending" | "cancelled" {
    const rc = this.device.k.wait(this.handle, slot, timeoutMs);
    if (rc === BAO.OK) return "done";
    if (rc === BAO.PENDING) return "pending";
    if (rc === BAO.CANCELLED) return "cancelled";
    throw statusError("bao_wait", rc, this.device.k.lastError());
  }
}

/** Fails early when the CPU library does not exist, with the hint to build it. */
export function requireKernels(): void {
  if (openLibrary("cpu").k.backend() !== "cpu") throw new ResourceError("kernels_mismatch", "libcpu_kernels is not a CPU library");
}
