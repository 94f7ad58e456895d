// Answers of models that think and call tools: thoughts stay free, calls are bound to what was declared, in each family's own form.
import { describe, expect, test } from "bun:test";
import { parseGemmaCall } from "../../src/chat/calls.ts";
import { type Part, PartStream, type ToolInput } from "../../src/chat/index.ts";
import { UsageError } from "../../src/errors.ts";
import { compileConstraint } from "../../src/structured/index.ts";
import { gemma4 } from "../tokenizer/fixture.ts";
import { allows, constraint, demoTokenizer, takes, thinkTokenizer, walk } from "./walk.ts";

const WEATHER: ToolInput = {
  name: "get_weather",
  parameters: {
    type: "object", required: ["city"],
    properties: { city: { type: "string" }, unit: { enum: ["c", "f"] }, note: { type: "string", maxLength: 12 }, days: { type: "integer", minimum: 1, maximum: 7 }, at: { type: "object", properties: { lat: { type: "number" }, tags: { type: "array", items: { type: "string" } } } } },
  },
};
const NOW: ToolInput = { type: "function", function: { name: "now", description: "The time", parameters: { type: "object", properties: {} } } };
const tools = [WEATHER, NOW];
const { tokenizer } = gemma4();
const id = (text: string): number => tokenizer.idOf(text)!;
const [CALL, CALL_END, QUOTE, THOUGHT, THOUGHT_END, TURN] = ["<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<turn|>"].map(id) as [number, number, number, number, number, number];

function parts(ids: readonly number[], of = tokenizer): Part[] {
  const stream = new PartStream(of);
  return [...ids.flatMap((i) => stream.push(i)), ...stream.end()];
}

