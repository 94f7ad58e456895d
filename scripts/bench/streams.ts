// One stream against many: bun scripts/bench/streams.ts --model F [--streams 1,8,64] [--prompt 32] [--tokens 64] [--threads 0] [--repetitions 3]
// Total tokens a second of concurrent answers through the public API, each with a session of its own, in turns; their greedy texts must be those of one alone.
import { parseArgs } from "node:util";
import { UsageError } from "../../src/errors.ts";
import { load } from "../../src/index.ts";

const text = { type: "string" } as const;
const { values } = parseArgs({ options: { model: { ...text, short: "m" }, streams: text, prompt: text, tokens: text, threads: text, repetitions: text, device: text, json: { type: "boolean" } } });
if (!values.model) throw new UsageError("usage", "--model is needed");
const counts = (values.streams ?? "1,8,64").split(",").map(Number), prompt = Number(values.prompt ?? 32), tokens = Number(values.tokens ?? 64), repetitions = Number(values.repetitions ?? 3);
const most = Math.max(...counts);

await using model = await load(values.model, {
  sessions: most, context: prompt + tokens + 16,
  device: { threads: Number(values.threads ?? 0), ...(values.device ? { backend: values.device as "cpu" | "cuda" | "metal" } : {}) },
});
const ids = (stream: number): number[] => Array.from({ length: prompt }, (_, i) => 5 + (((i + 1) * 7919 + stream * 104_729) % (model.info.vocabulary - 5)));

/** Seconds and texts of `count` answers at once. */
async function run(count: number): Promise<{ seconds: number; texts: string[]; gaps: number[] }> {
  const gaps: number[] = [], began = performance.now();
  const texts = await Promise.all(Array.from({ length: count }, async (_, stream) => {
    let text = "", last = 0;
    for await (const part of model.generate({ ids: ids(stream) }, { temperature: 0, maxTokens: tokens, ignoreStop: true, logprobs: 0 })) {
      if (part.type === "text") text += part.text;
      if (part.type !== "token") continue;
      const now = performance.now();
      if (last > 0) gaps.push(now - last);
      last = now;
    }
    return text;
  }));
  return { seconds: (performance.now() - began) / 1000, texts, gaps };
}

const best = new Map<number, { tokensPerSecond: number; gapMs: { p50: number; p99: number } }>();
let alone: string | undefined, different = 0;
await run(1);
for (let r = 0; r < repetitions; r++) {
  for (const count of counts) {
    const { seconds, texts, gaps } = await run(count), tokensPerSecond = (count * tokens) / seconds;
    alone ??= texts[0];
    if (texts[0] !== alone) different++;
    const sorted = gaps.sort((a, b) => a - b), at = (q: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? NaN;
    if (tokensPerSecond > (best.get(count)?.tokensPerSecond ?? 0)) best.set(count, { tokensPerSecond, gapMs: { p50: at(0.5), p99: at(0.99) } });
  }
}
const one = best.get(counts[0]!)!.tokensPerSecond;
if (values.json) console.log(JSON.stringify({ model: model.info.name, device: model.info.device, prompt, tokens, different, streams: Object.fromEntries(best) }, null, 2));
else {
  console.log(`${model.info.name}, ${model.info.device.name}, ${model.info.device.threads} threads: ${prompt} prompt tokens, ${tokens} drawn, best of ${repetitions}; first streams that differ from the one alone: ${different}\n`);
  console.log("streams    tok/s      ratio   between tokens, ms (p50, p99)");
  for (const [count, b] of best) console.log(`${String(count).padStart(7)} ${b.tokensPerSecond.toFixed(0).padStart(8)} ${`${(b.tokensPerSecond / one).toFixed(2)}x`.padStart(10)} ${b.gapMs.p50.toFixed(2).padStart(10)} ${b.gapMs.p99.toFixed(2).padStart(8)}`);
}
