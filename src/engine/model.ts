// A loaded model in this thread: file, tokenizer, template, runner. The CLI uses it directly, the library through the engine Worker.
import { UsageError, ModelFileError } from "../errors.ts";
import { createChatTemplate, defaultTemplateSource, type ChatTemplate } from "../chat/index.ts";
import { openGguf, type GgufFile } from "../gguf/index.ts";
import type { SavedFor } from "../kv/saved.ts";
import { estimateMemory, planRun, type MemoryEstimate, type RunPlan } from "../model/estimate.ts";
import { familyOf } from "../model/registry.ts";
import type { DeviceOptions, KvType } from "../native/objects.ts";
import { createTokenizer, tokenizerSource, type Tokenizer } from "../tokenizer/index.ts";
import { modelFingerprint } from "./fingerprint.ts";
import { Runner, turn } from "./runner.ts";
import { Scheduler } from "./scheduler.ts";
import { Session } from "./session.ts";
import type { OpReport } from "./stepwise.ts";
import { resolveSampling } from "../sample/params.ts";

export interface LoadOptions {
  device?: DeviceOptions;
  /** Tokens a sequence may hold; default: the model's, at most 4,096. */
  context?: number;
  /** Default: f16, and f32 in exact precision. */
  kvType?: KvType;
  /** Rows of a prefill step. */
  chunk?: number;
  /** Rows of one step that may ask for logits. */
  outputs?: number;
  sequences?: number;
  unfused?: boolean;
  keepHidden?: boolean;
  onOp?: (report: OpReport) => void;
  /** Steps under way at once: RunnerOptions. */
  depth?: 1 | 2;
  /** Called when a part of loading begins, and while it goes on. */
  onProgress?: (progress: LoadProgress) => void;
  /** One decode and one short prefill at load, so that the first prompt runs at full speed. Default true. */
  warmup?: boolean;
}

/** Where the time of a load went, in milliseconds. */
export interface LoadTimes { open: number; tokenizer: number; weights: number; warmup: number }

/** How far a load is: what it works at, and which share of all of it is done (0 to 1; of a fetch from the hub, the share of its file). */
export interface LoadProgress { readonly phase: "fetch" | "open" | "weights" | "tokenizer" | "warmup" | "ready"; readonly done: number }

/** A file that was opened and checked, but not loaded: what `bao inspect` and the memory estimate need. */
export interface OpenedModel { readonly file: GgufFile; readonly plan: RunPlan; readonly estimate: MemoryEstimate }

/** Opens and checks a model file and estimates what it would take. Needs no kernel library. */
export function openModel(path: string, options: LoadOptions = {}): OpenedModel {
  const file = openGguf(path);
  const config = familyOf(file).configure(file);
  const plan = planRun(config, planOptions(options));
  return { file, plan, estimate: estimateMemory(file, config, plan) };
}

// A GPU needs this many rows to multiply at full speed. Each sequence's window pool has room for a chunk of its own: many sequences, smaller chunks.
function cudaChunk(o: LoadOptions): number {
  const shared = Math.floor(16_384 / (o.sequences ?? 1) / 64) * 64;
  return Math.min(2048, Math.max(512, shared), Math.max(1, o.context ?? 2048));
}

function planOptions(o: LoadOptions): Partial<RunPlan> {
  const kvType = o.kvType ?? (o.device?.precision === "exact" ? "f32" : undefined);
  const chunk = o.chunk ?? (o.device?.backend === "cuda" ? cudaChunk(o) : undefined);
  return {
    ...(o.context === undefined ? {} : { context: o.context }), ...(chunk === undefined ? {} : { chunk }),
    ...(o.outputs === undefined ? {} : { outputs: o.outputs }), ...(o.sequences === undefined ? {} : { sequences: o.sequences }), ...(kvType === undefined ? {} : { kvType }),
  };
}

export class LocalModel implements Disposable {
  readonly file: GgufFile;
  readonly runner: Runner;
  readonly scheduler: Scheduler;
  readonly tokenizer: Tokenizer;
  readonly estimate: MemoryEstimate;
  readonly loadTimes: LoadTimes;
  #template: ChatTemplate | undefined;
  readonly #templateSource: string | undefined;

  private constructor(opened: OpenedModel, runner: Runner, tokenizer: Tokenizer, templateSource: string | undefined, loadTimes: LoadTimes) {
    this.file = opened.file;
    this.estimate = opened.estimate;
    this.runner = runner;
    this.scheduler = new Scheduler(runner);
    this.tokenizer = tokenizer;
    this.#templateSource = templateSource;
    this.loadTimes = loadTimes;
  }

