// Soak test of the server: clients that stream, abort, disconnect, send nonsense and long prompts, all at once, against `bao serve` in a process of its own.
// Every greedy answer must be the one that the same request got alone; memory must stay flat; the server must end whole.
// Run: bun scripts/soak.ts [--minutes 3] [--clients 16] [--parallel 8] [--threads 1] [--seed 1] [--model FILE] [--json]
import { connect } from "node:net";
import { join } from "node:path";
import { parseArgs } from "node:util";

export interface SoakOptions { seconds: number; clients: number; parallel: number; threads: number; seed: number; model?: string }
interface Spread { count: number; p50: number; p99: number; max: number }
export interface SoakReport {
  seconds: number;
  /** How often each kind of client came by. */
  done: Record<string, number>;
  tokens: number;
  /** Milliseconds, streams only. */
  firstToken: Spread;
  betweenTokens: Spread;
  /** Bytes: mean of the second and of the last quarter of the time, and the most. */
  rss: { early: number; late: number; most: number };
  /** What went wrong, each kind of it once. */
  failures: string[];
}

const root = join(import.meta.dir, "..");
const json = { "Content-Type": "application/json" };
type Body = Record<string, unknown>;

function random(seed: number): () => number {
  let a = seed | 0;
  return () => {
    a = (a + 0x6d2b79f5) | 0;
    let t = Math.imul(a ^ (a >>> 15), 1 | a);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}
function spread(values: number[]): Spread {
  const sorted = values.sort((a, b) => a - b), at = (q: number): number => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * q))] ?? 0;
  return { count: sorted.length, p50: at(0.5), p99: at(0.99), max: sorted.at(-1) ?? 0 };
}
const mean = (values: readonly number[]): number => values.reduce((a, b) => a + b, 0) / Math.max(1, values.length);

/** Greedy requests: short, long, many turns, with stop texts, and raw continuations. */
function requests(): { path: string; body: Body }[] {
  const things = ["a cat", "the moon", "a small boat", "two birds", "an old tree", "a red ball", "a frog", "the rain"];
  const user = (content: string) => ({ role: "user", content });
  const chat = (messages: object[], more: Body = {}) => ({ path: "/v1/chat/completions", body: { messages, temperature: 0, max_tokens: 40, ...more } });
  return [
    ...things.map((t) => chat([user(`Tell me a story about ${t}.`)])),
    ...things.slice(0, 3).map((t, i) => chat([user(`Here is a list of words: ${`${t}, `.repeat(80 + 60 * i)} now tell me a story.`)], { max_tokens: 20 })),
    chat([{ role: "system", content: "Be kind." }, user("Tell me a story."), { role: "assistant", content: "Once there was a dog." }, user("And then?")]),
    chat([user("Tell me a story about a king.")], { stop: [" the", "."], max_tokens: 60 }),
    chat([user("Tell me a story about a queen.")], { max_tokens: 120 }),
    ...things.slice(0, 3).map((t) => ({ path: "/v1/completions", body: { prompt: `Once upon a time there was ${t}`, temperature: 0, max_tokens: 30 } })),
  ];
}
const NONSENSE: readonly (readonly [Body | string, number])[] = [
  [{ messages: [] }, 400], [{ messages: [{ role: "user", content: "x" }], temperature: "hot" }, 400], [{ messages: [{ role: "user", content: "x" }], colour: 1 }, 400], ["{", 400],
  [{ model: "other", messages: [{ role: "user", content: "x" }] }, 404], [{ messages: [{ role: "user", content: "word ".repeat(4000) }] }, 400],
  [{ messages: [{ role: "user", content: "x" }], logit_bias: { "999999": 1 } }, 400], [{ messages: [{ role: "tool", content: "x", tool_call_id: "y" }], stream: true }, 400],
];

const textOf = (choice: any): string => choice?.message?.content ?? choice?.delta?.content ?? choice?.text ?? ""; // eslint-disable-line

