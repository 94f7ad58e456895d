// Memory for weights of benchmarks: one temporary file a weight type, mapped like a model and filled with valid random blocks. It is larger than
// the caches, and weights lie in it one after the other, so that a pass over all of them reads main memory. The file has no name once it is mapped.
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync, statfsSync, writeSync } from "node:fs";
import { freemem, tmpdir } from "node:os";
import { join } from "node:path";
import { ResourceError } from "../../src/errors.ts";
import { ggmlType, type GgmlTypeName } from "../../src/gguf/index.ts";
import { openHost } from "../../src/native/library.ts";
import { FileMap } from "../../src/native/objects.ts";

/** A seeded generator of values around 0 (xorshift32): the same inputs on every machine. */
export function randomValues(count: number, seed = 1, scale = 1): Float32Array<ArrayBuffer> {
  const out = new Float32Array(new ArrayBuffer(count * 4));
  let s = (seed * 2_654_435_761) | 1;
  for (let i = 0; i < count; i++) {
    s ^= s << 13; s ^= s >>> 17; s ^= s << 5;
    out[i] = (s / 2_147_483_648) * 1.7 * scale;
  }
  return out;
}

/** Fills `out` with a repeated run of random values: enough for speed, and quick for gigabytes. */
export function fillRandom(out: Float32Array, seed: number): void {
  const run = randomValues(Math.min(out.length, 65_521), seed);
  for (let at = 0; at < out.length; at += run.length) out.set(run.subarray(0, Math.min(run.length, out.length - at)), at);
}

/** Bytes of the last-level cache as the system tells them, 0 = unknown. */
export function lastLevelCache(): number {
  let largest = 0;
  for (let i = 0; i < 8; i++) {
    const path = `/sys/devices/system/cpu/cpu0/cache/index${i}/size`;
    if (!existsSync(path)) continue;
    const m = /^(\d+)([KMG])/.exec(readFileSync(path, "utf8"));
    if (m) largest = Math.max(largest, Number(m[1]) * { K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 }[m[2] as "K" | "M" | "G"]);
  }
  return largest;
}

/** Bytes that one pass has to touch to count as read from memory: four times the last-level cache, 256 MiB where it is unknown or small. */
export const cold = { bytes: Math.min(2 ** 30, Math.max(2 ** 28, 4 * lastLevelCache())) };

/** Bytes that benchmarks may take: half of what is available now. */
export function memoryBudget(): number {
  const m = existsSync("/proc/meminfo") ? /^MemAvailable:\s+(\d+) kB/m.exec(readFileSync("/proc/meminfo", "utf8")) : null;
  return (m ? Number(m[1]) * 1024 : Math.max(freemem(), 2 ** 31)) / 2;
}

// A place of weights starts at whole blocks, and at 64 bytes like tensors of a file.
function alignment(type: GgmlTypeName): number {
  const { blockBytes } = ggmlType(type), gcd = (a: number, b: number): number => (b === 0 ? a : gcd(b, a % b));
  return (blockBytes * 64) / gcd(blockBytes, 64);
}

/** Memory where files live in memory, when there is enough of it: no disk writes it back while we measure. */
function folderFor(bytes: number): string {
  try {
    const { bavail, bsize } = statfsSync("/dev/shm");
    if (bavail * bsize > bytes + 2 ** 28) return "/dev/shm";
  } catch { /* not Linux */ }
  return tmpdir();
}

function makeFile(type: GgmlTypeName, bytes: number): FileMap {
  const { id } = ggmlType(type), host = openHost(), columns = 4096, rows = 128, step = alignment(type);
  const source = randomValues(rows * columns, id + 1, 0.05), row = host.rowBytes(id, columns);
  const tile = new Uint8Array(new ArrayBuffer(row * rows));
  if (type === "F32") tile.set(new Uint8Array(source.buffer)); else host.quantize(id, source, source.byteLength, tile, tile.byteLength, rows, columns);
  // Whole blocks only, so that the next tile continues the pattern of blocks.
  const whole = tile.subarray(0, Math.floor(tile.length / step) * step || tile.length);
  const chunk = Buffer.alloc(whole.length * Math.max(1, Math.floor(2 ** 23 / whole.length)));
  for (let at = 0; at < chunk.length; at += whole.length) chunk.set(whole, at);
  const folder = mkdtempSync(join(folderFor(bytes), "bao-bench-")), path = join(folder, "weights");
  try {
    const file = openSync(path, "wx", 0o600);
    try {
      for (let left = bytes; left > 0;) left -= writeSync(file, chunk, 0, Math.min(left, chunk.length));
    } finally {
      closeSync(file);
    }
    return new FileMap(path);
  } catch (e) {
    throw new ResourceError("no_space", `${folder}: no room for ${(bytes / 2 ** 20).toFixed(0)} MiB of weights`, "Leave out large models or types with --model and --dtype.", { cause: e });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

const files = new Map<GgmlTypeName, FileMap>();
const KEPT_BYTES = 2 ** 31;

/** A mapped file of at least `bytes` valid bytes of this type. Files of other types may be dropped for it: weights of a former call must be gone. */
export function weightMemory(type: GgmlTypeName, bytes: number): FileMap {
  let file = files.get(type);
  if (file && file.bytes < bytes) { file.dispose(); files.delete(type); file = undefined; }
  if (!file) {
    let kept = [...files.values()].reduce((sum, f) => sum + f.bytes, 0);
    for (const [other, old] of files) {
      if (kept + bytes <= KEPT_BYTES) break;
      kept -= old.bytes;
      old.dispose();
      files.delete(other);
    }
    file = makeFile(type, bytes);
  }
  files.delete(type); // the last used is the last to go
  files.set(type, file);
  return file;
}

/** Offsets in a file of `bytes` for sets of weights of the given sizes, one set after the other until cold.bytes are used; at least one set. */
export function placeSets(type: GgmlTypeName, sizes: readonly number[], limit: number): { bytes: number; sets: number[][] } {
  const step = alignment(type), sets: number[][] = [];
  let at = 0;
  do {
    sets.push(sizes.map((size) => {
      const offset = at;
      at += Math.ceil(size / step) * step;
      return offset;
    }));
  } while (sets.length < limit && at < cold.bytes);
  return { bytes: at, sets };
}
