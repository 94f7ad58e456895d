// Errors at the process boundary: what is printed and which exit code follows. Never recovers.
import { BaoError, type ErrorClass } from "../errors.ts";
import { BrokenPipe, colours, forTerminal, noteLine } from "./output.ts";

/** Exit codes, as docs/cli.md lists them. */
export const EXIT = { ok: 0, runtime: 1, usage: 2, model: 3, resource: 4, interrupted: 130 } as const satisfies Record<ErrorClass | "ok" | "interrupted", number>;

/** What each code means, for help and docs. */
export const EXIT_MEANINGS: readonly (readonly [code: number, meaning: string])[] = [
  [EXIT.ok, "done"],
  [EXIT.runtime, "failed while running"],
  [EXIT.usage, "wrong use: unknown option, bad value, prompt too long"],
  [EXIT.model, "model or file: missing, damaged or not supported"],
  [EXIT.resource, "memory, device, kernel library or compiler"],
  [EXIT.interrupted, "interrupted with Ctrl-C"],
];

/** The user pressed Ctrl-C. */
export class Interrupted extends Error {}

/** Prints an error as `bao: message` and its hint, and gives the exit code that belongs to it. */
export function report(e: unknown): number {
  if (e instanceof BrokenPipe) return EXIT.ok;
  if (e instanceof Interrupted) return EXIT.interrupted;
  const c = colours(2);
  if (!(e instanceof BaoError)) {
    const { stack, message } = e instanceof Error ? e : { stack: undefined, message: String(e) };
    noteLine(`${c.red("bao:")} ${message}`);
    noteLine(c.dim(`${stack ?? ""}\nThis is a defect of Bao: please report it with the lines above.`));
    return EXIT.runtime;
  }
  noteLine(`${c.red("bao:")} ${forTerminal(e.message, 2)}`);
  if (e.hint !== "") noteLine(c.dim(`hint: ${forTerminal(e.hint, 2)}`));
  return EXIT[e.kind];
}
