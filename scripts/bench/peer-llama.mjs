// llama.cpp's side of the side-by-side benchmark: a Node process that drives node-llama-cpp, from whose folder it is started.
// Requests of peer-protocol.ts on stdin, answers on stdout. Prefill and decode call the batch interface of the C library directly.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const peer = process.argv[2];
createRequire(join(peer, "package.json")); // fails early when the folder is none
const { getLlama } = await import(pathToFileURL(join(peer, "node_modules/node-llama-cpp/dist/index.js")).href);
const KV_TYPE = { f32: 0, f16: 1, q8_0: 8 };
/** Tokens of one decode call, as llama-bench has them. */
const BATCH = 512;
let model, low, api, vocabulary = 0, setup;

const ids = (count) => Uint32Array.from({ length: count }, () => Math.trunc(Math.random() * vocabulary));
const now = () => performance.now();

/** One batch of a sequence; logits of the last token if wanted. */
async function evaluate(tokens, position, logits) {
  low.initBatch(tokens.length);
  low.addToBatch(0, position, tokens, Uint32Array.from(logits ? [tokens.length - 1] : []));
  await low.decodeBatch();
}
async function prompt(tokens) {
  for (let at = 0; at < tokens.length; at += BATCH) await evaluate(tokens.subarray(at, at + BATCH), at, at + BATCH >= tokens.length);
}

async function answer(request) {
  if (request.do === "memory") {
    const status = readFileSync("/proc/self/status", "utf8"), kb = (key) => Number(new RegExp(`^${key}:\\s+(\\d+)`, "m").exec(status)?.[1] ?? 0);
    return { peak: kb("VmHWM") * 1024, anonymous: kb("RssAnon") * 1024 };
  }
  if (request.do === "load") {
    setup = request.setup;
    const llama = await getLlama({ gpu: false, build: "never", skipDownload: true, logLevel: "error", maxThreads: setup.threads });
    model = await llama.loadModel({ modelPath: setup.model, gpuLayers: 0, ignoreMemorySafetyChecks: true });
    const type = KV_TYPE[setup.kvType];
    low = new llama._bindings.AddonContext(model._model, {
      contextSize: setup.context, batchSize: BATCH, sequences: 1, threads: setup.threads, flashAttention: true, kvCacheKeyType: type, kvCacheValueType: type,
    });
    await low.init();
    vocabulary = model.fileInfo.metadata.gemma4?.vocab_size ?? model.fileInfo.metadata.tokenizer.ggml.tokens.length;
    await prompt(ids(10));
    low.disposeSequence(0);
    return { firstToken: now() };
  }
  if (request.do === "api") {
    const type = KV_TYPE[setup.kvType];
    api ??= await model.createContext({
      contextSize: setup.context, batchSize: BATCH, threads: setup.threads, flashAttention: true, ignoreMemorySafetyChecks: true, experimentalKvCacheKeyType: type, experimentalKvCacheValueType: type,
    });
    const sequence = api.getSequence(), began = now();
    let first, count = 0;
    for await (const _token of sequence.evaluate([...ids(request.prompt)], { temperature: 0, yieldEogToken: true })) {
      first ??= now();
      if (count++ === request.tokens) break;
    }
    const reply = { ms: first - began, decodeMs: now() - first };
    sequence.dispose();
    return reply;
  }
  low.disposeSequence(0);
  if (request.do === "prefill") {
    const tokens = ids(request.tokens), began = now();
    await prompt(tokens);
    return { ms: now() - began };
  }
  await prompt(ids(1));
  const tokens = ids(request.tokens), began = now();
  for (let i = 0; i < tokens.length; i++) await evaluate(tokens.subarray(i, i + 1), i + 1, true);
  return { ms: now() - began };
}

for await (const line of createInterface({ input: process.stdin })) {
  let reply;
  try {
    reply = await answer(JSON.parse(line));
  } catch (e) {
    reply = { error: e.stack ?? String(e) };
  }
  process.stdout.write(`${JSON.stringify(reply)}\n`);
}
process.exit(0);
