// The gemma4.* and general.* keys of a converted file. Key names and types are those that llama.cpp reads; per-layer values become an array
// only where the layers differ. Knows nothing of tokenizers.

import { UsageError } from "../errors.ts";
import { ggufValue, type GgufValue } from "../gguf/index.ts";
import type { SourceConfig } from "./checkpoint.ts";
import { FILE_TYPES, type FileType } from "./types.ts";

/** A metadata value as a caller gives it: text, truth, a number (u32 or i32 when whole, else f32), or typed exactly. */
export type MetadataInput = string | number | boolean | GgufValue;

/** Keys that describe what was converted, and so are never a caller's to set. */
const RESERVED = /^(gemma4\.|tokenizer\.|split\.|general\.(architecture|alignment|file_type|quantization_version)$)/;

/** Keys of the model itself, in file order. */
export function modelMetadata(config: SourceConfig): Map<string, GgufValue> {
  const { u32, f32, array } = ggufValue;
  const keys = new Map<string, GgufValue>();
  const set = (key: string, value: GgufValue): void => void keys.set(`gemma4.${key}`, value);
  const each = (key: string, values: readonly number[]): void => {
    const first = values[0] as number;
    set(key, values.every((v) => v === first) ? u32(first) : array("i32", Int32Array.from(values)));
  };
  set("vocab_size", u32(config.vocabulary));
  set("block_count", u32(config.layers.length));
  set("context_length", u32(config.contextLength));
  set("embedding_length", u32(config.hidden));
  each("feed_forward_length", config.layers.map((l) => l.ffn));
  set("attention.head_count", u32(config.heads));
  each("attention.head_count_kv", config.layers.map((l) => l.kvHeads));
  set("attention.key_length", u32(config.globalHeadDim));
  set("attention.value_length", u32(config.globalHeadDim));
  set("attention.key_length_swa", u32(config.slidingHeadDim));
  set("attention.value_length_swa", u32(config.slidingHeadDim));
  set("attention.layer_norm_rms_epsilon", f32(config.eps));
  set("attention.sliding_window", u32(config.window));
  set("attention.sliding_window_pattern", array("bool", Uint8Array.from(config.layers, (l) => (l.sliding ? 1 : 0))));
  set("attention.shared_kv_layers", u32(config.sharedKvLayers));
  set("embedding_length_per_layer_input", u32(config.perLayerWidth));
  // The whole head on both kinds: which pairs of a global head stand still is said by the rope_freqs tensor.
  set("rope.dimension_count", u32(config.globalHeadDim));
  set("rope.dimension_count_swa", u32(config.slidingHeadDim));
  set("rope.freq_base", f32(config.globalRopeBase));
  set("rope.freq_base_swa", f32(config.slidingRopeBase));
  if (config.softcap !== undefined) set("final_logit_softcapping", f32(config.softcap));
  if (config.moe) {
    set("expert_count", u32(config.moe.experts));
    set("expert_used_count", u32(config.moe.used));
    set("expert_feed_forward_length", u32(config.moe.ffn));
  }
  return keys;
}

/** general.* keys; `generation` is the parsed generation_config.json, whose sampling values are carried along. */
export function generalMetadata(type: FileType, name: string, generation: Readonly<Record<string, unknown>>): Map<string, GgufValue> {
  const keys = new Map<string, GgufValue>([
    ["general.architecture", ggufValue.string("gemma4")],
    ["general.type", ggufValue.string("model")],
    ["general.name", ggufValue.string(name)],
    ["general.file_type", ggufValue.u32(FILE_TYPES[type].id)],
    ["general.quantization_version", ggufValue.u32(2)],
  ]);
  const { temperature, top_k: topK, top_p: topP } = generation;
  if (Number.isInteger(topK)) keys.set("general.sampling.top_k", ggufValue.i32(topK as number));
  if (typeof topP === "number") keys.set("general.sampling.top_p", ggufValue.f32(topP));
  if (typeof temperature === "number") keys.set("general.sampling.temp", ggufValue.f32(temperature));
  return keys;
}

/** A caller's key as a typed value. Throws UsageError `convert_meta` for keys that are not the caller's to set. */
export function callerValue(key: string, value: MetadataInput): GgufValue {
  if (key === "" || RESERVED.test(key)) {
    throw new UsageError("convert_meta", `the key ${JSON.stringify(key)} cannot be set`, "It describes the converted model itself. Free keys are general.name, general.license, general.description and the like.");
  }
  switch (typeof value) {
    case "string": return ggufValue.string(value);
    case "boolean": return ggufValue.bool(value);
    case "number": return !Number.isInteger(value) || Math.abs(value) > 0x7fffffff ? ggufValue.f32(value) : value < 0 ? ggufValue.i32(value) : ggufValue.u32(value);
    default: return value;
  }
}

/**
 * Parses one `--meta` argument: `key=text`, or `key:type=value` with type string, bool, u32, i32 or f32.
 * Throws UsageError `convert_meta`.
 */
export function parseMeta(argument: string): [key: string, value: GgufValue] {
  const match = /^([^=:]+)(?::([a-z0-9]+))?=(.*)$/s.exec(argument);
  const fail = (what: string): UsageError =>
    new UsageError("convert_meta", `--meta ${argument}: ${what}`, "Write key=text or key:type=value with type string, bool, u32, i32 or f32.");
  if (match === null) throw fail("expected key=value");
  const [, key, type = "string", text] = match as unknown as [string, string, string | undefined, string];
  const number = text.trim() === "" ? Number.NaN : Number(text);
  const whole = (least: number, most: number): number => {
    if (!Number.isInteger(number) || number < least || number > most) throw fail(`expected a whole number ${least}..${most}`);
    return number;
  };
  switch (type) {
    case "string": return [key, ggufValue.string(text)];
    case "u32": return [key, ggufValue.u32(whole(0, 0xffffffff))];
    case "i32": return [key, ggufValue.i32(whole(-0x80000000, 0x7fffffff))];
    case "f32":
      if (!Number.isFinite(number)) throw fail("expected a number");
      return [key, ggufValue.f32(number)];
    case "bool":
      if (text !== "true" && text !== "false") throw fail("expected true or false");
      return [key, ggufValue.bool(text === "true")];
    default: throw fail(`unknown type ${type}`);
  }
}
