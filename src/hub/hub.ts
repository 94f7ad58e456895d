// What a repository holds, asked of the hub. Downloads nothing.
import { BaoError, UsageError } from "../errors.ts";
import { networkFailure, statusFailure } from "./failures.ts";
import { pause } from "./download.ts";

export interface HubAccess {
  /** Address of the hub. Default: HF_ENDPOINT, or the public one. */
  readonly endpoint?: string | undefined;
  /** Default: HF_TOKEN. */
  readonly token?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}
export interface HubFile { readonly path: string; readonly bytes: number; readonly oid: string; readonly hash: "sha256" | "git" }

const TRIES = 3;

/** Files of a repository at a revision, and the commit that the revision means. Throws ModelFileError `model_not_found`, `hub_forbidden`, BaoError `hub_unreachable`. */
export async function listRepository(repo: string, revision: string, what: string, access: HubAccess & { readonly endpoint: string }): Promise<{ commit: string; files: HubFile[] }> {
  const { token, endpoint } = access;
  if (token !== undefined && !token.startsWith("hf_")) throw new UsageError("bad_token_format", "HF_TOKEN does not begin with hf_", "Make a token on the hub's settings page.");
  const hub = await import("@huggingface/hub");
  const common = { hubUrl: endpoint, fetch: patient(access.signal) as typeof fetch, ...(token === undefined ? {} : { accessToken: token }) };
  try {
    const { sha } = await hub.modelInfo({ name: repo, revision, additionalFields: ["sha"], ...common });
    if (typeof sha !== "string" || !/^[0-9a-f]{40}$/.test(sha)) throw new BaoError("hub_failed", `${what}: the hub names no commit`, "Is HF_ENDPOINT the address of a hub?");
    const files: HubFile[] = [];
    // By commit from here on: what is listed is what is fetched, also while somebody pushes.
    for await (const f of hub.listFiles({ repo, revision: sha, recursive: true, ...common })) {
      if (f.type !== "file" || !safe(f.path)) continue;
      if (f.lfs) files.push({ path: f.path, bytes: f.lfs.size, oid: f.lfs.oid.replace(/^sha256:/, ""), hash: "sha256" });
      else if (f.oid !== undefined) files.push({ path: f.path, bytes: f.size, oid: f.oid, hash: "git" });
    }
    return { commit: sha, files: files.filter((f) => /^[0-9a-f]{40,64}$/.test(f.oid)) };
  } catch (e) {
    access.signal?.throwIfAborted();
    if (e instanceof BaoError) throw e;
    if (e instanceof hub.HubApiError) throw statusFailure(e.statusCode, what, typeof e.data?.["error"] === "string" ? e.data["error"] : "", token !== undefined);
    if (e instanceof SyntaxError) throw new BaoError("hub_failed", `${what}: a web page came instead of the hub's answer`, "A proxy, a login page or a firewall answers for the hub: open its address in a browser.", { cause: e });
    throw networkFailure(what, e);
  }
}

/** Paths come from a server, and become paths here. */
function safe(path: string): boolean { return path !== "" && !path.startsWith("/") && path.split("/").every((step) => step !== "" && step !== "." && step !== ".." && !/[\\\0]/.test(step)); }

/** fetch that tries again when the server is busy or the connection breaks. */
function patient(signal: AbortSignal | undefined): (url: string, init?: RequestInit) => Promise<Response> {
  return async (url, init) => {
    for (let tries = 1; ; tries++) {
      try {
        const response = await fetch(url, { ...init, ...(signal ? { signal } : {}) });
        if (tries >= TRIES || (response.status < 500 && response.status !== 429)) return response;
        await response.body?.cancel();
      } catch (e) {
        if (tries >= TRIES || signal?.aborted) throw e;
      }
      await pause(200 * 2 ** tries, signal);
    }
  };
}
