// The model that comes with the package, for a first run. Finds it; never downloads anything.
import { existsSync } from "node:fs";
import { join } from "node:path";
import { ModelFileError } from "../errors.ts";

/** Path of the embedded model. Throws ModelFileError `no_embedded_model` when this copy of the package has none. */
export function embeddedModel(): string {
  const path = join(import.meta.dir, "../../models/demo.gguf");
  if (existsSync(path)) return path;
  throw new ModelFileError("no_embedded_model", `${path}: no such file`, "Name a model with --model FILE.");
}
