#!/usr/bin/env bun
// An agent with two tools: bun examples/agent.ts --model FILE-or-hf:org/repo "How many seconds are in 3 days?"
// The functions run in this program; the model asks for them, hears what they gave, and answers. It has to be a model that was trained to call tools.
import { parseArgs } from "node:util";
import { act, load, tool } from "../src/index.ts"; // "bao-llm" in a program of yours
import { z } from "zod";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { model: { type: "string", short: "m" }, seed: { type: "string", default: "1" } } });
if (values.model === undefined || positionals.length === 0) {
  console.error("usage: bun examples/agent.ts --model FILE-or-hf:org/repo QUESTION");
  process.exit(2);
}

const tools = [
  tool({
    name: "calculate", description: "Calculates with two numbers",
    parameters: z.object({ operation: z.enum(["add", "subtract", "multiply", "divide"]), a: z.number(), b: z.number() }),
    run: ({ operation, a, b }) => {
      if (operation === "divide" && b === 0) throw new Error("division by zero");
      return { result: { add: a + b, subtract: a - b, multiply: a * b, divide: a / b }[operation] };
    },
  }),
  tool({ name: "date", description: "Tells today's date", parameters: z.object({}), run: () => new Date().toISOString().slice(0, 10) }),
];

await using model = await load(values.model, { context: 4096 });
await using session = await model.session(); // keeps what was read: a round costs its new tokens only
const answer = act(session, positionals.join(" "), tools, {
  system: "Use the tools for everything that can be calculated or looked up.", toolChoice: "required", maxRounds: 4, maxTokens: 512, seed: Number(values.seed),
});
for await (const part of answer) {
  if (part.type === "tool_call") console.error(`-> ${part.name}(${JSON.stringify(part.arguments)})`);
  else if (part.type === "tool_result") console.error(`<- ${JSON.stringify(part.result)}`);
  else if (part.type === "error") console.error(`!! ${part.message}`);
  else if (part.type === "text") process.stdout.write(part.text);
}
process.stdout.write("\n");
