// bao tokenize: texts to token ids, one JSON value a line. Reads the file and its tokenizer only; needs no kernel library.
import type { Argv } from "yargs";
import { UsageError } from "../errors.ts";
import { openGguf } from "../gguf/index.ts";
import { createTokenizer, tokenizerSource, type ParseSpecial } from "../tokenizer/index.ts";
import { stdinLines } from "./input.ts";
import { modelPath } from "./load.ts";
import { choice, flag, text } from "./options.ts";
import { outJson } from "./output.ts";

export function builder(y: Argv): Argv {
  return y.usage(`bao tokenize [options]

Reads one JSON string a line from standard input, writes one JSON array of token ids a line.

Examples:
  echo '"Hello world"' | bao tokenize -m gemma.gguf
  jq -c .text texts.jsonl | bao tokenize -m gemma.gguf --no-bos > ids.jsonl
  echo '"<|turn>user"' | bao tokenize -m gemma.gguf --parse all`).options({
    model: text("GGUF file (default: the model embedded in the package)", { alias: "m" }),
    parse: choice("Special tokens that a text may contain: none, those the model's author defined as markers, or all", ["none", "markers", "all"], { default: "none" }),
    "no-bos": flag("No BOS in front, even if the model asks for one"),
  });
}

export async function run(args: { model?: string; parse: ParseSpecial; noBos?: boolean }): Promise<void> {
  const { path } = await modelPath(args.model);
  const { metadata } = openGguf(path);
  const tokenizer = createTokenizer(tokenizerSource((key) => metadata.get(key)));
  let number = 0;
  for await (const line of stdinLines()) {
    number++;
    if (line.trim() === "") continue;
    outJson(tokenizer.encode(parseText(line, number), { parse: args.parse, ...(args.noBos ? { bos: false } : {}) }));
  }
}

function parseText(line: string, number: number): string {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch { /* reported below, with everything else that is no string */ }
  if (typeof value === "string") return value;
  throw new UsageError("bad_input", `Line ${number} of the input is not a JSON string`, 'Give one text a line, quoted: "Hello".');
}
