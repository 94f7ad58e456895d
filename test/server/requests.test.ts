// What requests mean and which are refused: over a model that plays back parts, so that every option and every kind of part can be seen.
import { describe, expect, test } from "bun:test";
import { BaoError, DisposedError, KernelError, ResourceError, UsageError } from "../../src/errors.ts";
import { caller, finish, readEvents, scripted, STORY, USAGE } from "./harness.ts";

const plain = [{ type: "text", text: "Hi" }, finish()] as const;
const tool = { type: "function", function: { name: "weather", description: "d", parameters: { type: "object", properties: { city: { type: "string" } } } } };

describe("chat: fields become options", () => {
  test("every field that is understood arrives in the engine", async () => {
    const model = scripted(plain);
    const response = await caller(model).chat({
      model: "scripted", temperature: 0.5, top_p: 0.9, top_k: 7, min_p: 0.1, repetition_penalty: 1.1, presence_penalty: 0.2, frequency_penalty: 0.3, seed: -1,
      logit_bias: { "5": -100, "6": 2.5 }, max_tokens: 9, max_completion_tokens: 11, stop: ["a", "b"], logprobs: true, top_logprobs: 2, reasoning_effort: "low", tools: [tool], tool_choice: { type: "function", function: { name: "weather" } }, parallel_tool_calls: true,
      response_format: { type: "json_schema", json_schema: { name: "n", strict: true, schema: { type: "object" } } },
    });
    expect(response.status).toBe(200);
    const { signal: _, ...options } = model.asked[0]!.options;
    expect(options).toEqual({
      temperature: 0.5, topP: 0.9, topK: 7, minP: 0.1, repetitionPenalty: 1.1, presencePenalty: 0.2, frequencyPenalty: 0.3, seed: Number.MAX_SAFE_INTEGER,
      logitBias: new Map([[5, -Infinity], [6, 2.5]]), maxTokens: 11, stop: ["a", "b"], logprobs: 2, thinking: true, tools: [tool.function], toolChoice: { name: "weather" }, parallelToolCalls: true, responseFormat: { type: "json_schema", schema: { type: "object" } },
    });
  });
  test("without them nothing is decided for the model", async () => {
    const model = scripted(plain);
    await caller(model).chat({ temperature: null, stop: null, tools: null });
    const { signal: _, ...options } = model.asked[0]!.options;
    expect(options).toEqual({});
  });
  test("messages: roles, parts, calls, results, thoughts", async () => {
    const model = scripted(plain);
    const response = await caller(model).chat({
      messages: [
        { role: "developer", content: "Be kind." }, { role: "user", content: [{ type: "text", text: "a" }, { type: "text", text: "b" }] },
        { role: "assistant", content: null, reasoning_content: "hm", tool_calls: [{ id: "c1", type: "function", function: { name: "weather", arguments: '{"city":"Oslo"}' } }] },
        { role: "tool", tool_call_id: "c1", content: "4 degrees" }, { role: "assistant", content: "Cold." },
      ],
    });
    expect(response.status).toBe(200);
    expect(model.asked[0]!.prompt).toEqual([
      { role: "system", content: "Be kind." }, { role: "user", content: [{ type: "text", text: "a" }, { type: "text", text: "b" }] },
      { role: "assistant", reasoning: "hm", toolCalls: [{ id: "c1", name: "weather", arguments: '{"city":"Oslo"}' }] },
      { role: "tool", content: "4 degrees", toolCallId: "c1" }, { role: "assistant", content: "Cold." },
    ]);
  });
  test("reasoning_effort none turns thinking off; json_object asks for any object", async () => {
    const model = scripted(plain);
    await caller(model).chat({ tools: [tool], tool_choice: "none", reasoning_effort: "none", response_format: { type: "json_object" } });
    expect(model.asked[0]!.options).toMatchObject({ toolChoice: "none", thinking: false, responseFormat: { type: "json_object" } });
  });
  test("a model whose template knows neither tools nor thoughts: both are refused, not ignored; forced calls are held to their form", async () => {
    const model = { ...scripted(plain), info: { ...scripted([]).info, chat: { tools: false, thinking: false } } };
    const { chat, post } = caller(model);
    const of = async (response: Response): Promise<unknown[]> => { const { error } = await response.json() as any; return [response.status, error?.code, error?.param]; };
    expect(await of(await chat({ tools: [tool] }))).toEqual([400, "tools_unsupported", "tools"]);
    expect(await of(await chat({ reasoning_effort: "high" }))).toEqual([400, "unsupported_parameter", "reasoning_effort"]);
    expect(await of(await chat({ chat_template_kwargs: { enable_thinking: true } }))).toEqual([400, "unsupported_parameter", "chat_template_kwargs"]);
    expect(await of(await post("/v1/responses", { input: "x", reasoning: { effort: "low" } }))).toEqual([400, "unsupported_parameter", "reasoning.effort"]);
    expect((await chat({ tools: [tool], tool_choice: "required", reasoning_effort: "none" })).status).toBe(200);
  });
  test("n answers of a seeded request have seeds of their own and share the prompt's tokens", async () => {
    const model = scripted(plain);
    const body = await (await caller(model).chat({ n: 2, seed: 7 })).json() as any;
    expect(model.asked.map((a) => a.options.seed)).toEqual([7, 8]);
    expect(body.choices.map((c: any) => [c.index, c.message.content])).toEqual([[0, "Hi"], [1, "Hi"]]);
    expect(body.usage).toEqual({ prompt_tokens: 7, completion_tokens: 10, total_tokens: 17, prompt_tokens_details: { cached_tokens: 3 }, completion_tokens_details: { reasoning_tokens: 4 } });
  });
});

