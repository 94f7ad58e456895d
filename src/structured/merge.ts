// Two schemas that hold at once, as one. Only where that is plain; everything else is refused.
import { unsupported } from "./ebnf.ts";

type Schema = Readonly<Record<string, unknown>>;
const isSchema = (value: unknown): value is Schema => typeof value === "object" && value !== null && !Array.isArray(value);
const ANNOTATIONS = new Set(["title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly", "$defs", "definitions"]);

/** Values that satisfy both `a` and `b`. Throws UsageError `unsupported_schema`. */
export function merge(a: Schema, b: Schema, path: string): Schema {
  const out: Record<string, unknown> = { ...a };
  for (const [key, value] of Object.entries(b)) {
    const mine = out[key];
    if (mine === undefined || ANNOTATIONS.has(key) || same(mine, value)) { out[key] = mine ?? value; continue; }
    switch (key) {
      case "properties":
        if (!isSchema(mine) || !isSchema(value)) throw unsupported(path, '"properties" is no object', "");
        out[key] = Object.fromEntries([...new Set([...Object.keys(mine), ...Object.keys(value)])].map((name) => [name, both(mine[name], value[name], path)]));
        break;
      case "required":
        out[key] = [...new Set([mine, value].flat())];
        break;
      case "minimum": case "exclusiveMinimum": case "minLength": case "minItems":
        out[key] = Math.max(mine as number, value as number);
        break;
      case "maximum": case "exclusiveMaximum": case "maxLength": case "maxItems":
        out[key] = Math.min(mine as number, value as number);
        break;
      case "type": {
        const both = [mine].flat().filter((t) => [value].flat().includes(t));
        if (both.length === 0) throw unsupported(path, "its parts ask for different types", "");
        out[key] = both.length === 1 ? both[0] : both;
        break;
      }
      default: throw unsupported(path, `${JSON.stringify(key)} in several parts that hold at once cannot be guaranteed`);
    }
  }
  // A part that is closed refuses what the other part declares.
  for (const [closed, other] of [[a, b], [b, a]] as const) {
    if (closed["additionalProperties"] !== false) continue;
    const declared = Object.keys((closed["properties"] as object | undefined) ?? {});
    const beyond = Object.keys((other["properties"] as object | undefined) ?? {}).find((name) => !declared.includes(name));
    if (beyond !== undefined) throw unsupported(path, `the property ${JSON.stringify(beyond)} is refused by another part`, "");
  }
  return out;
}

function both(a: unknown, b: unknown, path: string): unknown {
  if (a === undefined) return b;
  if (b === undefined || same(a, b)) return a;
  return isSchema(a) && isSchema(b) ? merge(a, b, path) : { allOf: [a, b] };
}
function same(a: unknown, b: unknown): boolean { return JSON.stringify(a) === JSON.stringify(b); }
