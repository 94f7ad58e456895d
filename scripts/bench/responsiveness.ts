// How free the caller stays: bun scripts/bench/responsiveness.ts --model F [--prompt 3000] [--threads 0] [--aborts 20]
// Lag of a 5 ms timer of the caller's thread while a long prompt is prefilled, and the time from abort() to the end of the answer. Through the public API only.
import { parseArgs } from "node:util";
import { UsageError } from "../../src/errors.ts";
import { load, type ModelSession } from "../../src/index.ts";

const text = { type: "string" } as const;
const { values } = parseArgs({ options: { model: { ...text, short: "m" }, prompt: text, threads: text, aborts: text, json: { type: "boolean" } } });
if (!values.model) throw new UsageError("usage", "--model is needed");
const prompt = Number(values.prompt ?? 3000), aborts = Number(values.aborts ?? 20);
const quantile = (sorted: readonly number[], q: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? NaN;
const spread = (ms: readonly number[]): { count: number; p50: number; p99: number; max: number } => {
  const sorted = [...ms].sort((a, b) => a - b);
  return { count: sorted.length, p50: quantile(sorted, 0.5), p99: quantile(sorted, 0.99), max: sorted.at(-1) ?? NaN };
};

await using model = await load(values.model, { context: prompt + 64, device: { threads: Number(values.threads ?? 0) } });
const ids = Array.from({ length: prompt }, (_, i) => 5 + ((i * 7919) % (model.info.vocabulary - 5)));

/** How late each turn of a 5 ms timer comes while `work` runs. */
async function lagDuring(work: () => Promise<unknown>): Promise<number[]> {
  const lags: number[] = [];
  let due = performance.now() + 5;
  const timer = setInterval(() => {
    const now = performance.now();
    lags.push(Math.max(0, now - due));
    due = now + 5;
  }, 5);
  await work();
  clearInterval(timer);
  return lags;
}

/** Milliseconds from abort() to the end, for aborts at different times of an answer. */
async function abortTimes(session: ModelSession, ids: readonly number[], wait: (n: number) => number): Promise<number[]> {
  const times: number[] = [];
  for (let n = 0; n < aborts; n++) {
    const controller = new AbortController();
    // Another first token each time, so that the prompt is run and not found in the cache.
    const ended = session.generate({ ids: [6 + n, ...ids.slice(1)] }, { temperature: 0, ignoreStop: true, signal: controller.signal, onAbort: "stop" }).result();
    await Bun.sleep(wait(n));
    const at = performance.now();
    controller.abort();
    if ((await ended).finish.reason === "abort") times.push(performance.now() - at);
  }
  return times;
}

const idle = spread(await lagDuring(() => Bun.sleep(1000)));
const began = performance.now();
const during = spread(await lagDuring(() => model.generate({ ids }, { temperature: 0, maxTokens: 1 }).result()));
const prefillMs = performance.now() - began;
await using session = await model.session();
const report = {
  model: model.info.name, device: model.info.device.name, threads: model.info.device.threads, prompt, prefillMs,
  timerLagMs: { idle, during },
  abortMs: { prefill: spread(await abortTimes(session, ids, (n) => Math.min(50 + n * 20, prefillMs / 2))), decode: spread(await abortTimes(session, ids.slice(0, 16), (n) => 300 + n * 10)) },
};
if (values.json) console.log(JSON.stringify(report, null, 2));
else {
  const line = (name: string, s: ReturnType<typeof spread>): void => console.log(`${name.padEnd(34)} ${String(s.count).padStart(6)} ${s.p50.toFixed(2).padStart(9)} ${s.p99.toFixed(2).padStart(9)} ${s.max.toFixed(2).padStart(9)}`);
  console.log(`${report.model}, ${report.device}, ${report.threads} threads: ${prompt} tokens in ${(prefillMs / 1000).toFixed(2)} s (${((prompt * 1000) / prefillMs).toFixed(0)} tok/s)\n`);
  console.log(`${"milliseconds".padEnd(34)} ${"count".padStart(6)} ${"p50".padStart(9)} ${"p99".padStart(9)} ${"max".padStart(9)}`);
  line("timer lag, idle", idle);
  line("timer lag, during the prefill", during);
  line("abort() to end, in prefill", report.abortMs.prefill);
  line("abort() to end, in decode", report.abortMs.decode);
}
