// What an answer must look like, token by token: thoughts are free, the answer or the call after them follows a grammar. Pure: vocabulary and request in, mask out.
import { dialectOf, plainSchema, toolSpec, type ToolInput } from "../chat/index.ts";
import { BaoError, UsageError } from "../errors.ts";
import type { Tokenizer } from "../tokenizer/index.ts";
import { callGrammar } from "./calls.ts";
import { HoleContent } from "./content.ts";
import { json } from "./dialect.ts";
import { Rules } from "./ebnf.ts";
import { type Matcher, vocabularyOf } from "./grammar.ts";
import { SchemaGrammar } from "./schema.ts";
import type { ResponseFormat, ToolChoice } from "./spec.ts";

/** A request as far as it concerns the answer's form. */
export interface ConstraintSpec {
  readonly format?: ResponseFormat | undefined;
  readonly tools?: readonly ToolInput[] | undefined;
  /** Default: auto when there are tools. */
  readonly toolChoice?: ToolChoice | undefined;
  /** Several calls in one answer. Default true. */
  readonly parallelToolCalls?: boolean | undefined;
  /** The model may think before it answers. */
  readonly thinking?: boolean | undefined;
  /** The prompt ends inside a thought. */
  readonly opensThought?: boolean | undefined;
}

const MAX_SCHEMA = 256 * 1024;

/**
 * The mask of one answer; undefined when nothing constrains it. Compiling blocks the thread (0.05 to 2 s with a vocabulary of 262,144; remembered).
 * Throws UsageError `unsupported_schema`, `bad_option` or `tools_unsupported`.
 */
export async function compileConstraint(tokenizer: Tokenizer, spec: ConstraintSpec): Promise<AnswerMask | undefined> {
  const format = checkFormat(spec.format), tools = spec.tools ?? [], choice = checkChoice(spec.toolChoice, tools);
  const markers = dialectOf(tokenizer);
  if (tools.length > 0 && choice !== "none" && markers === undefined) {
    throw new UsageError("tools_unsupported", "This model's vocabulary has no markers for tool calls", "Use a model that was trained to call tools, or ask for JSON with a schema.");
  }
  const opener = markers && tokenizer.idOf(markers.callOpen);
  const open = choice === "auto" && format === undefined;
  if (format === undefined && choice === "none") return tools.length > 0 && opener !== undefined ? new AnswerMask(tokenizer, { barred: [opener] }) : undefined;
  // Without a token for it, nothing marks the place where a call begins: it is checked when it is read.
  if (open && opener === undefined) return undefined;

  const vocabulary = await vocabularyOf(tokenizer), rules = new Rules(), roots: string[] = [];
  if (format !== undefined && (choice === "auto" || choice === "none")) {
    const schema = new SchemaGrammar(rules, json);
    const value = format.type === "json_object" ? schema.anyObject() : schema.add(format.schema);
    // Families that think in words of their own leave a gap after them.
    roots.push(markers !== undefined && markers.quote === undefined ? `"\\n"{0,2} (${value})` : `(${value})`);
  }
  if (choice !== "none" && markers) {
    const named = typeof choice === "string" ? tools : tools.filter((t) => toolSpec(t).name === choice.name);
    const call = rules.rule(callGrammar(rules, named, markers, (text) => vocabulary.marker(text)));
    const whole = `${vocabulary.marker(markers.callOpen)} ${call}`;
    roots.push(open ? call : spec.parallelToolCalls === false ? whole : `${whole} ("\\n"? ${whole})*`);
  }
  const grammar = rules.text(roots.join(" | "));
  if (grammar.length > 4 * MAX_SCHEMA) throw new UsageError("unsupported_schema", "The schema's grammar is too large", "Use a smaller schema.");
  const matcher = await vocabulary.matcher(grammar, open ? "by itself" : "with a stop token");
  const holes = rules.holes.map((limits) => { const content = vocabulary.content(tokenizer, limits.dialect); return () => new HoleContent(content, limits); });
  const thoughts = markers && spec.thinking !== false && (spec.thinking || spec.opensThought) ? markers : undefined;
  return new AnswerMask(tokenizer, {
    matcher, holes, ...(open ? { opener } : {}), ...(opener === undefined ? {} : { barred: [opener] }),
    ...(thoughts ? { thought: { open: tokenizer.idOf(thoughts.thoughtOpen)!, close: tokenizer.idOf(thoughts.thoughtClose)!, closeText: thoughts.thoughtClose } } : {}),
    inThought: spec.opensThought === true && !open,
  });
}

