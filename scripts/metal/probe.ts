// For the first person with a Mac: what the Metal library does there, as a report to send back. Op parity with the CPU, what the emulated device
// takes for granted, whole models, speed beside the chip's bandwidth. `make metal-probe` builds what it needs; elsewhere it runs emulated, in brief.
// Usage: bun scripts/metal/probe.ts [--brief] [--out FILE]
import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { cpus, release, totalmem } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";

const { values: options } = parseArgs({ options: { brief: { type: "boolean" }, out: { type: "string" } } });
const root = join(import.meta.dir, "../.."), mac = process.platform === "darwin", brief = options.brief ?? !mac, out = options.out ?? join(root, "build/metal-probe.txt");

/** Memory bandwidth in GB/s as Apple states it. */
const BANDWIDTH: Readonly<Record<string, number>> = {
  "M1": 68, "M1 Pro": 200, "M1 Max": 400, "M1 Ultra": 800, "M2": 100, "M2 Pro": 200, "M2 Max": 400, "M2 Ultra": 800, "M3": 100, "M3 Pro": 150, "M3 Max": 400, "M3 Ultra": 819,
  "M4": 120, "M4 Pro": 273, "M4 Max": 546, "M5": 153,
};
const lines: string[] = [];
let troubles = 0;

function say(text: string): void { lines.push(text); console.log(text); }
function title(text: string): void { say(`\n== ${text}`); }
function trouble(text: string): void { troubles++; say(`TROUBLE  ${text}`); }

interface Ended { readonly code: number; readonly text: string; readonly seconds: number }
function run(command: readonly string[], seconds: number): Ended {
  const began = performance.now();
  const p = spawnSync(command[0]!, command.slice(1), {
    cwd: root, encoding: "utf8", timeout: seconds * 1000, maxBuffer: 1 << 28,
    env: { ...process.env, BAO_TEST_DEVICE: "metal", NO_COLOR: "1", METAL_EMULATOR_BUN: process.execPath, ...(mac ? {} : { BAO_METAL_EMULATOR: "1" }) },
  });
  const text = `${p.stdout ?? ""}${p.stderr ?? ""}`;
  return { code: p.status ?? 124, text: p.status === null ? `${text}\nended by ${p.signal ?? "a fault"} after ${((performance.now() - began) / 1000).toFixed(0)} s` : text, seconds: (performance.now() - began) / 1000 };
}
const words = (...command: string[]): string => { const p = spawnSync(command[0]!, command.slice(1), { cwd: root, encoding: "utf8" }); return p.status === 0 ? p.stdout.trim().replaceAll("\n", ", ") : "?"; };

function machine(): number | undefined {
  title("machine");
  if (!mac) say("EMULATED: this is no Mac. The device is the one of the tests, the report shows only that the probe works, and its speeds mean nothing.");
  const chip = mac ? words("sysctl", "-n", "machdep.cpu.brand_string") : cpus()[0]?.model ?? "?", stated = BANDWIDTH[chip.replace(/^Apple /, "")];
  say(`chip     ${chip}, ${cpus().length} cores, ${(totalmem() / 2 ** 30).toFixed(0)} GiB${stated ? `, ${stated} GB/s as stated` : ""}`);
  say(`system   ${process.platform} ${release()} ${mac ? words("sw_vers") : ""}`);
  if (mac) say(`model    ${words("sysctl", "-n", "hw.model")}; page ${words("sysctl", "-n", "vm.pagesize")}; compiler ${words("clang++", "--version").split(",")[0]}`);
  say(`bao      ${(JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as { version: string }).version}, commit ${words("git", "rev-parse", "--short", "HEAD")}, Bun ${Bun.version}`);
  return stated;
}

function assumptions(stated: number | undefined): void {
  title("what the emulated device takes for granted");
  const { code, text } = run([join(root, mac ? "build/metal-assumptions" : "build/metal-emulator/assumptions"), join(root, "test/metal/probe/assumptions.metal"), brief ? "16" : "1024"], 300);
  say(text.trimEnd());
  if (code !== 0) trouble(`${code} differences: the rules of docs/metal.md that rest on them have to be looked at again`);
  const reads = Number(/^reads\s+([\d.]+)/m.exec(text)?.[1]);
  if (stated && reads) say(`share    ${((reads / stated) * 100).toFixed(0)} % of the stated bandwidth`);
}

function tests(): void {
  title("the same results as the CPU");
  const ops = ["plain", "operands", "contract", "step", "fused", "determinism", "matmul", "moe", "few", "many", "attention", "sampling", "garbage"].map((name) => [`test/kernels/${name}.test.ts`]);
  const whole = [...ops, ["test/model/reference.test.ts"], ["test/model/stories.test.ts"], ["test/engine/scheduler.test.ts"], ["./test/metal/proof/models.proof.ts"]];
  const few = [["test/kernels/operands.test.ts"], ["test/kernels/contract.test.ts"], ["test/kernels/matmul.test.ts", "-t", " Q4_K "], ["test/kernels/attention.test.ts", "-t", "f16: head sizes"], ["./test/metal/proof/models.proof.ts", "-t", "demo model, exact"]];
  for (const [file, ...more] of brief ? few : whole) {
    const { code, text, seconds } = run([process.execPath, "test", file!, ...more], 1800), count = (word: string): string => new RegExp(`^ *(\\d+) ${word}$`, "m").exec(text)?.[1] ?? "0";
    say(`${file!.padEnd(36)} ${count("pass")} pass, ${count("fail")} fail, ${seconds.toFixed(1)} s`);
    if (code === 0) continue;
    trouble(`${file}: exit ${code}`);
    for (const [name] of text.matchAll(/^\(fail\).*$/gm)) say(`         ${name}`);
    // The first failure's words, or how it ended.
    say((/^error: [\s\S]{0,1500}/m.exec(text)?.[0] ?? text.slice(-1500)).replace(/^/gm, "         "));
  }
}

function speed(): void {
  title("speed");
  const model = brief ? ["-p", "8", "-n", "4", "-r", "1"] : ["-p", "512", "-n", "128"];
  for (const device of mac ? ["metal", "cpu"] : ["metal"]) {
    const { code, text } = run([process.execPath, "src/cli/bao.ts", "bench", "--device", device, ...model], 600);
    say(text.trimEnd());
    if (code !== 0) trouble(`bao bench --device ${device}: exit ${code}`);
  }
  if (brief) return;
  const { code, text } = run([process.execPath, "scripts/bench/run.ts", "--device", "metal", "--json", "build/metal-bench.json"], 1500);
  say(text.trimEnd());
  if (code !== 0) trouble(`bun run bench: exit ${code}`);
}

const stated = machine();
assumptions(stated);
tests();
speed();
title("result");
say(troubles ? `${troubles} troubles` : "no trouble");
writeFileSync(out, `Bao's Metal probe${mac ? "" : " (EMULATED)"}, ${new Date().toISOString()}\n${lines.join("\n")}\n`);
console.log(`\nThe report is ${out}${mac ? ": please send it back, as an issue of Bao's repository. It names the chip and the system, and nothing of yours." : ""}`);
process.exit(troubles ? 1 : 0);
