// Decode of many sequences in one step: bun scripts/bench/batched.ts --model F [--device cuda] [--sequences 1,8,32] [--prompt 64] [--decode 64] [--ops]
// Prompts are random and distinct, so that the rows choose different experts. Times the runner alone: no text, no server.
import { parseArgs } from "node:util";
import { Runner, WAIT_MS, type BatchEntry, type Sequence, type Step } from "../../src/engine/runner.ts";
import { UsageError } from "../../src/errors.ts";
import { openGguf } from "../../src/gguf/index.ts";
import type { BackendName } from "../../src/native/library.ts";
import { resolveSampling } from "../../src/sample/params.ts";

const text = { type: "string" } as const;
const { values } = parseArgs({ options: { model: { ...text, short: "m" }, device: text, sequences: text, prompt: text, decode: text, repetitions: text, sampled: { type: "boolean" }, ops: { type: "boolean" } } });
if (!values.model) throw new UsageError("usage", "--model is needed");
const prompt = Number(values.prompt ?? 64), decode = Number(values.decode ?? 64), repetitions = Number(values.repetitions ?? 3);
const counts = (values.sequences ?? "1,8,32").split(",").map(Number);

for (const count of counts) {
  using runner = new Runner(openGguf(values.model), {
    ...(values.device ? { device: { backend: values.device as BackendName } } : {}), plan: { sequences: count, outputs: count, context: prompt + decode + 10, chunk: Math.max(prompt, count) },
  });
  const sampling = resolveSampling(values.sampled ? { temperature: 0.8, topK: 40, topP: 0.95, seed: 1 } : { temperature: 0, seed: 1 }, runner.config.vocabulary), times: number[] = [];
  for (let r = 0; r <= repetitions; r++) {
    const sequences: Sequence[] = Array.from({ length: count }, () => runner.open());
    for (const sequence of sequences) {
      await runner.run([{ sequence, ids: Array.from({ length: prompt }, () => Math.trunc(Math.random() * runner.config.vocabulary)), logits: "last", sampling }]);
    }
    const entries = sequences.map((sequence): BatchEntry => ({ sequence, ids: "next", logits: "last", sampling }));
    const began = Bun.nanoseconds();
    // As the scheduler does it: on devices that work by themselves the next step is submitted before the last one's tokens are read.
    const underWay: Step[] = [];
    for (let i = 0; i < decode + runner.depth; i++) {
      if (i < decode) underWay.push(runner.submit(entries));
      if (underWay.length < runner.depth && i < decode) continue;
      const step = underWay.shift();
      if (!step) break;
      while (!runner.wait(step, WAIT_MS));
      runner.collect(step);
    }
    if (r > 0) times.push((Bun.nanoseconds() - began) / 1e6 / decode); // the first repetition warms up
    if (r === repetitions && values.ops) {
      runner.recordings.profile(true);
      for (let i = 0; i < 8; i++) await runner.run(entries);
      runner.recordings.profile(false);
      for (const [kind, t] of [...runner.recordings.opTimes()].sort((a, b) => b[1].nanoseconds - a[1].nanoseconds).slice(0, 8)) console.log(`    op ${kind} x ${t.count}: ${(t.nanoseconds / 8e6).toFixed(3)} ms`);
    }
    for (const sequence of sequences) runner.close(sequence);
  }
  times.sort((a, b) => a - b);
  const ms = times[times.length >> 1]!;
  console.log(`${String(count).padStart(3)} sequences  ${(count * 1000 / ms).toFixed(1).padStart(8)} tok/s  ${ms.toFixed(3)} ms a step (${times[0]!.toFixed(3)} ... ${times.at(-1)!.toFixed(3)})`);
}
