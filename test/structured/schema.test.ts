// JSON Schemas as token masks: every answer that a mask lets through satisfies the schema (by another library's reading of it), what cannot be
// guaranteed is refused with its place.
import { describe, expect, test } from "bun:test";
import { z } from "zod";
import { UsageError } from "../../src/errors.ts";
import { constraint, demoTokenizer, takes, walk } from "./walk.ts";

type Json = Record<string, unknown>;
const tokenizer = demoTokenizer();
const format = (schema: Json | boolean) => ({ format: { type: "json_schema", schema } }) as const;
const accepts = async (schema: Json | boolean, text: string): Promise<boolean> => {
  using mask = await constraint(tokenizer, format(schema));
  return takes(tokenizer, mask, text, /Length/.test(JSON.stringify(schema)));
};
const object = (properties: Json, required = Object.keys(properties), more: Json = {}): Json => ({ type: "object", properties, required, additionalProperties: false, ...more });

const WEATHER = object({ city: { type: "string" }, degrees: { type: "integer" }, sky: { enum: ["clear", "grey"] }, note: { type: ["string", "null"] } }, ["city", "degrees", "sky"]);
const TREE = { $ref: "#/$defs/node", $defs: { node: object({ name: { type: "string" }, children: { type: "array", items: { $ref: "#/$defs/node" } } }) } };

/** Schemas with answers that fit and answers that do not. */
const CASES: readonly [name: string, schema: Json | boolean, fit: readonly unknown[], unfit: readonly unknown[]][] = [
  ["an object", WEATHER, [{ city: "Oslo", degrees: -3, sky: "grey" }, { city: "é\n\"x\"", degrees: 0, sky: "clear", note: null }], [{ city: "Oslo" }, { city: 1, degrees: 1, sky: "grey" }, { city: "a", degrees: 1.5, sky: "grey" }, { city: "a", degrees: 1, sky: "blue" }, { degrees: 1, city: "a", sky: "grey" }, [], null]],
  ["optional properties", object({ a: { type: "boolean" }, b: { type: "null" }, c: { type: "string" } }, ["b"]), [{ b: null }, { a: true, b: null }, { b: null, c: "" }, { a: false, b: null, c: "x" }], [{}, { a: true }, { a: true, c: "" }]],
  ["no required property", object({ a: { type: "integer" }, b: { type: "integer" } }, []), [{}, { a: 1 }, { b: 1 }, { a: 1, b: 2 }], [{ c: 1 }]],
  ["a tree that refers to itself", TREE, [{ name: "a", children: [] }, { name: "a", children: [{ name: "b", children: [] }, { name: "c", children: [] }] }], [{ name: "a" }, { name: "a", children: [1] }]],
  ["lists", { type: "array", items: { type: "integer" }, minItems: 2, maxItems: 4 }, [[1, 2], [1, 2, 3, 4]], [[], [1], [1, 2, 3, 4, 5]]],
  ["any length", { type: "array", items: { type: "string" } }, [[], ["a"], ["a", "b", "c", "d", "e"]], [[1]]],
  ["tuples", { type: "array", prefixItems: [{ type: "string" }, { type: "number" }], items: false, minItems: 2 }, [["a", 1.5]], [["a"], [1, "a"], ["a", 1, 2], []]],
  ["a tuple with a rest", { type: "array", prefixItems: [{ type: "string" }], items: { type: "integer" }, minItems: 1 }, [["a"], ["a", 1], ["a", 1, 2]], [[], ["a", "b"]]],
  ["numbers", { type: "number" }, [0, -1, 1.25, 1e3, 123456], ["1", null]],
  ["whole numbers within bounds", { type: "integer", minimum: -12, maximum: 130 }, [-12, -3, 0, 7, 99, 130], [-13, 131, 200, 1.5]],
  ["whole numbers above", { type: "integer", exclusiveMinimum: 9 }, [10, 99, 100, 123456], [9, 0, -10]],
  ["numbers within bounds", { type: "number", minimum: 0, maximum: 2 }, [0, 0.5, 1.999, 2], [-0.1, 2.1, 3]],
  ["positive numbers", { type: "number", exclusiveMinimum: 0 }, [0.25, 1, 17.5], [0, -1]],
  ["negative numbers", { type: "number", maximum: -1 }, [-1, -1.5, -20], [-0.5, 0, 1]],
  ["constants", { anyOf: [{ const: { a: [1, "x"] } }, { const: null }, { enum: [1, "one"] }] }, [{ a: [1, "x"] }, null, 1, "one"], [{ a: [1] }, 2]],
  ["unions", { oneOf: [object({ kind: { const: "x" }, v: { type: "integer" } }), object({ kind: { const: "y" } })] }, [{ kind: "x", v: 1 }, { kind: "y" }], [{ kind: "x" }, { kind: "z" }]],
  ["parts that hold at once", { allOf: [object({ a: { type: "integer" } }, ["a"], { additionalProperties: true }), { properties: { b: { type: "string" } }, required: ["b"] }] }, [{ a: 1, b: "x" }], [{ a: 1 }, { b: "x" }]],
  ["records", { type: "object", additionalProperties: { type: "number" } }, [{}, { a: 1 }, { a: 1, b: 2.5 }], [{ a: "x" }]],
  ["anything", true, [1, "a", null, [1, { a: [] }], { a: { b: [true] } }], []],
  ["a pattern", { type: "string", pattern: "^[A-Z]{2}-\\d{3}$" }, ["NO-123"], ["NO-12", "no-123", "NO-1234"]],
  ["a pattern somewhere", { type: "string", pattern: "b+" }, ["b", "abbc"], ["a", ""]],
  ["a pattern with characters that JSON escapes", { type: "string", pattern: "^[\"\\\\/]x\\n$" }, ["\"x\n", "\\x\n", "/x\n"], ["x\n", "ax\n"]],
  ["dates", { type: "string", format: "date" }, ["2026-11-30", "2024-02-28"], ["2026-13-01", "2026-02-30", "2026-11-31", "x"]],
  ["short strings", { type: "string", minLength: 1, maxLength: 3 }, ["a", "é日b"], ["", "abcd", "日日日日"]],
  ["strings of limited length among others", object({ a: { type: "string", maxLength: 200 }, b: { anyOf: [{ type: "string", minLength: 4 }, { type: "null" }] }, c: { type: "array", items: { type: "string", maxLength: 2 } } }), [{ a: "x".repeat(200), b: null, c: [] }, { a: "", b: "abcd", c: ["", "ab"] }], [{ a: "x".repeat(201), b: null, c: [] }, { a: "", b: "abc", c: [] }, { a: "", b: null, c: ["abc"] }]],
  ["an empty string", { type: "string", maxLength: 0 }, [""], ["a"]],
  ["OpenAPI's nullable", { type: "string", nullable: true }, [null, "a"], [1]],
];