interface MaskParts {
  readonly matcher?: Matcher;
  /** The strings of limited length that the grammar has holes for. */
  readonly holes?: readonly (() => HoleContent)[];
  /** Text is free until this token, and again after the grammar's end. */
  readonly opener?: number | undefined;
  readonly thought?: { readonly open: number; readonly close: number; readonly closeText: string };
  readonly inThought?: boolean;
  /** Never allowed outside of the grammar. */
  readonly barred?: readonly number[];
}

/** The mask of one answer (the engine's TokenMask). Dispose of it when the answer has ended. */
export class AnswerMask implements Disposable {
  #state: "free" | "thought" | "grammar";
  /** A thought has ended, or the answer has begun: no thought may open any more. */
  #begun = false;
  /** What the matcher allows now, once it was asked. */
  #words: Uint32Array | undefined;
  /** The string of limited length that is being written; `#words` is then what may follow it. */
  #hole: HoleContent | undefined;
  #free: Uint32Array | undefined;
  #tail = "";
  readonly #decoder: ReturnType<Tokenizer["stream"]>;

  constructor(private readonly tokenizer: Tokenizer, private readonly parts: MaskParts) {
    this.#state = parts.inThought ? "thought" : parts.matcher && parts.opener === undefined ? "grammar" : "free";
    this.#decoder = tokenizer.stream();
  }

