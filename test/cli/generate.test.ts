// bao generate and bao perplexity: what goes where, JSON shapes, ids, dumps, diagnostics, Ctrl-C and broken pipes.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, cpSync, mkdirSync, mkdtempSync, realpathSync, openSync, readFileSync, closeSync, rmSync, statSync, symlinkSync, writeFileSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { openGguf } from "../../src/gguf/index.ts";
import { findLibrary } from "../../src/native/library.ts";
import { bao, DEMO, root, STORIES } from "./spawn.ts";

setDefaultTimeout(120_000);
let folder = "";
beforeAll(() => { folder = mkdtempSync(join(tmpdir(), "bao-cli-")); });
afterAll(() => { rmSync(folder, { recursive: true }); });

/** Greedy and in exact precision: what others publish for this model. */
const STORY = ["generate", "-m", STORIES, "--raw", "-t", "0", "--precision", "exact"];
const PUBLISHED_IDS = [403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421, 395, 317, 426, 338, 401, 396, 267, 337, 410, 408, 419, 292];

describe("generate", () => {
  test("text on stdout and nothing else; --stats on stderr only", async () => {
    const plain = await bao([...STORY, "-p", "Once upon a time", "-n", "12"]);
    expect(plain.code).toBe(0);
    expect(plain.stderr).toBe("");
    expect(plain.stdout).toStartWith(", there was a little girl");
    expect(plain.stdout).toEndWith("\n");
    const stats = await bao([...STORY, "-p", "Once upon a time", "-n", "12", "--stats"]);
    expect(stats.stdout).toBe(plain.stdout);
    for (const word of ["device     cpu", "precision  exact, KV f32", "load ", "memory ", "context    2048 tokens", "prefill    5 tokens", "decode     11 tokens", "GB/s", "auto, "]) expect(stats.stderr).toContain(word);
  });
  test("--json: one document with text, ids, usage and timings", async () => {
    const { stdout, stderr } = await bao([...STORY, "-p", "", "-n", "24", "--json", "--seed", "7"]);
    expect(stderr).toBe("");
    expect(stdout.trimEnd()).not.toContain("\n");
    const document = JSON.parse(stdout);
    expect(document).toMatchObject({ architecture: "llama", device: "cpu", precision: "exact", ids: PUBLISHED_IDS, finishReason: "length", seed: 7, usage: { promptTokens: 1, completionTokens: 24, cachedTokens: 0 } });
    expect(document.text).toContain("a little girl named Lily");
    expect(document.timings.decodeTokens).toBe(23);
    expect(document.timings.decodeTokensPerSecond).toBeGreaterThan(0);
  });
  test("--logprobs: alternatives in order, the greedy token first; lines on stderr without --json", async () => {
    const args = [...STORY, "-p", "Once upon a time", "-n", "3", "--logprobs", "2"];
    const { logprobs } = JSON.parse((await bao([...args, "--json"])).stdout) as { logprobs: { id: number; logprob: number; top: { id: number; logprob: number; text: string }[] }[] };
    expect(logprobs).toHaveLength(3);
    for (const t of logprobs) {
      expect(t.top).toHaveLength(2);
      expect(t.top[0]!.id).toBe(t.id);
      expect(t.logprob).toBe(t.top[0]!.logprob);
      expect(t.top[1]!.logprob).toBeLessThan(t.logprob);
    }
    const lines = await bao(args);
    expect(lines.stderr.trimEnd().split("\n")).toHaveLength(3);
    expect(lines.stdout).not.toContain("-0.");
  });
  test("the prompt may come from standard input, piped or as -", async () => {
    const given = await bao([...STORY, "-p", "Once upon a time", "-n", "8"]);
    expect(await bao([...STORY, "-n", "8"], { stdin: "Once upon a time\n" })).toEqual(given);
    expect(await bao([...STORY, "-n", "8", "-p", "-"], { stdin: "Once upon a time" })).toEqual(given);
    // A prompt that is given is the prompt, whatever is piped.
    expect(await bao([...STORY, "-n", "8", "-p", "Once upon a time"], { stdin: "Another" })).toEqual(given);
  });
  test("a prompt may begin with a dash", async () => {
    const { code } = await bao([...STORY, "-n", "2", "-p", "- Once"]);
    expect(code).toBe(0);
  });
  test("--token-ids takes ids as they are and prints ids", async () => {
    const { code, stdout } = await bao(["generate", "-m", STORIES, "--token-ids", "1,403 407", "-n", "4", "-t", "0", "--precision", "exact"]);
    expect(code).toBe(0);
    expect(stdout).toBe(`${PUBLISHED_IDS.slice(2, 6).join(" ")}\n`);
  });
  test("--stop ends the text before the stop string; the document names it", async () => {
    const { stdout } = await bao([...STORY, "-p", "Once upon a time", "--stop", "girl", "--stop", "zebra", "-n", "50", "--json"]);
    expect(JSON.parse(stdout)).toMatchObject({ text: ", there was a little ", stop: "girl", finishReason: "stop" });
  });
  test("--logit-bias forbids a token", async () => {
    const { stdout } = await bao([...STORY, "-p", "", "-n", "1", "--json", "--logit-bias", "403=-inf"]);
    expect(JSON.parse(stdout).ids).toEqual([385]); // the published second choice
  });
  test("same seed, same text; another seed, another text", async () => {
    const run = async (seed: string): Promise<string> => (await bao(["generate", "-m", STORIES, "--raw", "-p", "One day", "-n", "30", "-t", "1", "--seed", seed])).stdout;
    const first = await run("1");
    expect(await run("1")).toBe(first);
    expect(await run("2")).not.toBe(first);
  });
  test("plain kernels, unfused ops and other chunks give the same greedy text", async () => {
    const args = [...STORY, "-p", "Once upon a time, there was a", "-n", "16"];
    const { stdout } = await bao(args);
    for (const variant of [["--reference"], ["--unfused"], ["--chunk", "3"], ["--threads", "1"], ["--isa", "base"], ["--no-warmup"]]) expect((await bao([...args, ...variant])).stdout).toBe(stdout);
  });
  test("a model that is no chat model says so: exit code 2", async () => {
    const { code, stdout, stderr } = await bao(["generate", "-m", STORIES, "-p", "Hello"]);
    expect([code, stdout]).toEqual([2, ""]);
    expect(stderr).toContain("chat template");
  });
  test("a prompt that does not fit: exit code 2 before any text, and a size that does", async () => {
    const { code, stdout, stderr } = await bao([...STORY, "-p", "Once upon a time ".repeat(20), "--ctx", "16"]);
    expect([code, stdout]).toEqual([2, ""]);
    expect(stderr).toContain("--ctx ");
  });
  test("the embedded model answers when nothing is given, and stderr says so", async () => {
    const { code, stdout, stderr } = await bao(["generate", "-n", "20", "-t", "0"]);
    expect(code).toBe(0);
    expect(stdout.length).toBeGreaterThan(20);
    expect(stderr).toContain("embedded demo model");
    expect(stderr).toContain("Tell me a story");
  });
});

