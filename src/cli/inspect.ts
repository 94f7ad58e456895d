// bao inspect: what a GGUF file holds and what it would take to run. Reads headers only; needs no kernel library.
import type { Argv } from "yargs";
import { BaoError } from "../errors.ts";
import { openModel, type OpenedModel } from "../engine/model.ts";
import { describeValue, openGguf, printable, type GgufArray, type GgufFile, type GgufValue } from "../gguf/index.ts";
import { modelPath } from "./load.ts";
import { choice, defined, flag, number } from "./options.ts";
import { colours, escaped, outJson, outLine } from "./output.ts";
import { bytes } from "./units.ts";

/** Entries of an array that are shown; the rest is counted. */
const SHOWN = 6;

export function builder(y: Argv): Argv {
  return y.usage(`bao inspect <file> [options]

Shows metadata, tensors, sizes, and an estimate of the memory that the model takes.

Examples:
  bao inspect gemma.gguf
  bao inspect gemma.gguf --ctx 32768 --kv-type q8_0     memory with a long context
  bao inspect gemma.gguf --json | jq '.types'`)
    .positional("file", { type: "string", description: "GGUF file, any file of a split model, or a name on the hub", demandOption: true })
    .options({
      ctx: number("ctx", "Tokens of context for the estimate (default: the model's, at most 4096)", { whole: true, min: 1 }),
      "kv-type": choice("Type of the KV cache for the estimate", ["f32", "f16", "q8_0"], { default: "f16" }),
      "no-tensors": flag("Leave the list of tensors out"),
      json: flag("One JSON document"),
    });
}

interface InspectArguments { file: string; ctx?: number; kvType: "f32" | "f16" | "q8_0"; noTensors?: boolean; json?: boolean }

export async function run(args: InspectArguments): Promise<void> {
  const { path } = await modelPath(args.file), file = openGguf(path);
  // A file that we cannot run is still a file that can be looked at.
  let opened: OpenedModel | undefined, problem: BaoError | undefined;
  try {
    opened = openModel(path, defined({ context: args.ctx, kvType: args.kvType }));
  } catch (e) {
    if (!(e instanceof BaoError)) throw e;
    problem = e;
  }
  if (args.json) outJson(document(file, opened, problem, args.noTensors ?? false));
  else print(file, opened, problem, args.noTensors ?? false);
}

interface TypeSummary { type: string; tensors: number; elements: number; bytes: number }

function typeSummary(file: GgufFile): TypeSummary[] {
  const types = new Map<string, TypeSummary>();
  for (const t of file.tensors.values()) {
    const s = types.get(t.type.name) ?? { type: t.type.name, tensors: 0, elements: 0, bytes: 0 };
    s.tensors++;
    s.elements += t.shape.reduce((a, b) => a * b, 1);
    s.bytes += t.bytes;
    types.set(t.type.name, s);
  }
  return [...types.values()].sort((a, b) => b.bytes - a.bytes);
}
const totalSize = (file: GgufFile): number => file.shards.reduce((n, s) => n + s.sizeBytes, 0);
const parameters = (file: GgufFile): number => typeSummary(file).reduce((n, s) => n + s.elements, 0);

