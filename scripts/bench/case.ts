// What a microbenchmark is: one op of kernels/bao.h at one shape of one model, with the bytes and operations that it cannot avoid.
// Types and a few names only; nothing here runs.
import { ggmlType, type GgmlTypeName } from "../../src/gguf/index.ts";
import type { ModelName } from "./models.ts";
import type { BenchRig, StepShape } from "./rig.ts";

/** The ops in the recording of one pass: op(i) records one of them, with the operands of copy i % copies. */
export interface Prepared {
  /** Sets of operands that lie apart in memory, so that a pass over all of them finds none in a cache. 1: operands stay where they are. */
  readonly copies: number;
  op(copy: number): void;
}

export interface BenchCase {
  /** Name in bao.h without its prefix. */
  readonly op: string;
  readonly model: ModelName;
  /** Where in the model: "ffn", "attention global". */
  readonly site: string;
  /** Type of the weight, or of the KV cache; "f32" for ops that have neither. Lower case. */
  readonly dtype: string;
  readonly rows: number;
  /** For people: "6144 x 1536". */
  readonly shape: string;
  readonly step: StepShape;
  /** Least traffic of one op: every operand once. */
  readonly bytes: number;
  /** Multiplications and additions of one op; 0 where nobody counts them. */
  readonly flops: number;
  /** Weights or KV of one op: what copies are made of. */
  readonly coldBytes: number;
  /** Bytes that prepare takes beyond the copies. */
  readonly memory?: number;
  /** The type or variant that a Q4_K_M file of this model has here: what the default set runs. */
  readonly usual: boolean;
  prepare(rig: BenchRig): Prepared;
}

/** Rows of a step: one sequence decoding, small batches, a prefill chunk. */
export const DECODE_ROWS = [1, 8, 32] as const;
export const PREFILL_ROWS = 512;
export const ALL_ROWS = [...DECODE_ROWS, PREFILL_ROWS] as const;

/** Weight types that kernels run. */
export const WEIGHT_TYPES = [
  "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
] as const satisfies readonly GgmlTypeName[];

/** The step of a case without KV: `rows` sequences of one row, or one sequence with all of them. */
export const plainStep = (rows: number): StepShape => ({ rows, prefill: rows === PREFILL_ROWS, depth: 0 });

export type WeightType = (typeof WEIGHT_TYPES)[number];

/** Types whose blocks divide rows of so many columns. */
export const typesFor = (columns: number): readonly WeightType[] => WEIGHT_TYPES.filter((t) => columns % ggmlType(t).blockElements === 0);

/** The type of most matrices of a Q4_K_M file; rows that are no whole blocks of it get Q5_0. */
export const usualType = (columns: number): WeightType => (columns % 256 === 0 ? "Q4_K" : "Q5_0");