describe("tools of Gemma 4", () => {
  test.each([
    ["required", '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>}<tool_call|>', true],
    ["all arguments, sorted", '<|tool_call>call:get_weather{at:{lat:-1.5,tags:[<|"|>a<|"|>,<|"|>b, {c}<|"|>]},city:<|"|>São\nPaulo "x"<|"|>,days:3,unit:<|"|>c<|"|>}<tool_call|>', true],
    ["no arguments", "<|tool_call>call:now{}<tool_call|>", true],
    ["several calls", '<|tool_call>call:now{}<tool_call|><|tool_call>call:get_weather{city:<|"|>x<|"|>}<tool_call|>', true],
    ["text", "Hello", false],
    ["an unknown function", "<|tool_call>call:never{}<tool_call|>", false],
    ["a missing argument", "<|tool_call>call:get_weather{}<tool_call|>", false],
    ["an argument of another type", "<|tool_call>call:get_weather{city:3}<tool_call|>", false],
    ["an unknown argument", '<|tool_call>call:get_weather{city:<|"|>x<|"|>,zip:1}<tool_call|>', false],
    ["a short text", '<|tool_call>call:get_weather{city:<|"|>x<|"|>,note:<|"|>by "noon"<|"|>}<tool_call|>', true],
    ["a text that is too long", '<|tool_call>call:get_weather{city:<|"|>x<|"|>,note:<|"|>more than twelve<|"|>}<tool_call|>', false],
    ["out of bounds", '<|tool_call>call:get_weather{city:<|"|>x<|"|>,days:8}<tool_call|>', false],
    ["an unfinished call", "<|tool_call>call:now{}", false],
    ["JSON strings", '<|tool_call>call:get_weather{city:"Oslo"}<tool_call|>', false],
  ])("%s", async (_, text, fits) => {
    using mask = await constraint(tokenizer, { tools, toolChoice: "required" });
    expect(takes(tokenizer, mask, text)).toBe(fits);
  });

  test("the named function, and one call only when calls may not be parallel", async () => {
    const named = async (text: string, parallelToolCalls: boolean): Promise<boolean> => {
      using mask = await constraint(tokenizer, { tools, toolChoice: { name: "now" }, parallelToolCalls });
      return takes(tokenizer, mask, text);
    };
    expect(await named("<|tool_call>call:now{}<tool_call|>", false)).toBe(true);
    expect(await named("<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>", false)).toBe(false);
    expect(await named("<|tool_call>call:now{}<tool_call|><|tool_call>call:now{}<tool_call|>", true)).toBe(true);
    expect(await named('<|tool_call>call:get_weather{city:<|"|>x<|"|>}<tool_call|>', true)).toBe(false);
  });

  test("auto: text is free, calls are bound, and text is free again after them", async () => {
    using mask = await constraint(tokenizer, { tools });
    const feed = (text: string): void => { for (const i of tokenizer.encode(text, { bos: false, parse: "all" })) mask.accept(i); };
    expect(mask.next()).toBeUndefined();
    feed("Let me see.");
    expect(mask.next()).toBeUndefined();
    mask.accept(CALL);
    expect(allows(mask, TURN)).toBe(false);
    expect(allows(mask, id("call"))).toBe(true);
    expect(allows(mask, id("Hello"))).toBe(false);
    feed("call:now{}");
    expect(allows(mask, CALL_END)).toBe(true);
    mask.accept(CALL_END);
    expect(mask.next()).toBeUndefined();
    feed("and");
    mask.accept(CALL);
    expect(allows(mask, CALL_END)).toBe(false);
    feed("call:get_weather{city:");
    expect(allows(mask, QUOTE)).toBe(true);
  });

  test("none: text is free, but no call begins", async () => {
    using mask = await constraint(tokenizer, { tools, toolChoice: "none" });
    for (const i of tokenizer.encode("Hello there", { bos: false })) { expect(allows(mask, i)).toBe(true); mask.accept(i); }
    expect(allows(mask, CALL)).toBe(false);
    expect(allows(mask, TURN)).toBe(true);
  });

  test("calls that are written at random can be read, and fit what was declared", async () => {
    for (let seed = 1; seed <= 6; seed++) {
      using mask = await constraint(tokenizer, { tools: [WEATHER], toolChoice: "required", parallelToolCalls: false });
      const { ids, ended } = walk(tokenizer, mask, seed, 24, 300);
      if (!ended) continue;
      const made = parts(ids);
      expect(made.map((p) => p.type)).toEqual(["tool_call"]);
      const call = made[0] as Extract<Part, { type: "tool_call" }>;
      expect(call.name).toBe("get_weather");
      expect(call.arguments["city"]).toBeString();
      if ("days" in call.arguments) expect([1, 2, 3, 4, 5, 6, 7] as unknown[]).toContain(call.arguments["days"]);
    }
  });

  test("a spelled quote cannot end a string early", async () => {
    using mask = await constraint(tokenizer, { tools, toolChoice: "required" });
    expect(takes(tokenizer, mask, '<|tool_call>call:get_weather{city:<|"|>a <| b < c <<|"|>}<tool_call|>')).toBe(true);
    using other = await constraint(tokenizer, { tools, toolChoice: "required" });
    for (const i of tokenizer.encode('<|tool_call>call:get_weather{city:<|"|>a', { bos: false, parse: "all" })) other.accept(i);
    const spelled = tokenizer.encode('<|"|>', { bos: false, parse: "none" });
    expect(spelled.length).toBeGreaterThan(1);
    expect(spelled.every((i) => { const may = allows(other, i); if (may) other.accept(i); return may; })).toBe(false);
  });

  test("parameters that cannot be guaranteed are left to the model, unless the tool is strict", async () => {
    const tool = { name: "f", parameters: { type: "object", properties: { a: { type: "string", pattern: "^(?=x)" }, b: { type: "integer", multipleOf: 5 } }, required: ["a", "b"] } };
    using mask = await constraint(tokenizer, { tools: [tool], toolChoice: "required" });
    expect(takes(tokenizer, mask, '<|tool_call>call:f{a:<|"|>y<|"|>,b:7}<tool_call|>')).toBe(true);
    const refusal = await constraint(tokenizer, { tools: [{ ...tool, strict: true }], toolChoice: "required" }).catch((e: unknown) => e);
    expect(refusal).toBeInstanceOf(UsageError);
    expect((refusal as UsageError).message).toContain("parameters of f");
  });
});

