// Measures a loaded model: prefill and decode at a depth with llama-bench's meaning of both, and where the time of a step goes.
// Prints nothing and loads nothing but what `measureStart` is asked to; every figure is measured in this process.
import { BaoError } from "../errors.ts";
import { BAO } from "../native/symbols.ts";
import { openHost } from "../native/library.ts";
import { countCalls } from "../native/trace.ts";
import { resolveSampling, type Sampling } from "../sample/params.ts";
import { LocalModel, type LoadOptions, type LoadTimes } from "./model.ts";

export interface BenchTest {
  readonly kind: "prefill" | "decode";
  /** Tokens of the prompt, or decoded one by one. */
  readonly tokens: number;
  /** Tokens in the cache before. */
  readonly depth: number;
  /** How the decoded tokens are drawn; a prefill draws one token, greedily. */
  readonly sampling: "greedy" | "sampled";
}

/** Milliseconds of one step or token, from a run of its own with the clocks on. */
export interface TimeSplit {
  readonly wall: number;
  /** Ops of the forward pass. */
  readonly kernels: number;
  /** Ops that turn logits into a token. */
  readonly sampling: number;
  /** Calls through bun:ffi other than waiting, with what they do in C, as far as no op ran meanwhile. */
  readonly ffi: number;
  /** Waiting while no op ran: waking up, handing over. */
  readonly waiting: number;
  /** The loop in TypeScript, and the clocks themselves. */
  readonly script: number;
  /** Calls through bun:ffi, waiting included. */
  readonly calls: number;
}

/** Time of all ops of one kind in a step. */
export interface OpTime { readonly op: string; readonly count: number; readonly ms: number }

export interface BenchResult {
  readonly test: BenchTest;
  /** Milliseconds of each repetition. */
  readonly samples: readonly number[];
  /** Tokens a second: the median, and the half-width of all repetitions around it as a share of it. */
  readonly tokensPerSecond: number;
  readonly spread: number;
  /** Bytes that a decoded token reads: its weights, and the KV at the middle of the run. */
  readonly bytesPerToken: number | undefined;
  readonly split: TimeSplit;
  /** Most time first. */
  readonly ops: readonly OpTime[];
  /** Encoding and decoding of the tokens of this test, in milliseconds a token; undefined without a tokenizer. */
  readonly tokenizer: number | undefined;
}

export interface BenchOptions {
  readonly repetitions: number;
  /** One untimed repetition first. Default true. */
  readonly warmup?: boolean;
  readonly signal?: AbortSignal;
  /** Called after every repetition. */
  readonly onRepetition?: (done: number) => void;
}

/** From opening the file to a first token, in milliseconds. */
export interface StartTimes extends LoadTimes { readonly firstToken: number; readonly total: number }

const OP_NAMES = new Map<number, string>(Object.entries(BAO).filter(([name]) => name.startsWith("OP_") && name !== "OP_COUNT").map(([name, kind]) => [kind as number, name.slice(3).toLowerCase()]));
const SAMPLING_OPS = new Set<number>([BAO.OP_LOGITS_PROCESS, BAO.OP_LOGPROBS, BAO.OP_SAMPLE]);
const WAITS = new Set(["wait", "poll"]);
const FIRST_PROMPT = 10;
const PROBE_BYTES = 2 ** 30;
const KV_BYTES = { f32: 4, f16: 2, q8_0: 34 / 32 } as const;

const now = (): number => Bun.nanoseconds() / 1e6;

/** Every combination, prefill before decode, depth by depth. Counts of 0 leave a kind out. */
export function benchTests(prompts: readonly number[], generates: readonly number[], depths: readonly number[], sampled: boolean): BenchTest[] {
  return depths.flatMap((depth) => [
    ...prompts.filter((n) => n > 0).map((tokens): BenchTest => ({ kind: "prefill", tokens, depth, sampling: "greedy" })),
    ...generates.filter((n) => n > 0).flatMap((tokens): BenchTest[] => (sampled ? ["greedy", "sampled"] as const : ["greedy"] as const).map((sampling) => ({ kind: "decode", tokens, depth, sampling }))),
  ]);
}

