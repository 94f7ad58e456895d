// Turns a GGUF file into weights on a device: maps every shard, checks shapes, and makes one weight a tensor, without copying.
import { ModelFileError } from "../errors.ts";
import type { GgufFile, GgufTensor } from "../gguf/index.ts";
import { FileMap, VectorWeight, Weight, WeightMap, type Device } from "../native/objects.ts";
import { BAO } from "../native/symbols.ts";
import type { MatrixUse, WeightSource } from "./weights.ts";

const USE: Record<MatrixUse, number> = { matmul: BAO.USE_MATMUL, rows: BAO.USE_ROWS | BAO.USE_HOST, both: BAO.USE_MATMUL | BAO.USE_ROWS };
const VECTOR_TYPES = new Set(["F32", "F16", "BF16"]);
/** Types that the kernels multiply by (see kernels/bao.h). */
const MATRIX_TYPES = new Set(["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"]);

/** What checking a file against a family found; shared by loading and by estimating. */
export class TensorCheck {
  readonly missing: string[] = [];
  readonly used = new Set<string>();
  constructor(private readonly file: GgufFile) {}

  /** The tensor with exactly this shape, or undefined (and noted) when missing. Throws `tensor_shape` on another shape. */
  take(name: string, shape: readonly number[]): GgufTensor | undefined {
    const t = this.file.tensors.get(name);
    if (!t) { this.missing.push(name); return undefined; }
    this.used.add(name);
    const found = [...t.shape];
    while (found.length > shape.length && found.at(-1) === 1) found.pop();
    while (found.length < shape.length) found.push(1);
    if (found.length !== shape.length || found.some((n, i) => n !== shape[i])) {
      throw new ModelFileError("tensor_shape", `${t.path}: ${name}: expected [${shape.join(", ")}], found [${t.shape.join(", ")}]`, "The file's metadata and tensors disagree: it is damaged or was made by another converter.");
    }
    return t;
  }
  /** As `take`, for a matrix. Throws `tensor_type` for a type that no kernel multiplies by. */
  takeMatrix(name: string, shape: readonly number[]): GgufTensor | undefined {
    const t = this.take(name, shape);
    if (t && !MATRIX_TYPES.has(t.type.name)) {
      throw new ModelFileError("tensor_type", `${t.path}: ${name}: type ${t.type.name} is not supported`, `Supported: ${[...MATRIX_TYPES].join(", ")}.`);
    }
    return t;
  }
  /** Throws `tensor_missing` that lists all missing tensors. */
  finish(): void {
    if (this.missing.length === 0) return;
    const shown = this.missing.slice(0, 8).join(", ") + (this.missing.length > 8 ? ` and ${this.missing.length - 8} more` : "");
    throw new ModelFileError("tensor_missing", `${this.file.path}: ${this.missing.length} tensors are missing: ${shown}`, "The file is incomplete, or is no text model of this architecture.");
  }
  /** Tensors in the file that the graph does not use (encoders of other modalities, unused K/V of shared layers). */
  unused(): string[] { return [...this.file.tensors.keys()].filter((n) => !this.used.has(n)); }
}

/** Weights on a device, over maps that live as long as this object. */
export class DeviceWeights implements WeightSource, Disposable {
  readonly check: TensorCheck;
  readonly #maps: { file: FileMap; map: WeightMap }[];
  readonly #owned: { dispose(): void }[] = [];
  /** Bytes of all weights that were taken. */
  bytes = 0;

