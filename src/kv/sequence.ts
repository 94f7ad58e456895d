// Page tables of one sequence over all KV kinds: reserving, releasing behind the window, rewinding, forking. Tokens are positions, never ids.
import type { KvKind } from "../model/config.ts";
import { PAGE_TOKENS, pagesFor, type PageAllocator } from "./pages.ts";

/** One change of a page table, to be sent with the next step. */
export interface PageDelta { table: number; index: number; page: number }

/** A KV kind with its allocator, the copy of one page's first tokens, and whole pages as bytes. */
export interface KvStore {
  readonly kind: KvKind;
  readonly allocator: PageAllocator;
  readonly pageBytes: number;
  readPage(page: number, into: Uint8Array): void;
  writePage(page: number, from: Uint8Array): void;
  copyPage(destination: number, source: number, tokens: number): void;
}

/** Pages held at a past length, so that the sequence can go back there: end of a prompt, end of a turn. */
export interface Snapshot { readonly length: number; readonly pages: ReadonlyMap<number, readonly { index: number; page: number }[]> }

export class SequencePages {
  /** Tokens whose KV is complete. */
  length = 0;
  readonly #tables: Map<number, Int32Array>;
  #deltas = new Map<number, Map<number, number>>();

  constructor(private readonly stores: readonly KvStore[], private readonly maxTokens: number) {
    this.#tables = new Map(stores.map((s) => [s.kind.table, new Int32Array(new ArrayBuffer(pagesFor(maxTokens) * 4)).fill(-1)]));
  }

  /** Makes pages for `tokens` positions from length + `ahead` on: `ahead` tokens are being written. A partial page that others share is copied first. All or nothing. */
  reserve(tokens: number, ahead = 0): void {
    const taken: [KvStore, number][] = [], start = this.length + ahead;
    try {
      for (const s of this.stores) {
        const table = this.#table(s);
        const partial = Math.trunc(start / PAGE_TOKENS), inPage = start % PAGE_TOKENS;
        if (inPage > 0 && table[partial]! >= 0 && s.allocator.shared(table[partial]!)) {
          const copy = s.allocator.take();
          try {
            s.copyPage(copy, table[partial]!, inPage);
          } catch (e) {
            s.allocator.release(copy);
            throw e;
          }
          s.allocator.release(table[partial]!);
          this.#set(s, partial, copy);
        }
        for (let i = partial; i < pagesFor(start + tokens); i++) {
          if (table[i]! >= 0) continue;
          this.#set(s, i, s.allocator.take());
          taken.push([s, i]);
        }
      }
    } catch (e) {
      for (const [s, i] of taken) { s.allocator.release(this.#table(s)[i]!); this.#set(s, i, -1); }
      throw e;
    }
  }
  /**
   * The step that wrote `tokens` tokens has ended: they count, and pages wholly behind the window are let go. One token more than the window needs
   * stays: a prompt that comes again runs its last token again, so that its end must be reachable from one token before it.
   */
  commit(tokens: number): void {
    this.length += tokens;
    for (const s of this.stores) {
      if (s.kind.window === 0) continue;
      const firstKept = Math.max(0, this.length - s.kind.window);
      const table = this.#table(s);
      for (let i = Math.trunc(firstKept / PAGE_TOKENS) - 1; i >= 0 && table[i]! >= 0; i--) {
        s.allocator.release(table[i]!);
        this.#set(s, i, -1);
      }
    }
  }
  /** Whether going back to `length` tokens leaves every page that attention can reach. */
  canRewind(length: number): boolean {
    return length <= this.length && this.stores.every((s) => reaches(s, length, (i) => this.#table(s)[i]! >= 0));
  }
  /** Whether `restore(snapshot)` and then `rewind(length)` leaves every page that attention can reach. */
  canRestore(snapshot: Snapshot, length: number): boolean {
    return length <= snapshot.length && this.stores.every((s) => {
      const held = new Set(snapshot.pages.get(s.kind.table)!.map((p) => p.index));
      return reaches(s, length, (i) => held.has(i));
    });
  }
  /** Goes back to `length` tokens (see canRewind); pages beyond are let go. */
  rewind(length: number): void {
    for (const s of this.stores) {
      const table = this.#table(s);
      for (let i = pagesFor(length); i < table.length; i++) if (table[i]! >= 0) { s.allocator.release(table[i]!); this.#set(s, i, -1); }
    }
    this.length = length;
  }
  /** Shares every page that a sequence going on from here can reach. Release it with `drop`. */
  snapshot(): Snapshot {
    return {
      length: this.length,
      pages: new Map(this.stores.map((s) => {
        const table = this.#table(s), held: { index: number; page: number }[] = [];
        for (let i = 0; i < pagesFor(this.length); i++) if (table[i]! >= 0) held.push({ index: i, page: s.allocator.share(table[i]!) });
        return [s.kind.table, held];
      })),
    };
  }
  /** Becomes the state of a snapshot (of this or another sequence over the same stores). */
  restore(snapshot: Snapshot): void {
    this.rewind(0);
    for (const s of this.stores) for (const { index, page } of snapshot.pages.get(s.kind.table)!) this.#set(s, index, s.allocator.share(page));
    this.length = snapshot.length;
  }
  /** The same pages once more, for another owner. */
  share(snapshot: Snapshot): Snapshot {
    return {
      length: snapshot.length,
      pages: new Map(this.stores.map((s) => [s.kind.table, snapshot.pages.get(s.kind.table)!.map(({ index, page }) => ({ index, page: s.allocator.share(page) }))])),
    };
  }
  drop(snapshot: Snapshot): void {
    for (const s of this.stores) for (const { page } of snapshot.pages.get(s.kind.table)!) s.allocator.release(page);
  }
  /** Page of a position's token in a table, -1 when none. */
  page(table: number, index: number): number { return this.#tables.get(table)![index]!; }
  /** Table changes since the last call, one an entry. */
  takeDeltas(): PageDelta[] {
    const out: PageDelta[] = [];
    for (const [table, changes] of this.#deltas) for (const [index, page] of changes) out.push({ table, index, page });
    this.#deltas = new Map();
    return out;
  }
  /** Puts changes back whose step was never accepted; later changes of the same entries win. */
  returnDeltas(deltas: readonly PageDelta[]): void {
    for (const { table, index, page } of deltas) {
      const changes = this.#changes(table);
      if (!changes.has(index)) changes.set(index, page);
    }
  }
  /** Lets every page go. */
  release(): void { this.rewind(0); }

  #table(s: KvStore): Int32Array { return this.#tables.get(s.kind.table)!; }
  #set(s: KvStore, index: number, page: number): void {
    this.#table(s)[index] = page;
    this.#changes(s.kind.table).set(index, page);
  }
  #changes(table: number): Map<number, number> {
    let changes = this.#deltas.get(table);
    if (!changes) this.#deltas.set(table, (changes = new Map()));
    return changes;
  }
}

/** Whether all pages are there that a query at position `length` can see. */
function reaches(s: KvStore, length: number, has: (index: number) => boolean): boolean {
  const from = s.kind.window === 0 ? 0 : Math.max(0, length - s.kind.window + 1);
  for (let i = Math.trunc(from / PAGE_TOKENS); i < pagesFor(length); i++) if (!has(i)) return false;
  return true;
}
