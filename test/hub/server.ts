// A hub of these tests: the API, redirects and ranges of the real one on a local port, and every way to fail that a test asks for.
import { createHash } from "node:crypto";

export interface HubFile { readonly path: string; readonly content: Uint8Array; /** In git itself, not under LFS. */ readonly plain?: boolean }
/** How the server of file contents misbehaves; each is asked once a request. */
export interface Faults {
  /** Cut the n-th connection (from 1) after so many bytes. */
  cut?: (n: number) => number | undefined;
  /** Answer the n-th request with a status instead. */
  status?: (n: number) => number | undefined;
  /** A web page instead of the content. */
  html?: boolean;
  /** Content that is not what the API promised. */
  wrong?: Uint8Array;
  noRanges?: boolean;
  /** Say nothing for so long, before the first byte. */
  silentMs?: number;
  /** Milliseconds between pieces of content. */
  slowMs?: number;
}
export interface Hub extends Disposable {
  readonly endpoint: string;
  readonly files: HubFile[];
  commit: string;
  faults: Faults;
  /** Token that is asked for. */
  token: string | undefined;
  /** Every request: method, path, and the headers that matter. */
  readonly log: { readonly path: string; readonly range: string | null; readonly ifRange: string | null; readonly authorization: string | null }[];
  contentRequests(): number;
}

export const sha256 = (content: Uint8Array): string => createHash("sha256").update(content).digest("hex");
const gitId = (content: Uint8Array): string => createHash("sha1").update(`blob ${content.length}\0`).update(content).digest("hex");
/** Content that begins like a model and is different for every seed. */
export function gguf(bytes: number, seed = 1): Uint8Array {
  const out = new Uint8Array(bytes);
  for (let i = 0, x = seed; i < bytes; i++) { x = (x * 1103515245 + 12345) & 0x7fffffff; out[i] = x >> 16; }
  out.set([0x47, 0x47, 0x55, 0x46]);
  return out;
}

export function startHub(repo: string, files: HubFile[]): Hub {
  const log: Hub["log"] = [];
  let contents = 0;
  const hub = { files, commit: "a".repeat(40), faults: {} as Faults, token: undefined as string | undefined, log, contentRequests: () => contents };
  const api = Bun.serve({
    port: 0, hostname: "127.0.0.1", idleTimeout: 30,
    fetch(request) {
      const url = new URL(request.url), path = decodeURIComponent(url.pathname);
      log.push({ path, range: request.headers.get("range"), ifRange: request.headers.get("if-range"), authorization: request.headers.get("authorization") });
      const refuse = (status: number, error: string): Response => Response.json({ error }, { status });
      if (hub.token !== undefined && request.headers.get("authorization") !== `Bearer ${hub.token}`) return refuse(401, "Invalid username or password.");
      const info = new RegExp(`^/api/models/${repo}/revision/(.+)$`).exec(path);
      if (info) return ["main", "HEAD", "v1", hub.commit].includes(info[1]!) ? Response.json({ _id: "1", id: repo, sha: hub.commit, private: false, gated: false, downloads: 1, likes: 1, lastModified: "2026-11-01T00:00:00.000Z" }) : refuse(404, "Invalid rev id");
      if (path === `/api/models/${repo}/tree/${hub.commit}`) {
        return Response.json([{ type: "directory", path: "sub", oid: "0".repeat(40), size: 0 }, ...files.map((f) => f.plain
          ? { type: "file", path: f.path, size: f.content.length, oid: gitId(f.content) }
          : { type: "file", path: f.path, size: f.content.length, oid: "1".repeat(40), lfs: { oid: sha256(f.content), size: f.content.length, pointerSize: 134 } })]);
      }
      const file = files.find((f) => path === `/${repo}/resolve/${hub.commit}/${f.path}`);
      if (!file) return refuse(404, path.startsWith("/api/") ? "Repository not found" : "Entry not found");
      // As the real one does: content comes from elsewhere, by an address that is permission enough.
      return new Response(null, { status: 302, headers: { location: `http://127.0.0.1:${content.port}/${sha256(file.content)}`, "x-linked-etag": `"${sha256(file.content)}"`, "x-linked-size": String(file.content.length), "x-repo-commit": hub.commit } });
    },
  });
  const content = Bun.listen({
    port: 0, hostname: "127.0.0.1",
    socket: {
      async data(socket, bytes) {
        const text = new TextDecoder().decode(bytes), head = (name: string): string | null => new RegExp(`^${name}: *(.*)\\r$`, "im").exec(text)?.[1] ?? null;
        const path = text.split(" ")[1]!, n = ++contents, { faults } = hub, range = head("range"), ifRange = head("if-range");
        log.push({ path, range, ifRange, authorization: head("authorization") });
        const answer = (line: string, headers: Record<string, string | number>, body: Uint8Array | string): void => {
          socket.write(`HTTP/1.1 ${line}\r\n${Object.entries(headers).map(([k, v]) => `${k}: ${v}\r\n`).join("")}connection: close\r\n\r\n`);
          if (typeof body === "string" || body.length > 0) socket.write(body);
        };
        const status = faults.status?.(n);
        if (status !== undefined) { answer(`${status} No`, { "content-length": 0, "retry-after": 0 }, ""); socket.end(); return; }
        if (faults.html) { answer("200 OK", { "content-type": "text/html", "content-length": 15 }, "<html>Log in</>"); socket.end(); return; }
        const file = files.find((f) => path === `/${sha256(f.content)}`);
        if (!file) { answer("404 Not Found", { "content-length": 0 }, ""); socket.end(); return; }
        if (faults.silentMs !== undefined) await Bun.sleep(faults.silentMs);
        const whole = faults.wrong ?? file.content, tag = `"${sha256(whole).slice(0, 16)}"`;
        const start = range !== null && !faults.noRanges && (ifRange === null || ifRange === tag) ? Number(/bytes=(\d+)-/.exec(range)![1]) : 0;
        if (start >= whole.length) { answer("416 Range Not Satisfiable", { "content-length": 0, "content-range": `bytes */${whole.length}` }, ""); socket.end(); return; }
        answer(start > 0 ? "206 Partial Content" : "200 OK", { "content-type": "binary/octet-stream", etag: tag, "accept-ranges": "bytes", "content-length": whole.length - start, ...(start > 0 ? { "content-range": `bytes ${start}-${whole.length - 1}/${whole.length}` } : {}) }, new Uint8Array(0));
        const cut = faults.cut?.(n), end = cut === undefined ? whole.length : Math.min(whole.length, start + cut);
        for (let at = start; at < end;) {
          const sent = socket.write(whole, at, Math.min(end - at, faults.slowMs === undefined ? 1 << 16 : 1 << 12));
          if (sent < 0) return;
          at += sent;
          if (faults.slowMs !== undefined) await Bun.sleep(faults.slowMs); else if (sent === 0) await Bun.sleep(1);
        }
        socket.flush();
        if (cut === undefined) socket.end(); else setTimeout(() => socket.terminate(), 20);
      },
    },
  });
  return Object.assign(hub, { endpoint: `http://127.0.0.1:${api.port}`, [Symbol.dispose]: () => { void api.stop(true); content.stop(true); } });
}
