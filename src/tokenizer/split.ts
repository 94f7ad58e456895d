// Cuts text: at special tokens, and at places that no merge can cross. Never looks up ids of ordinary text.

/** A longest-match dictionary over UTF-16 code units. */
export class Splitter {
  private readonly root: TrieNode = { next: new Map(), id: -1 };
  private readonly first: RegExp | undefined;

  constructor(entries: Iterable<readonly [text: string, id: number]>) {
    const firsts = new Set<string>();
    for (const [text, id] of entries) {
      let node = this.root;
      for (let i = 0; i < text.length; i++) {
        const code = text.charCodeAt(i);
        let next = node.next.get(code);
        if (next === undefined) node.next.set(code, (next = { next: new Map(), id: -1 }));
        node = next;
      }
      node.id = id;
      firsts.add(`\\u${text.charCodeAt(0).toString(16).padStart(4, "0")}`);
    }
    // Most text holds no special token at all: the regular expression skips it at native speed.
    if (firsts.size > 0) this.first = new RegExp(`[${[...firsts].join("")}]`, "g");
  }

  /** Calls back with every maximal stretch of other text (as a string) and every match (as its id), in order. */
  split(text: string, emit: (part: string | number) => void): void {
    const first = this.first;
    let done = 0;
    if (first !== undefined) {
      first.lastIndex = 0;
      for (let hit = first.exec(text); hit !== null; hit = first.exec(text)) {
        let node: TrieNode | undefined = this.root;
        let id = -1;
        let end = hit.index;
        for (let i = hit.index; i < text.length; i++) {
          node = node.next.get(text.charCodeAt(i));
          if (node === undefined) break;
          if (node.id >= 0) [id, end] = [node.id, i + 1];
        }
        if (id < 0) continue;
        if (hit.index > done) emit(text.slice(done, hit.index));
        emit(id);
        done = end;
        first.lastIndex = end;
      }
    }
    if (done < text.length) emit(done === 0 ? text : text.slice(done));
  }
}

interface TrieNode {
  readonly next: Map<number, TrieNode>;
  id: number;
}

const NEWLINE = 10;
const SPACE_CODE = 0x2581;
/** Longer stretches without a word start are cut at any safe pair; shorter ones stay whole so that they can be cached. */
const LONG = 512;
const CODE_LIMIT = 0x200000;

/**
 * Finds cuts that cannot change a segmentation. A merge crosses a boundary between code points a and b only if some left side
 * ends in a while its right side begins with b; `allow` records those pairs, every other boundary separates independent problems.
 */
export class Cutter {
  private readonly joined = new Set<number>();

  /** Records that a merge may join `a` and `b`. */
  allow(a: number, b: number): void {
    this.joined.add(a * CODE_LIMIT + b);
  }

  /** True if no merge can cross the boundary between code points `a` and `b`. */
  safe(a: number, b: number): boolean {
    return !this.joined.has(a * CODE_LIMIT + b);
  }

  /** Calls back with consecutive pieces of `text`, in order: words, runs of newlines, bounded stretches of anything else. */
  cut(text: string, emit: (piece: string) => void): void {
    let start = 0;
    for (let i = 1; i < text.length; i++) {
      const b = text.charCodeAt(i);
      if (b >= 0xdc00 && b <= 0xdfff) continue;
      const a = text.charCodeAt(i - 1);
      const wordStart = b === SPACE_CODE && a !== SPACE_CODE;
      const lineEdge = (a === NEWLINE) !== (b === NEWLINE);
      if (!wordStart && !lineEdge && i - start < LONG) continue;
      if (this.safe(codeBefore(text, i), text.codePointAt(i) ?? 0)) {
        emit(text.slice(start, i));
        start = i;
      }
    }
    if (start < text.length) emit(start === 0 ? text : text.slice(start));
  }
}

function codeBefore(text: string, i: number): number {
  const unit = text.charCodeAt(i - 1);
  return unit >= 0xdc00 && unit <= 0xdfff && i >= 2 ? (text.codePointAt(i - 2) ?? unit) : unit;
}

/** Last code point of a non-empty string. */
export function lastCode(text: string): number {
  return codeBefore(text, text.length);
}
