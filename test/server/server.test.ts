// The server as a client sees it: the demo model over HTTP, read with OpenAI's own client and raw.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import OpenAI, { APIError, AuthenticationError, BadRequestError, NotFoundError, RateLimitError } from "openai";
import type { Model } from "../../src/index.ts";
import { serve, type BaoServer } from "../../src/server/index.ts";
import { loadDemo, readEvents, scripted, STORY } from "./harness.ts";

setDefaultTimeout(30_000);
const KEY = "key-of-the-tests";
const GREEDY = { model: "demo", messages: [STORY], temperature: 0, max_tokens: 24 };
let model: Model, server: BaoServer, client: OpenAI;
beforeAll(async () => {
  model = await loadDemo();
  server = serve(model, { port: 0, apiKeys: ["another", KEY], cors: ["https://app.example"], onError: (e) => { throw e; } });
  client = new OpenAI({ baseURL: new URL("/v1", server.url).href, apiKey: KEY, maxRetries: 0 });
});
afterAll(async () => {
  await server.close(true);
  await model.dispose();
});
const raw = (path: string, body?: unknown, init: RequestInit = {}): Promise<Response> =>
  fetch(new URL(path, server.url), { method: body === undefined ? "GET" : "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${KEY}` }, ...(body === undefined ? {} : { body: JSON.stringify(body) }), ...init });
/** The library's own answer to the same request. */
const alone = async (maxTokens = 24): Promise<string> => model.generate([STORY], { temperature: 0, maxTokens }).text();

describe("chat completions", () => {
  test("whole: text, usage, timings, finish reason", async () => {
    const answer = await client.chat.completions.create(GREEDY);
    expect(answer.choices[0]!.message.content).toBe(await alone());
    expect(answer.choices[0]!.message.content!.length).toBeGreaterThan(40);
    expect(answer.choices[0]!.finish_reason).toBe("length");
    expect(answer.model).toBe("demo");
    const { usage } = answer;
    expect(usage!.completion_tokens).toBe(24);
    expect(usage!.total_tokens).toBe(usage!.prompt_tokens + 24);
    const { timings } = answer as unknown as { timings: Record<string, number> };
    expect(timings["predicted_n"]).toBe(23);
    expect(timings["predicted_per_second"]).toBeGreaterThan(0);
    expect(timings["prompt_n"]! + timings["cache_n"]!).toBe(usage!.prompt_tokens);
  });
  test("streamed: the same text, usage in a chunk of its own before [DONE]", async () => {
    const stream = await client.chat.completions.create({ ...GREEDY, stream: true, stream_options: { include_usage: true } });
    let text = "", usage: OpenAI.CompletionUsage | undefined, chunks = 0, finishes: unknown[] = [];
    for await (const chunk of stream) {
      chunks++;
      text += chunk.choices[0]?.delta.content ?? "";
      if (chunk.choices[0]?.finish_reason) finishes.push(chunk.choices[0].finish_reason);
      if (chunk.usage) { usage = chunk.usage; expect(chunk.choices).toEqual([]); }
    }
    expect(text).toBe(await alone());
    expect(chunks).toBeGreaterThan(20);
    expect(finishes).toEqual(["length"]);
    expect(usage!.completion_tokens).toBe(24);
  });
  test("the raw stream: role first, usage null in every chunk but its own, [DONE] last; without include_usage no usage at all", async () => {
    const response = await raw("/v1/chat/completions", { ...GREEDY, stream: true, stream_options: { include_usage: true } });
    expect(response.headers.get("content-type")).toBe("text/event-stream; charset=utf-8");
    const { events } = await readEvents(response);
    expect(events[0]!.data.choices[0].delta).toEqual({ role: "assistant", content: "" });
    expect(events.at(-1)!.data).toBe("[DONE]");
    expect(events.slice(0, -2).every((e) => e.data.usage === null)).toBe(true);
    expect(events.at(-3)!.data.timings.predicted_n).toBe(23);
    expect(new Set(events.slice(0, -1).map((e) => e.data.id)).size).toBe(1);
    const without = await readEvents(await raw("/v1/chat/completions", { ...GREEDY, stream: true }));
    expect(without.events.slice(0, -1).some((e) => "usage" in e.data)).toBe(false);
  });
  test("OpenAI's stream helper puts the same message together", async () => {
    const final = await client.chat.completions.stream({ ...GREEDY, stream: true }).finalMessage();
    expect(final.content).toBe(await alone());
  });
  test("the same prompt again: its tokens come out of the cache, and say so", async () => {
    const messages = [{ role: "user", content: "Tell me about a dragon who could not fly, and about the kind old owl that taught him." }] as const;
    const ask = () => client.chat.completions.create({ ...GREEDY, messages: [...messages], max_tokens: 4 });
    const first = await ask(), second = await ask();
    expect(second.choices[0]!.message.content).toBe(first.choices[0]!.message.content);
    expect(second.usage!.prompt_tokens_details!.cached_tokens).toBe(second.usage!.prompt_tokens - 1);
  });
  test("after editing the last turn only what is new is computed", async () => {
    const turns = (question: string) => [{ role: "user", content: `Tell me a story about a castle. ${"It stands on a hill. ".repeat(6)}` }, { role: "assistant", content: "Once there was a castle on a hill, and a small dog lived in it." }, { role: "user", content: question }] as const;
    const ask = async (question: string) => (await client.chat.completions.create({ ...GREEDY, messages: [...turns(question)], max_tokens: 3 })).usage!;
    const first = await ask("What was its name?"), second = await ask("Who came to visit it?");
    expect(second.prompt_tokens - second.prompt_tokens_details!.cached_tokens!).toBeLessThan(20);
    expect(second.prompt_tokens).toBeGreaterThan(80);
    expect(first.prompt_tokens_details!.cached_tokens!).toBeLessThan(first.prompt_tokens);
  });
  test("stop texts end the answer and are no part of it", async () => {
    const full = await alone(), stop = full.slice(12, 20);
    const answer = await client.chat.completions.create({ ...GREEDY, stop });
    expect(answer.choices[0]!.message.content).toBe(full.slice(0, full.indexOf(stop)));
    expect(answer.choices[0]!.finish_reason).toBe("stop");
  });
  test("logprobs: one entry a token, their texts are the answer", async () => {
    const answer = await client.chat.completions.create({ ...GREEDY, max_tokens: 8, logprobs: true, top_logprobs: 3 });
    const { content } = answer.choices[0]!.logprobs!;
    expect(content!.map((t) => t.token).join("")).toBe(answer.choices[0]!.message.content!);
    expect(content!.length).toBe(8);
    for (const t of content!) {
      expect(t.top_logprobs.length).toBe(3);
      // Greedy: what was taken is the most likely one.
      expect(t.top_logprobs[0]!.token).toBe(t.token);
      expect(t.logprob).toBeLessThanOrEqual(0);
      expect(new TextDecoder().decode(Uint8Array.from(t.bytes!))).toBe(t.token);
    }
  });
  test("an answer that the model ends itself finishes with stop, and its stop token is in no logprobs", async () => {
    const answer = await client.chat.completions.create({ ...GREEDY, max_tokens: 900, logprobs: true });
    expect(answer.choices[0]!.finish_reason).toBe("stop");
    expect(answer.choices[0]!.message.content).not.toContain("<turn|>");
    expect(answer.choices[0]!.logprobs!.content!.map((t) => t.token).join("")).toBe(answer.choices[0]!.message.content!);
  });
  test("seeds repeat, and differ from each other", async () => {
    const ask = (seed: number) => client.chat.completions.create({ ...GREEDY, temperature: 1, seed }).then((a) => a.choices[0]!.message.content);
    const [a, b, c] = await Promise.all([ask(1), ask(1), ask(2)]);
    expect(b).toBe(a!);
    expect(c).not.toBe(a!);
  });
  test("sixteen at once on four sequences: every greedy answer is the one that it gives alone", async () => {
    const prompts = Array.from({ length: 16 }, (_, i) => `Tell me a story about ${["a cat", "the moon", "a boat", "two birds"][i % 4]} number ${i}.`);
    const together = await Promise.all(prompts.map((content) => client.chat.completions.create({ ...GREEDY, messages: [{ role: "user", content }] })));
    for (const [i, content] of prompts.entries()) {
      expect(together[i]!.choices[0]!.message.content).toBe(await model.generate([{ role: "user", content }], { temperature: 0, maxTokens: 24 }).text());
    }
  });
});

describe("structured answers: a story teller held to a form", () => {
  const schema = { type: "object", properties: { name: { type: "string", maxLength: 12 }, legs: { type: "integer", minimum: 0, maximum: 8 } }, required: ["name", "legs"], additionalProperties: false };
  const pet = { type: "function", function: { name: "pet", description: "d", parameters: schema } } as const;
  const fits = (value: any): void => {
    expect(Object.keys(value).sort()).toEqual(["legs", "name"]);
    expect(value.name.length).toBeLessThanOrEqual(12);
    expect(value.legs >= 0 && value.legs <= 8 && Number.isInteger(value.legs)).toBe(true);
  };
  test("response_format: JSON of the schema, whole and streamed", async () => {
    const request = { ...GREEDY, max_tokens: 100, response_format: { type: "json_schema", json_schema: { name: "pet", schema, strict: true } } } as const;
    const { choices } = await client.chat.completions.create(request);
    expect(choices[0]!.finish_reason).toBe("stop");
    fits(JSON.parse(choices[0]!.message.content!));
    const final = await client.chat.completions.stream({ ...request, stream: true }).finalMessage();
    expect(final.content).toBe(choices[0]!.message.content);
    const any = await client.chat.completions.create({ ...GREEDY, max_tokens: 200, temperature: 1, seed: 5, response_format: { type: "json_object" }, stop: ["}"] });
    expect(any.choices[0]!.message.content!.trimStart()).toStartWith("{");
    const responses = await client.responses.create({ model: "demo", input: STORY.content, temperature: 0, text: { format: { type: "json_schema", name: "pet", schema, strict: true } } });
    fits(JSON.parse(responses.output_text));
  });
  test("characters of several tokens arrive whole: no chunk has half of one", async () => {
    const text = "\u{1f436} \u00e9t\u00e9 \u6c34 \u{1f468}\u200d\u{1f469}\u200d\u{1f467}";
    const request = { ...GREEDY, max_tokens: 200, response_format: { type: "json_schema", json_schema: { name: "x", schema: { const: text } } } };
    const { events } = await readEvents(await raw("/v1/chat/completions", { ...request, stream: true }));
    const chunks = events.slice(0, -1).map((e) => e.data.choices[0].delta.content ?? "");
    expect(JSON.parse(chunks.join(""))).toBe(text);
    expect(chunks.every((c) => !c.includes("\ufffd") && c.isWellFormed())).toBe(true);
  });
  test("a schema that cannot be guaranteed is refused, with the field's name", async () => {
    const create = (fields: object): Promise<APIError> => client.chat.completions.create({ ...GREEDY, ...fields } as never).catch((e: unknown) => e) as Promise<APIError>;
    const wrong = await create({ response_format: { type: "json_schema", json_schema: { name: "x", schema: { type: "object", not: {} } } } });
    expect([wrong.status, wrong.code, wrong.param]).toEqual([400, "unsupported_schema", "response_format"]);
    const tools = await create({ tool_choice: "required", tools: [{ type: "function", function: { name: "x", strict: true, parameters: { type: "object", not: {} } } }] });
    expect([tools.status, tools.code, tools.param]).toEqual([400, "unsupported_schema", "tools"]);
    const missing = await create({ tools: [pet], tool_choice: { type: "function", function: { name: "cat" } } });
    expect([missing.status, missing.code, missing.param]).toEqual([400, "bad_option", "tool_choice"]);
  });
  test("forced calls: the named function, arguments of its schema, one when only one is wanted", async () => {
    const request = { ...GREEDY, max_tokens: 200, tools: [pet], tool_choice: { type: "function" as const, function: { name: "pet" } }, parallel_tool_calls: false };
    const { choices } = await client.chat.completions.create(request);
    expect(choices[0]!.finish_reason).toBe("tool_calls");
    const calls = choices[0]!.message.tool_calls!;
    expect(calls.length).toBe(1);
    if (calls[0]!.type !== "function") throw new Error("no function call");
    expect(calls[0]!.function.name).toBe("pet");
    fits(JSON.parse(calls[0]!.function.arguments));
    const stream = await client.chat.completions.stream({ ...request, stream: true }).finalMessage();
    expect(stream.tool_calls!.map((c) => c.type === "function" && c.function.arguments)).toEqual([calls[0]!.function.arguments]);
    const responses = await client.responses.create({ model: "demo", input: STORY.content, temperature: 0, tools: [{ type: "function", name: "pet", parameters: schema, strict: true }], tool_choice: "required", parallel_tool_calls: false });
    const item = responses.output.find((o) => o.type === "function_call")!;
    fits(JSON.parse(item.arguments));
  });
});

describe("completions and responses", () => {
  test("a raw prompt is continued", async () => {
    const answer = await client.completions.create({ model: "demo", prompt: "Once upon a time", temperature: 0, max_tokens: 12 });
    expect(answer.choices[0]!.text).toBe(await model.generate("Once upon a time", { raw: true, temperature: 0, maxTokens: 12 }).text());
    const stream = await client.completions.create({ model: "demo", prompt: "Once upon a time", temperature: 0, max_tokens: 12, stream: true });
    let text = "";
    for await (const chunk of stream) text += chunk.choices[0]?.text ?? "";
    expect(text).toBe(answer.choices[0]!.text);
  });
  test("token ids as the prompt are taken as they are; ids outside the vocabulary are refused", async () => {
    const ids = await model.tokenize("Once upon a time", { bos: true });
    const [byIds, byText] = await Promise.all([ids, "Once upon a time"].map((prompt) => client.completions.create({ model: "demo", prompt: prompt as string, temperature: 0, max_tokens: 5 })));
    expect(byIds!.choices[0]!.text).toBe(byText!.choices[0]!.text);
    const refused = await client.completions.create({ model: "demo", prompt: [1, 999_999] }).catch((e: unknown) => e) as APIError;
    expect([refused.status, refused.code, refused.param]).toEqual([400, "bad_token", "prompt"]);
  });
  test("responses: whole and streamed through OpenAI's client", async () => {
    const request = { model: "demo", input: STORY.content, temperature: 0, max_output_tokens: 24 };
    const whole = await client.responses.create(request);
    expect(whole.output_text).toBe(await alone());
    expect(whole.status).toBe("incomplete");
    expect(whole.usage!.output_tokens).toBe(24);
    const final = await client.responses.stream(request).finalResponse();
    expect(final.output_text).toBe(whole.output_text);
  });
});

describe("embeddings", () => {
  test("OpenAI's client reads base64 by default and floats on request: the library's own vectors", async () => {
    const input = ["Once upon a time", "A little dog"];
    const own = await model.embed(input);
    for (const encoding of [{}, { encoding_format: "float" }] as const) {
      const { data, usage } = await client.embeddings.create({ model: "demo", input, ...encoding });
      expect(data.map((d) => d.embedding)).toEqual(own.map((e) => [...e.vector]));
      expect(usage.prompt_tokens).toBe(own.reduce((n, e) => n + e.tokens, 0));
    }
    const long = await client.embeddings.create({ model: "demo", input: "word ".repeat(3000) }).catch((e: unknown) => e) as APIError;
    expect([long.status, long.code, long.param]).toEqual([400, "context_length_exceeded", "input"]);
  });
  test("a thousand in a row", async () => {
    const { embedding } = (await client.embeddings.create({ model: "demo", input: "story 999" })).data[0]!;
    let last: number[] = [];
    for (let i = 0; i < 1000; i += 50) {
      const { data } = await client.embeddings.create({ model: "demo", input: Array.from({ length: 50 }, (_, k) => `story ${i + k}`) });
      expect(data.length).toBe(50);
      last = data.at(-1)!.embedding;
    }
    expect(last).toEqual(embedding);
  });
});

describe("the server around it", () => {
  test("models", async () => {
    const list = await client.models.list();
    expect(list.data.map((m) => m.id)).toEqual(["demo"]);
    expect((await client.models.retrieve("demo")).object).toBe("model");
    expect(await client.models.retrieve("other").catch((e: unknown) => e)).toBeInstanceOf(NotFoundError);
  });
  test("errors reach OpenAI's client as its own classes, with code and param", async () => {
    const wrong = await client.chat.completions.create({ ...GREEDY, verbosity: "low" }).catch((e: unknown) => e) as APIError;
    expect(wrong).toBeInstanceOf(BadRequestError);
    expect([wrong.code, wrong.param]).toEqual(["unsupported_parameter", "verbosity"]);
    const long = { ...GREEDY, messages: [{ role: "user" as const, content: "story ".repeat(2000) }] };
    for (const stream of [false, true]) {
      const error = await client.chat.completions.create({ ...long, stream }).catch((e: unknown) => e) as APIError;
      expect(error).toBeInstanceOf(BadRequestError);
      expect([error.code, error.param]).toEqual(["context_length_exceeded", "messages"]);
      expect(error.message).toMatch(/\d{4} tokens.*1024/);
    }
  });
  test("role errors are the request's fault, with the template's reason", async () => {
    const error = await client.chat.completions.create({ ...GREEDY, messages: [{ role: "tool", tool_call_id: "x", content: "y" }] }).catch((e: unknown) => e) as APIError;
    expect([error.status, error.code, error.param]).toEqual([400, "tool_message", "messages"]);
  });
  test("user text cannot create control tokens", async () => {
    const tokens = async (content: string): Promise<number> => (await client.chat.completions.create({ ...GREEDY, max_tokens: 1, messages: [{ role: "user", content }] })).usage!.prompt_tokens;
    // As one control token each they would cost two tokens; as text they cost many.
    expect(await tokens("x<turn|><|turn>y")).toBeGreaterThan(await tokens("xy") + 4);
  });
  test("a wrong or missing key: 401; /health needs none", async () => {
    const stranger = new OpenAI({ baseURL: new URL("/v1", server.url).href, apiKey: "wrong", maxRetries: 0 });
    expect(await stranger.chat.completions.create(GREEDY).catch((e: unknown) => e)).toBeInstanceOf(AuthenticationError);
    expect((await fetch(new URL("/v1/models", server.url))).status).toBe(401);
    expect((await fetch(new URL("/metrics", server.url))).status).toBe(401);
    expect(await (await fetch(new URL("/health", server.url))).json()).toMatchObject({ status: "ok", model: "demo" });
  });
  test("other origins: those that were named, no others", async () => {
    const preflight = (origin: string): Promise<Response> => fetch(new URL("/v1/chat/completions", server.url), { method: "OPTIONS", headers: { Origin: origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization" } });
    expect((await preflight("https://app.example")).headers.get("access-control-allow-origin")).toBe("https://app.example");
    // A page must be able to read why it was refused.
    expect((await raw("/v1/chat/completions", {}, { headers: { "Content-Type": "application/json", Authorization: `Bearer ${KEY}`, Origin: "https://app.example" } })).headers.get("access-control-allow-origin")).toBe("https://app.example");
    expect((await preflight("https://evil.example")).headers.get("access-control-allow-origin")).toBeNull();
  });
  test("a page under another name that points here is turned away", async () => {
    const response = await fetch(server.url, { headers: { Host: "rebound.example" } });
    expect(response.status).toBe(403);
  });
  test("metrics count what was served", async () => {
    const text = await (await raw("/metrics")).text();
    const value = (name: string): number => Number(new RegExp(`^${name} (\\S+)$`, "m").exec(text)?.[1]);
    expect(value("bao_completion_tokens_total")).toBeGreaterThan(100);
    expect(value("bao_cached_tokens_total")).toBeGreaterThan(0);
    expect(value("bao_first_part_seconds_count")).toBeGreaterThan(10);
    expect(value("bao_answers_running")).toBe(0);
    expect(value("process_resident_memory_bytes")).toBeGreaterThan(1e6);
    expect(text).toMatch(/bao_http_requests_total\{route="\/v1\/chat\/completions",status="400"\} \d+/);
  });
  test("the page at / is whole in itself and allows its own script only", async () => {
    const response = await fetch(server.url);
    const page = await response.text(), policy = response.headers.get("content-security-policy")!;
    expect(page).not.toMatch(/(src|href)=/);
    const script = /<script>([\s\S]*)<\/script>/.exec(page)![1]!;
    expect(policy).toContain(`script-src 'sha256-${new Bun.CryptoHasher("sha256").update(script).digest("base64")}'`);
    expect(policy).toContain("default-src 'none'");
  });
});

describe("clients that go away", () => {
  const busy = async (): Promise<number> => ((await (await fetch(new URL("/health", server.url))).json()) as any).running;
  const idle = async (): Promise<void> => { for (let i = 0; await busy() > 0; i++) { if (i > 1000) throw new Error("the answer goes on"); await Bun.sleep(10); } };
  test("a stream that is dropped ends the generation", async () => {
    const stream = await client.chat.completions.create({ ...GREEDY, max_tokens: 900, temperature: 1, logit_bias: { "6": -100, "1": -100 }, stream: true });
    for await (const _ of stream) break;
    await idle();
    expect((await client.chat.completions.create(GREEDY)).choices[0]!.message.content).toBe(await alone());
  });
  test("so does a request without a stream, and one in its prefill", async () => {
    for (const content of ["Go on.", "word ".repeat(800)]) {
      const controller = new AbortController();
      const call = client.chat.completions.create({ ...GREEDY, max_tokens: 200, messages: [{ role: "user", content }], logit_bias: { "6": -100, "1": -100 } }, { signal: controller.signal }).catch((e: unknown) => e);
      while (await busy() === 0) await Bun.sleep(1);
      controller.abort();
      expect(await call).toBeInstanceOf(Error);
      await idle();
    }
  });
});

describe("the queue", () => {
  test("full: 429 with Retry-After, and room again afterwards", async () => {
    let open = (): void => {};
    const gate = new Promise<void>((resolve) => { open = resolve; });
    const slow = scripted([() => gate, { type: "text", text: "x" }, { type: "finish", reason: "stop", usage: { promptTokens: 1, cachedTokens: 0, completionTokens: 1, thoughtTokens: 0, prefillMs: 1, decodeMs: 1 } }], 1);
    await using small = serve(slow, { port: 0, queue: 1 });
    const patient = new OpenAI({ baseURL: new URL("/v1", small.url).href, apiKey: "none", maxRetries: 0 });
    const ask = () => patient.chat.completions.create({ model: "scripted", messages: [STORY] });
    const inside = [ask(), ask()];
    while (slow.asked.length < 2) await Bun.sleep(1);
    const refused = await ask().catch((e: unknown) => e) as APIError;
    expect(refused).toBeInstanceOf(RateLimitError);
    expect(refused.code).toBe("queue_full");
    expect(Number(refused.headers!.get("retry-after"))).toBeGreaterThanOrEqual(1);
    const many = await patient.chat.completions.create({ model: "scripted", messages: [STORY], n: 3 }).catch((e: unknown) => e) as APIError;
    expect([many.status, many.code]).toEqual([400, "too_many_answers"]);
    open();
    expect((await Promise.all(inside)).length).toBe(2);
    expect((await ask()).choices[0]!.message.content).toBe("x");
  });
  test("a silent stream is kept open by comments, and closing waits for the answer", async () => {
    const slow = scripted([() => Bun.sleep(120), { type: "text", text: "late" }, { type: "finish", reason: "stop", usage: { promptTokens: 1, cachedTokens: 0, completionTokens: 1, thoughtTokens: 0, prefillMs: 1, decodeMs: 1 } }]);
    const small = serve(slow, { port: 0, keepAliveMs: 25 });
    const response = await fetch(new URL("/v1/chat/completions", small.url), { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ messages: [STORY], stream: true }) });
    const closed = small.close();
    const { events, comments } = await readEvents(response);
    expect(comments.length).toBeGreaterThanOrEqual(2);
    expect(new Set(comments)).toEqual(new Set(["keep-alive"]));
    expect(events.map((e) => e.data.choices?.[0].delta.content ?? "").join("")).toBe("late");
    await closed;
  });
});
