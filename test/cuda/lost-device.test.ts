// A device that dies in the middle of an answer is a typed error, again at every later call, and the process lives on.
// Needs a GPU and a library built with -DBAO_TEST_TRAP (scripts/cuda/parity.sh lost): BAO_TRAP_KERNELS names its folder.
import { expect, test } from "bun:test";

const folder = process.env["BAO_TRAP_KERNELS"];

const PROGRAM = `
import { load, BaoError } from "./src/index.ts";
const codes = [];
const code = (e) => { codes.push(e instanceof BaoError ? e.code : String(e)); };
const model = await load("models/demo.gguf", { device: { backend: "cuda" } });
for (let i = 0; i < 3; i++) await model.generate("Once upon a time", { maxTokens: 40, temperature: 0 }).text().then((t) => codes.push("text"), code);
await model.dispose().catch(code);
await load("models/demo.gguf", { device: { backend: "cuda" } }).then(() => codes.push("loaded"), code);
const other = await load("models/demo.gguf", { device: { backend: "cpu" } });
codes.push((await other.generate("Once upon a time", { maxTokens: 4 }).text()).length > 0 ? "cpu" : "nothing");
console.log(JSON.stringify(codes));
`;

test.skipIf(folder === undefined)("a lost device is a typed error and the process lives on", async () => {
  const child = Bun.spawn([process.execPath, "-e", PROGRAM], { env: { ...process.env, BAO_KERNELS: folder!, BAO_TEST_TRAP: "9" }, stdout: "pipe", stderr: "inherit" });
  const printed = await new Response(child.stdout).text();
  expect(await child.exited).toBe(0);
  const codes = JSON.parse(printed) as string[];
  expect(codes.slice(0, 3)).toEqual(["device_lost", "device_lost", "device_lost"]);
  expect(codes.at(-1)).toBe("cpu");
  expect(codes).not.toContain("loaded");
}, 120_000);
