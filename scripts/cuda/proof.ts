// What the op suite does not show of the CUDA library, on a machine with a GPU:
//   bun scripts/cuda/proof.ts bits MODEL [--times 100]   greedy and sampled runs with launches overlapping or not, captured or not, scratch poisoned: the
//                                                        same bits every time
//   bun scripts/cuda/proof.ts rounding MODEL TEXT        against the CPU at equal rounding: KL divergence of next tokens, perplexity
import { readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { LocalModel } from "../../src/engine/model.ts";
import { surprise } from "../../src/engine/perplexity.ts";
import { everyRow, promptRows } from "../../src/engine/rows.ts";
import type { DeviceOptions } from "../../src/native/objects.ts";
import { resolveSampling } from "../../src/sample/params.ts";

const { values, positionals: [part, path, text] } = parseArgs({ allowPositionals: true, options: { times: { type: "string" }, windows: { type: "string" }, backend: { type: "string" } } });

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
  // Log-probabilities of every token of the text's windows, and minus that of the token that came.
  interface Rows { logs: Float32Array[]; surprise: number[] }
  const logsOf = (logits: Float32Array): Float32Array => {
    let most = -Infinity, total = 0;
    for (const v of logits) if (v > most) most = v;
    for (const v of logits) total += Math.exp(v - most);
    const by = most + Math.log(total);
    return logits.map((v) => v - by);
  };
  const rows = async (device: DeviceOptions, chunk = 64): Promise<Rows> => {
    using model = await LocalModel.load(path!, everyRow(path!, { device, chunk, context: 1024 }));
    const ids = model.tokenizer.encode(readFileSync(text!, "utf8")), out: Rows = { logs: [], surprise: [] };
    for (let w = 0; w < Number(values.windows ?? 4) && ids.length > w * 1023 + 1; w++) {
      const window = [model.tokenizer.bosId!, ...ids.slice(w * 1023, (w + 1) * 1023)];
      for await (const p of promptRows(model, window)) {
        const all = p.logits(), width = all.length / p.rows;
        for (let r = 0; r < p.rows; r++) {
          const logits = all.subarray(r * width, (r + 1) * width);
          out.logs.push(logsOf(logits));
          if (p.at + r + 1 < window.length) out.surprise.push(surprise(logits, window[p.at + r + 1]!));
        }
      }
    }
    return out;
  };
  const divergence = (a: Float32Array, b: Float32Array): number => {
    let sum = 0;
    for (let i = 0; i < a.length; i++) sum += Math.exp(a[i]!) * (a[i]! - b[i]!);
    return sum;
  };
  const mean = (of: readonly number[], n = of.length): number => of.reduce((sum, v) => sum + v, 0) / n;
  // Of a mean: how far it would be another time.
  const deviation = (of: readonly number[]): number => { const middle = mean(of); return Math.sqrt(mean(of.map((v) => (v - middle) ** 2)) / of.length); };
  const compare = (what: string, a: Rows, b: Rows): void => {
    const kl = a.logs.map((l, i) => divergence(l, b.logs[i]!)).toSorted((x, y) => x - y), more = b.surprise.map((v, i) => v - a.surprise[i]!);
    console.log(`${what}, ${kl.length} tokens: mean KL ${mean(kl).toExponential(2)} +- ${deviation(kl).toExponential(1)}, of which the largest 2 % make ${mean(kl.slice(Math.floor(kl.length * 0.98)), kl.length).toExponential(2)}, median ` +
      `${kl[kl.length >> 1]!.toExponential(1)}; perplexity ${(Math.expm1(mean(more)) * 100).toFixed(3)} +- ${(deviation(more) * 100).toFixed(3)} %`);
  };
  // Two that add in different orders drift apart at any rounding: a value on the edge of two steps goes either way, a near tie of the router sends a token to
  // another expert. How far, the CPU's own implementations show. What a device chooses is bf16 for many rows, and several roundings for few.
  const cpu = values.backend === "cpu", int8 = await rows({ backend: "cpu", precision: "fast-int8" });
  if (cpu) {
    compare("int8: the fast kernels of the oldest processors beside these", int8, await rows({ backend: "cpu", precision: "fast-int8", isa: "base" }));
    compare("int8: plain reference beside the fast kernels", int8, await rows({ backend: "cpu", precision: "fast-int8", reference: true }));
    compare("bf16 beside int8", int8, await rows({ backend: "cpu", precision: "fast-bf16", reference: true }));
  } else {
    for (const [precision, chunk] of [["fast-int8", 16], ["fast-int8", 64]] as const) compare(`int8: CUDA ${precision}, steps of ${chunk} rows`, int8, await rows({ backend: "cuda", precision }, chunk));
    const bf16 = await rows({ backend: "cpu", precision: "fast-bf16", reference: true });
    for (const [precision, chunk] of [["fast-bf16", 64], ["fast-bf16", 256], ["fast", 256], ["fast", 16]] as const) compare(`bf16: CUDA ${precision}, steps of ${chunk} rows`, bf16, await rows({ backend: "cuda", precision }, chunk));
  }
}