describe("diagnostics", () => {
  test("--dump-logits and --dump-hidden: float32 rows, the same for every chunk size", async () => {
    const dump = async (chunk: string): Promise<[Float32Array, Float32Array]> => {
      const logits = join(folder, `logits${chunk}`), hidden = join(folder, `hidden${chunk}`);
      const { code, stdout, stderr } = await bao(["generate", "-m", STORIES, "--token-ids", "1,403,407,261,378", "-n", "0", "--precision", "exact", "--chunk", chunk, "--dump-logits", logits, "--dump-hidden", hidden]);
      expect([code, stdout]).toEqual([0, ""]);
      expect(stderr).toContain("float32 [5, 512]");
      expect(stderr).toContain("float32 [6, 5, 64]");
      return [logits, hidden].map((path) => new Float32Array(readFileSync(path).buffer)) as [Float32Array, Float32Array];
    };
    const [logits, hidden] = await dump("256"), [logits2, hidden2] = await dump("2");
    expect(logits).toHaveLength(5 * 512);
    expect(hidden).toHaveLength(6 * 5 * 64);
    expect(logits2).toEqual(logits);
    expect(hidden2).toEqual(hidden);
    // Published: 403 follows BOS with a logit of 17.0235, 407 follows 403 with 18.46.
    expect(logits[403]).toBeCloseTo(17.023515, 3);
    expect(logits[512 + 407]).toBeCloseTo(18.459985, 3);
  });
  test("a dump that cannot be written: exit code 3", async () => {
    const { code, stderr } = await bao([...STORY, "-p", "x", "--dump-logits", join(folder, "no/such/folder")]);
    expect(code).toBe(3);
    expect(stderr).toContain("no such file");
  });
  test("--check-finite names the layer and the op of a broken weight, and is content with a sound model", async () => {
    const path = join(folder, "nan.gguf"), tensor = openGguf(DEMO).tensors.get("blk.3.ffn_norm.weight")!;
    copyFileSync(DEMO, path);
    const fd = openSync(path, "r+");
    writeSync(fd, Buffer.from(Float32Array.of(NaN).buffer), 0, 4, tensor.offsetBytes + 4 * 5);
    closeSync(fd);
    const broken = await bao(["generate", "-m", path, "-p", "Hi", "-n", "2", "--check-finite"]);
    expect(broken.code).toBe(1);
    expect(broken.stderr).toMatch(/layer 3, op \w+: row 0, column 5 is NaN/);
    const unchecked = await bao(["generate", "-m", path, "-p", "Hi", "-n", "2", "--no-warmup"]);
    expect(unchecked.code).toBe(1);
    expect(unchecked.stderr).toContain("--check-finite");
    const sound = await bao(["generate", "-m", DEMO, "-p", "Hi", "-n", "2", "--check-finite"]);
    expect(sound.code).toBe(0);
    expect(sound.stderr).toContain("all values are finite");
  });
  test("BAO_TRACE=1 counts calls and ops on stderr", async () => {
    const { code, stdout, stderr } = await bao([...STORY, "-p", "Once upon a time", "-n", "12"], { env: { BAO_TRACE: "1" } });
    expect(code).toBe(0);
    expect(stdout).toStartWith(", there was");
    expect(stderr).toMatch(/submit +\d+ calls/);
    expect(stderr).toMatch(/matmul_glu +5 a step/);
    expect(stderr).toMatch(/Decode step .*FFI/);
  });
});

