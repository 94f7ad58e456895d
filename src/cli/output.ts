// Where the command line writes: results on stdout, everything else on stderr, both synchronously, so that nothing is lost at exit.
// Never decides what is written.
import { fstatSync, writeSync } from "node:fs";
import pc from "picocolors";
import { env } from "../env.ts";
import { BaoError } from "../errors.ts";

/** The reader of stdout has gone away: the program ends quietly. */
export class BrokenPipe extends Error {}

const utf8 = new TextEncoder();
const ESCAPED = /[\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
const escape = (c: string): string => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`;

function isTty(fd: number): boolean {
  return (fd === 1 ? process.stdout : process.stderr).isTTY === true;
}

// A pipe that somebody made non-blocking says EAGAIN when it is full: waiting a millisecond is all that can be done.
function writeAll(fd: number, bytes: Uint8Array): void {
  for (let done = 0; done < bytes.length;) {
    try {
      done += writeSync(fd, bytes, done, bytes.length - done);
    } catch (e) {
      const { code } = e as { code?: string };
      if (code === "EAGAIN") Bun.sleepSync(1);
      else if (code === "EPIPE" && fd === 1) throw new BrokenPipe();
      else if (fd === 2) return; // nobody listens
      else throw new BaoError("output_failed", `Standard output cannot be written: ${code === "ENOSPC" ? "no space left on the device" : (e as Error).message}`, "", { cause: e });
    }
  }
}

/** Writes a result. Throws BrokenPipe when nobody reads it any more. */
export function out(text: string): void { writeAll(1, utf8.encode(text)); }
/** Writes a line of a result. */
export function outLine(text: string): void { out(`${text}\n`); }
/** Writes a JSON document on one line, with everything escaped that could move a terminal's cursor. */
export function outJson(value: unknown): void { outLine(json(value)); }
/** JSON text that is safe to print. */
export function json(value: unknown): string { return JSON.stringify(value).replace(ESCAPED, escape); }

/** Writes to stderr: progress, notes, statistics, errors. Never throws. */
export function note(text: string): void { writeAll(2, utf8.encode(text)); }
export function noteLine(text: string): void { note(`${text}\n`); }

/** Text out of a file, with everything escaped that could move a cursor or reorder a line. */
export function escaped(text: string): string { return text.replace(/[\u0000-\u001f]/g, escape).replace(ESCAPED, escape); }

/** Model text for a terminal: control characters other than tab and newline are shown, not obeyed. Pipes get the text as it is. */
export function forTerminal(text: string, fd: 1 | 2 = 1): string {
  return isTty(fd) ? text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, escape) : text;
}

/** Whether stderr can show something that moves. */
export const canAnimate = (): boolean => isTty(2) && env.TERM !== "dumb";

/** Colours for one stream: never with NO_COLOR, forced by FORCE_COLOR, otherwise on terminals only. */
export function colours(fd: 1 | 2): ReturnType<typeof pc.createColors> {
  return pc.createColors(!env.NO_COLOR && (env.FORCE_COLOR !== undefined || (isTty(fd) && env.TERM !== "dumb")));
}

/** What stands behind standard input: a person, something to read, or nothing at all. */
export function stdinKind(): "terminal" | "data" | "nothing" {
  if (process.stdin.isTTY) return "terminal";
  try {
    const stat = fstatSync(0);
    return stat.isFIFO() || stat.isFile() || stat.isSocket() ? "data" : "nothing";
  } catch {
    return "nothing";
  }
}
