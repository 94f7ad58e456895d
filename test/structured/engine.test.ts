// Thoughts and forms through the whole engine, and what many requests leave behind.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { load, type Model } from "../../src/index.ts";
import { writeToolModel } from "../chat/tool-model.ts";
import { DEMO, TemporaryFolder } from "../engine/fixtures.ts";
import { constraint, demoTokenizer, walk } from "./walk.ts";

setDefaultTimeout(120_000);
let model: Model;
beforeAll(async () => { model = await load(DEMO, { device: { threads: 1 }, context: 512, warmup: false }); });
afterAll(async () => { await model.dispose(); });

test("a model that thinks first: the thought is free, the answer after it is bound", async () => {
  const open = demoTokenizer().idOf("<|channel>")!, close = demoTokenizer().idOf("<channel|>")!;
  using folder = new TemporaryFolder();
  writeToolModel(folder.file("thinks.gguf"));
  await using model = await load(folder.file("thinks.gguf"), { device: { threads: 1 }, context: 512, warmup: false });
  const schema = { type: "object", properties: { ok: { type: "boolean" } }, required: ["ok"], additionalProperties: false } as const;
  for (let seed = 1; seed <= 3; seed++) {
    // The embedded model does not think of itself: it is pushed into a thought, and out of it.
    const { parts, finish } = await model.generate("Are you well?", { thinking: true, responseFormat: { type: "json_schema", schema }, temperature: 1, seed, maxTokens: 400, logitBias: new Map([[open, 50], [close, 20]]) }).result();
    const thought = parts.flatMap((p) => (p.type === "thought" ? [p.text] : [])).join(""), answer = parts.flatMap((p) => (p.type === "text" ? [p.text] : [])).join("");
    expect(finish.reason).toBe("stop");
    expect(thought.length).toBeGreaterThan(0);
    expect(() => JSON.parse(thought) as unknown).toThrow();
    expect(JSON.parse(answer)).toEqual({ ok: expect.any(Boolean) });
  }
});

test("the last token limit and stop strings still hold", async () => {
  const options = { responseFormat: { type: "json_object" }, temperature: 1, seed: 1 } as const;
  expect((await model.generate("x", { ...options, maxTokens: 2 }).result()).finish.reason).toBe("length");
  const { text, finish } = await model.generate("x", { ...options, maxTokens: 200, stop: '"' }).result();
  expect([text.includes('"'), finish.reason]).toEqual([false, "stop"]);
});

test("hundreds of schemas leave no memory behind", async () => {
  const tokenizer = demoTokenizer();
  const one = async (n: number): Promise<void> => {
    using mask = await constraint(tokenizer, { format: { type: "json_schema", schema: { type: "object", properties: { [`p${n}`]: { type: "string", maxLength: n % 40 + 1 }, list: { type: "array", items: { enum: [n, n + 1] } } }, required: [`p${n}`] } } });
    walk(tokenizer, mask, n, 3, 20);
  };
  for (let n = 0; n < 80; n++) await one(n);
  Bun.gc(true);
  const before = process.memoryUsage().rss;
  for (let n = 80; n < 280; n++) await one(n);
  Bun.gc(true);
  expect(process.memoryUsage().rss - before).toBeLessThan(16e6);
});
