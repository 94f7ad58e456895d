// What a model is called where a request or an answer names it.
import { basename } from "node:path";

/** A file's name without its ending and its shard's number. */
export function modelName(path: string): string { return basename(path).replace(/\.gguf$/i, "").replace(/-\d{5}-of-\d{5}$/, ""); }
