// examples/endpoint.ts as a user runs it.
import { expect, test } from "bun:test";
import { root } from "../cli/spawn.ts";

test("streams a story, speaks OpenAI's API, ends with Ctrl-C", async () => {
  const child = Bun.spawn([process.execPath, `${root}/examples/endpoint.ts`], { stdin: "ignore", stdout: "pipe", stderr: "inherit", env: { PATH: process.env["PATH"] ?? "", PORT: "0" } });
  const reader = child.stdout.getReader();
  let said = "";
  while (!said.includes("\n")) said += new TextDecoder().decode((await reader.read()).value);
  const url = /listening on (\S+)/.exec(said)![1]!;
  const story = await fetch(`${url}story`, { method: "POST", body: "a little dog" });
  const pieces: string[] = [];
  for await (const bytes of story.body!) pieces.push(new TextDecoder().decode(bytes));
  expect(pieces.length).toBeGreaterThan(3);
  expect(pieces.join("").length).toBeGreaterThan(100);
  expect((await fetch(`${url}story`, { method: "POST", body: " " })).status).toBe(400);
  const models = await (await fetch(`${url}v1/models`)).json() as { data: { id: string }[] };
  expect(models.data[0]!.id).toBe("story");
  child.kill("SIGINT");
  expect(await child.exited).toBe(0);
}, 60_000);
