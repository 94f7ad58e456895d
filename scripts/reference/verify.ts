// Compares converted checkpoints with what transformers computed: bun scripts/reference/verify.ts CHECKPOINT_DIR MODEL.gguf [more pairs].
// Prints the relative error of logits and hidden states, greedy agreement, and bit equality over chunk sizes, decode, threads and fusion.
import { greedy, openRunner, promptLogits, readReference, relativeError, type RunOptions } from "../../test/model/reference.ts";

const equal = (a: Float32Array, b: Float32Array): boolean => Buffer.compare(Buffer.from(a.buffer), Buffer.from(b.buffer)) === 0;

async function logitsOf(path: string, ids: number[], last: number, o: RunOptions): Promise<Float32Array> {
  using runner = openRunner(path, { context: ids.length + 64, ...o });
  return await promptLogits(runner, runner.open(), ids, last);
}

const args = process.argv.slice(2);
const base: RunOptions = process.env["VERIFY_REFERENCE"] ? { reference: true } : {};
let failed = false;
for (let i = 0; i + 1 < args.length; i += 2) {
  const folder = args[i]!, path = args[i + 1]!, reference = readReference(folder);
  for (const [length, ids] of Object.entries(reference.prompts)) {
    const expected = reference.tensor(`logits.${length}`), start = Bun.nanoseconds();
    using runner = openRunner(path, { chunk: 256, context: ids.length + 64, ...base });
    const rows = expected.length / runner.config.vocabulary;
    const found = await logitsOf(path, ids, rows, { chunk: 256, ...base });
    const error = relativeError(found, expected);
    const expectedGreedy = reference.greedy[length]!;
    const foundGreedy = await greedy(runner, ids, expectedGreedy.length);
    const same = foundGreedy.every((id, n) => id === expectedGreedy[n]);
    const variants: [string, RunOptions][] = [["unfused", { unfused: true }], ["2 threads", { threads: 2 }]];
    if (ids.length <= 200) variants.push(["chunk 1", { chunk: 1 }], ["chunk 7", { chunk: 7 }], ["chunk 64", { chunk: 64 }]);
    else variants.push(["chunk 100", { chunk: 100 }]);
    const differing: string[] = [];
    for (const [name, o] of variants) if (!equal(await logitsOf(path, ids, rows, { chunk: 256, ...base, ...o }), found)) differing.push(name);
    failed ||= error > 1e-3 || !same || differing.length > 0;
    console.log(`${path} ${length}: error ${error.toExponential(2)}, greedy ${same ? "same" : `DIFFERS at ${foundGreedy.findIndex((id, n) => id !== expectedGreedy[n])}`}, bits ${differing.length ? `DIFFER: ${differing.join(", ")}` : "equal"} (${((Bun.nanoseconds() - start) / 1e9).toFixed(1)} s)`);
    if (reference.has(`hidden.${length}.0`)) {
      using keep = openRunner(path, { chunk: 64, keepHidden: true, ...base });
      await promptLogits(keep, keep.open(), ids);
      const errors = keep.hidden(ids.length).map((h, l) => relativeError(h, reference.tensor(`hidden.${length}.${l}`)));
      failed ||= Math.max(...errors) > 1e-3;
      console.log(`  hidden: ${errors.map((e) => e.toExponential(1)).join(" ")}`);
    }
  }
}
process.exit(failed ? 1 : 0);
