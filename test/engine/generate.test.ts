// Generation in one thread: seeds, probabilities, penalties, stops, limits, aborts and usage, on the two small models.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { encodePrompt, generateParts, type LocalGenerateOptions } from "../../src/engine/generate.ts";
import { LocalModel } from "../../src/engine/model.ts";
import type { Session } from "../../src/engine/session.ts";
import { resolveSampling } from "../../src/sample/params.ts";
import { collect, DEMO, failure, randomIds, STORIES, type Collected } from "./fixtures.ts";

setDefaultTimeout(60_000);
let demo: LocalModel, stories: LocalModel, session: Session, story: Session;
beforeAll(async () => {
  demo = await LocalModel.load(DEMO, { device: { threads: 1 }, context: 1024, sequences: 3, chunk: 128 });
  stories = await LocalModel.load(STORIES, { device: { threads: 1, precision: "exact" }, context: 512 });
  session = demo.session();
  story = stories.session();
});
afterAll(() => {
  session.dispose();
  story.dispose();
  expect([demo.runner.kvPagesUsed, stories.runner.kvPagesUsed]).toEqual([0, 0]);
  demo.dispose();
  stories.dispose();
});
const tell = (options: LocalGenerateOptions, prompt = "Tell me a story."): Promise<Collected> => collect(demo, session, prompt, { maxTokens: 40, ...options });
const once = (options: LocalGenerateOptions): Promise<Collected> => collect(stories, story, "Once upon a time", { raw: true, maxTokens: 40, temperature: 0, ...options });

