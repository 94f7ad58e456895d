// Shows an answer while it is written, and keeps it: text on stdout, thoughts dimmed on stderr. Never talks to a model.
import type { StreamPart, TokenLogprob } from "../engine/generate.ts";
import { json, colours, forTerminal, note, noteLine, out } from "./output.ts";

export interface AnswerOptions {
  /** Show text as it comes. */
  readonly stream: boolean;
  readonly thoughts: boolean;
}
export type Token = { readonly id: number; readonly text: string; readonly logprob: number; readonly top: readonly TokenLogprob[] };
export type Finish = Extract<StreamPart, { type: "finish" }>;

export class Answer {
  text = "";
  thought = "";
  readonly tokens: Token[] = [];
  readonly toolCalls: { name: string; arguments: Record<string, unknown> }[] = [];
  finish: Finish | undefined;
  #inThought = false;
  constructor(private readonly options: AnswerOptions) {}

  push(part: StreamPart): void {
    switch (part.type) {
      case "text":
        this.#leaveThought();
        this.text += part.text;
        if (this.options.stream) out(forTerminal(part.text));
        break;
      case "thought":
        this.thought += part.text;
        if (!this.options.thoughts) break;
        this.#inThought = true;
        note(colours(2).dim(forTerminal(part.text, 2)));
        break;
      case "tool_call":
        this.toolCalls.push({ name: part.name, arguments: part.arguments });
        if (this.options.stream) noteLine(`bao: the model calls a tool: ${json({ name: part.name, arguments: part.arguments })}`);
        break;
      case "error":
        noteLine(`bao: ${forTerminal(part.message, 2)}: ${json(part.raw)}`);
        break;
      case "token":
        this.tokens.push({ id: part.id, text: part.text, logprob: part.logprob, top: part.top });
        break;
      case "finish":
        this.#leaveThought();
        this.finish = part;
        break;
    }
  }
  /** Ends the last line. */
  end(): void {
    this.#leaveThought();
    if (this.options.stream && !this.text.endsWith("\n")) out("\n");
  }
  #leaveThought(): void {
    if (this.#inThought) note("\n");
    this.#inThought = false;
  }
}
