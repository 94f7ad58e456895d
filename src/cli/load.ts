// Loads the model that a command names, with the device chosen and the kernel library built if need be. Says on stderr what a user should know.
import { basename } from "node:path";
import { chooseDevice, type DeviceChoice } from "../engine/choose.ts";
import { embeddedModel } from "../engine/embedded.ts";
import { LocalModel, type LoadOptions } from "../engine/model.ts";
import { UsageError } from "../errors.ts";
import { resolveModel } from "../hub/index.ts";
import type { BackendName } from "../native/library.ts";
import { FetchProgress } from "./fetching.ts";
import { ensureKernels } from "./kernels.ts";
import { loadOptions, type ModelArguments } from "./options.ts";
import { colours, noteLine } from "./output.ts";
import { busyLine } from "./progress.ts";

export interface Loaded extends Disposable {
  readonly model: LocalModel;
  readonly path: string;
  readonly embedded: boolean;
  readonly choice: DeviceChoice;
}

/** The file that --model names, fetched if it is a name on the hub and not here; or the embedded model, which is said on stderr. */
export async function modelPath(model: string | undefined, signal?: AbortSignal): Promise<{ path: string; embedded: boolean }> {
  if (model === "") throw new UsageError("bad_option", "--model: expected a path, found nothing", "Is a variable of your shell empty?");
  if (model !== undefined) {
    using shown = new FetchProgress();
    return { path: await resolveModel(model, { signal, onProgress: shown.show }), embedded: false };
  }
  const path = embeddedModel();
  noteLine(colours(2).dim("bao: no --model given, using the embedded demo model (a small story teller)"));
  return { path, embedded: true };
}

/** Opens, checks and loads. `extra` overrides what the arguments say. */
export async function loadModel(args: ModelArguments, named: { path: string; embedded: boolean }, extra: LoadOptions = {}): Promise<Loaded> {
  await ensureKernels();
  const choice = chooseDevice(args.device as "auto" | BackendName), c = colours(2);
  for (const warning of choice.warnings) noteLine(`${c.yellow("bao: warning:")} ${warning}`);
  const options = loadOptions(args);
  const { path } = named;
  let model: LocalModel;
  {
    using _busy = busyLine(`loading ${basename(path)}`);
    model = await LocalModel.load(path, { ...options, ...extra, device: { ...options.device, ...extra.device, backend: choice.backend } });
  }
  for (const warning of model.tokenizer.warnings) noteLine(`${c.yellow("bao: warning:")} ${warning}`);
  return { model, ...named, choice, [Symbol.dispose]: () => model.dispose() };
}
