// tokenize and inspect: commands that look at files and need no kernel library.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { bao, STORIES } from "./spawn.ts";
import { build, V } from "../gguf/build.ts";

setDefaultTimeout(60_000);
// A folder without libraries: commands that need them would fail.
const bare = { BAO_KERNELS: "/nowhere" };

describe("tokenize", () => {
  test("one JSON string a line in, one array of ids a line out", async () => {
    const { code, stdout, stderr } = await bao(["tokenize", "-m", STORIES], { stdin: '"Once upon a time"\n\n"a\\nb"\n""', env: bare });
    expect([code, stderr]).toEqual([0, ""]);
    const lines = stdout.trimEnd().split("\n").map((line) => JSON.parse(line) as number[]);
    expect(lines).toHaveLength(3);
    expect(lines[0]).toEqual([1, 403, 407, 261, 378]);
    expect(lines[2]).toEqual([1]);
  });
  test("--no-bos leaves BOS out; control tokens only with --parse all", async () => {
    const run = async (...args: string[]): Promise<number[]> => JSON.parse((await bao(["tokenize", "-m", STORIES, ...args], { stdin: '"</s>"\n' })).stdout) as number[];
    expect(await run("--no-bos", "--parse", "all")).toEqual([2]);
    expect(await run("--parse", "all")).toEqual([1, 2]);
    expect(await run("--no-bos")).not.toContain(2);
  });
  test("a line that is no JSON string: exit code 2, the line's number, and what came before", async () => {
    const { code, stdout, stderr } = await bao(["tokenize", "-m", STORIES], { stdin: '"a"\n{"a":1}\n' });
    expect(code).toBe(2);
    expect(stdout.split("\n")).toHaveLength(2);
    expect(stderr).toContain("Line 2");
  });
});

describe("inspect", () => {
  test("shows metadata, types, tensors and memory", async () => {
    const { code, stdout, stderr } = await bao(["inspect", STORIES], { env: bare });
    expect([code, stderr]).toEqual([0, ""]);
    expect(stdout).toMatch(/llama\.block_count +u32 5/);
    expect(stdout).toMatch(/tokenizer\.ggml\.tokens +string\[512\] "<unk>", .*\.\.\./);
    expect(stdout).toMatch(/F32 +48 tensors/);
    expect(stdout).toMatch(/blk\.0\.attn_q\.weight +F32 +\[64, 64\] +16\.4 kB +at \d+/);
    expect(stdout).toContain("for a context of 2048 tokens with a f16 cache");
    expect((await bao(["inspect", STORIES, "--no-tensors"])).stdout).not.toContain("attn_q");
  });
  test("--json is one document, and the estimate follows --ctx and --kv-type", async () => {
    const read = async (...args: string[]): Promise<Record<string, never>> => JSON.parse((await bao(["inspect", STORIES, "--json", ...args])).stdout) as Record<string, never>;
    const document = await read() as Record<string, any>;
    expect(document["tensors"]).toHaveLength(48);
    expect(document["metadata"]["llama.context_length"]).toEqual({ type: "u32", value: 2048 });
    expect(document["metadata"]["tokenizer.ggml.tokens"].length).toBe(512);
    expect(document["parameters"]).toBe(292800);
    const kv = async (...args: string[]): Promise<number> => ((await read(...args)) as Record<string, any>)["memory"].kv;
    expect(await kv("--kv-type", "f32")).toBe(2 * (await kv("--kv-type", "f16")));
    expect(await kv("--ctx", "128")).toBeLessThan(await kv("--ctx", "1024"));
  });
  test("a file that cannot be run is shown all the same, with control characters escaped", async () => {
    const folder = mkdtempSync(join(tmpdir(), "bao-inspect-"));
    try {
      const path = join(folder, "odd.gguf");
      writeFileSync(path, build({ keys: [["general.architecture", V.string("strange\u001b[31m\u202e")], ["a.key", V.u32(7)]] }));
      const { code, stdout } = await bao(["inspect", path]);
      expect(code).toBe(0);
      expect(stdout).toContain("strange\\u001b[31m\\u202e");
      expect(stdout).not.toMatch(/[\u001b\u202e]/);
      expect(stdout).toContain("no estimate: ");
      const asJson = await bao(["inspect", path, "--json"]);
      expect(asJson.stdout).not.toMatch(/[\u001b\u202e]/);
      expect(JSON.parse(asJson.stdout).problem.code).toBe("model_architecture");
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