describe("what is not understood is refused by name", () => {
  test.each([
    [{ foo: 1 }, "unknown_parameter", "foo"],
    [{ messages: [{ ...STORY, colour: "red" }] }, "unknown_parameter", "messages[0].colour"],
    [{ messages: [{ ...STORY, name: "Ann" }] }, "unsupported_parameter", "messages[0].name"],
    [{ messages: [{ role: "user", content: [{ type: "image_url", image_url: { url: "data:" } }] }] }, "unsupported_parameter", "messages[0].content[0].type"],
    [{ messages: [{ role: "user", content: [{ type: "text" }] }] }, "invalid_value", "messages[0].content[0].text"],
    [{ messages: [{ role: "user", content: 7 }] }, "invalid_value", "messages[0].content"],
    [{ messages: [{ role: "bot", content: "x" }] }, "invalid_value", "messages[0].role"],
    [{ messages: [{ role: "tool", content: "x" }] }, "missing_required_parameter", "messages[0].tool_call_id"],
    [{ messages: [] }, "invalid_value", "messages"],
    [{ messages: undefined }, "missing_required_parameter", "messages"],
    [{ temperature: "hot" }, "invalid_value", "temperature"],
    [{ top_p: 0 }, "invalid_value", "top_p"],
    [{ max_tokens: 0 }, "invalid_value", "max_tokens"],
    [{ stop: "" }, "invalid_value", "stop"],
    [{ n: 99 }, "invalid_value", "n"],
    [{ top_logprobs: 3 }, "invalid_value", "top_logprobs"],
    [{ logit_bias: { x: 1 } }, "invalid_value", "logit_bias.x"],
    [{ response_format: { type: "grammar" } }, "invalid_value", "response_format.type"],
    [{ response_format: { type: "json_schema", json_schema: { name: "n", colour: 1 } } }, "unknown_parameter", "response_format.json_schema.colour"],
    [{ tool_choice: { type: "allowed_tools" } }, "invalid_value", "tool_choice.type"],
    [{ tools: [{ type: "web_search" }] }, "invalid_value", "tools[0].type"],
    [{ verbosity: "low" }, "unsupported_parameter", "verbosity"],
    [{ modalities: ["text", "audio"] }, "unsupported_parameter", "modalities"],
    [{ audio: {} }, "unsupported_parameter", "audio"],
    [{ functions: [{}] }, "unsupported_parameter", "functions"],
    [{ web_search_options: {} }, "unsupported_parameter", "web_search_options"],
    [{ chat_template_kwargs: { style: "x" } }, "unknown_parameter", "chat_template_kwargs.style"],
  ])("%j", async (fields, code, param) => {
    const model = scripted(plain);
    const response = await caller(model).chat(fields);
    const { error } = await response.json() as any;
    expect([response.status, error.code, error.param, error.type]).toEqual([400, code, param, "invalid_request_error"]);
    expect(error.message.length).toBeGreaterThan(10);
    expect(model.asked).toEqual([]);
  });
  test("harmless fields are accepted", async () => {
    const response = await caller(scripted(plain)).chat({
      user: "u", metadata: { a: "b" }, store: true, service_tier: "auto", safety_identifier: "s", prompt_cache_key: "k", prediction: { type: "content", content: "x" },
      verbosity: "medium", modalities: ["text"], response_format: { type: "text" }, parallel_tool_calls: true, stream_options: { include_obfuscation: true },
    });
    expect(response.status).toBe(200);
  });
  test("a body that is no JSON object, another content type, an unknown model, an unknown address", async () => {
    const { app, post } = caller(scripted(plain));
    const raw = (body: string, type = "application/json"): Promise<Response> => Promise.resolve(app.fetch(new Request("http://localhost/v1/chat/completions", { method: "POST", headers: { "Content-Type": type }, body })));
    const of = async (response: Response): Promise<unknown[]> => [response.status, ((await response.json()) as any).error.code];
    expect(await of(await raw("{"))).toEqual([400, "invalid_json"]);
    expect(await of(await raw("[]"))).toEqual([400, "invalid_body"]);
    expect(await of(await raw("{}", "text/plain"))).toEqual([415, "unsupported_media_type"]);
    expect(await of(await post("/v1/chat/completions", { model: "gpt-9", messages: [STORY] }))).toEqual([404, "model_not_found"]);
    expect(await of(await post("/v1/nothing", {}))).toEqual([404, "unknown_url"]);
    expect(await of(await caller(scripted(plain), { maxBody: 100 }).chat({ user: "x".repeat(200) }))).toEqual([413, "body_too_large"]);
  });
});

