// bao pull, list, rm and doctor as a user runs them, against a hub of our own; and names in place of paths.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gguf, type Hub, startHub } from "../hub/server.ts";
import { bao, DEMO, type Result } from "./spawn.ts";

setDefaultTimeout(60_000);
const REPO = "acme/demo-GGUF", NAME = `hf:${REPO}:Q4_K_M`;
let hub: Hub, cache: string;
const run = (args: readonly string[], env: Record<string, string> = {}): Promise<Result> => bao(args, { env: { HF_ENDPOINT: hub.endpoint, HF_HUB_CACHE: cache, ...env } });

beforeAll(() => {
  hub = startHub(REPO, [{ path: "demo-Q4_K_M.gguf", content: readFileSync(DEMO) }, { path: "demo-Q8_0.gguf", content: gguf(5000) }]);
  cache = mkdtempSync(join(tmpdir(), "bao-cli-hub-"));
});
afterAll(() => {
  hub[Symbol.dispose]();
  rmSync(cache, { recursive: true });
});

test("a name in place of a path: fetched once, used offline, and inspected", async () => {
  const args = ["-p", "Once upon a time", "-n", "8", "-t", "0", "--raw", "--no-warmup"];
  const plain = await run(["generate", "-m", DEMO, ...args]), first = await run(["generate", "-m", NAME, ...args]);
  expect(first).toMatchObject({ code: 0, stdout: plain.stdout });
  expect(first.stderr).toContain("fetching demo-Q4_K_M.gguf, 10.");
  const again = await run(["generate", "-m", `hf:${REPO}`, ...args], { HF_HUB_OFFLINE: "1" });
  expect(again).toMatchObject({ code: 0, stdout: plain.stdout });
  expect(again.stderr).not.toContain("hub");
  const inspected = await run(["inspect", NAME, "--json", "--no-tensors"], { HF_HUB_OFFLINE: "1" });
  expect(JSON.parse(inspected.stdout)).toMatchObject({ bytes: readFileSync(DEMO).length });
});

test("pull prints the path, or a document", async () => {
  const plain = await run(["pull", NAME]);
  expect(plain.code).toBe(0);
  expect(readFileSync(plain.stdout.trim()).length).toBe(readFileSync(DEMO).length);
  expect(plain.stderr).toContain("nothing new");
  const { stdout } = await run(["pull", `hf:${REPO}:Q8_0`, "--json"]);
  expect(JSON.parse(stdout)).toMatchObject({ name: `hf:${REPO}:Q8_0`, commit: hub.commit, bytes: 5000, fetchedBytes: 5000, files: [{ path: "demo-Q8_0.gguf" }] });
});

test("list shows names that load; rm removes what is named, and says what it frees", async () => {
  const before = await run(["list"]);
  expect(before.stdout).toMatch(new RegExp(`^hf:${REPO}:Q4_K_M +10\\.\\d MB  \\d{4}-\\d\\d-\\d\\d\nhf:${REPO}:Q8_0 +5\\.0 kB .*\n$`));
  expect(JSON.parse((await run(["list", "--json"])).stdout)).toMatchObject({ cache, models: [{ name: NAME, files: 1, current: true }, { bytes: 5000 }], incomplete: [] });
  expect((await run(["rm", NAME, "--dry-run"])).stderr).toMatch(/would free 10\.\d MB/);
  const removed = await run(["rm", `hf:${REPO}:Q8_0`]);
  expect(removed).toMatchObject({ code: 0, stdout: "demo-Q8_0.gguf\n" });
  expect(removed.stderr).toContain("freed 5.0 kB");
  expect((await run(["list"])).stdout.trim().split("\n").length).toBe(1);
  expect(await run(["rm", "hf:acme/demo-GGUG:Q4_K_M"])).toMatchObject({ code: 3, stderr: expect.stringContaining(`Did you mean ${NAME}?`) });
});

test("what broke off is listed, and goes with its repository", async () => {
  const blobs = join(cache, "models--acme--half/blobs");
  mkdirSync(blobs, { recursive: true });
  writeFileSync(join(blobs, `${"1".repeat(64)}.incomplete`), "GGUF and more");
  expect((await run(["list"])).stderr).toContain("acme/half: a fetch that broke off, 13 B");
  expect((await run(["doctor"])).stdout).toContain("1 broke off: acme/half");
  expect((await run(["rm", "hf:acme/half"])).stderr).toContain("freed 13 B");
  expect((await run(["list"])).stderr).not.toContain("broke off");
});

test("errors have the exit code of a model, one line and a hint", async () => {
  expect(await run(["pull", "hf:acme/nothing"])).toMatchObject({ code: 3, stdout: "", stderr: expect.stringMatching(/^bao: asking .*\nbao: hf:acme\/nothing: not found .*\nhint: /) });
  expect(await run(["pull", "somewhere"])).toMatchObject({ code: 2, stderr: expect.stringContaining("Names look like hf:org/repo") });
  expect(await run(["generate", "-m", "hf:acme/other", "-p", "x"], { HF_HUB_OFFLINE: "1" })).toMatchObject({ code: 3, stderr: expect.stringContaining("Unset HF_HUB_OFFLINE") });
  expect(await run(["generate", "-m", "acme/other", "-p", "x"])).toMatchObject({ code: 3, stderr: expect.stringContaining("hf:acme/other") });
});

test("doctor: all well here; without kernels it says what to do, and keys stay secret", async () => {
  const well = await run(["doctor", "--json"], { HF_TOKEN: "hf_secret" });
  expect(well.code).toBe(0);
  const { findings, variables } = JSON.parse(well.stdout) as { findings: { topic: string; state: string }[]; variables: Record<string, string> };
  expect(findings.filter((f) => f.state === "problem")).toEqual([]);
  expect(findings.map((f) => f.topic)).toEqual(expect.arrayContaining(["bao", "bun", "cpu", "cuda", "metal", "memory", "embedded", "cache", "hub"]));
  expect(variables).toMatchObject({ HF_TOKEN: "(set)", HF_HUB_CACHE: cache });
  const text = await run(["doctor"], { HF_TOKEN: "secret" });
  expect(text.stdout).toContain("HF_TOKEN does not begin with hf_");
  expect(text.stdout).not.toContain("=secret");
});
