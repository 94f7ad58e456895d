// Help, usage errors and exit codes: everything that needs no model.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { cliDocs } from "../../scripts/cli-docs.ts";
import { VARIABLES } from "../../src/env.ts";
import { distance, nearest } from "../../src/cli/suggest.ts";
import { bao, root, STORIES } from "./spawn.ts";

setDefaultTimeout(60_000);

describe("help", () => {
  test("goes to stdout, with examples before options, variables and exit codes", async () => {
    const { code, stdout, stderr } = await bao(["--help"]);
    expect(code).toBe(0);
    expect(stderr).toBe("");
    expect(stdout).toContain("\n  bao generate -m");
    expect(stdout.indexOf("Examples:")).toBeLessThan(stdout.indexOf("Options:"));
    for (const name of Object.keys(VARIABLES)) expect(stdout).toContain(`\n  ${name} `);
    for (const exit of [0, 1, 2, 3, 4, 130]) expect(stdout).toMatch(new RegExp(`\\n  ${exit} +\\w`));
  });
  test.each(["generate", "chat", "serve", "tokenize", "perplexity", "inspect", "convert"])("bao %s --help shows examples first", async (command) => {
    const { code, stdout } = await bao([command, "--help"]);
    expect(code).toBe(0);
    expect(stdout).toMatch(new RegExp(`^bao ${command}`));
    expect(stdout.indexOf("Examples:\n  ")).toBeGreaterThan(0);
    expect(stdout.indexOf("Examples:")).toBeLessThan(stdout.indexOf("--help"));
  });
  test("--version prints the package's version", async () => {
    const { version } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { version: string };
    expect(await bao(["--version"])).toEqual({ code: 0, stdout: `${version}\n`, stderr: "" });
  });
  test("a completion script names the program", async () => {
    const { code, stdout } = await bao(["completion"]);
    expect(code).toBe(0);
    expect(stdout).toContain("--get-yargs-completions");
  });
  test("no command: help on stderr, exit code 2", async () => {
    const { code, stdout, stderr } = await bao([]);
    expect([code, stdout]).toEqual([2, ""]);
    expect(stderr).toContain("Examples:");
  });
  test("docs/cli.md is what the help says", () => {
    expect(readFileSync(join(root, "docs/cli.md"), "utf8")).toBe(cliDocs());
  });
});

describe("usage errors have exit code 2 and say what to do", () => {
  test.each([
    [["genrate"], "Unknown command: genrate", "bao generate"],
    [["xyzzy"], "Unknown command: xyzzy", "bao --help"],
    [["generate", "--promt", "x"], "Unknown option: --promt", "--prompt"],
    [["generate", "--temprature=1"], "Unknown option: --temprature", "--temperature"],
    [["generate", "--qqqqqqqq"], "Unknown option: --qqqqqqqq", "bao generate --help"],
    [["generate", "Hello"], "Unknown argument: Hello", "--prompt"],
    [["generate", "-p"], "-p needs a value", "bao generate --help"],
    [["generate", "--seed", "abc"], "--seed: expected a whole number", ""],
    [["generate", "--max-tokens", "1.5"], "--max-tokens: expected a whole number", ""],
    [["generate", "--device", "gpu"], '--device: "gpu" is none of auto, cpu, cuda, metal', ""],
    [["generate", "--raw", "--system", "x"], "--raw and --system cannot be used together", ""],
    [["generate", "-p", "x", "--logit-bias", "seven"], "--logit-bias: expected id=value", "--logit-bias 17=-5"],
    [["generate", "-m", STORIES, "--token-ids", "1,x"], '--token-ids: "x" is no token id', ""],
    [["generate", "-m", STORIES], "There is no prompt", "--prompt"],
    [["generate", "--max-token", "5"], "Unknown option: --max-token", "Did you mean --max-tokens?"],
    [["generate", "--no-json"], "Unknown option: --no-json", ""],
    [["generate", "--dump-logitz=/nowhere/x"], "Unknown option: --dump-logitz", "Did you mean --dump-logits?"],
    [["generate", "a-stray-word"], "Unknown argument: a-stray-word", "--prompt"],
    [["generate", "-m", "", "-p", "x"], "--model: expected a path", "variable"],
    [["generate", "-m", STORIES, "-p", "x", "--dump-logits", "/nowhere/x", "--dump-hidden", "/nowhere/x"], "--dump-logits and --dump-hidden name the same file", "two names"],
    [["generate", "-m", STORIES, "--raw", "-p", "x", "--logit-bias", "5=1e39"], "logitBias: the bias of token 5", ""],
    [["inspect"], "An argument is missing", "bao inspect --help"],
    [["perplexity"], "Missing: --file", "bao perplexity --help"],
  ])("%j", async (args, message, hint) => {
    const { code, stdout, stderr } = await bao(args);
    expect([code, stdout]).toEqual([2, ""]);
    expect(stderr).toContain(`bao: ${message}`);
    expect(stderr).toContain(hint);
    expect(stderr).not.toContain("defect");
  });
});

