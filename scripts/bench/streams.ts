// One stream against many: bun scripts/bench/streams.ts --model F [--streams 1,8,64] [--prompt 32] [--tokens 64] [--beside 0] [--threads 0] [--repetitions 3]
// Total tokens a second of concurrent answers through the public API, each with a session of its own, in turns; their greedy texts must be those of one alone.
// --beside N: a prompt of N tokens is prefilled beside the streams, which go on until it is done; only times between tokens in that while count.
import { parseArgs } from "node:util";
import { UsageError } from "../../src/errors.ts";
import { load } from "../../src/index.ts";

const text = { type: "string" } as const;
const { values } = parseArgs({ options: { model: { ...text, short: "m" }, streams: text, prompt: text, tokens: text, beside: text, threads: text, repetitions: text, device: text, json: { type: "boolean" } } });
if (!values.model) throw new UsageError("usage", "--model is needed");
const counts = (values.streams ?? "1,8,64").split(",").map(Number), prompt = Number(values.prompt ?? 32), tokens = Number(values.tokens ?? 64), repetitions = Number(values.repetitions ?? 3), beside = Number(values.beside ?? 0);
const most = Math.max(...counts);

await using model = await load(values.model, {
  sessions: most + (beside > 0 ? 1 : 0), context: Math.max(prompt + tokens, beside) + 16,
  device: { threads: Number(values.threads ?? 0), ...(values.device ? { backend: values.device as "cpu" | "cuda" | "metal" } : {}) },
});
let turn = 0; // a prompt that came before would be found in a cache
const ids = (stream: number, length = prompt): number[] => Array.from({ length }, (_, i) => 5 + (((i + 1) * 7919 + stream * 104_729) % (model.info.vocabulary - 5)));

interface Run {
  seconds: number;
  texts: string[];
  gaps: number[];
  tokens: number;
  /** Tokens a second of the prompt beside the streams. */
  prefill?: number;
}

/** `count` answers at once; with `long`, a prompt of so many tokens begins when each of them has a token, and they end after it. */
async function run(count: number, long = 0): Promise<Run> {
  const gaps: number[] = [], began = performance.now();
  let started = 0, drawn = 0, since = long > 0 ? Infinity : 0, until = Infinity, prefill: number | undefined;
  const done = new AbortController(), all = Promise.withResolvers<void>();
  const prompted = all.promise.then(async () => {
    if (long === 0) return;
    since = performance.now();
    for await (const _ of model.generate({ ids: ids(count + ++turn, long) }, { temperature: 0, maxTokens: 1, ignoreStop: true })) void _;
    until = performance.now();
    prefill = long / ((until - since) / 1000);
    done.abort();
  });
  const texts = await Promise.all(Array.from({ length: count }, async (_, stream) => {
    let text = "", last = 0;
    try {
      for await (const part of model.generate({ ids: ids(stream) }, { temperature: 0, ignoreStop: true, logprobs: 0, ...(long > 0 ? { signal: done.signal } : { maxTokens: tokens }) })) {
        if (part.type === "text") text += part.text;
        if (part.type !== "token") continue;
        const now = performance.now();
        if (last > 0 && last >= since && now <= until) gaps.push(now - last);
        if (last === 0 && ++started === count) all.resolve();
        last = now;
        drawn++;
      }
    } catch (e) {
      if (!done.signal.aborted) throw e;
    }
    return text;
  }));
  await prompted;
  return { seconds: (performance.now() - began) / 1000, texts, gaps, tokens: drawn, ...(prefill === undefined ? {} : { prefill }) };
}

const best = new Map<number, { tokensPerSecond: number; gapMs: { p50: number; p99: number; max: number }; prefill?: number }>();
let alone: string | undefined, different = 0;
await run(1);
for (let r = 0; r < repetitions; r++) {
  for (const count of counts) {
    const { seconds, texts, gaps, tokens: drawn, prefill } = await run(count, beside), tokensPerSecond = drawn / seconds;
    if (beside === 0) alone ??= texts[0];
    if (beside === 0 && texts[0] !== alone) different++;
    const sorted = gaps.sort((a, b) => a - b), at = (q: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? NaN;
    if (tokensPerSecond > (best.get(count)?.tokensPerSecond ?? 0)) best.set(count, { tokensPerSecond, gapMs: { p50: at(0.5), p99: at(0.99), max: sorted.at(-1) ?? NaN }, ...(prefill === undefined ? {} : { prefill }) });
  }
}
const one = best.get(counts[0]!)!.tokensPerSecond;
if (values.json) console.log(JSON.stringify({ model: model.info.name, device: model.info.device, prompt, tokens, different, streams: Object.fromEntries(best) }, null, 2));
else {
  const what = beside > 0 ? `beside a prompt of ${beside}` : `${tokens} drawn; first streams that differ from the one alone: ${different}`;
  console.log(`${model.info.name}, ${model.info.device.name}, ${model.info.device.threads} threads: ${prompt} prompt tokens, ${what}; best of ${repetitions}\n`);
  console.log("streams    tok/s      ratio   between tokens, ms (p50, p99, max)   prompt beside, tok/s");
  for (const [count, { tokensPerSecond, gapMs, prefill }] of best) {
    console.log(`${String(count).padStart(7)} ${tokensPerSecond.toFixed(0).padStart(8)} ${`${(tokensPerSecond / one).toFixed(2)}x`.padStart(10)} ${gapMs.p50.toFixed(2).padStart(10)} ${gapMs.p99.toFixed(2).padStart(8)} ${gapMs.max.toFixed(2).padStart(8)} ${(prefill?.toFixed(0) ?? "-").padStart(12)}`);
  }
}
