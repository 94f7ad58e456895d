// Loads the tokenizer fixtures: a minimal GGUF metadata reader of its own, so that these tests do not depend on src/gguf.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createTokenizer, type Tokenizer, type TokenizerSource, tokenizerSource } from "../../src/tokenizer/index.ts";

const folder = join(import.meta.dir, "../fixtures/tokenizer");

type Metadata = Map<string, unknown>;

const SCALARS: Record<number, [size: number, read: (view: DataView, at: number) => unknown]> = {
  0: [1, (v, o) => v.getUint8(o)],
  1: [1, (v, o) => v.getInt8(o)],
  2: [2, (v, o) => v.getUint16(o, true)],
  3: [2, (v, o) => v.getInt16(o, true)],
  4: [4, (v, o) => v.getUint32(o, true)],
  5: [4, (v, o) => v.getInt32(o, true)],
  6: [4, (v, o) => v.getFloat32(o, true)],
  7: [1, (v, o) => v.getUint8(o) !== 0],
  10: [8, (v, o) => Number(v.getBigUint64(o, true))],
  11: [8, (v, o) => Number(v.getBigInt64(o, true))],
  12: [8, (v, o) => v.getFloat64(o, true)],
};

function readMetadata(file: Uint8Array): Metadata {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  let at = 16;
  const scalar = (type: number): unknown => {
    const [size, read] = SCALARS[type] ?? [0, (): unknown => undefined];
    at += size;
    return read(view, at - size);
  };
  const text = (): string => {
    const length = scalar(10) as number;
    at += length;
    return decoder.decode(file.subarray(at - length, at));
  };
  const value = (type: number): unknown => {
    if (type === 8) return text();
    if (type !== 9) return scalar(type);
    const element = scalar(4) as number;
    const values = Array.from({ length: scalar(10) as number }, () => value(element));
    if (element === 5) return Int32Array.from(values as number[]);
    return element === 6 ? Float32Array.from(values as number[]) : values;
  };
  const metadata: Metadata = new Map();
  const count = scalar(10) as number;
  for (let i = 0; i < count; i++) {
    const key = text();
    metadata.set(key, value(scalar(4) as number));
  }
  return metadata;
}

let gemma: { source: TokenizerSource; tokenizer: Tokenizer } | undefined;

/** Gemma 4's real vocabulary of 262,144 tokens; built once per test process, since it takes over a second. */
export function gemma4(): { source: TokenizerSource; tokenizer: Tokenizer } {
  if (gemma === undefined) {
    const packed = readFileSync(join(folder, "gemma4-vocab.gguf.zst"));
    const metadata = readMetadata(Bun.zstdDecompressSync(packed));
    const source = tokenizerSource((key) => metadata.get(key));
    gemma = { source, tokenizer: createTokenizer(source) };
  }
  return gemma;
}

/** The reference's texts with their ids, without BOS. */
export function gemma4Cases(): { text: string; ids: number[] }[] {
  const texts = readFileSync(join(folder, "gemma4.inp"), "utf8").split("\n__ggml_vocab_test__\n");
  const rows = readFileSync(join(folder, "gemma4.out"), "utf8").split("\n");
  return texts.map((text, i) => ({ text, ids: (rows[i] ?? "").split(" ").filter((id) => id !== "").map(Number) }));
}

interface Stories {
  metadata: Record<string, unknown>;
  stories: { text: string; ids: number[] }[];
  greedyIds: number[];
  greedyText: string;
}

/** A SentencePiece vocabulary of 512 tokens with texts and the ids its authors' tokenizer gave. */
export const stories = JSON.parse(readFileSync(join(folder, "stories260K.json"), "utf8")) as Stories;

/** A tiny `gemma4` vocabulary that a test can read: bytes, letters and the given extra tokens and merges. */
export function tinySource(extra: Partial<TokenizerSource> = {}): TokenizerSource {
  const controls = ["<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>"];
  const markers = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>'];
  const bytes = Array.from({ length: 256 }, (_, b) => `<0x${b.toString(16).toUpperCase().padStart(2, "0")}>`);
  const letters = [..."\u2581\nabcdefghijklmnopqrstuvwxyz<|>:{}"];
  const tokens = [...controls, ...markers, ...bytes, ...letters, "he", "\u2581he"];
  const types = [...controls.map(() => 3), ...markers.map(() => 4), ...bytes.map(() => 6), ...letters.map(() => 1), 1, 1];
  return { model: "gemma4", tokens, tokenTypes: Int32Array.from(types), merges: ["h e", "\u2581 he"], bosId: 2, eosId: 1, unkId: 3, padId: 0, ...extra };
}
