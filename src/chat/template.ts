// Runs a model's own chat template and returns the prompt as pieces, so that no caller's text is ever read as a control token.

import { Template } from "@huggingface/jinja";
import { ModelFileError, UsageError } from "../errors.ts";
import { Holders, type TextPiece } from "./holders.ts";
import type { Message, ToolInput } from "./messages.ts";
import { type Abilities, foldSystem, mergeNeighbours, templateMessages } from "./normalise.ts";
import { normaliseTool } from "./tools.ts";

export interface RenderOptions {
  readonly tools?: readonly ToolInput[];
  /** Let the model think before it answers, where the template knows how. Default false, as templates assume. */
  readonly thinking?: boolean;
  /** End with the opening of the model's turn. Default true. */
  readonly addGenerationPrompt?: boolean;
  /** Further variables for the template. */
  readonly variables?: Readonly<Record<string, unknown>>;
}

/** A rendered conversation. */
export interface RenderedPrompt {
  readonly pieces: readonly TextPiece[];
  /** The prompt ends inside a thought, so the first text the model writes is part of it. */
  readonly opensThought: boolean;
}

/** A compiled template. Immutable; rendering takes under a millisecond for ordinary conversations. */
export interface ChatTemplate {
  /** Whether declared tools appear in the prompt at all. */
  readonly supportsTools: boolean;
  /** Whether `thinking` changes the prompt. */
  readonly supportsThinking: boolean;
  /**
   * Renders `messages`. Throws UsageError: `chat_template` with the template's own reason if it refuses the conversation,
   * other codes for roles, tools and parts that cannot be rendered.
   */
  render(messages: readonly Message[], options?: RenderOptions): RenderedPrompt;
  /** The bare engine: a template context in, text out; nothing is normalised or protected. For tests and debugging. */
  renderContext(context: Readonly<Record<string, unknown>>): string;
}

export interface SpecialTexts {
  readonly bosToken?: string;
  readonly eosToken?: string;
}

/** Gemma 4's turns without tools or thinking, for files that carry its vocabulary but no template. */
const GEMMA4_TURNS = `{{- bos_token -}}
{%- for message in messages -%}
{{- '<|turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' + message['content'] | trim + '<turn|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|turn>model\\n' -}}{%- endif -%}`;

/**
 * The template to use for a file that carries none, judged by its vocabulary.
 * Throws UsageError `chat_template_missing` if no known conversation format fits; raw prompts still work then.
 */
export function defaultTemplateSource(hasToken: (text: string) => boolean): string {
  if (hasToken("<|turn>") && hasToken("<turn|>")) return GEMMA4_TURNS;
  throw new UsageError(
    "chat_template_missing",
    "the model file has no chat template and its vocabulary is of no known conversation format",
    "Use a raw prompt, or give a template of your own.",
  );
}

/** Compiles a template. Throws ModelFileError if it is not valid Jinja. */
export function createChatTemplate(source: string, specials: SpecialTexts = {}): ChatTemplate {
  let compiled: Template;
  try {
    compiled = new Template(source);
  } catch (cause) {
    throw new ModelFileError("chat_template_syntax", `the chat template cannot be parsed: ${reason(cause)}`, "Give a template of your own.", { cause });
  }
  return new JinjaTemplate(compiled, source, specials);
}

/** Characters that control tokens of all families are made of; text without them can safely be part of a template's text. */
const SUSPICIOUS = /[<>[\]|]/;

class JinjaTemplate implements ChatTemplate {
  readonly supportsTools: boolean;
  readonly supportsThinking: boolean;
  private readonly can: Abilities;

  constructor(
    private readonly compiled: Template,
    source: string,
    private readonly specials: SpecialTexts,
  ) {
    const user = (content: unknown): Record<string, unknown> => ({ role: "user", content });
    const history = (content: string): string => this.sample({ messages: [user("U1"), { role: "assistant", content }, user("U2")] });
    const drops = (thought: string): boolean => {
      const text = history(thought);
      return text.includes("B2") && !text.includes("T9");
    };
    const parts = this.sample({ messages: [user([{ type: "text", text: "P7" }])] });
    this.can = {
      foldsTools: source.includes("tool_responses"),
      // A template that prints the list itself shows its field names.
      takesParts: parts.includes("P7") && !parts.includes('"text"') && !parts.includes("[object"),
      stripsChannels: drops("A1<|channel>thought\nT9<channel|>B2"),
      stripsThink: drops("<think>T9</think>B2"),
    };
    const messages = [user("U1")];
    const tool = normaliseTool({ name: "probe_tool", description: "d", parameters: { type: "object", properties: {} } });
    this.supportsTools = this.sample({ messages, tools: [tool] }).includes("probe_tool");
    this.supportsThinking = this.sample({ messages, enable_thinking: true }) !== this.sample({ messages, enable_thinking: false });
  }

