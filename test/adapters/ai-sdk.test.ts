// The AI SDK's own functions over the adapter: text from the demo model, everything else from a model that plays back parts.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { embedMany, generateText, jsonSchema, Output, stepCountIs, streamText, tool, type ModelMessage } from "ai";
import { embeddingModel, languageModel } from "../../src/adapters/ai-sdk.ts";
import type { Model } from "../../src/index.ts";
import { finish, loadDemo, scripted, STORY, USAGE } from "../server/harness.ts";

setDefaultTimeout(30_000);
// Warnings are looked at where they matter.
globalThis.AI_SDK_LOG_WARNINGS = false;
const prompt = STORY.content;

describe("the demo model", () => {
  let model: Model;
  beforeAll(async () => { model = await loadDemo({ sessions: 2 }); });
  afterAll(async () => { await model.dispose(); });
  const greedy = { temperature: 0, maxOutputTokens: 24, maxRetries: 0 } as const;

  test("generateText and streamText give what the library gives", async () => {
    const own = await model.generate(prompt, { temperature: 0, maxTokens: 24 }).text();
    const whole = await generateText({ model: languageModel(model), prompt, ...greedy });
    expect(whole.text).toBe(own);
    expect(whole.finishReason).toBe("length");
    expect(whole.usage.outputTokens).toBe(24);
    expect(whole.usage.inputTokens!).toBeGreaterThan(5);
    expect(whole.response.modelId).toBe("demo");
    const stream = streamText({ model: languageModel(model), prompt, ...greedy });
    const deltas: string[] = [];
    for await (const delta of stream.textStream) deltas.push(delta);
    expect(deltas.join("")).toBe(own);
    expect(deltas.length).toBeGreaterThan(15);
    expect(await stream.finishReason).toBe("length");
    // The same prompt for the third time.
    expect((await stream.usage).inputTokenDetails.cacheReadTokens).toBe((await stream.usage).inputTokens! - 1);
  });
  test("instructions, stop sequences and seeds arrive", async () => {
    const own = await model.generate(prompt, { temperature: 0, maxTokens: 24, system: "Be short." }).text();
    const stop = own.slice(10, 16);
    const { text, finishReason } = await generateText({ model: languageModel(model), instructions: "Be short.", prompt, ...greedy, stopSequences: [stop] });
    expect([text, finishReason]).toEqual([own.slice(0, own.indexOf(stop)), "stop"]);
    const seeded = (seed: number): Promise<string> => generateText({ model: languageModel(model), prompt, ...greedy, temperature: 1, seed }).then((r) => r.text);
    expect(await seeded(3)).toBe(await seeded(3));
  });
  test("an abort ends the stream and the work", async () => {
    const controller = new AbortController();
    const stream = streamText({ model: languageModel(model), prompt, temperature: 1, abortSignal: controller.signal, maxRetries: 0 });
    const types: string[] = [];
    for await (const part of stream.fullStream) {
      types.push(part.type);
      if (part.type === "text-delta") controller.abort();
    }
    expect(types.at(-1)).toBe("abort");
    expect((await generateText({ model: languageModel(model), prompt, ...greedy })).text.length).toBeGreaterThan(20);
  });
  test("structured output and forced calls: objects of the schema from a model that only tells stories", async () => {
    const schema = jsonSchema<{ name: string; legs: number }>({ type: "object", properties: { name: { type: "string", maxLength: 12 }, legs: { type: "integer", minimum: 0, maximum: 8 } }, required: ["name", "legs"], additionalProperties: false });
    const { output } = await generateText({ model: languageModel(model), prompt: "A dog.", output: Output.object({ schema }), temperature: 0, maxOutputTokens: 80, maxRetries: 0 });
    expect(typeof output.name).toBe("string");
    expect(output.legs).toBeGreaterThanOrEqual(0);
    const { toolCalls, finishReason } = await generateText({ model: languageModel(model), prompt: "A dog.", tools: { pet: tool({ inputSchema: schema }) }, toolChoice: "required", temperature: 0, maxOutputTokens: 120, maxRetries: 0 });
    expect(toolCalls[0]!.toolName).toBe("pet");
    expect(Object.keys(toolCalls[0]!.input as object).sort()).toEqual(["legs", "name"]);
    expect(["tool-calls", "length"]).toContain(finishReason);
  });
  test("embedMany gives the library's vectors", async () => {
    const values = ["a little dog", "the sea"], own = await model.embed(values);
    const { embeddings, usage } = await embedMany({ model: embeddingModel(model), values });
    expect(embeddings).toEqual(own.map((e) => [...e.vector]));
    expect(usage.tokens).toBe(own.reduce((n, e) => n + e.tokens, 0));
  });
  test("errors of the engine come through as they are", async () => {
    const error = await generateText({ model: languageModel(model), prompt: "word ".repeat(3000), maxRetries: 0 }).catch((e: unknown) => e);
    expect(error).toMatchObject({ code: "context_length_exceeded" });
  });
});