describe("fits and does not fit", () => {
  test.each(CASES.map(([name, schema, fit, unfit]) => ({ name, schema, fit, unfit })))("$name", async ({ schema, fit, unfit }) => {
    for (const value of fit) {
      expect([value, await accepts(schema, JSON.stringify(value))]).toEqual([value, true]);
      expect([value, await accepts(schema, JSON.stringify(value, null, 2))]).toEqual([value, true]);
    }
    for (const value of unfit) expect([value, await accepts(schema, JSON.stringify(value))]).toEqual([value, false]);
  });
});

/** What the other library reads differently: it knows no `nullable`, and compares constants by identity. */
const UNREAD = ["anything", "OpenAPI's nullable", "constants"];
describe("whatever is written at random satisfies the schema", () => {
  test.each(CASES.filter(([name]) => !UNREAD.includes(name)).map(([name, schema]) => ({ name, schema })))("$name", async ({ name, schema }) => {
    const oracle = name === "dates" ? z.iso.date() : z.fromJSONSchema(schema as Parameters<typeof z.fromJSONSchema>[0]);
    let ended = 0;
    for (let seed = 1; seed <= 12; seed++) {
      using mask = await constraint(tokenizer, format(schema));
      const { text, ended: done } = walk(tokenizer, mask, seed);
      if (!done) continue;
      ended++;
      const value: unknown = JSON.parse(text);
      expect([text, oracle.safeParse(value).error?.message]).toEqual([text, undefined]);
    }
    // Trees may grow for long.
    expect(ended).toBeGreaterThanOrEqual(name.includes("tree") ? 2 : 10);
  });

  test("any JSON object", async () => {
    for (let seed = 1; seed <= 20; seed++) {
      using mask = await constraint(tokenizer, { format: { type: "json_object" } });
      const { text, ended } = walk(tokenizer, mask, seed, 10);
      if (ended) expect(JSON.parse(text)).toBeObject();
    }
    using mask = await constraint(tokenizer, { format: { type: "json_object" } });
    expect(takes(tokenizer, mask, '{"a": [1, {"b": "c"}], "d": null}')).toBe(true);
    using other = await constraint(tokenizer, { format: { type: "json_object" } });
    expect(takes(tokenizer, other, "[1]")).toBe(false);
  });

  test("zod's own schemas", async () => {
    const schema = z.object({
      city: z.string(), n: z.number().int().optional(), unit: z.enum(["c", "f"]).default("c"), mail: z.email(), kind: z.union([z.literal("a"), z.null()]), day: z.iso.date(),
      rates: z.record(z.string(), z.number()), pair: z.tuple([z.string(), z.number()]), p: z.number().positive(), list: z.array(z.boolean()).max(3), id: z.uuid(),
    });
    for (let seed = 1; seed <= 5; seed++) {
      using mask = await constraint(tokenizer, format(z.toJSONSchema(schema) as Json));
      const { text, ended } = walk(tokenizer, mask, seed, 60, 900);
      if (ended) expect([text, schema.safeParse(JSON.parse(text)).error?.message]).toEqual([text, undefined]);
    }
  });
});

