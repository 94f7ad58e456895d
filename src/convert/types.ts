// The element type of every tensor of a converted file. The rules give the same types as llama-quantize without an importance matrix, so that
// a file of ours and one from there are comparable; docs/convert.md lists them. Looks at names and shapes only.

import { UsageError } from "../errors.ts";
import { ggmlType, type GgmlTypeName } from "../gguf/index.ts";

/** What `--type` accepts: `general.file_type` id and the type that most matrices get. */
export const FILE_TYPES = {
  f32: { id: 0, base: "F32" },
  f16: { id: 1, base: "F16" },
  bf16: { id: 32, base: "BF16" },
  q8_0: { id: 7, base: "Q8_0" },
  q4_0: { id: 2, base: "Q4_0" },
  q5_0: { id: 8, base: "Q5_0" },
  q6_k: { id: 18, base: "Q6_K" },
  q4_k_m: { id: 15, base: "Q4_K" },
  q5_k_m: { id: 17, base: "Q5_K" },
} as const satisfies Record<string, { id: number; base: GgmlTypeName }>;

export type FileType = keyof typeof FILE_TYPES;

/** The file type of this name in any case. Throws UsageError `convert_type`. */
export function fileType(name: string): FileType {
  const key = name.toLowerCase();
  if (Object.hasOwn(FILE_TYPES, key)) return key as FileType;
  throw new UsageError("convert_type", `${name} is no type to convert to`, `Choose one of ${Object.keys(FILE_TYPES).join(", ")}.`);
}

/** What the rules need to know of a tensor. */
export interface TypedTensor {
  readonly name: string;
  /** ne order. */
  readonly shape: readonly number[];
  /** Type of the values that it is made from. */
  readonly source: "F32" | "F16" | "BF16";
}

/** Block types that need rows of 256, and what takes their place in other rows. */
const FALLBACK: Partial<Record<GgmlTypeName, GgmlTypeName>> = { Q4_K: "Q5_0", Q5_K: "Q5_1", Q6_K: "Q8_0" };

/**
 * Type of every tensor of a file with `layers` blocks and `experts` experts (0 = dense), by name. Pass all tensors of the file: the mixes
 * count how many blocks have an attn_v.
 */
export function chooseTypes(tensors: readonly TypedTensor[], type: FileType, layers: number, experts: number): Map<string, GgmlTypeName> {
  const { base } = FILE_TYPES[type];
  const quantised = ggmlType(base).blockElements > 1;
  const tied = !tensors.some((t) => t.name === "output.weight");
  // The place of a block's attn_v among those that exist: K = V blocks have none and are not counted.
  const valueBlocks = tensors.filter((t) => t.name.endsWith(".attn_v.weight")).map((t) => blockOf(t.name)).sort((a, b) => a - b);
  const types = new Map<string, GgmlTypeName>();
  for (const tensor of tensors) {
    const { name, shape } = tensor;
    if (staysF32(name, shape)) types.set(name, "F32");
    else if (!quantised) types.set(name, base);
    // llama-quantize leaves it as the file before had it; that is the checkpoint's own precision here, so nothing is lost.
    else if (name === "per_layer_model_proj.weight") types.set(name, tensor.source);
    else types.set(name, fitted(mixed(name, shape, type, { base, tied, layers, experts, valueBlocks }), shape));
  }
  return types;
}

/** Vectors, norms, scales and the router decide more than they weigh. */
function staysF32(name: string, shape: readonly number[]): boolean {
  return shape.length < 2 || !name.endsWith(".weight") || name.endsWith("_norm.weight") || name.endsWith("ffn_gate_inp.weight");
}

interface Mix {
  readonly base: GgmlTypeName;
  readonly tied: boolean;
  readonly layers: number;
  readonly experts: number;
  readonly valueBlocks: readonly number[];
}

function mixed(name: string, shape: readonly number[], type: FileType, mix: Mix): GgmlTypeName {
  const { base } = mix;
  const medium = type === "q4_k_m" || type === "q5_k_m";
  const embedding = name === "token_embd.weight" || name === "per_layer_token_embd.weight";
  // A tied embedding is the output matrix as well, and is stored as that one would be.
  if (name === "output.weight" || (embedding && mix.tied)) {
    return base === "Q8_0" || shape[0]! % ggmlType(base).blockElements !== 0 ? "Q8_0" : "Q6_K";
  }
  const part = name.slice(name.indexOf(".", "blk.".length) + 1);
  const small = mix.experts === 8;
  if (part === "attn_v.weight") {
    if (small) return "Q8_0";
    return medium && moreBits(mix.valueBlocks.indexOf(blockOf(name)), mix.valueBlocks.length) ? "Q6_K" : base;
  }
  if (part === "attn_k.weight") return small ? "Q8_0" : base;
  if (part === "attn_output.weight") return small && type === "q4_k_m" ? "Q5_K" : base;
  if (part.startsWith("ffn_down")) return medium && moreBits(blockOf(name), mix.layers) ? "Q6_K" : base;
  return base;
}

/** The first and last eighth of the blocks, and every third one between. */
function moreBits(index: number, count: number): boolean {
  const eighth = Math.floor(count / 8);
  return index < eighth || index >= Math.floor((7 * count) / 8) || (index - eighth) % 3 === 2;
}

/** `type`, or what takes its place when the rows are no whole blocks. */
function fitted(type: GgmlTypeName, shape: readonly number[]): GgmlTypeName {
  const fits = (t: GgmlTypeName): boolean => shape[0]! % ggmlType(t).blockElements === 0;
  if (fits(type)) return type;
  const other = FALLBACK[type];
  return other !== undefined && fits(other) ? other : "F16";
}

function blockOf(name: string): number {
  return Number(/^blk\.(\d+)\./.exec(name)?.[1] ?? -1);
}