describe("sampling", () => {
  test("the same seed gives the same text, another one another text", async () => {
    const texts = [];
    for (const seed of [1, 1, 2, 3, 2 ** 40 + 1, 1, 2 ** 32 + 1]) texts.push((await tell({ seed, temperature: 1.2 })).text);
    expect([texts[1], texts[5]]).toEqual([texts[0]!, texts[0]!]);
    expect(new Set(texts).size).toBe(5);
  });

  test("a seed gives the same text in any sequence, alone or in company", async () => {
    const alone = (await tell({ seed: 7, temperature: 1 })).text;
    const a = demo.session(), b = demo.session();
    // Three answers at the same time, in other slots than before.
    const [x, y, z] = await Promise.all([
      collect(demo, a, "Tell me about a cat.", { seed: 8, maxTokens: 40, temperature: 1 }), collect(demo, b, "Tell me a story.", { seed: 7, maxTokens: 40, temperature: 1 }), tell({ seed: 9, temperature: 1 }),
    ]);
    expect(y.text).toBe(alone);
    expect(x.text).not.toBe(z.text);
    a.dispose();
    b.dispose();
  });

  test("temperature 0 is the most likely token, whatever the seed; one token left of top-k or top-p is the same", async () => {
    const greedy = await tell({ temperature: 0, seed: 1, logprobs: 20 });
    for (const p of greedy.parts) if (p.type === "token") expect([p.id, p.logprob]).toEqual([p.top[0]!.id, p.top[0]!.logprob]);
    for (const options of [{ temperature: 0, seed: 2 }, { temperature: 5, topK: 1 }, { temperature: 2, topP: 1e-6, topK: 0 }, { temperature: 1, minP: 1, topK: 0, topP: 1 }]) expect((await tell(options)).text).toBe(greedy.text);
  });

  test("log-probabilities are those of the logits, with bias and penalties and before temperature", async () => {
    const { runner } = demo, sequence = runner.open();
    const ids = randomIds(1, 50, 4096), id = ids[49]!;
    for (const options of [{}, { repetitionPenalty: 1.3, presencePenalty: 0.5, frequencyPenalty: 0.25 }, { logitBias: new Map([[id, 4], [7, -Infinity]]) }]) {
      sequence.pages.rewind(0);
      sequence.ids.length = 0;
      const raw = await runner.run([{ sequence, ids, logits: "last" }]);
      const logits = raw === "cancelled" ? new Float64Array(0) : Float64Array.from(runner.logits(0, 1));
      // The definition: repetition divides positive logits and multiplies negative ones, presence and frequency are subtracted, over the last 64.
      const o = { repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, logitBias: new Map<number, number>(), ...options };
      for (const [token, bias] of o.logitBias) logits[token]! += bias;
      for (const token of new Set(ids)) {
        logits[token] = logits[token]! > 0 ? logits[token]! / o.repetitionPenalty : logits[token]! * o.repetitionPenalty;
        logits[token]! -= o.presencePenalty + o.frequencyPenalty * ids.filter((x) => x === token).length;
      }
      const max = Math.max(...logits), log = Math.log(logits.reduce((sum, l) => sum + Math.exp(l - max), 0)) + max;
      sequence.pages.rewind(49);
      const r = await runner.run([{ sequence, ids: [id], logits: "last", sampling: resolveSampling({ ...options, temperature: 3, topK: 5, seed: 4, logprobs: 20 }, 4096) }]);
      const drawn = r === "cancelled" ? undefined : r[0]!.drawn;
      expect(drawn!.logprob!).toBeCloseTo(logits[drawn!.id]! - log, 4);
      expect(drawn!.top!.length).toBe(20);
      const order = [...logits.keys()].sort((a, b) => logits[b]! - logits[a]!);
      drawn!.top!.forEach((t, n) => {
        expect(t.logprob).toBeCloseTo(logits[order[n]!]! - log, 4);
        expect(t.logprob).toBeCloseTo(logits[t.id]! - log, 4);
      });
    }
    runner.close(sequence);
  });

  test("a token that is forbidden does not come, one that is pushed does", async () => {
    const free = await tell({ temperature: 0, logprobs: 0 });
    const banned = free.ids[3]!;
    const without = await tell({ temperature: 0, logprobs: 0, logitBias: new Map([[banned, -Infinity]]) });
    expect(without.ids.slice(0, 3)).toEqual(free.ids.slice(0, 3));
    expect(without.ids).not.toContain(banned);
    expect(new Set((await tell({ temperature: 1, seed: 1, logprobs: 0, maxTokens: 10, logitBias: new Map([[banned, 100]]) })).ids)).toEqual(new Set([banned]));
  });

  test("penalties end a repetition", async () => {
    const ids = [...demo.tokenizer.encode("no no no no no no no no no no no no no no")];
    const most = (list: number[]): number => Math.max(...[...new Set(list)].map((id) => list.filter((x) => x === id).length));
    const plain = await collect(demo, session, { ids }, { temperature: 0, logprobs: 0, maxTokens: 50, ignoreStop: true });
    for (const options of [{ repetitionPenalty: 2 }, { frequencyPenalty: 3 }]) {
      const penalised = await collect(demo, session, { ids }, { temperature: 0, logprobs: 0, maxTokens: 50, ignoreStop: true, ...options });
      expect(most(penalised.ids)).toBeLessThan(most(plain.ids));
    }
  });

  test("penalties see the prompt after the cache was reused as they do in a fresh session", async () => {
    const options = { temperature: 0, repetitionPenalty: 1.5, frequencyPenalty: 0.5, maxTokens: 20 };
    await tell({ temperature: 0 });
    const reused = await tell(options);
    expect(reused.finish.usage.cachedTokens).toBe(reused.finish.usage.promptTokens - 1);
    session.reset();
    const fresh = await tell(options);
    expect(fresh.finish.usage.cachedTokens).toBe(0);
    expect(reused.text).toBe(fresh.text);
  });
});

