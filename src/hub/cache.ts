// The hub's cache on disk, as every Hugging Face tool lays it out: blobs by content, snapshots of links by commit, refs by name.
import { existsSync, lstatSync, mkdirSync, readdirSync, readFileSync, readlinkSync, realpathSync, renameSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join, relative, sep } from "node:path";
import { ModelFileError } from "../errors.ts";
import { chooseFiles } from "./choose.ts";
import { writeFailure } from "./failures.ts";
import { formatName, type ModelName } from "./name.ts";

/** The package's own rules, loaded when a name needs them: it takes 0.2 s. */
type Hub = Pick<typeof import("@huggingface/hub"), "getHFHubCachePath" | "getRepoFolderName">;

export interface CachedFile {
  /** Within the repository. */
  readonly path: string;
  /** The link in the snapshot. */
  readonly link: string;
  readonly blob: string;
  readonly bytes: number;
  readonly used: Date;
}
export interface CachedModel { readonly repo: string; readonly commit: string; readonly refs: readonly string[]; readonly files: readonly CachedFile[] }

export class Cache {
  constructor(readonly root: string, private readonly hub: Hub) {}

  static async open(root?: string): Promise<Cache> {
    const hub = await import("@huggingface/hub");
    return new Cache(root ?? hub.getHFHubCachePath(), hub);
  }

  folder(repo: string): string { return join(this.root, this.hub.getRepoFolderName({ name: repo, type: "model" })); }
  blob(repo: string, oid: string): string { return join(this.folder(repo), "blobs", oid); }
  link(repo: string, commit: string, path: string): string { return join(this.folder(repo), "snapshots", commit, path); }

  /** The commit that a revision meant when it was asked for last. */
  commit(repo: string, revision: string): string | undefined {
    if (/^[0-9a-f]{40}$/.test(revision)) return revision;
    try {
      return readFileSync(join(this.folder(repo), "refs", revision), "utf8").trim();
    } catch {
      return undefined;
    }
  }
  setCommit(repo: string, revision: string, commit: string): void {
    if (revision !== commit) writing(join(this.folder(repo), "refs", revision), (file) => writeWhole(file, commit));
  }
  /** Puts a blob into a snapshot. */
  setLink(repo: string, commit: string, path: string, oid: string): string {
    const link = this.link(repo, commit, path);
    writing(link, () => {
      mkdirSync(dirname(link), { recursive: true });
      const target = relative(dirname(link), this.blob(repo, oid)), fresh = `${link}.${process.pid}.link`;
      // Renamed over what is there, so that no reader finds nothing.
      rmSync(fresh, { force: true });
      symlinkSync(target, fresh);
      renameSync(fresh, link);
    });
    return link;
  }

  /** Path of the model's (first) file if all of it is here. Throws ModelFileError for a name that fits no file, or several, of what is here. */
  find(name: ModelName): string | undefined {
    const commit = this.commit(name.repo, name.revision);
    if (commit === undefined) return undefined;
    const files = this.#files(name.repo, commit).map((f) => f.path);
    if (files.length === 0) return undefined;
    try {
      return this.link(name.repo, commit, chooseFiles(files, name)[0]!);
    } catch (e) {
      // Other types of the same model may be here, without the one that is wanted.
      if (e instanceof ModelFileError && (e.code === "model_not_found" || e.code === "split_incomplete")) return undefined;
      throw e;
    }
  }

