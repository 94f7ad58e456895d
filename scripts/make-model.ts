// Makes a GGUF file with the exact shape of a Gemma 4 size and random weights, for benchmarks and tests of sizes that are not at hand:
//   bun scripts/make-model.ts --shape 26b-a4b --type q4_k_m -o model.gguf
// What it writes answers with noise; only its speed and its memory are real.

import { existsSync, readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import type { SourceConfig } from "../src/convert/checkpoint.ts";
import { dummyTokenizer } from "../src/convert/dummy-tokenizer.ts";
import { FILE_TYPES, fileType } from "../src/convert/types.ts";
import { SHAPE_NAMES, shapeConfig, shapeName } from "../src/convert/shapes.ts";
import { synthesise } from "../src/convert/synthesise.ts";
import { noTokenizer, tokenizerMetadata } from "../src/convert/tokenizer.ts";
import { BaoError, UsageError } from "../src/errors.ts";
import { openGguf, type GgufValue } from "../src/gguf/index.ts";

const USAGE = `bun scripts/make-model.ts --shape <shape> --type <type> -o <file> [options]

  --shape      ${SHAPE_NAMES.join(", ")}
  --type       ${Object.keys(FILE_TYPES).join(", ")} (default q4_k_m)
  -o, --output the file to write; an existing one is replaced when the new one is complete
  --layers     layers instead of the shape's, in the same pattern
  --vocab      tokens instead of the shape's
  --tokenizer  none (default: ids only), dummy (made-up words: other programs want some vocabulary),
               or a file: tokenizer.json, or a GGUF file whose tokenizer is taken
  --seed       whole number; the same seed gives the same file (default 1)
`;

/** Reads the tokenizer.* keys for a model from what --tokenizer names. */
function tokenizerKeys(from: string, config: SourceConfig): Map<string, GgufValue> {
  if (from === "none") return noTokenizer();
  if (from === "dummy") return dummyTokenizer(config.vocabulary);
  if (!existsSync(from)) throw new UsageError("file_missing", `${from} does not exist`, "--tokenizer takes none, dummy, a tokenizer.json or a GGUF file.");
  if (!from.endsWith(".gguf")) return tokenizerMetadata({ tokenizer: JSON.parse(readFileSync(from, "utf8")) as unknown, path: from }, config);
  const { metadata } = openGguf(from), keys = new Map<string, GgufValue>();
  for (const key of metadata.keys()) if (key.startsWith("tokenizer.")) keys.set(key, metadata.get(key)!);
  const size = metadata.strings("tokenizer.ggml.tokens")?.length;
  if (size !== undefined && size !== config.vocabulary) {
    throw new UsageError("vocabulary_mismatch", `${from} has ${size} tokens, the model ${config.vocabulary} embedding rows`, `Add --vocab ${size}.`);
  }
  return keys;
}

function main(): void {
  const text = { type: "string" } as const;
  const { values } = parseArgs({
    options: { shape: text, type: text, output: { ...text, short: "o" }, layers: text, vocab: text, tokenizer: text, seed: text, help: { type: "boolean", short: "h" } },
  });
  if (values.help) {
    process.stdout.write(USAGE);
    return;
  }
  const { shape, output } = values;
  if (shape === undefined || output === undefined) throw new UsageError("usage", "--shape and -o are needed", "See --help.");
  const name = shapeName(shape), type = fileType(values.type ?? "q4_k_m");
  const whole = (option: "layers" | "vocab" | "seed"): number | undefined => (values[option] === undefined ? undefined : Number(values[option]));
  const config = shapeConfig(name, { layers: whole("layers"), vocabulary: whole("vocab") });
  const tty = process.stderr.isTTY, start = Bun.nanoseconds();
  let shown = start;
  const written = synthesise({
    config, type, output, name: `Gemma 4 ${name} shape, random weights`, tokenizer: tokenizerKeys(values.tokenizer ?? "none", config), seed: whole("seed") ?? 1,
    ...(tty ? { onProgress: (done: number, total: number) => {
      const now = Bun.nanoseconds();
      if (now - shown < 2e8 && done < total) return;
      shown = now;
      process.stderr.write(`\r${((100 * done) / total).toFixed(0)} % of ${(total / 1e9).toFixed(2)} GB`);
    } } : {}),
  });
  const seconds = (Bun.nanoseconds() - start) / 1e9;
  if (tty) process.stderr.write("\r\x1b[K");
  process.stdout.write(`${output}: ${name}, ${type}, ${written.tensors} tensors, ${(written.bytes / 1e9).toFixed(2)} GB in ${seconds.toFixed(1)} s, ${(written.bytes / 1e6 / seconds).toFixed(0)} MB/s\n`);
}

try {
  main();
} catch (e) {
  const { message } = e as Error, hint = e instanceof BaoError ? e.hint : undefined;
  process.stderr.write(`make-model: ${message}\n${hint === undefined ? "" : `${hint}\n`}`);
  process.exitCode = 2;
}
