// bao chat: a conversation in the terminal, or over a pipe. Answers on stdout, everything else on stderr.
import { basename } from "node:path";
import { createInterface, type Interface } from "node:readline";
import type { Argv } from "yargs";
import { BaoError, UsageError } from "../errors.ts";
import { encodePrompt, generateParts, type GenerateOptions } from "../engine/generate.ts";
import type { Session } from "../engine/session.ts";
import { Answer } from "./answer.ts";
import { Conversation, readConversation, SETTINGS, writeConversation } from "./conversation.ts";
import { EXIT, Interrupted, report } from "./failure.ts";
import { loadModel, modelPath, type Loaded } from "./load.ts";
import { defined, flag, list, modelOptions, number, sampling, samplingOptions, text, type ModelArguments, type SamplingArguments } from "./options.ts";
import { colours, noteLine, out } from "./output.ts";
import { progressBar } from "./progress.ts";
import { modelLines, runLines } from "./stats.ts";
import { startTrace } from "./trace.ts";

export function builder(y: Argv): Argv {
  return y.usage(`bao chat [options]

Talks with a model. A line is a message; one that ends with a backslash goes on in the next line. /help lists the commands.

Examples:
  bao chat                                  with the embedded model
  bao chat -m gemma.gguf --system "Be brief."
  bao chat -m gemma.gguf --load talk.json   goes on with a saved conversation
  printf 'Hi\\nAnd you?\\n' | bao chat -m gemma.gguf`).options({
    system: text("System message", { group: "Prompt:" }),
    load: text("Conversation to go on with, as /save writes it", { group: "Prompt:" }),
    thinking: flag("Let the model think before it answers", { group: "Prompt:" }),
    "max-tokens": number("max-tokens", "Tokens of an answer at most", { whole: true, min: 1 }, { alias: "n", group: "Output:" }),
    stop: list("Text that ends an answer (repeatable)", { group: "Output:" }),
    "show-thoughts": flag("Show what the model thinks, on stderr (default on a terminal)", { group: "Output:" }),
    stats: flag("Times and speeds after every answer, on stderr", { group: "Output:" }),
    ...modelOptions,
    ...samplingOptions,
  });
}

export interface ChatArguments extends ModelArguments, SamplingArguments {
  system?: string; load?: string; thinking?: boolean; maxTokens?: number; stop?: string[]; showThoughts?: boolean; stats?: boolean;
}

const HELP = `/system TEXT     set the system message; without a text, remove it
/reset           forget the conversation
/save FILE       write the conversation as JSON
/load FILE       go on with a saved one
/tokens          tokens of the conversation and of the context
/set             show the settings; /set NAME VALUE changes one, /set NAME - gives the default back
/exit            leave (so does Ctrl-D, and Ctrl-C at an empty prompt, twice)
Ctrl-C           stops an answer`;

export async function run(args: ChatArguments): Promise<void> {
  const settings: GenerateOptions = {
    ...sampling(args),
    ...(defined({ thinking: args.thinking, maxTokens: args.maxTokens, stop: args.stop }) as GenerateOptions),
  };
  if (args.seed === undefined) delete settings.seed; // a new one for every answer
  const conversation = args.load === undefined ? new Conversation() : readConversation(args.load);
  if (args.system !== undefined) conversation.system = args.system;
  using loaded = await loadModel(args, await modelPath(args.model));
  if (args.stats) for (const line of modelLines(loaded)) noteLine(line);
  using repl = new Repl(loaded, conversation, settings, { stats: args.stats ?? false, thoughts: args.showThoughts ?? process.stderr.isTTY === true });
  await repl.run();
}

class Repl implements Disposable {
  readonly #interactive = process.stdin.isTTY === true;
  readonly #session: Session;
  readonly #lines: Interface;
  #answering: AbortController | undefined;
  #quitNext = false;
  #left = false;

