// A model's name to a file on this machine: the one place where names are resolved. Paths stay as they are; hub names are looked up, and fetched if need be.
import { existsSync } from "node:fs";
import { ModelFileError } from "../errors.ts";
import { env } from "../env.ts";
import { Cache } from "./cache.ts";
import { chooseFiles } from "./choose.ts";
import { download, type DownloadOptions, type DownloadProgress } from "./download.ts";
import { type HubAccess, listRepository } from "./hub.ts";
import { formatName, isHubName, parseName } from "./name.ts";

export type HubProgress = DownloadProgress | { readonly phase: "list"; readonly file: string; readonly done: 0; readonly total: 0 };

export interface ResolveOptions extends HubAccess, Omit<DownloadOptions, "token" | "onProgress"> {
  /** Never ask the hub. Default: HF_HUB_OFFLINE. */
  readonly offline?: boolean | undefined;
  /** Folder of the cache. Default: HF_HUB_CACHE, or the hub directory under HF_HOME, or under ~/.cache/huggingface. */
  readonly cacheDir?: string | undefined;
  readonly onProgress?: ((progress: HubProgress) => void) | undefined;
}

/** A model that is on this machine. */
export interface PulledModel {
  /** First file of the model. */
  readonly path: string;
  readonly commit: string;
  readonly files: readonly { readonly path: string; readonly bytes: number }[];
  /** Bytes that were not here before. */
  readonly fetched: number;
}

/**
 * Path of the model that `name` means. A path is given back as it is. A hub name that is in the cache is not asked of the hub again (`pullModel`
 * does that); otherwise it is fetched. Throws UsageError `model_name`, ModelFileError `model_not_cached` (offline), and what `pullModel` throws.
 */
export async function resolveModel(name: string, options: ResolveOptions = {}): Promise<string> {
  if (!isHubName(name)) {
    if (/^[\w.-]+\/[\w.-]+(:[\w.-]+)?$/.test(name) && !/\.gguf$/i.test(name) && !existsSync(name)) throw new ModelFileError("gguf_not_found", `${name}: there is no such file`, `If a model on the hub is meant, write hf:${name}.`);
    return name;
  }
  const parsed = parseName(name), cache = await Cache.open(options.cacheDir), here = cache.find(parsed);
  if (here !== undefined) return here;
  if (options.offline ?? env.HF_HUB_OFFLINE !== undefined) {
    throw new ModelFileError("model_not_cached", `${name} is not in ${cache.root}, and the hub may not be asked`, `Unset HF_HUB_OFFLINE, or fetch it elsewhere with \`bao pull ${formatName(parsed)}\`.`);
  }
  return (await pull(name, cache, options)).path;
}

/**
 * Fetches what `name` means now, if it is not here. Throws ModelFileError (`model_not_found`, `model_ambiguous`, `hub_forbidden`, `download_damaged`,
 * `not_a_model`, `disk_full`, ...), BaoError (`hub_unreachable`, `hub_failed`, `hub_busy`), signal.reason.
 */
export async function pullModel(name: string, options: ResolveOptions = {}): Promise<PulledModel> { return pull(name, await Cache.open(options.cacheDir), options); }

async function pull(name: string, cache: Cache, options: ResolveOptions): Promise<PulledModel> {
  const parsed = parseName(name), { repo, revision } = parsed;
  if (options.offline ?? env.HF_HUB_OFFLINE !== undefined) throw new ModelFileError("offline", `${name}: the hub may not be asked`, "Unset HF_HUB_OFFLINE.");
  const endpoint = (options.endpoint ?? env.HF_ENDPOINT ?? "https://huggingface.co").replace(/\/+$/, ""), token = options.token ?? env.HF_TOKEN;
  options.onProgress?.({ phase: "list", file: name, done: 0, total: 0 });
  const { commit, files } = await listRepository(repo, revision, name, { ...options, endpoint, token });
  const chosen = chooseFiles(files.map((f) => f.path), parsed).map((path) => files.find((f) => f.path === path)!);
  let fetched = 0;
  for (const file of chosen) {
    const blob = cache.blob(repo, file.oid);
    if (!(await Bun.file(blob).exists())) {
      const address = [endpoint, repo, "resolve", commit, ...file.path.split("/").map(encodeURIComponent)].join("/");
      await download({ url: address, name: file.path, bytes: file.bytes, oid: file.oid, hash: file.hash }, blob, { ...options, token });
      fetched += file.bytes;
    }
  }
  // Links last, all together: a set of files is there as a whole or not at all.
  const links = chosen.map((file) => cache.setLink(repo, commit, file.path, file.oid));
  cache.setCommit(repo, revision, commit);
  return { path: links[0]!, commit, files: chosen.map(({ path, bytes }) => ({ path, bytes })), fetched };
}
