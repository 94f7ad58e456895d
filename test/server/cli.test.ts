// bao serve as a process: it says where it listens, serves, and ends with Ctrl-C when the answers in flight have ended.
import { expect, setDefaultTimeout, test } from "bun:test";
import { bao, root } from "../cli/spawn.ts";
import { readEvents } from "./harness.ts";

setDefaultTimeout(60_000);

/** Starts `bao serve` on a free port; resolves when it listens. */
async function start(args: readonly string[], env: Record<string, string> = {}) {
  const child = Bun.spawn([process.execPath, `${root}/src/cli/bao.ts`, "serve", "--port", "0", "--threads", "1", ...args], { stdin: "ignore", stdout: "pipe", stderr: "pipe", env: { PATH: process.env["PATH"] ?? "", ...env } });
  let said = "";
  const decoder = new TextDecoder(), reader = child.stderr.getReader();
  const until = async (pattern: RegExp): Promise<RegExpExecArray> => {
    for (;;) {
      const match = pattern.exec(said);
      if (match) return match;
      const { value, done } = await reader.read();
      if (done) throw new Error(`the server ended: ${said}`);
      said += decoder.decode(value, { stream: true });
    }
  };
  const url = (await until(/listening on (http:\S+)/))[1]!;
  return { child, url, until };
}

test("serves with the key of the environment, logs when asked, and ends whole", async () => {
  const { child, url, until } = await start(["--log", "--name", "story-teller", "--ctx", "512", "--parallel", "2"], { BAO_API_KEY: "k" });
  await until(/story-teller on cpu: 2 answers at a time, 512 tokens each/);
  expect((await fetch(`${url}v1/models`)).status).toBe(401);
  const response = await fetch(`${url}v1/chat/completions`, {
    method: "POST", headers: { "Content-Type": "application/json", Authorization: "Bearer k" },
    body: JSON.stringify({ model: "story-teller", messages: [{ role: "user", content: "Tell me a story." }], stream: true, max_tokens: 300 }),
  });
  expect(response.status).toBe(200);
  child.kill("SIGINT");
  await until(/ending when the answers in flight have ended/);
  const { events } = await readEvents(response);
  expect(events.at(-1)!.data).toBe("[DONE]");
  await until(/GET \/v1\/models 401 \d+ ms[\s\S]*POST \/v1\/chat\/completions 200/);
  expect(await child.exited).toBe(0);
  expect(await new Response(child.stdout).text()).toBe("");
});

test("SIGTERM ends it as well; an address that is taken is a usage error", async () => {
  const { child, url } = await start([]);
  const taken = await bao(["serve", "--port", new URL(url).port, "--threads", "1"]);
  expect([taken.code, taken.stdout]).toEqual([2, ""]);
  expect(taken.stderr).toContain("Cannot listen on 127.0.0.1");
  child.kill("SIGTERM");
  expect(await child.exited).toBe(0);
});

test.each([[["--port", "70000"], "--port: expected at most 65535"], [["--api-key", ""], "--api-key: expected a key"], [["--parallel", "0"], "--parallel: expected a whole number"], [["--prt", "1"], "Did you mean --port?"]])("serve %j is a usage error", async (args, message) => {
  const { code, stderr } = await bao(["serve", ...args]);
  expect(code).toBe(2);
  expect(stderr).toContain(message);
});
