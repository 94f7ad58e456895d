// Models by name against a hub of our own: whole, resumed, split, concurrent, and everything that can go wrong on the way.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { BaoError } from "../../src/errors.ts";
import { Cache, type HubProgress, pullModel, resolveModel, type ResolveOptions } from "../../src/hub/index.ts";
import { gguf, type Hub, type HubFile, sha256, startHub } from "./server.ts";

const REPO = "acme/tiny-GGUF";
const SMALL = gguf(300_000), OTHER = gguf(1000, 7);
let hub: Hub, cacheDir: string, options: ResolveOptions;

function start(files: HubFile[]): void {
  hub = startHub(REPO, files);
  options = { endpoint: hub.endpoint, cacheDir, delayMs: 5 };
}
beforeEach(() => {
  cacheDir = mkdtempSync(join(tmpdir(), "bao-hub-"));
  start([{ path: "tiny-Q4_K_M.gguf", content: SMALL }, { path: "tiny-Q8_0.gguf", content: OTHER }, { path: "README.md", content: new TextEncoder().encode("# tiny"), plain: true }]);
});
afterEach(() => {
  hub[Symbol.dispose]();
  rmSync(cacheDir, { recursive: true });
});

const blob = (content: Uint8Array): string => join(cacheDir, "models--acme--tiny-GGUF/blobs", sha256(content));
async function failure(run: Promise<unknown>): Promise<BaoError> {
  const e = await run.then(() => undefined, (error: unknown) => error);
  expect(e).toBeInstanceOf(BaoError);
  return e as BaoError;
}
/** What has no place in the cache once a pull has ended. */
const leftovers = (): string[] => (existsSync(dirname(blob(SMALL))) ? readdirSync(dirname(blob(SMALL))).filter((f) => f.includes(".")) : []);

