// Reads the text of a tool call: Gemma 4's `call:NAME{key:value,...}` and the JSON objects of other families. Never streams.

/** A call the model made, arguments as plain JSON values. */
export interface ParsedCall {
  readonly name: string;
  readonly arguments: Record<string, unknown>;
}

const QUOTE = '<|"|>';
const MAX_DEPTH = 64;

/** Parses the text between `<|tool_call>` and `<tool_call|>`. Throws Error with the position of the fault. */
export function parseGemmaCall(text: string): ParsedCall {
  const head = /^\s*call:([A-Za-z0-9_.:-]+?)\s*(?=\{)/.exec(text);
  if (head === null) throw new Error("expected call:NAME{");
  const reader = new CallReader(text, head[0].length);
  const args = reader.object(0);
  reader.finish();
  return { name: head[1] ?? "", arguments: args };
}

/** Parses `{"name": ..., "arguments": {...}}`. Throws Error if the text is anything else. */
export function parseJsonCall(text: string): ParsedCall {
  const value = JSON.parse(text) as unknown;
  if (typeof value !== "object" || value === null) throw new Error("expected a JSON object");
  const { name, arguments: args = {} } = value as { name?: unknown; arguments?: unknown };
  if (typeof name !== "string" || name === "") throw new Error('expected a "name"');
  if (typeof args !== "object" || args === null || Array.isArray(args)) throw new Error('expected "arguments" to be an object');
  return { name, arguments: args as Record<string, unknown> };
}

class CallReader {
  constructor(
    private readonly text: string,
    private at: number,
  ) {}

  object(depth: number): Record<string, unknown> {
    if (depth > MAX_DEPTH) this.fail("too deeply nested");
    this.expect("{");
    // A list of entries, so that a key such as `__proto__` stays an ordinary member.
    const entries: [string, unknown][] = [];
    if (this.take("}")) return {};
    do {
      const key = this.key();
      this.expect(":");
      entries.push([key, this.value(depth + 1)]);
    } while (this.take(","));
    this.expect("}");
    return Object.fromEntries(entries);
  }

  finish(): void {
    this.space();
    if (this.at < this.text.length) this.fail("unexpected text after the call");
  }

  private value(depth: number): unknown {
    this.space();
    if (this.text.startsWith(QUOTE, this.at)) return this.quoted();
    switch (this.text[this.at]) {
      case "{":
        return this.object(depth);
      case "[":
        return this.list(depth);
      case '"':
        return this.jsonString();
    }
    const word = /[^,{}[\]:\s<"]*/y;
    word.lastIndex = this.at;
    const found = word.exec(this.text)?.[0] ?? "";
    const literal = LITERALS.get(found);
    if (literal === undefined && !NUMBER.test(found)) this.fail("expected a value");
    this.at += found.length;
    return literal === undefined ? Number(found) : literal.value;
  }

  private list(depth: number): unknown[] {
    if (depth > MAX_DEPTH) this.fail("too deeply nested");
    this.expect("[");
    const items: unknown[] = [];
    if (this.take("]")) return items;
    do items.push(this.value(depth + 1));
    while (this.take(","));
    this.expect("]");
    return items;
  }

  private key(): string {
    this.space();
    if (this.text.startsWith(QUOTE, this.at)) return this.quoted();
    if (this.text[this.at] === '"') return this.jsonString();
    const end = this.text.indexOf(":", this.at);
    const key = end < 0 ? "" : this.text.slice(this.at, end).trim();
    if (key === "" || /[{}[\],]/.test(key)) this.fail("expected a key");
    this.at = end;
    return key;
  }

  private quoted(): string {
    const start = this.at + QUOTE.length;
    const end = this.text.indexOf(QUOTE, start);
    if (end < 0) this.fail("unterminated string");
    this.at = end + QUOTE.length;
    return this.text.slice(start, end);
  }

  /** Some fine-tunes write JSON strings; they are unambiguous here. */
  private jsonString(): string {
    const string = /"(?:[^"\\]|\\.)*"/sy;
    string.lastIndex = this.at;
    const found = string.exec(this.text)?.[0];
    if (found === undefined) this.fail("unterminated string");
    this.at += found.length;
    return JSON.parse(found) as string;
  }

  private space(): void {
    while (/\s/.test(this.text[this.at] ?? "")) this.at++;
  }

  private take(symbol: string): boolean {
    this.space();
    if (this.text[this.at] !== symbol) return false;
    this.at++;
    return true;
  }

  private expect(symbol: string): void {
    if (!this.take(symbol)) this.fail(`expected ${symbol}`);
  }

  private fail(what: string): never {
    throw new Error(`${what} at character ${this.at}`);
  }
}

const NUMBER = /^-?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?$/;
const LITERALS = new Map<string, { value: unknown }>([
  ["true", { value: true }],
  ["false", { value: false }],
  ["True", { value: true }],
  ["False", { value: false }],
  ["null", { value: null }],
  ["None", { value: null }],
]);