  /** Allowed tokens of the next position as bits; undefined: all are. */
  next(): Uint32Array | undefined {
    const { matcher, thought, opener } = this.parts;
    if (this.#state === "free") return opener === undefined ? this.#without(this.parts.barred ?? []) : undefined;
    // A thought has to end before the answer does.
    if (this.#state === "thought") return this.#without([...this.tokenizer.stopIds, ...(this.parts.barred ?? []), thought!.open]);
    const words = this.#allowed();
    if (this.#hole) {
      const out = this.#hole.enough ? words.slice() : new Uint32Array(words.length);
      this.#hole.allow(out);
      return out;
    }
    if (this.#begun || !thought || opener !== undefined) return words;
    const either = words.slice();
    either[thought.open >> 5]! |= 1 << (thought.open & 31);
    return either;
  }
  /** What the matcher allows; where that is a hole, the matcher goes on to its end. */
  #allowed(): Uint32Array {
    if (this.#words) return this.#words;
    const { matcher, holes = [] } = this.parts, { vocabSize } = this.tokenizer;
    let words = matcher!.words();
    const n = holes.findIndex((_, i) => (words[(vocabSize + i) >> 5]! >>> ((vocabSize + i) & 31)) & 1);
    if (n >= 0) {
      this.#hole = holes[n]!();
      matcher!.accept(vocabSize + n);
      words = matcher!.words();
    }
    if (vocabSize % 32 > 0) words[vocabSize >> 5]! &= (1 << vocabSize % 32) - 1;
    return (this.#words = words.subarray(0, Math.ceil(vocabSize / 32)));
  }
  /** The token that was drawn. Throws BaoError `grammar_rejected` for one that was not allowed. */
  accept(id: number): void {
    const { matcher, thought, opener } = this.parts;
    switch (this.#state) {
      case "free":
        if (matcher && id === opener) {
          matcher.reset();
          this.#words = undefined;
          this.#state = "grammar";
        }
        return;
      case "thought":
        if (id === thought!.close) this.#answer();
        else this.#spelled(id, thought!.closeText);
        return;
      case "grammar":
        if (!this.#begun && opener === undefined && id === thought?.open) {
          this.#state = "thought";
          return;
        }
        this.#begun = true;
        if (this.#hole ?? this.parts.holes?.length) {
          const words = this.#allowed();
          if (this.#hole && !((words[id >> 5]! >>> (id & 31)) & 1)) {
            this.#hole.accept(id);
            return;
          }
        }
        this.#hole = undefined;
        this.#words = undefined;
        if (!matcher!.accept(id)) throw rejected(`token ${id}`);
        if (opener !== undefined && matcher!.complete) this.#state = "free";
    }
  }
  /** One thought is enough: a model that opens one after another would never come to its answer. */
  #answer(): void {
    this.#state = "grammar";
    this.#begun = true;
  }
  /** A thought's end that was written with ordinary tokens: whoever reads the answer takes it for one as well. */
  #spelled(id: number, close: string): void {
    const text = this.#tail + this.#decoder.push(id), at = text.indexOf(close);
    this.#tail = text.slice(-close.length);
    if (at < 0) return;
    const rest = text.slice(at + close.length);
    this.#answer();
    if (rest !== "" && !this.parts.matcher!.acceptText(rest)) throw rejected(JSON.stringify(rest));
  }
  #without(ids: readonly number[]): Uint32Array {
    if (!this.#free) {
      this.#free = new Uint32Array(Math.ceil(this.tokenizer.vocabSize / 32)).fill(0xffffffff);
      for (const id of ids) this.#free[id >> 5]! &= ~(1 << (id & 31));
    }
    return this.#free;
  }
  [Symbol.dispose](): void { this.parts.matcher?.[Symbol.dispose](); }
}

function rejected(what: string): BaoError {
  return new BaoError("grammar_rejected", `The answer does not fit its grammar: ${what}`, "A bias or a suppressed token may have forbidden all that fits.");
}

function checkFormat(format: ResponseFormat | undefined): Exclude<ResponseFormat, { type: "text" }> | undefined {
  if (format === undefined || format.type === "text") return undefined;
  if (format.type === "json_object") return format;
  if (format.type !== "json_schema") throw new UsageError("bad_option", `responseFormat: the type ${JSON.stringify((format as { type: unknown }).type)} is none of text, json_object, json_schema`);
  if (format.schema === undefined || format.schema === null) throw new UsageError("bad_option", "responseFormat: json_schema needs a schema");
  const schema = plainSchema(format.schema);
  if (JSON.stringify(schema).length > MAX_SCHEMA) throw new UsageError("unsupported_schema", `The schema is longer than ${MAX_SCHEMA} characters`, "Use a smaller schema.");
  return { type: "json_schema", schema };
}

function checkChoice(choice: ToolChoice | undefined, tools: readonly ToolInput[]): ToolChoice {
  const names = tools.map((t) => toolSpec(t).name);
  const twice = names.find((n, i) => names.indexOf(n) !== i);
  if (twice !== undefined) throw new UsageError("tool_name", `Two tools are called ${JSON.stringify(twice)}`, "Give each a name of its own.");
  if (choice === undefined) return tools.length > 0 ? "auto" : "none";
  if (typeof choice === "object" && choice !== null) {
    if (!names.includes(choice.name)) throw new UsageError("bad_option", `toolChoice: no tool is called ${JSON.stringify(choice.name)}`);
    return choice;
  }
  if (!["none", "auto", "required"].includes(choice)) throw new UsageError("bad_option", `toolChoice: ${JSON.stringify(choice)} is none of none, auto, required, or the name of a tool`);
  if (choice === "required" && tools.length === 0) throw new UsageError("bad_option", "toolChoice: required, and there are no tools");
  return tools.length === 0 ? "none" : choice;
}
