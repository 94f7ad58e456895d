// The embedded model: that the file in models/ is what docs/demo-model.md says, and that its template gives the ids it was trained on.
import { expect, test } from "bun:test";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createChatTemplate } from "../../src/chat/index.ts";
import { openGguf } from "../../src/gguf/index.ts";
import { createTokenizer, tokenizerSource } from "../../src/tokenizer/index.ts";

const models = join(import.meta.dir, "../../models");
const gguf = openGguf(join(models, "demo.gguf"));

test("a small Q4_K_M Gemma 4 with experts, K = V layers and its sources named", () => {
  const m = gguf.metadata;
  expect(gguf.shards[0]!.sizeBytes).toBeLessThan(12e6);
  expect([m.string("general.architecture"), m.u32("general.file_type"), m.u32("gemma4.block_count"), m.u32("gemma4.expert_count"), gguf.tensors.size]).toEqual(["gemma4", 15, 8, 8, 177]);
  expect([gguf.tensors.has("blk.0.attn_v.weight"), gguf.tensors.has("blk.3.attn_v.weight")]).toEqual([true, false]);
  const sources = Array.from({ length: m.u32("general.dataset.count")! }, (_, i) => `${m.string(`general.dataset.${i}.name`)}: ${m.string(`general.dataset.${i}.description`)}`);
  expect(sources.join("; ")).toMatch(/TinyStories.*CDLA-Sharing-1\.0.*African Storybook.*CC BY 4\.0.*FairytaleQA.*Apache-2\.0.*public domain/);
});

test("the embedded template is the one beside it, and renders the training format", () => {
  const source = gguf.metadata.string("tokenizer.chat_template")!;
  expect(source).toBe(readFileSync(join(models, "demo-chat-template.jinja"), "utf8"));
  const template = createChatTemplate(source, { bosToken: "<bos>" });
  const text = (...messages: [role: "system" | "user" | "assistant", content: string][]): string =>
    template.render(messages.map(([role, content]) => ({ role, content }))).pieces.map((p) => p.text).join("");
  expect(text(["user", " Hi "])).toBe("<bos><|turn>user\nHi<turn|>\n<|turn>model\n");
  expect(text(["system", "Be kind."], ["user", "Hi"], ["assistant", "Yo"], ["user", "More"])).toBe(
    "<bos><|turn>user\nBe kind.\n\nHi<turn|>\n<|turn>model\nYo<turn|>\n<|turn>user\nMore<turn|>\n<|turn>model\n");
});

test("a chat prompt has the ids of the training format", () => {
  const tokenizer = createTokenizer(tokenizerSource((key) => gguf.metadata.get(key)));
  const template = createChatTemplate(gguf.metadata.string("tokenizer.chat_template")!, { bosToken: "<bos>" });
  const { pieces } = template.render([{ role: "user", content: "Tell me a story about a little dog." }]);
  const ids = tokenizer.encodePieces(pieces);
  expect(ids).toEqual([2, 5, 539, 373, 266, 316, 597, 478, 361, 1596, 658, 361, 576, 1203, 279, 6, 266, 5, 339, 835, 635, 266]);
});
