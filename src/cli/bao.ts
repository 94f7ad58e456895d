#!/usr/bin/env bun
// The bao command: finds the command, loads only its file, and turns what it throws into a message and an exit code.
import yargs, { type Argv } from "yargs";
import { UsageError } from "../errors.ts";
import { VARIABLES } from "../env.ts";
import { version } from "../../package.json";
import { EXIT, EXIT_MEANINGS, report } from "./failure.ts";
import { note, out } from "./output.ts";
import { nearest } from "./suggest.ts";

/** What a command's file exports. */
interface CommandFile { builder(y: Argv): Argv; run(args: never): Promise<void> }

const COMMANDS: readonly { readonly name: string; readonly arguments: string; readonly description: string; readonly load: () => Promise<CommandFile> }[] = [
  { name: "generate", arguments: "", description: "Answer one prompt", load: () => import("./generate.ts") },
  { name: "chat", arguments: "", description: "Talk with a model", load: () => import("./chat.ts") },
  { name: "serve", arguments: "", description: "Serve a model over OpenAI's HTTP API", load: () => import("./serve.ts") },
  { name: "tokenize", arguments: "", description: "Turn texts into token ids", load: () => import("./tokenize.ts") },
  { name: "perplexity", arguments: "", description: "Measure how well a model predicts a text", load: () => import("./perplexity.ts") },
  { name: "inspect", arguments: " <file>", description: "Show what a GGUF file holds and what it would take", load: () => import("./inspect.ts") },
  { name: "bench", arguments: "", description: "Measure how fast a model runs here", load: () => import("./bench.ts") },
  { name: "pull", arguments: " <name>", description: "Fetch a model by its name on the hub", load: () => import("./pull.ts") },
  { name: "list", arguments: "", description: "List the models that were fetched", load: () => import("./list.ts") },
  { name: "rm", arguments: " <name..>", description: "Remove models that were fetched", load: () => import("./rm.ts") },
  { name: "doctor", arguments: "", description: "Show what Bao finds on this machine, and what is amiss", load: () => import("./doctor.ts") },
  { name: "convert", arguments: " <dir>", description: "Make a GGUF file from a checkpoint", load: loadConvert },
];

async function loadConvert(): Promise<CommandFile> {
  const { convertCommand } = await import("./convert.ts");
  const usage = `bao convert <dir> -o <file> [options]

Makes a GGUF file from a checkpoint of the Hugging Face kind.

Examples:
  bao convert ./gemma-4-E2B-it -o gemma.gguf
  bao convert ./gemma-4-E2B-it -o gemma-q8.gguf --type q8_0`;
  return { builder: (y) => convertCommand.builder(y.usage(usage)), run: convertCommand.handler as CommandFile["run"] };
}

const USAGE = `bao <command> [options]

Runs large language models.

Examples:
  bao generate                              a story from the embedded model
  bao generate -m gemma.gguf -p "Hello"     one answer
  bao chat -m gemma.gguf                    a conversation
  bao serve -m gemma.gguf                   OpenAI's API, and a page to try it
  bao inspect gemma.gguf                    what is in a file, and the memory it takes`;

function epilog(): string {
  const names = Object.keys(VARIABLES), width = Math.max(...names.map((n) => n.length));
  return [
    "Environment:", ...Object.entries(VARIABLES).map(([name, v]) => `  ${name.padEnd(width)}  ${v.description}`), "",
    "Exit codes:", ...EXIT_MEANINGS.map(([code, meaning]) => `  ${String(code).padEnd(3)}  ${meaning}`),
  ].join("\n");
}

const TEXT_OPTIONS = new Set(["-p", "--prompt", "--system", "--stop"]);

/** The value of a text option may begin with a dash: "--prompt - item" is one prompt, unless what follows looks like an option. */
function joinTexts(argv: readonly string[]): string[] {
  const joined: string[] = [];
  for (let i = 0; i < argv.length; i++) {
    const arg = argv[i]!, next = argv[i + 1];
    if (arg === "--") return [...joined, ...argv.slice(i)];
    if (TEXT_OPTIONS.has(arg) && next !== undefined && next.startsWith("-") && !/^--?[a-z]/i.test(next)) {
      joined.push(`${arg === "-p" ? "--prompt" : arg}=${next}`);
      i++;
    } else joined.push(arg);
  }
  return joined;
}

// yargs trims the lines of a usage text: spaces at their beginning are held by a character that it leaves alone, until help is printed.
const HOLD = "\u2800";
const held = (text: string): string => text.replaceAll(/^ +/gm, (spaces) => HOLD.repeat(spaces.length));
/** Help as it is printed. */
async function printable(help: string): Promise<string> {
  const { NUMBERS } = await import("./options.ts");
  let text = help.replaceAll(HOLD, " ").trimEnd();
  // Numbers are parsed as texts, see options.ts; the two words are of the same length.
  for (const name of NUMBERS) text = text.replace(new RegExp(`^( +(?:-\\w, )?--${name} [^[]*)\\[string\\]`, "m"), "$1[number]");
  return `${text}\n`;
}
function indented(builder: CommandFile["builder"], y: Argv): Argv {
  const usage = y.usage.bind(y) as (text: string) => Argv;
  y.usage = ((text: string) => usage(held(text))) as Argv["usage"];
  return builder(y);
}

