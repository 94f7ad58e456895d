// What the engine tests share: model files, and generation in this thread.
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { convertCheckpoint } from "../../src/convert/index.ts";
import { generateParts, type LocalGenerateOptions, type Prompt, type StreamPart } from "../../src/engine/generate.ts";
import type { LocalModel } from "../../src/engine/model.ts";
import type { Session } from "../../src/engine/session.ts";

const root = join(import.meta.dir, "../..");
/** Gemma 4 with experts, window 256, chat template: the embedded model. */
export const DEMO = join(root, "models/demo.gguf");
/** Llama, 260 thousand parameters, SentencePiece, 512 tokens of context. */
export const STORIES = join(root, "test/fixtures/stories260K.gguf");

/** A folder that is gone after the test. */
export class TemporaryFolder implements Disposable {
  readonly path = mkdtempSync(join(tmpdir(), "bao-engine-"));
  file(name: string): string { return join(this.path, name); }
  [Symbol.dispose](): void { rmSync(this.path, { recursive: true, force: true }); }
}

/** Converts one of the reference checkpoints (token ids only, no tokenizer). */
export async function convertReference(name: string, folder: TemporaryFolder): Promise<string> {
  const output = folder.file(`${name}.gguf`);
  await convertCheckpoint({ source: join(root, "test/fixtures/reference", name), output, type: "f32" });
  return output;
}

/** Numbers in [0, 1) from a seed (mulberry32). */
export function random(seed: number): () => number {
  let a = seed | 0;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
/** `count` ids in [3, vocabulary). */
export function randomIds(seed: number, count: number, vocabulary: number): number[] {
  const next = random(seed);
  return Array.from({ length: count }, () => 3 + Math.trunc(next() * (vocabulary - 3)));
}

export interface Collected { text: string; parts: StreamPart[]; ids: number[]; finish: Extract<StreamPart, { type: "finish" }> }

/** Everything that a generation yields; `ids` need logprobs. */
export async function collect(model: LocalModel, session: Session, prompt: Prompt, options: LocalGenerateOptions = {}): Promise<Collected> {
  const parts: StreamPart[] = [];
  for await (const part of generateParts(model, session, prompt, options)) parts.push(part);
  const finish = parts.at(-1)!;
  if (finish.type !== "finish") throw new Error("the last part is no finish");
  return {
    parts, finish, text: parts.map((p) => (p.type === "text" ? p.text : "")).join(""),
    ids: parts.flatMap((p) => (p.type === "token" ? [p.id] : [])),
  };
}

/** The error that a promise or a call ends with; fails when there is none. */
export async function failure(work: Promise<unknown> | (() => unknown)): Promise<Error & { code?: string; hint?: string; kind?: string }> {
  try {
    await (typeof work === "function" ? work() : work);
  } catch (error) {
    return error as Error;
  }
  throw new Error("no error was thrown");
}
