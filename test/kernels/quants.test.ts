// Row conversion through the host functions: bytes and values as ggml writes them (test/fixtures/quants), sizes, and what is refused.
import { describe, expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { openHost } from "../../src/native/library.ts";
import { allowTime, DTYPES, Random } from "./harness.ts";
import { dtypeName, LAYOUT } from "./weights.ts";

allowTime();

interface Part { offset: number; bytes: number }
interface Fixture { rows: number; columns: number; source: Part; types: Record<string, { id: number; quantised: Part; dequantised: Part; relative_error: number }> }

const folder = join(import.meta.dir, "../fixtures/quants"), bytes = readFileSync(join(folder, "quants.bin"));
const fixture = JSON.parse(readFileSync(join(folder, "quants.json"), "utf8")) as Fixture, { rows, columns } = fixture, n = rows * columns;
const part = (p: Part): Uint8Array<ArrayBuffer> => { const out = new Uint8Array(new ArrayBuffer(p.bytes)); out.set(bytes.subarray(p.offset, p.offset + p.bytes)); return out; };
const source = new Float32Array(part(fixture.source).buffer);

describe("against ggml", () => {
  for (const [name, type] of Object.entries(fixture.types)) {
    const host = openHost();
    test(`${name}: bytes`, () => {
      const out = new Uint8Array(new ArrayBuffer(type.quantised.bytes));
      expect(host.rowBytes(type.id, columns) * rows).toBe(out.length);
      host.quantize(type.id, source, source.byteLength, out, out.length, rows, columns);
      expect(Buffer.compare(out, part(type.quantised))).toBe(0);
    });
    test(`${name}: values`, () => {
      const out = new Float32Array(new ArrayBuffer(n * 4));
      host.dequantize(type.id, part(type.quantised), type.quantised.bytes, out, out.byteLength, rows, columns);
      expect(Buffer.compare(new Uint8Array(out.buffer), part(type.dequantised))).toBe(0);
    });
    test(`${name}: error`, () => {
      const sums = new Float64Array(new ArrayBuffer(16));
      host.quantizeError(type.id, source, part(type.quantised), type.quantised.bytes, rows, columns, sums);
      const relative = Math.sqrt(sums[0]! / sums[1]!);
      expect(Math.abs(relative / type.relative_error - 1)).toBeLessThan(2e-5);
    });
  }
});

describe("every type", () => {
  test("row sizes follow the block; anything else is 0", () => {
    const host = openHost();
    for (const dtype of DTYPES) {
      const { block, bytes: size } = LAYOUT[dtype]!;
      for (const count of [1, 3, 40]) expect(host.rowBytes(dtype, block * count)).toBe(size * count);
      for (const bad of [NaN, -block, 0.5, Infinity, 2 ** 60, ...(block > 1 ? [1, block - 1, block + 1] : [])]) expect(host.rowBytes(dtype, bad)).toBe(0);
    }
    for (const dtype of [-1, 4, 5, 9, 15, 26, 31, 38, 41, 1e9]) expect(host.rowBytes(dtype, 256)).toBe(0);
  });

  test("a value that the type holds survives a round trip; unaligned memory is allowed", () => {
    const host = openHost(), random = new Random(17);
    for (const dtype of DTYPES) {
      const width = LAYOUT[dtype]!.block * 2, size = host.rowBytes(dtype, width);
      const memory = new Uint8Array(new ArrayBuffer(size + 3)), once = new Float32Array(new ArrayBuffer(width * 4)), values = random.f32(width);
      host.quantize(dtype, values, values.byteLength, memory.subarray(3), size, 1, width);
      host.dequantize(dtype, memory.subarray(3), size, once, once.byteLength, 1, width);
      let error = 0, norm = 0;
      for (let i = 0; i < width; i++) { error += (once[i]! - values[i]!) ** 2; norm += values[i]! ** 2; }
      // The coarsest, 2 bits with scales of their own for 16 values, keeps normal values within 40 %.
      if (!(Math.sqrt(error / norm) < 0.4)) throw new Error(`${dtypeName(dtype)} loses ${Math.sqrt(error / norm)}`);
    }
  });

  test("sizes that do not match, types and pointers that are none: refused, nothing written", () => {
    const host = openHost(), f = new Float32Array(new ArrayBuffer(256 * 4)).fill(1), q = new Uint8Array(new ArrayBuffer(4096)).fill(0x5a);
    for (const dtype of DTYPES) {
      const width = 256, size = host.rowBytes(dtype, width);
      const bad: (() => void)[] = [
        () => host.quantize(dtype, f, f.byteLength, q, size - 1, 1, width), () => host.quantize(dtype, f, f.byteLength - 4, q, size, 1, width),
        () => host.quantize(dtype, f, NaN, q, size, 1, width), () => host.quantize(dtype, 0, f.byteLength, q, size, 1, width),
        () => host.quantize(dtype, f, f.byteLength, 0, size, 1, width), () => host.quantize(dtype, f, f.byteLength, q, size, -1, width),
        () => host.quantize(dtype, f, f.byteLength, q, size, 1, -width), () => host.quantize(dtype, f, f.byteLength, q, size, 0x7fffffff, width),
        () => host.dequantize(dtype, q, size, f, f.byteLength + 4, 1, width), () => host.dequantize(dtype, q, size + 1, f, f.byteLength, 1, width),
        () => host.dequantize(dtype, 0, size, f, f.byteLength, 1, width), () => host.dequantize(dtype, q, Infinity, f, f.byteLength, 1, width),
      ];
      for (const call of bad) expect(call).toThrow(expect.objectContaining({ code: "invalid_argument" }));
    }
    for (const dtype of [-1, 4, 26, 99]) expect(() => host.quantize(dtype, f, f.byteLength, q, 1024, 1, 256)).toThrow();
    expect(q.every((b) => b === 0x5a)).toBe(true);
    expect(f.every((v) => v === 1)).toBe(true);
  });
});
