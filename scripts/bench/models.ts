// The shapes that a step of each Gemma 4 size consists of, without repetition. Numbers only.
import { shapeConfig } from "../../src/convert/shapes.ts";
import type { SourceConfig } from "../../src/convert/checkpoint.ts";

export const MODEL_NAMES = ["e2b", "e4b", "12b", "26b-a4b", "31b"] as const;
export type ModelName = (typeof MODEL_NAMES)[number];

/** One kind of attention layer. */
export interface AttentionShape {
  /** "sliding" or "global", with "shared" when its layers read another layer's KV. */
  readonly site: string;
  readonly window: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly nRot: number;
  readonly ropeBase: number;
  readonly ownsKv: boolean;
  readonly kEqualsV: boolean;
}

export interface BenchModel {
  readonly name: ModelName;
  readonly hidden: number;
  readonly vocabulary: number;
  readonly softcap: number;
  readonly eps: number;
  readonly layers: number;
  readonly attention: readonly AttentionShape[];
  /** Widths of the dense FFN. */
  readonly ffns: readonly { readonly site: string; readonly width: number }[];
  readonly perLayerWidth: number;
  readonly moe: SourceConfig["moe"];
}

function modelOf(name: ModelName): BenchModel {
  const c = shapeConfig(name), attention = new Map<string, AttentionShape>(), ffns = new Map<number, { site: string; width: number }>();
  for (const l of c.layers) {
    const site = `${l.sliding ? "sliding" : "global"}${l.ownsKv ? "" : " shared"}`;
    attention.set(site, {
      site, window: l.sliding ? c.window : 0, heads: c.heads, kvHeads: l.kvHeads, headDim: l.headDim, nRot: l.sliding ? l.headDim : l.headDim * c.globalRotaryFactor,
      ropeBase: l.sliding ? c.slidingRopeBase : c.globalRopeBase, ownsKv: l.ownsKv, kEqualsV: l.kEqualsV,
    });
    if (!ffns.has(l.ffn)) ffns.set(l.ffn, { site: ffns.size === 0 ? "ffn" : "wide ffn", width: l.ffn });
  }
  return {
    name, hidden: c.hidden, vocabulary: c.vocabulary, softcap: c.softcap ?? 30, eps: c.eps, layers: c.layers.length,
    attention: [...attention.values()], ffns: [...ffns.values()], perLayerWidth: c.perLayerWidth, moe: c.moe,
  };
}

/** All sizes, smallest first. */
export const MODELS: readonly BenchModel[] = MODEL_NAMES.map(modelOf);
