// Files that are valid GGUF and no valid model: each is refused with a typed error that names what is wrong, or runs. None crashes.
import { afterAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { BaoError, ModelFileError, UsageError } from "../../src/errors.ts";
import { LocalModel, openModel } from "../../src/engine/model.ts";
import { createGguf, ggufValue as v, openGguf, type GgmlTypeName, type GgufValue } from "../../src/gguf/index.ts";
import { convertCheckpoint } from "../../src/convert/index.ts";
import { Folder, prefixed, randomWeights, tiny } from "../convert/checkpoints.ts";
import { random, TemporaryFolder } from "../engine/fixtures.ts";

setDefaultTimeout(60_000);
const folder = new TemporaryFolder();
afterAll(() => folder[Symbol.dispose]());

/** A model file in pieces that a test can change. */
interface Parts { keys: Map<string, GgufValue>; tensors: Map<string, { type: GgmlTypeName; shape: number[]; data: Uint8Array }> }
let files = 0;

function write(parts: Parts): string {
  const path = folder.file(`${files++}.gguf`);
  using writer = createGguf(path);
  for (const [key, value] of parts.keys) writer.set(key, value);
  for (const [name, t] of parts.tensors) writer.declare({ name, type: t.type, shape: t.shape });
  for (const [name, t] of parts.tensors) writer.write(name, t.data);
  writer.finish();
  return path;
}
function f32(shape: number[], seed = 1): { type: GgmlTypeName; shape: number[]; data: Uint8Array } {
  const next = random(seed), values = Float32Array.from({ length: shape.reduce((a, b) => a * b, 1) }, () => next() - 0.5);
  return { type: "F32", shape, data: new Uint8Array(values.buffer) };
}

const D = 64, HEADS = 4, FFN = 96, VOCABULARY = 48;
/** A two-layer Llama with a SentencePiece vocabulary. */
function llama(): Parts {
  const tokens = ["<unk>", "<s>", "</s>", "\u2581", ..."abcdefghijklmnopqrstuvwxyz0123456789.,!?:;-+".slice(0, VOCABULARY - 4)];
  const keys = new Map<string, GgufValue>([
    ["general.architecture", v.string("llama")], ["general.name", v.string("Tiny")], ["llama.block_count", v.u32(2)], ["llama.context_length", v.u32(128)], ["llama.embedding_length", v.u32(D)],
    ["llama.feed_forward_length", v.u32(FFN)], ["llama.attention.head_count", v.u32(HEADS)], ["llama.attention.head_count_kv", v.u32(2)], ["llama.attention.layer_norm_rms_epsilon", v.f32(1e-5)],
    ["tokenizer.ggml.model", v.string("llama")], ["tokenizer.ggml.tokens", v.array("string", tokens)], ["tokenizer.ggml.scores", v.array("f32", Float32Array.from(tokens, (_, i) => -i))],
    ["tokenizer.ggml.token_type", v.array("i32", Int32Array.from(tokens, (_, i) => (i === 0 ? 2 : i < 3 ? 3 : 1)))], ["tokenizer.ggml.bos_token_id", v.u32(1)], ["tokenizer.ggml.eos_token_id", v.u32(2)],
  ]);
  const tensors: Parts["tensors"] = new Map([["token_embd.weight", f32([D, VOCABULARY])], ["output_norm.weight", f32([D], 2)]]);
  for (const l of [0, 1]) {
    for (const [name, shape] of [["attn_norm", [D]], ["attn_q", [D, D]], ["attn_k", [D, D / 2]], ["attn_v", [D, D / 2]], ["attn_output", [D, D]], ["ffn_norm", [D]], ["ffn_gate", [D, FFN]], ["ffn_up", [D, FFN]], ["ffn_down", [FFN, D]]] as const) {
      tensors.set(`blk.${l}.${name}.weight`, f32([...shape], l + 3));
    }
  }
  return { keys, tensors };
}
const changed = (change: (p: Parts) => void, base: Parts = llama()): string => { change(base); return write(base); };
const setKey = (key: string, value: GgufValue | undefined) => (p: Parts): void => { if (value) p.keys.set(key, value); else p.keys.delete(key); };
const rename = (from: string, to: string) => (p: Parts): void => { p.tensors.set(to, p.tensors.get(from)!); p.tensors.delete(from); };
const CPU = { device: { threads: 1 }, context: 64 } as const;

async function failureOf(path: string): Promise<BaoError> {
  try {
    (await LocalModel.load(path, CPU)).dispose();
  } catch (e) {
    return e as BaoError;
  }
  throw new Error("the file was accepted");
}
/** Loads a file and draws two tokens. */
async function runs(path: string): Promise<LocalModel> {
  const model = await LocalModel.load(path, CPU);
  using session = model.session();
  const sampling = { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, seed: 0, logitBias: new Map<number, number>(), logprobs: -1 };
  const { drawn } = await session.prefill([1, 5, 6], { sampling });
  expect(drawn!.finite).toBe(true);
  expect((await session.next(sampling)).finite).toBe(true);
  return model;
}

test("the file that the others are made from runs", async () => {
  (await runs(write(llama()))).dispose();
});

const arch = (value: GgufValue | undefined) => setKey("general.architecture", value);
const key = (name: string, value: GgufValue | undefined) => setKey(`llama.${name}`, value);
const token = (name: string, value: GgufValue | undefined) => setKey(`tokenizer.ggml.${name}`, value);

const REFUSED: [what: string, change: (p: Parts) => void, code: string, words: string[]][] = [
  ["no architecture", arch(undefined), "model_architecture", ["general.architecture"]],
  ["an unknown architecture", arch(v.string("mamba")), "model_architecture", ["mamba"]],
  ["an architecture that is a number", arch(v.u32(4)), "gguf_key_type", ["general.architecture"]],
  ["an empty architecture", arch(v.string("")), "model_architecture", []],
  ["no block_count", key("block_count", undefined), "model_key_missing", ["llama.block_count"]],
  ["block_count 0", key("block_count", v.u32(0)), "model_key", ["llama.block_count", "0"]],
  ["block_count 1e9", key("block_count", v.u32(1e9)), "model_key", ["llama.block_count", "1000000000"]],
  ["block_count -1", key("block_count", v.i32(-1)), "model_key", ["llama.block_count", "-1"]],
  ["block_count as a text", key("block_count", v.string("2")), "gguf_key_type", ["llama.block_count"]],
  ["one block more than present", key("block_count", v.u32(3)), "tensor_missing", ["blk.2.attn_norm.weight", "9 tensors"]],
  ["no eps", key("attention.layer_norm_rms_epsilon", undefined), "model_key_missing", ["llama.attention.layer_norm_rms_epsilon"]],
  ["eps NaN", key("attention.layer_norm_rms_epsilon", v.f32(NaN)), "model_key", ["llama.attention.layer_norm_rms_epsilon"]],
  ["no context length", key("context_length", undefined), "model_key_missing", ["llama.context_length"]],
  ["context length 0", key("context_length", v.u32(0)), "model_key", ["llama.context_length"]],
  ["head_count 0", key("attention.head_count", v.u32(0)), "model_key", ["llama.attention.head_count"]],
  ["head_count 1e9", key("attention.head_count", v.u32(1e9)), "model_key", ["llama.attention.head_count"]],
  ["a head count that does not divide the width", (p) => { key("attention.head_count", v.u32(6))(p); key("attention.head_count_kv", v.u32(3))(p); }, "model_key", ["llama.attention.head_count", "6"]],
  ["kv heads 0", key("attention.head_count_kv", v.u32(0)), "model_key", ["llama.attention.head_count_kv"]],
  ["kv heads that do not divide the heads", key("attention.head_count_kv", v.u32(3)), "model_key", ["llama.attention.head_count_kv", "3"]],
  ["more kv heads than heads", key("attention.head_count_kv", v.u32(8)), "model_key", ["llama.attention.head_count_kv"]],
  ["a key length of 7", (p) => { key("attention.key_length", v.u32(7))(p); }, "model_key", ["llama.attention.key_length", "7"]],
  ["a key length of 24", key("attention.key_length", v.u32(24)), "tensor_shape", ["attn_q", "96"]],
  ["an odd rope dimension", key("rope.dimension_count", v.u32(5)), "model_key", ["llama.rope.dimension_count", "5"]],
  ["a rope dimension larger than a head", key("rope.dimension_count", v.u32(64)), "model_key", ["llama.rope.dimension_count", "64"]],
  ["a rope base of 0", key("rope.freq_base", v.f32(0)), "model_key", ["llama.rope.freq_base"]],
  ["a rope scaling factor of 0", key("rope.scaling.factor", v.f32(0)), "model_key", ["llama.rope.scaling.factor"]],
  ["feed forward lengths for three layers", key("feed_forward_length", v.array("u32", Uint32Array.of(96, 96, 96))), "gguf_key_length", ["llama.feed_forward_length"]],
  ["experts in a Llama", key("expert_count", v.u32(8)), "model_key", ["llama.expert_count"]],
  ["an embedding_length that disagrees", key("embedding_length", v.u32(128)), "tensor_shape", ["token_embd.weight", "128", "64"]],
  ["no embedding_length", key("embedding_length", undefined), "model_key_missing", ["llama.embedding_length"]],
  ["no token_embd", (p) => { p.tensors.delete("token_embd.weight"); }, "tensor_missing", ["token_embd.weight"]],
  ["three tensors missing, all named", (p) => { for (const n of ["blk.0.attn_k.weight", "blk.1.ffn_down.weight", "output_norm.weight"]) p.tensors.delete(n); }, "tensor_missing", ["blk.0.attn_k.weight", "blk.1.ffn_down.weight", "output_norm.weight", "3 tensors"]],
  ["a transposed matrix", (p) => { p.tensors.set("blk.1.ffn_down.weight", f32([D, FFN])); }, "tensor_shape", ["blk.1.ffn_down.weight", "96, 64", "64, 96"]],
  ["a matrix in three dimensions", (p) => { p.tensors.set("blk.0.attn_q.weight", f32([D, D / 2, 2])); }, "tensor_shape", ["blk.0.attn_q.weight"]],
  ["a norm that is too short", (p) => { p.tensors.set("blk.0.attn_norm.weight", f32([D / 2])); }, "tensor_shape", ["blk.0.attn_norm.weight", "64", "32"]],
  ["a quantised norm", (p) => { p.tensors.set("output_norm.weight", { type: "Q8_0", shape: [D], data: new Uint8Array(68) }); }, "tensor_type", ["output_norm.weight", "Q8_0"]],
  ["a matrix of a type without kernels", (p) => { p.tensors.set("blk.0.attn_q.weight", { type: "TQ2_0", shape: [256, 16], data: new Uint8Array(16 * 66) }); key("embedding_length", v.u32(256))(p); p.tensors.set("token_embd.weight", { type: "TQ2_0", shape: [256, VOCABULARY], data: new Uint8Array(VOCABULARY * 66) }); }, "tensor_type", ["token_embd.weight", "TQ2_0"]],
  ["a matrix of integers", (p) => { p.tensors.set("blk.0.attn_q.weight", { type: "I32", shape: [D, D], data: new Uint8Array(D * D * 4) }); }, "tensor_type", ["blk.0.attn_q.weight", "I32"]],
  ["rope factors of another length", (p) => { p.tensors.set("rope_freqs.weight", f32([5])); }, "tensor_shape", ["rope_freqs.weight"]],
  ["no tokens array", token("tokens", undefined), "tokenizer_tokens", ["tokenizer.ggml.tokens"]],
  ["a tokens array of numbers", token("tokens", v.array("u32", new Uint32Array(VOCABULARY))), "tokenizer_type", ["tokenizer.ggml.tokens"]],
  ["scores shorter than the tokens", token("scores", v.array("f32", new Float32Array(VOCABULARY - 1))), "tokenizer_scores", ["tokenizer.ggml.scores", "47", "48"]],
  ["token types as bytes", token("token_type", v.array("u8", new Uint8Array(VOCABULARY))), "tokenizer_type", ["tokenizer.ggml.token_type"]],
  ["token types shorter than the tokens", token("token_type", v.array("i32", new Int32Array(5))), "tokenizer_types", ["tokenizer.ggml.token_type", "5"]],
  ["one token less than embedding rows", (p) => { p.tensors.set("token_embd.weight", f32([D, VOCABULARY + 1])); }, "vocabulary_mismatch", ["48", "49", "token_embd.weight"]],
  ["more tokens than embedding rows", (p) => { p.tensors.set("token_embd.weight", f32([D, VOCABULARY - 1])); }, "vocabulary_mismatch", ["48", "47"]],
  ["an output matrix of other rows", (p) => { p.tensors.set("output.weight", f32([D, VOCABULARY + 2])); }, "tensor_shape", ["output.weight"]],
  ["an unknown tokenizer model", token("model", v.string("wordpiece2")), "tokenizer_unsupported", ["wordpiece2"]],
  ["no tokenizer model", token("model", undefined), "tokenizer_missing", ["tokenizer.ggml.model"]],
  ["a bos id that is a text", token("bos_token_id", v.string("1")), "tokenizer_type", ["tokenizer.ggml.bos_token_id"]],
];

test.each(REFUSED)("refused: %s", async (_what, change, code, words) => {
  const path = changed(change), error = await failureOf(path);
  expect([error.name, error.code, error.message]).toEqual(["ModelFileError", code, expect.any(String)]);
  expect(error).toBeInstanceOf(ModelFileError);
  for (const word of words) expect(error.message).toContain(word);
  // Whoever reads it must know the file and what to do.
  expect([error.message.includes(path), error.hint.length > 0]).toEqual([true, true]);
});

test("no tensors and no keys", async () => {
  expect(await failureOf(write({ keys: new Map(), tensors: new Map() }))).toMatchObject({ code: "model_architecture" });
});

describe("accepted", () => {
  test("bos and eos out of range, with a warning each; 0xFFFFFFFF is no id", async () => {
    const odd = await runs(changed((p) => { token("bos_token_id", v.u32(4000))(p); token("eos_token_id", v.u32(VOCABULARY))(p); }));
    expect(odd.tokenizer.warnings.join()).toMatch(/bos_token_id is 4000[^]*eos_token_id is 48/);
    expect([odd.tokenizer.bosId, odd.tokenizer.eosId]).toEqual([1, 2]);
    odd.dispose();
    const none = await runs(changed((p) => { token("bos_token_id", v.u32(0xffffffff))(p); token("unknown_token_id", v.u32(0xffffffff))(p); }));
    expect(none.tokenizer.warnings).toEqual([]);
    none.dispose();
  });
  test("two tokens of the same text", async () => {
    const model = await runs(changed((p) => { const t = p.keys.get("tokenizer.ggml.tokens")!; (t.value as unknown as { values: string[] }).values[20] = "a"; }));
    expect(model.tokenizer.warnings.join()).toContain("repeat");
    expect(model.tokenizer.encode("a", { bos: false })).not.toContain(20);
    model.dispose();
  });
  test("tensors of other modalities, and keys that nobody knows", async () => {
    const model = await runs(changed((p) => {
      for (const n of ["v.blk.0.attn_q.weight", "a.conv1d.0.weight", "mm.input_projection.weight", "blk.7.attn_q.weight"]) p.tensors.set(n, f32([D, 3]));
      p.tensors.set("v.patch.bias", { type: "I8", shape: [5], data: new Uint8Array(5) });
      p.keys.set("llama.vision.block_count", v.u32(27));
    }));
    expect(model.runner.unused.sort()).toEqual(["a.conv1d.0.weight", "blk.7.attn_q.weight", "mm.input_projection.weight", "v.blk.0.attn_q.weight", "v.patch.bias"]);
    model.dispose();
  });
  test("integers of other widths, a scalar for every layer, norms in half precision, a separate output, rope factors", async () => {
    (await runs(changed((p) => {
      key("block_count", v.u64(2n))(p);
      key("feed_forward_length", v.array("i32", Int32Array.of(FFN, FFN)))(p);
      key("attention.head_count_kv", v.u8(2))(p);
      p.tensors.set("output_norm.weight", { type: "F16", shape: [D], data: new Uint8Array(new Uint16Array(D).fill(0x3c00).buffer) });
      p.tensors.set("blk.0.attn_norm.weight", { type: "BF16", shape: [D], data: new Uint8Array(new Uint16Array(D).fill(0x3f80).buffer) });
      p.tensors.set("output.weight", f32([D, VOCABULARY]));
      p.tensors.set("rope_freqs.weight", f32([8]));
    }))).dispose();
  });
  test("no tokenizer on purpose: ids only", async () => {
    const model = await runs(changed((p) => { for (const k of [...p.keys.keys()].filter((k) => k.startsWith("tokenizer."))) p.keys.delete(k); token("model", v.string("none"))(p); }));
    expect(model.tokenizer.model).toBe("none");
    model.dispose();
  });
});

describe("Gemma 4", () => {
  async function gemma(kind: "moe" | "ple"): Promise<Parts> {
    using source = new Folder();
    const c = tiny(kind);
    const out = source.file("model.gguf");
    await convertCheckpoint({ source: source.checkpoint(c, randomWeights(prefixed(c), "F32")), output: out, type: "f32" });
    const file = openGguf(out), bytes = new Uint8Array(await Bun.file(out).arrayBuffer());
    return {
      keys: new Map([...file.metadata].filter(([k]) => k !== "general.alignment")),
      tensors: new Map([...file.tensors].map(([name, t]) => [name, { type: t.type.name as GgmlTypeName, shape: [...t.shape], data: bytes.slice(t.offsetBytes, t.offsetBytes + t.bytes) }])),
    };
  }
  const g = (name: string, value: GgufValue | undefined) => setKey(`gemma4.${name}`, value);

  test("layers with shared KV need no k and v, and may bring them", async () => {
    const parts = await gemma("ple");
    expect([parts.tensors.has("blk.1.attn_k.weight"), parts.tensors.has("blk.2.attn_k.weight")]).toEqual([true, false]);
    const without = await runs(write(parts));
    const extra = ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"].flatMap((n) => [2, 3].map((l) => `blk.${l}.${n}`));
    for (const name of extra) parts.tensors.set(name, parts.tensors.get(name.replace(/blk\.(\d)/, (_, l) => `blk.${Number(l) - 2}`))!);
    const withThem = await runs(write(parts));
    expect(withThem.runner.unused.sort()).toEqual(extra.sort());
    without.dispose();
    withThem.dispose();
  });

  const BROKEN: ["moe" | "ple", string, (p: Parts) => void, string, string[]][] = [
    ["ple", "an owning layer without k", (p) => { p.tensors.delete("blk.1.attn_k.weight"); }, "tensor_missing", ["blk.1.attn_k.weight"]],
    ["ple", "all layers share", g("attention.shared_kv_layers", v.u32(4)), "model_key", ["shared_kv_layers", "4"]],
    ["ple", "a tail whose kind nobody owns", g("attention.shared_kv_layers", v.u32(3)), "model_key", ["shared_kv_layers"]],
    ["ple", "no per-layer embedding", (p) => { p.tensors.delete("per_layer_token_embd.weight"); }, "tensor_missing", ["per_layer_token_embd.weight"]],
    ["ple", "per-layer width that disagrees", g("embedding_length_per_layer_input", v.u32(48)), "tensor_shape", ["per_layer_token_embd.weight"]],
    ["moe", "no window", g("attention.sliding_window", undefined), "model_key_missing", ["sliding_window"]],
    ["moe", "window 0", g("attention.sliding_window", v.u32(0)), "model_key", ["sliding_window"]],
    ["moe", "a pattern for three layers", g("attention.sliding_window_pattern", v.array("bool", Uint8Array.of(1, 0, 1))), "model_key", ["sliding_window_pattern"]],
    ["moe", "a pattern of numbers", g("attention.sliding_window_pattern", v.array("u32", Uint32Array.of(1, 0, 1, 0))), "gguf_key_type", ["sliding_window_pattern"]],
    ["moe", "more experts used than there are", g("expert_used_count", v.u32(9)), "model_key", ["expert_used_count", "9"]],
    ["moe", "no experts used", g("expert_used_count", v.u32(0)), "model_key", ["expert_used_count"]],
    ["moe", "expert count that disagrees", g("expert_count", v.u32(5)), "tensor_shape", ["ffn_gate_inp"]],
    ["moe", "a key length that the kernels do not have", g("attention.key_length", v.u32(8192)), "model_key", ["attention.key_length", "8192"]],
    ["moe", "head counts for three layers", g("attention.head_count_kv", v.array("u32", Uint32Array.of(2, 1, 2))), "gguf_key_length", ["head_count_kv"]],
    ["moe", "a router scale of another length", (p) => { p.tensors.set("blk.0.ffn_gate_inp.scale", f32([7])); }, "tensor_shape", ["blk.0.ffn_gate_inp.scale"]],
    ["moe", "experts and per-layer embeddings", g("embedding_length_per_layer_input", v.u32(32)), "model_unsupported", ["experts"]],
    ["moe", "a softcap of -5", g("final_logit_softcapping", v.f32(-5)), "model_key", ["final_logit_softcapping"]],
    ["moe", "an output scale of two values", (p) => { p.tensors.set("blk.0.layer_output_scale.weight", f32([2])); }, "tensor_shape", ["layer_output_scale"]],
    ["moe", "an output scale of integers", (p) => { p.tensors.set("blk.0.layer_output_scale.weight", { type: "I32", shape: [1], data: new Uint8Array(4) }); }, "tensor_type", ["layer_output_scale"]],
  ];
  test.each(BROKEN)("refused, %s: %s", async (kind, _what, change, code, words) => {
    const parts = await gemma(kind), path = changed(change, parts), error = await failureOf(path);
    expect([error.name, error.code, error.message]).toEqual(["ModelFileError", code, expect.any(String)]);
    for (const word of words) expect(error.message).toContain(word);
    expect([error.message.includes(path), error.hint.length > 0]).toEqual([true, true]);
  });

  test("layers of more kinds than there are page tables", async () => {
    const parts = await gemma("moe");
    g("attention.head_count", v.u32(8))(parts);
    g("block_count", v.u32(6))(parts);
    g("attention.head_count_kv", v.array("u32", Uint32Array.of(1, 1, 2, 2, 4, 4)))(parts);
    g("attention.sliding_window_pattern", v.array("bool", Uint8Array.of(1, 0, 1, 0, 1, 0)))(parts);
    g("feed_forward_length", v.u32(96))(parts);
    expect(await failureOf(write(parts))).toMatchObject({ name: "ModelFileError", code: "model_unsupported" });
  });
});

test("damaged values of every key: a typed error or a model that runs, never anything else", async () => {
  const values: GgufValue[] = [v.u32(0), v.u32(1), v.u32(3), v.u32(0xffffffff), v.i32(-7), v.f32(NaN), v.f32(1e38), v.f32(-1), v.string(""), v.string("x"), v.bool(true), v.array("u32", new Uint32Array(2)), v.array("string", ["a"]), v.array("f32", new Float32Array()), v.u64(2n ** 63n)];
  const outcomes = new Map<string, number>();
  for (const name of llama().keys.keys()) {
    for (const value of values) {
      const path = changed(setKey(name, value));
      try {
        openModel(path);
        const model = await LocalModel.load(path, { device: { threads: 1 }, warmup: false, context: 1 });
        model.dispose();
        outcomes.set("ran", (outcomes.get("ran") ?? 0) + 1);
      } catch (e) {
        const what = `${name} = ${JSON.stringify(value, (_, x: unknown) => (typeof x === "bigint" ? String(x) : x))}`;
        if (!(e instanceof ModelFileError || (e instanceof UsageError && e.code === "context_too_large"))) throw new Error(`${what}: ${String(e)}`, { cause: e });
        outcomes.set(e.code, (outcomes.get(e.code) ?? 0) + 1);
      }
    }
  }
  expect(outcomes.size).toBeGreaterThan(5);
});
