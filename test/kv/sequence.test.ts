// Page tables under random schedules, against a store that keeps the token of every place: whatever a query may look at must be what the
// sequence itself wrote there, pages have exactly the owners that hold them, and what a step is told of table changes adds up to the table.
import { expect, test } from "bun:test";
import fc from "fast-check";
import { PAGE_TOKENS, PageAllocator, pagesFor } from "../../src/kv/pages.ts";
import { SequencePages, type KvStore, type Snapshot } from "../../src/kv/sequence.ts";
import { poolPages, SNAPSHOTS } from "../../src/model/estimate.ts";

/** Pages with what stands in them: a number for each (sequence history, position), so that a wrong page shows. */
class Store implements KvStore {
  readonly contents: Int32Array[];
  readonly allocator: PageAllocator;
  copies = 0;
  brokenCopies = false;
  readonly kind: KvStore["kind"];
  constructor(table: number, window: number, capacity: number) {
    this.kind = { table, window, kvHeads: 1, headDim: 16, layers: [table] };
    this.contents = Array.from({ length: capacity }, () => new Int32Array(PAGE_TOKENS).fill(-1));
    this.allocator = new PageAllocator(capacity, () => {});
  }
  readonly pageBytes = PAGE_TOKENS * 4;
  readPage(page: number, into: Uint8Array): void { into.set(new Uint8Array(this.contents[page]!.buffer)); }
  writePage(page: number, from: Uint8Array): void { new Uint8Array(this.contents[page]!.buffer).set(from); }
  copyPage(destination: number, source: number, tokens: number): void {
    if (this.brokenCopies) throw new Error("copy failed");
    this.copies++;
    this.contents[destination]!.fill(-1);
    this.contents[destination]!.set(this.contents[source]!.subarray(0, tokens));
  }
}

/** A sequence, the tokens that it should hold, and the table as the device knows it. */
class Checked {
  readonly pages: SequencePages;
  tokens: number[] = [];
  readonly device: Int32Array[];
  constructor(readonly stores: Store[], readonly maxTokens: number) {
    this.pages = new SequencePages(stores, maxTokens);
    this.device = stores.map(() => new Int32Array(pagesFor(maxTokens)).fill(-1));
  }
  /** A step: reserve, tell the device, write through the device's table, commit. */
  step(tokens: readonly number[]): void {
    this.pages.reserve(tokens.length);
    this.tell();
    const start = this.tokens.length;
    for (const s of this.stores) tokens.forEach((token, i) => {
      const at = start + i, page = this.device[s.kind.table]![Math.trunc(at / PAGE_TOKENS)]!;
      expect(page).toBeGreaterThanOrEqual(0);
      // Nobody else may see what is written now.
      expect(s.allocator.shared(page)).toBe(false);
      s.contents[page]![at % PAGE_TOKENS] = token;
    });
    this.tokens.push(...tokens);
    for (const s of this.stores) this.reachable(s, start); // the step's first row looks furthest back
    this.pages.commit(tokens.length);
    expect(this.pages.length).toBe(this.tokens.length);
  }
  tell(): void {
    const deltas = this.pages.takeDeltas();
    expect(new Set(deltas.map((d) => `${d.table} ${d.index}`)).size).toBe(deltas.length);
    for (const { table, index, page } of deltas) this.device[table]![index] = page;
    for (const s of this.stores) for (let i = 0; i < pagesFor(this.maxTokens); i++) expect(this.device[s.kind.table]![i]).toBe(this.pages.page(s.kind.table, i));
  }
  /** What a query at `position` sees is what was written. */
  reachable(s: Store, position: number): void {
    const from = s.kind.window === 0 ? 0 : Math.max(0, position - s.kind.window + 1);
    for (let at = from; at < Math.min(position, this.tokens.length); at++) {
      const page = this.pages.page(s.kind.table, Math.trunc(at / PAGE_TOKENS));
      if (page < 0 || s.contents[page]![at % PAGE_TOKENS] !== this.tokens[at]) throw new Error(`window ${s.kind.window}, length ${this.tokens.length}: position ${at} is gone (page ${page})`);
    }
  }
  check(): void { for (const s of this.stores) this.reachable(s, this.tokens.length); }
  owned(table: number): number[] { return Array.from({ length: pagesFor(this.maxTokens) }, (_, i) => this.pages.page(table, i)).filter((p) => p >= 0); }
}

interface Held { snapshot: Snapshot; tokens: number[] }

