// Log-probabilities in OpenAI's two shapes. Collects token parts until the text that they produced arrives; thoughts, calls and stop tokens have none.
import type { StreamPart } from "../engine/generate.ts";

type TokenPart = Extract<StreamPart, { type: "token" }>;

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
export function chatLogprobs(tokens: readonly TokenPart[]): object[] {
  const one = ({ text, logprob }: { readonly text: string; readonly logprob: number }) => ({ token: text, logprob: finite(logprob), bytes: bytesOf(text) });
  return tokens.map((t) => ({ ...one(t), top_logprobs: t.top.map(one) }));
}

/** `choices[].logprobs` of the older completions API. `offset`: characters of the answer before these tokens. */
export function completionLogprobs(tokens: readonly TokenPart[], offset: number): { tokens: string[]; token_logprobs: number[]; top_logprobs: Record<string, number>[]; text_offset: number[] } {
  let at = offset;
  return {
    tokens: tokens.map((t) => t.text), token_logprobs: tokens.map((t) => finite(t.logprob)),
    top_logprobs: tokens.map((t) => Object.fromEntries(t.top.map((o) => [o.text, finite(o.logprob)]))),
    text_offset: tokens.map((t) => (at += t.text.length) - t.text.length),
  };
}
