// Log-probabilities in OpenAI's two shapes. Collects token parts until the text that they produced arrives; thoughts, calls and stop tokens have none.
import type { StreamPart } from "../engine/generate.ts";
import type { ServedModel } from "./answer.ts";

type TokenPart = Extract<StreamPart, { type: "token" }>;

/** Texts of single tokens, asked of the model once each. */
export class TokenTexts {
  readonly #known = new Map<number, Promise<string>>();
  constructor(private readonly model: ServedModel) {}
  get(id: number): Promise<string> {
    let text = this.#known.get(id);
    if (!text) {
      text = this.#read(id);
      this.#known.set(id, text);
    }
    return text;
  }
  // Twice, because some tokenizers drop the space in front of a text's first token.
  async #read(id: number): Promise<string> {
    const [one, two] = await Promise.all([this.model.detokenize([id], { special: true }), this.model.detokenize([id, id], { special: true })]);
    return two.slice(one.length);
  }
}

/** The tokens of one answer whose text has not arrived yet. */
export class PendingTokens {
  #tokens: TokenPart[] = [];
  push(part: TokenPart): void { this.#tokens.push(part); }
  take(): TokenPart[] { return this.#tokens.splice(0); }
  /** They made no visible text. */
  drop(): void { this.#tokens = []; }
}

const utf8 = new TextEncoder();
/** Bytes of a token's text; null where it is part of a character only. */
const bytesOf = (text: string): number[] | null => (text.includes("\ufffd") ? null : [...utf8.encode(text)]);
// JSON has no infinity: OpenAI writes its lowest number for a token that cannot come.
const finite = (logprob: number): number => (Number.isFinite(logprob) ? logprob : -9999);

/** `choices[].logprobs.content` of the chat API. */
export async function chatLogprobs(tokens: readonly TokenPart[], texts: TokenTexts): Promise<object[]> {
  return Promise.all(tokens.map(async (t) => ({
    token: t.text, logprob: finite(t.logprob), bytes: bytesOf(t.text),
    top_logprobs: await Promise.all(t.top.map(async (o) => {
      const token = await texts.get(o.id);
      return { token, logprob: finite(o.logprob), bytes: bytesOf(token) };
    })),
  })));
}

/** `choices[].logprobs` of the older completions API. `offset`: characters of the answer before these tokens. */
export async function completionLogprobs(tokens: readonly TokenPart[], texts: TokenTexts, offset: number): Promise<{ tokens: string[]; token_logprobs: number[]; top_logprobs: Record<string, number>[]; text_offset: number[] }> {
  const out = { tokens: [] as string[], token_logprobs: [] as number[], top_logprobs: [] as Record<string, number>[], text_offset: [] as number[] };
  let at = offset;
  for (const t of tokens) {
    out.tokens.push(t.text);
    out.token_logprobs.push(finite(t.logprob));
    out.top_logprobs.push(Object.fromEntries(await Promise.all(t.top.map(async (o) => [await texts.get(o.id), finite(o.logprob)] as const))));
    out.text_offset.push(at);
    at += t.text.length;
  }
  return out;
}