describe("failures have the right status", () => {
  test.each([
    ["context_length_exceeded", 400, "messages", new UsageError("context_length_exceeded", "The prompt has 9 tokens, the context holds 5", "Shorten it.")],
    ["bad_sampling", 400, "top_k", new UsageError("bad_sampling", "topK: expected a whole number, found 1.5")],
    ["unsupported_schema", 400, "response_format", new UsageError("unsupported_schema", "age: \"not\" cannot be guaranteed")],
    ["unsupported_schema", 400, "tools", new UsageError("unsupported_schema", "parameters of weather: \"not\" cannot be guaranteed")],
    ["tool_schema", 400, "tools", new UsageError("tool_schema", "the parameters are no schema")],
    ["tool_arguments", 400, "messages", new UsageError("tool_arguments", "the arguments are not valid JSON")],
    ["chat_template", 400, "messages", new UsageError("chat_template", "the template refuses")],
    ["kv_full", 503, null, new ResourceError("kv_full", "no pages are left")],
    ["shutting_down", 503, null, new DisposedError("Model")],
    ["device", 500, null, new KernelError("device", "lost", "bao_wait", 4)],
    ["not_finite", 500, null, new BaoError("not_finite", "The logits are not finite")],
    ["internal_error", 500, null, new TypeError("secret detail")],
  ])("%s: %i", async (code, status, param, thrown) => {
    const seen: unknown[] = [];
    const { chat } = caller(scripted([thrown]), { onError: (e) => seen.push(e) });
    for (const stream of [false, true]) {
      const response = await chat({ stream });
      const { error } = await response.json() as any;
      expect([response.status, error.code, error.param]).toEqual([status, code, param]);
      expect(error.message).not.toContain("secret");
    }
    expect(seen.length).toBe(status >= 500 ? 2 : 0);
  });
  test("after the first event a failure is an event, and the stream ends", async () => {
    const { events } = await readEvents(await caller(scripted([plain[0], new KernelError("device_lost", "gone", "bao_wait", 4)])).chat({ stream: true }));
    expect(events.at(-1)!.data).toEqual({ error: { message: "gone", type: "server_error", param: null, code: "device_lost" } });
  });
  test("a lost device or engine shows in /health", async () => {
    const { app, chat } = caller(scripted([new KernelError("device_lost", "gone", "bao_wait", 4)]));
    const health = async (): Promise<unknown[]> => { const r = await app.fetch(new Request("http://localhost/health")); return [r.status, ((await r.json()) as any).status]; };
    expect(await health()).toEqual([200, "ok"]);
    expect((await chat({})).status).toBe(500);
    expect(await health()).toEqual([503, "device_lost"]);
  });
  test("context_length_exceeded says the sentence that agents look for", async () => {
    const response = await caller(scripted([new UsageError("context_length_exceeded", "The prompt has 9 tokens, the context holds 5", "Use a larger context (--ctx 9).")])).chat({});
    const { message } = ((await response.json()) as any).error;
    expect(message).toMatch(/maximum context length.*9 tokens.*holds 5/);
    expect(message).not.toContain("--ctx"); // a client cannot restart the server
  });
});

