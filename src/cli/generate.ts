// bao generate: one answer to one prompt, or the prompt's logits and hidden states. Text on stdout; everything else on stderr.
import { statSync } from "node:fs";
import type { Argv } from "yargs";
import type { JsonSchema } from "../chat/index.ts";
import { BaoError, UsageError } from "../errors.ts";
import { generateParts, encodePrompt, type LocalGenerateOptions, type Prompt } from "../engine/generate.ts";
import type { LoadOptions } from "../engine/model.ts";
import { everyRow } from "../engine/rows.ts";
import type { ResponseFormat } from "../structured/index.ts";
import { Answer } from "./answer.ts";
import { EXIT } from "./failure.ts";
import { FiniteCheck, dumpPrompt } from "./diagnose.ts";
import { parseIds, stdinText, textFile } from "./input.ts";
import { Interrupt } from "./interrupt.ts";
import { loadModel, modelPath, type Loaded } from "./load.ts";
import { defined, flag, list, loadOptions, modelOptions, number, sampling, samplingOptions, text, type ModelArguments, type SamplingArguments } from "./options.ts";
import { colours, forTerminal, noteLine, out, outJson, stdinKind } from "./output.ts";
import { progressBar } from "./progress.ts";
import { modelLines, runLines, timings } from "./stats.ts";
import { startTrace } from "./trace.ts";

const DEMO_PROMPT = "Tell me a story about a little dog.";
const PROMPT = { group: "Prompt:" };
const OUTPUT = { group: "Output:" };
const DIAGNOSTICS = { group: "Diagnostics:" };

const EXAMPLES = `Examples:
  bao generate                                          a story from the embedded model
  bao generate -m gemma.gguf -p "Why is the sky blue?"  one answer
  cat notes.txt | bao generate -m gemma.gguf --system "Summarise this."
  bao generate -m gemma.gguf -p "The capital of France is" --raw --max-tokens 3 -t 0
  bao generate -m gemma.gguf -p "Three colours" --json-schema colours.json
  bao generate -m gemma.gguf -p "Hi" --json | jq -r .text`;

export function builder(y: Argv): Argv {
  return y.usage(`bao generate [options]\n\nWrites one answer.\n\n${EXAMPLES}`).options({
    prompt: text("The prompt; - = standard input, which is also read when it is piped and no prompt is given", { alias: "p", ...PROMPT }),
    system: text("System message", PROMPT),
    raw: flag("Continue the prompt as it is, without the chat template", PROMPT),
    thinking: flag("Let the model think before it answers", PROMPT),
    "token-ids": text("Ids as the prompt, as they are (2,17,9); prints ids, and needs no tokenizer", PROMPT),
    "max-tokens": number("max-tokens", "Tokens to generate at most (default: what fits the context; 0 = only run the prompt)", { whole: true, min: 0 }, { alias: "n", ...OUTPUT }),
    stop: list("Text that ends the answer (repeatable)", OUTPUT),
    "json-schema": text("File with a JSON Schema that the answer must satisfy; - = any JSON object", OUTPUT),
    "ignore-stop": flag("Go on past the model's stop tokens", OUTPUT),
    json: flag("One JSON document at the end", OUTPUT),
    logprobs: number("logprobs", "Log-probability of each token, with this many alternatives (0-20)", { whole: true, min: 0 }, OUTPUT),
    "show-thoughts": flag("Show what the model thinks, on stderr (default on a terminal)", OUTPUT),
    stats: flag("Times, speeds and memory, on stderr", OUTPUT),
    ...modelOptions,
    ...samplingOptions,
    "dump-logits": text("Write the prompt's logits to a file: float32 [prompt tokens][vocabulary]", DIAGNOSTICS),
    "dump-hidden": text("Write the prompt's hidden states: float32 [layers + 1][prompt tokens][hidden], the last after the output norm", DIAGNOSTICS),
    "check-finite": flag("Stop at the first value that is not finite, and name layer and op (slow)", DIAGNOSTICS),
  }).conflicts({ "token-ids": ["prompt", "system", "raw", "thinking", "json-schema"], "ignore-stop": ["json-schema"], raw: ["system", "thinking"], "check-finite": ["dump-hidden"] });
}