describe("other exit codes", () => {
  test("3: a file that is not there", async () => {
    const { code, stderr } = await bao(["inspect", "/nowhere/model.gguf"]);
    expect(code).toBe(3);
    expect(stderr).toContain("/nowhere/model.gguf");
    expect(stderr).toContain("hint: ");
  });
  test("3: a file that is no model", async () => {
    const { code, stderr } = await bao(["generate", "-p", "x", "-m", join(root, "package.json")]);
    expect(code).toBe(3);
    expect(stderr).toContain("package.json");
  });
  test("4: a device that is not there", async () => {
    const { code, stdout, stderr } = await bao(["generate", "-p", "x", "-m", STORIES, "--device", "metal"], { env: { BAO_KERNELS: "/nowhere" } });
    expect([code, stdout]).toEqual([4, ""]);
    expect(stderr).toContain("hint: ");
  });
});

test("a dump named like the model is refused, and the model stays whole", async () => {
  const folder = mkdtempSync(join(tmpdir(), "bao-")), model = join(folder, "m.gguf"), link = join(folder, "l.gguf");
  try {
    copyFileSync(STORIES, model);
    symlinkSync(model, link);
    for (const dump of [model, link]) for (const option of ["--dump-logits", "--dump-hidden"]) {
      const { code, stderr } = await bao(["generate", "-m", model, "--raw", "-p", "x", "-n", "0", option, dump]);
      expect([code, stderr]).toEqual([2, expect.stringContaining("the model's own file")]);
    }
    expect(readFileSync(model).equals(readFileSync(STORIES))).toBe(true);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

test.if(existsSync("/dev/full"))("a full disk behind standard output is an error in words, not a defect", async () => {
  for (const command of [["--help"], ["inspect", STORIES], ["generate", "-m", STORIES, "--raw", "-p", "x", "-n", "2"]]) {
    const child = Bun.spawn([process.execPath, join(root, "src/cli/bao.ts"), ...command], { stdin: "ignore", stdout: Bun.file("/dev/full"), stderr: "pipe" });
    const [stderr, code] = await Promise.all([new Response(child.stderr).text(), child.exited]);
    expect([command[0], code, stderr]).toEqual([command[0], 1, expect.stringContaining("no space left on the device")]);
    expect(stderr).not.toContain("defect");
  }
});

test.if(process.arch === "x64")("an instruction set that the processor lacks is a device that is not there", async () => {
  const { code, stderr } = await bao(["generate", "-m", STORIES, "--raw", "-p", "x", "-n", "1", "--isa", "neon"]);
  expect([code, stderr]).toEqual([4, expect.stringContaining("--isa auto")]);
});

test("colours: none in a pipe, forced by FORCE_COLOR, never with NO_COLOR", async () => {
  const args = ["inspect", STORIES];
  const plain = await bao(args), forced = await bao(args, { env: { FORCE_COLOR: "1" } }), none = await bao(args, { env: { FORCE_COLOR: "1", NO_COLOR: "1" } });
  expect(plain.stdout).not.toContain("\x1b[");
  expect(forced.stdout).toContain("\x1b[");
  expect(none.stdout).toBe(plain.stdout);
  const error = ["inspect", "/nowhere"];
  expect((await bao(error)).stderr).not.toContain("\x1b[");
  expect((await bao(error, { env: { FORCE_COLOR: "1" } })).stderr).toContain("\x1b[31m");
});

test("of a repeated option the last one counts, also when it is 1", async () => {
  const { stdout } = await bao(["generate", "-m", STORIES, "--raw", "-p", "x", "--max-tokens", "3", "-n", "2", "-n", "1", "--seed", "3", "--seed", "1", "--json"]);
  expect(JSON.parse(stdout)).toMatchObject({ seed: 1, usage: { completionTokens: 1 } });
});

test("suggestions: the nearest word within a third of its letters", () => {
  expect(distance("promt", "prompt")).toBe(1);
  expect(distance("tmep", "temp")).toBe(1);
  expect(distance("", "abc")).toBe(3);
  expect(nearest("promt", ["model", "prompt"])).toBe("prompt");
  expect(nearest("zebra", ["model", "prompt"])).toBeUndefined();
});
