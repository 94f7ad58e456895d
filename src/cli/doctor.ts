// bao doctor: what Bao finds on this machine, what is wrong with it, and what to do. Changes nothing, asks no server.
import { accessSync, constants, existsSync, readFileSync, statfsSync } from "node:fs";
import { availableParallelism, release, totalmem } from "node:os";
import { dirname } from "node:path";
import type { Argv } from "yargs";
import { engines, version } from "../../package.json";
import { embeddedModel } from "../engine/embedded.ts";
import { BaoError } from "../errors.ts";
import { env, VARIABLES } from "../env.ts";
import { Cache } from "../hub/index.ts";
import { type BackendName, findLibrary, kernelFolders, openLibrary } from "../native/library.ts";
import { Device } from "../native/objects.ts";
import { EXIT } from "./failure.ts";
import { flag } from "./options.ts";
import { colours, escaped, outJson, outLine } from "./output.ts";
import { bytes } from "./units.ts";

export function builder(y: Argv): Argv {
  return y.usage(`bao doctor [options]

Shows what Bao finds on this machine: versions, kernel libraries, devices, memory, the cache of models; and what to do about what is amiss.

Examples:
  bao doctor
  bao doctor --json`).options({ json: flag("One JSON document") });
}

/** One thing that was looked at. `absent`: not there, and not missed. */
interface Finding { readonly topic: string; readonly state: "ok" | "absent" | "warning" | "problem"; readonly text: string; readonly advice?: string }

export async function run(args: { json?: boolean }): Promise<void> {
  const findings = [...versions(), ...kernels(), memory(), model(), ...await cache(), ...hub()];
  const problem = findings.some((f) => f.state === "problem");
  if (args.json) outJson({ version, findings, variables: variables() });
  else print(findings);
  if (problem) process.exitCode = EXIT.resource;
}

function print(findings: readonly Finding[]): void {
  const c = colours(1), signs = { ok: c.green("ok"), absent: c.dim("--"), warning: c.yellow("!!"), problem: c.red("XX") }, width = Math.max(...findings.map((f) => f.topic.length));
  for (const f of findings) {
    outLine(`${signs[f.state]}  ${f.topic.padEnd(width)}  ${escaped(f.text)}`);
    if (f.advice !== undefined) outLine(`    ${" ".repeat(width)}  ${c.bold(`-> ${escaped(f.advice)}`)}`);
  }
  const set = Object.entries(variables());
  if (set.length > 0) outLine(`\nEnvironment: ${set.map(([name, value]) => `${name}=${escaped(value)}`).join(" ")}`);
}

function versions(): Finding[] {
  const wanted = /\d+\.\d+\.\d+/.exec(engines.bun)![0];
  return [
    { topic: "bao", state: "ok", text: `${version} on ${process.platform} ${process.arch}, ${release()}` },
    Bun.semver.satisfies(Bun.version, engines.bun) ? { topic: "bun", state: "ok", text: Bun.version } : { topic: "bun", state: "problem", text: `${Bun.version}; Bao needs ${engines.bun}`, advice: `Update Bun to ${wanted} or later: bun upgrade` },
  ];
}

function kernels(): Finding[] {
  return (["cpu", "cuda", "metal"] as const).map((backend): Finding => {
    const path = findLibrary(backend);
    if (path === undefined) return missing(backend);
    try {
      const { k } = openLibrary(backend), count = k.deviceCount();
      if (count === 0) return { topic: backend, state: "absent", text: `${path}; no device: ${k.lastError() || "none was found"}` };
      const devices = Array.from({ length: count }, (_, index) => {
        using device = new Device({ backend, index });
        const { name, isa, threads } = device.info;
        return backend === "cpu" ? `${name}, ${isa}, ${threads} threads` : `${name}, ${bytes(device.memory("free"))} of ${bytes(device.memory("total"))} free`;
      });
      return { topic: backend, state: "ok", text: `${devices.join("; ")} (${path})` };
    } catch (e) {
      if (!(e instanceof BaoError)) throw e;
      return { topic: backend, state: backend === "cpu" ? "problem" : "warning", text: e.message, ...(e.hint === "" ? {} : { advice: e.hint }) };
    }
  });
}
function missing(backend: BackendName): Finding {
  const where = `not in ${kernelFolders().join(", ")}`;
  if (backend === "cpu") return { topic: backend, state: "problem", text: `no kernel library: ${where}`, advice: "Run `make cpu` in the package's folder, or point BAO_KERNELS at a folder that holds it." };
  const useful = backend === "metal" ? process.platform === "darwin" : existsSync("/dev/nvidiactl");
  return useful
    ? { topic: backend, state: "warning", text: `there is a device, and no kernel library: ${where}`, advice: `Run \`make ${backend}\` in the package's folder.` }
    : { topic: backend, state: "absent", text: `no kernel library, and ${backend === "metal" ? "no macOS" : "no NVIDIA driver"}` };
}

