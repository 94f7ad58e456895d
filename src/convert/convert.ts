// Converts a Hugging Face checkpoint folder to one GGUF file, streaming tensor by tensor in pieces of a few megabytes, on all cores where there is
// enough to quantise. The file appears under its name only when it is complete. Prints nothing: progress goes to a callback, the outcome is returned.

import { existsSync, readdirSync, readFileSync, realpathSync, statSync } from "node:fs";
import { availableParallelism } from "node:os";
import { basename, join, resolve } from "node:path";
import { COMPILED } from "../engine/compiled.ts";
import { ModelFileError, UsageError } from "../errors.ts";
import { createGguf, ggmlType, type GgufValue, type GgufWriter } from "../gguf/index.ts";
import { openSafetensors } from "../safetensors/index.ts";
import { readConfig } from "./checkpoint.ts";
import { callerValue, generalMetadata, modelMetadata, type MetadataInput } from "./metadata.ts";
import { planTensors } from "./names.ts";
import { ErrorTally, type TypeReport } from "./report.ts";
import { elementsOf, longPieces, tensorStream, type StreamPiece, type StreamTensor } from "./stream.ts";
import { noTokenizer, tokenizerMetadata } from "./tokenizer.ts";
import { chooseTypes, type FileType } from "./types.ts";
import { ConvertWorkers } from "./workers.ts";

/** How often other work of this thread gets a turn: signals, timers, a progress display. */
const REST_MS = 50;
/** Pieces for each Worker: with fewer, its start takes what it saves where the type is a fast one (Q8_0). */
const PIECES_A_WORKER = 4;

export interface ConvertOptions {
  /** Folder with config.json, safetensors files and, if the model has one, tokenizer.json. */
  readonly source: string;
  /** The GGUF file to write; an existing one is replaced when the new one is complete. */
  readonly output: string;
  readonly type: FileType;
  /** general.name; default: the folder's name. */
  readonly name?: string;
  /** Chat template text in place of the checkpoint's. */
  readonly chatTemplate?: string;
  /** Further keys, e.g. `{ "general.license": "apache-2.0" }`. */
  readonly metadata?: Readonly<Record<string, MetadataInput>>;
  /** Called after every piece. */
  readonly onProgress?: (progress: ConvertProgress) => void;
  readonly signal?: AbortSignal;
  /** Threads that quantise, and round to F16; default: one a core. A small model takes fewer, the smallest this one alone. */
  readonly threads?: number;
}

export interface ConvertProgress {
  /** Tensor being written, its number from 1, and how many there are. */
  readonly tensor: string;
  readonly index: number;
  readonly tensors: number;
  /** Bytes of tensor data written so far and in the end. */
  readonly bytes: number;
  readonly totalBytes: number;
}

export interface ConvertReport {
  readonly path: string;
  readonly type: FileType;
  /** Size of the file. */
  readonly bytes: number;
  readonly tensors: number;
  /** Weights, the synthesised rope_freqs included. */
  readonly parameters: number;
  /** Per element type, largest first, what it holds and lost. */
  readonly types: readonly TypeReport[];
  /** What a reader should know: what was left out, what is missing. */
  readonly notices: readonly string[];
}

/**
 * Converts `options.source` to `options.output`. Throws ModelFileError (`convert_...`, `safetensors_...`) for a checkpoint that cannot be
 * converted, UsageError for options, ResourceError for the disk or missing kernel libraries, and the signal's reason when aborted; no
 * partial file remains in any of these cases.
 */
export async function convertCheckpoint(options: ConvertOptions): Promise<ConvertReport> {
  const { source, output, type, threads = availableParallelism() } = options;
  if (!Number.isInteger(threads) || threads < 1) throw new UsageError("bad_option", `threads: expected a whole number from 1 on, found ${threads}`);
  const configPath = join(source, "config.json");
  if (!existsSync(configPath)) {
    throw new UsageError("convert_source", `${source}: there is no config.json`, "Name the folder of a Hugging Face checkpoint.");
  }
  // The checkpoint would be read from while, or lost when, the output takes its place.
  if (isIn(source, output)) throw new UsageError("convert_output", `${output} is a file of the checkpoint`, "Choose another name for the output.");
  const config = readConfig(readJson(configPath), configPath);
  using checkpoint = openSafetensors(source);
  const plan = planTensors(config, checkpoint.tensors, checkpoint.path);
  const notices = [...plan.notices];
  const metadata = collectMetadata(options, config, notices);
  const types = chooseTypes(
    plan.tensors.map(({ name, shape, from }) => ({ name, shape, source: "dtype" in from ? (from.dtype as "F32" | "F16" | "BF16") : "F32" })),
    type, config.layers.length, config.moe?.experts ?? 0,
  );
  const tensors = plan.tensors.map((tensor): StreamTensor => ({ tensor, target: types.get(tensor.name)! }));

  // Their end is waited for last: what is partial has been removed by then.
  await using workers = startWorkers(tensors, threads, options.signal);
  using writer = createGguf(output);
  for (const [key, value] of metadata) writer.set(key, value);
  const tally = await writeTensors(writer, tensors, tensorStream(checkpoint, tensors, workers), options);
  options.signal?.throwIfAborted();
  writer.finish();
  const parameters = tensors.reduce((sum, { tensor }) => sum + elementsOf(tensor), 0);
  return { path: output, type, bytes: statSync(output).size, tensors: tensors.length, parameters, types: tally.report(), notices };
}

