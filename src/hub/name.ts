// Names of models on the hub: hf:org/repo, hf:org/repo:QUANT, hf:org/repo/path.gguf, each with #revision. Text only; asks nobody.
import { UsageError } from "../errors.ts";

export interface ModelName {
  /** org/repo */
  readonly repo: string;
  /** Quantisation that is wanted; undefined with a path, and where the choice is ours. */
  readonly quant: string | undefined;
  /** File within the repository. */
  readonly path: string | undefined;
  /** Branch, tag or commit. */
  readonly revision: string;
}

const PREFIX = "hf:";
const PART = /^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?$/;
const FORMS = "hf:org/repo, hf:org/repo:Q4_K_M or hf:org/repo/path.gguf, each with #revision if need be";

/** Whether a model's name means the hub; anything else is a path. */
export function isHubName(name: string): boolean { return name.startsWith(PREFIX); }

/** Parts of a name. Throws UsageError `model_name`. */
export function parseName(name: string): ModelName {
  const bad = (what: string): UsageError => new UsageError("model_name", `${name}: ${what}`, `Names look like ${FORMS}.`);
  if (!isHubName(name)) throw bad("no name of a model on the hub");
  const hash = name.indexOf("#"), revision = hash < 0 ? "main" : name.slice(hash + 1), whole = name.slice(PREFIX.length, hash < 0 ? undefined : hash);
  if (!/^[A-Za-z0-9][A-Za-z0-9._/-]*$/.test(revision) || revision.includes("..")) throw bad(`${JSON.stringify(revision)} is no revision`);
  const [org = "", second = "", ...rest] = whole.replace(/^\/\//, "").split("/");
  const colon = rest.length > 0 ? -1 : second.indexOf(":");
  const repo = colon < 0 ? second : second.slice(0, colon), quant = colon < 0 ? undefined : second.slice(colon + 1);
  if (!PART.test(org) || !PART.test(repo)) throw bad("expected an organisation and a repository");
  if (quant !== undefined && !/^[A-Za-z0-9._-]+$/.test(quant)) throw bad(`${JSON.stringify(quant)} is no quantisation`);
  // The path is joined to a folder of the cache: it must stay inside.
  if (rest.some((step) => step === "" || step === "." || step === ".." || /[\\:\0]/.test(step))) throw bad("the path leaves the repository");
  const path = rest.length === 0 ? undefined : rest.join("/");
  return { repo: `${org}/${repo}`, quant, path, revision };
}

/** The name as text, in its shortest form. */
export function formatName(name: ModelName): string {
  return `${PREFIX}${name.repo}${name.path === undefined ? (name.quant === undefined ? "" : `:${name.quant}`) : `/${name.path}`}${name.revision === "main" ? "" : `#${name.revision}`}`;
}
