// The stream parser: thoughts, text and calls from marker tokens, from spelled and split markers, and from malformed output.

import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { parseGemmaCall, parseJsonCall } from "../../src/chat/calls.ts";
import { type Part, PartStream, type PartOptions, type TokenTexts } from "../../src/chat/parts.ts";
import { gemma4 } from "../tokenizer/fixture.ts";

/** Tokens are given by text; `marks` of them are marker tokens, all others ordinary ones. */
function texts(marks: readonly string[]): { tokens: TokenTexts; id: (text: string, marker: boolean) => number } {
  const ids: { text: string; marker: boolean }[] = [];
  const tokens: TokenTexts = {
    marker: (id) => (ids[id]?.marker === true ? ids[id].text : undefined),
    stream: () => ({ push: (id) => ids[id]?.text ?? "", end: () => "" }),
    idOf: (text) => (marks.includes(text) ? 0 : undefined),
  };
  return { tokens, id: (text, marker) => ids.push({ text, marker }) - 1 };
}

const GEMMA = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<turn|>", "<|tool_response>"];
const THINK = ["<think>", "</think>", "<tool_call>", "</tool_call>"];

/** Cuts `text` into tokens: markers of the vocabulary are single tokens unless `spell`, the rest comes in runs of `step`. */
function parse(text: string, { spell = false, step = 3, marks = GEMMA, ...options }: PartOptions & { spell?: boolean; step?: number; marks?: string[] } = {}): Part[] {
  const { tokens, id } = texts(marks);
  const stream = new PartStream(tokens, options);
  const parts: Part[] = [];
  const pattern = new RegExp(`(${marks.map((m) => m.replace(/[|"/]/g, "\\$&")).join("|")})`);
  const pieces = spell ? [text] : text.split(pattern);
  for (const piece of pieces) {
    if (!spell && marks.includes(piece)) parts.push(...stream.push(id(piece, true)));
    else for (let i = 0; i < piece.length; i += step) parts.push(...stream.push(id(piece.slice(i, i + step), false)));
  }
  parts.push(...stream.end());
  return merge(parts);
}

function merge(parts: Part[]): Part[] {
  const out: Part[] = [];
  for (const part of parts) {
    const last = out.at(-1);
    if (last !== undefined && "text" in last && "text" in part && last.type === part.type) out[out.length - 1] = { type: last.type, text: last.text + part.text };
    else out.push(part);
  }
  return out;
}

const visible = (parts: Part[]): string => parts.map((part) => ("text" in part ? part.text : "")).join("");
const ANSWER = '<|channel>thought\nLet me see: 1 < 2.\n<channel|>Sure.<|tool_call>call:f{a:1,b:<|"|>x, {y}<|"|>}<tool_call|>';
const EXPECTED: Part[] = [
  { type: "thought", text: "Let me see: 1 < 2.\n" },
  { type: "text", text: "Sure." },
  { type: "tool_call", name: "f", arguments: { a: 1, b: "x, {y}" } },
];

describe("whole and split markers", () => {
  test("marker tokens", () => {
    expect(parse(ANSWER)).toEqual(EXPECTED);
  });

  test.each([1, 2, 3, 5, 7, 100])("markers spelled with ordinary tokens of %d characters", (step) => {
    expect(parse(ANSWER, { spell: true, step })).toEqual(EXPECTED);
  });

  test("an answer that begins inside a thought, because the prompt opened it", () => {
    expect(parse("hm<channel|>yes", { inThought: true })).toEqual([
      { type: "thought", text: "hm" },
      { type: "text", text: "yes" },
    ]);
  });

  test("an empty thought leaves no part; stop tokens and stray closing markers are not shown", () => {
    expect(parse("<|channel>thought\n<channel|>Hi<channel|> there<turn|>")).toEqual([{ type: "text", text: "Hi there" }]);
    expect(parse("<|channel>thought<channel|>Hi")).toEqual([{ type: "text", text: "Hi" }]);
  });

  test("the name of a channel may be missing or unknown without losing the thought", () => {
    expect(parse("<|channel>abc<channel|>d")).toEqual([{ type: "thought", text: "abc" }, { type: "text", text: "d" }]);
    const long = "x".repeat(50);
    expect(parse(`<|channel>${long}<channel|>d`)).toEqual([{ type: "thought", text: long }, { type: "text", text: "d" }]);
  });

  test("text that only resembles a marker is shown, at once when it is disproved", () => {
    expect(parse("a <|chan b <tab> <|channels", { spell: true, step: 1 })).toEqual([{ type: "text", text: "a <|chan b <tab> <|channels" }]);
    const { tokens, id } = texts(GEMMA);
    const stream = new PartStream(tokens);
    expect(stream.push(id("a<|ch", false))).toEqual([{ type: "text", text: "a" }]);
    expect(stream.push(id("ip", false))).toEqual([{ type: "text", text: "<|chip" }]);
  });

  test("two calls in a row", () => {
    const calls = parse("<|tool_call>call:a{}<tool_call|><|tool_call>call:b{x:[1,2]}<tool_call|><|tool_response>");
    expect(calls).toEqual([
      { type: "tool_call", name: "a", arguments: {} },
      { type: "tool_call", name: "b", arguments: { x: [1, 2] } },
    ]);
  });

  test("a string argument may spell a marker", () => {
    expect(parse('<|tool_call>call:f{a:<|"|><tool_call|><|"|>}<tool_call|>', { spell: true })).toEqual([
      { type: "tool_call", name: "f", arguments: { a: "<tool_call|>" } },
    ]);
  });

  test("the markers of other families", () => {
    expect(parse('<think>hm</think>Yes<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>', { marks: THINK })).toEqual([
      { type: "thought", text: "hm" },
      { type: "text", text: "Yes" },
      { type: "tool_call", name: "f", arguments: { a: 1 } },
    ]);
  });

  test("a model without markers writes what it likes", () => {
    expect(parse("<think>plain</think>", { marks: ["<x>"] })).toEqual([{ type: "text", text: "<think>plain</think>" }]);
  });
});

