// Opens a GGUF model: the header of one file or of every file of a split model, checked against the files' sizes.
// Reads headers only, with plain reads; tensor data stays where it is for whoever maps the files.

import { readHeader, type Header } from "./header.ts";
import type { GgufMetadata } from "./metadata.ts";
import { fileSource } from "./source.ts";
import { checkShardSet, shardPaths } from "./split.ts";
import type { GgufShard, GgufTensor } from "./types.ts";

/** An opened GGUF model. Plain values: nothing stays open. */
export interface GgufFile {
  /** The first shard: the file that carries the metadata. */
  readonly path: string;
  /** Container version, 2 or 3. */
  readonly version: number;
  /** `general.alignment` of the first shard, in bytes. */
  readonly alignment: number;
  readonly metadata: GgufMetadata;
  /** All tensors of all shards, in file order. */
  readonly tensors: ReadonlyMap<string, GgufTensor>;
  /** The files, in order; `GgufTensor.shard` is an index here. */
  readonly shards: readonly GgufShard[];
}

/**
 * Reads the header of the model at `path`, which may be any file of a split model.
 * Throws ModelFileError (codes `gguf_...`) that names file, tensor, expected and found. Tensor data is not looked at,
 * only whether the file is long enough to hold it. Whether the model can be run is not judged here.
 */
export function openGguf(path: string): GgufFile {
  const opened = openHeader(path);
  const paths = shardPaths(opened);
  const headers = paths.map((shard) => (shard === path ? opened : openHeader(shard)));
  checkShardSet(headers);
  const first = headers[0] as Header;
  const tensors = new Map<string, GgufTensor>();
  for (const [shard, header] of headers.entries()) {
    for (const tensor of header.tensors.values()) tensors.set(tensor.name, { ...tensor, shard, path: header.path });
  }
  return {
    path: first.path,
    version: first.version,
    alignment: first.alignment,
    metadata: first.metadata,
    tensors,
    shards: headers.map(({ path: shard, sizeBytes }) => ({ path: shard, sizeBytes })),
  };
}

function openHeader(path: string): Header {
  using source = fileSource(path);
  return readHeader(source);
}