/** Deltas of a stream, with the time of each. */
async function* deltas(response: Response): AsyncGenerator<string> {
  let rest = "";
  for await (const text of response.body!.pipeThrough(new TextDecoderStream() as never) as unknown as AsyncIterable<string>) {
    const blocks = (rest + text).split("\n\n");
    rest = blocks.pop()!;
    for (const block of blocks) {
      if (!block.startsWith("data: ") || block === "data: [DONE]") continue;
      const chunk = JSON.parse(block.slice(6));
      if (chunk.error) throw new Error(`an error in the stream: ${chunk.error.message}`);
      yield textOf(chunk.choices[0]);
    }
  }
}

/** Runs the whole test; never throws for what the server does wrong, but reports it. */
export async function soak(o: SoakOptions): Promise<SoakReport> {
  const server = Bun.spawn([process.execPath, join(root, "src/cli/bao.ts"), "serve", "--port", "0", "--ctx", "1024", "--parallel", String(o.parallel), "--threads", String(o.threads), ...(o.model === undefined ? [] : ["-m", o.model])], {
    stdin: "ignore", stdout: "ignore", stderr: "pipe", env: { PATH: process.env["PATH"] ?? "" },
  });
  // However this program ends, its server does not outlive it.
  const orphan = (): void => server.kill("SIGKILL");
  process.once("exit", orphan);
  let said = "", heard = (): void => {};
  const listening = new Promise<void>((resolve) => { heard = resolve; });
  const log = (async () => {
    const decoder = new TextDecoder();
    for await (const bytes of server.stderr) {
      said += decoder.decode(bytes, { stream: true });
      if (said.includes("listening on")) heard();
    }
    heard();
  })();
  await listening;
  const url = /listening on (\S+?)\/?\s/.exec(said)?.[1];
  if (url === undefined) throw new Error(`the server did not start: ${said}`);

  const failures = new Set<string>(), done: Record<string, number> = {}, first: number[] = [], between: number[] = [], rss: number[] = [];
  const vectors: string[] = [];
  let tokens = 0;
  const post = (path: string, body: Body | string, signal?: AbortSignal): Promise<Response> =>
    fetch(url + path, { method: "POST", headers: json, body: typeof body === "string" ? body : JSON.stringify(body), ...(signal ? { signal } : {}) });
  const health = async (): Promise<{ running: number; waiting: number }> => await (await fetch(`${url}/health`)).json() as { running: number; waiting: number };

  const known = requests(), alone: string[] = [];
  for (const { path, body } of known) alone.push(textOf((await (await post(path, body)).json() as any).choices[0])); // eslint-disable-line
  if (new Set(alone).size < known.length * 0.8) failures.add("the answers served alone hardly differ: they prove nothing");

  const check = (i: number, text: string): void => { if (text !== alone[i]) failures.add(`request ${i} got ${JSON.stringify(text)}, alone it got ${JSON.stringify(alone[i])}`); };
  const end = performance.now() + o.seconds * 1000;

  const kinds: Record<string, (next: () => number) => Promise<void>> = {
    async stream(next) {
      const i = Math.trunc(next() * known.length), start = performance.now();
      const response = await post(known[i]!.path, { ...known[i]!.body, stream: true });
      let text = "", last = 0;
      for await (const delta of deltas(response)) {
        if (delta === "") continue;
        const now = performance.now();
        if (last === 0) first.push(now - start); else between.push(now - last);
        last = now;
        tokens++;
        text += delta;
      }
      check(i, text);
    },
    async whole(next) {
      const i = Math.trunc(next() * known.length);
      const answer = await (await post(known[i]!.path, known[i]!.body)).json() as any; // eslint-disable-line
      tokens += answer.usage?.completion_tokens ?? 0;
      check(i, textOf(answer.choices?.[0]));
    },
    async sampled(next) {
      const response = await post("/v1/responses", { input: "Tell me a story about a dragon.", temperature: 1, seed: Math.trunc(next() * 1e6), max_output_tokens: 60 });
      if (response.status !== 200) failures.add(`/v1/responses: status ${response.status}`);
      await response.text();
    },
    async schema(next) {
      const schema = { type: "object", properties: { name: { type: "string", maxLength: 10 }, legs: { type: "integer", minimum: 0, maximum: 8 } }, required: ["name", "legs"], additionalProperties: false };
      const response = await post("/v1/chat/completions", { messages: [{ role: "user", content: "A pet." }], max_tokens: 200, seed: Math.trunc(next() * 1e6), response_format: { type: "json_schema", json_schema: { name: "pet", schema } } });
      const { choices } = await response.json() as any; // eslint-disable-line
      if (choices?.[0].finish_reason !== "stop") return;
      const pet = JSON.parse(choices[0].message.content);
      if (Object.keys(pet).sort().join() !== "legs,name" || pet.name.length > 10 || !(pet.legs >= 0 && pet.legs <= 8)) failures.add(`not of the schema: ${JSON.stringify(pet)}`);
    },
    async tools(next) {
      const tools = [{ type: "function", function: { name: "look", parameters: { type: "object", properties: { at: { enum: ["sky", "sea"] } }, required: ["at"] } } }];
      const response = await post("/v1/chat/completions", { messages: [{ role: "user", content: "Look!" }], max_tokens: 200, seed: Math.trunc(next() * 1e6), tools, tool_choice: "required", parallel_tool_calls: false });
      const { choices, error } = await response.json() as any; // eslint-disable-line
      if (error) { failures.add(`a forced call: ${error.message}`); return; }
      const call = choices[0].message.tool_calls?.[0]?.function;
      if (choices[0].finish_reason === "tool_calls" && !["sky", "sea"].includes(JSON.parse(call.arguments).at)) failures.add(`not of the tool: ${JSON.stringify(call)}`);
    },
    async embeddings(next) {
      const i = Math.trunc(next() * 4), body = { input: `Embedding number ${i}, twice the same.`, encoding_format: "base64" };
      const { data } = await (await post("/v1/embeddings", body)).json() as any; // eslint-disable-line
      const vector = data?.[0].embedding as string;
      if ((vectors[i] ??= vector) !== vector) failures.add(`embedding ${i} differs from time to time`);
    },
    async abort(next) {
      const controller = new AbortController(), wait = next() * 150;
      setTimeout(() => controller.abort(), wait);
      try {
        await (await post("/v1/chat/completions", { messages: [{ role: "user", content: "Tell me a long story." }], stream: next() < 0.5, temperature: 1 }, controller.signal)).text();
      } catch (e) {
        if (!controller.signal.aborted) throw e;
      }
    },
    // The bluntest way out: the socket is destroyed, in the middle of the request, of the prefill or of the answer.
    async disconnect(next) {
      const body = JSON.stringify({ messages: [{ role: "user", content: `Tell me a story. ${"Really. ".repeat(Math.trunc(next() * 100))}` }], stream: true });
      const cut = next() < 0.3 ? Math.trunc(next() * body.length) : body.length, wait = next() * 100;
      const { hostname, port } = new URL(url);
      await new Promise<void>((resolve) => {
        const socket = connect(Number(port), hostname, () => {
          socket.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: ${hostname}\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body.slice(0, cut)}`);
          setTimeout(() => socket.destroy(), wait);
        });
        socket.on("error", () => {});
        socket.on("close", () => resolve());
        socket.resume();
      });
    },
    async nonsense(next) {
      const [body, status] = NONSENSE[Math.trunc(next() * NONSENSE.length)]!;
      const response = await post("/v1/chat/completions", body);
      const text = await response.text();
      if (response.status !== status) failures.add(`${JSON.stringify(body).slice(0, 80)}: status ${response.status}, not ${status}`);
      else if (typeof JSON.parse(text).error?.message !== "string") failures.add(`status ${status} without an error body`);
    },
  };
  const mix = ["stream", "stream", "stream", "whole", "whole", "sampled", "abort", "abort", "disconnect", "disconnect", "nonsense", "nonsense", "schema", "tools", "embeddings"];

  const client = async (number: number): Promise<void> => {
    const next = random(o.seed * 1000 + number);
    while (performance.now() < end) {
      const kind = mix[Math.trunc(next() * mix.length)]!;
      try {
        await kinds[kind]!(next);
        done[kind] = (done[kind] ?? 0) + 1;
      } catch (e) {
        failures.add(`${kind}: ${(e as Error).message}`);
        if (server.exitCode !== null) return;
        await Bun.sleep(100);
      }
    }
  };
  const watch = async (): Promise<void> => {
    while (performance.now() < end && server.exitCode === null) {
      const text = await (await fetch(`${url}/metrics`)).text();
      rss.push(Number(/^process_resident_memory_bytes (\S+)$/m.exec(text)?.[1]));
      await Bun.sleep(Math.min(1000, o.seconds * 10));
    }
  };
  await Promise.all([watch(), ...Array.from({ length: o.clients }, (_, i) => client(i))]);

  // Whatever was abandoned has ended, nothing was lost on the way, and the server still answers as it did at first.
  let left = await health();
  for (let i = 0; left.running + left.waiting > 0 && i < 100; i++) { await Bun.sleep(20); left = await health(); }
  if (left.running + left.waiting > 0) failures.add(`${left.running + left.waiting} answers go on though nobody waits for them`);
  for (const [i, { path, body }] of known.entries()) check(i, textOf((await (await post(path, body)).json() as any).choices[0])); // eslint-disable-line
  server.kill("SIGINT");
  const code = await server.exited;
  process.off("exit", orphan);
  await log;
  if (code !== 0) failures.add(`the server ended with ${code}: ${said.slice(-500)}`);
  const complaints = said.split("\n").filter((line) => line !== "" && !/no --model given|answers at a time|listening on|ending when/.test(line));
  if (complaints.length > 0) failures.add(`the server complained: ${complaints.slice(0, 5).join(" | ")}`);
  const quarter = Math.ceil(rss.length / 4);
  return {
    seconds: o.seconds, done, tokens, firstToken: spread(first), betweenTokens: spread(between),
    rss: { early: mean(rss.slice(quarter, 2 * quarter)), late: mean(rss.slice(-quarter)), most: Math.max(...rss) }, failures: [...failures],
  };
}

if (import.meta.main) {
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(130));
  const { values } = parseArgs({ options: { minutes: { type: "string", default: "3" }, clients: { type: "string", default: "16" }, parallel: { type: "string", default: "8" }, threads: { type: "string", default: "1" }, seed: { type: "string", default: "1" }, model: { type: "string" }, json: { type: "boolean", default: false } } });
  const seconds = Number(values.minutes) * 60;
  const report = await soak({ seconds, clients: Number(values.clients), parallel: Number(values.parallel), threads: Number(values.threads), seed: Number(values.seed), ...(values.model === undefined ? {} : { model: values.model }) });
  // In three minutes a heap is still finding its size (+7 % was seen); in ten it has found it (-0.6 %).
  const growth = report.rss.late / report.rss.early - 1;
  if (seconds >= 300 && growth > 0.05) report.failures.push(`memory grew by ${(growth * 100).toFixed(1)} %`);
  if (values.json) console.log(JSON.stringify(report));
  else {
    const ms = (s: Spread): string => `p50 ${s.p50.toFixed(1)} ms, p99 ${s.p99.toFixed(1)} ms, most ${s.max.toFixed(1)} ms (${s.count})`;
    console.log(`requests        ${Object.entries(report.done).map(([kind, n]) => `${n} ${kind}`).join(", ")}`);
    console.log(`tokens          ${report.tokens}: ${(report.tokens / seconds).toFixed(0)} a second`);
    console.log(`first token     ${ms(report.firstToken)}\nbetween tokens  ${ms(report.betweenTokens)}`);
    console.log(`memory          ${(report.rss.early / 1e6).toFixed(1)} MB early, ${(report.rss.late / 1e6).toFixed(1)} MB late (${(growth * 100).toFixed(1)} %), ${(report.rss.most / 1e6).toFixed(1)} MB at most`);
    for (const failure of report.failures) console.log(`FAILED          ${failure}`);
  }
  process.exitCode = report.failures.length === 0 ? 0 : 1;
}
