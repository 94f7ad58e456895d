// xgrammar under one roof: a tokenizer's vocabulary for it, compiled grammars, and matchers that give token masks. Knows no schema.
import type * as XGrammar from "@mlc-ai/web-xgrammar";
import { BaoError } from "../errors.ts";
import type { Tokenizer } from "../tokenizer/index.ts";
import { Content } from "./content.ts";
import { HOLES, holeText, isControl, type Limits, literal, MARKERS, markerText } from "./ebnf.ts";

type Library = typeof XGrammar;
type Compiled = XGrammar.CompiledGrammar;
type Native = XGrammar.GrammarMatcher;

/** Compiled grammars that a vocabulary keeps: one request's schema is mostly the next one's as well. */
const KEPT = 32;
const NONE = new Uint8Array(0);

// The package is megabytes of WebAssembly: loaded when the first grammar is.
let library: Promise<{ readonly xgrammar: Library; readonly memory: WebAssembly.Memory | undefined }> | undefined;
async function load(): Promise<{ xgrammar: Library; memory: WebAssembly.Memory | undefined }> {
  const { instantiate } = WebAssembly;
  let memory: WebAssembly.Memory | undefined;
  // The package gives masks by promise only, and a mask is due in the midst of a step. Its memory, which it keeps to itself, has them at once.
  const seen = async (...args: Parameters<typeof instantiate>): Promise<unknown> => {
    const made = await instantiate(...args) as unknown as { instance?: WebAssembly.Instance };
    memory ??= Object.values((made.instance ?? made as WebAssembly.Instance).exports).find((e) => e instanceof WebAssembly.Memory);
    return made;
  };
  WebAssembly.instantiate = seen as typeof instantiate;
  try {
    const m = await import("@mlc-ai/web-xgrammar") as Library & { default?: Library };
    // It is built as a script: as a module, all of it stands under `default`.
    const xgrammar = m.default?.GrammarMatcher ? m.default : m;
    (await xgrammar.Grammar.fromEBNF('root ::= "a"')).dispose();
    return { xgrammar, memory };
  } finally {
    WebAssembly.instantiate = instantiate;
  }
}

const vocabularies = new WeakMap<Tokenizer, Promise<Vocabulary>>();
// Memory behind a vocabulary is the library's own; it goes when the tokenizer does.
const forgotten = new FinalizationRegistry<() => void>((free) => free());

/** The vocabulary of a tokenizer, prepared on first use (0.3 s for 262,144 tokens). */
export function vocabularyOf(tokenizer: Tokenizer): Promise<Vocabulary> {
  let known = vocabularies.get(tokenizer);
  if (!known) {
    known = Vocabulary.create(tokenizer);
    vocabularies.set(tokenizer, known);
    known.then((v) => forgotten.register(tokenizer, v.free), () => vocabularies.delete(tokenizer));
  }
  return known;
}

