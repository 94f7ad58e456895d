// bao perplexity: how well a model predicts a text, or every text of a JSON lines file. Results on stdout, progress on stderr.
import type { Argv } from "yargs";
import { UsageError } from "../errors.ts";
import { requireText } from "../engine/model.ts";
import { perplexityOf, scoreIds, type Score } from "../engine/perplexity.ts";
import { everyRow } from "../engine/rows.ts";
import { textFile, stdinText } from "./input.ts";
import { Interrupt } from "./interrupt.ts";
import { loadModel, modelPath, type Loaded } from "./load.ts";
import { flag, loadOptions, modelOptions, number, text, type ModelArguments } from "./options.ts";
import { noteLine, outJson, outLine } from "./output.ts";
import { progressBar } from "./progress.ts";
import { modelLines } from "./stats.ts";
import { milliseconds, rate } from "./units.ts";
import { startTrace } from "./trace.ts";

export function builder(y: Argv): Argv {
  return y.usage(`bao perplexity --file <text> [options]

Scores a text in sliding windows of --ctx tokens that advance by --stride; every token is scored once, with as much context as its window has.

Examples:
  bao perplexity -m gemma.gguf --file wiki.txt
  bao perplexity -m gemma.gguf --file wiki.txt --ctx 2048 --stride 512 --precision exact
  bao perplexity -m gemma.gguf --file stories.jsonl --jsonl`).options({
    file: text("Text to score; - = standard input", { alias: "f", demandOption: true }),
    stride: number("stride", "Tokens by which windows advance (default: half of --ctx)", { whole: true, min: 1 }),
    jsonl: flag('The file has one text a line, as a JSON string or {"text": ...}: each is scored alone, and gives a line of JSON'),
    json: flag("One JSON document"),
    stats: flag("The model, its device and memory, on stderr"),
    ...modelOptions,
    ctx: number("ctx", "Tokens of a window (default: the model's, at most 2048)", { whole: true, min: 2 }, { group: "Model:" }),
  });
}

export interface PerplexityArguments extends ModelArguments { file: string; stride?: number; jsonl?: boolean; json?: boolean; stats?: boolean }

export async function run(args: PerplexityArguments): Promise<void> {
  using interrupt = new Interrupt();
  const { signal } = interrupt, named = await modelPath(args.model, signal);
  const content = args.file === "-" ? await stdinText() : textFile(args.file);
  using loaded = await loadModel(args, named, everyRow(named.path, loadOptions(args)));
  requireText(loaded.model);
  if (args.stats) for (const line of modelLines(loaded)) noteLine(line);
  const { context } = loaded.model.runner.plan, window = args.ctx ?? Math.min(context, 2048), stride = args.stride ?? Math.ceil(window / 2);
  const trace = startTrace(loaded.model);
  await (args.jsonl ? scoreLines(loaded, content, { window, stride, signal }) : scoreText(loaded, content, { window, stride, signal }, args.json ?? false));
  trace.print();
}

interface Windows { window: number; stride: number; signal: AbortSignal }

async function scoreText(loaded: Loaded, content: string, windows: Windows, asJson: boolean): Promise<void> {
  const { model } = loaded, ids = model.tokenizer.encode(content, { bos: false });
  const start = Bun.nanoseconds();
  let score: Score;
  {
    using progress = await progressBar("perplexity", "tokens");
    score = await scoreIds(model, ids, { ...windows, onProgress: (done, total) => progress.update(done, total) });
  }
  const ms = (Bun.nanoseconds() - start) / 1e6, perToken = score.nll / score.tokens;
  if (asJson) {
    outJson({ model: loaded.path, tokens: score.tokens, nll: score.nll, nllPerToken: perToken, perplexity: perplexityOf(score), window: windows.window, stride: windows.stride, ms, tokensPerSecond: rate(score.tokens, ms) });
    return;
  }
  outLine(`tokens      ${score.tokens}`);
  outLine(`nll/token   ${perToken.toFixed(5)}`);
  outLine(`perplexity  ${perplexityOf(score).toFixed(4)}`);
  noteLine(`${rate(score.tokens, ms).toFixed(1)} tok/s, ${milliseconds(ms)}; windows of ${windows.window} tokens, stride ${windows.stride}`);
}

async function scoreLines(loaded: Loaded, content: string, windows: Windows): Promise<void> {
  const { model } = loaded;
  let nll = 0, tokens = 0, texts = 0;
  const start = Bun.nanoseconds();
  for (const [index, line] of content.split("\n").entries()) {
    if (line.trim() === "") continue;
    const score = await scoreIds(model, model.tokenizer.encode(textOf(line, index + 1), { bos: false }), windows);
    outJson({ line: index + 1, tokens: score.tokens, nll: score.nll, nllPerToken: score.nll / score.tokens, perplexity: perplexityOf(score) });
    nll += score.nll;
    tokens += score.tokens;
    texts++;
  }
  if (tokens === 0) throw new UsageError("text_too_short", "The file has no text", "Give one JSON string a line.");
  const ms = (Bun.nanoseconds() - start) / 1e6;
  noteLine(`${texts} texts, ${tokens} tokens: nll/token ${(nll / tokens).toFixed(5)}, perplexity ${perplexityOf({ nll, tokens }).toFixed(4)}; ${rate(tokens, ms).toFixed(1)} tok/s`);
}

function textOf(line: string, number: number): string {
  try {
    const value = JSON.parse(line) as unknown;
    if (typeof value === "string") return value;
    const { text: inner } = value as { text?: unknown };
    if (typeof inner === "string") return inner;
  } catch { /* reported below */ }
  throw new UsageError("bad_input", `Line ${number} is neither a JSON string nor an object with a text`, 'For example "Once upon a time" or {"text": "Once upon a time"}.');
}
