// bao pull: fetches a model by its name on the hub, or makes sure that what is here is what the hub has now.
import type { Argv } from "yargs";
import { type HubProgress, pullModel } from "../hub/index.ts";
import { Interrupt } from "./interrupt.ts";
import { flag } from "./options.ts";
import { canAnimate, colours, escaped, noteLine, outJson, outLine } from "./output.ts";
import { type Progress, progressBar } from "./progress.ts";
import { bytes } from "./stats.ts";

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

/** Shows how a fetch goes on: a bar a file on terminals, a line a file elsewhere. */
export class FetchProgress implements Disposable {
  #bar: { readonly key: string; readonly progress: Promise<Progress> } | undefined;
  readonly show = (p: HubProgress): void => {
    if (p.phase === "list") {
      noteLine(colours(2).dim(`bao: asking the hub for ${escaped(p.file)}`));
      return;
    }
    const key = `${p.phase} ${p.file}`;
    if (this.#bar?.key !== key) {
      this.#close();
      const what = { download: "fetching", verify: "checking", wait: "waiting for another process that fetches" }[p.phase];
      if (!canAnimate() || p.phase === "wait") noteLine(colours(2).dim(`bao: ${what} ${escaped(p.file)}, ${bytes(p.total)}`));
      this.#bar = { key, progress: p.phase === "wait" ? Promise.resolve({ update: () => {}, [Symbol.dispose]: () => {} }) : progressBar(`${what} ${escaped(p.file)}`, "MB") };
    }
    void this.#bar.progress.then((bar) => bar.update(Math.floor(p.done / 1e6), Math.ceil(p.total / 1e6)));
  };
  #close(): void {
    void this.#bar?.progress.then((bar) => bar[Symbol.dispose]());
    this.#bar = undefined;
  }
  [Symbol.dispose](): void { this.#close(); }
}
