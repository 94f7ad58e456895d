// Weights of tests: random values quantised into any type, or random valid blocks, in a temporary file that is mapped like a model.
// The file is removed as soon as it is mapped; maps are shared by all tests of a process.
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { FileMap } from "../../src/native/objects.ts";
import { openHost } from "../../src/native/library.ts";
import { BAO } from "../../src/native/symbols.ts";
import { Random } from "./harness.ts";

export interface WeightSpec {
  dtype: number;
  rows: number;
  columns: number;
  experts?: number;
  use?: number;
  seed?: number;
  /** Bytes before the tensor. 0 ... 15 beside a multiple of 16 make the library copy it. */
  offset?: number;
  /** "quantised": normal values of deviation `scale` through the quantiser. "blocks": any bytes that are a valid block. "ones": every bit of codes and small scales set. */
  content?: "quantised" | "blocks" | "ones";
  scale?: number;
}

interface Layout { name: string; block: number; bytes: number; halves?: readonly number[]; e8m0?: readonly number[]; e4m3?: readonly number[] }

/** Elements and bytes of a block, and where its scales lie (byte offsets of IEEE halves, E8M0 and UE4M3 bytes). */
export const LAYOUT: Readonly<Record<number, Layout>> = {
  [BAO.F32]: { name: "F32", block: 1, bytes: 4 },
  [BAO.F16]: { name: "F16", block: 1, bytes: 2, halves: [0] },
  [BAO.BF16]: { name: "BF16", block: 1, bytes: 2 },
  [BAO.Q4_0]: { name: "Q4_0", block: 32, bytes: 18, halves: [0] },
  [BAO.Q4_1]: { name: "Q4_1", block: 32, bytes: 20, halves: [0, 2] },
  [BAO.Q5_0]: { name: "Q5_0", block: 32, bytes: 22, halves: [0] },
  [BAO.Q5_1]: { name: "Q5_1", block: 32, bytes: 24, halves: [0, 2] },
  [BAO.Q8_0]: { name: "Q8_0", block: 32, bytes: 34, halves: [0] },
  [BAO.Q2_K]: { name: "Q2_K", block: 256, bytes: 84, halves: [80, 82] },
  [BAO.Q3_K]: { name: "Q3_K", block: 256, bytes: 110, halves: [108] },
  [BAO.Q4_K]: { name: "Q4_K", block: 256, bytes: 144, halves: [0, 2] },
  [BAO.Q5_K]: { name: "Q5_K", block: 256, bytes: 176, halves: [0, 2] },
  [BAO.Q6_K]: { name: "Q6_K", block: 256, bytes: 210, halves: [208] },
  [BAO.IQ4_NL]: { name: "IQ4_NL", block: 32, bytes: 18, halves: [0] },
  [BAO.IQ4_XS]: { name: "IQ4_XS", block: 256, bytes: 136, halves: [0] },
  [BAO.MXFP4]: { name: "MXFP4", block: 32, bytes: 17, e8m0: [0] },
  [BAO.NVFP4]: { name: "NVFP4", block: 64, bytes: 36, e4m3: [0, 1, 2, 3] },
};
export const dtypeName = (dtype: number): string => LAYOUT[dtype]?.name ?? `type ${dtype}`;
export const blockOf = (dtype: number): number => LAYOUT[dtype]!.block;

function blocks(spec: WeightSpec, random: Random, bytes: number): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(new ArrayBuffer(bytes)), layout = LAYOUT[spec.dtype]!;
  for (let i = 0; i < bytes; i++) out[i] = random.u32() >>> 24;
  const view = new DataView(out.buffer);
  for (let at = 0; at < bytes; at += layout.bytes) {
    // Halves of both signs around 2^-7, subnormals now and then: exponents 0 and 5 ... 11 of 31.
    for (const h of layout.halves ?? []) view.setUint16(at + h, (random.below(2) << 15) | ((random.below(16) === 0 ? 0 : 5 + random.below(7)) << 10) | random.below(1024), true);
    for (const e of layout.e8m0 ?? []) out[at + e] = random.below(32) === 0 ? 0 : 118 + random.below(6);
    for (const e of layout.e4m3 ?? []) out[at + e] = random.below(0x60);
  }
  return out;
}

