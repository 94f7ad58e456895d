// The soak test in its short form: a few seconds of everything at once. `bun scripts/soak.ts --minutes 30` is the long one, which also looks at memory.
import { expect, test } from "bun:test";
import { soak } from "../../scripts/soak.ts";

test("sixteen clients that stream, abort, disconnect and send nonsense: right answers, no crash, nothing left running", async () => {
  const report = await soak({ seconds: 6, clients: 16, parallel: 8, threads: 1, seed: 1 });
  expect(report.failures).toEqual([]);
  expect(Object.keys(report.done).sort()).toEqual(["abort", "disconnect", "embeddings", "nonsense", "sampled", "schema", "stream", "tools", "whole"]);
  expect(report.firstToken.count).toBeGreaterThan(5);
  expect(report.betweenTokens.count).toBeGreaterThan(100);
}, 120_000);
