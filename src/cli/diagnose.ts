// Diagnostics of generate: dumps of a prompt's logits and hidden states, and the search for the first value that is not finite.
import { closeSync, openSync, writeSync } from "node:fs";
import { BaoError, ModelFileError } from "../errors.ts";
import type { LocalModel } from "../engine/model.ts";
import { promptRows } from "../engine/rows.ts";
import type { OpReport } from "../engine/stepwise.ts";
import { reason } from "./input.ts";
import { noteLine } from "./output.ts";

/** Writes float32 files while the prompt runs: no more than a chunk of rows is in memory. */
export async function dumpPrompt(model: LocalModel, ids: readonly number[], options: { logits?: string; hidden?: string; signal: AbortSignal }): Promise<void> {
  const { config } = model.runner, tokens = ids.length;
  using logits = options.logits === undefined ? undefined : new FloatFile(options.logits);
  using hidden = options.hidden === undefined ? undefined : new FloatFile(options.hidden);
  for await (const part of promptRows(model, ids, { signal: options.signal })) {
    logits?.write(part.logits(), part.at * config.vocabulary);
    if (hidden) for (const [layer, values] of part.hidden().entries()) hidden.write(values, (layer * tokens + part.at) * config.hidden);
  }
  if (logits) noteLine(`bao: ${logits.path}: float32 [${tokens}, ${config.vocabulary}]`);
  if (hidden) noteLine(`bao: ${hidden.path}: float32 [${config.layers.length + 1}, ${tokens}, ${config.hidden}]`);
}

class FloatFile implements Disposable {
  readonly #fd: number;
  constructor(readonly path: string) {
    try {
      this.#fd = openSync(path, "w");
    } catch (e) {
      throw this.#failed(e);
    }
  }
  /** Writes values at float `index` of the file. */
  write(values: Float32Array, index: number): void {
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    try {
      for (let done = 0; done < bytes.length;) done += writeSync(this.#fd, bytes, done, bytes.length - done, index * 4 + done);
    } catch (e) {
      throw this.#failed(e);
    }
  }
  #failed(e: unknown): ModelFileError { return new ModelFileError("file_unwritable", `${this.path}: ${reason(e)}`, "Choose another place for the dump.", { cause: e as Error }); }
  [Symbol.dispose](): void { closeSync(this.#fd); }
}

/** Looks at the outputs of every op, and throws at the first value that is not finite. */
export class FiniteCheck {
  outputs = 0;
  #step = 0;
  #lastLayer = -2;
  readonly look = (report: OpReport): void => {
    if (report.layer < this.#lastLayer) this.#step++;
    this.#lastLayer = report.layer;
    for (const { view, values } of report.outputs) {
      this.outputs++;
      const at = values.findIndex((v) => !Number.isFinite(v));
      if (at < 0) continue;
      const columns = view.d1 * view.d2, where = report.layer < 0 ? "the embedding" : `layer ${report.layer}`;
      throw new BaoError("not_finite", `The first value that is not finite comes from ${where}, op ${report.op}: row ${Math.floor(at / columns)}, column ${at % columns} is ${values[at]} (step ${this.#step + 1})`, "All ops before it gave finite values: suspect this layer's tensors, or the kernel of this op (try --reference).");
    }
  };
}
