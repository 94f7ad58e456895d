// Runs the command line as a user does: a process with its own standard streams.
import { join } from "node:path";

export const root = join(import.meta.dir, "../..");
/** A Llama of 260K parameters with a tokenizer and no chat template. */
export const STORIES = join(root, "test/fixtures/stories260K.gguf");
export const DEMO = join(root, "models/demo.gguf");

export interface Result { readonly code: number; readonly stdout: string; readonly stderr: string }
export interface SpawnOptions { stdin?: string; env?: Record<string, string>; cwd?: string; script?: string }

/** Runs `bao ...args` to its end. Standard input is empty unless given; no variable of the tests' own environment but PATH is seen. */
export async function bao(args: readonly string[], options: SpawnOptions = {}): Promise<Result> {
  const child = Bun.spawn([process.execPath, options.script ?? join(root, "src/cli/bao.ts"), ...args], {
    stdin: options.stdin === undefined ? "ignore" : Buffer.from(options.stdin), stdout: "pipe", stderr: "pipe",
    env: { PATH: process.env["PATH"] ?? "", ...options.env }, ...(options.cwd ? { cwd: options.cwd } : {}),
  });
  const [stdout, stderr, code] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text(), child.exited]);
  return { code, stdout, stderr };
}