/** Tokens of context that the tests need. */
export function benchContext(tests: readonly BenchTest[]): number {
  return Math.max(...tests.map((t) => t.depth + t.tokens + 1), FIRST_PROMPT + 2);
}

/** Name in llama-bench's manner: pp512, tg128, "tg128 @ d4096". */
export function testName(test: BenchTest): string {
  return `${test.kind === "prefill" ? "pp" : "tg"}${test.tokens}${test.depth > 0 ? ` @ d${test.depth}` : ""}`;
}

/** Bytes a second that `threads` threads read from memory and do nothing else; 0 when there is no memory for the probe. */
export function readPeak(threads: number): number { return openHost().hostReadBandwidth(threads, PROBE_BYTES, 3); }

/** Loads a model without warming it up and runs a prompt of ten tokens: what a user waits for at the start of a program. */
export async function measureStart(path: string, options: LoadOptions): Promise<{ model: LocalModel; start: StartTimes }> {
  const began = now();
  const model = await LocalModel.load(path, { ...options, warmup: false });
  try {
    const loaded = now();
    using session = model.session();
    await session.prefill(ids(FIRST_PROMPT, model.runner.config.vocabulary), { sampling: samplingOf("greedy", model) });
    return { model, start: { ...model.loadTimes, firstToken: now() - loaded, total: now() - began } };
  } catch (e) {
    model.dispose();
    throw e;
  }
}

/** Runs one test: repetitions with the clocks off, then one with them on. Throws signal.reason when aborted, BaoError when a logit is not finite. */
export async function runTest(model: LocalModel, test: BenchTest, options: BenchOptions): Promise<BenchResult> {
  const { runner } = model, { signal } = options, { vocabulary } = runner.config, sampling = samplingOf(test.sampling, model);
  const base = ids(test.depth, vocabulary), drawn: number[] = [];
  using session = model.session();
  if (base.length > 0) await session.prefill(base, { signal });

  /** Gets everything ready, calls `clocksOn`, runs what is measured and gives its milliseconds. */
  const repetition = async (clocksOn: () => void = () => {}): Promise<number> => {
    if (base.length === 0) session.reset();
    if (test.kind === "prefill") {
      const prompt = [...base, ...ids(test.tokens, vocabulary)];
      clocksOn();
      const began = now(), { reused, drawn: token } = await session.prefill(prompt, { signal, sampling }), ms = now() - began;
      // A random prompt may share its first tokens with the last one.
      if (reused < base.length) throw new BaoError("bench_depth", `${base.length - reused} of ${base.length} tokens had left the cache`);
      finite(token!.finite);
      return ms;
    }
    drawn.length = 0;
    // The clock runs from the first token, which belongs to the prompt, to the last.
    let began = 0, ended = 0;
    await session.answer([...base, ...ids(1, vocabulary)], {
      sampling, signal, limit: test.tokens + 1,
      onToken: (token) => {
        finite(token.finite);
        ended = now();
        if (began > 0) drawn.push(token.id);
        else { clocksOn(); began = now(); }
        return true;
      },
    }).ended;
    return ended - began;
  };

  if (options.warmup ?? true) await repetition();
  const samples: number[] = [];
  for (let i = 0; i < options.repetitions; i++) {
    samples.push(await repetition());
    options.onRepetition?.(i + 1);
  }
  const median = medianOf(samples), steps = test.kind === "decode" ? test.tokens : 1;
  const { split, ops } = await measured(model, steps, repetition);
  return {
    test, samples, tokensPerSecond: (1000 * test.tokens) / median, spread: (Math.max(...samples) - Math.min(...samples)) / 2 / median,
    bytesPerToken: test.kind === "decode" ? model.estimate.bytesPerToken + kvBytes(model, test.depth + test.tokens / 2) : undefined,
    split, ops, tokenizer: tokenizerTime(model, test.kind, test.kind === "decode" ? drawn : ids(test.tokens, vocabulary)),
  };
}