describe("thoughts and tool calls", () => {
  const parts = [
    { type: "thought", text: "Let me " }, { type: "thought", text: "see." }, { type: "text", text: "Two calls:" },
    { type: "tool_call", name: "weather", arguments: { city: "Oslo" } }, { type: "tool_call", name: "time", arguments: {} }, finish("tool_calls"),
  ] as const;
  test("whole", async () => {
    const body = await (await caller(scripted(parts)).chat({ tools: [tool] })).json() as any;
    const { message, finish_reason } = body.choices[0];
    expect(finish_reason).toBe("tool_calls");
    expect(message).toMatchObject({ role: "assistant", content: "Two calls:", reasoning_content: "Let me see.", refusal: null });
    expect(message.tool_calls.map((c: any) => [c.type, c.function])).toEqual([["function", { name: "weather", arguments: '{"city":"Oslo"}' }], ["function", { name: "time", arguments: "{}" }]]);
    expect(new Set(message.tool_calls.map((c: any) => c.id)).size).toBe(2);
  });
  test("calls alone: content is null", async () => {
    const body = await (await caller(scripted(parts.slice(3))).chat({ tools: [tool] })).json() as any;
    expect(body.choices[0].message.content).toBeNull();
  });
  test("streamed", async () => {
    const { events } = await readEvents(await caller(scripted(parts)).chat({ tools: [tool], stream: true }));
    const deltas = events.filter((e) => e.data !== "[DONE]").map((e) => e.data.choices[0].delta);
    expect(deltas.map((d: any) => Object.keys(d).join())).toEqual(["role,content", "reasoning_content", "reasoning_content", "content", "tool_calls", "tool_calls", ""]);
    expect(deltas.slice(4, 6).map((d: any) => [d.tool_calls[0].index, d.tool_calls[0].function])).toEqual([[0, { name: "weather", arguments: '{"city":"Oslo"}' }], [1, { name: "time", arguments: "{}" }]]);
    expect(events.at(-2)!.data.choices[0].finish_reason).toBe("tool_calls");
  });
  test("parallel_tool_calls false ends the answer after its first call", async () => {
    const model = scripted(parts);
    const body = await (await caller(model).chat({ tools: [tool], parallel_tool_calls: false })).json() as any;
    expect(body.choices[0].message.tool_calls.length).toBe(1);
    expect(body.choices[0].finish_reason).toBe("tool_calls");
    expect(model.ended).toEqual(["aborted"]);
  });
  test("a malformed call is a typed error with its text, never silence", async () => {
    const broken = [{ type: "error", code: "tool_call_malformed", message: "malformed tool call: expected }", raw: "call:weather{city:" }, finish()] as const;
    const { chat } = caller(scripted(broken));
    const response = await chat({ tools: [tool] });
    expect(response.status).toBe(422);
    expect(((await response.json()) as any).error).toMatchObject({ code: "tool_call_malformed", failed_generation: "call:weather{city:" });
    const { events } = await readEvents(await caller(scripted([plain[0], ...broken])).chat({ stream: true }));
    expect(events.at(-1)!.data.error).toMatchObject({ code: "tool_call_malformed", failed_generation: "call:weather{city:" });
  });
});

describe("logprobs", () => {
  const token = (id: number, text: string): any => ({ type: "token", id, text, logprob: -0.5, top: [{ id, text: ` t${id}`, logprob: -0.5 }, { id: 9, text: " t9", logprob: -Infinity }] });
  test("belong to the visible text: not to thoughts, not to the stop token", async () => {
    const model = scripted([token(1, "think"), { type: "thought", text: "think" }, token(2, "Hel"), token(3, "lo"), { type: "text", text: "Hello" }, token(6, "<end>"), finish()]);
    const body = await (await caller(model).chat({ logprobs: true, top_logprobs: 2 })).json() as any;
    const { content } = body.choices[0].logprobs;
    expect(content.map((t: any) => t.token)).toEqual(["Hel", "lo"]);
    expect(content[0]).toEqual({ token: "Hel", logprob: -0.5, bytes: [72, 101, 108], top_logprobs: [{ token: " t2", logprob: -0.5, bytes: [32, 116, 50] }, { token: " t9", logprob: -9999, bytes: [32, 116, 57] }] });
  });
  test("completions have their older shape", async () => {
    const { post } = caller(scripted([token(2, "Hel"), token(3, "lo"), { type: "text", text: "Hello" }, finish("length")]));
    const body = await (await post("/v1/completions", { prompt: "x", logprobs: 2 })).json() as any;
    expect(body.choices[0].logprobs).toEqual({ tokens: ["Hel", "lo"], token_logprobs: [-0.5, -0.5], top_logprobs: [{ " t2": -0.5, " t9": -9999 }, { " t3": -0.5, " t9": -9999 }], text_offset: [0, 3] });
  });
});