export class Vocabulary {
  readonly #contents = new Map<Limits["dialect"], Content>();
  readonly #compiled = new Map<string, Promise<Compiled>>();
  private constructor(
    private readonly xgrammar: Library, private readonly memory: WebAssembly.Memory | undefined, private readonly info: XGrammar.TokenizerInfo, private readonly compiler: XGrammar.GrammarCompiler,
    readonly size: number, readonly markers: ReadonlyMap<string, string>,
  ) {}
  /** Frees what the library holds. Bound to no tokenizer, so that one can be collected. */
  readonly free = (): void => {
    for (const c of this.#compiled.values()) void c.then((known) => known.dispose(), () => {});
    this.compiler.dispose();
    this.info.dispose();
  };

  static async create(tokenizer: Tokenizer): Promise<Vocabulary> {
    const { xgrammar, memory } = await (library ??= load()), utf8 = new TextEncoder(), markers = new Map<string, string>();
    const texts: Uint8Array[] = [];
    for (let id = 0; id < tokenizer.vocabSize; id++) {
      const marker = tokenizer.marker(id);
      if (marker === undefined) {
        const bytes = tokenizer.bytes(id);
        texts.push(bytes.some(isControl) ? NONE : bytes);
        continue;
      }
      // An empty token is never allowed.
      if (tokenizer.stopIds.has(id) || markers.size >= MARKERS - HOLES) { texts.push(NONE); continue; }
      const text = markerText(markers.size);
      markers.set(marker, text);
      texts.push(utf8.encode(text));
    }
    for (let n = 0; n < HOLES; n++) texts.push(utf8.encode(holeText(n)));
    // "raw": tokens are given as the bytes that they stand for. The declared type knows strings only.
    const info = await xgrammar.TokenizerInfo.createTokenizerInfo(texts as unknown as string[], "raw", false, texts.length, [...tokenizer.stopIds]);
    return new Vocabulary(xgrammar, memory, info, await xgrammar.GrammarCompiler.createGrammarCompiler(info, false), tokenizer.vocabSize, markers);
  }

  /** What this vocabulary's tokens add to strings of limited length. */
  content(tokenizer: Tokenizer, dialect: Limits["dialect"]): Content {
    const content = this.#contents.get(dialect) ?? new Content(tokenizer, dialect);
    this.#contents.set(dialect, content);
    return content;
  }
  /** Grammar of a marker: its token, or its text where the vocabulary has none. */
  marker(text: string): string { return literal(this.markers.get(text) ?? text); }

  /** A matcher at the beginning of `grammar`. Throws BaoError `grammar_failed` for a grammar that is none. */
  async matcher(grammar: string, ends: "with a stop token" | "by itself" = "with a stop token"): Promise<Matcher> {
    const compiled = this.#compiled.get(grammar) ?? this.compiler.compileGrammar(grammar);
    // The order of a Map is that of insertion: the first is the one that was not asked for longest.
    this.#compiled.delete(grammar);
    this.#compiled.set(grammar, compiled);
    for (const [old, c] of this.#compiled) {
      if (this.#compiled.size <= KEPT) break;
      this.#compiled.delete(old);
      void c.then((known) => known.dispose(), () => {});
    }
    let ready: Compiled;
    try {
      ready = await compiled;
    } catch (e) {
      this.#compiled.delete(grammar);
      throw new BaoError("grammar_failed", `The grammar of this request cannot be compiled: ${e instanceof Error ? e.message.split("\n")[0] : String(e)}`, "This is a defect of Bao: please report the schema.", { cause: e });
    }
    return new Matcher(await this.xgrammar.GrammarMatcher.createGrammarMatcher(ready, undefined, ends === "by itself"), this.memory);
  }
}

interface NativeWords { readonly $$: { readonly ptr: number }; size(): number; get(i: number): number; delete(): void }

/** Where one answer stands in its grammar. */
export class Matcher implements Disposable {
  readonly #handle: { GetNextTokenBitmask(size: number): NativeWords };
  readonly #size: number;
  #disposed = false;
  constructor(private readonly native: Native, private readonly memory: WebAssembly.Memory | undefined) {
    ({ handle: this.#handle, vocab_size: this.#size } = native as unknown as { handle: { GetNextTokenBitmask(size: number): NativeWords }; vocab_size: number });
  }

  /** Allowed tokens of the next position as bits, those that stand for holes behind the vocabulary's: 0.1 to 0.4 ms for 262,144 tokens. */
  words(): Uint32Array {
    const words = this.#handle.GetNextTokenBitmask(this.#size), count = words.size();
    try {
      // A C++ vector: where it begins and where it ends.
      const [begin = 0, end = 0] = this.memory ? new Uint32Array(this.memory.buffer, words.$$.ptr, 2) : [];
      if (this.memory && end - begin === count * 4) return new Uint32Array(this.memory.buffer, begin, count).slice();
      return Uint32Array.from({ length: count }, (_, i) => words.get(i));
    } finally {
      words.delete();
    }
  }
  /** Moves on by a token; false if the grammar does not allow it. */
  accept(id: number): boolean { return this.native.acceptToken(id); }
  /** The grammar is at its end; only a matcher that ends without a stop token says so. */
  get complete(): boolean { return this.native.isTerminated(); }
  /** Back to the beginning. */
  reset(): void { this.native.reset(); }
  /** Moves on by a text; false if the grammar does not allow it. */
  acceptText(text: string): boolean { return this.native._acceptString(text); }

  [Symbol.dispose](): void {
    if (!this.#disposed) this.native.dispose();
    this.#disposed = true;
  }
}
