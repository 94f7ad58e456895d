// Tools in both directions: declarations out of zod's schemas, calls that a template writes and we read, results on the turn that they belong to.
import { describe, expect, test } from "bun:test";
import fc from "fast-check";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { parseGemmaCall } from "../../src/chat/calls.ts";
import { createChatTemplate, type Message, plainSchema, toolSpec } from "../../src/chat/index.ts";
import { normaliseTool } from "../../src/chat/tools.ts";
import { UsageError } from "../../src/errors.ts";

const template = createChatTemplate(readFileSync(join(import.meta.dir, "../fixtures/templates/gemma-4-31b-it.jinja"), "utf8"), { bosToken: "<bos>" });
const rendered = (messages: readonly Message[], options: Parameters<typeof template.render>[1] = {}): string => template.render(messages, options).pieces.map((p) => p.text).join("");
const call = (args: Record<string, unknown>, id = "1"): Message => ({ role: "assistant", toolCalls: [{ id, name: "f", arguments: args }] });

describe("declarations", () => {
  const parameters = z.object({ city: z.string().describe("Where"), unit: z.enum(["c", "f"]).default("c"), days: z.number().int().max(7).optional() });

  test("zod's schemas and plain ones come out the same", () => {
    const ofZod = rendered([{ role: "user", content: "Hi" }], { tools: [{ name: "weather", description: "Forecast", parameters }] });
    expect(ofZod).toBe(rendered([{ role: "user", content: "Hi" }], { tools: [{ name: "weather", description: "Forecast", parameters: z.toJSONSchema(parameters, { io: "input" }) }] }));
    expect(ofZod).toContain('<|tool>declaration:weather{description:<|"|>Forecast<|"|>,parameters:{properties:{city:{description:<|"|>Where<|"|>,type:<|"|>STRING<|"|>}');
    expect(ofZod).toContain('required:[<|"|>city<|"|>]');
  });

  test("a tool is plain data afterwards, whichever way it was written", () => {
    const plain = { name: "weather", parameters: plainSchema(parameters) };
    expect(toolSpec({ name: "weather", parameters })).toEqual(plain);
    expect(toolSpec({ type: "function", function: { name: "weather", parameters, strict: true } })).toEqual({ ...plain, strict: true });
    expect(structuredClone(toolSpec({ name: "weather", parameters }))).toEqual(plain);
    expect(normaliseTool({ name: "weather", parameters })).toEqual(normaliseTool(plain));
  });

  test("schemas that JSON cannot hold, and libraries that cannot tell, are refused", () => {
    expect(() => toolSpec({ name: "f", parameters: z.object({ when: z.date() }) })).toThrow(UsageError);
    const mute = { "~standard": { version: 1, vendor: "mute", validate: (value: unknown) => ({ value }) } } as const;
    expect(() => toolSpec({ name: "f", parameters: mute })).toThrow(/schema of mute does not tell/);
  });
});

describe("calls and results", () => {
  test("what the template writes of a call is what we read", () => {
    const value = fc.letrec<{ value: unknown }>((tie) => ({
      value: fc.oneof({ depthSize: "small" }, fc.string().filter((s) => !s.includes('<|"|>') && s === s.trim() && s !== ""), fc.integer(), fc.boolean(), fc.array(tie("value"), { maxLength: 3 }), fc.dictionary(fc.stringMatching(/^[a-z][a-z0-9_]{0,6}$/), tie("value"), { maxKeys: 3 })),
    })).value;
    fc.assert(fc.property(fc.dictionary(fc.stringMatching(/^[a-z][a-z0-9_]{0,8}$/), value, { maxKeys: 4 }), (args) => {
      const text = rendered([{ role: "user", content: "Hi" }, call(args)]), [, written] = /<\|tool_call>(.*?)<tool_call\|>/s.exec(text)!;
      expect(parseGemmaCall(written!)).toEqual({ name: "f", arguments: JSON.parse(JSON.stringify(args)) as Record<string, unknown> });
    }), { numRuns: 200, seed: 7 });
  });

  test("several calls and their results stand in one turn, in the order of the calls", () => {
    const text = rendered([
      { role: "user", content: "Hi" },
      { role: "assistant", toolCalls: [{ id: "a", name: "f", arguments: { x: 1 } }, { id: "b", name: "g", arguments: '{"y": "z"}' }] },
      { role: "tool", toolCallId: "a", content: { ok: true } }, { role: "tool", toolCallId: "b", content: "fine" },
    ]);
    expect(text).toEndWith('<|turn>model\n<|tool_call>call:f{x:1}<tool_call|><|tool_call>call:g{y:<|"|>z<|"|>}<tool_call|><|tool_response>response:f{ok:true}<tool_response|><|tool_response>response:g{value:<|"|>fine<|"|>}<tool_response|>');
  });
});
