// Ctrl-C: the first one aborts what runs, the second one ends the process at once.
import { EXIT, Interrupted } from "./failure.ts";

/** A signal that Ctrl-C aborts, for as long as this object lives. */
export class Interrupt implements Disposable {
  readonly #controller = new AbortController();
  readonly #onSignal = (): void => {
    // Output is written synchronously, so nothing is lost here.
    if (this.#controller.signal.aborted) process.exit(EXIT.interrupted);
    this.#controller.abort(new Interrupted("interrupted"));
  };
  constructor() { process.on("SIGINT", this.#onSignal); }
  get signal(): AbortSignal { return this.#controller.signal; }
  [Symbol.dispose](): void { process.off("SIGINT", this.#onSignal); }
}