function print(file: GgufFile, opened: OpenedModel | undefined, problem: BaoError | undefined, noTensors: boolean): void {
  const c = colours(1);
  outLine(`${c.bold(printable(file.path, 1000))}  ${bytes(totalSize(file))}, GGUF version ${file.version}, alignment ${file.alignment}${file.shards.length > 1 ? `, ${file.shards.length} files` : ""}`);
  outLine(`\n${c.bold("Metadata")} (${file.metadata.size})`);
  const keyWidth = Math.min(48, Math.max(0, ...[...file.metadata.keys()].map((k) => k.length)));
  for (const [key, value] of file.metadata) outLine(`  ${plainKey(key).padEnd(keyWidth)}  ${describe(value)}`);
  outLine(`\n${c.bold("Types")}`);
  for (const s of typeSummary(file)) outLine(`  ${s.type.padEnd(8)} ${String(s.tensors).padStart(5)} tensors  ${bytes(s.bytes).padStart(9)}  ${((8 * s.bytes) / (s.elements || 1)).toFixed(2).padStart(6)} bits a value`);
  outLine(`  ${"all".padEnd(8)} ${String(file.tensors.size).padStart(5)} tensors  ${bytes(typeSummary(file).reduce((n, s) => n + s.bytes, 0)).padStart(9)}  ${count(parameters(file))} parameters`);
  if (!noTensors) {
    outLine(`\n${c.bold("Tensors")} (${file.tensors.size})`);
    const nameWidth = Math.min(48, Math.max(0, ...[...file.tensors.keys()].map((n) => n.length)));
    for (const t of file.tensors.values()) {
      outLine(`  ${plainKey(t.name).padEnd(nameWidth)}  ${t.type.name.padEnd(7)} ${`[${t.shape.join(", ")}]`.padEnd(20)} ${bytes(t.bytes).padStart(9)}  at ${t.offsetBytes}${file.shards.length > 1 ? ` of file ${t.shard + 1}` : ""}`);
    }
  }
  outLine(`\n${c.bold("Memory")}`);
  if (!opened) {
    outLine(`  no estimate: ${escaped(problem?.message ?? "")}`);
    return;
  }
  const { estimate: e, plan } = opened;
  outLine(`  for a context of ${plan.context} tokens with a ${plan.kvType} cache:`);
  outLine(`  weights      ${bytes(e.weights).padStart(9)}  mapped from the file, shared and reclaimable`);
  outLine(`  KV cache     ${bytes(e.kv).padStart(9)}`);
  outLine(`  activations  ${bytes(e.activations).padStart(9)}`);
  outLine(`  logits       ${bytes(e.logits).padStart(9)}`);
  outLine(`  allocated    ${bytes(e.allocated).padStart(9)}  without the weights`);
  outLine(`  a decoded token reads ${bytes(e.bytesPerToken)} of weights`);
}

/** Keys are plain words in any honest file; others are shown quoted and escaped. */
function plainKey(key: string): string { return /^[\w.\-/]+$/.test(key) ? key : printable(key); }

function count(n: number): string { return n >= 1e9 ? `${(n / 1e9).toFixed(2)} B` : n >= 1e6 ? `${(n / 1e6).toFixed(2)} M` : String(n); }

function describe(value: GgufValue): string {
  if (value.type !== "array") return describeValue(value);
  const { of, values } = value.value, shown = first(value.value).map((v) => (typeof v === "string" ? printable(v, 24) : String(v)));
  return `${of}[${values.length}] ${shown.join(", ")}${values.length > SHOWN ? ", ..." : ""}`;
}

function first(array: GgufArray): (string | number | boolean)[] {
  const items = Array.prototype.slice.call(array.values, 0, SHOWN) as (string | number | bigint)[];
  return items.map((v) => (array.of === "bool" ? v !== 0 : plain(v)));
}
/** 64-bit integers as numbers where that is exact, as text otherwise. */
function plain(v: string | number | bigint): string | number {
  if (typeof v !== "bigint") return v;
  const n = Number(v);
  return Number.isSafeInteger(n) ? n : String(v);
}

function document(file: GgufFile, opened: OpenedModel | undefined, problem: BaoError | undefined, noTensors: boolean): object {
  const metadata = Object.fromEntries([...file.metadata].map(([key, value]) => [key, value.type === "array"
    ? { type: `${value.value.of}[]`, length: value.value.values.length, first: first(value.value) }
    : { type: value.type, value: typeof value.value === "bigint" ? plain(value.value) : value.value }]));
  return {
    path: file.path, version: file.version, alignment: file.alignment, bytes: totalSize(file), files: file.shards, parameters: parameters(file), metadata, types: typeSummary(file),
    ...(noTensors ? {} : { tensors: [...file.tensors.values()].map((t) => ({ name: t.name, type: t.type.name, shape: t.shape, bytes: t.bytes, file: t.shard, offset: t.offsetBytes })) }),
    ...(opened ? { plan: opened.plan, memory: opened.estimate } : { problem: { code: problem?.code, message: problem?.message } }),
  };
}