  constructor(private readonly device: Device, private readonly file: GgufFile) {
    this.check = new TensorCheck(file);
    this.#maps = file.shards.map((s) => {
      const f = new FileMap(s.path);
      return { file: f, map: new WeightMap(device, f) };
    });
  }
  has(name: string): boolean { return this.file.tensors.has(name); }

  matrix(name: string, columns: number, rows: number, use: MatrixUse = "matmul"): Weight {
    return this.#weight(name, this.check.takeMatrix(name, [columns, rows]), columns, rows, 1, USE[use]);
  }
  experts(name: string, columns: number, rows: number, experts: number): Weight {
    return this.#weight(name, this.check.takeMatrix(name, [columns, rows, experts]), columns, rows, experts, BAO.USE_MATMUL);
  }
  vector(name: string, length: number): Weight {
    const t = this.check.take(name, [length]);
    if (t && !VECTOR_TYPES.has(t.type.name)) {
      throw new ModelFileError("tensor_type", `${t.path}: ${name}: expected F32, F16 or BF16, found ${t.type.name}`, "Norms and scales are not quantised in a valid file.");
    }
    return this.#weight(name, t, length, 1, 1, BAO.USE_VECTOR);
  }
  optionalVector(name: string, length: number): Weight | undefined { return this.has(name) ? this.vector(name, length) : undefined; }
  constant(_name: string, values: Float32Array): Weight {
    const w = new VectorWeight(this.device, values);
    this.#owned.push(w);
    return w as unknown as Weight;
  }
  scalar(name: string, absent: number): number {
    if (!this.has(name)) return absent;
    const t = this.check.take(name, [1])!;
    const view = this.#maps[t.shard]!.file.view(t.offsetBytes, t.bytes);
    try {
      const bytes = new DataView(view.memory);
      switch (t.type.name) {
        case "F32": return bytes.getFloat32(0, true);
        case "F16": return bytes.getFloat16(0, true);
        case "BF16": return new Float32Array(Uint32Array.of(bytes.getUint16(0, true) << 16).buffer)[0]!;
        default: throw new ModelFileError("tensor_type", `${t.path}: ${name}: expected F32, F16 or BF16, found ${t.type.name}`, "Norms and scales are not quantised in a valid file.");
      }
    } finally { view.close(); }
  }

  // Optional factors "<matrix>.scale" multiply the matmul's output: NVFP4 tensor scales and Gemma 4's per-expert scale. The router's
  // "ffn_gate_inp.scale" has the same ending and another meaning (it scales the input, one value a column).
  #weight(name: string, t: GgufTensor | undefined, columns: number, rows: number, experts: number, use: number): Weight {
    if (!t) return undefined as never; // noted as missing; finish() throws before any weight is used
    const w = new Weight(this.#maps[t.shard]!.map, t.offsetBytes, { dtype: t.type.id, rows, columns, experts }, use);
    this.#owned.push(w);
    this.bytes += t.bytes;
    const scale = name.endsWith(".weight") && !name.endsWith("ffn_gate_inp.weight") && use & BAO.USE_MATMUL ? this.file.tensors.get(name.replace(/weight$/, "scale")) : undefined;
    if (scale) {
      const n = scale.shape.reduce((a, b) => a * b, 1);
      w.scaleBy(this.vector(scale.name, n === 1 ? 1 : experts));
    }
    return w;
  }
  /** The map of a shard (for views and page advice). */
  fileOf(shard: number): FileMap { return this.#maps[shard]!.file; }

  dispose(): void {
    for (const o of this.#owned.reverse()) o.dispose();
    this.#owned.length = 0;
    for (const m of this.#maps) { m.map.dispose(); m.file.dispose(); }
    this.#maps.length = 0;
  }
  [Symbol.dispose](): void { this.dispose(); }
}

/** Checks a file against a family without a device or a map; gives the bytes that its weights take. */
export class TensorSizes implements WeightSource<number> {
  readonly check: TensorCheck;
  bytes = 0;
  /** Bytes of matrices that a decoded token reads whole (experts counted in full; see `expertBytes`). */
  matmulBytes = 0;
  expertBytes = 0;
  constructor(private readonly file: GgufFile) { this.check = new TensorCheck(file); }
  #add(t: GgufTensor | undefined): number { this.bytes += t?.bytes ?? 0; return t?.bytes ?? 0; }
  has(name: string): boolean { return this.file.tensors.has(name); }
  matrix(name: string, columns: number, rows: number, use: MatrixUse = "matmul"): number {
    const n = this.#add(this.check.takeMatrix(name, [columns, rows]));
    if (use !== "rows") this.matmulBytes += n;
    return n;
  }
  experts(name: string, columns: number, rows: number, experts: number): number {
    const n = this.#add(this.check.takeMatrix(name, [columns, rows, experts]));
    this.expertBytes += n;
    return n;
  }
  vector(name: string, length: number): number { return this.#add(this.check.take(name, [length])); }
  optionalVector(name: string, length: number): number | undefined { return this.has(name) ? this.vector(name, length) : undefined; }
  constant(_name: string, values: Float32Array): number { return values.byteLength; }
  scalar(name: string, absent: number): number { if (this.has(name)) this.#add(this.check.take(name, [1])); return absent; }
}
