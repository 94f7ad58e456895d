// config.json of a Hugging Face Gemma 4 checkpoint as plain numbers per layer. Knows both layouts: text only, and multimodal with a nested
// text_config. Never reads tensors; what the tensors must look like follows from this alone, so that a mismatch is an error and no guess.

import { ModelFileError } from "../errors.ts";

/** One layer as the checkpoint has it. */
export interface SourceLayer {
  readonly sliding: boolean;
  readonly headDim: number;
  readonly kvHeads: number;
  /** False on the tail layers that read another layer's cache. */
  readonly ownsKv: boolean;
  /** V is the raw K projection: there is no v_proj. */
  readonly kEqualsV: boolean;
  /** Width of the dense FFN. */
  readonly ffn: number;
}

/** A Gemma 4 text model. */
export interface SourceConfig {
  readonly vocabulary: number;
  readonly hidden: number;
  readonly heads: number;
  readonly contextLength: number;
  readonly eps: number;
  readonly window: number;
  readonly layers: readonly SourceLayer[];
  /** Head sizes of the two kinds; a kind without a layer keeps what config.json says. */
  readonly slidingHeadDim: number;
  readonly globalHeadDim: number;
  readonly slidingRopeBase: number;
  readonly globalRopeBase: number;
  /** Share of a global head that rotates. */
  readonly globalRotaryFactor: number;
  readonly softcap: number | undefined;
  readonly sharedKvLayers: number;
  /** Width of the per-layer embeddings, 0 = none. */
  readonly perLayerWidth: number;
  readonly moe: { readonly experts: number; readonly used: number; readonly ffn: number } | undefined;
  readonly tied: boolean;
  readonly tokens: { readonly bos: number | undefined; readonly eos: readonly number[]; readonly pad: number | undefined };
}

type Json = Record<string, unknown>;

const ARCHITECTURES = new Set(["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration", "Gemma4UnifiedForConditionalGeneration", "Gemma4TextModel"]);
/** Model types of a text model, plain or nested. */
const TEXT_TYPES = new Set(["gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"]);
/** Bounds that only keep damaged files from costing memory; each far above any real model. */
const MAX_LAYERS = 4096;
const MAX_SIZE = 2 ** 31 - 1;

/** Reads one config object with errors that name file, key, expected and found. */
class Reader {
  constructor(
    private readonly json: Json,
    private readonly path: string,
    private readonly prefix = "",
  ) {}

  bad(key: string, expected: string): ModelFileError {
    const found = this.json[key];
    return new ModelFileError(
      "convert_config",
      `${this.path}: ${this.prefix}${key}: expected ${expected}, found ${found === undefined ? "nothing" : JSON.stringify(found).slice(0, 80)}`,
      "The file belongs to another kind of model, or was edited: fetch config.json again.",
    );
  }

  get(key: string): unknown {
    return this.json[key] ?? undefined;
  }

  int(key: string, least: number, fallback?: number): number {
    const value = this.json[key] ?? fallback;
    if (typeof value !== "number" || !Number.isInteger(value) || value < least || value > MAX_SIZE) throw this.bad(key, `a whole number from ${least}`);
    return value;
  }

  number(key: string, fallback?: number): number {
    const value = this.json[key] ?? fallback;
    if (typeof value !== "number" || !Number.isFinite(value) || value <= 0) throw this.bad(key, "a number above 0");
    return value;
  }

  flag(key: string, fallback: boolean): boolean {
    const value = this.json[key] ?? fallback;
    if (typeof value !== "boolean") throw this.bad(key, "true or false");
    return value;
  }

  object(key: string): Reader {
    const value = this.json[key] ?? {};
    if (typeof value !== "object" || Array.isArray(value)) throw this.bad(key, "an object");
    return new Reader(value as Json, this.path, `${this.prefix}${key}.`);
  }
}

/**
 * Reads the parsed config.json (`path` is for messages). Throws ModelFileError `convert_architecture` for another architecture and
 * `convert_config` for a missing or odd value.
 */
export function readConfig(json: unknown, path: string): SourceConfig {
  if (typeof json !== "object" || json === null || Array.isArray(json)) {
    throw new ModelFileError("convert_config", `${path}: expected a JSON object`, "Fetch config.json again.");
  }
  const root = json as Json;
  const architectures = Array.isArray(root["architectures"]) ? root["architectures"].map(String) : [];
  if (architectures.length > 0 ? !architectures.some((a) => ARCHITECTURES.has(a)) : !TEXT_TYPES.has(String(root["model_type"]))) {
    throw new ModelFileError(
      "convert_architecture",
      `${path}: architecture ${architectures.join(", ") || String(root["model_type"])} cannot be converted`,
      `Only Gemma 4 can: ${[...ARCHITECTURES].join(", ")}.`,
    );
  }
  const whole = new Reader(root, path);
  const text = root["text_config"] !== undefined && root["text_config"] !== null ? whole.object("text_config") : whole;
  return readText(text, whole);
}

