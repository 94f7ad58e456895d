// Whether a planned model fits the device's free memory: refused before anything is loaded, with the context that would fit.
import { ResourceError } from "../errors.ts";
import type { GgufFile } from "../gguf/index.ts";
import type { ModelConfig } from "../model/config.ts";
import { estimateMemory, type RunPlan } from "../model/estimate.ts";
import type { Device } from "../native/objects.ts";

const STEP = 256;
const gb = (bytes: number): string => `${(bytes / 1e9).toFixed(bytes < 1e10 ? 2 : 1)} GB`;

/** Throws ResourceError `model_too_large` with the memory that is needed and free. KV pages are taken as answers grow: without this an answer would fail half way. */
export function checkFits(device: Pick<Device, "memory" | "info">, file: GgufFile, config: ModelConfig, plan: RunPlan): void {
  const free = device.memory("free");
  if (free <= 0) return; // the device does not tell
  // What a GPU reads has to be in its memory at once, uploaded or in place; a CPU can give file pages back.
  const placed = device.info.backend === "cpu";
  const parts = (context: number): { weights: number; kv: number; rest: number; all: number } => {
    const e = estimateMemory(file, config, { ...plan, context }), weights = placed ? 0 : e.weights;
    return { weights, kv: e.kv, rest: e.activations + e.logits, all: weights + e.allocated };
  };
  const need = parts(plan.context);
  if (need.all <= free) return;
  let fits = 0, tooMuch = Math.ceil(plan.context / STEP);
  while (tooMuch - fits > 1) {
    const middle = (fits + tooMuch) >> 1;
    if (parts(middle * STEP).all <= free) fits = middle; else tooMuch = middle;
  }
  const what = [...(need.weights > 0 ? [`weights ${gb(need.weights)}`] : []), `KV of ${plan.sequences > 1 ? `${plan.sequences} sequences of ` : ""}${plan.context} tokens ${gb(need.kv)}`, `activations ${gb(need.rest)}`];
  throw new ResourceError("model_too_large", `${file.path} needs ${gb(need.all)} on ${device.info.name} (${what.join(", ")}); ${gb(free)} are free`,
    fits > 0 ? `A context of ${fits * STEP} tokens fits (--ctx ${fits * STEP})${plan.sequences > 1 ? ", or fewer sessions" : ""}.` : "Use a smaller model or quantisation.");
}
