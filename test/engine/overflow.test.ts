// Conversations that do not fit: an error before anything is computed, or, if asked for, without their oldest turns.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import type { Message } from "../../src/chat/index.ts";
import { encodePrompt } from "../../src/engine/generate.ts";
import { LocalModel } from "../../src/engine/model.ts";
import { latestTurns } from "../../src/engine/overflow.ts";
import { collect, DEMO, failure } from "./fixtures.ts";

setDefaultTimeout(60_000);
let model: LocalModel;
beforeAll(async () => { model = await LocalModel.load(DEMO, { device: { threads: 1 }, context: 256, warmup: false }); });
afterAll(() => model.dispose());

const talk = (turns: number, words = 12): Message[] => [
  { role: "system", content: "You tell stories." },
  ...Array.from({ length: turns }, (_, i): Message[] => [{ role: "user", content: `Question ${i}: ${"dog ".repeat(words)}` }, { role: "assistant", content: `Answer ${i}` }]).flat(),
  { role: "user", content: "And now?" },
];

test("by default: an error with used and max, whatever maxTokens says", async () => {
  using session = model.session();
  const error = await failure(collect(model, session, talk(40), { maxTokens: 5 }));
  expect(error).toMatchObject({ name: "UsageError", code: "context_length_exceeded" });
  expect(error.message).toMatch(/\d+ tokens.*256/);
  expect(await failure(collect(model, session, talk(1), { overflow: "shift" as never }))).toMatchObject({ code: "bad_option" });
});

test("drop_oldest: the system turn and the newest turns stay, as many as leave room for the answer; usage tells what went", async () => {
  using session = model.session();
  for (const [turns, maxTokens] of [[40, 5], [40, 60], [40, undefined], [6, 100], [2, 5], [0, 5]] as const) {
    const messages = talk(turns), options = { overflow: "drop_oldest", temperature: 0, ...(maxTokens === undefined ? {} : { maxTokens }) } as const;
    const { ids, droppedMessages = 0 } = encodePrompt(model, messages, options), room = 256 - Math.min(maxTokens ?? 128, 128);
    expect(ids.length).toBeLessThanOrEqual(room);
    expect(droppedMessages % 2).toBe(0);
    const kept = [messages[0]!, ...messages.slice(1 + droppedMessages)];
    expect(encodePrompt(model, kept, {}).ids).toEqual(ids);
    // One turn more would not have fitted.
    if (droppedMessages > 0) expect(encodePrompt(model, [messages[0]!, ...messages.slice(droppedMessages - 1)], {}).ids.length).toBeGreaterThan(room);
    else expect(encodePrompt(model, messages, {}).ids).toEqual(ids);
    const { finish } = await collect(model, session, messages, options);
    expect(finish.usage.droppedMessages ?? 0).toBe(droppedMessages);
    if (maxTokens !== undefined) expect(finish.usage.completionTokens).toBeLessThanOrEqual(maxTokens);
  }
});

test("a last question that is too long by itself is still an error", async () => {
  using session = model.session();
  expect(await failure(collect(model, session, [...talk(3), { role: "assistant", content: "x" }, { role: "user", content: "dog ".repeat(400) }], { overflow: "drop_oldest" }))).toMatchObject({ code: "context_length_exceeded" });
});

test("no answer and no tool result is left without its question; the search ends in few steps", () => {
  const long = talk(3000).flatMap((m): Message[] => (m.role === "assistant" ? [{ role: "assistant", toolCalls: [{ name: "f", arguments: {} }] }, { role: "tool", content: "1" }, m] : [m]));
  for (const most of [1, 2, 5, 17, 1000, 5000, 20_000]) {
    let asked = 0;
    const kept = latestTurns(long, (some) => { asked++; return some.length <= most; });
    expect(asked).toBeLessThan(16);
    expect([kept[0]!.role, kept[1]!.role, kept.at(-1)]).toEqual(["system", "user", long.at(-1)!]);
    expect(kept.length).toBeLessThanOrEqual(Math.max(2, most));
    expect(long.slice(long.length - kept.length + 1)).toEqual(kept.slice(1) as Message[]);
  }
  const one: Message[] = [{ role: "system", content: "x" }];
  expect(latestTurns(one, () => false)).toBe(one);
});
