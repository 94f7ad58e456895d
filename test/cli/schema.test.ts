// bao generate --json-schema: answers that satisfy a schema, and what cannot be.
import { expect, setDefaultTimeout, test } from "bun:test";
import { writeFileSync } from "node:fs";
import { TemporaryFolder } from "../engine/fixtures.ts";
import { bao } from "./spawn.ts";

setDefaultTimeout(60_000);

test("the answer satisfies the schema; schemas that cannot be and files that are none are refused", async () => {
  using folder = new TemporaryFolder();
  const file = (name: string, content: string): string => { writeFileSync(folder.file(name), content); return folder.file(name); };
  const run = (schema: string, ...more: string[]): ReturnType<typeof bao> => bao(["generate", "-p", "A dog", "-n", "200", "--seed", "3", "--no-warmup", "--json-schema", schema, ...more]);
  const { code, stdout } = await run(file("dog.json", '{"type":"object","properties":{"name":{"type":"string","maxLength":12},"good":{"const":true}},"required":["name","good"]}'));
  expect(code).toBe(0);
  expect(JSON.parse(stdout)).toEqual({ name: expect.any(String), good: true });
  expect(await run(file("not.json", '{"not":{}}'))).toMatchObject({ code: 2, stderr: expect.stringContaining('"not" cannot be guaranteed') });
  expect(await run(file("text.json", "a dog"))).toMatchObject({ code: 2, stderr: expect.stringContaining("is no JSON") });
  expect((await run(folder.file("none.json"))).code).toBe(3);
  expect((await run("-", "-n", "4", "--json")).stdout).toContain('"text":"{');
});
