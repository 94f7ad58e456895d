// bao rm: removes models from the cache. Only what no other snapshot needs becomes free.
import { existsSync, rmSync, statSync } from "node:fs";
import type { Argv } from "yargs";
import { ModelFileError } from "../errors.ts";
import { Cache, parseName, quantOf } from "../hub/index.ts";
import { listed } from "./list.ts";
import { flag } from "./options.ts";
import { colours, escaped, noteLine, outJson, outLine } from "./output.ts";
import { bytes } from "./units.ts";
import { nearest } from "./suggest.ts";

export function builder(y: Argv): Argv {
  return y.usage(`bao rm <name..> [options]

Removes models from the cache: one type or file of a repository, or all of its models, with what is left of fetches that broke off.

Examples:
  bao rm hf:org/gemma-4-E2B-it-GGUF:Q4_K_M
  bao rm hf:org/gemma-4-E2B-it-GGUF --dry-run`)
    .positional("name", { type: "string", description: "Names, as \`bao list\` shows them", demandOption: true })
    .options({ "dry-run": flag("Only say what would be removed"), json: flag("One JSON document") });
}

export async function run(args: { name: string[]; dryRun?: boolean; json?: boolean }): Promise<void> {
  const cache = await Cache.open(), removed: { name: string; files: string[]; bytes: number }[] = [];
  for (const name of args.name) {
    const { repo, quant, path, revision } = parseName(name), all = cache.models().filter((m) => m.repo === repo);
    const commit = name.includes("#") ? cache.commit(repo, revision) : undefined;
    const models = name.includes("#") ? all.filter((m) => m.commit === commit) : all;
    const set = (p: string): string => p.replace(/-\d{5}-of-(\d{5}\.gguf)$/i, "-*-of-$1");
    const chosen = models.map((model) => ({ model, files: model.files.filter((f) => (quant === undefined || quantOf(f.path) === quant.toUpperCase()) && (path === undefined || set(f.path) === set(path))) })).filter(({ files }) => files.length > 0);
    const whole = quant === undefined && path === undefined && !name.includes("#"), parts = whole ? cache.incomplete().filter((p) => p.repo === repo) : [];
    if (chosen.length === 0 && parts.length === 0) {
      const known = listed(cache.models()).map((m) => m.name), guess = nearest(name, known);
      throw new ModelFileError("model_not_found", `${name} is not in ${cache.root}`, guess === undefined ? "`bao list` shows what is." : `Did you mean ${guess}?`);
    }
    let freed = 0;
    if (args.dryRun) {
      const blobs = new Map(chosen.flatMap(({ files }) => files.map((f) => [f.blob, f.bytes] as const)));
      freed = [...blobs.values(), ...parts.map((p) => p.bytes)].reduce((a, b) => a + b, 0);
    } else {
      for (const { model, files } of chosen) freed += cache.remove(model, files);
      for (const p of parts) {
        if (!existsSync(p.path)) continue; // went with the last of its repository
        freed += statSync(p.path).size;
        for (const end of ["", ".etag"]) rmSync(`${p.path}${end}`, { force: true });
      }
    }
    removed.push({ name, files: [...new Set(chosen.flatMap(({ files }) => files.map((f) => f.path)))], bytes: freed });
  }
  if (args.json) outJson({ removed, dryRun: args.dryRun ?? false });
  else for (const r of removed) for (const file of r.files) outLine(escaped(file));
  noteLine(colours(2).dim(`bao: ${args.dryRun ? "would free" : "freed"} ${bytes(removed.reduce((n, r) => n + r.bytes, 0))}`));
}