describe("a pull", () => {
  test("lays the file out as other tools do, with nothing left over", async () => {
    const progress: HubProgress[] = [];
    const got = await pullModel(`hf:${REPO}:Q4_K_M`, { ...options, onProgress: (p) => progress.push(p) });
    expect(got).toMatchObject({ commit: hub.commit, fetched: SMALL.length, files: [{ path: "tiny-Q4_K_M.gguf", bytes: SMALL.length }] });
    expect(got.path).toBe(join(cacheDir, "models--acme--tiny-GGUF/snapshots", hub.commit, "tiny-Q4_K_M.gguf"));
    expect(readlinkSync(got.path)).toBe(`../../blobs/${sha256(SMALL)}`);
    expect(Buffer.compare(readFileSync(got.path), SMALL)).toBe(0);
    expect(readFileSync(join(cacheDir, "models--acme--tiny-GGUF/refs/main"), "utf8")).toBe(hub.commit);
    expect(leftovers()).toEqual([]);
    expect(progress[0]).toMatchObject({ phase: "list" });
    expect(progress.at(-1)).toEqual({ phase: "download", file: "tiny-Q4_K_M.gguf", done: SMALL.length, total: SMALL.length });
  });

  test("takes Q4_K_M where nothing is said, a path, another revision, and files that are not under LFS", async () => {
    expect((await pullModel(`hf:${REPO}`, options)).files[0]!.path).toBe("tiny-Q4_K_M.gguf");
    expect((await pullModel(`hf:${REPO}/tiny-Q8_0.gguf#v1`, options)).files[0]!.path).toBe("tiny-Q8_0.gguf");
    hub.files.push({ path: "sub/plain-Q6_K.gguf", content: OTHER, plain: true });
    const { path } = await pullModel(`hf:${REPO}/sub/plain-Q6_K.gguf`, options);
    expect(Buffer.compare(readFileSync(path), OTHER)).toBe(0);
  });

  test("a second one fetches nothing; a new commit fetches what has changed", async () => {
    await pullModel(`hf:${REPO}:Q4_K_M`, options);
    const before = hub.contentRequests();
    expect((await pullModel(`hf:${REPO}:Q4_K_M`, options)).fetched).toBe(0);
    hub.commit = "b".repeat(40);
    expect((await pullModel(`hf:${REPO}:Q4_K_M`, options)).fetched).toBe(0);
    expect(hub.contentRequests()).toBe(before);
    const changed = gguf(2000, 5);
    hub.files[0] = { path: "tiny-Q4_K_M.gguf", content: changed };
    hub.commit = "c".repeat(40);
    const got = await pullModel(`hf:${REPO}:Q4_K_M`, options);
    expect(Buffer.compare(readFileSync(got.path), changed)).toBe(0);
  });

  test("a split model is there as a whole or not at all", async () => {
    hub[Symbol.dispose]();
    const parts = [1, 2, 3].map((n) => ({ path: `big-Q8_0-0000${n}-of-00003.gguf`, content: gguf(5000 + n, n) }));
    start(parts);
    hub.faults = { status: (n) => (n === 2 ? 404 : undefined) };
    expect((await failure(pullModel(`hf:${REPO}:Q8_0`, options))).code).toBe("model_not_found");
    expect(existsSync(join(cacheDir, "models--acme--tiny-GGUF/snapshots"))).toBe(false);
    hub.faults = {};
    const got = await pullModel(`hf:${REPO}/big-Q8_0-00002-of-00003.gguf`, options);
    expect(got.path).toEndWith("big-Q8_0-00001-of-00003.gguf");
    expect(got.files.length).toBe(3);
    expect(got.fetched).toBe(5002 + 5003);
    expect(readdirSync(dirname(got.path)).length).toBe(3);
    hub.files.splice(1, 1);
    expect((await failure(pullModel(`hf:${REPO}:Q8_0`, options))).code).toBe("split_incomplete");
  });

  test("two at once fetch the file once", async () => {
    hub.faults = { slowMs: 1 };
    const seen: string[] = [];
    const [a, b] = await Promise.all([pullModel(`hf:${REPO}:Q4_K_M`, options), pullModel(`hf:${REPO}:Q4_K_M`, { ...options, onProgress: (p) => seen.push(p.phase) })]);
    expect(a.path).toBe(b.path);
    expect(hub.contentRequests()).toBe(1);
    expect(seen).toContain("wait");
    expect(Buffer.compare(readFileSync(a.path), SMALL)).toBe(0);
    expect(leftovers()).toEqual([]);
  });

  test("two processes at once fetch the file once; the lock of a dead one is no hindrance", async () => {
    hub.faults = { slowMs: 1 };
    const script = `import { pullModel } from ${JSON.stringify(join(import.meta.dir, "../../src/hub/index.ts"))}; console.log((await pullModel("hf:${REPO}:Q4_K_M", ${JSON.stringify(options)})).path);`;
    const child = Bun.spawn([process.execPath, "-e", script], { stdout: "pipe", stderr: "inherit" });
    const mine = await pullModel(`hf:${REPO}:Q4_K_M`, options);
    expect((await new Response(child.stdout).text()).trim()).toBe(mine.path);
    expect(hub.contentRequests()).toBe(1);
    const dead = Bun.spawnSync(["true"]).pid;
    writeFileSync(`${blob(OTHER)}.lock`, String(dead));
    await pullModel(`hf:${REPO}:Q8_0`, options);
    expect(leftovers()).toEqual([]);
  });
});

