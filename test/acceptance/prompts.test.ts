// What must not happen to a prompt and to the end of an answer, seen through the public API: two BOS or none, stop tokens shown, silent cuts, no end.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { act, load, type Model, type ToolInput } from "../../src/index.ts";
import { createApp } from "../../src/server/index.ts";
import { writeToolModel } from "../chat/tool-model.ts";
import { DEMO, failure, randomIds, STORIES, TemporaryFolder } from "../engine/fixtures.ts";

setDefaultTimeout(60_000);
const folder = new TemporaryFolder(), CPU = { device: { threads: 1 }, warmup: false } as const;
let model: Model, stories: Model;
beforeAll(async () => {
  model = await load(DEMO, { ...CPU, context: 512, sessions: 2 });
  stories = await load(STORIES, { ...CPU, context: 256, sessions: 2 });
});
afterAll(async () => {
  await Promise.all([model.dispose(), stories.dispose()]);
  folder[Symbol.dispose]();
});

describe("exactly one BOS", () => {
  const ask = { temperature: 0, maxTokens: 6 } as const;
  test.each(["demo", "stories260K"])("chat, raw, raw that brings its own, a second turn, a restored session, embeddings: %s", async (name) => {
    const m = name === "demo" ? model : stories, [bos] = await m.tokenize("");
    const count = (ids: readonly number[]): number[] => [ids.indexOf(bos!), ids.filter((id) => id === bos).length];
    await using session = await m.session();
    for (const text of ["Once upon a time", "<bos>Once", "<s>Once"]) {
      await session.generate(text, { ...ask, raw: true }).text();
      expect([text, count(await session.tokens())]).toEqual([text, [0, 1]]);
    }
    if (m.info.chat) {
      await session.generate([{ role: "user", content: "<bos>Hello" }, { role: "assistant", content: "Hi" }, { role: "user", content: "<bos>" }], ask).text();
      expect(count(await session.tokens())).toEqual([0, 1]);
    }
    const file = folder.file(`${name}.session`), before = await session.tokens();
    await session.save(file);
    await using again = await m.session();
    await again.restore(file);
    await again.generate({ ids: [...before, ...await m.tokenize(" and", { bos: false })] }, ask).text();
    expect(count(await again.tokens())).toEqual([0, 1]);
    await Promise.all([session.dispose(), again.dispose()]);
    expect((await m.embed("Once upon a time")).tokens).toBe((await m.tokenize("Once upon a time")).length);
    expect((await m.embed("<bos>")).tokens).toBe((await m.tokenize("<bos>")).length);
    expect(count(await m.tokenize("<bos>"))).toEqual([0, 1]);
  });
});

