// Strings with length limits. A grammar would need a rule for every length, so it has a hole there, and characters are counted here.
import type { Tokenizer } from "../tokenizer/index.ts";
import { isControl, type Limits } from "./ebnf.ts";

/** Characters of a JSON string: those that need no escape, and whole escapes. */
const JSON_CONTENT = /^(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*$/u, JSON_CHARACTER = /\\u....|\\.|./gsu;
const QUOTE = 0x22, BACKSLASH = 0x5c, LESS = 0x3c;
const CONTINUES = 0x80, NOT_ALLOWED = 0xff;
/** Bytes that follow a first byte of UTF-8. */
const following = (byte: number): number => (byte < 0xc0 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3);

/**
 * What each token adds to a string: so many characters, beginning and ending in the midst of one where vocabularies hold pieces of characters.
 * Pieces of escapes are not allowed: a vocabulary without tokens for whole ones writes such strings without quotes and newlines.
 */
export class Content {
  readonly #lengths: Uint16Array;
  /** Bytes in front that end a character begun before; NOT_ALLOWED for tokens with more than a string's content. */
  readonly #ends: Uint8Array;
  /** Bytes that the last character still lacks. */
  readonly #lacks: Uint8Array;
  readonly #masks = new Map<string, Uint32Array>();
  #longest = 0;

  constructor(tokenizer: Tokenizer, dialect: Limits["dialect"]) {
    const size = tokenizer.vocabSize, utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
    this.#lengths = new Uint16Array(size);
    this.#ends = new Uint8Array(size).fill(NOT_ALLOWED);
    this.#lacks = new Uint8Array(size);
    for (let id = 0; id < size; id++) {
      const bytes = tokenizer.marker(id) === undefined ? tokenizer.bytes(id) : undefined;
      if (!bytes || bytes.length === 0) continue;
      // Most tokens are plain letters, and a vocabulary has many.
      if (bytes.every((b) => b >= 0x20 && b < 0x7f && b !== QUOTE && b !== BACKSLASH && b !== LESS)) {
        this.#lengths[id] = bytes.length;
        this.#ends[id] = 0;
        this.#longest = Math.max(this.#longest, bytes.length);
        continue;
      }
      let from = 0, to = bytes.length, lacks = 0;
      while (from < to && (bytes[from]! & 0xc0) === CONTINUES) from++;
      const last = bytes.findLastIndex((b) => (b & 0xc0) !== CONTINUES);
      if (last >= 0 && following(bytes[last]!) > to - last - 1) [lacks, to] = [following(bytes[last]!) - (to - last - 1), last];
      let text: string;
      try { text = utf8.decode(bytes.subarray(from, Math.max(from, to))); } catch { continue; }
      if (from > 3 || bytes.some(isControl) || (dialect === "json" ? !JSON_CONTENT.test(text) : text.includes("<"))) continue;
      const length = (dialect === "json" ? text.match(JSON_CHARACTER)?.length ?? 0 : [...text].length) + (lacks > 0 ? 1 : 0);
      this.#lengths[id] = length;
      this.#ends[id] = from;
      this.#lacks[id] = lacks;
      this.#longest = Math.max(this.#longest, length);
    }
  }
  length(id: number): number { return this.#lengths[id]!; }
  /** Bytes lacking after a token, when `open` were before it. */
  lacking(id: number, open: number): number { return this.#lengths[id] === 0 ? open - this.#ends[id]! : this.#lacks[id]!; }
  /** Tokens of at most `room` characters that go on with a character lacking `open` bytes, as bits. */
  mask(room: number, open: number): Uint32Array {
    const most = Math.min(room, this.#longest), key = `${most} ${open}`;
    let words = this.#masks.get(key);
    if (!words) {
      words = new Uint32Array(Math.ceil(this.#lengths.length / 32));
      for (let id = 0; id < this.#lengths.length; id++) {
        const ends = this.#ends[id]!, length = this.#lengths[id]!;
        if (length <= most && (ends === open ? length > 0 || open > 0 : ends > 0 && ends < open && length === 0)) words[id >> 5]! |= 1 << (id & 31);
      }
      this.#masks.set(key, words);
    }
    return words;
  }
}

/** One string being written. */
export class HoleContent {
  #length = 0;
  #open = 0;
  constructor(private readonly content: Content, private readonly limits: Limits) {}
  /** The string may end here. */
  get enough(): boolean { return this.#open === 0 && this.#length >= this.limits.min; }
  /** Adds the tokens that may go on with it. */
  allow(words: Uint32Array): void {
    const inside = this.content.mask((this.limits.max ?? Infinity) - this.#length, this.#open);
    for (let i = 0; i < inside.length; i++) words[i]! |= inside[i]!;
  }
  accept(id: number): void {
    this.#open = this.content.lacking(id, this.#open);
    this.#length += this.content.length(id);
  }
}
