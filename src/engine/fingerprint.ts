// What identifies a model's contents, so that saved state is never read into another model. Reads a few kilobytes a tensor, not the file.
import { closeSync, openSync, readSync } from "node:fs";
import type { GgufFile } from "../gguf/index.ts";
import type { ModelConfig } from "../model/config.ts";

const SAMPLE = 1024;

/** SHA-256 over the configuration, and over name, type, shape and the first, middle and last bytes of every tensor. */
export function modelFingerprint(file: GgufFile, config: ModelConfig): string {
  const hash = new Bun.CryptoHasher("sha256"), bytes = new Uint8Array(new ArrayBuffer(SAMPLE));
  hash.update(JSON.stringify(config));
  const files = file.shards.map((s) => openSync(s.path, "r"));
  try {
    for (const t of [...file.tensors.values()].sort((a, b) => (a.name < b.name ? -1 : 1))) {
      hash.update(JSON.stringify([t.name, t.type.name, t.shape]));
      const length = Math.min(SAMPLE, t.bytes);
      for (const at of [0, Math.trunc((t.bytes - length) / 2), t.bytes - length]) {
        hash.update(bytes.subarray(0, readSync(files[t.shard]!, bytes, 0, length, t.offsetBytes + at)));
      }
    }
  } finally {
    for (const fd of files) closeSync(fd);
  }
  return hash.digest("hex");
}
