// How a fetch from the hub goes on, for whoever waits at a terminal.
import type { HubProgress } from "../hub/index.ts";
import { canAnimate, colours, escaped, noteLine } from "./output.ts";
import { type Progress, progressBar } from "./progress.ts";
import { bytes } from "./units.ts";

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
