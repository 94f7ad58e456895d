// The shapes of the released Gemma 4 sizes and of the demo model, as configurations that the converter's rules understand.
// Numbers only: no weights, no files.

import { UsageError } from "../errors.ts";
import type { SourceConfig, SourceLayer } from "./checkpoint.ts";

/** What differs between the sizes; the rest of a Gemma 4 is the same everywhere. */
interface Size {
  readonly layers: number;
  /** The last of so many layers attends to everything, and so does the model's last layer. */
  readonly period: number;
  readonly hidden: number;
  readonly heads: number;
  readonly kvHeads: readonly [sliding: number, global: number];
  readonly headDim: readonly [sliding: number, global: number];
  readonly window: number;
  readonly ffn: number;
  /** Layers without KV of their own have an FFN twice as wide. */
  readonly doubleWide?: boolean;
  readonly kEqualsV: boolean;
  readonly sharedKvLayers: number;
  readonly perLayerWidth: number;
  readonly moe?: { readonly experts: number; readonly used: number; readonly ffn: number };
  readonly vocabulary: number;
  readonly contextLength: number;
}

const E_SERIES = { headDim: [256, 512], window: 512, kEqualsV: false, perLayerWidth: 256, vocabulary: 262_144, contextLength: 131_072 } as const;
const LARGE = { headDim: [256, 512], window: 1024, kEqualsV: true, sharedKvLayers: 0, perLayerWidth: 0, vocabulary: 262_144, contextLength: 262_144 } as const;

const SIZES = {
  e2b: { ...E_SERIES, layers: 35, period: 5, hidden: 1536, heads: 8, kvHeads: [1, 1], ffn: 6144, doubleWide: true, sharedKvLayers: 20 },
  e4b: { ...E_SERIES, layers: 42, period: 6, hidden: 2560, heads: 8, kvHeads: [2, 2], ffn: 10_240, sharedKvLayers: 18 },
  "12b": { ...LARGE, layers: 48, period: 6, hidden: 3840, heads: 16, kvHeads: [8, 1], ffn: 15_360 },
  "26b-a4b": { ...LARGE, layers: 30, period: 6, hidden: 2816, heads: 16, kvHeads: [8, 2], ffn: 2112, moe: { experts: 128, used: 8, ffn: 704 } },
  "31b": { ...LARGE, layers: 60, period: 6, hidden: 5376, heads: 32, kvHeads: [16, 4], ffn: 21_504 },
  demo: {
    layers: 8, period: 4, hidden: 256, heads: 4, kvHeads: [2, 1], headDim: [64, 128], window: 256, ffn: 512, kEqualsV: true, sharedKvLayers: 0,
    perLayerWidth: 0, moe: { experts: 8, used: 2, ffn: 192 }, vocabulary: 4096, contextLength: 4096,
  },
} as const satisfies Record<string, Size>;

/** Names that `shapeConfig` knows. */
export type ShapeName = keyof typeof SIZES;
export const SHAPE_NAMES = Object.keys(SIZES) as readonly ShapeName[];

/** The shape of this name in any case. Throws UsageError `unknown_shape`. */
export function shapeName(name: string): ShapeName {
  const key = name.toLowerCase();
  if (Object.hasOwn(SIZES, key)) return key as ShapeName;
  throw new UsageError("unknown_shape", `${name} is no shape`, `Choose one of ${SHAPE_NAMES.join(", ")}.`);
}

/**
 * The configuration of a size; `layers` and `vocabulary` make it smaller (or larger) and keep its pattern: the kinds of layers, and the share of
 * layers that read another one's KV.
 */
export function shapeConfig(name: ShapeName, change: { layers?: number | undefined; vocabulary?: number | undefined } = {}): SourceConfig {
  const size: Size = SIZES[name], count = change.layers ?? size.layers, vocabulary = change.vocabulary ?? size.vocabulary;
  if (!Number.isInteger(count) || count < 1) throw new UsageError("bad_option", `layers: expected a whole number from 1, found ${count}`);
  if (!Number.isInteger(vocabulary) || vocabulary < 1) throw new UsageError("bad_option", `vocab: expected a whole number from 1, found ${vocabulary}`);
  // Layers that share read the last owner of their kind, so the owners end with a whole period.
  const owners = Math.min(count, Math.max(1, Math.ceil((count * (size.layers - size.sharedKvLayers)) / size.layers / size.period)) * size.period);
  const layers = Array.from({ length: count }, (_, l): SourceLayer => {
    const sliding = (l + 1) % size.period !== 0 && l !== count - 1, kind = sliding ? 0 : 1, ownsKv = l < owners;
    return {
      sliding, ownsKv, headDim: size.headDim[kind], kvHeads: size.kvHeads[kind], kEqualsV: size.kEqualsV && !sliding,
      ffn: size.doubleWide && !ownsKv ? 2 * size.ffn : size.ffn,
    };
  });
  return {
    vocabulary, hidden: size.hidden, heads: size.heads, contextLength: size.contextLength, eps: 1e-6, window: size.window, layers,
    slidingHeadDim: size.headDim[0], globalHeadDim: size.headDim[1], slidingRopeBase: 10_000, globalRopeBase: 1_000_000, globalRotaryFactor: 0.25,
    softcap: 30, sharedKvLayers: count - owners, perLayerWidth: size.perLayerWidth, moe: size.moe, tied: true,
    tokens: { bos: 2, eos: [1, 106].filter((id) => id < vocabulary), pad: 0 },
  };
}
