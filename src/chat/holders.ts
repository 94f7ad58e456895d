// Keeps callers' texts out of a template's hands: holders are rendered in their place and exchanged afterwards. Never parses templates.

import { UsageError } from "../errors.ts";

/** A span of a rendered prompt: `trusted` text comes from the template and may hold control tokens, other text never does. */
export interface TextPiece {
  readonly text: string;
  readonly trusted: boolean;
}

/** Trimmed by every `trim`, and absent from templates: its fate tells whether a template trims the text it surrounds. */
const EDGE = "\u2003";
const OPEN = "\ue000";
const CLOSE = "\ue001";

/** What Python's `str.strip` removes, which is what template authors test with. */
const PY_SPACE = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+";
const LEADING = new RegExp(`^${PY_SPACE}`);

/** After text that a model wrote before calling a tool: the turn goes on, whatever the template says. */
const TURN_BREAK = /^<turn\|>\n(?:<\|turn>model\n)?(?=<\|tool_call>|<\|channel>)/;

/** The texts of one rendering. */
export class Holders {
  private readonly held: { text: string; joinsNext: boolean }[] = [];
  private readonly nonce = crypto.getRandomValues(new Uint32Array(2)).join("");

  /** A stand-in for `text`. Blank text stands for itself, since templates test for it. `joinsNext`: the turn continues after it. */
  hold(text: string, joinsNext = false): string {
    if (text.trim() === "") return text;
    // The quote shows how often the template JSON-escapes the text; digits survive upper() and lower().
    return `${EDGE}${OPEN}"${this.nonce};${this.held.push({ text, joinsNext }) - 1}${CLOSE}${EDGE}`;
  }

  /** Whether some text asked for a join, in which case the pieces differ from a plain rendering on purpose. */
  get joins(): boolean {
    return this.held.some((item) => item.joinsNext);
  }

  /** Exchanges holders for texts. Throws UsageError if the template tore a holder apart. */
  pieces(rendered: string): TextPiece[] {
    const pieces: TextPiece[] = [];
    const pattern = new RegExp(`(${EDGE}?)${OPEN}(\\\\*)"${this.nonce};(\\d+)${CLOSE}(${EDGE}?)`, "g");
    let done = 0;
    let joins = false;
    const scaffold = (text: string): void => {
      if (text.includes(this.nonce) || text.includes(OPEN)) {
        throw new UsageError("chat_template", "the chat template cuts message texts apart, so they cannot be told from control tokens", "Use another template, or a raw prompt.");
      }
      const kept = joins ? text.replace(TURN_BREAK, "") : text;
      if (kept !== "") pieces.push({ text: kept, trusted: true });
    };
    for (const match of rendered.matchAll(pattern)) {
      const [whole, before = "", escapes = "", index = "", after = ""] = match;
      scaffold(rendered.slice(done, match.index));
      done = match.index + whole.length;
      const item = this.held[Number(index)];
      let text = item?.text ?? "";
      if (before === "") text = text.replace(LEADING, "");
      if (after === "") text = stripEnd(text);
      for (let depth = Math.log2(escapes.length + 1); depth > 0; depth--) text = JSON.stringify(text).slice(1, -1);
      if (text !== "") pieces.push({ text, trusted: false });
      joins = item?.joinsNext ?? false;
    }
    scaffold(rendered.slice(done));
    return pieces;
  }
}

/** A regular expression anchored at the end would restart at every space; looking at the tail alone is linear. */
function stripEnd(text: string): string {
  let end = text.length;
  while (end > 0 && LEADING.test(text[end - 1] ?? "")) end--;
  return text.slice(0, end);
}
