// The families that Bao runs. Adding one is one file and one line here.
import { ModelFileError } from "../errors.ts";
import { printable, type GgufFile } from "../gguf/index.ts";
import type { Family } from "./families/family.ts";
import { gemma4 } from "./families/gemma4.ts";
import { llama } from "./families/llama.ts";

const FAMILIES: readonly Family[] = [gemma4, llama];

/** The family of a file by its general.architecture. Throws ModelFileError `model_architecture` that lists the supported ones. */
export function familyOf(file: GgufFile): Family {
  const architecture = file.metadata.string("general.architecture");
  const family = FAMILIES.find((f) => architecture !== undefined && f.architectures.includes(architecture));
  if (family) return family;
  const known = FAMILIES.flatMap((f) => f.architectures).join(", ");
  throw new ModelFileError("model_architecture", `${file.path}: ${architecture === undefined ? "general.architecture is missing" : `architecture ${printable(architecture)} is not supported`}`, `Supported: ${known}.`);
}