describe("malformed calls become an error part, never silence and never text", () => {
  test.each([
    ["unfinished", "<|tool_call>call:f{a:1", "ended inside"],
    ["end of turn inside", "<|tool_call>call:f{a:1<turn|>", "turn marker"],
    ["no name", "<|tool_call>{a:1}<tool_call|>", "call:NAME"],
    ["no value", "<|tool_call>call:f{a:}<tool_call|>", "expected a value"],
    ["bare word", "<|tool_call>call:f{a:Oslo}<tool_call|>", "expected a value"],
    ["unclosed string", '<|tool_call>call:f{a:<|"|>x}<tool_call|>', "unterminated"],
    ["unclosed object", "<|tool_call>call:f{a:{b:1}<tool_call|>", "expected }"],
    ["text behind", "<|tool_call>call:f{}{}<tool_call|>", "unexpected text"],
  ])("%s", (_, text, message) => {
    const parts = parse(`A${text}`);
    expect(parts.map((part) => part.type)).toEqual(["text", "error"]);
    const error = parts[1] as Extract<Part, { type: "error" }>;
    expect(error.code).toBe("tool_call_malformed");
    expect(error.message).toContain(message);
    expect(`${error.message}${error.raw}`).not.toMatch(/<\||\|>/);
  });

  test("a call that starts within a call: the first is an error, the second is read", () => {
    expect(parse("<|tool_call>call:f{a<|tool_call>call:g{}<tool_call|>").map((part) => part.type)).toEqual(["error", "tool_call"]);
  });

  test("nesting is bounded", () => {
    expect(parse(`<|tool_call>call:f{a:${"[".repeat(10_000)}<tool_call|>`)[0]).toMatchObject({ type: "error" });
  });
});

test("no sequence of markers and text ever shows a marker or throws", () => {
  const piece = fc.constantFrom(...GEMMA, "thought\n", "call:f{", "}", "a:1", "x", "<", "|>", "\n", "<|tool", '"');
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 20 }), fc.boolean(), fc.integer({ min: 1, max: 9 }), (pieces, spell, step) => {
      const shown = visible(parse(pieces.join(""), { spell, step }));
      for (const marker of GEMMA) expect(shown).not.toContain(marker);
    }),
    { numRuns: 500 },
  );
});

test("with Gemma 4's own tokens: characters whole, stop tokens unseen, the quote a single token", () => {
  const { tokenizer } = gemma4();
  const ids = tokenizer.encode(`${ANSWER}Gr\u00fc\u00dfe \u{10348}<eos><turn|><|tool_response>`, { parse: "all", bos: false });
  expect(ids.filter((id) => tokenizer.idOf('<|"|>') === id).length).toBe(2);
  expect(ids.some((id) => id >= 238 && id < 494)).toBe(true);
  const stream = new PartStream(tokenizer);
  const parts = [...ids.flatMap((id) => stream.push(id)), ...stream.end()];
  for (const part of parts) if ("text" in part) expect(part.text.isWellFormed() && !part.text.includes("\ufffd")).toBe(true);
  expect(merge(parts)).toEqual([...EXPECTED, { type: "text", text: "Gr\u00fc\u00dfe \u{10348}" }]);
});

describe("call syntax", () => {
  test("every kind of value", () => {
    expect(parseGemmaCall('call:a.b-c{s:<|"|>é "q"<|"|>,n:-1.5e-3,t:true,f:false,z:null,o:{k:{}},l:[1,[<|"|>x<|"|>]], sp : 2}')).toEqual({
      name: "a.b-c",
      arguments: { s: 'é "q"', n: -0.0015, t: true, f: false, z: null, o: { k: {} }, l: [1, ["x"]], sp: 2 },
    });
    expect(parseGemmaCall('call:f{"k":"a\\nb"}')).toEqual({ name: "f", arguments: { k: "a\nb" } });
    expect(Object.hasOwn(parseGemmaCall("call:f{__proto__:1}").arguments, "__proto__")).toBe(true);
  });

  test("JSON calls need a name and an object", () => {
    expect(parseJsonCall('{"name":"f"}')).toEqual({ name: "f", arguments: {} });
    for (const bad of ["[]", "1", '{"arguments":{}}', '{"name":"f","arguments":[]}', "{"]) expect(() => parseJsonCall(bad)).toThrow();
  });
});
