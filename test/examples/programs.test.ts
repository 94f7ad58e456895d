// examples/summariser.ts and agent.ts as a user runs them.
import { expect, setDefaultTimeout, test } from "bun:test";
import { writeToolModel } from "../chat/tool-model.ts";
import { bao, root, type SpawnOptions } from "../cli/spawn.ts";
import { TemporaryFolder } from "../engine/fixtures.ts";

setDefaultTimeout(120_000);
const run = (name: string, args: readonly string[], options: SpawnOptions = {}): ReturnType<typeof bao> => bao(args, { ...options, script: `${root}/examples/${name}` });

test("the summariser gives a title, a tone and points of any text", async () => {
  const { code, stdout, stderr } = await run("summariser.ts", ["--seed", "4"], { stdin: "Once upon a time there was a little dog. He was happy." });
  expect([code, stderr]).toEqual([0, ""]);
  expect(stdout).toMatch(/^.{1,60} \((cheerful|sober|sad)\)\n(- .{1,120}\n){1,3}$/s);
  expect((await run("summariser.ts", [], { stdin: " " })).code).toBe(2);
});

test("the agent calls its tools and goes on with what they gave", async () => {
  using folder = new TemporaryFolder();
  writeToolModel(folder.file("tools.gguf"));
  const { code, stderr } = await run("agent.ts", ["--model", folder.file("tools.gguf"), "--seed", "3", "What is 2 + 3?"]);
  expect(code).toBe(0);
  expect(stderr).toMatch(/^-> (calculate\(\{"a":.*\}\)|date\(\{\}\))$/m);
  expect(stderr).toMatch(/^<- ("\d{4}-\d\d-\d\d"|\{"(result|error)":.*\})$/m);
  expect((await run("agent.ts", ["What is 2 + 3?"])).code).toBe(2);
});