const action = fc.oneof(
  { weight: 6, arbitrary: fc.record({ kind: fc.constant("step" as const), sequence: fc.nat(2), tokens: fc.oneof(fc.integer({ min: 1, max: 5 }), fc.integer({ min: 60, max: 200 })) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("abandon" as const), sequence: fc.nat(2), tokens: fc.integer({ min: 1, max: 100 }) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("rewind" as const), sequence: fc.nat(2), back: fc.oneof(fc.integer({ min: 0, max: 3 }), fc.integer({ min: 0, max: 300 })) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("snapshot" as const), sequence: fc.nat(2) }) },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant("restore" as const), sequence: fc.nat(2), which: fc.nat(), back: fc.integer({ min: 0, max: 100 }) }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("drop" as const), which: fc.nat() }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant("release" as const), sequence: fc.nat(2) }) },
);

test.each([20, 200])("random schedules over three sequences, pools of %i pages", (capacity) => {
  const maxTokens = 640;
  let full = 0, copies = 0;
  fc.assert(fc.property(fc.array(action, { minLength: 30, maxLength: 60, size: "max" }), (actions) => {
    const stores = [new Store(0, 0, capacity), new Store(1, 100, capacity), new Store(2, 256, capacity)];
    const sequences = Array.from({ length: 3 }, () => new Checked(stores, maxTokens));
    const held: Held[] = [];
    let next = 1;
    for (const a of actions) {
      const sequence = "sequence" in a ? sequences[a.sequence]! : undefined;
      if (a.kind === "step" && sequence!.tokens.length + a.tokens <= maxTokens) {
        const used = stores.map((s) => s.allocator.used), before = stores.map((s) => sequence!.owned(s.kind.table).length);
        try {
          sequence!.step(Array.from({ length: a.tokens }, () => next++));
        } catch (e) {
          if ((e as { code?: string }).code !== "kv_full") throw e;
          // All or nothing: only copies of partial pages, which are as good as the originals, may have been taken.
          full++;
          stores.forEach((s, i) => {
            expect(sequence!.owned(s.kind.table).length).toBe(before[i]!);
            expect(s.allocator.used - used[i]!).toBeWithin(0, 2);
          });
        }
      } else if (a.kind === "abandon" && sequence!.tokens.length + a.tokens <= maxTokens) {
        // A step that was cancelled after it had been submitted: nothing counts.
        try { sequence!.pages.reserve(a.tokens); } catch { /* full */ }
        sequence!.tell();
      } else if (a.kind === "rewind") {
        const length = Math.max(0, sequence!.tokens.length - a.back);
        if (a.back === 0) expect(sequence!.pages.canRewind(length)).toBe(true);
        if (sequence!.pages.canRewind(length)) { sequence!.pages.rewind(length); sequence!.tokens.length = length; }
      } else if (a.kind === "snapshot") held.push({ snapshot: sequence!.pages.snapshot(), tokens: [...sequence!.tokens] });
      else if (a.kind === "restore" && held.length > 0) {
        const h = held[a.which % held.length]!, length = Math.max(0, h.tokens.length - a.back), reaches = sequence!.pages.canRestore(h.snapshot, length);
        sequence!.pages.restore(h.snapshot);
        expect(sequence!.pages.length).toBe(h.tokens.length);
        sequence!.tokens = [...h.tokens];
        expect(sequence!.pages.canRewind(length)).toBe(reaches);
        if (reaches) { sequence!.pages.rewind(length); sequence!.tokens.length = length; }
      } else if (a.kind === "drop" && held.length > 0) sequences[0]!.pages.drop(held.splice(a.which % held.length, 1)[0]!.snapshot);
      else if (a.kind === "release") { sequence!.pages.release(); sequence!.tokens = []; }

      for (const s of sequences) s.check();
      for (const s of stores) {
        const owners = [...sequences.flatMap((q) => q.owned(s.kind.table)), ...held.flatMap((h) => h.snapshot.pages.get(s.kind.table)!.map((p) => p.page))];
        expect(s.allocator.used).toBe(new Set(owners).size);
        for (const page of new Set(owners)) expect(s.allocator.shared(page)).toBe(owners.filter((p) => p === page).length > 1);
      }
    }
    copies += stores[0]!.copies;
    // Nothing is lost: when everybody lets go, every page is free again.
    for (const h of held) sequences[0]!.pages.drop(h.snapshot);
    for (const s of sequences) s.pages.release();
    for (const s of stores) expect(s.allocator.used).toBe(0);
  }), { numRuns: 60 });
  // The schedules must have met what they are for.
  expect(copies).toBeGreaterThan(20);
  if (capacity === 20) expect(full).toBeGreaterThan(0);
});

