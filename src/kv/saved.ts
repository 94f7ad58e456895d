// A sequence's KV on disk: written whole and synced under another name, then renamed, so that a crash leaves the old file or the new one.
// Read with every field checked and the whole file hashed, before the sequence changes.
import { closeSync, fstatSync, fsyncSync, openSync, readSync, realpathSync, renameSync, rmSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { UsageError } from "../errors.ts";
import type { KvStore, SequencePages, Snapshot } from "./sequence.ts";

// magic [8], bytes of the head as u32, head (JSON), ids (u32 each), pages in the order of the head's indexes, SHA-256 of all before [32].
// A page is as bao_kv_page_read gives it, the same on every device. All numbers little-endian.
const MAGIC = "BAOKV001", HASH_BYTES = 32, START = MAGIC.length + 4;
// Far above what a context of 2^28 tokens needs, far below what would exhaust memory.
const MAX_HEAD = 1 << 28;

/** What a file must agree on with whoever reads it. */
export interface SavedFor {
  /** Identifies the model's contents. */
  readonly model: string;
  readonly kvType: string;
  readonly vocabulary: number;
}

interface Head { readonly model: string; readonly kvType: string; readonly tokens: number; readonly tables: readonly { readonly table: number; readonly pageBytes: number; readonly indexes: readonly number[] }[] }

/**
 * Writes the first `ids.length` tokens (all of `snapshot`) to `path`, replacing it. Calls `pause` between pages. Throws UsageError `session_unwritable`
 * with the system's reason; the former file is untouched then.
 */
export async function saveSequence(path: string, wanted: SavedFor, ids: readonly number[], stores: readonly KvStore[], snapshot: Snapshot, pause: () => Promise<void>): Promise<void> {
  const head: Head = {
    model: wanted.model, kvType: wanted.kvType, tokens: ids.length,
    tables: stores.map((s) => ({ table: s.kind.table, pageBytes: s.pageBytes, indexes: snapshot.pages.get(s.kind.table)!.map((p) => p.index) })),
  };
  const text = new TextEncoder().encode(JSON.stringify(head)), start = new Uint8Array(new ArrayBuffer(START));
  new TextEncoder().encodeInto(MAGIC, start);
  new DataView(start.buffer).setUint32(MAGIC.length, text.length, true);
  const hash = new Bun.CryptoHasher("sha256");
  let part = "", fd = -1;
  try {
    const target = existing(path);
    part = `${target}.${process.pid}.part`;
    fd = openSync(part, "w", 0o600);
    const put = (bytes: Uint8Array): void => {
      hash.update(bytes);
      writeAll(fd, bytes);
    };
    put(start);
    put(text);
    put(new Uint8Array(Uint32Array.from(ids).buffer));
    for (const s of stores) {
      const page = new Uint8Array(new ArrayBuffer(s.pageBytes));
      for (const held of snapshot.pages.get(s.kind.table)!) {
        s.readPage(held.page, page);
        put(page);
        await pause();
      }
    }
    writeAll(fd, hash.digest());
    fsyncSync(fd);
    closeSync(fd);
    fd = -1;
    renameSync(part, target);
    syncFolder(dirname(target));
  } catch (e) {
    if (fd >= 0) closeSync(fd);
    if (part !== "") rmSync(part, { force: true });
    if (e instanceof Error && "syscall" in e) throw new UsageError("session_unwritable", `${path}: the session could not be saved: ${e.message}`, "Is there room, and may this program write there?", { cause: e });
    throw e;
  }
}

/**
 * Makes `pages` what `path` holds and gives its ids. Throws UsageError `session_unreadable` (no such file), `session_damaged` (not a whole saved session)
 * or `session_mismatch` (of another model or KV type, or too long), ResourceError `kv_full`. `clear` is called when all but the pages' contents has been
 * checked: it makes room, and a failure after it leaves `pages` empty.
 */
export async function restoreSequence(path: string, wanted: SavedFor, maxTokens: number, stores: readonly KvStore[], pages: SequencePages, clear: () => void, pause: () => Promise<void>): Promise<number[]> {
  let fd: number;
  try {
    fd = openSync(path, "r");
  } catch (e) {
    throw new UsageError("session_unreadable", `${path}: the session could not be read: ${(e as Error).message}`, "", { cause: e });
  }
  const taken: [KvStore, number][] = [];
  try {
    const damaged = (what: string): UsageError => new UsageError("session_damaged", `${path}: this is no whole saved session: ${what}`, "Save it again; the former contents are lost.");
    const size = fstatSync(fd).size, hash = new Bun.CryptoHasher("sha256");
    let left = size - HASH_BYTES;
    const get = (bytes: number, what: string): Uint8Array<ArrayBuffer> => {
      if (bytes > left) throw damaged(`${what} would take ${bytes} bytes, ${Math.max(0, left)} are left of ${size}`);
      left -= bytes;
      const out = readAll(fd, bytes);
      if (!out) throw damaged(`${what} cannot be read`);
      hash.update(out);
      return out;
    };
    const start = get(START, "the start");
    if (new TextDecoder().decode(start.subarray(0, MAGIC.length)) !== MAGIC) throw damaged(`it does not begin with ${MAGIC}`);
    const headBytes = new DataView(start.buffer).getUint32(MAGIC.length, true);
    if (headBytes > MAX_HEAD) throw damaged(`a head of ${headBytes} bytes`);
    const head = parseHead(get(headBytes, "the head"));
    if (!head) throw damaged("its head is not one");
    if (head.model !== wanted.model) throw new UsageError("session_mismatch", `${path}: the session was saved from another model`, "Restore it with the model file that it was saved from.");
    if (head.kvType !== wanted.kvType) throw new UsageError("session_mismatch", `${path}: the session's KV is ${head.kvType}, this model runs with ${wanted.kvType}`, `Load the model with kvType: "${head.kvType}".`);
    if (head.tokens > maxTokens) throw new UsageError("session_mismatch", `${path}: the session has ${head.tokens} tokens, the context holds ${maxTokens}`, `Load the model with a context of ${head.tokens} or more.`);
    const ids = [...new Uint32Array(get(head.tokens * 4, "the ids").buffer)];
    if (ids.some((id) => id >= wanted.vocabulary)) throw damaged("an id is not in the vocabulary");
    if (head.tables.length !== stores.length) throw damaged(`${head.tables.length} page tables, expected ${stores.length}`);
    for (const [i, s] of stores.entries()) {
      const { table, pageBytes } = head.tables[i]!;
      if (table !== s.kind.table || pageBytes !== s.pageBytes) throw damaged(`pages of ${pageBytes} bytes in table ${table}, expected ${s.pageBytes} in ${s.kind.table}`);
    }
    if (left !== head.tables.reduce((n, t) => n + t.pageBytes * t.indexes.length, 0)) throw damaged(`${left} bytes for its pages, which is not what they take`);
    clear();
    const held = new Map<number, { index: number; page: number }[]>();
    for (const [i, s] of stores.entries()) {
      const { table, pageBytes, indexes } = head.tables[i]!, list: { index: number; page: number }[] = [];
      held.set(table, list);
      for (const index of indexes) {
        const bytes = get(pageBytes, `page ${index}`), page = s.allocator.take();
        taken.push([s, page]);
        s.writePage(page, bytes);
        list.push({ index, page });
        await pause();
      }
    }
    const sum = readAll(fd, HASH_BYTES);
    if (!sum || Buffer.compare(sum, hash.digest()) !== 0) throw damaged("its checksum is another");
    const snapshot: Snapshot = { length: head.tokens, pages: held };
    if (!pages.canRestore(snapshot, head.tokens)) throw damaged("pages are missing");
    pages.restore(snapshot);
    return ids;
  } finally {
    closeSync(fd);
    // What was restored shares them.
    for (const [s, page] of taken) s.allocator.release(page);
  }
}

function parseHead(bytes: Uint8Array): Head | undefined {
  let head: Head;
  try { head = JSON.parse(new TextDecoder().decode(bytes)) as Head; } catch { return undefined; }
  const count = (n: unknown): boolean => Number.isInteger(n) && (n as number) >= 0 && (n as number) <= 2 ** 32;
  if (typeof head !== "object" || head === null || typeof head.model !== "string" || typeof head.kvType !== "string" || !count(head.tokens) || !Array.isArray(head.tables)) return undefined;
  const pagesOf = head.tokens / 64;
  for (const t of head.tables) {
    if (typeof t !== "object" || t === null || !count(t.table) || !count(t.pageBytes) || !Array.isArray(t.indexes)) return undefined;
    // Ascending: no index twice. None beyond the tokens.
    if (!t.indexes.every((index: unknown, i: number) => count(index) && (index as number) < pagesOf && (i === 0 || (index as number) > t.indexes[i - 1]))) return undefined;
  }
  return head;
}

function writeAll(fd: number, bytes: Uint8Array): void {
  for (let at = 0; at < bytes.length;) at += writeSync(fd, bytes, at, Math.min(bytes.length - at, 1 << 24));
}
function readAll(fd: number, bytes: number): Uint8Array<ArrayBuffer> | undefined {
  const out = new Uint8Array(new ArrayBuffer(bytes));
  for (let at = 0; at < bytes;) {
    const n = readSync(fd, out, at, Math.min(bytes - at, 1 << 24), null);
    if (n === 0) return undefined;
    at += n;
  }
  return out;
}
/** The file behind a link stays behind it. */
function existing(path: string): string {
  try { return realpathSync(path); } catch { return path; }
}
// A renamed file is only safe once its folder is.
function syncFolder(path: string): void {
  const fd = openSync(path, "r");
  try { fsyncSync(fd); } finally { closeSync(fd); }
}