describe("a conversation that is too long", () => {
  const long = "dog ".repeat(900);
  test("the library: refused before any compute, with used and max; the session keeps what it had", async () => {
    await using session = await model.session();
    await session.generate("Hi", { temperature: 0, maxTokens: 4 }).text();
    const before = await session.tokens(), error = await failure(session.generate(long).text());
    expect(error).toMatchObject({ name: "UsageError", code: "context_length_exceeded" });
    expect(error.message).toMatch(/\b9\d\d tokens\b.*\b512\b/);
    expect(await session.tokens()).toEqual(before);
  });
  test("the server: 400 context_length_exceeded with used and max, streamed or not, for chat, completions and responses", async () => {
    const app = createApp(model);
    for (const stream of [false, true]) {
      for (const [path, body, param] of [["chat/completions", { messages: [{ role: "user", content: long }] }, "messages"], ["completions", { prompt: long }, "prompt"], ["responses", { input: long }, "input"]] as const) {
        const response = await app.fetch(new Request(`http://localhost/v1/${path}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...body, stream }) }));
        const { error } = (await response.json()) as { error: { code: string; param: string; message: string } };
        expect([response.status, error.code, error.param]).toEqual([400, "context_length_exceeded", param]);
        expect(error.message).toMatch(/\b9\d\d tokens\b.*\b512\b/);
      }
    }
  });
  test("an answer that fills the context ends with length: the whole window is usable, nothing is shifted", async () => {
    const ids = randomIds(1, 100, 512), { finish, usage } = await stories.generate({ ids }, { temperature: 0, ignoreStop: true }).result();
    expect([finish.reason, usage.promptTokens + usage.completionTokens]).toEqual(["length", 256 + 1]); // the last token is drawn and need not be run
  });
});

describe("what a model cannot honour is an error, not silence", () => {
  const tools: ToolInput[] = [{ name: "f" }];
  test("thinking and tools on a model whose template knows of neither; a forced call is held to its form by a grammar", async () => {
    expect(model.info.chat).toEqual({ tools: false, thinking: false });
    expect(await failure(model.generate("Hi", { thinking: true }).text())).toMatchObject({ name: "UsageError", code: "thinking_unsupported" });
    expect(await failure(model.generate("Hi", { tools }).text())).toMatchObject({ name: "UsageError", code: "tools_unsupported" });
    expect((await model.generate("Hi", { tools, toolChoice: "required", parallelToolCalls: false, temperature: 0, maxTokens: 40 }).result()).parts[0]).toEqual({ type: "tool_call", name: "f", arguments: {} });
    expect((await model.generate("Hi", { thinking: false, tools, toolChoice: "none", maxTokens: 2 }).result()).usage.completionTokens).toBe(2);
  });
  test("a system message that has no place", async () => {
    const conversation = [{ role: "user", content: "Hi" }] as const;
    for (const g of [model.generate(conversation, { system: "Be short." }), model.generate("Hi", { raw: true, system: "Be short." }), model.generate({ ids: [2, 5] }, { system: "Be short." })]) {
      expect(await failure(g.text())).toMatchObject({ name: "UsageError", code: "bad_option", message: expect.stringContaining("system") });
    }
    expect(() => act(model, conversation, [], { system: "Be short." })).toThrow("system");
    const withIt = await model.generate("Hi", { system: "Be short.", temperature: 0, maxTokens: 2 }).result();
    expect(withIt.usage.promptTokens).toBeGreaterThan((await model.generate("Hi", { temperature: 0, maxTokens: 2 }).result()).usage.promptTokens);
  });
});

describe("calls", () => {
  test("a call that the token limit cuts is no malformed one: the finish says length; one that is whole is a part", async () => {
    const file = folder.file("tools.gguf");
    writeToolModel(file);
    await using m = await load(file, { ...CPU, context: 1024 });
    const options = { tools: [{ name: "weather", parameters: { type: "object", properties: { city: { enum: ["Rome", "Oslo"] } }, required: ["city"] } }], toolChoice: "required", parallelToolCalls: false, temperature: 0 } as const;
    const whole = await m.generate("Hi", { ...options, maxTokens: 100 }).result();
    expect(whole.parts.filter((p) => p.type !== "finish")).toEqual([{ type: "tool_call", name: "weather", arguments: { city: expect.stringMatching(/Rome|Oslo/) } }]);
    expect(whole.finish.reason).toBe("tool_calls");
    for (let maxTokens = 1; maxTokens < whole.usage.completionTokens; maxTokens++) {
      const { parts } = await m.generate("Hi", { ...options, maxTokens }).result();
      // The last of these limits may fall between the call's end and the stop token.
      expect(parts.map((p) => p.type).filter((t) => t !== "tool_call")).toEqual(["finish"]);
      if (maxTokens < whole.usage.completionTokens - 1) expect(parts).toMatchObject([{ type: "finish", reason: "length" }]);
    }
  });
  test("alternatives of log-probabilities have texts, the drawn token's among them", async () => {
    const { parts, text } = await model.generate("Tell me a story.", { temperature: 0, maxTokens: 12, logprobs: 3 }).result();
    const tokens = parts.flatMap((p) => (p.type === "token" ? [p] : []));
    expect(tokens.map((t) => t.text).join("")).toBe(text);
    for (const t of tokens) expect([t.top.length, t.top[0]]).toEqual([3, { id: t.id, text: t.text, logprob: t.logprob }]);
  });
});
