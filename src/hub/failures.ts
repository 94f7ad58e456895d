// What went wrong between us and the hub, as errors that say what to do.
import { BaoError, ModelFileError } from "../errors.ts";

/** The hub answered with an error status. `what` names the model. */
export function statusFailure(status: number, what: string, detail: string, hasToken: boolean): BaoError {
  const said = detail === "" ? "" : `: ${detail}`;
  switch (status) {
    case 401: case 403: {
      const known = hasToken ? "The token in HF_TOKEN is not allowed to read it: accept the model's terms on its page, or use a token that may." : "Private and gated models need a token: accept the model's terms on its page and set HF_TOKEN.";
      return new ModelFileError("hub_forbidden", `${what}: the hub refuses access (${status})${said}`, `${known} A repository that does not exist answers like this, too.`);
    }
    case 404: return new ModelFileError("model_not_found", `${what}: not found (404)${said}`, "Check the spelling of organisation, repository and revision.");
    case 429: return new BaoError("hub_busy", `${what}: the hub asks us to wait (429)${said}`, "Try again later; a token in HF_TOKEN raises the limit.");
    default: return new BaoError("hub_failed", `${what}: the hub answered ${status}${said}`, status >= 500 ? "Try again later." : "");
  }
}

/** The hub could not be reached, or the connection broke. */
export function networkFailure(what: string, cause: unknown): BaoError {
  const message = cause instanceof Error ? cause.message : String(cause);
  return new BaoError("hub_unreachable", `${what}: ${message}`, "Check the connection; what has arrived is kept, and the next attempt goes on from there.", { cause });
}

/** A file of the cache could not be written. */
export function writeFailure(path: string, cause: unknown): BaoError {
  const { code, message } = cause as { code?: string; message: string };
  if (code === "ENOSPC" || code === "EDQUOT") return new ModelFileError("disk_full", `${path}: no space left on the device`, "Free some space (`bao list`, `bao rm`), or set HF_HUB_CACHE to a folder on another disk. What has arrived is kept.", { cause });
  return new ModelFileError("cache_unwritable", `${path}: ${message}`, "Set HF_HUB_CACHE to a folder that can be written.", { cause });
}