describe("resuming", () => {
  test("cut connections: each attempt goes on where the last one broke off", async () => {
    hub.faults = { cut: (n) => (n < 4 ? 70_000 : undefined) };
    const got = await pullModel(`hf:${REPO}:Q4_K_M`, options);
    expect(Buffer.compare(readFileSync(got.path), SMALL)).toBe(0);
    const ranges = hub.log.filter((r) => r.path === `/${sha256(SMALL)}`);
    expect(ranges.length).toBe(4);
    expect(ranges.map((r) => r.range)).toEqual([null, expect.stringMatching(/^bytes=[1-9]\d*-$/), expect.stringMatching(/^bytes=[1-9]\d*-$/), expect.stringMatching(/^bytes=[1-9]\d*-$/)]);
    expect(ranges[1]!.ifRange).toMatch(/^"[0-9a-f]{16}"$/);
  });

  test("an aborted pull keeps what it has, and the next one goes on from there", async () => {
    hub.faults = { slowMs: 2 };
    const stop = new AbortController();
    const run = pullModel(`hf:${REPO}:Q4_K_M`, { ...options, signal: stop.signal, onProgress: (p) => { if (p.phase === "download" && p.done > 20_000) stop.abort(new Error("enough")); } });
    expect(await run.catch((e: unknown) => (e as Error).message)).toBe("enough");
    const part = Bun.file(`${blob(SMALL)}.incomplete`).size;
    expect(part).toBeGreaterThan(20_000);
    expect(existsSync(`${blob(SMALL)}.lock`)).toBe(false);
    hub.faults = {};
    await pullModel(`hf:${REPO}:Q4_K_M`, options);
    expect(hub.log.at(-1)!.range).toBe(`bytes=${part}-`);
    expect(leftovers()).toEqual([]);
  });

  test("a part that is another file's is noticed, and fetched again", async () => {
    mkdirSync(dirname(blob(SMALL)), { recursive: true });
    writeFileSync(`${blob(SMALL)}.incomplete`, gguf(100_000, 99));
    const got = await pullModel(`hf:${REPO}:Q4_K_M`, options);
    expect(Buffer.compare(readFileSync(got.path), SMALL)).toBe(0);
    expect(hub.contentRequests()).toBe(2);
  });

  test("a part that is longer than the file, or whole already", async () => {
    mkdirSync(dirname(blob(SMALL)), { recursive: true });
    writeFileSync(`${blob(SMALL)}.incomplete`, gguf(400_000, 99));
    await pullModel(`hf:${REPO}:Q4_K_M`, options);
    writeFileSync(`${blob(OTHER)}.incomplete`, OTHER);
    const before = hub.contentRequests();
    await pullModel(`hf:${REPO}:Q8_0`, options);
    expect(hub.contentRequests()).toBe(before);
  });

  test("a server without ranges, or with another version of the file, starts from the beginning", async () => {
    hub.faults = { noRanges: true, cut: (n) => (n < 3 ? 50_000 : undefined) };
    const got = await pullModel(`hf:${REPO}:Q4_K_M`, options);
    expect(Buffer.compare(readFileSync(got.path), SMALL)).toBe(0);
    mkdirSync(dirname(blob(OTHER)), { recursive: true });
    writeFileSync(`${blob(OTHER)}.incomplete`, OTHER.slice(0, 500));
    writeFileSync(`${blob(OTHER)}.incomplete.etag`, '"an older one"');
    hub.faults = {};
    await pullModel(`hf:${REPO}:Q8_0`, options);
    expect(hub.log.at(-1)).toMatchObject({ range: "bytes=500-", ifRange: '"an older one"' });
  });

  test("a silent connection is given up, a busy server is tried again", async () => {
    hub.faults = { status: (n) => (n === 1 ? 503 : n === 2 ? 429 : undefined) };
    await pullModel(`hf:${REPO}:Q8_0`, options);
    expect(hub.contentRequests()).toBe(3);
    hub.faults = { silentMs: 400 };
    const error = await failure(pullModel(`hf:${REPO}:Q4_K_M`, { ...options, patienceMs: 50, attempts: 2 }));
    expect(error).toMatchObject({ code: "hub_unreachable", message: expect.stringContaining("nothing came for 0.05 s") });
  });
});

