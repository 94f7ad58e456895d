// Everything that a program can do with sessions, at random and all at once: every greedy answer is that of the request alone, nothing fails, nothing leaks.
import { expect, setDefaultTimeout, test } from "bun:test";
import { load, type GenerateOptions, type Model, type ModelSession } from "../../src/index.ts";
import { LocalModel } from "../../src/engine/model.ts";
import { collect, DEMO, random, randomIds, TemporaryFolder } from "./fixtures.ts";

setDefaultTimeout(120_000);
const CLIENTS = 8, OPERATIONS = 260;

/** What `work` gives, undefined for an error of this code. */
async function unless<T>(code: string, work: Promise<T>): Promise<T | undefined> {
  try { return await work; } catch (e) { if ((e as { code?: string }).code === code) return undefined; throw e; }
}

test("eight clients: answers, aborts, readers who leave, forks, rewinds, files, embeddings, schemas, nonsense", async () => {
  using folder = new TemporaryFolder();
  const prompts = Array.from({ length: 16 }, (_, i) => randomIds(i, 1 + ((i * 131) % (i < 3 ? 500 : 200)), 4096));
  const LENGTH = 24, alone: string[] = [];
  {
    using one = await LocalModel.load(DEMO, { device: { threads: 1 }, context: 768, warmup: false });
    using session = one.session();
    for (const ids of prompts) alone.push((await collect(one, session, { ids }, { temperature: 0, maxTokens: LENGTH, logprobs: 2 })).parts.map((p) => (p.type === "token" ? `${p.id} ${p.logprob}` : "")).join());
  }
  await using model = await load(DEMO, { device: { threads: 2 }, context: 768, sessions: CLIENTS + 3 });
  let left = OPERATIONS, checked = 0;
  const client = async (n: number): Promise<void> => {
    const next = random(n + 100), int = (m: number): number => Math.trunc(next() * m);
    let session = await model.session();
    while (left-- > 0) {
      const i = int(prompts.length), ids = prompts[i]!, free: GenerateOptions = { temperature: 1, seed: i, maxTokens: 60, ignoreStop: true };
      const deeds: (() => Promise<unknown>)[] = [
        async () => {
          const { parts } = await ([model, session] as (Model | ModelSession)[])[int(2)]!.generate({ ids }, { temperature: 0, maxTokens: LENGTH, logprobs: 2 }).result();
          expect([n, i, parts.map((p) => (p.type === "token" ? `${p.id} ${p.logprob}` : "")).join()]).toEqual([n, i, alone[i]!]);
          checked++;
        },
        async () => {
          const abort = new AbortController();
          setTimeout(() => abort.abort(), next() * 40);
          await session.generate({ ids }, { ...free, signal: abort.signal, onAbort: "stop" }).result();
        },
        async () => { for await (const part of session.generate({ ids }, free)) if (part.type === "text" && next() < 0.1) break; },
        async () => {
          const fork = await unless("too_many_sequences", session.fork());
          if (fork) [, session] = [await session.dispose(), fork];
        },
        async () => { await unless("rewind_unreachable", session.rewind(int((await session.tokens()).length + 1))); },
        async () => {
          await session.save(folder.file(`${n}`));
          await unless("session_unreadable", session.restore(folder.file(`${int(CLIENTS)}`)));
        },
        async () => { expect((await model.embed([{ ids }, "hello"])).map((e) => e.tokens)[0]).toBe(ids.length); },
        async () => {
          const { text, finish } = await session.generate("Who are you?", { temperature: 1, seed: i, maxTokens: 80, responseFormat: { type: "json_object" } }).result();
          if (finish.reason === "stop") JSON.parse(text);
        },
        async () => { expect(await unless("bad_token", session.generate({ ids: [5000] }).text())).toBeUndefined(); },
      ];
      await deeds[next() < 0.4 ? 0 : int(deeds.length)]!();
    }
    await session.dispose();
  };
  await Promise.all(Array.from({ length: CLIENTS }, (_, n) => client(n)));
  expect(checked).toBeGreaterThan(60);
});
