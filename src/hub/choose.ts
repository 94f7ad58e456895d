// Which files of a repository make up the model that was asked for. Names only; reads nothing.
import { ModelFileError } from "../errors.ts";
import { formatName, type ModelName } from "./name.ts";

/** Tried in this order where a name says nothing: what most machines run well comes first. */
const PREFERRED = ["Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q6_K", "Q8_0", "BF16", "F16", "F32"];
const SPLIT = /^(.*)-(\d{5})-of-(\d{5})\.gguf$/i;
/** Companions of a model that are no language models themselves: vision encoders, draft heads, importance matrices. */
const COMPANION = /(^|[/._-])(mmproj|imatrix|mtp|assistant|draft)[^/]*\.gguf$/i;
const QUANT = /(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|BF16|F16|F32|FP16|MXFP4(?:_MOE)?|NVFP4))(?=$|[-._/])/gi;

/** The quantisation that a file's name tells, in upper case. */
export function quantOf(path: string): string | undefined {
  const name = path.replace(SPLIT, "$1").replace(/\.gguf$/i, "");
  return [...name.matchAll(QUANT)].at(-1)?.[1]!.toUpperCase();
}

/** The files of one model: several when it is split, the first of the set first. */
export function chooseFiles(paths: readonly string[], name: ModelName): string[] {
  const models = paths.filter((p) => /\.gguf$/i.test(p));
  const groups = new Map<string, string[]>();
  for (const p of models) groups.set(p.replace(SPLIT, "$1-*-of-$3.gguf"), [...(groups.get(p.replace(SPLIT, "$1-*-of-$3.gguf")) ?? []), p]);
  const sets = [...groups.values()].map((g) => g.sort());
  let found: string[] | undefined;
  if (name.path !== undefined) {
    found = sets.find((g) => g.includes(name.path!));
    if (!found && paths.includes(name.path)) throw new ModelFileError("not_a_model", `${formatName(name)} is no GGUF file`, sets.length === 0 ? "" : `GGUF files there: ${listed(sets.map((g) => g[0]!))}.`);
    if (!found) throw new ModelFileError("model_not_found", `${formatName(name)}: there is no such file`, sets.length === 0 ? "The repository holds no GGUF file." : `GGUF files there: ${listed(sets.map((g) => g[0]!))}.`);
  } else {
    const language = sets.filter((g) => !COMPANION.test(g[0]!));
    if (language.length === 0) throw new ModelFileError("model_not_found", `${formatName(name)} holds no GGUF file`, "Look for a repository whose name ends in GGUF, or convert the checkpoint with `bao convert`.");
    const of = (quant: string): string[][] => language.filter((g) => quantOf(g[0]!) === quant.toUpperCase());
    const wanted = name.quant === undefined ? PREFERRED.map(of).find((g) => g.length > 0) ?? language : of(name.quant);
    if (wanted.length === 0) {
      const known = [...new Set(language.map((g) => quantOf(g[0]!)).filter((q) => q !== undefined))];
      throw new ModelFileError("model_not_found", `${formatName(name)}: no file of type ${name.quant}`, known.length > 0 ? `Types there: ${known.join(", ")}.` : `Name the file: ${listed(language.map((g) => g[0]!))}.`);
    }
    if (wanted.length > 1) throw new ModelFileError("model_ambiguous", `${formatName(name)} fits ${wanted.length} files`, `Name one of them: ${listed(wanted.map((g) => `${formatName({ ...name, quant: undefined, path: g[0]! })}`))}.`);
    found = wanted[0]!;
  }
  checkWhole(found, name);
  return found;
}

function checkWhole(files: readonly string[], name: ModelName): void {
  const count = Number(SPLIT.exec(files[0]!)?.[3] ?? 1);
  const missing = Array.from({ length: count }, (_, i) => i + 1).filter((n) => count > 1 && !files.some((f) => Number(SPLIT.exec(f)![2]) === n));
  if (missing.length > 0) throw new ModelFileError("split_incomplete", `${formatName(name)}: ${missing.length} of ${count} files are missing: ${missing.slice(0, 5).join(", ")}${missing.length > 5 ? ", ..." : ""}`, "The repository is incomplete.");
}

function listed(items: readonly string[]): string { return `${items.slice(0, 8).join(", ")}${items.length > 8 ? `, and ${items.length - 8} more` : ""}`; }