export interface GenerateArguments extends ModelArguments, SamplingArguments {
  prompt?: string; system?: string; raw?: boolean; thinking?: boolean; tokenIds?: string;
  maxTokens?: number; stop?: string[]; jsonSchema?: string; ignoreStop?: boolean; json?: boolean; logprobs?: number; showThoughts?: boolean; stats?: boolean;
  dumpLogits?: string; dumpHidden?: string; checkFinite?: boolean;
}

export async function run(args: GenerateArguments): Promise<void> {
  using interrupt = new Interrupt();
  const { signal } = interrupt;
  const options: LocalGenerateOptions & { seed: number } = {
    ...sampling(args), signal, onAbort: "stop",
    ...(defined({ stop: args.stop, raw: args.raw, system: args.system, thinking: args.thinking, ignoreStop: args.ignoreStop, logprobs: args.logprobs, maxTokens: args.maxTokens || undefined, responseFormat: responseFormat(args.jsonSchema) }) as LocalGenerateOptions),
  };
  if (args.dumpLogits !== undefined && args.dumpLogits === args.dumpHidden) throw new UsageError("bad_option", "--dump-logits and --dump-hidden name the same file", "One would replace the other: give them two names.");
  const named = await modelPath(args.model, signal);
  for (const dump of [args.dumpLogits, args.dumpHidden]) {
    if (dump !== undefined && sameFile(dump, named.path)) throw new UsageError("bad_option", `${dump} is the model's own file`, "A dump would overwrite it: choose another name.");
  }
  const prompt = await readPrompt(args, named.embedded);
  signal.throwIfAborted();

  const dumps = args.dumpLogits !== undefined || args.dumpHidden !== undefined;
  const finite = args.checkFinite ? new FiniteCheck() : undefined;
  const extra: LoadOptions = {
    ...(dumps ? everyRow(named.path, loadOptions(args)) : {}), ...(args.dumpHidden === undefined ? {} : { keepHidden: true }),
    ...(finite ? { onOp: finite.look, warmup: false } : {}),
  };
  using loaded = await loadModel(args, named, extra);
  signal.throwIfAborted();
  const { model } = loaded;
  const trace = startTrace(model);
  if (dumps) await dumpPrompt(model, encodePrompt(model, prompt, options).ids, { ...defined({ logits: args.dumpLogits, hidden: args.dumpHidden }), signal });
  if (args.stats) for (const line of modelLines(loaded)) noteLine(line);
  if (args.maxTokens !== 0) await answer(loaded, prompt, options, args, () => trace.decoding());
  else if (!dumps) await prefillOnly(loaded, prompt, options, args);
  if (finite) noteLine(`bao: all values are finite (${finite.outputs} op outputs checked)`);
  trace.print();
}

function sameFile(one: string, other: string): boolean {
  try {
    const a = statSync(one), b = statSync(other);
    return a.dev === b.dev && a.ino === b.ino;
  } catch {
    return false; // one of them is not there
  }
}

async function answer(loaded: Loaded, prompt: Prompt, options: LocalGenerateOptions & { seed: number }, args: GenerateArguments, onDecode: () => void): Promise<void> {
  const { model } = loaded;
  const asIds = args.tokenIds !== undefined;
  const shown = new Answer({ stream: !args.json && !asIds, thoughts: !args.json && (args.showThoughts ?? process.stderr.isTTY === true) });
  using progress = await progressBar("prefill", "tokens");
  using session = model.session();
  let separator = "";
  // Ids come with token parts, which log-probabilities bring along.
  const parts = generateParts(model, session, prompt, { ...options, onPrefill: (done, total) => progress.update(done, total), ...(asIds ? { logprobs: args.logprobs ?? 0 } : {}) });
  for await (const part of parts) {
    onDecode();
    shown.push(part);
    if (asIds && !args.json && part.type === "token" && (args.ignoreStop || !model.tokenizer.stopIds.has(part.id))) {
      out(`${separator}${part.id}`);
      separator = " ";
    }
  }
  if (asIds && !args.json) out("\n");
  shown.end();
  const { usage, reason } = shown.finish!;
  if (args.json) outJson(document(loaded, shown, session.ids, options, args));
  else if (args.logprobs !== undefined) logprobLines(loaded, shown);
  if (args.stats) {
    for (const line of runLines(usage, model.estimate.bytesPerToken)) noteLine(line);
    noteLine(`finish     ${reason}${shown.finish!.stop === undefined ? "" : ` at ${JSON.stringify(shown.finish!.stop)}`}, seed ${options.seed}`);
  }
  if (reason === "abort") process.exitCode = EXIT.interrupted;
}

