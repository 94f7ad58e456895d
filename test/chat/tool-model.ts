// A model for tests that knows of tools: the embedded one's weights, under Gemma 4's own template, with tokens for the markers of calls.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createGguf, ggufValue, openGguf, type GgufValue } from "../../src/gguf/index.ts";

const root = join(import.meta.dir, "../..");
const MARKERS = ["<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>', "<|tool>", "<tool|>"];
const USER_DEFINED = 4;

/** Writes the model to `path`. Rare tokens at the vocabulary's end become the markers. */
export function writeToolModel(path: string): void {
  const source = openGguf(join(root, "models/demo.gguf")), bytes = readFileSync(source.path);
  using out = createGguf(path, { alignment: source.alignment });
  const replaced = new Map<string, GgufValue>([["tokenizer.chat_template", ggufValue.string(readFileSync(join(root, "test/fixtures/templates/gemma-4-31b-it.jinja"), "utf8"))]]);
  const tokens = [...strings(source.metadata.get("tokenizer.ggml.tokens"))], types = numbers(source.metadata.get("tokenizer.ggml.token_type")).slice();
  MARKERS.forEach((marker, i) => {
    tokens[tokens.length - 1 - i] = marker;
    types[types.length - 1 - i] = USER_DEFINED;
  });
  replaced.set("tokenizer.ggml.tokens", ggufValue.array("string", tokens)).set("tokenizer.ggml.token_type", ggufValue.array("i32", types));
  for (const [key, value] of source.metadata) if (key !== "general.alignment") out.set(key, replaced.get(key) ?? value);
  for (const [key, value] of replaced) out.set(key, value);
  for (const t of source.tensors.values()) out.declare({ name: t.name, type: t.type.name, shape: t.shape });
  for (const t of source.tensors.values()) out.write(t.name, bytes.subarray(t.offsetBytes, t.offsetBytes + t.bytes));
  out.finish();
}

function strings(value: GgufValue | undefined): readonly string[] {
  if (value?.type !== "array" || value.value.of !== "string") throw new Error("no tokens");
  return value.value.values;
}
function numbers(value: GgufValue | undefined): Int32Array {
  if (value?.type !== "array" || value.value.of !== "i32") throw new Error("no token types");
  return value.value.values;
}
