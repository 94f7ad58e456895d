// `bao convert`: a Hugging Face checkpoint to a GGUF file. Progress and notes on stderr, the report on stdout.
import { existsSync, readFileSync } from "node:fs";
import type { Argv, ArgumentsCamelCase } from "yargs";
import { convertCheckpoint, FILE_TYPES, fileType, parseMeta, type ConvertReport } from "../convert/index.ts";
import { UsageError } from "../errors.ts";
import { ensureKernels } from "./kernels.ts";
import { Interrupt } from "./interrupt.ts";
import { flag, list, number, text } from "./options.ts";
import { noteLine, outJson, outLine } from "./output.ts";
import { progressBar } from "./progress.ts";

interface ConvertArguments {
  dir: string;
  output: string;
  type: string;
  name?: string | undefined;
  meta?: string[] | undefined;
  chatTemplate?: string | undefined;
  threads?: number | undefined;
  force?: boolean | undefined;
  json?: boolean | undefined;
}

function builder(yargs: Argv): Argv {
  return yargs
    .positional("dir", { type: "string", demandOption: true, description: "Folder with config.json, safetensors files and tokenizer.json" })
    .option("output", text("GGUF file to write", { alias: "o", demandOption: true }))
    .option("type", text(`Type of the weights: ${Object.keys(FILE_TYPES).join(", ")}`, { default: "q4_k_m" }))
    .option("name", text("Name of the model (default: the folder's)"))
    .option("meta", list("key=text or key:type=value, a metadata key such as general.license=mit (repeatable)"))
    .option("chat-template", text("File with the Jinja chat template, in place of the checkpoint's"))
    .option("threads", number("threads", "Threads that convert (default: all cores)", { whole: true, min: 1 }))
    .option("force", flag("Replace an existing output file"))
    .option("json", flag("Print the report as JSON"));
}

async function handler(argv: ArgumentsCamelCase<ConvertArguments>): Promise<void> {
  const type = fileType(argv.type);
  if (existsSync(argv.output) && !argv.force) {
    throw new UsageError("output_exists", `${argv.output} exists already`, "Choose another name, or replace it with --force.");
  }
  const chatTemplate = argv.chatTemplate === undefined ? undefined : readTemplate(argv.chatTemplate);
  const metadata = Object.fromEntries((argv.meta ?? []).map(parseMeta));
  if (!["F32", "F16", "BF16"].includes(FILE_TYPES[type].base)) await ensureKernels();
  using interrupt = new Interrupt();
  using bar = await progressBar("converting", "MB");
  const report = await convertCheckpoint({
    source: argv.dir, output: argv.output, type, metadata, signal: interrupt.signal,
    ...(argv.name === undefined ? {} : { name: argv.name }),
    ...(chatTemplate === undefined ? {} : { chatTemplate }),
    ...(argv.threads === undefined ? {} : { threads: argv.threads }),
    onProgress: ({ bytes, totalBytes }) => bar.update(Math.round(bytes / 1e6), Math.round(totalBytes / 1e6)),
  });
  if (argv.json) return outJson(report);
  for (const notice of report.notices) noteLine(`bao: ${notice}`);
  for (const line of describe(report)) outLine(line);
}

function readTemplate(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (cause) {
    throw new UsageError("convert_template", `${path} cannot be read: ${(cause as Error).message}`, "Name a file with a Jinja template.", { cause });
  }
}

/** The report as lines of text: what was written, then each element type with what it lost. */
function describe(report: ConvertReport): string[] {
  const size = (bytes: number): string => (bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`);
  const percent = (ratio: number): string => `${(100 * ratio).toPrecision(3)} %`;
  const lines = [`${report.path}: ${report.type}, ${size(report.bytes)}, ${report.tensors} tensors, ${(report.parameters / 1e6).toFixed(1)} M parameters`];
  for (const { type, tensors, bytes, relativeRms, worst } of report.types) {
    const loss = worst === undefined ? "exact" : `relative RMS error ${percent(relativeRms)}, worst ${percent(worst.relativeRms)} in ${worst.tensor}`;
    lines.push(`  ${type.padEnd(5)} ${String(tensors).padStart(4)} tensors ${size(bytes).padStart(10)}  ${loss}`);
  }
  return lines;
}

/** The yargs command module. */
export const convertCommand = { command: "convert <dir>", describe: "Convert a Hugging Face checkpoint to GGUF", builder, handler };