/** Declares all tensors and writes their pieces; gives what was lost. */
async function writeTensors(writer: GgufWriter, tensors: readonly StreamTensor[], pieces: AsyncIterable<StreamPiece>, { onProgress, signal }: ConvertOptions): Promise<ErrorTally> {
  let totalBytes = 0;
  for (const { tensor: { name, shape }, target } of tensors) totalBytes += writer.declare({ name, shape, type: target });
  const tally = new ErrorTally();
  let bytes = 0, current = -1, rested = performance.now();
  for await (const piece of pieces) {
    const { tensor, target } = tensors[piece.index]!;
    if (piece.index !== current) tally.start(tensor.name, ggmlType(target), elementsOf(tensor));
    current = piece.index;
    tally.add(piece.error, piece.square);
    writer.write(tensor.name, piece.bytes);
    bytes += piece.bytes.byteLength;
    onProgress?.({ tensor: tensor.name, index: current + 1, tensors: tensors.length, bytes, totalBytes });
    if (performance.now() - rested < REST_MS) continue;
    await Bun.sleep(0);
    signal?.throwIfAborted();
    rested = performance.now();
  }
  return tally;
}

/** Other threads to convert in, if there are to be any and their start is worth it. A compiled program does not carry their file. */
function startWorkers(tensors: readonly StreamTensor[], threads: number, signal: AbortSignal | undefined): ConvertWorkers | undefined {
  const count = Math.min(threads, Math.floor(longPieces(tensors) / PIECES_A_WORKER));
  return count < 2 || COMPILED ? undefined : new ConvertWorkers(count, signal);
}

/** Whether `output` is, by whatever name, one of the folder's files other than an earlier GGUF file. */
function isIn(folder: string, output: string): boolean {
  if (!existsSync(output) || output.endsWith(".gguf")) return false;
  const real = realpathSync(output);
  return readdirSync(folder).some((name) => existsSync(join(folder, name)) && realpathSync(join(folder, name)) === real);
}

function collectMetadata(options: ConvertOptions, config: ReturnType<typeof readConfig>, notices: string[]): Map<string, GgufValue> {
  const { source, type } = options;
  const optional = (name: string): unknown => (existsSync(join(source, name)) ? readJson(join(source, name)) : undefined);
  const generation = optional("generation_config.json");
  const metadata = generalMetadata(type, options.name ?? basename(resolve(source)), (generation ?? {}) as Record<string, unknown>);
  for (const [key, value] of Object.entries(options.metadata ?? {})) metadata.set(key, callerValue(key, value));
  for (const [key, value] of modelMetadata(config)) metadata.set(key, value);

  const path = join(source, "tokenizer.json");
  const tokenizer = optional("tokenizer.json");
  const templateFile = join(source, "chat_template.jinja");
  const chatTemplate = options.chatTemplate ?? (existsSync(templateFile) ? readFileSync(templateFile, "utf8") : undefined);
  if (tokenizer === undefined) {
    notices.push("There is no tokenizer.json: the file has no vocabulary and takes and gives token ids only.");
    if (options.chatTemplate !== undefined) {
      throw new UsageError("convert_template", "a chat template was given, but the checkpoint has no tokenizer.json", "Leave the template out, or add tokenizer.json.");
    }
  }
  const keys = tokenizer === undefined
    ? noTokenizer()
    : tokenizerMetadata({ tokenizer, config: optional("tokenizer_config.json"), generation, chatTemplate, path }, config);
  for (const [key, value] of keys) metadata.set(key, value);
  if (tokenizer !== undefined && !keys.has("tokenizer.chat_template")) notices.push("The checkpoint has no chat template: only raw text can be completed.");
  return metadata;
}

function readJson(path: string): unknown {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    throw new ModelFileError("convert_json", `${path}: ${(error as Error).message}`, "Fetch the file again.", { cause: error });
  }
}
