// Programs made by `bun build --compile`: one file that carries the engine and the kernel library, run where nothing else of the package is.
import { expect, setDefaultTimeout, test } from "bun:test";
import { cpSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { DEMO, TemporaryFolder } from "./fixtures.ts";

setDefaultTimeout(180_000);
const root = join(import.meta.dir, "../..");

async function run(command: string[], cwd: string): Promise<{ out: string; code: number | null }> {
  const { BAO_KERNELS: _, ...env } = process.env;
  const p = Bun.spawn(command, { cwd, env, stdout: "pipe", stderr: "pipe", timeout: 120_000 });
  const [out, err] = await Promise.all([new Response(p.stdout).text(), new Response(p.stderr).text()]);
  await p.exited;
  return { out: out + err, code: p.exitCode };
}
const PROGRAM = `
import { load } from "{LIB}";
try {
  await using model = await load(process.argv[2], { device: { threads: 1 }, context: 256, sessions: 2 });
  const options = { temperature: 0, maxTokens: 12 };
  const json = model.generate("Who are you?", { temperature: 1, seed: 1, maxTokens: 60, responseFormat: { type: "json_schema", schema: { enum: ["a", "b"] } } }).text();
  console.log(JSON.stringify([await model.generate("Hello", options).text(), await json, (await model.embed("Hello")).tokens > 1, import.meta.dir.startsWith("/$bunfs")]));
} catch (e) { console.log(e.code, e.hint); process.exit(3); }
`;

test("with `make embed`: answers, schemas and embeddings from a file of its own", async () => {
  using folder = new TemporaryFolder();
  // What the Makefile's rule does, without rebuilding the library.
  const bundled = await run([process.execPath, "build", "src/engine/worker.ts", "--target", "bun", "--minify-syntax", "--outdir", "build", "--entry-naming", "engine-worker.js"], root);
  expect([bundled.code, bundled.code === 0 ? "" : bundled.out]).toEqual([0, ""]);
  writeFileSync(folder.file("app.ts"), PROGRAM.replace("{LIB}", join(root, "src/index.ts")));
  const built = await run([process.execPath, "build", "--compile", "app.ts", "--outfile", "out/app"], folder.path);
  expect([built.code, built.code === 0 ? "" : built.out]).toEqual([0, ""]);
  const compiled = await run([folder.file("out/app"), DEMO], folder.file("out")), plain = await run([process.execPath, folder.file("app.ts"), DEMO], folder.path);
  expect([compiled.code, plain.code]).toEqual([0, 0]);
  const [text, json, embedded, inside] = JSON.parse(compiled.out) as [string, string, boolean, boolean], expected = JSON.parse(plain.out) as unknown[];
  expect([text, json, embedded]).toEqual(expected.slice(0, 3) as [string, string, boolean]);
  expect([text.length > 10, ["a", "b"].includes(JSON.parse(json) as string), inside]).toEqual([true, true, true]);
});

test("without: an error that says what to run, and the program ends", async () => {
  using folder = new TemporaryFolder();
  mkdirSync(folder.file("pkg"));
  cpSync(join(root, "src"), folder.file("pkg/src"), { recursive: true });
  cpSync(join(root, "package.json"), folder.file("pkg/package.json"));
  symlinkSync(join(root, "node_modules"), folder.file("pkg/node_modules"));
  writeFileSync(folder.file("app.ts"), PROGRAM.replace("{LIB}", "./pkg/src/index.ts"));
  const built = await run([process.execPath, "build", "--compile", "app.ts", "--outfile", "out/app"], folder.path);
  expect([built.code, built.code === 0 ? "" : built.out]).toEqual([0, ""]);
  expect(await run([folder.file("out/app"), DEMO], folder.file("out"))).toMatchObject({ code: 3, out: expect.stringMatching(/^engine_missing .*make embed/) });
});
