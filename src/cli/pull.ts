// bao pull: fetches a model by its name on the hub, or makes sure that what is here is what the hub has now.
import type { Argv } from "yargs";
import { pullModel } from "../hub/index.ts";
import { FetchProgress } from "./fetching.ts";
import { Interrupt } from "./interrupt.ts";
import { flag } from "./options.ts";
import { colours, noteLine, outJson, outLine } from "./output.ts";
import { bytes } from "./units.ts";

export function builder(y: Argv): Argv {
  return y.usage(`bao pull <name> [options]

Fetches a model from the hub, and prints its path. What is here already is not fetched again; what broke off goes on from there.

Names:
  hf:org/repo               the repository's Q4_K_M file, or the nearest to it
  hf:org/repo:Q8_0          the file of that type
  hf:org/repo/path.gguf     that file; of a split model, all of them
  hf:org/repo:Q8_0#v1.0     at a branch, tag or commit
The same names work wherever a model is asked for.

Examples:
  bao pull hf:org/gemma-4-E2B-it-GGUF:Q4_K_M
  HF_TOKEN=hf_... bao pull hf:org/private-GGUF
  bao generate -m hf:org/gemma-4-E2B-it-GGUF -p "Hello"`)
    .positional("name", { type: "string", description: "Name of the model", demandOption: true })
    .options({ json: flag("One JSON document") });
}

export async function run(args: { name: string; json?: boolean }): Promise<void> {
  using interrupt = new Interrupt();
  using shown = new FetchProgress();
  const model = await pullModel(args.name, { signal: interrupt.signal, onProgress: shown.show });
  const all = model.files.reduce((n, f) => n + f.bytes, 0);
  if (args.json) outJson({ name: args.name, path: model.path, commit: model.commit, files: model.files, bytes: all, fetchedBytes: model.fetched });
  else outLine(model.path);
  noteLine(colours(2).dim(`bao: ${model.fetched === 0 ? "nothing new" : `fetched ${bytes(model.fetched)}`}, ${model.files.length === 1 ? "one file" : `${model.files.length} files`} of ${bytes(all)}`));
}
