// bao chat over a pipe: commands, saved conversations, settings, errors.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync, lstatSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { bao, DEMO, STORIES, type Result } from "./spawn.ts";

setDefaultTimeout(120_000);
let folder = "";
beforeAll(() => { folder = mkdtempSync(join(tmpdir(), "bao-chat-")); });
afterAll(() => { rmSync(folder, { recursive: true }); });

const chat = (lines: readonly string[], ...args: string[]): Promise<Result> => bao(["chat", "-m", DEMO, "-t", "0", "-n", "16", ...args], { stdin: `${lines.join("\n")}\n` });
const QUESTION = "Tell me a story about a cat.";

test("answers every line on stdout; the second answer reuses the first one's cache", async () => {
  const { code, stdout, stderr } = await chat([QUESTION, "And then?"], "--stats");
  expect(code).toBe(0);
  expect(stdout.trimEnd().split("\n").length).toBeGreaterThanOrEqual(2);
  expect(stdout).toStartWith("Once upon a time");
  expect(stdout).not.toContain("> ");
  const prefills = stderr.split("\n").filter((line) => line.startsWith("prefill"));
  expect(prefills).toHaveLength(2);
  expect(prefills[0]).not.toContain("cached");
  expect(Number(/(\d+) more were cached/.exec(prefills[1]!)?.[1])).toBeGreaterThan(20);
});

test("/save and /load carry a conversation over to another run", async () => {
  const path = join(folder, "talk.json");
  const first = await chat(["/system Be kind.", QUESTION, `/save ${path}`, "And then?"]);
  expect(first.code).toBe(0);
  const saved = JSON.parse(readFileSync(path, "utf8"));
  expect(saved).toMatchObject({ format: "bao-conversation", version: 1, system: "Be kind.", messages: [{ role: "user", content: QUESTION }, { role: "assistant" }] });
  expect(existsSync(`${path}.part`)).toBe(false);
  const [answer, then] = [saved.messages[1].content as string, first.stdout.slice((saved.messages[1].content as string).length + 1)];
  expect(first.stdout.startsWith(`${answer}\n`)).toBe(true);
  expect((await chat([`/load ${path}`, "And then?"])).stdout).toBe(then);
  expect((await chat(["And then?"], "--load", path)).stdout).toBe(then);
});

test("/tokens counts, /reset forgets, /exit leaves the rest unread", async () => {
  const { code, stdout } = await chat(["/tokens", QUESTION, "/tokens", "/reset", "/tokens", "/exit", QUESTION], "-n", "1");
  expect(code).toBe(0);
  expect(stdout).toMatch(/^0 of 4096 tokens\nOnce\n[1-9]\d* of 4096 tokens\n0 of 4096 tokens\n$/);
});

test("/set changes settings by their option's name, and - gives the default back", async () => {
  const { stdout, stderr } = await chat(["/set max-tokens 2", QUESTION, "/set max-tokens 1", "/reset", QUESTION, "/set top-k 5", "/set", "/set top-k -"]);
  expect(stdout).toBe("Once upon\nOnce\n");
  expect(stderr).toMatch(/top-k +5\n/);
  expect(stderr).toMatch(/top-p +default\n/);
  expect(stderr).toContain("top-k is the default");
});

test("/save does not replace what is no file, and the conversation goes on", async () => {
  const pipe = join(folder, "pipe");
  expect(Bun.spawnSync(["mkfifo", pipe]).exitCode).toBe(0);
  const { stdout, stderr } = await chat([`/save ${pipe}`, `/save ${folder}`, QUESTION], "-n", "2");
  expect(stderr).toContain(`${pipe}: expected a file or nothing there, found a device or a pipe`);
  expect(stderr).toContain(`${folder}: expected a file or nothing there, found a folder`);
  expect([lstatSync(pipe).isFIFO(), existsSync(`${pipe}.part`), stdout]).toEqual([true, false, expect.stringContaining("Once")]);
});

test("a line that ends with a backslash goes on in the next", async () => {
  const path = join(folder, "lines.json");
  await chat(["Tell me\\", "a story.", `/save ${path}`], "-n", "1");
  expect(JSON.parse(readFileSync(path, "utf8")).messages[0].content).toBe("Tell me\na story.");
});

test("errors are said and the conversation goes on; the exit code tells at the end", async () => {
  const bad = join(folder, "bad.json");
  writeFileSync(bad, '{"format":"bao-conversation","version":1,"messages":[{"role":"tool","content":"x"}]}');
  const { code, stdout, stderr } = await chat(["/nonsense", "/set heat 3", "/set temperature warm", "/load", `/load ${bad}`, QUESTION], "-n", "1");
  expect(stdout).toBe("Once\n");
  for (const text of ["Unknown command: /nonsense", "Unknown setting: heat", "expected a number", "expected a file name", "message 1"]) expect(stderr).toContain(text);
  expect(code).toBe(3);
});

test("a question longer than the context is refused, and the next one is answered", async () => {
  const { code, stdout, stderr } = await chat(["long ".repeat(200), QUESTION], "--ctx", "64", "-n", "1");
  expect(stdout).toBe("Once\n");
  expect(stderr).toContain("--ctx");
  expect(code).toBe(2);
});

test("a model without a chat template is refused at once", async () => {
  const { code, stdout } = await bao(["chat", "-m", STORIES], { stdin: "Hi\n" });
  expect([code, stdout]).toEqual([2, ""]);
});
