// Weights are not copied: a model file of 8 GiB, most of it holes, is loaded and run by a process whose own memory stays small.
import { expect, setDefaultTimeout, test } from "bun:test";
import { statfsSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createGguf, ggufValue as v } from "../../src/gguf/index.ts";
import { TemporaryFolder } from "./fixtures.ts";

setDefaultTimeout(60_000);
const root = join(import.meta.dir, "../..");
const GiB = 2 ** 30;

/** Why this machine cannot run the test; undefined when it can. */
function obstacle(): string | undefined {
  if (process.platform !== "linux") return "memory is measured through /proc";
  const { bavail, bsize } = statfsSync(tmpdir());
  return bavail * bsize < 12 * GiB ? `${tmpdir()} has less than 12 GiB free` : undefined;
}

/** A Gemma 4 of zeros with 128 large experts, one of which runs: with equal logits the router takes the first. */
function writeModel(path: string): void {
  const d = 1024, ffn = 5376, heads = 4, experts = 128;
  using writer = createGguf(path);
  for (const [key, value] of Object.entries({
    block_count: v.u32(2), context_length: v.u32(4096), embedding_length: v.u32(d), feed_forward_length: v.u32(1024), expert_feed_forward_length: v.u32(ffn), expert_count: v.u32(experts),
    expert_used_count: v.u32(1), "attention.head_count": v.u32(heads), "attention.head_count_kv": v.u32(2), "attention.key_length": v.u32(128), "attention.key_length_swa": v.u32(64),
    "attention.sliding_window": v.u32(256), "attention.sliding_window_pattern": v.array("bool", Uint8Array.of(1, 0)), "attention.layer_norm_rms_epsilon": v.f32(1e-6),
  })) writer.set(`gemma4.${key}`, value);
  writer.set("general.architecture", v.string("gemma4"));
  writer.set("tokenizer.ggml.model", v.string("none"));
  const hole = (name: string, type: "F32" | "F16" | "Q8_0", ...shape: number[]): void => void writer.declare({ name, type, shape, hole: true });
  hole("token_embd.weight", "F16", d, 4096);
  hole("output_norm.weight", "F32", d);
  for (const l of [0, 1]) {
    const at = (name: string): string => `blk.${l}.${name}.weight`, headDim = l === 0 ? 64 : 128;
    for (const norm of ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"]) hole(at(norm), "F32", d);
    hole(at("attn_q"), "F16", d, heads * headDim);
    hole(at("attn_k"), "Q8_0", d, 2 * headDim);
    hole(at("attn_v"), "Q8_0", d, 2 * headDim);
    hole(at("attn_output"), "F16", heads * headDim, d);
    hole(at("attn_q_norm"), "F32", headDim);
    hole(at("attn_k_norm"), "F32", headDim);
    hole(at("ffn_gate"), "F16", d, 1024);
    hole(at("ffn_up"), "Q8_0", d, 1024);
    hole(at("ffn_down"), "F16", 1024, d);
    hole(at("ffn_gate_inp"), "F32", d, experts);
    hole(`blk.${l}.ffn_gate_inp.scale`, "F32", d);
    hole(at("ffn_gate_up_exps"), l === 0 ? "F16" : "F32", d, 2 * ffn, experts);
    hole(at("ffn_down_exps"), l === 0 ? "Q8_0" : "F16", ffn, d, experts);
  }
  writer.finish();
}

// Runs in a process of its own, so that nothing but one model is measured.
const PROGRAM = `
  import { readFileSync } from "node:fs";
  import { LocalModel } from ${JSON.stringify(join(root, "src/engine/model.ts"))};
  const path = process.env.MODEL;
  const anonymous = () => Number(/RssAnon:\\s+(\\d+) kB/.exec(readFileSync("/proc/self/status", "utf8"))[1]) * 1024;
  // kB that this process has written to, and the size, over all mappings of the file.
  const maps = () => {
    const out = { mappings: 0, size: 0, dirty: 0 };
    let ours = false;
    for (const line of readFileSync("/proc/self/smaps", "utf8").split("\\n")) {
      if (/^[0-9a-f]+-[0-9a-f]+ /.test(line)) { ours = line.endsWith(path); if (ours) out.mappings++; }
      else if (ours && line.startsWith("Size:")) out.size += parseInt(line.slice(5)) * 1024;
      else if (ours && /^(Private_Dirty|Shared_Dirty|Anonymous):/.test(line)) out.dirty += parseInt(line.split(":")[1]);
    }
    return out;
  };
  Bun.gc(true);
  const before = anonymous();
  const model = await LocalModel.load(path, { device: { threads: 1 }, context: 256, chunk: 16, warmup: false });
  const session = model.session();
  const loaded = maps();
  const { drawn } = await session.prefill([1, 2, 3], { sampling: { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, seed: 0, logitBias: new Map(), logprobs: -1 } });
  const grown = anonymous() - before, ran = maps();
  const { device } = model.runner;
  const file = model.runner.weights.fileOf(0), t = model.file.tensors.get("blk.1.ffn_down_exps.weight");
  const view = file.view(t.offsetBytes, 1 << 20), bytes = new Uint8Array(view.memory);
  const sum = bytes.reduce((a, b) => a + b, 0), viewed = maps();
  // A view is private: what is written there reaches neither the file nor the weights.
  bytes[5] = 7;
  const written = maps(), onDisk = new Uint8Array(await Bun.file(path).slice(t.offsetBytes, t.offsetBytes + 8).arrayBuffer())[5];
  view.close();
  console.log(JSON.stringify({ finite: drawn.finite, grown, loaded, ran, viewed, written, sum, onDisk, closed: maps(), weights: model.estimate.weights, tokens: session.length,
    kv: device.memory("kv"), scratch: device.memory("scratch"), buffers: device.memory("buffers") }));
  session.dispose();
  model.dispose();
  console.log(JSON.stringify(maps()));
`;

test("8 GiB of weights: mapped, not copied, not written", async () => {
  const why = obstacle();
  if (why !== undefined) { console.warn(`SKIPPED: zero-copy test: ${why}`); return; }
  using folder = new TemporaryFolder();
  const path = folder.file("large.gguf");
  writeModel(path);
  const { size, blocks } = statSync(path);
  expect(size).toBeGreaterThan(8 * GiB);
  if (blocks * 512 > GiB) { console.warn("SKIPPED: zero-copy test: this file system has no sparse files"); return; }

  const child = Bun.spawn([process.execPath, "-e", PROGRAM], { cwd: root, env: { ...process.env, MODEL: path }, stdout: "pipe", stderr: "pipe", timeout: 50_000 });
  const [out, err] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);
  expect([await child.exited, err]).toEqual([0, ""]);
  const [r, after] = out.trim().split("\n").map((line) => JSON.parse(line)) as [Record<string, number> & { finite: boolean } & Record<"loaded" | "ran" | "viewed" | "written" | "closed", { mappings: number; size: number; dirty: number }>, { mappings: number }];

  expect([r.finite, r["tokens"]]).toEqual([true, 3]);
  expect(r["weights"]!).toBeGreaterThan(8 * GiB);
  expect(r["grown"]!).toBeLessThan(200e6 + r["kv"]! + r["scratch"]! + r["buffers"]!);
  // Nothing else of any size hides in that sum.
  expect(r["kv"]! + r["scratch"]! + r["buffers"]!).toBeLessThan(100e6);
  for (const when of ["loaded", "ran"] as const) expect([when, r[when].mappings >= 1, r[when].size >= size, r[when].dirty]).toEqual([when, true, true, 0]);
  expect([r["sum"], r.viewed.dirty, r["onDisk"]]).toEqual([0, 0, 0]);
  // One page, counted as dirty and as anonymous.
  expect(r.written.dirty).toBeWithin(4, 129);
  expect(r.closed.dirty).toBe(0);
  expect(after.mappings).toBe(0);
});