describe("completions", () => {
  test("texts and ids, several at once, are continued as they are", async () => {
    const model = scripted(plain);
    const { post } = caller(model);
    for (const prompt of ["a", ["a", "b"], [1, 2], [[1, 2], [3]]]) expect((await post("/v1/completions", { prompt, max_tokens: 3 })).status).toBe(200);
    expect(model.asked.map((a) => a.prompt)).toEqual(["a", "a", "b", { ids: [1, 2] }, { ids: [1, 2] }, { ids: [3] }]);
    expect(model.asked.every((a) => a.options.raw === true && a.options.maxTokens === 3)).toBe(true);
  });
  test.each([[{ echo: true }, "echo"], [{ suffix: "x" }, "suffix"], [{ best_of: 2 }, "best_of"], [{ prompt: {} }, "prompt"], [{ prompt: [1.5] }, "prompt"]])("%j is refused", async (fields, param) => {
    const response = await caller(scripted(plain)).post("/v1/completions", { prompt: "a", ...fields });
    const { error } = await response.json() as any;
    expect(response.status).toBe(400);
    expect(error.param).toStartWith(param);
  });
});

describe("responses", () => {
  test("items become messages", async () => {
    const model = scripted(plain);
    const response = await caller(model).post("/v1/responses", {
      instructions: "Be kind.", max_output_tokens: 5, reasoning: { effort: "high" }, tools: [{ type: "function", name: "weather", parameters: {}, strict: true }], tool_choice: { type: "function", name: "weather" },
      text: { format: { type: "json_schema", name: "n", schema: { type: "object" }, strict: true } },
      input: [
        { role: "user", content: [{ type: "input_text", text: "hi" }] }, { type: "reasoning", id: "r", summary: [], content: [{ type: "reasoning_text", text: "hm" }] },
        { type: "function_call", call_id: "c1", name: "weather", arguments: "{}" }, { type: "function_call_output", call_id: "c1", output: "cold" },
        { type: "message", role: "assistant", content: [{ type: "output_text", text: "Cold.", annotations: [] }], status: "completed", id: "m" },
      ],
    });
    expect(response.status).toBe(200);
    expect(model.asked[0]!.prompt).toEqual([
      { role: "system", content: "Be kind." }, { role: "user", content: "hi" }, { role: "assistant", reasoning: "hm", toolCalls: [{ id: "c1", name: "weather", arguments: "{}" }] },
      { role: "tool", content: "cold", toolCallId: "c1" }, { role: "assistant", content: "Cold." },
    ]);
    expect(model.asked[0]!.options).toMatchObject({ maxTokens: 5, thinking: true, tools: [{ name: "weather", parameters: {}, strict: true }], toolChoice: { name: "weather" }, responseFormat: { type: "json_schema", schema: { type: "object" } } });
  });
  test("parts become items and events, in order and numbered", async () => {
    const model = scripted([
      { type: "thought", text: "hm" }, { type: "text", text: "a" }, { type: "text", text: "b" }, { type: "tool_call", name: "weather", arguments: { city: "Oslo" } }, finish("tool_calls"),
    ]);
    const { events } = await readEvents(await caller(model).post("/v1/responses", { input: "x", stream: true }));
    expect(events.map((e) => e.data.sequence_number)).toEqual(events.map((_, i) => i));
    expect(events.every((e) => e.name === e.data.type)).toBe(true);
    expect(events.map((e) => e.data.type.replace("response.", ""))).toEqual([
      "created", "in_progress",
      "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", "output_item.done",
      "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
      "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done", "completed",
    ]);
    const { response } = events.at(-1)!.data;
    expect(response.output.map((i: any) => i.type)).toEqual(["reasoning", "message", "function_call"]);
    expect(response.output[1].content[0].text).toBe("ab");
    expect(response.output[2]).toMatchObject({ name: "weather", arguments: '{"city":"Oslo"}', status: "completed" });
    expect(response.usage).toMatchObject({ input_tokens: USAGE.promptTokens, output_tokens: USAGE.completionTokens, input_tokens_details: { cached_tokens: USAGE.cachedTokens }, output_tokens_details: { reasoning_tokens: USAGE.thoughtTokens } });
    // Each delta names the item that it belongs to.
    const delta = events.find((e) => e.data.type === "response.output_text.delta")!.data;
    expect([delta.item_id, delta.output_index]).toEqual([response.output[1].id, 1]);
  });
  test("an answer cut by its limit is incomplete; a failure under way is response.failed", async () => {
    const body = await (await caller(scripted([plain[0], finish("length")])).post("/v1/responses", { input: "x" })).json() as any;
    expect([body.status, body.incomplete_details, body.output[0].status]).toEqual(["incomplete", { reason: "max_output_tokens" }, "incomplete"]);
    const { events } = await readEvents(await caller(scripted([plain[0], new KernelError("device_lost", "gone", "f", 4)])).post("/v1/responses", { input: "x", stream: true }));
    expect(events.at(-1)!.data).toMatchObject({ type: "response.failed", response: { status: "failed", error: { code: "device_lost" } } });
  });
  test.each([
    [{ previous_response_id: "r" }, "previous_response_id"], [{ conversation: "c" }, "conversation"], [{ background: true }, "background"], [{ truncation: "auto" }, "truncation"],
    [{ tools: [{ type: "web_search" }] }, "tools[0]"], [{ text: { verbosity: "low" } }, "text.verbosity"], [{ input: [{ type: "item_reference", id: "x" }] }, "input[0].type"],
    [{ input: [{ role: "user", content: [{ type: "input_image" }] }] }, "input[0].content[0].type"], [{ reasoning: { summary: "detailed" } }, "reasoning.summary"], [{ foo: 1 }, "foo"],
  ])("%j is refused", async (fields, param) => {
    const response = await caller(scripted(plain)).post("/v1/responses", { input: "x", ...fields });
    const { error } = await response.json() as any;
    expect([response.status, error.param]).toEqual([400, param]);
  });
});

