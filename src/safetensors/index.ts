// Safetensors files: read headers and raw tensor bytes. Exports only.

export { DTYPE_BITS, type SafetensorsDtype } from "./header.ts";
export { openSafetensors, SafetensorsFile, type SafetensorsTensor } from "./reader.ts";
