// All cases, and which of them a run takes.
import { UsageError } from "../../src/errors.ts";
import * as attention from "./attention.ts";
import { WEIGHT_TYPES, type BenchCase } from "./case.ts";
import * as elementwise from "./elementwise.ts";
import * as embed from "./embed.ts";
import * as glu from "./glu.ts";
import * as kv from "./kv.ts";
import * as matmul from "./matmul.ts";
import { MODELS, MODEL_NAMES } from "./models.ts";
import * as moe from "./moe.ts";
import * as norm from "./norm.ts";
import * as rope from "./rope.ts";
import * as sample from "./sample.ts";

const FILES = [embed, norm, rope, kv, attention, matmul, glu, moe, sample, elementwise];

/** Every case of every model, in the order of the files. */
export function allCases(): BenchCase[] {
  return FILES.flatMap((file) => MODELS.flatMap((model) => file.cases(model)));
}

export interface Selection {
  readonly all: boolean;
  readonly ops?: readonly string[] | undefined;
  readonly dtypes?: readonly string[] | undefined;
  readonly models?: readonly string[] | undefined;
  readonly rows?: readonly number[] | undefined;
  /** Part of a row's name. */
  readonly filter?: string | undefined;
}

const DEFAULT_MODELS = ["e2b", "26b-a4b"];

// Beside the usual types of both models: Q8_0 files of the small one, and one matrix in every type.
function inDefaultSet(c: BenchCase, selection: Selection): boolean {
  if (!selection.models && !DEFAULT_MODELS.includes(c.model)) return false;
  if (selection.dtypes || c.usual) return true;
  if (c.model !== "e2b" || !c.op.startsWith("matmul")) return false;
  return (c.dtype === "q8_0" && (c.rows === 1 || c.rows === 512)) || (c.op === "matmul" && c.site === "ffn down" && (c.rows === 1 || c.rows === 32));
}

/** Name of a case, the same in every run: what --filter looks at and --compare matches. */
export const caseName = (c: { readonly op: string; readonly model: string; readonly site: string; readonly dtype: string; readonly rows: number }): string => `${c.op} ${c.model} ${c.site} ${c.dtype} n=${c.rows}`;

/** The cases of a run. Throws UsageError for names that no case has. */
export function select(selection: Selection): BenchCase[] {
  const cases = allCases();
  known("op", selection.ops, [...new Set([...cases.map((c) => c.op), "ffi"])]);
  known("dtype", selection.dtypes, [...new Set([...WEIGHT_TYPES.map((t) => t.toLowerCase()), ...cases.map((c) => c.dtype)])]);
  known("model", selection.models, MODEL_NAMES);
  const has = <T>(list: readonly T[] | undefined, value: T): boolean => list === undefined || list.includes(value);
  return cases.filter((c) => has(selection.ops, c.op) && has(selection.dtypes, c.dtype) && has(selection.models, c.model) && has(selection.rows, c.rows)
    && (selection.all || inDefaultSet(c, selection)) && (!selection.filter || caseName(c).includes(selection.filter)));
}

function known(option: string, found: readonly string[] | undefined, names: readonly string[]): void {
  for (const name of found ?? []) {
    if (!names.includes(name)) throw new UsageError("usage", `--${option} ${name}: no benchmark has it`, `Choose from ${names.join(", ")}.`);
  }
}