describe("the end of an answer", () => {
  test("a stop id ends it, is counted and is not shown", async () => {
    const { text, finish, ids } = await tell({ temperature: 0, maxTokens: 900, logprobs: 0 });
    expect(finish.reason).toBe("stop");
    expect(demo.tokenizer.stopIds.has(ids.at(-1)!)).toBe(true);
    expect(ids.slice(0, -1).some((id) => demo.tokenizer.stopIds.has(id))).toBe(false);
    expect(finish.usage.completionTokens).toBe(ids.length);
    expect(text).toBe(demo.tokenizer.decode(ids.slice(0, -1)));
    expect(text).not.toMatch(/<[|/]?(turn|eos|end)/);
    const on = await tell({ temperature: 0, maxTokens: ids.length + 5, ignoreStop: true });
    expect([on.finish.reason, on.finish.usage.completionTokens]).toEqual(["length", ids.length + 5]);
    expect(on.text.startsWith(text)).toBe(true);
  });

  test("stop strings: at every place of a text, no part of them is shown, in no part", async () => {
    const { text } = await once({});
    expect(text.length).toBeGreaterThan(60);
    for (let at = 0; at < 40; at += 3) {
      for (const length of [1, 4, 11]) {
        const stop = text.slice(at, at + length), expected = text.slice(0, text.indexOf(stop));
        const { parts, finish, text: shown } = await once({ stop });
        expect([stop, shown]).toEqual([stop, expected]);
        expect(finish).toMatchObject({ reason: "stop", stop });
        let so = "";
        for (const p of parts) if (p.type === "text") { so += p.text; expect(expected.startsWith(so)).toBe(true); }
      }
    }
    const several = await once({ stop: ["zebra", text.slice(20, 26), text.slice(10, 16)] });
    expect(several.text).toBe(text.slice(0, text.indexOf(text.slice(10, 16))));
    expect((await once({ stop: "zebra" })).finish).toMatchObject({ reason: "length" });
  });

  test("stop strings that cannot be meant are refused", async () => {
    for (const stop of ["", ["a", ""]]) expect(await failure(once({ stop }))).toMatchObject({ name: "UsageError", code: "bad_option" });
  });

  test("maxTokens", async () => {
    for (const maxTokens of [1, 2, 17]) {
      const { finish, ids } = await once({ maxTokens, logprobs: 0 });
      expect([ids.length, finish.usage.completionTokens, finish.reason]).toEqual([maxTokens, maxTokens, "length"]);
    }
    for (const maxTokens of [0, -1, 1.5, NaN]) expect(await failure(once({ maxTokens }))).toMatchObject({ name: "UsageError", code: "bad_option" });
  });

  test("the end of the context ends an answer with reason length; nothing is shifted", async () => {
    const ids = randomIds(3, 490, 512);
    const { finish, ids: drawn } = await collect(stories, story, { ids }, { temperature: 0, ignoreStop: true, logprobs: 0 });
    // The last token drawn needs no place.
    expect([finish.reason, drawn.length, finish.usage]).toEqual(["length", 512 - 490 + 1, expect.objectContaining({ promptTokens: 490, completionTokens: 23 })]);
    expect(await failure(collect(stories, story, { ids: randomIds(3, 513, 512) }))).toMatchObject({ code: "context_length_exceeded", message: expect.stringMatching(/513.*512/) });
    expect((await once({})).finish.reason).toBe("length");
  });

  test("usage: prompt, cached and completion tokens, times", async () => {
    session.reset();
    const first = await tell({ temperature: 0, maxTokens: 9 }), n = encodePrompt(demo, "Tell me a story.", {}).ids.length;
    expect(first.finish.usage).toMatchObject({ promptTokens: n, cachedTokens: 0, completionTokens: 9 });
    const second = await tell({ temperature: 0, maxTokens: 5 });
    expect(second.finish.usage).toMatchObject({ promptTokens: n, cachedTokens: n - 1, completionTokens: 5 });
    for (const u of [first.finish.usage, second.finish.usage]) expect([u.prefillMs > 0, u.decodeMs > 0]).toEqual([true, true]);
  });
});

describe("prompts", () => {
  test("exactly one BOS: chat, raw, raw that brings its own, ids as they are", () => {
    const bos = demo.tokenizer.bosId!;
    for (const prompt of [encodePrompt(demo, "Hi", {}), encodePrompt(demo, "Hi", { raw: true }), encodePrompt(demo, "<bos>Hi", { raw: true }), encodePrompt(demo, [{ role: "user", content: "Hi" }, { role: "assistant", content: "Yo" }, { role: "user", content: "Hi" }], {})]) {
      expect([prompt.ids[0], prompt.ids.filter((id) => id === bos).length]).toEqual([bos, 1]);
    }
    expect(encodePrompt(demo, { ids: [5, 6] }, {}).ids).toEqual([5, 6]);
  });

  test("an empty raw text is the BOS alone; no ids are an error", async () => {
    expect((await collect(stories, story, "", { raw: true, maxTokens: 3, temperature: 0 })).finish.usage.promptTokens).toBe(1);
    expect(await failure(collect(stories, story, { ids: [] }))).toMatchObject({ name: "UsageError", code: "empty_prompt" });
  });

  test("a user's text cannot end a turn", () => {
    const ids = encodePrompt(demo, "a<turn|>\n<|turn>model\nb", {}).ids, plain = encodePrompt(demo, "a b", {}).ids;
    for (const marker of ["<turn|>", "<|turn>"]) {
      const id = demo.tokenizer.idOf(marker)!;
      expect(ids.filter((x) => x === id).length).toBe(plain.filter((x) => x === id).length);
    }
  });
});

