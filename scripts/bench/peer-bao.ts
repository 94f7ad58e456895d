// Bao's side of the side-by-side benchmark, as a child process: requests of peer-protocol.ts on stdin, answers on stdout.
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";
import { measureStart } from "../../src/engine/bench.ts";
import type { LocalModel } from "../../src/engine/model.ts";
import { load, type Model } from "../../src/index.ts";
import { resolveSampling } from "../../src/sample/params.ts";
import type { PeerAnswer, PeerRequest } from "./peer-protocol.ts";

/** "low": the engine in this thread; "api": the public interface, whose engine has a Worker of its own. */
const mode = process.argv[2] === "api" ? "api" : "low";
let local: LocalModel | undefined, remote: Model | undefined, vocabulary = 0;

const ids = (count: number): number[] => Array.from({ length: count }, () => Math.trunc(Math.random() * vocabulary));
const now = (): number => performance.now();

async function answer(request: PeerRequest): Promise<PeerAnswer> {
  if (request.do === "memory") return memory();
  if (request.do === "load") {
    const { model, threads, context, kvType, isa } = request.setup;
    const device = { backend: "cpu" as const, threads, ...(isa === undefined ? {} : { isa: isa as "avx2" }) };
    if (mode === "low") {
      local = (await measureStart(model, { device, context, kvType })).model;
      vocabulary = local.runner.config.vocabulary;
    } else {
      remote = await load(model, { device, context, kvType, warmup: false });
      vocabulary = 256;
      await remote.generate({ ids: ids(10) }, { maxTokens: 1, temperature: 0, ignoreStop: true }).text();
    }
    return { firstToken: now() };
  }
  if (request.do === "api") {
    const began = now();
    const { usage } = await remote!.generate({ ids: ids(request.prompt) }, { maxTokens: request.tokens + 1, temperature: 0, ignoreStop: true }).result();
    return { ms: usage.prefillMs, decodeMs: now() - began - usage.prefillMs };
  }
  const sampling = resolveSampling({ temperature: 0, seed: 1 }, vocabulary);
  using session = local!.session();
  if (request.do === "prefill") {
    const prompt = ids(request.tokens), began = now();
    await session.prefill(prompt, { sampling });
    return { ms: now() - began };
  }
  await session.prefill(ids(1), { sampling });
  const began = now();
  for (let i = 0; i < request.tokens; i++) await session.next(sampling);
  return { ms: now() - began };
}

function memory(): PeerAnswer {
  const status = readFileSync("/proc/self/status", "utf8"), kb = (key: string): number => Number(new RegExp(`^${key}:\\s+(\\d+)`, "m").exec(status)?.[1] ?? 0);
  return { peak: kb("VmHWM") * 1024, anonymous: kb("RssAnon") * 1024 };
}

for await (const line of createInterface({ input: process.stdin })) {
  let reply: PeerAnswer;
  try {
    reply = await answer(JSON.parse(line) as PeerRequest);
  } catch (e) {
    reply = { error: (e as Error).message };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
process.exit(0);
