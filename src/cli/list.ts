// bao list: the models that were fetched by name, and what they take. Asks nobody.
import type { Argv } from "yargs";
import { Cache, cachedName, type CachedModel, quantOf } from "../hub/index.ts";
import { flag } from "./options.ts";
import { colours, escaped, noteLine, outJson, outLine } from "./output.ts";
import { bytes } from "./units.ts";

export function builder(y: Argv): Argv {
  return y.usage(`bao list [options]

Lists the models in the cache, by the names that load them.

Examples:
  bao list
  bao list --json | jq '.models[].name'`).options({ json: flag("One JSON document") });
}

/** One model of the cache: a file, or the files of a split one. */
export interface ListedModel { readonly name: string; readonly path: string; readonly files: number; readonly bytes: number; readonly used: Date; readonly current: boolean }

/** Every model that can be loaded by a name. */
export function listed(models: readonly CachedModel[]): ListedModel[] {
  return models.flatMap((model) => {
    const sets = new Map<string, (typeof model.files)[number][]>();
    for (const f of model.files) {
      const key = f.path.replace(/-\d{5}-of-(\d{5}\.gguf)$/i, "-*-of-$1");
      sets.set(key, [...(sets.get(key) ?? []), f]);
    }
    const quants = [...sets.values()].map((files) => quantOf(files[0]!.path));
    return [...sets.values()].map((files, i): ListedModel => {
      const quant = quants[i], alone = quant !== undefined && quants.filter((q) => q === quant).length === 1;
      return {
        name: cachedName(model, alone ? quant : undefined, files[0]!.path), path: files[0]!.link, files: files.length,
        bytes: files.reduce((n, f) => n + f.bytes, 0), used: new Date(Math.max(...files.map((f) => f.used.getTime()))), current: model.refs.length > 0,
      };
    });
  });
}

export async function run(args: { json?: boolean }): Promise<void> {
  const cache = await Cache.open(), models = listed(cache.models()), parts = cache.incomplete(), c = colours(1);
  if (args.json) {
    outJson({ cache: cache.root, models, incomplete: parts });
    return;
  }
  if (models.length === 0) noteLine(colours(2).dim(`bao: no models in ${cache.root}; \`bao pull\` fetches one`));
  const width = Math.max(0, ...models.map((m) => m.name.length));
  for (const m of models) outLine(`${c.bold(escaped(m.name.padEnd(width)))}  ${bytes(m.bytes).padStart(9)}  ${m.used.toISOString().slice(0, 10)}${m.files > 1 ? `  ${m.files} files` : ""}${m.current ? "" : c.dim("  of an older commit")}`);
  for (const p of parts) noteLine(colours(2).dim(`bao: ${escaped(p.repo)}: a fetch that broke off, ${bytes(p.bytes)}; \`bao pull\` goes on with it, \`bao rm hf:${escaped(p.repo)}\` removes it`));
}
