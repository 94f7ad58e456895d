// What the side-by-side benchmark and its children say to each other: one JSON object a line, one answer a request.

/** What both sides are loaded with. */
export interface PeerSetup {
  readonly model: string;
  readonly threads: number;
  readonly context: number;
  readonly kvType: "f16" | "f32" | "q8_0";
  readonly isa?: string;
}

/**
 * `prefill` runs a prompt of `tokens` random ids, `decode` that many single tokens after a prompt of one; `api` is the same through the public
 * JavaScript interface, both in one go: a prompt of `prompt` ids and `tokens` more.
 */
export type PeerRequest =
  | { readonly do: "load"; readonly setup: PeerSetup }
  | { readonly do: "prefill" | "decode"; readonly tokens: number }
  | { readonly do: "api"; readonly prompt: number; readonly tokens: number }
  | { readonly do: "memory" };

export interface PeerAnswer {
  /** prefill and decode: milliseconds of it. api: of the prompt, and of the tokens after the first one. */
  readonly ms?: number;
  readonly decodeMs?: number;
  /** load: milliseconds from the start of the process to a first token. */
  readonly firstToken?: number;
  /** memory: bytes at the peak, and those of them that no file backs. */
  readonly peak?: number;
  readonly anonymous?: number;
  readonly error?: string;
}

/** A child process that answers requests. */
export class PeerChild implements AsyncDisposable {
  readonly #child;
  readonly #reader;
  #rest = "";
  constructor(readonly name: string, command: string[], cwd: string) {
    this.#child = Bun.spawn(command, { cwd, stdin: "pipe", stdout: "pipe", stderr: "inherit" });
    this.#reader = this.#child.stdout.getReader();
  }
  /** Throws Error with the child's message when it answers with one, or when it ends. */
  async ask(request: PeerRequest): Promise<PeerAnswer> {
    this.#child.stdin.write(`${JSON.stringify(request)}\n`);
    await this.#child.stdin.flush();
    for (;;) {
      const end = this.#rest.indexOf("\n");
      if (end >= 0) {
        const line = this.#rest.slice(0, end);
        this.#rest = this.#rest.slice(end + 1);
        // Libraries print what they like; answers begin with a brace.
        if (!line.startsWith("{")) continue;
        const answer = JSON.parse(line) as PeerAnswer;
        if (answer.error !== undefined) throw new Error(`${this.name}: ${answer.error}`);
        return answer;
      }
      const { value, done } = await this.#reader.read();
      if (done) throw new Error(`${this.name} ended with code ${await this.#child.exited}`);
      this.#rest += new TextDecoder().decode(value);
    }
  }
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#child.stdin.end();
    await this.#child.exited;
  }
}