  /** Loads a GGUF file. Throws ModelFileError, ResourceError or UsageError; nothing stays allocated then. */
  static async load(path: string, options: LoadOptions = {}): Promise<LocalModel> {
    const times: LoadTimes = { open: 0, tokenizer: 0, weights: 0, warmup: 0 };
    const clock = stopwatch();
    // Rough shares of a load.
    const at = async (phase: LoadProgress["phase"], done: number): Promise<void> => {
      if (!options.onProgress) return;
      options.onProgress({ phase, done });
      await turn();
    };
    await at("open", 0);
    const opened = openModel(path, options);
    times.open = clock();
    await at("weights", 0.05);
    using made = new DisposableStack();
    const runner = made.use(new Runner(opened.file, {
      ...(options.device ? { device: options.device } : {}), plan: planOptions(options),
      ...(options.unfused ? { unfused: true } : {}), ...(options.keepHidden ? { keepHidden: true } : {}), ...(options.onOp ? { onOp: options.onOp } : {}),
      ...(options.depth ? { depth: options.depth } : {}),
    }));
    times.weights = clock();
    // A GPU's weights travel while the tokenizer is built, which takes a second for 262,144 tokens; the first step waits for them.
    await at("tokenizer", 0.1);
    const { source, tokenizer } = readTokenizer(opened.file);
    checkVocabulary(opened.file, tokenizer, runner.config.vocabulary);
    times.tokenizer = clock();
    const model = made.use(new LocalModel(opened, runner, tokenizer, source.chatTemplate, times));
    if (options.warmup ?? true) {
      await at("warmup", 0.5);
      await model.#warmup();
      times.warmup = clock();
    }
    await at("ready", 1);
    made.move();
    return model;
  }

  /** Identifies the file's contents: what is saved of a session can be restored only where it is the same. */
  get fingerprint(): string { return (this.#fingerprint ??= modelFingerprint(this.file, this.runner.config)); }
  #fingerprint: string | undefined;

  /** One short prefill and one decode step, then forgotten. */
  async #warmup(): Promise<void> {
    using session = this.session();
    const sampling = resolveSampling({ temperature: 0, seed: 0 }, this.runner.config.vocabulary);
    const id = this.tokenizer.bosId ?? 0;
    const n = Math.min(8, this.runner.plan.context - 1);
    if (n < 1) return;
    await session.prefill(new Array<number>(n).fill(id), { sampling });
    await session.next(sampling);
  }

  session(): Session { return new Session(this.scheduler); }
  /** What a saved session must have been saved with. */
  get savedFor(): SavedFor { return { model: this.fingerprint, kvType: this.runner.plan.kvType, vocabulary: this.runner.config.vocabulary }; }

  /** The file's chat template (compiled once). Throws UsageError `chat_template_missing` for models that are no chat models. */
  get template(): ChatTemplate {
    if (!this.#template) {
      const text = this.#templateSource ?? defaultTemplateSource((t) => this.tokenizer.idOf(t) !== undefined);
      const { bosId, eosId } = this.tokenizer;
      this.#template = createChatTemplate(text, {
        ...(bosId === undefined ? {} : { bosToken: this.tokenizer.piece(bosId) }), ...(eosId === undefined ? {} : { eosToken: this.tokenizer.piece(eosId) }),
      });
    }
    return this.#template;
  }
  dispose(): void {
    this.scheduler.dispose();
    this.runner.dispose();
  }
  [Symbol.dispose](): void { this.dispose(); }
}

/** Milliseconds since the last call. */
function stopwatch(): () => number {
  let last = Bun.nanoseconds();
  return () => {
    const now = Bun.nanoseconds(), ms = (now - last) / 1e6;
    last = now;
    return ms;
  };
}

/** Tokenizer errors know keys; whoever reads them has to know the file as well. */
function readTokenizer(file: GgufFile): { source: ReturnType<typeof tokenizerSource>; tokenizer: Tokenizer } {
  try {
    const source = tokenizerSource((key) => file.metadata.get(key));
    return { source, tokenizer: createTokenizer(source) };
  } catch (e) {
    if (!(e instanceof ModelFileError) || e.message.includes(file.path)) throw e;
    throw new ModelFileError(e.code, `${file.path}: ${e.message}`, e.hint, { cause: e });
  }
}

// A tokenizer larger than the embedding would give ids that the model cannot run.
function checkVocabulary(file: GgufFile, tokenizer: Tokenizer, rows: number): void {
  if (tokenizer.model === "none" || tokenizer.vocabSize === rows) return;
  throw new ModelFileError("vocabulary_mismatch", `${file.path}: ${tokenizer.vocabSize} tokens in the tokenizer, ${rows} rows in token_embd.weight`, "The file's tokenizer and tensors do not belong together.");
}

/** Throws when a model without a tokenizer is asked for text. */
export function requireText(model: LocalModel): void {
  if (model.tokenizer.model === "none") throw new UsageError("no_tokenizer", "This model carries no tokenizer", "Feed ids with --token-ids.");
}