/** The parser with all commands. */
function parser(argv: readonly string[]): Argv {
  const wide = process.stdout.isTTY ? Math.min(110, process.stdout.columns || 80) : 110;
  const y = yargs([...argv]).scriptName("bao").locale("en").usage(held(USAGE))
    // Negation stays off, so that help can show --no-warmup itself; "--stop a b" is one stop and a stray b.
    .parserConfiguration({ "boolean-negation": false, "greedy-arrays": false, "dot-notation": false, "strip-dashed": true, "strip-aliased": true });
  for (const c of COMMANDS) {
    y.command(c.name + c.arguments, c.description,
      (async (command: Argv) => indented((await c.load()).builder, command)) as unknown as (command: Argv) => Argv,
      async (args) => (await c.load()).run(args as never));
  }
  return y.completion("completion", "Print a completion script for bash or zsh")
    .demandCommand(1, "Which command?").strict().recommendCommands().version(version).help().alias("help", "h").wrap(wide).epilog(epilog())
    .exitProcess(false)
    .fail((message, error) => { throw failure(message, error as unknown, knownOptions(y), argv); });
}

const camel = (name: string): string => name.replace(/-+(.)/g, (_, letter: string) => letter.toUpperCase());

/** A parser's complaint as a UsageError with a suggestion; errors of ours pass as they are. */
function failure(message: string | null, error: unknown, options: readonly string[], argv: readonly string[]): unknown {
  if (error instanceof Error && error.name !== "YError") return error;
  const text = (message ?? (error as Error).message).trim().replaceAll(/\s*\n\s*/g, " ");
  const command = COMMANDS.find((c) => c.name === argv[0])?.name;
  const help = `Run \`bao ${command === undefined ? "" : `${command} `}--help\` for what there is.`;
  const dashed = (name: string): string => (name.length === 1 ? `-${name}` : `--${name}`);
  const as = (pattern: RegExp, say: (...groups: string[]) => string): string | undefined => {
    const match = pattern.exec(text);
    return match ? say(...match.slice(1)) : undefined;
  };
  const meant = /^Did you mean (\S+)\?$/.exec(text);
  if (meant) return new UsageError("unknown_command", `Unknown command: ${argv[0]}`, `Did you mean \`bao ${meant[1]}\`?`);
  // The parser names --max-token as maxToken: what was typed is in argv.
  const typed = argv.map((a) => /^--?([^=]+)/.exec(a)?.[1]).filter((name) => name !== undefined);
  const unknown = /^Unknown arguments?: (.+)$/.exec(text)?.[1]!.split(", ").map((w) => typed.find((name) => name === w || camel(name) === w)).find((name) => name !== undefined);
  if (unknown !== undefined) {
    const guess = nearest(unknown, options);
    return new UsageError("unknown_option", `Unknown option: ${dashed(unknown)}`, guess === undefined ? help : `Did you mean --${guess}?`);
  }
  const stray = /^Unknown (?:argument|command)s?: (.+)$/.exec(text)?.[1]!;
  if (stray !== undefined) {
    if (command === undefined) return new UsageError("unknown_command", `Unknown command: ${stray}`, help);
    return new UsageError("unknown_argument", `Unknown argument: ${stray}`, command === "generate" ? "Give the prompt with --prompt, in quotes." : help);
  }
  const better = as(/^Not enough arguments following: (.+)$/, (name) => `${dashed(name!)} needs a value`)
    ?? as(/^Missing required arguments?: (.+)$/, (names) => `Missing: ${names!.split(", ").map(dashed).join(", ")}`)
    ?? as(/^Not enough non-option arguments/, () => "An argument is missing")
    ?? as(/^Invalid values: Argument: (\S+), Given: (.*), Choices: (.*)$/, (name, given, choices) => `${dashed(name!)}: ${given} is none of ${choices!.replaceAll('"', "")}`)
    ?? as(/^Arguments (\S+) and (\S+) are mutually exclusive$/, (one, other) => `${dashed(one!)} and ${dashed(other!)} cannot be used together`);
  return new UsageError("usage", better ?? text, help);
}

/** Names of the options that the parser knows by now: those of the command that was reached. */
function knownOptions(y: Argv): string[] {
  return Object.keys((y as unknown as { getOptions(): { key: Record<string, unknown> } }).getOptions().key).filter((name) => name.length > 1);
}

async function main(argv: readonly string[]): Promise<void> {
  try {
    const y = parser(joinTexts(argv));
    if (argv.length === 0) {
      note(await printable(await y.getHelp()));
      process.exitCode = EXIT.usage;
      return;
    }
    // With a callback, help and version come as text instead of being printed.
    let printed = "";
    await y.parseAsync(joinTexts(argv), {}, (_error, _arguments, text) => { printed = text; });
    if (printed !== "") out(await printable(printed));
  } catch (e) {
    // Some complaints do not come by way of fail().
    process.exitCode = report(e instanceof Error && e.name === "YError" ? failure(e.message, undefined, [], argv) : e);
  }
}

await main(process.argv.slice(2));
