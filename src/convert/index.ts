// Checkpoints to GGUF. Exports only.

export { convertCheckpoint, type ConvertOptions, type ConvertProgress, type ConvertReport } from "./convert.ts";
export { parseMeta, type MetadataInput } from "./metadata.ts";
export type { TypeReport } from "./report.ts";
export { FILE_TYPES, fileType, type FileType } from "./types.ts";
