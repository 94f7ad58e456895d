// tokenizer.json to GGUF keys: token types, ids, merges, templates, and what is refused.
import { expect, test } from "bun:test";
import { ModelFileError } from "../../src/errors.ts";
import { readConfig } from "../../src/convert/checkpoint.ts";
import { noTokenizer, tokenizerMetadata, type TokenizerFiles } from "../../src/convert/tokenizer.ts";
import type { GgufValue } from "../../src/gguf/index.ts";
import { TokenType } from "../../src/tokenizer/source.ts";
import { tiny, tokenizerJson, type Config } from "./checkpoints.ts";

const model = readConfig(tiny("moe", { eos_token_id: [6, 1] }), "config.json");
function keys(files: Partial<TokenizerFiles> = {}, of = model): Record<string, unknown> {
  const made: Map<string, GgufValue> = tokenizerMetadata({ tokenizer: tokenizerJson(290), path: "tokenizer.json", ...files }, of);
  return Object.fromEntries([...made].map(([key, v]) => [key.replace("tokenizer.ggml.", ""), v.type === "array" ? v.value.values : v.value]));
}
/** tokenizer.json with a change. */
function changed(change: (json: { added_tokens: Config[]; model: { vocab: Record<string, number>; merges: unknown[] } & Config } & Config) => void): unknown {
  const json = tokenizerJson(290) as never;
  change(json);
  return json;
}

test("tokens, types, scores, merges and ids", () => {
  const k = keys();
  expect(k["model"]).toBe("gemma4");
  const tokens = k["tokens"] as string[], types = [...(k["token_type"] as Int32Array)];
  expect(tokens.length).toBe(300);
  expect([tokens[5], tokens[10], tokens[265], tokens[266], tokens[289], tokens[299]]).toEqual(["<|turn>", "<0x00>", "<0xFF>", "\u2581", String.fromCodePoint(0x4e00 + 289), "[PAD299]"]);
  const T = TokenType;
  expect(types.slice(0, 10)).toEqual([T.control, T.control, T.control, T.control, T.control, T.control, T.control, T.userDefined, T.userDefined, T.control]);
  expect(new Set(types.slice(10, 266))).toEqual(new Set([T.byte]));
  expect(new Set(types.slice(266, 290))).toEqual(new Set([T.normal]));
  expect(new Set(types.slice(290))).toEqual(new Set([T.unused]));
  expect([...(k["scores"] as Float32Array)]).toEqual(new Array(300).fill(-1000));
  expect(k["merges"]).toEqual(["a b", "\u2581 a", "\n \n"]);
  expect([k["bos_token_id"], k["eos_token_id"], k["eot_token_id"], k["unknown_token_id"], k["padding_token_id"], k["mask_token_id"]]).toEqual([2, 1, 6, 3, 0, 4]);
  expect([k["add_bos_token"], k["add_space_prefix"]]).toEqual([true, false]);
  expect(k["tokenizer.chat_template"]).toBeUndefined();
});

test("conversation markers stay visible though Hugging Face calls them special", () => {
  const json = changed((j) => { for (const t of j.added_tokens) t["special"] = true; });
  expect([...(keys({ tokenizer: json })["token_type"] as Int32Array)].slice(5, 10)).toEqual([3, 3, 4, 4, 3]);
});

test("merges as text, and added tokens beyond the vocabulary", () => {
  const json = changed((j) => {
    j.model.merges = ["a b", "\u2581 a"];
    j.added_tokens.push({ id: 295, content: "<|image>", special: true });
  });
  const k = keys({ tokenizer: json });
  expect(k["merges"]).toEqual(["a b", "\u2581 a"]);
  expect([(k["tokens"] as string[])[295], (k["token_type"] as Int32Array)[295]]).toEqual(["<|image>", TokenType.control]);
});

test("tokenizer_config.json decides special ids, as text or as object", () => {
  const k = keys({ config: { eos_token: { content: "<turn|>" }, bos_token: "<mask>" } });
  expect([k["eos_token_id"], k["bos_token_id"], k["eot_token_id"]]).toEqual([6, 4, undefined]);
});

test("the chat template: a file's text first, else tokenizer_config.json, of several the default", () => {
  const config = { chat_template: [{ name: "tools", template: "B" }, { name: "default", template: "A" }] };
  expect(keys({ config })["tokenizer.chat_template"]).toBe("A");
  expect(keys({ config: { chat_template: "C" } })["tokenizer.chat_template"]).toBe("C");
  expect(keys({ config, chatTemplate: "F" })["tokenizer.chat_template"]).toBe("F");
});

test("tokens to suppress come from generation_config.json", () => {
  expect([...(keys({ generation: { suppress_tokens: [7, 8] } })["suppress_tokens"] as Int32Array)]).toEqual([7, 8]);
});

test("without a tokenizer there is only the model name none", () => {
  expect([...noTokenizer()]).toEqual([["tokenizer.ggml.model", { type: "string", value: "none" }]]);
});

test.each([
  ["BPE", changed((j) => { j.model["type"] = "Unigram"; })],
  ["normalizer", changed((j) => { j["normalizer"] = { type: "NFC" }; })],
  ["normalizer", changed((j) => { j["normalizer"] = { type: "Sequence", normalizers: [{ type: "NFC" }, j["normalizer"]] }; })],
  ["byte-level", changed((j) => { j["pre_tokenizer"] = { type: "ByteLevel" }; })],
  ["embedding rows", tokenizerJson(301)],
  ["belongs to", changed((j) => { j.model.vocab["zz"] = 270; })],
  ["the ids 5 and 6", changed((j) => { j.added_tokens[5]!["id"] = 6; })],
  ["has the id", changed((j) => { j.model.vocab["zz"] = 1.5; })],
  ["no pair", changed((j) => { j.model.merges.push(["a", "b", "c"]); })],
  ["no pair", changed((j) => { j.model.merges.push(["a b", "c"]); })],
  ["merges is missing", changed((j) => { delete (j.model as Config)["merges"]; })],
] as [string, unknown][])("refused: %s", (words, tokenizer) => {
  let error: unknown;
  try { keys({ tokenizer }); } catch (e) { error = e; }
  expect(error).toBeInstanceOf(ModelFileError);
  expect((error as ModelFileError).code).toBe("convert_tokenizer");
  expect((error as ModelFileError).message).toContain(words);
});
