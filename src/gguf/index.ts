// GGUF files: read headers, write files. Exports only.

export { readHeader, type Header } from "./header.ts";
export { printable } from "./limits.ts";
export { describeValue, GgufMetadata } from "./metadata.ts";
export { openGguf, type GgufFile } from "./reader.ts";
export { fileSource, memorySource, type ByteSource } from "./source.ts";
export { parseShardName, shardFileName } from "./split.ts";
export {
  findGgmlType,
  GGML_TYPES,
  ggmlType,
  ggmlTypeById,
  isWholeBlocks,
  tensorBytes,
  type GgmlType,
  type GgmlTypeName,
  type GgufArray,
  type GgufItemType,
  type GgufShard,
  type GgufTensor,
  type GgufValue,
  type GgufValueType,
} from "./types.ts";
export { createGguf, ggufValue, replaceTarget, type GgufWriter, type TensorDeclaration } from "./writer.ts";
