// Bao and llama.cpp side by side: the same file, threads and KV type, prefill and decode in turns, medians and the ratio of each row.
//   bun scripts/bench/peer.ts --model F
// llama.cpp comes as the npm package node-llama-cpp with its prebuilt CPU library, fetched once into build/peer; Bao never depends on it.
import { existsSync, mkdirSync, statSync, writeFileSync } from "node:fs";
import { availableParallelism, totalmem } from "node:os";
import { join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { medianOf, readPeak } from "../../src/engine/bench.ts";
import { openModel } from "../../src/engine/model.ts";
import { PeerChild, type PeerAnswer, type PeerRequest, type PeerSetup } from "./peer-protocol.ts";

const VERSION = "3.22.1";
const USAGE = `bun scripts/bench/peer.ts --model <file> [options]

  -m, --model    GGUF file
  -t, --threads  (default: all cores)
  -p             tokens of a prompt, several as 128,512 (default 128)
  -n             tokens to decode (default 32)
  -r             repetitions of each side (default 5)
  --kv-type      f16 (default), f32, q8_0
  --isa          instruction set of Bao: avx2, avx512, ... (default: the best)
  --no-api       leave out the rows through the public JavaScript interfaces
  --apart        one side after the other, each alone in memory (default for files over 40 % of it)
  --json         one JSON document
  --peer         folder with node_modules/node-llama-cpp (default: build/peer, filled when missing)
`;
const root = join(import.meta.dir, "../..");

/** What is measured: a request, and which of the answer's times counts. */
interface Row { readonly name: string; readonly side: "low" | "api"; readonly request: PeerRequest; readonly tokens: number; readonly ms: (a: PeerAnswer) => number; readonly decode: boolean }
interface Samples { bao: number[]; llama: number[] }

/** The folder with the package; fetches it without its GPU parts. */
async function peerFolder(given: string | undefined): Promise<string> {
  const folder = resolve(given ?? join(root, "build/peer"));
  if (existsSync(join(folder, "node_modules/node-llama-cpp/package.json"))) return folder;
  if (given !== undefined) throw new Error(`${folder} has no node_modules/node-llama-cpp`);
  mkdirSync(folder, { recursive: true });
  const binary = `@node-llama-cpp/${process.platform === "darwin" ? "mac-arm64-metal" : `linux-${process.arch}`}`;
  writeFileSync(join(folder, "package.json"), `${JSON.stringify({ private: true, dependencies: { "node-llama-cpp": VERSION, [binary]: VERSION } }, null, 2)}\n`);
  process.stderr.write(`peer: fetching node-llama-cpp ${VERSION} into ${folder}\n`);
  // The optional dependencies are the GPU libraries of all platforms, 800 MB of them; the scripts would build from source.
  const npm = Bun.spawn(["npm", "install", "--omit=optional", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], { cwd: folder, stdout: 2, stderr: 2 });
  if (await npm.exited !== 0) throw new Error(`npm install failed in ${folder}`);
  return folder;
}

const children = {
  low: (): PeerChild => new PeerChild("bao", [process.execPath, join(import.meta.dir, "peer-bao.ts"), "low"], root),
  api: (): PeerChild => new PeerChild("bao api", [process.execPath, join(import.meta.dir, "peer-bao.ts"), "api"], root),
  llama: (folder: string): PeerChild => new PeerChild("llama.cpp", ["node", join(import.meta.dir, "peer-llama.mjs"), folder], folder),
};

/** Runs all rows, side by side or one side after the other; also gives each side's start and memory. */
async function measure(rows: readonly Row[], setup: PeerSetup, folder: string, repetitions: number, apart: boolean): Promise<{ samples: Map<Row, Samples>; facts: Record<string, PeerAnswer> }> {
  const samples = new Map(rows.map((row) => [row, { bao: [], llama: [] } as Samples])), facts: Record<string, PeerAnswer> = {};
  const once = async (child: PeerChild, row: Row, into: number[] | undefined): Promise<void> => {
    const ms = row.ms(await child.ask(row.request));
    into?.push(ms);
  };
  const finish = async (child: PeerChild, start: PeerAnswer): Promise<void> => {
    const before = facts[child.name]?.firstToken ?? Infinity;
    facts[child.name] = { firstToken: Math.min(before, start.firstToken!), ...await child.ask({ do: "memory" }) };
  };
  const sides = (["low", "api"] as const).filter((s) => rows.some((row) => row.side === s));
  for (const side of sides) {
    const mine = rows.filter((row) => row.side === side);
    if (apart) {
      for (const [who, make] of [["bao", children[side]], ["llama", () => children.llama(folder)]] as const) {
        await using child = make();
        const start = await child.ask({ do: "load", setup });
        for (const row of mine) for (let i = -1; i < repetitions; i++) await once(child, row, i < 0 ? undefined : samples.get(row)![who]);
        await finish(child, start);
      }
      continue;
    }
    await using bao = children[side](), llama = children.llama(folder);
    const starts = [await bao.ask({ do: "load", setup }), await llama.ask({ do: "load", setup })] as const;
    for (const row of mine) {
      for (let i = -1; i < repetitions; i++) {
        const s = i < 0 ? undefined : samples.get(row)!;
        // Who begins takes turns as well.
        const order = [() => once(bao, row, s?.bao), () => once(llama, row, s?.llama)];
        for (const run of i % 2 === 0 ? order : order.reverse()) await run();
      }
    }
    await finish(bao, starts[0]);
    await finish(llama, starts[1]);
  }
  return { samples, facts };
}

function numbers(text: string): number[] {
  return text.split(",").map((word) => {
    const n = Number(word);
    if (!Number.isInteger(n) || n < 1) throw new Error(`expected whole numbers, found ${word}`);
    return n;
  });
}

async function main(): Promise<void> {
  const text = { type: "string" } as const, flag = { type: "boolean" } as const;
  const { values: v } = parseArgs({ options: {
    model: { ...text, short: "m" }, threads: { ...text, short: "t" }, p: { ...text, short: "p" }, n: { ...text, short: "n" }, r: { ...text, short: "r" }, "kv-type": text, isa: text,
    "no-api": flag, apart: flag, json: flag, peer: text, help: { ...flag, short: "h" },
  } });
  if (v.help || v.model === undefined) {
    process[v.help ? "stdout" : "stderr"].write(USAGE);
    if (!v.help) process.exitCode = 2;
    return;
  }
  const kvType = v["kv-type"] ?? "f16";
  if (kvType !== "f16" && kvType !== "f32" && kvType !== "q8_0") throw new Error(`--kv-type: ${kvType} is none of f16, f32, q8_0`);
  const threads = numbers(v.threads ?? String(availableParallelism()))[0]!, prompts = numbers(v.p ?? "128"), decodes = numbers(v.n ?? "32"), repetitions = numbers(v.r ?? "5")[0]!;
  const model = resolve(v.model), bytes = statSync(model).size, { estimate } = openModel(model);
  const context = Math.ceil((Math.max(...prompts) + Math.max(...decodes) + 2) / 256) * 256;
  const setup: PeerSetup = { model, threads, context, kvType, ...(v.isa === undefined ? {} : { isa: v.isa }) };
  const low = (what: "prefill" | "decode", tokens: number): Row => ({ name: `${what === "prefill" ? "pp" : "tg"}${tokens}`, side: "low", request: { do: what, tokens }, tokens, ms: (a) => a.ms!, decode: what === "decode" });
  const rows: Row[] = [...prompts.map((n) => low("prefill", n)), ...decodes.map((n) => low("decode", n))];
  if (!v["no-api"]) {
    const prompt = Math.max(...prompts), tokens = Math.max(...decodes), request = { do: "api", prompt, tokens } as const;
    rows.push({ name: `JS API, pp${prompt}`, side: "api", request, tokens: prompt, ms: (a) => a.ms!, decode: false }, { name: `JS API, tg${tokens}`, side: "api", request, tokens, ms: (a) => a.decodeMs!, decode: true });
  }
  const apart = v.apart ?? bytes > 0.4 * totalmem(), folder = await peerFolder(v.peer);
  let peak = readPeak(threads);
  const { samples, facts } = await measure(rows, setup, folder, repetitions, apart);
  peak = Math.max(peak, readPeak(threads));
  const table = rows.map((row) => summary(row, samples.get(row)!, estimate.bytesPerToken, peak));
  if (v.json) process.stdout.write(`${JSON.stringify({ model, bytes, setup, apart, repetitions, bytesPerToken: estimate.bytesPerToken, readPeak: peak, rows: table, facts })}\n`);
  else process.stdout.write(report(setup, apart, repetitions, peak, estimate.bytesPerToken, table, facts));
}

/** Medians in tok/s, and the ratio: the median over the pairs of neighbours in time, which a disturbance of both leaves alone. */
function summary(row: Row, s: Samples, bytesPerToken: number, peak: number): { name: string; bao: number; llama: number; ratio: number; low: number; high: number; gb: number | undefined; share: number | undefined; samples: Samples } {
  const ratios = s.bao.map((ms, i) => s.llama[i]! / ms), rate = (ms: number[]): number => (1000 * row.tokens) / medianOf(ms), bao = rate(s.bao);
  const gb = row.decode ? (bao * bytesPerToken) / 1e9 : undefined;
  return { name: row.name, bao, llama: rate(s.llama), ratio: medianOf(ratios), low: Math.min(...ratios), high: Math.max(...ratios), gb, share: gb === undefined ? undefined : (gb * 1e9) / peak, samples: s };
}

function report(setup: PeerSetup, apart: boolean, repetitions: number, peak: number, bytesPerToken: number, table: ReturnType<typeof summary>[], facts: Record<string, PeerAnswer>): string {
  const n = (x: number): string => (x >= 1000 ? x.toFixed(0) : x >= 100 ? x.toFixed(1) : x.toFixed(2)), gb = (b: number): string => `${(b / 1e9).toFixed(2)} GB`;
  const lines = [
    `${setup.model}: ${setup.threads} threads, KV ${setup.kvType}, ${repetitions} repetitions${apart ? ", one side after the other" : " in turns"}; read peak ${(peak / 1e9).toFixed(1)} GB/s, ${gb(bytesPerToken)} a token: ceiling ${n(peak / bytesPerToken)} tok/s`, "",
    "| test | Bao tok/s | llama.cpp tok/s | ratio | range | Bao GB/s | of peak |", "|---|---:|---:|---:|---:|---:|---:|",
    ...table.map((t) => `| ${t.name} | ${n(t.bao)} | ${n(t.llama)} | ${t.ratio.toFixed(2)}x | ${t.low.toFixed(2)}-${t.high.toFixed(2)} | ${t.gb?.toFixed(1) ?? "-"} | ${t.share === undefined ? "-" : `${(100 * t.share).toFixed(0)} %`} |`), "",
    "| process | start to first token | peak memory | without file pages |", "|---|---:|---:|---:|",
    ...Object.entries(facts).map(([name, f]) => `| ${name} | ${(f.firstToken! / 1000).toFixed(2)} s | ${gb(f.peak!)} | ${gb(f.anonymous!)} |`),
  ];
  return `${lines.join("\n")}\n`;
}

try {
  await main();
} catch (e) {
  process.stderr.write(`peer: ${(e as Error).message}\n`);
  process.exitCode = 1;
}