function readText(text: Reader, whole: Reader): SourceConfig {
  const count = text.int("num_hidden_layers", 1);
  if (count > MAX_LAYERS) throw text.bad("num_hidden_layers", `at most ${MAX_LAYERS}`);
  const kinds = text.get("layer_types");
  if (!Array.isArray(kinds) || kinds.length !== count || kinds.some((k) => k !== "sliding_attention" && k !== "full_attention")) {
    throw text.bad("layer_types", `${count} times sliding_attention or full_attention`);
  }
  const sharedKvLayers = text.int("num_kv_shared_layers", 0, 0);
  if (sharedKvLayers >= count) throw text.bad("num_kv_shared_layers", `less than the ${count} layers`);
  const heads = text.int("num_attention_heads", 1);
  const kEqualsV = text.flag("attention_k_eq_v", false);
  const kvHeads = text.int("num_key_value_heads", 1);
  const headDim = text.int("head_dim", 1);
  const globalHeadDim = text.int("global_head_dim", 1, headDim);
  // transformers uses the separate count on the layers without V only; models that have V everywhere leave it null.
  const globalKvHeads = kEqualsV ? text.int("num_global_key_value_heads", 1, kvHeads) : kvHeads;
  const ffn = text.int("intermediate_size", 1);
  const doubleWide = text.flag("use_double_wide_mlp", false);
  const overrides = text.object("per_layer_config");

  const layers = kinds.map((kind, l): SourceLayer => {
    const sliding = kind === "sliding_attention", ownsKv = l < count - sharedKvLayers;
    const own = overrides.object(String(l));
    const layer: SourceLayer = {
      sliding,
      ownsKv,
      headDim: own.int("head_dim", 1, sliding ? headDim : globalHeadDim),
      kvHeads: own.int("num_key_value_heads", 1, sliding ? kvHeads : globalKvHeads),
      kEqualsV: kEqualsV && !sliding,
      ffn: own.int("intermediate_size", 1, doubleWide && !ownsKv ? 2 * ffn : ffn),
    };
    if (heads % layer.kvHeads !== 0) throw text.bad("num_key_value_heads", `divisors of ${heads} heads (layer ${l} has ${layer.kvHeads})`);
    return layer;
  });

  const rope = text.object("rope_parameters");
  const globalRope = rope.object("full_attention");
  const moe = text.flag("enable_moe_block", false);
  const experts = moe ? text.int("num_experts", 1) : 0;
  const eos = text.get("eos_token_id") ?? whole.get("eos_token_id");
  const id = (key: string): number | undefined => {
    const value = text.get(key) ?? whole.get(key);
    return typeof value === "number" && value >= 0 ? value : undefined;
  };
  const softcap = text.get("final_logit_softcapping");
  return {
    vocabulary: text.int("vocab_size", 1),
    hidden: text.int("hidden_size", 1),
    heads,
    contextLength: text.int("max_position_embeddings", 1, 131_072),
    eps: text.number("rms_norm_eps", 1e-6),
    window: text.int("sliding_window", 1),
    layers,
    slidingHeadDim: oneHeadDim(text, layers, true, headDim),
    globalHeadDim: oneHeadDim(text, layers, false, globalHeadDim),
    slidingRopeBase: rope.object("sliding_attention").number("rope_theta", 10_000),
    globalRopeBase: globalRope.number("rope_theta", 1_000_000),
    globalRotaryFactor: globalRope.number("partial_rotary_factor", 0.25),
    softcap: softcap === undefined ? undefined : text.number("final_logit_softcapping"),
    sharedKvLayers,
    perLayerWidth: text.int("hidden_size_per_layer_input", 0, 0),
    moe: moe ? { experts, used: text.int("top_k_experts", 1), ffn: text.int("moe_intermediate_size", 1) } : undefined,
    tied: text.flag("tie_word_embeddings", whole.flag("tie_word_embeddings", true)),
    tokens: {
      bos: id("bos_token_id"),
      eos: (Array.isArray(eos) ? eos : [eos]).filter((e): e is number => typeof e === "number" && e >= 0),
      pad: id("pad_token_id"),
    },
  };
}

/** GGUF has one head size for each kind of layer. */
function oneHeadDim(text: Reader, layers: readonly SourceLayer[], sliding: boolean, fallback: number): number {
  const sizes = new Set(layers.filter((l) => l.sliding === sliding).map((l) => l.headDim));
  if (sizes.size > 1) throw text.bad("per_layer_config", `one head size for all ${sliding ? "sliding" : "full"}-attention layers, not ${[...sizes].join(", ")}`);
  return [...sizes][0] ?? fallback;
}
