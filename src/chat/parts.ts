// Splits what a model writes into answer text, thoughts and tool calls, while it writes. Raw markers never reach the parts.

import { type ParsedCall, parseGemmaCall, parseJsonCall } from "./calls.ts";

/** A stretch of output. Text and thought parts are deltas: consecutive ones of a type belong together. */
export type Part =
  | { readonly type: "text"; readonly text: string }
  | { readonly type: "thought"; readonly text: string }
  | { readonly type: "tool_call"; readonly name: string; readonly arguments: Record<string, unknown> }
  /** A call that cannot be read. `raw` is its text, for a log or a retry. */
  | { readonly type: "error"; readonly code: "tool_call_malformed"; readonly message: string; readonly raw: string };

/** What a stream needs to know of a tokenizer. */
export interface TokenTexts {
  /** Literal text of a marker or control token, undefined for ordinary tokens. */
  marker(id: number): string | undefined;
  stream(): { push(id: number): string; end(): string };
  idOf(text: string): number | undefined;
}

/** The markers of one family. */
export interface Dialect {
  readonly thoughtOpen: string;
  readonly thoughtClose: string;
  /** A name and a newline follow the opening marker. */
  readonly named: boolean;
  readonly callOpen: string;
  readonly callClose: string;
  /** Encloses strings within a call. */
  readonly quote: string | undefined;
  readonly others: readonly string[];
  readonly parse: (text: string) => ParsedCall;
}

const GEMMA4: Dialect = {
  thoughtOpen: "<|channel>",
  thoughtClose: "<channel|>",
  named: true,
  callOpen: "<|tool_call>",
  callClose: "<tool_call|>",
  quote: '<|"|>',
  others: ["<|tool_response>", "<tool_response|>", "<|turn>", "<turn|>", "<|think|>", "<|tool>", "<tool|>"],
  parse: parseGemmaCall,
};

const THINK: Dialect = {
  thoughtOpen: "<think>",
  thoughtClose: "</think>",
  named: false,
  callOpen: "<tool_call>",
  callClose: "</tool_call>",
  quote: undefined,
  others: ["<|im_start|>", "<|im_end|>"],
  parse: parseJsonCall,
};

/** The markers that a vocabulary's models write; undefined for a vocabulary without any. */
export function dialectOf(tokens: Pick<TokenTexts, "idOf">): Dialect | undefined {
  return [GEMMA4, THINK].find(({ thoughtOpen, thoughtClose }) => tokens.idOf(thoughtOpen) !== undefined && tokens.idOf(thoughtClose) !== undefined);
}

export interface PartOptions {
  /** The prompt ended inside a thought. Default false. */
  inThought?: boolean;
  /** Also treat markers that the model spelled with ordinary tokens as markers. Default true. */
  spelled?: boolean;
}

/** Longest channel name that is waited for; a longer one is content. */
const MAX_HEADER = 32;

/** Parses one answer. Feed ids with `push`, then call `end` once. Stop tokens may be fed: they have no visible part. */
export class PartStream {
  private readonly dialect: Dialect | undefined;
  private readonly spellings: readonly string[];
  private readonly decoder: { push(id: number): string; end(): string };
  private state: "text" | "header" | "thought" | "call";
  /** Text held back: the start of a spelled marker, a channel's name, or a call's body. */
  private tail = "";
  private header = "";
  private body = "";
  private quoted = false;
  private parts: Part[] = [];

  constructor(
    private readonly tokens: TokenTexts,
    { inThought = false, spelled = true }: PartOptions = {},
  ) {
    this.dialect = dialectOf(tokens);
    this.state = inThought ? "thought" : "text";
    const { dialect } = this;
    this.spellings =
      dialect === undefined || !spelled
        ? []
        : [dialect.thoughtOpen, dialect.thoughtClose, dialect.callOpen, dialect.callClose, ...(dialect.quote === undefined ? [] : [dialect.quote]), ...dialect.others];
    this.decoder = tokens.stream();
  }

  /** Parts that `id` completes, in order; often none. */
  push(id: number): Part[] {
    const marker = this.tokens.marker(id);
    if (marker === undefined) {
      this.text(this.decoder.push(id));
    } else {
      this.text(this.decoder.end());
      this.settle();
      this.marker(marker, false);
    }
    return this.drain();
  }

