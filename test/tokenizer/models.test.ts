// The other tokenizer models, odd files and refusals, on small vocabularies that a reader can check by hand.

import { describe, expect, test } from "bun:test";
import { BPE } from "@huggingface/tokenizers";
import fc from "fast-check";
import { createTokenizer, type TokenizerSource, tokenizerSource } from "../../src/tokenizer/index.ts";
import { stories, tinySource } from "./fixture.ts";

const storySource = tokenizerSource((key) => stories.metadata[key]);

describe("llama: SentencePiece by scores", () => {
  const tokenizer = createTokenizer(storySource);

  test("texts get the ids of the model's own tokenizer", () => {
    for (const { text, ids } of stories.stories) {
      // Stories were cut after 511 ids.
      expect(tokenizer.encode(text, { bos: false }).slice(0, 511)).toEqual(ids);
      expect(tokenizer.encode(text)[0]).toBe(1);
      expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
    }
    expect(stories.greedyText.startsWith(tokenizer.decode(stories.greedyIds))).toBe(true);
    expect([...tokenizer.stopIds]).toEqual([2]);
  });

  test("the space in front is added once and taken away once", () => {
    expect(tokenizer.decode(tokenizer.encode(" Once"))).toBe(" Once");
    expect(tokenizer.decode(tokenizer.encode("Once"))).toBe("Once");
    const stream = tokenizer.stream();
    const [id = -1] = tokenizer.encode("Once", { bos: false });
    expect(stream.push(id)).toBe(" Once");
  });

  test("round trip of any text", () => {
    const text = fc.string({ unit: "binary", maxLength: 30 }).map((value) => value.replaceAll("\u2581", ""));
    fc.assert(fc.property(text, (value) => expect(tokenizer.decode(tokenizer.encode(value))).toBe(value)), { numRuns: 300 });
  });

  test("the pair with the highest score goes first, the left one on ties", () => {
    const tokens = ["<unk>", "<s>", "</s>", "a", "b", "ab", "ba", "bab", "abab"];
    const make = (scores: number[]) =>
      createTokenizer({ model: "llama", tokens, scores: Float32Array.from([0, 0, 0, ...scores]), tokenTypes: Int32Array.from([2, 3, 3, 1, 1, 1, 1, 1, 1]), bosId: 1, eosId: 2, addSpacePrefix: false });
    const texts = (scores: number[], text: string): (string | undefined)[] => make(scores).encode(text, { bos: false }).map((id) => tokens[id]);
    expect(texts([0, 0, -1, -2, -3, -4], "abab")).toEqual(["abab"]);
    expect(texts([0, 0, -2, -1, -9, -9], "aba")).toEqual(["a", "ba"]);
    expect(texts([0, 0, -1, -1, -9, -9], "aba")).toEqual(["ab", "a"]);
  });

  test("user-defined tokens that are ordinary text are matched whole, conversation markers only when asked", () => {
    const base = { model: "llama", bosId: 1, eosId: 2, addSpacePrefix: false };
    const tokens = ["<unk>", "<s>", "</s>", "<start_of_turn>", "<table>", "<|x|>", "\n\n", "  ", "a", "\n", "\u2581"];
    const types = [2, 3, 3, 3, 4, 4, 4, 4, 1, 1, 1];
    const tokenizer = createTokenizer({ ...base, tokens, tokenTypes: Int32Array.from(types), scores: new Float32Array(tokens.length) });
    expect(tokenizer.encode("a<table>\n\na  a", { bos: false })).toEqual([8, 4, 6, 8, 7, 8]);
    expect(tokenizer.encode("a<|x|>", { parse: "markers", bos: false })).toEqual([8, 5]);
    expect(tokenizer.encode("a<|x|>", { bos: false })).not.toContain(5);
    expect(tokenizer.encode("<start_of_turn>", { bos: false })).not.toContain(3);
    expect(tokenizer.encode("<start_of_turn>", { parse: "all", bos: false })).toEqual([3]);
  });
});