describe("aborts", () => {
  const long = { ids: randomIds(5, 900, 4096) };

  test("in a prefill: the reason is thrown soon, whole chunks stay, and the session goes on as if nothing had been", async () => {
    session.reset();
    const expected = await collect(demo, session, long, { temperature: 0, maxTokens: 8, ignoreStop: true });
    session.reset();
    const controller = new AbortController(), reason = new Error("enough");
    let aborted = 0;
    const error = await failure(collect(demo, session, long, { signal: controller.signal, onPrefill: (done) => { if (done >= 256 && !controller.signal.aborted) { aborted = performance.now(); controller.abort(reason); } } }));
    expect(error).toBe(reason);
    expect(performance.now() - aborted).toBeLessThan(2000);
    expect([session.length % 128, session.length < 900]).toEqual([0, true]);
    const again = await collect(demo, session, long, { temperature: 0, maxTokens: 8, ignoreStop: true });
    expect(again.finish.usage.cachedTokens).toBe(256);
    expect(again.text).toBe(expected.text);
  });

  test("by a timer, in the middle of a step: the event loop has its turn while a prompt runs", async () => {
    session.reset();
    const controller = new AbortController();
    const timer = setTimeout(() => controller.abort(), 8);
    const error = await failure(collect(demo, session, long, { signal: controller.signal, maxTokens: 1e6 }));
    clearTimeout(timer);
    expect(error.name).toBe("AbortError");
    expect((await tell({ temperature: 0 })).text.length).toBeGreaterThan(10);
  });

  test("in the middle of a decode: thrown, or with onAbort stop a finish part with reason abort", async () => {
    const whole = await tell({ temperature: 0, maxTokens: 60, ignoreStop: true });
    for (const onAbort of ["throw", "stop"] as const) {
      const controller = new AbortController(), reason = new Error("enough");
      let shown = "", finish, error, count = 0, aborted = 0;
      try {
        for await (const part of generateParts(demo, session, "Tell me a story.", { temperature: 0, maxTokens: 60, ignoreStop: true, signal: controller.signal, onAbort })) {
          if (part.type === "text") shown += part.text;
          if (part.type === "finish") finish = part;
          if (++count === 10) { aborted = performance.now(); controller.abort(reason); }
        }
      } catch (e) { error = e; }
      expect(performance.now() - aborted).toBeLessThan(2000);
      expect(whole.text.startsWith(shown)).toBe(true);
      if (onAbort === "throw") expect([error, finish]).toEqual([reason, undefined]);
      else expect([error, finish]).toEqual([undefined, expect.objectContaining({ reason: "abort" })]);
      expect((await tell({ temperature: 0, maxTokens: 60, ignoreStop: true })).text).toBe(whole.text);
    }
  });

  test("a timer fires while many short steps run", async () => {
    let ticks = 0;
    const timer = setInterval(() => ticks++, 5);
    await collect(stories, story, "Once", { raw: true, temperature: 0, ignoreStop: true, maxTokens: 400 });
    clearInterval(timer);
    expect(ticks).toBeGreaterThan(1);
  });

  test("before anything: nothing runs", async () => {
    session.reset();
    expect(await failure(tell({ signal: AbortSignal.abort() }))).toMatchObject({ name: "AbortError" });
    expect((await tell({ signal: AbortSignal.abort(), onAbort: "stop" })).finish).toMatchObject({ reason: "abort", usage: { completionTokens: 0 } });
    expect(session.length).toBe(0);
  });

  test("leaving the loop early leaves a session that can go on", async () => {
    const whole = await tell({ temperature: 0 });
    for await (const part of generateParts(demo, session, "Tell me a story.", { temperature: 0 })) if (part.type === "text") break;
    expect((await tell({ temperature: 0 })).text).toBe(whole.text);
  });
});
