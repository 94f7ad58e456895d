// Structured answers through the whole engine: what comes out parses and satisfies its schema, alone and in company, one step ahead or not.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { load, type Model } from "../../src/index.ts";
import { LocalModel } from "../../src/engine/model.ts";
import type { LocalGenerateOptions } from "../../src/engine/generate.ts";
import { collect, DEMO, failure, STORIES } from "./fixtures.ts";

setDefaultTimeout(120_000);
const SCHEMA = { type: "object", properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 120 }, tags: { type: "array", items: { enum: ["a", "b"] }, maxItems: 3 } }, required: ["name", "age", "tags"], additionalProperties: false } as const;
const format = { type: "json_schema", schema: SCHEMA } as const;
function check(text: string): void {
  const value = JSON.parse(text) as { name: string; age: number; tags: string[] };
  expect(Object.keys(value).sort()).toEqual(["age", "name", "tags"]);
  expect([typeof value.name, value.name.length <= 12, Number.isInteger(value.age), value.age >= 0 && value.age <= 120, value.tags.length <= 3, value.tags.every((t) => t === "a" || t === "b")]).toEqual(["string", true, true, true, true, true]);
}

describe("through the library", () => {
  let model: Model;
  beforeAll(async () => { model = await load(DEMO, { device: { threads: 1 }, context: 512, sessions: 4 }); });
  afterAll(async () => { await model.dispose(); });

  test("a schema, at any temperature, beside free answers that are what they are alone", async () => {
    const free = { temperature: 0, maxTokens: 40 } as const, alone = await model.generate("Tell me a story.", free).text();
    const constrained = (seed: number): Promise<string> => model.generate("Who are you?", { temperature: 1.5, topK: 0, topP: 1, seed, maxTokens: 300, responseFormat: format }).text();
    const first = await constrained(1);
    const all = await Promise.all([model.generate("Tell me a story.", free).text(), ...[1, 2, 3, 4, 5, 6].map(constrained)]);
    expect(all[0]).toBe(alone);
    expect(all[1]).toBe(first);
    for (const text of all.slice(1)) check(text);
  });

  test("a schema that cannot be guaranteed, and formats that are none: errors by name, and the model goes on", async () => {
    expect(await failure(model.generate("x", { responseFormat: { type: "json_schema", schema: { type: "nonsense" } } }).text())).toMatchObject({ name: "UsageError", code: "unsupported_schema" });
    expect(await failure(model.generate("x", { responseFormat: { type: "yaml" } as never }).text())).toMatchObject({ name: "UsageError", code: "bad_option" });
    expect(await failure(model.generate("x", { toolChoice: { name: "none" } }).text())).toMatchObject({ name: "UsageError", code: "bad_option" });
    expect(await model.generate("x", { temperature: 0, maxTokens: 3 }).text()).toBeString();
  });

  test("a tool that must be called is called, with arguments of its schema", async () => {
    const tools = [{ name: "add", description: "adds", parameters: { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"], additionalProperties: false } }];
    const { parts, finish } = await model.generate("What is 1 + 2?", { tools, toolChoice: "required", temperature: 1, seed: 3, maxTokens: 200, parallelToolCalls: false }).result();
    const calls = parts.filter((p) => p.type === "tool_call");
    expect([calls.length, calls[0]?.name, finish.reason]).toEqual([1, "add", "tool_calls"]);
    expect(Object.values(calls[0]!.arguments).every(Number.isInteger)).toBe(true);
  });
});

test("one step ahead of the host: the same answers", async () => {
  const texts: string[][] = [];
  for (const depth of [1, 2] as const) {
    using model = await LocalModel.load(DEMO, { device: { threads: 1 }, context: 512, sequences: 3, depth, warmup: false });
    const sessions = [1, 2, 3].map(() => model.session());
    const options = (seed: number): LocalGenerateOptions => ({ temperature: 1.2, seed, maxTokens: 200, ...(seed < 3 ? { responseFormat: format } : {}) });
    texts.push(await Promise.all(sessions.map(async (s, i) => (await collect(model, s, "Who are you?", options(i + 1))).text)));
    for (const s of sessions) s.dispose();
  }
  expect(texts[1]).toEqual(texts[0]!);
  check(texts[0]![0]!);
});

test("a model without markers for tools says so", async () => {
  await using model = await load(STORIES, { device: { threads: 1 } });
  const tools = [{ name: "add", parameters: { type: "object", properties: {} } }];
  expect(await failure(model.generate("x", { raw: true, tools, toolChoice: "required" }).text())).toMatchObject({ name: "UsageError" });
});
