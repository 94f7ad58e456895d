// Saved sequences: what is read is what was written, and no damaged, foreign or half-written file ever changes a sequence or a former file.
import { afterAll, beforeEach, expect, test } from "bun:test";
import { mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { PAGE_TOKENS, PageAllocator } from "../../src/kv/pages.ts";
import { restoreSequence, saveSequence, type SavedFor } from "../../src/kv/saved.ts";
import { SequencePages, type KvStore } from "../../src/kv/sequence.ts";

const folder = mkdtempSync(join(tmpdir(), "bao-saved-")), path = join(folder, "session.bin");
afterAll(() => rmSync(folder, { recursive: true, force: true }));
const WANTED: SavedFor = { model: "a model", kvType: "f16", vocabulary: 1000 };
const now = async (): Promise<void> => {};

/** Stores in memory: one that keeps all, one with a window. */
function makeStores(capacity = 40): { stores: KvStore[]; contents: Uint8Array[][] } {
  const contents = [0, 1].map(() => Array.from({ length: capacity }, () => new Uint8Array(new ArrayBuffer(96))));
  const stores = [0, 1].map((table): KvStore => ({
    kind: { table, window: table === 0 ? 0 : 100, kvHeads: 1, headDim: 16, layers: [table] }, allocator: new PageAllocator(capacity, () => {}), pageBytes: 96,
    copyPage: (to, from) => contents[table]![to]!.set(contents[table]![from]!),
    readPage: (page, into) => into.set(contents[table]![page]!), writePage: (page, from) => contents[table]![page]!.set(from),
  }));
  return { stores, contents };
}
type Made = ReturnType<typeof makeStores> & { pages: SequencePages; ids: number[] };
/** A sequence of `tokens`, whose pages hold numbers of their own. */
function make(tokens: number, salt = 0): Made {
  const made = makeStores(), pages = new SequencePages(made.stores, 1024);
  for (let at = 0; at < tokens; at += 50) {
    const n = Math.min(50, tokens - at);
    pages.reserve(n);
    pages.commit(n);
  }
  made.contents.forEach((all, table) => all.forEach((page, i) => page.fill((salt + table * 100 + i) & 255)));
  return { ...made, pages, ids: Array.from({ length: tokens }, (_, i) => (i * 7 + salt) % 1000) };
}
/** What can be seen of a sequence: its reachable pages' contents, by table and index. */
const contentsOf = (m: Pick<Made, "stores" | "contents" | "pages">): unknown => [m.pages.length, m.stores.map((s, t) => Array.from({ length: Math.ceil(m.pages.length / PAGE_TOKENS) }, (_, i) => {
  const page = m.pages.page(s.kind.table, i);
  return page < 0 ? "none" : [...m.contents[t]![page]!];
}))];
const save = (m: Made, to = path): Promise<void> => {
  const snapshot = m.pages.snapshot();
  return saveSequence(to, WANTED, m.ids, m.stores, snapshot, now).finally(() => m.pages.drop(snapshot));
};
const restore = (m: Made, wanted = WANTED, from = path): Promise<number[]> => restoreSequence(from, wanted, 1024, m.stores, m.pages, () => m.pages.rewind(0), now);
const failed = async (work: Promise<unknown>): Promise<unknown> => { try { await work; } catch (e) { return (e as { code?: string }).code ?? e; } return "no error"; };
const usedBy = (m: Made): number[] => m.stores.map((s) => s.allocator.used);

beforeEach(() => rmSync(path, { force: true }));

test.each([0, 1, 63, 64, 65, 164, 165, 400, 1024])("%i tokens: the same ids, the same pages, behind the window none", async (tokens) => {
  const from = make(tokens, tokens), to = make(130, 5);
  await save(from);
  expect(await restore(to)).toEqual(from.ids);
  expect(contentsOf(to)).toEqual(contentsOf(from));
  // Each page has the one owner that holds it.
  const counts = usedBy(from);
  expect(usedBy(to)).toEqual(counts);
  to.pages.rewind(0);
  expect(usedBy(to)).toEqual([0, 0]);
});

test("cut short at every byte, and with each byte changed: a typed error; never a sequence that is half there", async () => {
  const from = make(200);
  await save(from);
  const whole = readFileSync(path), codes = new Set<unknown>();
  const look = async (): Promise<void> => {
    const to = make(70, 9), before = contentsOf(to), code = await failed(restore(to));
    codes.add(code);
    if (to.pages.length === 70) expect(contentsOf(to)).toEqual(before);
    else expect([to.pages.length, usedBy(to)]).toEqual([0, [0, 0]]);
  };
  for (let n = 0; n < whole.length; n += n < 400 ? 1 : 37) {
    writeFileSync(path, whole);
    truncateSync(path, n);
    await look();
  }
  for (let n = 0; n < whole.length; n += n < 400 ? 1 : 37) {
    const changed = Buffer.from(whole);
    changed[n]! ^= 0x10;
    writeFileSync(path, changed);
    await look();
  }
  writeFileSync(path, Buffer.concat([whole, Buffer.from([1])]));
  await look();
  codes.delete("session_mismatch"); // a changed letter of the model's name
  expect([...codes]).toEqual(["session_damaged"]);
});

test("heads that lie, with a right checksum", async () => {
  const from = make(200);
  await save(from);
  const whole = readFileSync(path), length = whole.readUInt32LE(8), head = JSON.parse(whole.toString("utf8", 12, 12 + length)) as { tokens: number; tables: { table: number; pageBytes: number; indexes: number[] }[] };
  const lies: ((h: typeof head) => unknown)[] = [
    (h) => { h.tables[0]!.indexes.reverse(); }, (h) => { h.tables[0]!.indexes[0] = 1; }, (h) => { h.tables[0]!.indexes[3] = 4; }, (h) => { h.tables[1]!.indexes[0] = 1e9; },
    (h) => { h.tokens = 2000; }, (h) => { h.tokens = 199; }, (h) => { h.tokens = -1; }, (h) => { h.tokens = 1e300; }, (h) => { h.tables.pop(); }, (h) => { h.tables.reverse(); }, (h) => { h.tables[0]!.pageBytes = 48; },
    (h) => { h.tables[0]!.pageBytes = 0; }, (h) => { (h as { tables: unknown }).tables = null; }, (h) => { (h.tables as unknown[])[1] = 7; }, () => null, () => [], () => "x", (h) => { h.tables[0]!.indexes.pop(); },
  ];
  for (const [i, lie] of lies.entries()) {
    const copy = structuredClone(head), given = lie(copy), text = Buffer.from(JSON.stringify(given === undefined ? copy : given));
    const body = Buffer.concat([whole.subarray(0, 8), Buffer.from(Uint32Array.of(text.length).buffer), text, whole.subarray(12 + length, -32)]);
    writeFileSync(path, Buffer.concat([body, new Bun.CryptoHasher("sha256").update(body).digest()]));
    const to = make(70, 9);
    expect([i, ["session_damaged", "session_mismatch"].includes(String(await failed(restore(to))))]).toEqual([i, true]);
  }
});

test("another model, another KV type, a smaller context or vocabulary: refused by name, and the sequence keeps what it has", async () => {
  await save(make(200));
  const to = make(70, 9), before = contentsOf(to);
  expect(await failed(restore(to, { ...WANTED, model: "another" }))).toBe("session_mismatch");
  expect(await failed(restore(to, { ...WANTED, kvType: "f32" }))).toBe("session_mismatch");
  expect(await failed(restoreSequence(path, WANTED, 199, to.stores, to.pages, () => to.pages.rewind(0), now))).toBe("session_mismatch");
  expect(await failed(restore(to, { ...WANTED, vocabulary: 500 }))).toBe("session_damaged");
  expect(await failed(restore(to, WANTED, join(folder, "missing")))).toBe("session_unreadable");
  expect(contentsOf(to)).toEqual(before);
});

test("a save that fails leaves the former file, and nothing beside it", async () => {
  await save(make(100));
  const former = readFileSync(path), m = make(300, 3), snapshot = m.pages.snapshot();
  let reads = 0;
  const broken = m.stores.map((s) => ({ ...s, readPage: (page: number, into: Uint8Array) => { if (++reads === 4) throw new Error("device lost"); s.readPage(page, into); } }));
  expect(await failed(saveSequence(path, WANTED, m.ids, broken, snapshot, now))).toMatchObject({ message: "device lost" });
  expect(await failed(save(m, join(folder, "no", "such", "folder")))).toBe("session_unwritable");
  expect(await failed(save(m, folder))).toBe("session_unwritable");
  expect(Buffer.compare(readFileSync(path), former)).toBe(0);
  expect(readdirSync(folder)).toEqual(["session.bin"]);
});

test("a process that is killed while it saves leaves the former file whole", async () => {
  const script = join(folder, "slow.ts");
  await save(make(100));
  const former = readFileSync(path);
  writeFileSync(script, `
    import { saveSequence } from ${JSON.stringify(join(import.meta.dir, "../../src/kv/saved.ts"))};
    const store = { kind: { table: 0, window: 0, kvHeads: 1, headDim: 16, layers: [0] }, pageBytes: 96, allocator: null, copyPage() {}, writePage() {}, readPage(page, into) { into.fill(page); } };
    const held = Array.from({ length: 100 }, (_, i) => ({ index: i, page: i }));
    let pages = 0;
    await saveSequence(${JSON.stringify(path)}, { model: "m", kvType: "f16", vocabulary: 9 }, new Array(6400).fill(1), [store], { length: 6400, pages: new Map([[0, held]]) }, async () => { if (++pages === 60) process.kill(process.pid, "SIGKILL"); });
  `);
  const child = Bun.spawn([process.execPath, script], { stdout: "ignore", stderr: "inherit" });
  await child.exited;
  expect(child.signalCode).toBe("SIGKILL");
  expect(Buffer.compare(readFileSync(path), former)).toBe(0);
  rmSync(script);
  for (const left of readdirSync(folder)) if (left.endsWith(".part")) rmSync(join(folder, left));
});

test("through a link, the file behind it is replaced", async () => {
  const link = join(folder, "link");
  await save(make(10));
  symlinkSync(path, link);
  const m = make(90, 2), to = make(1);
  await save(m, link);
  expect(await restore(to)).toEqual(m.ids);
  rmSync(link);
});