  constructor(private readonly loaded: Loaded, private readonly conversation: Conversation, private readonly settings: GenerateOptions, private readonly show: { stats: boolean; thoughts: boolean }) {
    void loaded.model.template; // a model that cannot chat is refused before the first message
    this.#session = loaded.model.session();
    this.#lines = createInterface({ input: process.stdin, ...(this.#interactive ? { output: process.stderr, terminal: true, historySize: 500, prompt: colours(2).green("> ") } : { terminal: false }) });
    // On a terminal readline takes Ctrl-C itself, in a pipe it arrives as a signal.
    if (this.#interactive) this.#lines.on("SIGINT", this.#interrupt);
    else process.on("SIGINT", this.#interrupt);
  }

  async run(): Promise<void> {
    const c = colours(2);
    if (this.#interactive) noteLine(c.dim(`${basename(this.loaded.path)}, ${this.loaded.model.runner.plan.context} tokens of context. /help lists the commands.`));
    const trace = startTrace(this.loaded.model);
    let message = "";
    this.#prompt();
    for await (const line of this.#queue()) {
      this.#quitNext = false;
      if (line.endsWith("\\") && !line.startsWith("/")) {
        message += `${line.slice(0, -1)}\n`;
      } else {
        message += line;
        await this.#handle(message, () => trace.decoding());
        message = "";
      }
      if (this.#left) break;
      this.#prompt();
    }
    if (this.#interactive && !this.#left) noteLine("");
    trace.print();
  }

  #prompt(): void { if (this.#interactive) this.#lines.prompt(); }

  /** Lines as they are typed, also those that come while an answer is written. */
  async *#queue(): AsyncGenerator<string, void> {
    const waiting: string[] = [];
    let closed = false, wake = (): void => {};
    this.#lines.on("line", (line) => { waiting.push(line); wake(); });
    this.#lines.on("close", () => { closed = true; wake(); });
    for (;;) {
      const line = waiting.shift();
      if (line !== undefined) yield line;
      else if (closed) return;
      else await new Promise<void>((resolve) => { wake = resolve; });
    }
  }

  readonly #interrupt = (): void => {
    if (this.#answering) {
      if (this.#answering.signal.aborted) process.exit(EXIT.interrupted);
      this.#answering.abort(new Interrupted("interrupted"));
      return;
    }
    if (!this.#interactive) process.exit(EXIT.interrupted);
    if (this.#quitNext && this.#lines.line === "") {
      this.#left = true;
      noteLine("");
      this.#lines.close();
      return;
    }
    this.#quitNext = this.#lines.line === "";
    // Ctrl-E, Ctrl-U: empties the line.
    this.#lines.write(null, { ctrl: true, name: "e" });
    this.#lines.write(null, { ctrl: true, name: "u" });
    noteLine(this.#quitNext ? colours(2).dim("\n(Ctrl-C again leaves)") : "");
    this.#lines.prompt();
  };

  async #handle(line: string, onDecode: () => void): Promise<void> {
    if (line.trim() === "") return;
    try {
      if (line.startsWith("/")) await this.#command(line);
      else await this.#answer(line, onDecode);
    } catch (e) {
      if (!(e instanceof BaoError)) throw e;
      const code = report(e);
      // A script learns of it at the end; a person sees it now.
      if (!this.#interactive) process.exitCode = code;
    }
  }

  async #answer(message: string, onDecode: () => void): Promise<void> {
    const { model } = this.loaded, { conversation } = this;
    const messages = [...conversation.all(), { role: "user" as const, content: message }];
    const answer = new Answer({ stream: true, thoughts: this.show.thoughts });
    this.#answering = new AbortController();
    try {
      using progress = await progressBar("prefill", "tokens");
      const options = { ...this.settings, signal: this.#answering.signal, onAbort: "stop" as const, onPrefill: (done: number, total: number): void => progress.update(done, total) };
      for await (const part of generateParts(model, this.#session, messages, options)) { onDecode(); answer.push(part); }
    } finally {
      this.#answering = undefined;
    }
    answer.end();
    const { reason, usage } = answer.finish!;
    // An interrupted answer stays as far as it got; one that never began takes its question along.
    if (reason !== "abort" || answer.text !== "") {
      conversation.messages.push({ role: "user", content: message }, { role: "assistant", content: answer.text, ...(answer.thought === "" ? {} : { reasoning: answer.thought }) });
    }
    if (reason === "length") noteLine(colours(2).dim(this.#session.full ? "bao: the context is full: /reset, or start again with a larger --ctx" : "bao: stopped at --max-tokens"));
    if (reason === "abort" && !this.#interactive) process.exitCode = EXIT.interrupted;
    if (this.show.stats) for (const text of runLines(usage, model.estimate.bytesPerToken)) noteLine(text);
  }

  async #command(line: string): Promise<void> {
    const [, name = "", rest = ""] = /^\/(\S*)\s*([\s\S]*)$/.exec(line) ?? [];
    const { conversation } = this, argument = rest.trim();
    switch (name) {
      case "system":
        conversation.system = argument === "" ? undefined : argument;
        noteLine(argument === "" ? "bao: no system message" : "bao: system message set");
        break;
      case "reset":
        conversation.messages.length = 0;
        this.#session.reset();
        noteLine("bao: conversation forgotten");
        break;
      case "save":
        writeConversation(this.#file(argument, "save"), conversation, this.loaded.path);
        noteLine(`bao: ${conversation.messages.length} messages saved`);
        break;
      case "load": {
        const read = readConversation(this.#file(argument, "load"));
        conversation.system = read.system;
        conversation.messages.splice(0, Infinity, ...read.messages);
        noteLine(`bao: ${read.messages.length} messages loaded`);
        break;
      }
      case "tokens": {
        const { context } = this.loaded.model.runner.plan, all = conversation.all();
        const used = all.length === 0 ? 0 : encodePrompt(this.loaded.model, all, {}).ids.length;
        out(`${used} of ${context} tokens\n`);
        break;
      }
      case "set": this.#set(argument); break;
      case "help": noteLine(HELP); break;
      case "exit": case "quit": this.#left = true; this.#lines.close(); break;
      default: throw new UsageError("unknown_command", `Unknown command: /${name}`, "/help lists the commands.");
    }
  }

  #file(argument: string, command: string): string {
    if (argument === "") throw new UsageError("bad_option", `/${command}: expected a file name`);
    return argument;
  }

  #set(argument: string): void {
    const [name = "", ...words] = argument.split(/\s+/), values = this.settings as Record<string, unknown>;
    if (name === "") {
      for (const [key, s] of Object.entries(SETTINGS)) noteLine(`  ${key.padEnd(20)} ${String(values[s.option] ?? "default")}`);
      return;
    }
    const setting = SETTINGS[name];
    if (!setting) throw new UsageError("unknown_setting", `Unknown setting: ${name}`, `There are ${Object.keys(SETTINGS).join(", ")}.`);
    const value = words.join(" ");
    if (value === "-") delete values[setting.option];
    else values[setting.option] = setting.parse(value);
    noteLine(`bao: ${name} is ${String(values[setting.option] ?? "the default")}`);
  }

  [Symbol.dispose](): void {
    process.off("SIGINT", this.#interrupt);
    this.#lines.close();
    process.stdin.destroy(); // an open terminal would keep the process alive
    this.#session.dispose();
  }
}