/** The form of the answer that --json-schema names. */
function responseFormat(file: string | undefined): ResponseFormat | undefined {
  if (file === undefined) return undefined;
  if (file === "-") return { type: "json_object" };
  try {
    return { type: "json_schema", schema: JSON.parse(textFile(file)) as JsonSchema };
  } catch (e) {
    if (e instanceof BaoError) throw e;
    throw new UsageError("bad_option", `--json-schema: ${file} is no JSON: ${(e as Error).message}`, "", { cause: e });
  }
}

async function prefillOnly(loaded: Loaded, prompt: Prompt, options: LocalGenerateOptions & { seed: number }, args: GenerateArguments): Promise<void> {
  using session = loaded.model.session();
  using progress = await progressBar("prefill", "tokens");
  const { ids } = encodePrompt(loaded.model, prompt, options);
  const start = Bun.nanoseconds();
  const { reused } = await session.prefill(ids, { signal: options.signal, onProgress: (done, total) => progress.update(done, total) });
  const usage = { promptTokens: ids.length, cachedTokens: reused, completionTokens: 0, thoughtTokens: 0, prefillMs: (Bun.nanoseconds() - start) / 1e6, decodeMs: 0 };
  if (args.json) outJson({ model: loaded.path, text: "", ids: [], finishReason: "length", seed: options.seed, usage, timings: timings(usage, loaded.model.estimate.bytesPerToken) });
  if (args.stats) for (const line of runLines(usage, loaded.model.estimate.bytesPerToken)) noteLine(line);
}

/** What --json prints. */
function document(loaded: Loaded, shown: Answer, ids: readonly number[], options: { seed: number }, args: GenerateArguments): object {
  const { model } = loaded, { device, config, plan } = model.runner, finish = shown.finish!, { usage } = finish;
  const generated = ids.slice(usage.promptTokens, usage.promptTokens + usage.completionTokens), lastId = generated.at(-1);
  const stopId = !args.ignoreStop && lastId !== undefined && model.tokenizer.stopIds.has(lastId) ? lastId : undefined;
  return {
    model: loaded.path, architecture: config.architecture, device: device.info.backend, precision: device.info.precision, context: plan.context,
    text: model.tokenizer.model === "none" ? "" : shown.text,
    ...(shown.thought === "" ? {} : { thought: shown.thought }),
    ...(shown.toolCalls.length === 0 ? {} : { toolCalls: shown.toolCalls }),
    ids: stopId === undefined ? generated : generated.slice(0, -1),
    finishReason: finish.reason, ...defined({ stop: finish.stop, stopId }), seed: options.seed,
    ...(args.logprobs === undefined ? {} : { logprobs: shown.tokens }),
    usage, timings: timings(usage, model.estimate.bytesPerToken), loadMs: model.loadTimes,
  };
}

function logprobLines({ model }: Loaded, shown: Answer): void {
  const name = (id: number): string => (model.tokenizer.model === "none" ? String(id) : JSON.stringify(model.tokenizer.piece(id)));
  for (const t of shown.tokens) noteLine(forTerminal(`${t.logprob.toFixed(4).padStart(9)} ${String(t.id).padStart(7)} ${name(t.id)}${t.top.map((o) => `  ${name(o.id)} ${o.logprob.toFixed(3)}`).join("")}`, 2));
}

async function readPrompt(args: GenerateArguments, embedded: boolean): Promise<Prompt> {
  if (args.tokenIds !== undefined) return { ids: parseIds(args.tokenIds) };
  if (args.prompt !== undefined && args.prompt !== "-") return args.prompt;
  const piped = args.prompt === "-" || stdinKind() === "data" ? await stdinText() : "";
  if (piped !== "" || args.prompt === "-") return piped;
  if (embedded) {
    noteLine(colours(2).dim(`bao: no prompt given, using ${JSON.stringify(DEMO_PROMPT)}`));
    return DEMO_PROMPT;
  }
  throw new UsageError("no_prompt", "There is no prompt", "Give one with --prompt TEXT, or pipe it in.");
}