describe("embeddings", () => {
  const vector = Float32Array.from([0.5, -0.25, 1e-8]);
  const embedding = (): ReturnType<typeof scripted> & { inputs: unknown[] } => {
    const inputs: unknown[] = [];
    return { ...scripted([]), inputs, embed: async (list) => { inputs.push(...list); return list.map(() => ({ vector, tokens: 2 })); } };
  };
  test("texts and ids, one or many, as numbers or as base64", async () => {
    for (const [input, asked] of [["a", ["a"]], [["a", "b"], ["a", "b"]], [[1, 2], [{ ids: [1, 2] }]], [[[1], [2, 3]], [{ ids: [1] }, { ids: [2, 3] }]]] as const) {
      const model = embedding();
      const body = await (await caller(model).post("/v1/embeddings", { input })).json() as any;
      expect(model.inputs).toEqual([...asked]);
      expect(body.data.map((d: any) => [d.object, d.index, d.embedding])).toEqual(asked.map((_, i) => ["embedding", i, [...vector]]));
      expect(body.usage).toEqual({ prompt_tokens: 2 * asked.length, total_tokens: 2 * asked.length });
    }
    const { data } = await (await caller(embedding()).post("/v1/embeddings", { input: "a", encoding_format: "base64" })).json() as any;
    expect(data[0].embedding).toBe(Buffer.from(new Uint8Array(vector.buffer)).toString("base64"));
  });
  test.each([[{ input: "" }, "input"], [{ input: [] }, "input"], [{ input: [["x"]] }, "input"], [{ dimensions: 5 }, "dimensions"], [{ encoding_format: "hex" }, "encoding_format"], [{ input: undefined }, "input"]])("%j is refused", async (fields, param) => {
    const response = await caller(embedding()).post("/v1/embeddings", { input: "a", ...fields });
    expect([response.status, ((await response.json()) as any).error.param.split("[")[0]]).toEqual([400, param]);
  });
  test("a model without embeddings says so", async () => {
    const response = await caller(scripted([])).post("/v1/embeddings", { input: "a" });
    expect([response.status, ((await response.json()) as any).error.code]).toEqual([400, "unsupported_parameter"]);
  });
});