  /** What is left: held-back text, and an error part if a call was not finished; none if the answer was `cut`, which is no fault of the model's. */
  end({ cut = false }: { cut?: boolean } = {}): Part[] {
    this.text(this.decoder.end());
    this.settle();
    if (this.state === "header") this.endHeader();
    if (this.state === "call") {
      if (cut) this.reset();
      else this.fail("the answer ended inside a tool call");
    }
    this.state = "text";
    return this.drain();
  }

  private drain(): Part[] {
    const { parts } = this;
    this.parts = [];
    return parts;
  }

  /** The held-back start of a marker turned out to be text. */
  private settle(): void {
    const { tail } = this;
    this.tail = "";
    this.plain(tail);
  }

  private text(text: string): void {
    if (text === "") return;
    let rest = this.tail + text;
    this.tail = "";
    if (this.spellings.length === 0 || !rest.includes("<")) return this.plain(rest);
    for (let at = rest.indexOf("<"); at >= 0; at = rest.indexOf("<", at)) {
      const spelled = this.spellings.find((marker) => rest.startsWith(marker, at));
      if (spelled !== undefined) {
        this.plain(rest.slice(0, at));
        rest = rest.slice(at + spelled.length);
        at = 0;
        this.marker(spelled, true);
        continue;
      }
      const suffix = rest.slice(at);
      if (this.spellings.some((marker) => marker.startsWith(suffix))) {
        this.plain(rest.slice(0, at));
        this.tail = suffix;
        return;
      }
      at++;
    }
    this.plain(rest);
  }

  private plain(text: string): void {
    if (text === "") return;
    switch (this.state) {
      case "text":
        return this.emit({ type: "text", text });
      case "thought":
        return this.emitThought(text);
      case "call":
        this.body += text;
        return;
      case "header": {
        this.header += text;
        const newline = this.header.indexOf("\n");
        if (newline < 0 && this.header.length <= MAX_HEADER) return;
        // Everything inside a channel is a thought, as the templates see it; its name is not shown.
        const content = newline < 0 ? this.header : this.header.slice(newline + 1);
        this.header = "";
        this.state = "thought";
        this.emitThought(content);
      }
    }
  }

  private marker(text: string, spelled: boolean): void {
    const { dialect } = this;
    if (dialect === undefined) return;
    if (this.state === "call") {
      if (text === dialect.quote) {
        this.quoted = !this.quoted;
        this.body += text;
        return;
      }
      // Inside a quoted string a spelled marker is what the string says; a real marker token ends it.
      if (spelled && this.quoted) {
        this.body += text;
        return;
      }
      if (text === dialect.callClose) {
        this.finishCall(dialect);
        return;
      }
      this.fail(`unexpected ${describe(text)} inside a tool call`);
    } else if (this.state === "header") {
      this.endHeader();
    }
    if (text === dialect.thoughtOpen) this.state = dialect.named ? "header" : "thought";
    else if (text === dialect.callOpen) this.state = "call";
    // Whatever else it is (a stray closing marker, a quote, the end of the turn), it is not shown.
    else if (text === dialect.thoughtClose || this.state === "call" || this.state === "header") this.state = "text";
  }

  /** A channel was closed before its name was complete. */
  private endHeader(): void {
    if (this.header.trim() !== "thought") this.emitThought(this.header);
    this.header = "";
  }

  private finishCall(dialect: Dialect): void {
    const body = this.body;
    try {
      const call = dialect.parse(body);
      this.reset();
      this.emit({ type: "tool_call", name: call.name, arguments: call.arguments });
    } catch (error) {
      this.fail(error instanceof Error ? error.message : String(error));
    }
  }

  private fail(message: string): void {
    const raw = this.dialect?.quote === undefined ? this.body : this.body.replaceAll(this.dialect.quote, '"');
    this.reset();
    this.emit({ type: "error", code: "tool_call_malformed", message: `malformed tool call: ${message}`, raw });
  }

  private reset(): void {
    this.body = "";
    this.quoted = false;
    this.state = "text";
  }

  private emitThought(text: string): void {
    if (text !== "") this.emit({ type: "thought", text });
  }

  private emit(part: Part): void {
    const last = this.parts.at(-1);
    if (last !== undefined && (last.type === "text" || last.type === "thought") && last.type === part.type) {
      this.parts[this.parts.length - 1] = { type: last.type, text: last.text + part.text };
    } else {
      this.parts.push(part);
    }
  }
}

/** A marker's name without its brackets, so that not even a message holds a raw marker. */
function describe(marker: string): string {
  return `a ${marker.replace(/[<>|/]/g, "")} marker`;
}