describe("perplexity", () => {
  // The first sentences of a story, with the likelihood that the model's own code gives to the whole text up to here.
  const text = "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.";
  test("a text as numbers, as JSON, and line by line agree; windows do not lose tokens", async () => {
    const file = join(folder, "story.txt"), lines = join(folder, "story.jsonl");
    writeFileSync(file, text);
    writeFileSync(lines, `${JSON.stringify(text)}\n\n${JSON.stringify({ text })}\n`);
    const common = ["perplexity", "-m", STORIES, "--precision", "exact"];
    const whole = JSON.parse((await bao([...common, "-f", file, "--json"])).stdout);
    expect(whole.perplexity).toBeCloseTo(Math.exp(whole.nll / whole.tokens), 9);
    // The model's own greedy text is no surprise to it.
    expect(whole.perplexity).toBeLessThan(2.5);
    const printed = await bao([...common, "-f", file]);
    expect(printed.stdout).toContain(`tokens      ${whole.tokens}\n`);
    expect(printed.stdout).toContain(`perplexity  ${whole.perplexity.toFixed(4)}`);
    expect(printed.stderr).toContain("tok/s");
    const each = (await bao([...common, "-f", lines, "--jsonl"])).stdout.trimEnd().split("\n").map((l) => JSON.parse(l) as { line: number; nll: number });
    expect(each.map((e) => e.line)).toEqual([1, 3]);
    for (const e of each) expect(e.nll).toBe(whole.nll);
    const short = JSON.parse((await bao([...common, "-f", file, "--json", "--ctx", "16", "--stride", "4"])).stdout);
    expect(short.tokens).toBe(whole.tokens);
    expect(short.nll).not.toBe(whole.nll);
  });
  test("a file that is not there: exit code 3; an empty one: 2", async () => {
    expect((await bao(["perplexity", "-m", STORIES, "-f", join(folder, "nothing")])).code).toBe(3);
    expect((await bao(["perplexity", "-m", STORIES, "-f", "-"], { stdin: "" })).code).toBe(2);
  });
});

