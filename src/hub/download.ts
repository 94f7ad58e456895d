// One file from a server to its place: resumed where it broke off, checked by its hash, renamed when it is whole. Knows no repositories.
import { closeSync, existsSync, ftruncateSync, mkdirSync, openSync, readFileSync, readSync, renameSync, rmSync, statfsSync, statSync, writeFileSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { BaoError, ModelFileError } from "../errors.ts";
import { networkFailure, statusFailure, writeFailure } from "./failures.ts";

/** A file on a server, known by its content. */
export interface RemoteFile {
  readonly url: string;
  /** What to call it in messages. */
  readonly name: string;
  readonly bytes: number;
  /** sha256 of the content (files under LFS), or git's id of it. */
  readonly oid: string;
  readonly hash: "sha256" | "git";
}
export interface DownloadProgress {
  readonly phase: "download" | "verify" | "wait";
  readonly file: string;
  /** Bytes of the file. */
  readonly done: number;
  readonly total: number;
}
export interface DownloadOptions {
  /** Sent to the server of the file, never to one that it redirects to. */
  readonly token?: string | undefined;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: ((progress: DownloadProgress) => void) | undefined;
  /** Attempts in a row that may bring nothing. Default 6. */
  readonly attempts?: number | undefined;
  /** Wait before the second attempt, doubled for each after it. Default 500. */
  readonly delayMs?: number | undefined;
  /** A connection that brings nothing for so long is given up. Default 60,000. */
  readonly patienceMs?: number | undefined;
}

const MAX_ATTEMPTS = 200;
const MAX_DELAY_MS = 30_000;
const STALE_LOCK_MS = 60_000;
const CHUNK = 4 << 20;
const PROGRESS_MS = 100;

/** A failure after which another attempt may succeed. */
class Broken extends Error {
  constructor(readonly failure: BaoError, readonly waitMs = 0) { super(failure.message); }
}

/**
 * Brings `file` to `path`. What arrives stands in `path.incomplete` until it is whole; one process works on it, others wait for its end.
 * Throws ModelFileError (`download_damaged`, `not_a_model`, `disk_full`, ...), BaoError `hub_unreachable`, signal.reason.
 */
export async function download(file: RemoteFile, path: string, options: DownloadOptions = {}): Promise<void> {
  mkdirOf(path);
  using _lock = await lock(`${path}.lock`, () => existsSync(path), (ms) => pause(ms, options.signal), () => options.onProgress?.({ phase: "wait", file: file.name, done: 0, total: file.bytes }));
  if (existsSync(path)) return;
  using part = new PartFile(`${path}.incomplete`, file, options);
  await part.begin();
  await complete(part, file, options);
  if (!part.intact() && part.resumed) {
    // The part that was here may have been damaged, or another file's.
    part.restart();
    await complete(part, file, options);
  }
  if (!part.intact()) {
    part.remove();
    throw new ModelFileError("download_damaged", `${file.name}: what arrived is not what the hub promised (its ${file.hash === "git" ? "git id" : "sha256"} differs)`, "It was deleted. Try again; if it happens again, something between here and the hub changes files.");
  }
  part.finish(path);
}

/** As many connections as it takes. */
async function complete(part: PartFile, file: RemoteFile, { attempts = 6, delayMs = 500, signal }: DownloadOptions): Promise<void> {
  for (let tries = 1, barren = 0; part.done < file.bytes; tries++) {
    const before = part.done;
    try {
      await part.receive();
    } catch (e) {
      signal?.throwIfAborted();
      if (!(e instanceof Broken)) throw e;
      barren = part.done > before ? 0 : barren + 1;
      if (barren >= attempts || tries >= MAX_ATTEMPTS) throw e.failure;
      await pause(Math.max(e.waitMs, Math.min(MAX_DELAY_MS, delayMs * 2 ** barren)), signal);
    }
  }
}

class PartFile implements Disposable {
  done = 0;
  /** Some of it was here before. */
  resumed = false;
  readonly #fd: number;
  readonly #tag: string;
  #hasher!: Bun.CryptoHasher;
  #told = 0;
  #closed = false;

  constructor(private readonly path: string, private readonly file: RemoteFile, private readonly options: DownloadOptions) {
    this.#tag = `${path}.etag`;
    try {
      this.#fd = openSync(path, existsSync(path) ? "r+" : "w+");
    } catch (e) {
      throw writeFailure(path, e);
    }
    this.#forget();
  }

  /** Takes what is here already into account. */
  async begin(): Promise<void> {
    const { bytes, name } = this.file, here = statSync(this.path).size;
    if (here > bytes) this.#truncate();
    else {
      const buffer = new Uint8Array(CHUNK);
      for (let n; this.done < here && (n = readSync(this.#fd, buffer, 0, CHUNK, this.done)) > 0; this.done += n) {
        this.#hasher.update(buffer.subarray(0, n));
        this.#tell("verify");
        await new Promise((resolve) => setImmediate(resolve));
        this.options.signal?.throwIfAborted();
      }
      this.resumed = this.done > 0;
    }
    let free = Infinity;
    try { const s = statfsSync(dirname(this.path)); free = s.bavail * s.bsize; } catch { /* not every system tells */ }
    if (free < bytes - this.done) throw new ModelFileError("disk_full", `${name} needs ${gigabytes(bytes - this.done)} more, and ${gigabytes(free)} are free in ${dirname(this.path)}`, "Free some space (`bao list`, `bao rm`), or set HF_HUB_CACHE to a folder on another disk.");
  }

  /** One connection, until the file is whole. Throws Broken for what may be tried again. */
  async receive(): Promise<void> {
    const { file, options } = this, quiet = new AbortController(), { patienceMs = 60_000 } = options;
    let timer = setTimeout(() => quiet.abort(), patienceMs);
    const alive = (): void => { clearTimeout(timer); timer = setTimeout(() => quiet.abort(), patienceMs); };
    const signal = options.signal ? AbortSignal.any([options.signal, quiet.signal]) : quiet.signal;
    try {
      const response = await this.#request(signal);
      await this.#place(response);
      for await (const chunk of response.body ?? []) {
        alive();
        this.#check(chunk);
        this.#write(chunk);
      }
      if (this.done < file.bytes) throw new Broken(networkFailure(file.name, new Error(`the connection ended after ${this.done} of ${file.bytes} bytes`)));
      this.#tell("download", true);
    } catch (e) {
      if (e instanceof Broken || e instanceof BaoError) throw e;
      throw new Broken(networkFailure(file.name, quiet.signal.aborted ? new Error(`nothing came for ${patienceMs / 1000} s`) : e));
    } finally {
      clearTimeout(timer);
      quiet.abort();
    }
  }
  async #request(signal: AbortSignal): Promise<Response> {
    const { file, done } = this, { token } = this.options;
    const tag = done > 0 && existsSync(this.#tag) ? readFileSync(this.#tag, "utf8") : "";
    const origin = new URL(file.url).origin;
    let url = file.url;
    for (let hops = 0; hops < 10; hops++) {
      const headers: Record<string, string> = { "accept-encoding": "identity" };
      if (done > 0) headers["range"] = `bytes=${done}-`;
      if (done > 0 && tag !== "") headers["if-range"] = tag;
      // A token is for the hub alone; the servers behind it get signed addresses.
      if (token !== undefined && new URL(url).origin === origin) headers["authorization"] = `Bearer ${token}`;
      const response = await fetch(url, { headers, redirect: "manual", signal });
      const location = response.headers.get("location");
      if (response.status < 300 || response.status >= 400 || location === null) return response;
      await response.body?.cancel();
      url = new URL(location, url).href;
    }
    throw new BaoError("hub_failed", `${file.name}: the hub redirects in a circle`);
  }
  /** Makes sure that what follows belongs at `done`. */
  async #place(response: Response): Promise<void> {
    const { file, done } = this, { status, headers } = response, range = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(headers.get("content-range") ?? "");
    if (status === 416 || (status === 206 && (!range || Number(range[1]) !== done))) {
      this.#truncate();
      throw new Broken(networkFailure(file.name, new Error("the server continues elsewhere; starting again")));
    }
    if (status !== 200 && status !== 206) {
      const failure = statusFailure(status, file.name, "", this.options.token !== undefined);
      const after = Number(headers.get("retry-after"));
      if (status === 408 || status === 429 || status >= 500) throw new Broken(failure, Number.isFinite(after) ? Math.min(after * 1000, MAX_DELAY_MS) : 0);
      throw failure;
    }
    if (/^text\/html/i.test(headers.get("content-type") ?? "")) throw this.#page();
    const length = headers.get("content-length"), total = status === 206 ? range![2]! : length ?? "*";
    if (total !== "*" && Number(total) !== file.bytes) throw new ModelFileError("download_damaged", `${file.name}: the server has ${total} bytes of it, the hub says ${file.bytes}`, "Try again later; something between here and the hub may change files.");
    // A server that ignores ranges, or has another version of the file by now, starts from the beginning.
    if (status === 200 && done > 0) this.#truncate();
    const tag = headers.get("etag");
    if (tag !== null && !tag.startsWith("W/")) writing(this.#tag, () => writeFileSync(this.#tag, tag));
  }
  #check(chunk: Uint8Array): void {
    const { file, done } = this;
    if (done + chunk.length > file.bytes) throw new ModelFileError("download_damaged", `${file.name}: more than the ${file.bytes} bytes that the hub says`, "Try again later.");
    if (done > 0 || !/\.gguf$/i.test(file.name) || chunk.length < 4) return;
    const magic = String.fromCharCode(...chunk.subarray(0, 4));
    if (magic !== "GGUF") throw /^[\s\ufeff]*<|^\{/.test(magic) ? this.#page() : new ModelFileError("not_a_model", `${file.name}: what arrives is no GGUF file (it begins with ${JSON.stringify(magic)})`, "The file on the hub is damaged, or something in between answers instead.");
  }
  #page(): ModelFileError {
    return new ModelFileError("not_a_model", `${this.file.name}: a web page came instead of the model`, "A proxy, a login page or a firewall answers for the hub: open its address in a browser.");
  }
  #write(chunk: Uint8Array): void {
    try {
      for (let at = 0; at < chunk.length;) at += writeSync(this.#fd, chunk, at, chunk.length - at, this.done + at);
    } catch (e) {
      throw writeFailure(this.path, e);
    }
    this.#hasher.update(chunk);
    this.done += chunk.length;
    this.#tell("download");
  }
  #tell(phase: "download" | "verify", last = false): void {
    const now = Date.now();
    if (!last && now - this.#told < PROGRESS_MS) return;
    this.#told = now;
    this.options.onProgress?.({ phase, file: this.file.name, done: this.done, total: this.file.bytes });
  }

  intact(): boolean { return this.#hasher.copy().digest("hex") === this.file.oid; }
  restart(): void {
    this.#truncate();
    this.resumed = false;
  }
  finish(path: string): void {
    this.#close();
    writing(path, () => renameSync(this.path, path));
    rmSync(this.#tag, { force: true });
  }
  remove(): void {
    this.#close();
    rmSync(this.path, { force: true });
    rmSync(this.#tag, { force: true });
  }
  #truncate(): void {
    writing(this.path, () => ftruncateSync(this.#fd, 0));
    rmSync(this.#tag, { force: true });
    this.#forget();
  }
  #forget(): void {
    this.done = 0;
    this.#hasher = new Bun.CryptoHasher(this.file.hash === "sha256" ? "sha256" : "sha1");
    // git names content by a hash over its kind and length as well.
    if (this.file.hash === "git") this.#hasher.update(`blob ${this.file.bytes}\0`);
  }
  #close(): void {
    if (!this.#closed) closeSync(this.#fd);
    this.#closed = true;
  }
  [Symbol.dispose](): void { this.#close(); }
}

/** A lock file of this process; waits while another one that is alive has it, or until `done`. */
async function lock(path: string, done: () => boolean, wait: (ms: number) => Promise<void>, waiting: () => void): Promise<Disposable> {
  for (;;) {
    try {
      writeFileSync(path, String(process.pid), { flag: "wx" });
      return { [Symbol.dispose]: () => rmSync(path, { force: true }) };
    } catch (e) {
      if ((e as { code?: string }).code !== "EEXIST") throw writeFailure(path, e);
    }
    if (done()) return { [Symbol.dispose]: () => {} };
    if (stale(path)) rmSync(path, { force: true });
    else {
      waiting();
      await wait(100);
    }
  }
}
function stale(path: string): boolean {
  try {
    const pid = Number(readFileSync(path, "utf8"));
    // Written in two steps: a moment after its creation it may still be empty.
    if (pid === 0) return Date.now() - statSync(path).mtimeMs > STALE_LOCK_MS;
    process.kill(pid, 0);
    return false;
  } catch (e) {
    return (e as { code?: string }).code === "ESRCH";
  }
}

function mkdirOf(path: string): void { writing(dirname(path), (folder) => mkdirSync(folder, { recursive: true })); }
function writing(path: string, write: (path: string) => void): void {
  try {
    write(path);
  } catch (e) {
    throw writeFailure(path, e);
  }
}
function gigabytes(n: number): string { return n >= 1e9 ? `${(n / 1e9).toFixed(1)} GB` : `${(n / 1e6).toFixed(1)} MB`; }

/** Waits, or throws signal.reason. */
export async function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  signal?.throwIfAborted();
  await new Promise<void>((resolve, reject) => {
    const timer = setTimeout(() => { signal?.removeEventListener("abort", stop); resolve(); }, ms);
    const stop = (): void => { clearTimeout(timer); reject(signal!.reason as Error); };
    signal?.addEventListener("abort", stop, { once: true });
  });
}