describe("gpt2: byte-level BPE", () => {
  // `Ġ` stands for a space, `Ċ` for a newline, `Ã©` for the two bytes of é.
  const alphabet = [..."abcdehlo123!'ĠĊÃ©"];
  const tokens = [...alphabet, "he", "ll", "hell", "hello", "Ġhe", "12", "123", "Ã©", "<|end_of_text|>"];
  const merges = ["h e", "l l", "he ll", "Ġ he", "1 2", "Ã ©"];
  const make = (pre: string, extra: Partial<TokenizerSource> = {}) =>
    createTokenizer({ model: "gpt2", pre, tokens, merges, tokenTypes: Int32Array.from(tokens, (text) => (text.startsWith("<|") ? 3 : 1)), eosId: tokens.length - 1, ...extra });
  const texts = (pre: string, text: string): (string | undefined)[] => make(pre).encode(text).map((id) => tokens[id]);

  test("words, digits and line ends are split as the model's rule says", () => {
    expect(texts("llama-bpe", "hello he!\n 1231")).toEqual(["hello", "Ġhe", "!", "Ċ", "Ġ", "123", "1"]);
    expect(texts("qwen2", "hello 12")).toEqual(["hell", "o", "Ġ", "1", "2"]);
  });

  test("characters split over tokens stream whole", () => {
    const tokenizer = make("qwen2", { merges: merges.slice(0, -1) });
    const ids = tokenizer.encode("é");
    expect(ids.length).toBe(2);
    const stream = tokenizer.stream();
    expect(ids.map((id) => stream.push(id))).toEqual(["", "é"]);
    expect(tokenizer.decode(tokenizer.encode("hé hello\n"))).toBe("hé hello\n");
  });

  test("stops by meaning, and an unknown splitting rule is refused", () => {
    expect([...make("llama-bpe").stopIds]).toEqual([tokens.length - 1]);
    expect(() => make("deepseek-v3")).toThrow("llama-bpe");
  });
});

