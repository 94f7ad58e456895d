// Writes a GGUF file of a Gemma 4 size's exact shape with random weights: names, shapes and types as the converter would write them.
// The values are finite and of the scale that real ones have; they mean nothing.

import { createGguf, ggmlType, type GgmlTypeName, type GgufValue } from "../gguf/index.ts";
import type { SourceConfig } from "./checkpoint.ts";
import { generalMetadata, modelMetadata } from "./metadata.ts";
import { expectedTensors, ropeFactors } from "./names.ts";
import { RandomBits, RandomBlocks } from "./random.ts";
import { chooseTypes, type FileType } from "./types.ts";

export interface SynthesiseOptions {
  readonly config: SourceConfig;
  readonly type: FileType;
  readonly output: string;
  /** general.name */
  readonly name: string;
  /** All tokenizer.* keys. */
  readonly tokenizer: ReadonlyMap<string, GgufValue>;
  /** The same seed gives the same file. */
  readonly seed: number;
  readonly onProgress?: (bytes: number, totalBytes: number) => void;
}

/** Writes the file; memory stays at some tens of megabytes. Throws ResourceError for the disk. Returns tensors and bytes of their data. */
export function synthesise(options: SynthesiseOptions): { tensors: number; bytes: number } {
  const { config, type, seed } = options;
  const tensors = expectedTensors(config);
  const types = chooseTypes(tensors.map(({ name, shape }) => ({ name, shape, source: "BF16" })), type, config.layers.length, config.moe?.experts ?? 0);
  using writer = createGguf(options.output);
  for (const keys of [generalMetadata(type, options.name, {}), modelMetadata(config), options.tokenizer]) for (const [key, value] of keys) writer.set(key, value);
  const sizes = tensors.map(({ name, shape }) => writer.declare({ name, shape, type: types.get(name) as GgmlTypeName }));
  const totalBytes = sizes.reduce((a, b) => a + b, 0);

  const random = new RandomBits(seed), pools = new Map<string, RandomBlocks>();
  let bytes = 0;
  for (const [i, { name, shape }] of tensors.entries()) {
    const columns = shape[0]!, target = types.get(name) as GgmlTypeName;
    const write = (piece: ArrayBufferView): void => {
      writer.write(name, piece);
      options.onProgress?.((bytes += piece.byteLength), totalBytes);
    };
    if (name === "rope_freqs.weight") write(ropeFactors(config));
    else if (shape.length === 1) write(vector(name, columns, target, random));
    else {
      const key = `${target} ${columns}`;
      const pool = pools.get(key) ?? new RandomBlocks(target, 1 / Math.sqrt(columns), seed + pools.size + 1);
      pools.set(key, pool);
      for (const piece of pool.take(sizes[i]!)) write(piece);
    }
  }
  writer.finish();
  return { tensors: tensors.length, bytes: totalBytes };
}

/** A norm's weights lie around 1, a layer's scale at 0.8. Keys are scaled so that attention spreads, as it does in trained models. */
function vector(name: string, length: number, type: GgmlTypeName, random: RandomBits): ArrayBufferView {
  const centre = name.endsWith("layer_output_scale.weight") ? 0.8 : name.endsWith("attn_k_norm.weight") ? 1 / Math.sqrt(length) : 1;
  const values = Float32Array.from({ length }, () => centre * random.between(0.9, 1.1));
  if (type === "F32") return values;
  if (type === "F16") return Float16Array.from(values);
  if (type === "BF16") return Uint16Array.from(new Uint32Array(values.buffer), (bits) => bits >>> 16);
  throw new RangeError(`${name}: vectors of ${ggmlType(type).name} are not known`);
}