/** One repetition with op times and FFI calls counted. */
async function measured(model: LocalModel, steps: number, repetition: (clocksOn: () => void) => Promise<number>): Promise<{ split: TimeSplit; ops: OpTime[] }> {
  const { runner } = model;
  let stop: ReturnType<typeof countCalls> | undefined, wall = 0;
  try {
    wall = await repetition(() => {
      runner.profile(true);
      stop = countCalls(runner.device.k);
    });
  } finally {
    runner.profile(false);
  }
  const calls = stop!();
  const times = [...runner.opTimes()].map(([kind, t]) => ({ kind, count: t.count, ms: t.nanoseconds / 1e6 / steps }));
  let ffi = 0, waits = 0, count = 0;
  for (const [name, s] of calls) {
    if (WAITS.has(name)) waits += s.nanoseconds / 1e6; else ffi += s.nanoseconds / 1e6;
    count += s.calls;
  }
  const sum = (of: (kind: number) => boolean): number => times.filter((t) => of(t.kind)).reduce((n, t) => n + t.ms, 0);
  const kernels = sum((k) => !SAMPLING_OPS.has(k)), sampling = sum((k) => SAMPLING_OPS.has(k));
  const script = Math.max(0, (wall - ffi - waits) / steps), idle = Math.max(0, wall / steps - kernels - sampling - script);
  // Pool threads begin while this one is still submitting, so only what no op covers counts against the bridge.
  const bridge = Math.min(ffi / steps, idle);
  const split: TimeSplit = { wall: wall / steps, kernels, sampling, ffi: bridge, waiting: idle - bridge, script, calls: count / steps };
  return { split, ops: times.filter((t) => t.ms > 0).sort((a, b) => b.ms - a.ms).map((t) => ({ op: OP_NAMES.get(t.kind) ?? `op ${t.kind}`, count: t.count, ms: t.ms })) };
}

/** Bytes of keys and values that a token reads when it stands at `position`. */
function kvBytes(model: LocalModel, position: number): number {
  const { config, plan } = model.runner;
  return config.layers.reduce((n, l) => n + 2 * l.kvHeads * l.headDim * KV_BYTES[plan.kvType] * Math.min(position, l.window === 0 ? Infinity : l.window), 0);
}

function samplingOf(how: BenchTest["sampling"], model: LocalModel): Sampling {
  return resolveSampling(how === "greedy" ? { temperature: 0, seed: 1 } : { temperature: 0.8, topK: 40, topP: 0.95, seed: 1 }, model.runner.config.vocabulary);
}

/** Milliseconds a token of encoding the text of these tokens (prefill), or of decoding them one by one. */
function tokenizerTime(model: LocalModel, kind: BenchTest["kind"], tokens: readonly number[]): number | undefined {
  const { tokenizer } = model;
  if (tokenizer.model === "none") return undefined;
  const text = tokenizer.decode(tokens), stream = tokenizer.stream();
  const began = now();
  if (kind === "prefill") {
    const count = tokenizer.encode(text).length;
    return (now() - began) / Math.max(1, count);
  }
  for (const id of tokens) stream.push(id);
  stream.end();
  return (now() - began) / tokens.length;
}

function finite(ok: boolean): void {
  if (!ok) throw new BaoError("not_finite", "The logits are not finite", "The model file may be damaged: run bao generate --check-finite to find the layer.");
}

/** The value in the middle; of an even number the mean of both. */
export function medianOf(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b), half = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2;
}

// Random, because experts are chosen by what the tokens are: one token over and over would read the same few experts.
function ids(count: number, vocabulary: number): number[] { return Array.from({ length: count }, () => Math.trunc(Math.random() * vocabulary)); }