describe("what cannot be", () => {
  test("a wrong hash: nothing of it stays", async () => {
    hub.faults = { wrong: gguf(SMALL.length, 3) };
    const error = await failure(pullModel(`hf:${REPO}:Q4_K_M`, options));
    expect(error).toMatchObject({ code: "download_damaged", kind: "model" });
    expect(error.message).toContain("sha256");
    expect(existsSync(blob(SMALL))).toBe(false);
    expect(leftovers()).toEqual([]);
  });

  test("a web page instead of the model, announced or not", async () => {
    hub.faults = { html: true };
    expect(await failure(pullModel(`hf:${REPO}:Q4_K_M`, options))).toMatchObject({ code: "not_a_model", message: expect.stringContaining("web page") });
    const page = new Uint8Array(SMALL.length).fill(0x20);
    page.set(new TextEncoder().encode("<!DOCTYPE html>"));
    hub.faults = { wrong: page };
    expect((await failure(pullModel(`hf:${REPO}:Q4_K_M`, options))).code).toBe("not_a_model");
    expect(existsSync(blob(SMALL))).toBe(false);
  });

  test("another length than the hub says", async () => {
    hub.faults = { wrong: gguf(1234) };
    expect(await failure(pullModel(`hf:${REPO}:Q4_K_M`, options))).toMatchObject({ code: "download_damaged", message: expect.stringMatching(/1234.*300000/) });
  });

  test("connections that bring nothing end after some attempts", async () => {
    hub.faults = { cut: () => 0 };
    expect((await failure(pullModel(`hf:${REPO}:Q4_K_M`, { ...options, attempts: 3 }))).code).toBe("hub_unreachable");
    expect(hub.contentRequests()).toBe(3);
  });

  test("a full disk", async () => {
    mkdirSync(dirname(blob(SMALL)), { recursive: true });
    symlinkSync("/dev/full", `${blob(SMALL)}.incomplete`);
    expect(await failure(pullModel(`hf:${REPO}:Q4_K_M`, options))).toMatchObject({ code: "disk_full", hint: expect.stringContaining("HF_HUB_CACHE") });
    expect(existsSync(blob(SMALL))).toBe(false);
  });

  test("more than the disk holds is refused before the first byte", async () => {
    const { download } = await import("../../src/hub/download.ts");
    const error = await failure(download({ url: `${hub.endpoint}/x`, name: "huge.gguf", bytes: 2 ** 52, oid: "0", hash: "sha256" }, join(cacheDir, "x"), {}));
    expect(error).toMatchObject({ code: "disk_full", message: expect.stringContaining("huge.gguf needs") });
    expect(hub.contentRequests()).toBe(0);
  });

  test("a cache that is a file", async () => {
    writeFileSync(join(cacheDir, "file"), "");
    expect((await failure(pullModel(`hf:${REPO}`, { ...options, cacheDir: join(cacheDir, "file") }))).code).toBe("cache_unwritable");
  });

  test("private models: no token, a wrong one, the right one - which no other server sees", async () => {
    hub.token = "hf_right";
    const none = await failure(pullModel(`hf:${REPO}`, options));
    expect(none).toMatchObject({ code: "hub_forbidden", hint: expect.stringContaining("HF_TOKEN") });
    expect(none.message).toContain("Invalid username or password");
    expect((await failure(pullModel(`hf:${REPO}`, { ...options, token: "hf_wrong" }))).hint).toContain("not allowed");
    expect((await failure(pullModel(`hf:${REPO}`, { ...options, token: "wrong" }))).code).toBe("bad_token_format");
    await pullModel(`hf:${REPO}`, { ...options, token: "hf_right" });
    expect(hub.log.filter((r) => r.path === `/${sha256(SMALL)}`).map((r) => r.authorization)).toEqual([null]);
  });

  test("repositories, revisions and files that are not there", async () => {
    expect((await failure(pullModel("hf:acme/nothing", options))).code).toBe("model_not_found");
    expect((await failure(pullModel(`hf:${REPO}#v9`, options))).code).toBe("model_not_found");
    expect(await failure(pullModel(`hf:${REPO}:Q2_K`, options))).toMatchObject({ code: "model_not_found", hint: "Types there: Q4_K_M, Q8_0." });
    expect((await failure(pullModel(`hf:${REPO}/none.gguf`, options))).hint).toContain("tiny-Q8_0.gguf");
    expect((await failure(pullModel(`hf:${REPO}/README.md`, options))).code).toBe("not_a_model");
    hub.files.push({ path: "again-Q8_0.gguf", content: gguf(900) });
    expect((await failure(pullModel(`hf:${REPO}:Q8_0`, options)))).toMatchObject({ code: "model_ambiguous", hint: expect.stringContaining("hf:acme/tiny-GGUF/again-Q8_0.gguf") });
  });

  test("no server, and one that answers with pages", async () => {
    expect((await failure(pullModel(`hf:${REPO}`, { ...options, endpoint: "http://127.0.0.1:9" }))).code).toBe("hub_unreachable");
    using pages = Bun.serve({ port: 0, fetch: () => new Response("<html>Sign in</html>", { headers: { "content-type": "text/html" } }) });
    expect(await failure(pullModel(`hf:${REPO}`, { ...options, endpoint: `http://127.0.0.1:${pages.port}` }))).toMatchObject({ code: "hub_failed", message: expect.stringContaining("web page") });
  });

  test("paths of a hostile hub stay out", async () => {
    hub.files.push({ path: "../../../evil-Q6_K.gguf", content: gguf(10) });
    expect((await failure(pullModel(`hf:${REPO}:Q6_K`, options))).code).toBe("model_not_found");
  });
});

