// Progress on a terminal's stderr: one bar or one line, gone without a trace when done. Off terminals: nothing at all.
import { canAnimate, note } from "./output.ts";

export interface Progress extends Disposable {
  update(done: number, total: number): void;
}

/** A bar named `what`, shown from the first update that leaves something to do. */
export async function progressBar(what: string, unit: string): Promise<Progress> {
  if (!canAnimate()) return { update: () => {}, [Symbol.dispose]: () => {} };
  const { default: cliProgress } = await import("cli-progress");
  const bar = new cliProgress.SingleBar({ format: `${what} {bar} {value}/{total} ${unit}`, stream: process.stderr, clearOnComplete: true, hideCursor: true, barsize: 30 }, cliProgress.Presets.shades_classic);
  let active = false;
  return {
    update(done, total) {
      if (!active && done < total) { bar.start(total, done); active = true; }
      if (active) bar.update(done);
      if (active && done >= total) { bar.stop(); active = false; }
    },
    [Symbol.dispose]() {
      if (active) bar.stop();
      active = false;
    },
  };
}

/** A line that says what is going on until disposed. */
export function busyLine(text: string): Disposable {
  if (!canAnimate()) return { [Symbol.dispose]: () => {} };
  note(`\x1b[2m${text}\x1b[0m`);
  return { [Symbol.dispose]: () => note("\r\x1b[2K") };
}
