// What the command line reads: standard input as text or lines, text files, and values of options. Never looks at models.
import { readFileSync } from "node:fs";
import { ModelFileError, UsageError } from "../errors.ts";
import { noteLine } from "./output.ts";

/** Lines of standard input, as they arrive, without their line ends. A last line needs no newline. */
export async function* stdinLines(): AsyncGenerator<string, void> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const bytes of Bun.stdin.stream()) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split("\n");
    rest = lines.pop()!;
    for (const line of lines) yield line.endsWith("\r") ? line.slice(0, -1) : line;
  }
  rest += decoder.decode();
  if (rest !== "") yield rest;
}

/** All of standard input, without the newline at its end. Says that it waits when nothing comes. */
export async function stdinText(): Promise<string> {
  const waiting = setTimeout(() => noteLine("bao: reading the prompt from standard input"), 1000);
  try {
    return (await Bun.stdin.text()).replace(/\r?\n$/, "");
  } finally {
    clearTimeout(waiting);
  }
}

/** A text file. Throws ModelFileError `file_unreadable`. */
export function textFile(path: string): string {
  try {
    return readFileSync(path, "utf8");
  } catch (e) {
    throw new ModelFileError("file_unreadable", `${path}: ${reason(e)}`, "Check the path.", { cause: e });
  }
}

/** Why a file operation failed, in words. */
export function reason(e: unknown): string {
  const { code, message } = e as { code?: string; message: string };
  switch (code) {
    case "ENOENT": return "no such file";
    case "EACCES": case "EPERM": return "permission denied";
    case "EISDIR": return "is a folder";
    case "ENOSPC": return "no space left on the device";
    default: return message;
  }
}

/** Token ids from "2,17,9" (commas or spaces). Throws UsageError. */
export function parseIds(text: string): number[] {
  const ids = text.split(/[\s,]+/).filter((word) => word !== "");
  if (ids.length === 0) throw new UsageError("bad_option", "--token-ids: expected ids like 2,17,9");
  return ids.map((word) => {
    if (!/^\d{1,10}$/.test(word)) throw new UsageError("bad_option", `--token-ids: ${JSON.stringify(word)} is no token id`, "Give whole numbers, separated by commas.");
    return Number(word);
  });
}

/** Biases from "id=value". Throws UsageError. */
export function parseBias(entries: readonly string[]): Map<number, number> {
  return new Map(entries.map((entry): [number, number] => {
    const match = /^(\d+)=([+-]?(?:inf|infinity|\d+(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+))$/i.exec(entry.trim());
    if (!match) throw new UsageError("bad_option", `--logit-bias: expected id=value, found ${JSON.stringify(entry)}`, "For example --logit-bias 17=-5, or 17=-inf to forbid a token.");
    const value = match[2]!.toLowerCase();
    return [Number(match[1]), /inf/.test(value) ? (value.startsWith("-") ? -Infinity : Infinity) : Number(value)];
  }));
}
