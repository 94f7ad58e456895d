// load() and estimate() take names as well as paths.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { estimate, load } from "../../src/index.ts";
import { type Hub, startHub } from "./server.ts";

const VARIABLES = ["HF_ENDPOINT", "HF_HUB_CACHE"] as const, before = VARIABLES.map((name) => process.env[name]);
let hub: Hub, cache: string;
beforeAll(() => {
  hub = startHub("acme/demo-GGUF", [{ path: "demo-Q4_K_M.gguf", content: readFileSync(join(import.meta.dir, "../../models/demo.gguf")) }]);
  cache = mkdtempSync(join(tmpdir(), "bao-hub-library-"));
  Object.assign(process.env, { HF_ENDPOINT: hub.endpoint, HF_HUB_CACHE: cache });
});
afterAll(() => {
  VARIABLES.forEach((name, i) => { if (before[i] === undefined) delete process.env[name]; else process.env[name] = before[i]; });
  hub[Symbol.dispose]();
  rmSync(cache, { recursive: true });
});

test("a model by its name: fetched with progress, then loaded", async () => {
  const phases: string[] = [];
  await using model = await load("hf:acme/demo-GGUF:Q4_K_M", { context: 256, warmup: false, onProgress: (p) => { if (phases.at(-1) !== p.phase) phases.push(p.phase); } });
  expect(phases.slice(0, 2)).toEqual(["fetch", "open"]);
  expect(model.info.path).toStartWith(cache);
  expect(await model.generate("Once", { raw: true, maxTokens: 4, temperature: 0 }).text()).not.toBe("");
  expect((await estimate("hf:acme/demo-GGUF")).path).toBe(model.info.path);
});

test("an aborted fetch, and a name that is not there", async () => {
  expect(await load("hf:acme/nothing").catch((e: unknown) => e)).toMatchObject({ name: "ModelFileError", code: "model_not_found" });
  const reason = new Error("enough");
  expect(await load("hf:acme/demo-GGUF:Q8_0", { signal: AbortSignal.abort(reason) }).catch((e: unknown) => e)).toBe(reason);
});