function ones(spec: WeightSpec, bytes: number): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(new ArrayBuffer(bytes)).fill(0xff), layout = LAYOUT[spec.dtype]!, view = new DataView(out.buffer), eighth = 0x3000;
  for (let at = 0; at < bytes; at += layout.bytes) {
    for (const h of layout.halves ?? []) view.setUint16(at + h, eighth, true);
    for (const e of [...(layout.e8m0 ?? []), ...(layout.e4m3 ?? [])]) out[at + e] = 0x70;
  }
  return out;
}

/** The bytes of a weight, [experts][rows][columns]. */
export function weightBytes(spec: WeightSpec): Uint8Array<ArrayBuffer> {
  const random = new Random((spec.seed ?? 1) * 7919 + spec.dtype), host = openHost();
  const rows = spec.rows * (spec.experts ?? 1), bytes = host.rowBytes(spec.dtype, spec.columns) * rows;
  if (bytes === 0) throw new Error(`${spec.columns} columns are no whole blocks of ${dtypeName(spec.dtype)}`);
  if (spec.content === "ones") return ones(spec, bytes);
  if (spec.content === "blocks" && spec.dtype !== BAO.F32 && spec.dtype !== BAO.BF16) return blocks(spec, random, bytes);
  const source = random.f32(rows * spec.columns, spec.scale ?? 0.1), out = new Uint8Array(new ArrayBuffer(bytes));
  if (spec.dtype === BAO.F32) return new Uint8Array(source.buffer);
  host.quantize(spec.dtype, source, source.byteLength, out, bytes, rows, spec.columns);
  return out;
}

/** The values of a weight as its type stores them. */
export function weightValues(spec: WeightSpec): Float32Array {
  const { file, offset } = weightFile(spec), rows = spec.rows * (spec.experts ?? 1);
  const out = new Float32Array(new ArrayBuffer(rows * spec.columns * 4));
  openHost().dequantize(spec.dtype, file.address + offset, openHost().rowBytes(spec.dtype, spec.columns) * rows, out, out.byteLength, rows, spec.columns);
  return out;
}

/** For each row of x the size of an output of its matmul where nothing cancels: |x| |w| / sqrt(columns), 1 when that is 0 or not finite. */
export function outputSizes(x: Float32Array, spec: WeightSpec): number[] {
  const values = weightValues(spec);
  let squares = 0;
  for (const v of values) squares += v * v;
  const w = Math.sqrt(squares / (spec.rows * (spec.experts ?? 1)) / spec.columns);
  return Array.from({ length: x.length / spec.columns }, (_, r) => {
    const size = w * Math.hypot(...x.subarray(r * spec.columns, (r + 1) * spec.columns));
    return size > 0 && size < Infinity ? size : 1;
  });
}

const files = new Map<string, { file: FileMap; offset: number }>();

/** A mapped file that holds the weight, followed by a few bytes that belong to nobody. */
export function weightFile(spec: WeightSpec): { file: FileMap; offset: number } {
  const key = JSON.stringify([spec.dtype, spec.rows, spec.columns, spec.experts ?? 1, spec.seed ?? 1, spec.offset ?? 0, spec.content ?? "quantised", spec.scale ?? 0.1]);
  const known = files.get(key);
  if (known) return known;
  const folder = mkdtempSync(join(tmpdir(), "bao-weights-")), path = join(folder, "weights.bin");
  try {
    const bytes = weightBytes(spec), offset = spec.offset ?? 0, all = new Uint8Array(offset + bytes.length + 3);
    all.fill(0xff);
    all.set(bytes, offset);
    writeFileSync(path, all);
    const entry = { file: new FileMap(path), offset };
    files.set(key, entry);
    return entry;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}