describe("ends", () => {
  test("Ctrl-C: exit code 130, and the text so far stays", async () => {
    const child = Bun.spawn([process.execPath, join(root, "src/cli/bao.ts"), "generate", "-m", DEMO, "-p", "Tell me a story.", "--ignore-stop", "--threads", "1", "--reference"], { stdin: "ignore", stdout: "pipe", stderr: "pipe", env: { PATH: process.env["PATH"] ?? "" } });
    let text = "", sent = false;
    const decoder = new TextDecoder();
    for await (const bytes of child.stdout) {
      text += decoder.decode(bytes, { stream: true });
      if (!sent) child.kill("SIGINT");
      sent = true;
    }
    expect(await child.exited).toBe(130);
    expect(text.trim().length).toBeGreaterThan(0);
    expect(text.endsWith("\n")).toBe(true);
    expect(await new Response(child.stderr).text()).toBe("");
  });
  test("a reader that goes away ends the program quietly", async () => {
    const child = Bun.spawn(["sh", "-c", `( "$BUN" "$BAO" generate -m "$MODEL" -p "Tell me a story." --ignore-stop --threads 1; echo "code $?" >&2 ) | head -c 5`], {
      stdin: "ignore", stdout: "pipe", stderr: "pipe", env: { PATH: process.env["PATH"] ?? "", BUN: process.execPath, BAO: join(root, "src/cli/bao.ts"), MODEL: DEMO },
    });
    expect((await new Response(child.stdout).text()).length).toBe(5);
    expect(await new Response(child.stderr).text()).toBe("code 0\n");
  });
});

describe("a package without kernel library", () => {
  let copy = "";
  beforeAll(() => {
    copy = join(folder, "package");
    for (const part of ["src", "package.json", "Makefile"]) cpSync(join(root, part), join(copy, part), { recursive: true });
    symlinkSync(join(root, "node_modules"), join(copy, "node_modules"));
  });
  test("no compiler: one clear line, exit code 4", async () => {
    const { code, stdout, stderr } = await bao(["generate", "-m", STORIES, "--raw", "-p", "x"], { script: join(copy, "src/cli/bao.ts"), env: { PATH: "/nowhere" } });
    expect([code, stdout]).toEqual([4, ""]);
    expect(stderr.trimEnd().split("\n")).toHaveLength(2);
    expect(stderr).toContain("make");
    expect(() => statSync(join(copy, "build"))).toThrow();
  });
  test("it is built with `make cpu` in the package's folder, whose output goes to stderr", async () => {
    // Stands in for make: compiling takes minutes, and is what `make test` does before this test runs.
    const tools = join(folder, "tools"), built = findLibrary("cpu")!;
    mkdirSync(tools);
    writeFileSync(join(tools, "make"), `#!/bin/sh\necho "making $1 in $(pwd)"\nmkdir build && cp "${built}" build/\n`, { mode: 0o755 });
    const { code, stdout, stderr } = await bao([...STORY, "-p", "Once upon a time", "-n", "4"], { script: join(copy, "src/cli/bao.ts"), env: { PATH: `${tools}:${process.env["PATH"]}` } });
    expect(stderr).toContain(`making cpu in ${realpathSync(copy)}\n`);
    expect([code, stdout]).toEqual([0, ", there was a\n"]);
  });
});
