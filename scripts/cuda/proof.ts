// What the op suite does not show of the CUDA library, on a machine with a GPU:
//   bun scripts/cuda/proof.ts bits MODEL [--times 100]   greedy and sampled runs with launches overlapping or not, captured or not, scratch poisoned: the
//                                                        same bits every time
//   bun scripts/cuda/proof.ts rounding MODEL TEXT        fast precision against the CPU's: mean KL divergence of next tokens, and perplexity
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { LocalModel } from "../../src/engine/model.ts";
import { surprise } from "../../src/engine/perplexity.ts";
import { everyRow, promptRows } from "../../src/engine/rows.ts";
import { resolveSampling } from "../../src/sample/params.ts";

const { values, positionals: [part, path, text] } = parseArgs({ allowPositionals: true, options: { times: { type: "string" } } });

/** A hash of the ids and last logits of prompts of several lengths and the tokens after them. */
async function run(model: LocalModel): Promise<string> {
  const hash = new Bun.CryptoHasher("sha256"), { vocabulary } = model.runner.config;
  for (const [length, temperature] of [[1, 0], [7, 0.8], [40, 0], [300, 0.8]] as const) {
    using session = model.session();
    const sampling = resolveSampling({ temperature, seed: 7 }, vocabulary);
    let drawn = (await session.prefill(Array.from({ length }, (_, i) => (i * 7919 + 13) % vocabulary), { sampling })).drawn!;
    for (let i = 0; i < 24; i++) {
      hash.update(String(drawn.id));
      drawn = await session.next(sampling);
    }
    hash.update(model.runner.logits(0, 1));
  }
  return hash.digest("hex").slice(0, 16);
}

if (part === "one") {
  using model = await LocalModel.load(path!, { device: { backend: "cuda" }, context: 512 });
  const found = new Set<string>();
  for (let i = 0; i < Number(values.times ?? 100); i++) found.add(await run(model));
  console.log([...found].join(" "));
} else if (part === "bits") {
  const all = new Set<string>();
  for (const overlap of ["0", "1"]) {
    for (const graphs of ["0", "1"]) {
      for (const poison of [undefined, "1"]) {
        const env: Record<string, string | undefined> = { ...process.env, BAO_CUDA_OVERLAP: overlap, BAO_CUDA_GRAPHS: graphs, BAO_CUDA_POISON: poison };
        const child = Bun.spawnSync([process.execPath, import.meta.path, "one", path!, "--times", values.times ?? "100"], { env, stderr: "inherit" });
        const found = child.stdout.toString().trim();
        for (const hash of found.split(" ")) all.add(hash);
        console.log(`overlap ${overlap} graphs ${graphs} poison ${poison ?? "0"}: ${found || `failed (${child.exitCode})`}`);
      }
    }
  }
  console.log(all.size === 1 && !all.has("") ? "bits: the same every time" : `bits: DIFFERENT (${all.size})`);
  process.exitCode = all.size === 1 ? 0 : 1;
} else {
  // Prompts of 16 rows at a time run the decode kernels, longer ones the tensor cores.
  const rows = async (backend: "cpu" | "cuda", precision: "fast" | "fast-int8", chunk: number): Promise<{ logits: Float32Array[]; nll: number }> => {
    using model = await LocalModel.load(path!, everyRow(path!, { device: { backend, precision }, chunk, context: 2048 }));
    const ids = [model.tokenizer.bosId!, ...model.tokenizer.encode(readFileSync(text!, "utf8"))].slice(0, 1024), logits: Float32Array[] = [];
    let nll = 0;
    for await (const p of promptRows(model, ids)) {
      const all = p.logits(), width = all.length / p.rows;
      for (let r = 0; r < p.rows; r++) {
        logits.push(all.slice(r * width, (r + 1) * width));
        if (p.at + r + 1 < ids.length) nll += surprise(logits.at(-1)!, ids[p.at + r + 1]!);
      }
    }
    return { logits, nll: nll / (ids.length - 1) };
  };
  const divergence = (a: Float32Array, b: Float32Array): number => {
    const log = (l: Float32Array): number => { const max = l.reduce((m, v) => Math.max(m, v), -Infinity); return max + Math.log(l.reduce((n, v) => n + Math.exp(v - max), 0)); };
    const za = log(a), zb = log(b);
    return a.reduce((n, v, i) => n + Math.exp(v - za) * (v - za - (b[i]! - zb)), 0);
  };
  const cpu = await rows("cpu", "fast", 64);
  for (const [precision, chunk] of [["fast-int8", 64], ["fast", 16], ["fast", 256]] as const) {
    const gpu = await rows("cuda", precision, chunk), kl = gpu.logits.reduce((n, l, i) => n + divergence(cpu.logits[i]!, l), 0) / gpu.logits.length;
    console.log(`${precision}, steps of ${chunk} rows: mean KL ${kl.toExponential(2)}, perplexity ${Math.exp(gpu.nll).toFixed(4)} against ${Math.exp(cpu.nll).toFixed(4)} (${((Math.exp(gpu.nll - cpu.nll) - 1) * 100).toFixed(3)} %)`);
  }
}