describe("files that are odd", () => {
  test("metadata keys map to fields; absent ids are 0xFFFFFFFF in old files", () => {
    expect(storySource).toMatchObject({ model: "llama", bosId: 1, eosId: 2, unkId: 0 });
    expect(storySource.padId).toBeUndefined();
  });

  test("values may carry the tags of the GGUF reader", () => {
    const tag = (value: unknown): unknown => {
      if (Array.isArray(value)) return { type: "array", value: { of: "f32", values: typeof value[0] === "string" ? value : Float32Array.from(value as number[]) } };
      return value === undefined ? undefined : { type: typeof value, value };
    };
    const tagged = tokenizerSource((key) => (key.endsWith("token_type") ? { type: "array", value: { of: "i32", values: Int32Array.from(stories.metadata[key] as number[]) } } : tag(stories.metadata[key])));
    const text = stories.stories[0]?.text ?? "";
    expect(createTokenizer(tagged).encode(text)).toEqual(createTokenizer(storySource).encode(text));
    const bytes = { type: "array", value: { of: "u8", values: new Uint8Array(512) } };
    expect(() => tokenizerSource((key) => (key.endsWith("token_type") ? bytes : tag(stories.metadata[key])))).toThrow("32-bit");
  });

  test("a BOS outside of the vocabulary: a warning, and the token that is called so", () => {
    const tokenizer = createTokenizer(tinySource({ bosId: 99_999 }));
    expect(tokenizer.bosId).toBe(2);
    expect(tokenizer.warnings.join()).toContain("bos_token_id is 99999");
    const without = tinySource({ bosId: 99_999 });
    const unnamed = createTokenizer({ ...without, tokens: without.tokens.map((text) => (text === "<bos>" ? "<x>" : text)) });
    expect(unnamed.bosId).toBeUndefined();
    expect(unnamed.encode("he").length).toBe(1);
  });

  test("two tokens with the same text: the first id is used, both decode", () => {
    const source = tinySource();
    const tokenizer = createTokenizer({ ...source, tokens: [...source.tokens, "he"], tokenTypes: Int32Array.from([...Array.from(source.tokenTypes ?? []), 1]) });
    expect(tokenizer.encode("he", { bos: false })).toEqual([source.tokens.indexOf("he")]);
    expect(tokenizer.decode([source.tokens.length])).toBe("he");
    expect(tokenizer.warnings.join()).toContain("1 tokens repeat");
  });

  test("merges that would make a control token are not followed", () => {
    const source = tinySource();
    const tokens = [...source.tokens, "<|", "<|t", "<|tu", "<|tur", "<|turn"];
    const types = [...Array.from(source.tokenTypes ?? []), 1, 1, 1, 1, 1];
    const merges = ["< |", "<| t", "<|t u", "<|tu r", "<|tur n", "<|turn >"];
    const tokenizer = createTokenizer({ ...source, tokens, tokenTypes: Int32Array.from(types), merges });
    expect(tokenizer.encode("<|turn>", { bos: false }).map((id) => tokens[id])).toEqual(["<|turn", ">"]);
  });

  test("texts that JavaScript treats specially are texts like any other", () => {
    const source = tinySource();
    const tokens = [...source.tokens, "_", "__", "__p", "constructor"];
    const tokenizer = createTokenizer({ ...source, tokens, tokenTypes: Int32Array.from([...Array.from(source.tokenTypes ?? []), 1, 1, 1, 1]), merges: ["_ _", "__ p"] });
    for (const text of ["__proto__", "constructor", "toString"]) expect(tokenizer.decode(tokenizer.encode(text))).toBe(text);
  });

  test("token types may be missing", () => {
    const { tokenTypes: _, ...source } = tinySource();
    const tokenizer = createTokenizer(source);
    expect([...tokenizer.stopIds].map((id) => source.tokens[id])).toEqual(["<eos>", "<turn|>"]);
    expect(tokenizer.decode(tokenizer.encode("é<|turn>"))).toBe("é<|turn>");
  });

  test("an eos id that names ordinary text does not end answers; end of turn as eos keeps <eos> as well", () => {
    const source = tinySource();
    const letter = source.tokens.indexOf("a");
    expect(createTokenizer({ ...source, eosId: letter }).stopIds.has(letter)).toBe(false);
    expect([...createTokenizer({ ...source, eosId: 5 }).stopIds].sort()).toEqual([1, 5]);
  });

  test("the algorithm follows the name, not the arrays: gemma4 with scores merges by rank", () => {
    const source = tinySource();
    const scores = new Float32Array(source.tokens.length).fill(-1000);
    expect(createTokenizer({ ...source, scores }).encode("he")).toEqual(createTokenizer(source).encode("he"));
  });

  test.each([
    ["no tokens", tinySource({ tokens: [] }), "tokenizer_tokens"],
    ["short scores", tinySource({ scores: new Float32Array(3) }), "tokenizer_scores"],
    ["short types", tinySource({ tokenTypes: new Int32Array(3) }), "tokenizer_types"],
    ["a merge without separator", tinySource({ merges: ["he"] }), "tokenizer_merges"],
    ["an unknown model", tinySource({ model: "bert" }), "tokenizer_unsupported"],
    ["a name from Object.prototype", tinySource({ model: "constructor" }), "tokenizer_unsupported"],
    ["llama without scores", tinySource({ model: "llama" }), "tokenizer_scores"],
  ] as [string, TokenizerSource, string][])("%s is a ModelFileError", (_, source, code) => {
    expect(() => createTokenizer(source)).toThrow(expect.objectContaining({ name: "ModelFileError", code }));
  });

  test("gemma4 without merges, and the list of supported names", () => {
    const { merges: _, ...source } = tinySource();
    expect(() => createTokenizer(source)).toThrow("tokenizer.ggml.merges is missing");
    expect(() => createTokenizer(tinySource({ model: "bert" }))).toThrow("gemma4, llama, gpt2, none");
  });

  test.each([
    ["token_type", new Uint8Array(3)],
    ["tokens", "text"],
    ["scores", ["x"]],
    ["bos_token_id", "2"],
    ["add_bos_token", 1],
  ])("%s of the wrong type is a ModelFileError", (key, value) => {
    const metadata: Record<string, unknown> = { ...stories.metadata, [`tokenizer.ggml.${key}`]: value };
    expect(() => tokenizerSource((name) => metadata[name])).toThrow(expect.objectContaining({ name: "ModelFileError", code: "tokenizer_type" }));
  });

  test("a model without a tokenizer loads; text is refused", () => {
    const tokenizer = createTokenizer({ model: "none", tokens: [] });
    expect(() => tokenizer.encode("x")).toThrow(expect.objectContaining({ name: "UsageError", code: "tokenizer_none" }));
    expect(() => tokenizerSource(() => undefined)).toThrow("tokenizer.ggml.model is missing");
  });
});

test("the library's merge loop is what src/tokenizer/bpe.ts relies on: ranks alone, no vocabulary, no cache", () => {
  const bpe = new BPE({ type: "BPE", vocab: {}, merges: [["a", "b"], ["ab", "\n"], ["b", "c"]] } as unknown as ConstructorParameters<typeof BPE>[0]);
  bpe.max_length_to_cache = 0;
  bpe.merges = [];
  expect(bpe.bpe("abc")).toEqual(["ab", "c"]);
  expect(bpe.bpe("bcab\n")).toEqual(["bc", "ab\n"]);
  expect(bpe.cache.get("abc")).toBeUndefined();
  expect(new BPE({ type: "BPE", vocab: {}, merges: [] } as unknown as ConstructorParameters<typeof BPE>[0]).bpe("ab")).toEqual(["a", "b"]);
});