describe("what cannot be guaranteed is refused, with its place", () => {
  test.each([
    ["not", { not: { type: "string" } }, /"not"/],
    ["if", object({ a: { if: {}, then: {} } }), /properties\/a.*"if"/],
    ["patternProperties", { type: "object", patternProperties: { "^a": {} } }, /patternProperties/],
    ["uniqueItems", { type: "array", items: {}, uniqueItems: true }, /uniqueItems/],
    ["multipleOf", { type: "number", multipleOf: 0.5 }, /multipleOf/],
    ["a fraction as a bound", { type: "number", minimum: 0.5 }, /whole/],
    ["look-arounds", { type: "string", pattern: "^(?!a)b$" }, /look-around/],
    ["back references", { type: "string", pattern: "(a)\\1" }, /\\\\1/],
    ["an unknown format", { type: "string", format: "iban" }, /iban/],
    ["long counts in patterns", { type: "string", pattern: "^.{4,400}$" }, /too long to prepare/],
    ["references elsewhere", { $ref: "https://example.org/a.json" }, /leaves the schema/],
    ["references to nothing", { $ref: "#/$defs/none" }, /leads nowhere/],
    ["a circle", { $ref: "#/$defs/a", $defs: { a: { $ref: "#/$defs/b" }, b: { anyOf: [{ $ref: "#/$defs/a" }, { type: "null" }] } } }, /itself/],
    ["an unknown type", { type: "float" }, /float/],
    ["no number", { type: "integer", minimum: 3, maximum: 2 }, /no number/],
    ["false", { type: "object", properties: { a: false }, required: ["a"] }, /no value/],
    ["a required property that may not be", { type: "object", required: ["a"], properties: {}, additionalProperties: false }, /"a"/],
    ["a schema that is none", 3 as unknown as Json, /a schema is an object/],
  ] as const)("%s", async (_, schema, message) => {
    const error = await constraint(tokenizer, format(schema as Json)).then(() => undefined, (e: unknown) => e);
    expect(error).toBeInstanceOf(UsageError);
    expect((error as UsageError).code).toBe("unsupported_schema");
    expect((error as UsageError).message).toMatch(message);
  });
});

describe("hostile schemas are answered, in bounded time", () => {
  const odd = "a\u0001\n\"\\é\u{1F600}";
  const deep = (n: number): Json => (n === 0 ? { type: "string" } : { type: "object", properties: { a: deep(n - 1) } });
  test("names and constants of any characters", async () => {
    const schema = object({ [odd]: { const: "\u0000\u2028\u{1F600}" }, ...JSON.parse('{"__proto__":{"type":"integer"},"constructor":{"type":"null"}}') as Json });
    using mask = await constraint(tokenizer, format(schema));
    const { text, ended } = walk(tokenizer, mask, 1);
    expect(ended).toBe(true);
    const value = JSON.parse(text) as Json;
    expect(value[odd]).toBe("\u0000\u2028\u{1F600}");
    expect(Object.keys(value)).toEqual([odd, "__proto__", "constructor"]);
  });
  test.each([
    ["deep", deep(200), /nested more than 64/],
    ["wide", object(Object.fromEntries(Array.from({ length: 1500 }, (_, i) => [`k${i}`, { type: "integer", minimum: i }]))), /grammar rules/],
    ["long", { description: "x".repeat(300_000) }, /longer than/],
    ["a reference that is no URI", { $ref: "#/%E0%A4%A" }, /leads nowhere/],
    ["parts that contain themselves", { $defs: { a: { allOf: [{ $ref: "#/$defs/a" }] } }, $ref: "#/$defs/a" }, /nested more than|itself/],
    ["an unbalanced pattern", { type: "string", pattern: "(" }, /not closed/],
  ] as const)("%s: refused", async (_, schema, message) => {
    expect(await constraint(tokenizer, format(schema as Json)).catch((e: unknown) => e)).toMatchObject({ code: "unsupported_schema", message: expect.stringMatching(message) });
  });
  test("patterns that make other engines run for ever", async () => {
    expect(await accepts({ type: "string", pattern: "^((a+)+)+$" }, `"${"a".repeat(60)}"`)).toBe(true);
    expect(await accepts({ type: "string", pattern: "^((a+)+)+$" }, `"${"a".repeat(60)}b"`)).toBe(false);
  });
});

test("whitespace is bounded: a run of it ends", async () => {
  using mask = await constraint(tokenizer, format(WEATHER));
  const text = "{\n" + " ".repeat(200);
  expect(takes(tokenizer, mask, text)).toBe(false);
  const tab = tokenizer.encode("\t", { bos: false }).at(-1)!, newline = tokenizer.encode("\n", { bos: false }).at(-1)!;
  using other = await constraint(tokenizer, { format: { type: "json_object" } });
  for (const id of tokenizer.encode('{"a": "b', { bos: false })) other.accept(id);
  // Inside a string they would not even be JSON.
  const words = other.next()!;
  for (const id of [tab, newline]) expect((words[id >> 5]! >>> (id & 31)) & 1).toBe(0);
});