describe("resolving", () => {
  test("paths stay as they are; names that are here ask nobody", async () => {
    expect(await resolveModel("some/file.gguf", options)).toBe("some/file.gguf");
    expect((await failure(resolveModel("acme/tiny:Q8_0", options))).hint).toContain("hf:acme/tiny:Q8_0");
    const path = await resolveModel(`hf:${REPO}`, options);
    const asked = hub.log.length;
    expect(await resolveModel(`hf:${REPO}:Q4_K_M`, options)).toBe(path);
    expect(await resolveModel(`hf:${REPO}/tiny-Q4_K_M.gguf`, { ...options, offline: true })).toBe(path);
    expect(await resolveModel(`hf:${REPO}#${hub.commit}`, { ...options, offline: true })).toBe(path);
    expect(hub.log.length).toBe(asked);
  });

  test("offline, what is not here is refused without a question", async () => {
    expect(await failure(resolveModel(`hf:${REPO}`, { ...options, offline: true }))).toMatchObject({ code: "model_not_cached", hint: expect.stringContaining("bao pull hf:acme/tiny-GGUF") });
    expect((await failure(pullModel(`hf:${REPO}`, { ...options, offline: true }))).code).toBe("offline");
    expect(hub.log).toEqual([]);
    await resolveModel(`hf:${REPO}:Q8_0`, options);
    const asked = hub.log.length;
    // Another type of the same model is not it.
    expect((await failure(resolveModel(`hf:${REPO}:Q4_K_M`, { ...options, offline: true }))).code).toBe("model_not_cached");
    expect(hub.log.length).toBe(asked);
  });
});

describe("the cache", () => {
  test("lists models and removes them; a blob stays while another snapshot needs it", async () => {
    await pullModel(`hf:${REPO}:Q4_K_M`, options);
    await pullModel(`hf:${REPO}:Q8_0`, options);
    hub.commit = "b".repeat(40);
    await pullModel(`hf:${REPO}:Q8_0`, options);
    const cache = await Cache.open(cacheDir);
    const models = cache.models();
    expect(models.map((m) => [m.repo, m.commit[0], m.refs, m.files.map((f) => f.path)])).toEqual([
      [REPO, "a", [], ["tiny-Q4_K_M.gguf", "tiny-Q8_0.gguf"]], [REPO, "b", ["main"], ["tiny-Q8_0.gguf"]],
    ]);
    expect(cache.remove(models[1]!, models[1]!.files)).toBe(0);
    expect(existsSync(blob(OTHER))).toBe(true);
    expect(cache.remove(models[0]!, models[0]!.files.slice(1))).toBe(OTHER.length);
    expect(existsSync(blob(OTHER))).toBe(false);
    expect(cache.models().map((m) => m.files.length)).toEqual([1]);
    expect(cache.remove(cache.models()[0]!, cache.models()[0]!.files)).toBe(SMALL.length);
    expect(readdirSync(cacheDir)).toEqual([]);
  });

  test("a blob outside of the cache is never removed", async () => {
    await pullModel(`hf:${REPO}:Q8_0`, options);
    const outside = join(cacheDir, "mine.gguf"), cache = await Cache.open(cacheDir), model = cache.models()[0]!;
    writeFileSync(outside, OTHER);
    symlinkSync(outside, cache.link(REPO, hub.commit, "linked-Q6_K.gguf"));
    const [linked] = cache.models()[0]!.files.filter((f) => f.path.startsWith("linked"));
    expect(cache.remove(model, [linked!])).toBe(0);
    expect(existsSync(outside)).toBe(true);
  });
});
