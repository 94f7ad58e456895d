// bao serve: a model behind OpenAI's HTTP API, until Ctrl-C. Says on stderr where; writes nothing to stdout.
import type { Argv } from "yargs";
import { chooseDevice } from "../engine/choose.ts";
import { env } from "../env.ts";
import { UsageError } from "../errors.ts";
import { load } from "../index.ts";
import type { BackendName } from "../native/library.ts";
import { modelName, serve } from "../server/index.ts";
import { ensureKernels } from "./kernels.ts";
import { Interrupt } from "./interrupt.ts";
import { modelPath } from "./load.ts";
import { defined, flag, list, loadOptions, modelOptions, number, text, type ModelArguments } from "./options.ts";
import { colours, escaped, noteLine } from "./output.ts";
import { busyLine } from "./progress.ts";

const SERVER = { group: "Server:" };
const EXAMPLES = `Examples:
  bao serve                                   the embedded model at http://127.0.0.1:8080, with a page
  bao serve -m gemma.gguf --ctx 8192 --parallel 8
  BAO_API_KEY=secret bao serve -m gemma.gguf --host 0.0.0.0
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}]}'`;

export function builder(y: Argv): Argv {
  return y.usage(`bao serve [options]\n\nServes a model over OpenAI's HTTP API; docs/server.md says how.\n\n${EXAMPLES}`).options({
    host: text("Address to listen on; 0.0.0.0 = every one of this machine's", { default: "127.0.0.1", ...SERVER }),
    port: number("port", "Port to listen on; 0 = any free one (default: 8080)", { whole: true, min: 0 }, SERVER),
    name: text("Name of the model in requests (default: its file's)", SERVER),
    "api-key": list("Key that requests must carry (repeatable; default: BAO_API_KEY, or none)", SERVER),
    cors: list("Origin whose pages may call the API; * = all (repeatable)", SERVER),
    parallel: number("parallel", "Answers computed at the same time, each with its own cache (default: 4)", { whole: true, min: 1 }, SERVER),
    queue: number("queue", "Answers that may wait; more are told to come back (default: 64)", { whole: true, min: 0 }, SERVER),
    log: flag("One line on stderr for every request", SERVER),
    ...modelOptions,
  });
}

export interface ServeArguments extends ModelArguments {
  host: string; port?: number; name?: string; apiKey?: string[]; cors?: string[]; parallel?: number; queue?: number; log?: boolean;
}

export async function run(args: ServeArguments): Promise<void> {
  using interrupt = new Interrupt();
  const { signal } = interrupt, c = colours(2);
  if (args.port !== undefined && args.port > 65_535) throw new UsageError("bad_option", `--port: expected at most 65535, found ${args.port}`);
  const apiKeys = args.apiKey ?? (env.BAO_API_KEY === undefined ? [] : [env.BAO_API_KEY]);
  if (apiKeys.includes("")) throw new UsageError("bad_option", "--api-key: expected a key, found nothing", "Is a variable of your shell empty?");
  const { path } = await modelPath(args.model, signal);
  await ensureKernels();
  const choice = chooseDevice(args.device as "auto" | BackendName), options = loadOptions(args);
  for (const warning of choice.warnings) noteLine(`${c.yellow("bao: warning:")} ${warning}`);
  await using model = await (async () => {
    using _busy = busyLine(`loading ${modelName(path)}`);
    return load(path, { ...options, device: { ...options.device, backend: choice.backend }, sessions: args.parallel ?? 4, signal });
  })();
  for (const warning of model.info.warnings) noteLine(`${c.yellow("bao: warning:")} ${warning}`);

  const server = serve(model, {
    host: args.host, apiKeys, ...defined({ port: args.port, name: args.name, cors: args.cors, queue: args.queue }),
    onError: (e) => noteLine(`${c.red("bao:")} ${escaped(e instanceof Error ? e.message : String(e))}`),
    ...(args.log ? { onRequest: (r) => noteLine(c.dim(escaped(`${r.method} ${r.path} ${r.status} ${r.ms.toFixed(0)} ms`))) } : {}),
  });
  const { plan, device } = model.info;
  noteLine(`bao: ${args.name ?? modelName(path)} on ${device.backend}: ${plan.sequences} answers at a time, ${plan.context} tokens each`);
  noteLine(`bao: listening on ${c.bold(server.url.href)}`);
  if (apiKeys.length === 0 && !["127.0.0.1", "localhost", "::1"].includes(args.host)) noteLine(`${c.yellow("bao: warning:")} everybody who reaches this address can use the model; --api-key asks for a key`);

  await new Promise<void>((resolve) => {
    signal.addEventListener("abort", () => resolve(), { once: true });
    process.once("SIGTERM", () => resolve());
  });
  noteLine("bao: ending when the answers in flight have ended; Ctrl-C ends at once");
  await server.close();
}
