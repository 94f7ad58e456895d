#!/usr/bin/env bun
// Summarises a text as data: bun examples/summariser.ts [--model FILE or hf:org/repo] [FILE]   (or pipe a text in)
// The answer is JSON of the schema below, whatever the model thinks of it.
import { parseArgs } from "node:util";
import { load } from "../src/index.ts"; // "bao-llm" in a program of yours
import { z } from "zod";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { model: { type: "string", short: "m" }, seed: { type: "string", default: "1" } } });
const text = (positionals[0] === undefined ? await Bun.stdin.text() : await Bun.file(positionals[0]).text()).trim();
if (text === "") {
  console.error("usage: bun examples/summariser.ts [--model FILE] [FILE]");
  process.exit(2);
}

const Summary = z.object({
  title: z.string().min(1).max(60),
  points: z.array(z.string().min(1).max(120)).min(1).max(3),
  tone: z.enum(["cheerful", "sober", "sad"]),
});

await using model = await load(values.model ?? new URL("../models/demo.gguf", import.meta.url).pathname, { context: 2048 });
const answer = model.generate(`Summarise this text as JSON with title, points and tone.\n\n${text}`, {
  responseFormat: { type: "json_schema", schema: Summary }, temperature: 0.7, seed: Number(values.seed), maxTokens: 600,
});
const summary = Summary.parse(JSON.parse(await answer.text()));
console.log(`${summary.title} (${summary.tone})\n${summary.points.map((p) => `- ${p}`).join("\n")}`);