test("pages wholly behind the window go when a step commits, not before", () => {
  const store = new Store(0, 100, 20), s = new Checked([store], 1280);
  s.step(Array.from({ length: 64 * 8 }, (_, i) => i));
  // The next query, at 512, sees from 413 on: page 6 (384 ... 447) is the first one that stays.
  expect(s.owned(0).length).toBe(2);
  expect([s.pages.page(0, 5), s.pages.page(0, 6) >= 0, s.pages.page(0, 7) >= 0]).toEqual([-1, true, true]);
  s.pages.reserve(64 * 4);
  expect(s.owned(0).length).toBe(6);
});

test.each([64, 100, 256, 257])("window %i: a sequence can always go back by one token, at every length", (window) => {
  const store = new Store(0, window, 20), s = new Checked([store], 1024);
  for (let n = 1; n <= 700; n++) {
    s.step([n]);
    expect([n, s.pages.canRewind(n - 1)]).toEqual([n, true]);
    expect(s.owned(0).length).toBeLessThanOrEqual(pagesFor(window) + 1);
  }
  expect(s.pages.canRewind(100)).toBe(false);
});

test("a shared partial page is copied before it is written, once, with the tokens it holds", () => {
  const store = new Store(0, 0, 8), a = new Checked([store], 512);
  a.step(Array.from({ length: 70 }, (_, i) => i));
  const snapshot = a.pages.snapshot(), shared = a.pages.page(0, 1);
  a.step([70]);
  expect([store.copies, a.pages.page(0, 1) === shared, a.pages.page(0, 0)]).toEqual([1, false, snapshot.pages.get(0)![0]!.page]);
  a.step([71, 72]);
  expect(store.copies).toBe(1);
  // The snapshot still shows what it held.
  const b = new Checked([store], 512);
  b.pages.restore(snapshot);
  b.tokens = Array.from({ length: 70 }, (_, i) => i);
  b.check();
  b.step([1000]);
  a.check();
  a.pages.drop(snapshot);
  a.pages.release();
  b.pages.release();
  expect(store.allocator.used).toBe(0);
});

test("a copy that fails leaves everything as it was", () => {
  const store = new Store(0, 0, 8), a = new Checked([store], 512);
  a.step([1, 2, 3]);
  const snapshot = a.pages.snapshot();
  store.brokenCopies = true;
  expect(() => a.pages.reserve(1)).toThrow("copy failed");
  expect(store.allocator.used).toBe(1);
  store.brokenCopies = false;
  a.step([4]);
  a.pages.drop(snapshot);
  a.pages.release();
  expect(store.allocator.used).toBe(0);
});

test("changes of a step that was refused are sent with the next one, unless newer ones replace them", () => {
  const store = new Store(0, 0, 8), a = new Checked([store], 512);
  a.pages.reserve(130);
  const refused = a.pages.takeDeltas();
  expect(refused.map((d) => d.index)).toEqual([0, 1, 2]);
  a.pages.rewind(0);
  a.pages.reserve(65);
  a.pages.returnDeltas(refused);
  a.tell(); // compares with the table
});

// The pool is as large as the estimate says; a conversation must never need one page more.
test.each([[0, 64], [256, 64], [256, 256], [100, 32], [1024, 256]])("window %i, chunks of %i: the planned pool holds a conversation and its snapshots", (window, chunk) => {
  const context = 1500;
  fc.assert(fc.property(fc.array(fc.record({ prompt: fc.integer({ min: 1, max: 900 }), answer: fc.integer({ min: 0, max: 400 }), keep: fc.double({ min: 0, max: 1, noNaN: true }) }), { minLength: 1, maxLength: 8 }), (turns) => {
    const kind = { table: 0, window, kvHeads: 1, headDim: 16, layers: [0] };
    const store = new Store(0, window, poolPages(kind, { context, sequences: 1, chunk, outputs: 1, kvType: "f32" }));
    const s = new Checked([store], context);
    let snapshots: Snapshot[] = [], next = 1;
    const take = (): void => {
      while (snapshots.length >= SNAPSHOTS) s.pages.drop(snapshots.shift()!);
      snapshots.push(s.pages.snapshot());
    };
    for (const turn of turns) {
      const length = Math.trunc(s.tokens.length * turn.keep);
      snapshots = snapshots.filter((h) => { if (h.length > length) s.pages.drop(h); return h.length <= length; });
      if (s.pages.canRewind(length)) { s.pages.rewind(length); s.tokens.length = length; }
      else if (snapshots.length > 0) { s.pages.restore(snapshots.at(-1)!); s.tokens.length = s.pages.length; }
      else { s.pages.rewind(0); s.tokens = []; }
      take();
      for (let left = Math.min(turn.prompt, context - s.tokens.length); left > 0; left -= chunk) s.step(Array.from({ length: Math.min(chunk, left) }, () => next++));
      take();
      for (let left = Math.min(turn.answer, context - s.tokens.length); left > 0; left--) s.step([next++]);
    }
  }), { numRuns: 25 });
});
