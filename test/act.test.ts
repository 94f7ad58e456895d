// act(): functions run here, results go back, failures are the model's to mend; rounds end, aborts are heard. With a scripted model, then a real one.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { z } from "zod";
import { act, type ActPart, type GenerateOptions, load, type Message, type Model, type Prompt, type StreamPart, tool, type Tool, type Usage, UsageError } from "../src/index.ts";
import { writeToolModel } from "./chat/tool-model.ts";
import { TemporaryFolder } from "./engine/fixtures.ts";

setDefaultTimeout(120_000);
const usage: Usage = { promptTokens: 1, cachedTokens: 0, completionTokens: 1, thoughtTokens: 0, prefillMs: 0, decodeMs: 0 };
const text = (t: string): StreamPart[] => [{ type: "text", text: t }, { type: "finish", reason: "stop", usage }];
const calls = (...names: [string, Record<string, unknown>][]): StreamPart[] => [...names.map(([name, args]): StreamPart => ({ type: "tool_call", name, arguments: args })), { type: "finish", reason: "tool_calls", usage }];

/** A model that plays back rounds, and keeps what it was asked. */
class Script {
  readonly asked: { messages: readonly Message[]; options: GenerateOptions }[] = [];
  constructor(private readonly rounds: StreamPart[][]) {}
  async *generate(prompt: Prompt, options: GenerateOptions = {}): AsyncGenerator<StreamPart> {
    this.asked.push({ messages: structuredClone(prompt as readonly Message[]) as Message[], options });
    options.signal?.throwIfAborted();
    yield* this.rounds[Math.min(this.asked.length, this.rounds.length) - 1]!;
  }
}
const add = tool({ name: "add", description: "Adds", parameters: z.object({ a: z.number(), b: z.number().default(10) }), run: ({ a, b }) => a + b });
const weather = tool({ name: "weather", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] }, run: async ({ city }) => { await Bun.sleep(1); return { city, degrees: 3 }; } });
const tools: readonly Tool[] = [add, weather];

test("calls are run, checked and filled in by their schema, and answered in their order", async () => {
  const model = new Script([calls(["weather", { city: "Oslo" }], ["add", { a: 2 }]), text("It is 3 degrees.")]);
  const acting = act(model, "Weather?", tools, { system: "Be brief.", temperature: 0 }), parts: ActPart[] = [];
  for await (const p of acting) parts.push(p);
  expect(parts.map((p) => p.type)).toEqual(["tool_call", "tool_call", "round", "tool_result", "tool_result", "text", "round", "finish"]);
  expect(parts.filter((p) => p.type === "tool_result")).toEqual([
    { type: "tool_result", id: "call_1_1", name: "weather", result: { city: "Oslo", degrees: 3 }, failed: false }, { type: "tool_result", id: "call_1_2", name: "add", result: 12, failed: false },
  ]);
  expect(model.asked[1]!.messages).toEqual([
    { role: "system", content: "Be brief." }, { role: "user", content: "Weather?" },
    { role: "assistant", content: "", toolCalls: [{ id: "call_1_1", name: "weather", arguments: { city: "Oslo" } }, { id: "call_1_2", name: "add", arguments: { a: 2 } }] },
    { role: "tool", toolCallId: "call_1_1", name: "weather", content: { city: "Oslo", degrees: 3 } }, { role: "tool", toolCallId: "call_1_2", name: "add", content: "12" },
  ]);
  expect(model.asked[0]!.options).toMatchObject({ temperature: 0, tools: [{ name: "add", description: "Adds" }, { name: "weather" }] });
  expect("run" in model.asked[0]!.options.tools![0]!).toBe(false);
});

test("what goes wrong is told to the model: bad arguments, unknown functions, exceptions, results that are no JSON, calls that cannot be read", async () => {
  const broken: Tool = { name: "broken", run: () => { throw new Error("no luck"); } }, odd: Tool = { name: "odd", run: () => 1n }, silent: Tool = { name: "silent", run: () => undefined };
  const model = new Script([
    calls(["add", { a: "two" }], ["never", {}], ["broken", {}], ["odd", {}], ["silent", {}]),
    [{ type: "error", code: "tool_call_malformed", message: "malformed tool call: expected }", raw: "call:f{" }, { type: "finish", reason: "stop", usage }],
    text("Sorry."),
  ]);
  const result = await act(model, "x", [...tools, broken, odd, silent]).result();
  const told = model.asked[1]!.messages.filter((m) => m.role === "tool").map((m) => m.content);
  expect(told).toEqual([{ error: expect.stringMatching(/^a: /) }, { error: expect.stringContaining("there is no function never; there are add, weather") }, { error: "no luck" }, { error: expect.any(String) }, "done"] as unknown as typeof told);
  expect(model.asked[2]!.messages.at(-1)).toMatchObject({ role: "user", content: expect.stringContaining("could not be read (malformed tool call: expected })") });
  expect(result).toMatchObject({ text: "Sorry.", rounds: 3, reason: "stop" });
  expect(result.messages.at(-1)).toEqual({ role: "assistant", content: "Sorry." });
});

