// What a model family provides: configuration from metadata, and the names of its tensors. One file a family.
import { ModelFileError } from "../../errors.ts";
import type { GgufFile } from "../../gguf/index.ts";
import type { ModelConfig } from "../config.ts";
import type { ModelWeights, WeightSource } from "../weights.ts";

export interface Family {
  /** Values of general.architecture that this family runs. */
  readonly architectures: readonly string[];
  /** Reads and checks the hyperparameters. Throws ModelFileError that names the key. */
  configure(file: GgufFile): ModelConfig;
  /** Asks for every tensor that the graph needs. */
  weights<W>(config: ModelConfig, source: WeightSource<W>): ModelWeights<W>;
}

/** Typed reading of `<architecture>.<key>` with bounds; every failure names the key and the value found. */
export class Keys {
  constructor(private readonly file: GgufFile, private readonly prefix: string) {}

  /** A whole number in [min, max]; `absent` when the key does not exist, an error when there is none. */
  int(key: string, min: number, max: number, absent?: number): number {
    const value = this.file.metadata.int(`${this.prefix}.${key}`) ?? absent;
    if (value === undefined) throw this.#missing(key);
    return this.#bounded(key, value, min, max);
  }
  /** A whole, even number in [2, max]: values of a head, or those of it that rotate in pairs. */
  even(key: string, max: number, absent?: number): number {
    const value = this.int(key, 2, max, absent);
    if (value % 2 !== 0) throw this.bad(key, "an even number", value);
    return value;
  }
  /** One number a layer; a scalar counts for all. */
  intEach(key: string, layers: number, min: number, max: number, absent?: number): number[] {
    const values = this.file.metadata.u32Each(`${this.prefix}.${key}`, layers) ?? (absent === undefined ? undefined : new Array<number>(layers).fill(absent));
    if (!values) throw this.#missing(key);
    values.forEach((v) => this.#bounded(key, v, min, max));
    return values;
  }
  /** A finite number above `above`. */
  float(key: string, above: number, absent?: number): number {
    const value = this.file.metadata.f32(`${this.prefix}.${key}`) ?? absent;
    if (value === undefined) throw this.#missing(key);
    if (!Number.isFinite(value) || value <= above) throw this.bad(key, `a finite number above ${above}`, value);
    return value;
  }
  bools(key: string): boolean[] | undefined { return this.file.metadata.bools(`${this.prefix}.${key}`); }
  bad(key: string, expected: string, found: unknown): ModelFileError {
    return new ModelFileError("model_key", `${this.file.path}: ${this.prefix}.${key}: expected ${expected}, found ${String(found)}`, "The file is damaged or was made by a converter that this version does not know.");
  }
  #bounded(key: string, value: number, min: number, max: number): number {
    if (value < min || value > max) throw this.bad(key, `a whole number from ${min} to ${max}`, value);
    return value;
  }
  #missing(key: string): ModelFileError {
    return new ModelFileError("model_key_missing", `${this.file.path}: ${this.prefix}.${key} is missing`, "The file is no complete model of this architecture.");
  }
}

/** Bounds far above any real model, so that a damaged count is refused before anything is allocated by it. `headDim` is the kernels' own. */
export const LIMITS = { layers: 1024, hidden: 1 << 18, heads: 1 << 12, headDim: 1024, ffn: 1 << 20, experts: 1 << 14, context: 1 << 28, vocabulary: 1 << 24 } as const;

/** Rows of the token embedding: the vocabulary that the graph works with. */
export function embeddingRows(file: GgufFile, hidden: number): number {
  const t = file.tensors.get("token_embd.weight");
  if (!t) throw new ModelFileError("tensor_missing", `${file.path}: tensor token_embd.weight is missing`, "The file is no complete model.");
  const rows = t.shape[1] ?? 1;
  if (t.shape[0] !== hidden || rows < 1 || rows > LIMITS.vocabulary) {
    throw new ModelFileError("tensor_shape", `${file.path}: token_embd.weight: expected [${hidden}, vocabulary], found [${t.shape.join(", ")}]`, "The file's metadata and tensors disagree.");
  }
  return rows;
}
