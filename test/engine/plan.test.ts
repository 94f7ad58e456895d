// What a run is planned with when the caller leaves it open.
import { expect, test } from "bun:test";
import { openModel, type LoadOptions } from "../../src/engine/model.ts";
import { DEMO } from "./fixtures.ts";

test("rows of a prefill step: 256, on CUDA more, less where many sequences keep windows; what the caller says stands", () => {
  const chunk = (options: LoadOptions): number => openModel(DEMO, options).plan.chunk;
  expect(chunk({})).toBe(256);
  expect(chunk({ device: { backend: "cpu" } })).toBe(256);
  const device = { backend: "cuda" } as const;
  expect(chunk({ device })).toBe(2048);
  expect(chunk({ device, sequences: 8 })).toBe(2048);
  expect(chunk({ device, sequences: 12 })).toBe(1344);
  expect(chunk({ device, sequences: 64 })).toBe(512);
  expect(chunk({ device, context: 300 })).toBe(300);
  expect(chunk({ device, chunk: 100 })).toBe(100);
  const bytes = (options: LoadOptions): number => openModel(DEMO, options).estimate.activations;
  expect(bytes({ device })).toBeGreaterThan(7 * bytes({}));
});