  renderContext(context: Readonly<Record<string, unknown>>): string {
    return this.compiled.render({ bos_token: this.specials.bosToken ?? "", eos_token: this.specials.eosToken ?? "", ...context });
  }

  private sample(context: Readonly<Record<string, unknown>>): string {
    try {
      return this.renderContext({ add_generation_prompt: true, ...context });
    } catch {
      return "";
    }
  }

  render(messages: readonly Message[], options: RenderOptions = {}): RenderedPrompt {
    if (messages.length === 0) throw new UsageError("chat_empty", "the conversation has no messages", "Send at least one message.");
    // First as it is; then, for templates that insist on an order of roles, in the closest order they accept.
    const shapes: (() => readonly Message[])[] = [
      () => messages,
      () => mergeNeighbours(messages),
      () => mergeNeighbours(foldSystem(messages, true)),
      () => mergeNeighbours(foldSystem(messages, false)),
    ];
    let refusal: unknown;
    for (const shape of shapes) {
      try {
        const pieces = this.renderPieces(shape(), options);
        return { pieces, opensThought: opensThought(pieces) };
      } catch (error) {
        if (error instanceof UsageError) throw error;
        refusal ??= error;
      }
    }
    throw new UsageError("chat_template", `the model's chat template refuses this conversation: ${reason(refusal)}`, "Check the order of roles and the tool definitions.", {
      cause: refusal,
    });
  }

  private renderPieces(messages: readonly Message[], options: RenderOptions): TextPiece[] {
    const tools = options.tools?.map(normaliseTool);
    const context = (hold: (text: string, joinsNext?: boolean) => string): Record<string, unknown> => ({
      ...options.variables,
      messages: templateMessages(messages, this.can, hold),
      ...(tools === undefined || tools.length === 0 ? {} : { tools: tools.map((tool) => holdTool(tool, hold)) }),
      enable_thinking: options.thinking ?? false,
      add_generation_prompt: options.addGenerationPrompt ?? true,
    });
    const holders = new Holders();
    const pieces = holders.pieces(this.renderContext(context((text, joinsNext) => holders.hold(text, joinsNext))));
    if (holders.joins) return pieces;
    // A template may look into texts (cut, replace, compare). Then its own rendering of them is the right one, and safe
    // to use as long as no text could hold a control token; otherwise safety comes before the template's finesse.
    const texts: string[] = [];
    const direct = this.plain(
      context((text) => {
        texts.push(text);
        return text;
      }),
    );
    const joined = pieces.map((piece) => piece.text).join("");
    if (direct === undefined || direct === joined || texts.some((text) => SUSPICIOUS.test(text))) return pieces;
    return [{ text: direct, trusted: true }];
  }

  private plain(context: Readonly<Record<string, unknown>>): string | undefined {
    try {
      return this.renderContext(context);
    } catch {
      return undefined;
    }
  }
}

/** Holds a tool's texts. Its name, types and required names stay as they are, since templates compare and upper-case them. */
function holdTool(tool: { type: "function"; function: Record<string, unknown> }, hold: (text: string) => string): unknown {
  const walk = (value: unknown, key: string): unknown => {
    const word = key === "type" || key === "name" || key === "required";
    if (typeof value === "string") return word && !SUSPICIOUS.test(value) ? value : hold(value);
    if (Array.isArray(value)) return value.map((item) => walk(item, key));
    if (typeof value !== "object" || value === null) return value;
    // Under `properties` the keys are argument names, so one called "type" is a schema like any other.
    return Object.fromEntries(Object.entries(value).map(([name, member]) => [name, walk(member, key === "properties" ? "" : name)]));
  };
  return { type: tool.type, function: walk(tool.function, "") };
}

function opensThought(pieces: readonly TextPiece[]): boolean {
  const tail = pieces.at(-1);
  if (tail === undefined || !tail.trusted) return false;
  const open = (start: string, end: string): boolean => tail.text.lastIndexOf(start) > tail.text.lastIndexOf(end);
  return open("<|channel>", "<channel|>") || open("<think>", "</think>");
}

function reason(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