function memory(): Finding {
  const free = available(), text = `${bytes(free)} of ${bytes(totalmem())} can be used, ${availableParallelism()} processors`;
  return free < 1e9 ? { topic: "memory", state: "warning", text, advice: "Close other programs, or use small models and a small --ctx." } : { topic: "memory", state: "ok", text };
}
/** Memory that a program can still take: on Linux more than what is unused, since caches give way. */
function available(): number {
  try {
    return Number(/^MemAvailable: +(\d+) kB$/m.exec(readFileSync("/proc/meminfo", "utf8"))![1]) * 1024;
  } catch {
    return totalmem();
  }
}

function model(): Finding {
  try {
    return { topic: "embedded", state: "ok", text: embeddedModel() };
  } catch (e) {
    if (!(e instanceof BaoError)) throw e;
    return { topic: "embedded", state: "absent", text: e.message };
  }
}

async function cache(): Promise<Finding[]> {
  const cache = await Cache.open(), { root } = cache, models = cache.models(), parts = cache.incomplete();
  let there = root;
  while (!existsSync(there) && dirname(there) !== there) there = dirname(there);
  try {
    accessSync(there, constants.W_OK);
  } catch {
    return [{ topic: "cache", state: "warning", text: `${root} cannot be written`, advice: "Set HF_HUB_CACHE to a folder that can." }];
  }
  const { bavail, bsize } = statfsSync(there), free = bavail * bsize;
  const total = new Map(models.flatMap((m) => m.files.map((f) => [f.blob, f.bytes] as const))), size = [...total.values()].reduce((a, b) => a + b, 0);
  const text = `${root}: ${models.length === 0 ? "no models" : `${total.size} model file${total.size === 1 ? "" : "s"}, ${bytes(size)}`}, ${bytes(free)} free`;
  const found: Finding[] = [free < 5e9 ? { topic: "cache", state: "warning", text, advice: "Most models need more: set HF_HUB_CACHE to a folder on another disk, or remove some (`bao rm`)." } : { topic: "cache", state: "ok", text }];
  if (parts.length > 0) found.push({ topic: "fetches", state: "warning", text: `${parts.length} broke off: ${[...new Set(parts.map((p) => p.repo))].join(", ")}`, advice: "`bao pull` goes on with them, `bao rm` removes them." });
  return found;
}

function hub(): Finding[] {
  const text = `${env.HF_ENDPOINT ?? "https://huggingface.co"}${env.HF_HUB_OFFLINE === undefined ? "" : ", not asked (HF_HUB_OFFLINE)"}, ${env.HF_TOKEN === undefined ? "no token" : "with a token"}`;
  if (env.HF_TOKEN !== undefined && !env.HF_TOKEN.startsWith("hf_")) return [{ topic: "hub", state: "warning", text, advice: "HF_TOKEN does not begin with hf_: make a token on the hub's settings page." }];
  return [{ topic: "hub", state: "ok", text }];
}

/** The variables that are set; keys and tokens are not shown. */
function variables(): Record<string, string> {
  const names = Object.keys(VARIABLES) as (keyof typeof VARIABLES)[];
  return Object.fromEntries(names.filter((n) => env[n] !== undefined).map((n) => [n, /TOKEN|KEY/.test(n) ? "(set)" : env[n]!]));
}
