// The convert command as yargs runs it: the report on stdout, notices on stderr, and what it refuses.
import { expect, test } from "bun:test";
import { existsSync, lstatSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { openGguf } from "../../src/gguf/index.ts";
import { Folder, prefixed, randomWeights, tiny } from "./checkpoints.ts";

const command = join(import.meta.dir, "../../src/cli/convert.ts"), failure = join(import.meta.dir, "../../src/cli/failure.ts");
/** Runs the command alone, without the program around it. */
const program = `import yargs from "yargs"; import { convertCommand } from ${JSON.stringify(command)}; import { report } from ${JSON.stringify(failure)};
try { await yargs(process.argv.slice(1)).command(convertCommand).strict().fail((m, e) => { throw e ?? new Error(m); }).parseAsync(); } catch (e) { process.exitCode = report(e); }`;

function run(...args: string[]): { code: number; out: string; err: string } {
  const child = Bun.spawnSync([process.execPath, "-e", program, "--", "convert", ...args]);
  return { code: child.exitCode, out: child.stdout.toString(), err: child.stderr.toString() };
}

test("converts, reports, replaces only with --force", () => {
  using folder = new Folder();
  const source = folder.checkpoint(tiny("moe"), randomWeights(prefixed(tiny("moe")), "BF16")), output = folder.file("m.gguf");
  const first = run(source, "-o", output, "--type", "BF16", "--name", "Small", "--meta", "general.license=mit", "--meta", "x.y:u32=3", "--threads", "1");
  expect([first.code, first.out.split("\n")[0]]).toEqual([0, expect.stringMatching(/m\.gguf: bf16, .* MB, \d+ tensors, .* M parameters$/)]);
  expect(first.out).toMatch(/BF16 +\d+ tensors .* exact/);
  expect(first.err).toContain("no tokenizer.json");
  const m = openGguf(output).metadata;
  expect([m.string("general.name"), m.string("general.license"), m.u32("x.y")]).toEqual(["Small", "mit", 3]);
  const second = run(source, "-o", output, "--type", "f32");
  expect([second.code, second.out]).toEqual([2, ""]);
  expect(second.err).toContain("--force");
  const third = run(source, "-o", output, "--type", "f32", "--force", "--json");
  expect([third.code, JSON.parse(third.out).type, openGguf(output).metadata.u32("general.file_type")]).toEqual([0, "f32", 0]);
}, 30_000);

test("--force replaces files only: no pipe, no folder, no file of the checkpoint", () => {
  using folder = new Folder();
  const source = folder.checkpoint(tiny("moe"), randomWeights(prefixed(tiny("moe")), "BF16")), weights = join(source, "model.safetensors");
  const pipe = folder.file("pipe"), link = folder.file("link"), before = readFileSync(weights);
  expect(Bun.spawnSync(["mkfifo", pipe]).exitCode).toBe(0);
  symlinkSync(weights, link);
  for (const [output, words] of [[pipe, "a device or a pipe"], [source, "a folder"], [weights, "a file of the checkpoint"], [link, "a file of the checkpoint"]] as const) {
    const { code, err } = run(source, "-o", output, "--type", "bf16", "--force");
    expect([output, code, err]).toEqual([output, 2, expect.stringContaining(words)]);
  }
  expect([lstatSync(pipe).isFIFO(), lstatSync(source).isDirectory(), lstatSync(link).isSymbolicLink(), readFileSync(weights).equals(before)]).toEqual([true, true, true, true]);
  expect([pipe, source, link].filter((p) => existsSync(`${p}.part`))).toEqual([]);
}, 30_000);

test("an output that is a link: the file it leads to is replaced, the link stays", () => {
  using folder = new Folder();
  const source = folder.checkpoint(tiny("moe"), randomWeights(prefixed(tiny("moe")), "BF16")), file = folder.file("real.gguf"), link = folder.file("link.gguf");
  writeFileSync(file, "old");
  symlinkSync(file, link);
  expect(run(source, "-o", link, "--type", "bf16", "--force").code).toBe(0);
  expect([lstatSync(link).isSymbolicLink(), openGguf(file).tensors.size > 0]).toEqual([true, true]);
}, 30_000);

test("mistakes end with the exit code of their kind", () => {
  using folder = new Folder();
  const output = folder.file("m.gguf");
  const source = folder.checkpoint(tiny("moe", { hidden_size: 128 }), randomWeights(prefixed(tiny("moe")), "BF16"));
  for (const [code, words, args] of [
    [2, "no config.json", [folder.path, "-o", output]], [2, "q4km", [source, "-o", output, "--type", "q4km"]], [2, "--meta", [source, "-o", output, "--meta", "x"]],
    [2, "cannot be read", [source, "-o", output, "--chat-template", folder.file("none")]], [3, "has shape", [source, "-o", output, "--type", "f32"]],
  ] as [number, string, string[]][]) {
    const { code: found, err } = run(...args);
    expect([args.slice(1), found, err]).toEqual([args.slice(1), code, expect.stringContaining(words)]);
  }
}, 30_000);