describe("every kind of part", () => {
  test("settings become options; what is not supported becomes a warning", async () => {
    const model = scripted([{ type: "text", text: "x" }, finish()]);
    const { warnings } = await generateText({
      model: languageModel(model), prompt: "hi", maxOutputTokens: 3, temperature: 0.1, topP: 0.2, topK: 3, presencePenalty: 0.4, frequencyPenalty: 0.5, seed: 6, stopSequences: ["s"], reasoning: "high",
      providerOptions: { bao: { minP: 0.1, colour: "red" } }, tools: { a: tool({ inputSchema: jsonSchema({ type: "object" }), strict: true }) },
    });
    const { signal: _, ...options } = model.asked[0]!.options;
    expect(options).toMatchObject({ maxTokens: 3, temperature: 0.1, topP: 0.2, topK: 3, presencePenalty: 0.4, frequencyPenalty: 0.5, seed: 6, stop: ["s"], thinking: true, minP: 0.1 });
    expect(options.tools).toMatchObject([{ name: "a", parameters: { type: "object" }, strict: true }]);
    expect(warnings!.map((w) => ("feature" in w ? w.feature : w.type))).toEqual(["reasoning", "providerOptions.bao.colour"]);
    const prompt = [{ role: "user" as const, content: [{ type: "text" as const, text: "hi" }] }], tools = [{ type: "function" as const, name: "a", inputSchema: { type: "object" as const } }];
    await languageModel(model).doGenerate({ prompt, tools, toolChoice: { type: "tool", toolName: "a" }, responseFormat: { type: "json", schema: { type: "object" } } });
    expect(model.asked.at(-1)!.options).toMatchObject({ toolChoice: { name: "a" }, responseFormat: { type: "json_schema", schema: { type: "object" } } });
    // What the model's template does not know of.
    const simple = { ...model, info: { ...model.info, chat: { tools: false, thinking: false } } };
    expect((await languageModel(simple).doGenerate({ prompt, tools, reasoning: "low" })).warnings).toMatchObject([{ type: "unsupported", feature: "reasoning" }, { type: "unsupported", feature: "tools" }]);
  });
  test("thoughts are reasoning, whole and streamed", async () => {
    const parts = [{ type: "thought", text: "Let me " }, { type: "thought", text: "see." }, { type: "text", text: "Yes." }, finish()] as const;
    const whole = await generateText({ model: languageModel(scripted(parts)), prompt: "hi" });
    expect([whole.reasoningText, whole.text, whole.finishReason]).toEqual(["Let me see.", "Yes.", "stop"]);
    expect(whole.usage).toMatchObject({ inputTokens: USAGE.promptTokens, outputTokens: USAGE.completionTokens, inputTokenDetails: { cacheReadTokens: USAGE.cachedTokens, noCacheTokens: USAGE.promptTokens - USAGE.cachedTokens } });
    const types: string[] = [];
    for await (const part of streamText({ model: languageModel(scripted(parts)), prompt: "hi" }).fullStream) types.push(part.type);
    expect(types.filter((t) => /^(text|reasoning)-/.test(t))).toEqual(["reasoning-start", "reasoning-delta", "reasoning-delta", "reasoning-end", "text-start", "text-delta", "text-end"]);
  });
  test("a tool is called, its result goes back, and the answer follows", async () => {
    const first = scripted([{ type: "text", text: "Looking." }, { type: "tool_call", name: "weather", arguments: { city: "Oslo" } }, finish("tool_calls")]);
    const second = scripted([{ type: "text", text: "4 degrees." }, finish()]);
    let step = 0;
    const model = { ...first, generate: (...a: Parameters<typeof first.generate>) => (step++ === 0 ? first : second).generate(...a) };
    const asked: unknown[] = [];
    const weather = tool({ description: "d", inputSchema: jsonSchema<{ city: string }>({ type: "object", properties: { city: { type: "string" } } }), execute: async (input) => { asked.push(input); return { degrees: 4 }; } });
    const result = await generateText({ model: languageModel(model), prompt: "How cold is Oslo?", tools: { weather }, stopWhen: stepCountIs(3) });
    expect(asked).toEqual([{ city: "Oslo" }]);
    expect(result.text).toBe("4 degrees.");
    const messages = second.asked[0]!.prompt as any[];
    const { id } = messages[1].toolCalls[0];
    expect(messages).toEqual([
      { role: "user", content: [{ type: "text", text: "How cold is Oslo?" }] },
      { role: "assistant", content: "Looking.", toolCalls: [{ id, name: "weather", arguments: { city: "Oslo" } }] },
      { role: "tool", toolCallId: id, name: "weather", content: { degrees: 4 } },
    ]);
  });
  test("a malformed call is an error, never silence", async () => {
    const parts = [{ type: "error", code: "tool_call_malformed", message: "malformed tool call", raw: "call:x{" }, finish()] as const;
    expect(await generateText({ model: languageModel(scripted(parts)), prompt: "hi", maxRetries: 0 }).catch((e: unknown) => e)).toMatchObject({ code: "tool_call_malformed" });
    const errors: unknown[] = [];
    for await (const part of streamText({ model: languageModel(scripted(parts)), prompt: "hi", onError: () => {} }).fullStream) if (part.type === "error") errors.push(part.error);
    expect(errors).toMatchObject([{ code: "tool_call_malformed" }]);
  });
  test("files are refused by name", async () => {
    const messages: ModelMessage[] = [{ role: "user", content: [{ type: "file", data: new Uint8Array([137, 80, 78, 71]), mediaType: "image/png" }] }];
    expect(await generateText({ model: languageModel(scripted([finish()])), messages, maxRetries: 0 }).catch((e: unknown) => e)).toMatchObject({ code: "unsupported_content", message: expect.stringContaining("image/png") });
  });
});
