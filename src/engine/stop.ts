// Stop strings over a text stream: holds back what may be the beginning of one, so that no part of it ever leaks.

/** Feeds text through; `push` gives what is safe to show. After `stopped` nothing more comes out. */
export class StopStrings {
  #held = "";
  #stopped: string | undefined;
  constructor(private readonly stops: readonly string[]) {}

  /** The stop string that was found. */
  get stopped(): string | undefined { return this.#stopped; }

  push(text: string): string {
    if (this.#stopped !== undefined) return "";
    if (this.stops.length === 0) return text;
    this.#held += text;
    let at = -1;
    for (const stop of this.stops) {
      const found = this.#held.indexOf(stop);
      if (found >= 0 && (at < 0 || found < at)) { at = found; this.#stopped = stop; }
    }
    if (at >= 0) {
      const out = this.#held.slice(0, at);
      this.#held = "";
      return out;
    }
    const keep = Math.max(...this.stops.map((s) => overlap(this.#held, s)));
    const out = this.#held.slice(0, this.#held.length - keep);
    this.#held = this.#held.slice(this.#held.length - keep);
    return out;
  }
  /** The stream has ended: what was held back is ordinary text. */
  end(): string {
    const out = this.#held;
    this.#held = "";
    return out;
  }
}

/** Length of the longest end of `text` that begins `stop`. */
function overlap(text: string, stop: string): number {
  for (let n = Math.min(text.length, stop.length - 1); n > 0; n--) if (text.endsWith(stop.slice(0, n))) return n;
  return 0;
}