describe("thoughts", () => {
  const format = { type: "json_schema", schema: { type: "object", properties: { a: { type: "integer" } }, required: ["a"] } } as const;

  test("are free, and the answer after them is bound", async () => {
    using mask = await constraint(tokenizer, { format, thinking: true });
    expect(allows(mask, THOUGHT)).toBe(true);
    expect(allows(mask, id("Hello"))).toBe(false);
    mask.accept(THOUGHT);
    for (const i of tokenizer.encode("thought\nHm, } what?", { bos: false })) { expect(allows(mask, i)).toBe(true); mask.accept(i); }
    // The answer is still to come.
    for (const i of [TURN, CALL, THOUGHT]) expect(allows(mask, i)).toBe(false);
    mask.accept(THOUGHT_END);
    expect(allows(mask, id("Hello"))).toBe(false);
    // One is enough.
    expect(allows(mask, THOUGHT)).toBe(false);
    expect(takes(tokenizer, mask, '{"a": 1}')).toBe(true);
    expect(allows(mask, id("Hello"))).toBe(false);
  });

  test("no thought where thinking is off, and none after the answer has begun", async () => {
    using mask = await constraint(tokenizer, { format });
    expect(allows(mask, THOUGHT)).toBe(false);
    using other = await constraint(tokenizer, { format, thinking: true });
    other.accept(tokenizer.encode("{", { bos: false })[0]!);
    expect(allows(other, THOUGHT)).toBe(false);
  });

  test("a prompt that ends inside a thought", async () => {
    using mask = await constraint(tokenizer, { format, opensThought: true });
    expect(allows(mask, id("Hello"))).toBe(true);
    mask.accept(id("Hello"));
    mask.accept(THOUGHT_END);
    expect(takes(tokenizer, mask, '{"a":12}')).toBe(true);
  });

  test("a thought's end that is spelled with ordinary tokens", async () => {
    using mask = await constraint(tokenizer, { format, opensThought: true });
    for (const i of tokenizer.encode("so <channel|>", { bos: false, parse: "none" })) mask.accept(i);
    expect(allows(mask, id("Hello"))).toBe(false);
    expect(takes(tokenizer, mask, '{"a":1}')).toBe(true);
  });

  test("JSON and tools at once: one or the other", async () => {
    const either = async (text: string): Promise<boolean> => {
      using mask = await constraint(tokenizer, { format, tools });
      return takes(tokenizer, mask, text);
    };
    expect(await either('{"a": 1}')).toBe(true);
    expect(await either("<|tool_call>call:now{}<tool_call|>")).toBe(true);
    expect(await either('{"a": 1}<|tool_call>call:now{}<tool_call|>')).toBe(false);
  });
});

describe("other vocabularies", () => {
  test("a model without tokens for calls spells them", async () => {
    const demo = demoTokenizer();
    for (let seed = 1; seed <= 8; seed++) {
      using mask = await constraint(demo, { tools: [NOW, { name: "add", parameters: { type: "object", properties: { a: { type: "integer" }, note: { type: "string" } }, required: ["a"] } }], toolChoice: "required", parallelToolCalls: false });
      const { ids, ended } = walk(demo, mask, seed, 20, 300);
      if (!ended) continue;
      expect(parts(ids, demo).map((p) => p.type)).toEqual(["tool_call"]);
    }
    expect(await compileConstraint(demo, { tools: [NOW] })).toBeUndefined();
  });

  test("families that call in JSON", async () => {
    const think = thinkTokenizer(), one = (text: string): Promise<boolean> => constraint(think, { tools, toolChoice: "required" }).then((mask) => { using m = mask; return takes(think, m, text); });
    expect(await one('<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>')).toBe(true);
    expect(await one('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')).toBe(true);
    expect(await one('<tool_call>\n{"name": "now", "arguments": {"a": 1}}\n</tool_call>')).toBe(false);
    expect(await one('{"name": "now", "arguments": {}}')).toBe(false);
    for (let seed = 1; seed <= 6; seed++) {
      using mask = await constraint(think, { tools, toolChoice: "required", parallelToolCalls: false });
      const { ids, ended } = walk(think, mask, seed, 20, 300);
      if (ended) expect(parts(ids, think).map((p) => p.type === "text" ? p.text.trim() : p.type).filter((t) => t !== "")).toEqual(["tool_call"]);
    }
  });

  test("a gap after a thought, as these families write it", async () => {
    const think = thinkTokenizer();
    using mask = await constraint(think, { format: { type: "json_object" }, opensThought: true });
    for (const i of think.encode("Hm.</think>", { bos: false, parse: "all" })) { expect(allows(mask, i)).toBe(true); mask.accept(i); }
    expect(takes(think, mask, '\n\n{"a": 1}')).toBe(true);
  });

  test("nothing asked for, nothing constrained", async () => {
    expect(await compileConstraint(tokenizer, {})).toBeUndefined();
    expect(await compileConstraint(tokenizer, { format: { type: "text" } })).toBeUndefined();
  });

  test.each([
    [{ toolChoice: "required" }, "bad_option"],
    [{ tools, toolChoice: { name: "never" } }, "bad_option"],
    [{ tools, toolChoice: "sometimes" as "auto" }, "bad_option"],
    [{ tools: [NOW, NOW] }, "tool_name"],
    [{ format: { type: "yaml" } as never }, "bad_option"],
    [{ format: { type: "json_schema" } as never }, "bad_option"],
  ] as const)("refused: %j", async (spec, code) => {
    const error = await compileConstraint(tokenizer, spec).then(() => undefined, (e: unknown) => e);
    expect(error).toBeInstanceOf(UsageError);
    expect((error as UsageError).code).toBe(code);
  });
});

test("what the grammar allows, the reader of calls reads the same", () => {
  expect(parseGemmaCall('call:f{a:[1,{b:null}],c:true}').arguments).toEqual({ a: [1, { b: null }], c: true });
});