test("rounds end: the last answer is asked for without tools; a forced choice is for the first round", async () => {
  const model = new Script([calls(["add", { a: 1, b: 1 }])]);
  const result = await act(model, "x", tools, { maxRounds: 2, toolChoice: "required" }).result();
  expect(model.asked.map((a) => a.options.toolChoice)).toEqual(["required", "auto", "none"]);
  expect(result.rounds).toBe(3);
});

test("an abort is heard while a function runs that does not listen, and by one that does", async () => {
  let heard = false;
  const slow: Tool = { name: "slow", run: (_, { signal }) => new Promise(() => { signal?.addEventListener("abort", () => { heard = true; }); }) };
  const stop = new AbortController(), reason = new Error("enough");
  setTimeout(() => stop.abort(reason), 20);
  expect(await act(new Script([calls(["slow", {}])]), "x", [slow], { signal: stop.signal }).result().catch((e: unknown) => e)).toBe(reason);
  expect(heard).toBe(true);
});

test("wrong use is refused at once", () => {
  const model = new Script([text("")]);
  expect(() => act(model, "x", [{ name: "f" } as unknown as Tool])).toThrow(UsageError);
  expect(() => act(model, "x", tools, { maxRounds: 0 })).toThrow(/maxRounds/);
});

describe("with a model that knows of tools", () => {
  const folder = new TemporaryFolder();
  let model: Model;
  beforeAll(async () => {
    const path = folder.file("tools.gguf");
    writeToolModel(path);
    model = await load(path, { device: { threads: 1 }, context: 1024, warmup: false });
  });
  afterAll(async () => {
    await model.dispose();
    folder[Symbol.dispose]();
  });

  test("the first round is forced to call, the answer comes after the result; a session reads nothing twice", async () => {
    expect(model.info.chat?.tools).toBe(true);
    const seen: unknown[] = [];
    const note = tool({ name: "note", parameters: z.object({ text: z.string().max(20), stars: z.number().int().min(1).max(5) }), strict: true, run: (n) => { seen.push(n); return { saved: true }; } });
    await using session = await model.session();
    const parts: ActPart[] = [];
    for await (const p of act(session, "Write a note.", [note], { toolChoice: "required", parallelToolCalls: false, temperature: 1, seed: 5, maxTokens: 200 })) parts.push(p);
    expect(seen).toEqual([{ text: expect.any(String), stars: expect.any(Number) }]);
    const rounds = parts.filter((p) => p.type === "round");
    expect(rounds.length).toBeGreaterThanOrEqual(2);
    // All but the template's empty thought at the prompt's end, which earlier turns do not have.
    expect(rounds[1]!.usage.cachedTokens).toBeGreaterThan(rounds[0]!.usage.promptTokens - 8);
    expect(parts.filter((p) => p.type === "error")).toEqual([]);
  });

  test("zod's schemas as the answer's form", async () => {
    const form = z.object({ name: z.string().min(1).max(30), legs: z.number().int().min(0).max(8), kind: z.enum(["cat", "dog"]) });
    const answer = await model.generate("Invent an animal.", { responseFormat: { type: "json_schema", schema: form }, temperature: 1, seed: 2, maxTokens: 300 }).text();
    expect(form.parse(JSON.parse(answer))).toBeDefined();
  });

  test("any number of answers with calls leaves none behind: calls are whole, or the token limit cut them", async () => {
    for (let seed = 1; seed <= 5; seed++) {
      const { parts, finish } = await model.generate("Go.", { tools: [{ name: "f", parameters: z.object({ a: z.array(z.string()), b: z.object({ c: z.boolean() }).optional() }) }], toolChoice: { name: "f" }, seed, temperature: 1, maxTokens: 120 }).result();
      for (const p of parts) if (p.type === "tool_call") expect(p.arguments["a"]).toBeArray();
      expect(parts.filter((p) => p.type === "error")).toEqual([]);
      expect(parts.some((p) => p.type === "tool_call") || finish.reason === "length").toBe(true);
    }
  });
});

test("a model whose template does not tell it of tools says so, unless a call is forced", async () => {
  await using model = await load(new URL("../models/demo.gguf", import.meta.url).pathname, { context: 256, device: { threads: 1 }, warmup: false });
  expect(await act(model, "x", tools).result().catch((e: unknown) => e)).toMatchObject({ name: "UsageError", code: "tools_unsupported" });
  const { parts } = await model.generate("x", { tools: [{ name: "f" }], toolChoice: "required", maxTokens: 40, temperature: 0, parallelToolCalls: false }).result();
  expect(parts[0]).toEqual({ type: "tool_call", name: "f", arguments: {} });
});