  /** Every model that is here: repositories with GGUF files, by commit. */
  models(): CachedModel[] {
    const out: CachedModel[] = [];
    for (const folder of list(this.root)) {
      const [type, ...parts] = folder.split("--");
      if (type !== "models" || parts.length === 0) continue;
      const repo = parts.join("/"), refs = new Map<string, string[]>();
      for (const ref of walk(join(this.root, folder, "refs"))) {
        const commit = this.commit(repo, ref);
        if (commit !== undefined) refs.set(commit, [...(refs.get(commit) ?? []), ref]);
      }
      for (const commit of list(join(this.root, folder, "snapshots"))) {
        const files = this.#files(repo, commit).filter((f) => /\.gguf$/i.test(f.path));
        if (files.length > 0) out.push({ repo, commit, refs: refs.get(commit) ?? [], files });
      }
    }
    return out;
  }
  /** Downloads that have not ended: blob and bytes that are here. */
  incomplete(): { readonly repo: string; readonly path: string; readonly bytes: number }[] {
    return list(this.root).filter((f) => f.startsWith("models--")).flatMap((folder) => list(join(this.root, folder, "blobs")).filter((b) => b.endsWith(".incomplete")).map((b) => {
      const path = join(this.root, folder, "blobs", b);
      return { repo: folder.split("--").slice(1).join("/"), path, bytes: statSync(path).size };
    }));
  }
  #files(repo: string, commit: string): CachedFile[] {
    const snapshot = join(this.folder(repo), "snapshots", commit);
    return walk(snapshot).flatMap((path): CachedFile[] => {
      const link = join(snapshot, path);
      try {
        const blob = realpathSync(link), stat = statSync(blob);
        return [{ path, link, blob, bytes: stat.size, used: stat.atime }];
      } catch {
        return []; // a link to nothing: not here
      }
    });
  }

  /** Removes files from a snapshot, and their blobs where no other snapshot needs them. Gives the bytes that became free. */
  remove(model: CachedModel, files: readonly CachedFile[]): number {
    const folder = this.folder(model.repo);
    let freed = 0;
    for (const f of files) writing(f.link, () => rmSync(f.link));
    for (const f of files) {
      // Only what lies in the repository's own blobs is ours to remove.
      if (!f.blob.startsWith(realpathSync(folder) + sep) || !existsSync(f.blob) || this.#used(model.repo, f.blob)) continue;
      writing(f.blob, () => rmSync(f.blob));
      freed += f.bytes;
    }
    prune(join(folder, "snapshots", model.commit), join(folder, "snapshots"));
    if (list(join(folder, "snapshots")).length === 0) {
      for (const b of list(join(folder, "blobs"))) freed += statSync(join(folder, "blobs", b)).size;
      rmSync(folder, { recursive: true, force: true });
    } else if (!existsSync(join(folder, "snapshots", model.commit))) {
      for (const ref of model.refs) rmSync(join(folder, "refs", ref), { force: true });
    }
    return freed;
  }
  #used(repo: string, blob: string): boolean {
    const snapshots = join(this.folder(repo), "snapshots");
    return walk(snapshots).some((path) => {
      const link = join(snapshots, path);
      try {
        return lstatSync(link).isSymbolicLink() ? realpathSync(join(dirname(link), readlinkSync(link))) === blob : false;
      } catch {
        return false;
      }
    });
  }
}

/** Name under which a cached model can be loaded. */
export function cachedName(model: CachedModel, quant: string | undefined, path: string): string {
  const revision = model.refs.includes("main") ? "main" : model.refs[0] ?? model.commit;
  return formatName({ repo: model.repo, revision, quant, path: quant === undefined ? path : undefined });
}

/** A small file, whole or not at all. */
function writeWhole(path: string, text: string): void {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(`${path}.${process.pid}.new`, text);
  renameSync(`${path}.${process.pid}.new`, path);
}
function writing(path: string, write: (path: string) => void): void {
  try {
    write(path);
  } catch (e) {
    throw writeFailure(path, e);
  }
}
function list(folder: string): string[] {
  try {
    return readdirSync(folder).filter((name) => !name.startsWith(".")).sort();
  } catch {
    return [];
  }
}
/** Files below a folder, as paths within it. */
function walk(folder: string, within = ""): string[] {
  try {
    return readdirSync(join(folder, within), { withFileTypes: true }).flatMap((e) => {
      const path = within === "" ? e.name : `${within}/${e.name}`;
      return e.isDirectory() ? walk(folder, path) : [path];
    }).sort();
  } catch {
    return [];
  }
}
/** Removes folders that have become empty, from `folder` down and then up to `until`. */
function prune(folder: string, until: string): void {
  const empty = (at: string): void => {
    for (const e of list(at)) if (lstatSync(join(at, e)).isDirectory()) empty(join(at, e));
    if (at !== until && existsSync(at) && readdirSync(at).length === 0) rmSync(at, { recursive: true });
  };
  empty(folder);
}
