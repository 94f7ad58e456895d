// Makes tool declarations and call arguments digestible for chat templates, which fail on schemas that are legal JSON Schema.

import { UsageError } from "../errors.ts";
import type { ToolCall, ToolInput, ToolSpec } from "./messages.ts";
import { isSchemaObject, type JsonSchema, plainSchema } from "./schema.ts";

type Json = Record<string, unknown>;

const NAME = /^[A-Za-z0-9_.:-]{1,128}$/;
/** Text that some vocabulary might read as a control token. Names and keys cannot be rendered apart from the template, so they must not hold it. */
const MARKER_LIKE = /<\||\|>|<\/?[a-z_]+>|\[\/?[A-Z_]+\]/;
const MAX_DEPTH = 16;

/** Throws UsageError unless `name` can stand in a prompt as it is. */
export function checkName(name: unknown): string {
  if (typeof name === "string" && NAME.test(name)) return name;
  throw new UsageError("tool_name", `${JSON.stringify(name)} is not a usable function name`, "Use 1 to 128 letters, digits, or one of _ . : -");
}

function checkKey(key: string): string {
  if (!MARKER_LIKE.test(key)) return key;
  throw new UsageError("tool_key", `the key ${JSON.stringify(key)} looks like a control token`, "Rename the key; values may hold any text.");
}

const isObject = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value);

/** A tool's declaration as plain data, whichever way it is written. Throws UsageError unless its name is usable and its schema can be told. */
export function toolSpec(tool: ToolInput): ToolSpec & { readonly parameters?: JsonSchema } {
  const { name, description, parameters, strict } = "function" in tool ? tool.function : tool;
  checkName(name);
  return { name, ...(description === undefined ? {} : { description }), ...(parameters === undefined ? {} : { parameters: plainSchema(parameters) }), ...(strict === undefined ? {} : { strict }) };
}

/** The tool with its schema as plain data, which can go to another thread; whatever else it may be is looked at there. */
export function plainTool(tool: ToolInput): ToolInput {
  if (typeof tool !== "object" || tool === null) return tool;
  if ("function" in tool) return isSchemaObject(tool.function?.parameters) ? { ...tool, function: toolSpec(tool) } : tool;
  return isSchemaObject(tool.parameters) ? toolSpec(tool) : tool;
}

/** One tool in OpenAI's wrapped form, with a schema in which every value has exactly one string `type` and nothing is null. */
export function normaliseTool(tool: ToolInput): { type: "function"; function: Json } {
  const spec = toolSpec(tool);
  const parameters = spec.parameters;
  if (parameters !== undefined && !isObject(parameters)) {
    throw new UsageError("tool_schema", `the parameters of ${JSON.stringify(spec.name)} are not a JSON schema object`, 'Pass { "type": "object", "properties": ... }.');
  }
  const schema = parameters === undefined ? {} : { parameters: normaliseSchema(parameters, parameters, 0) };
  return { type: "function", function: { name: spec.name, description: spec.description ?? "", ...schema } };
}

function normaliseSchema(input: unknown, root: Json, depth: number): Json {
  if (!isObject(input)) return { type: "string" };
  if (depth > MAX_DEPTH) return { type: "object" };
  const { base, nullable } = flatten(input, root, 0);
  const out: Json = {};
  for (const [key, value] of Object.entries(base)) {
    if (value === null || value === undefined) continue;
    if (key === "properties" && isObject(value)) {
      const entries = Object.entries(value).map(([name, child]) => [checkKey(name), normaliseSchema(child, root, depth + 1)]);
      out["properties"] = Object.fromEntries(entries);
    } else if (key === "items") {
      out["items"] = normaliseSchema(Array.isArray(value) ? value[0] : value, root, depth + 1);
    } else if (key === "required") {
      if (Array.isArray(value)) out["required"] = value.filter((name) => typeof name === "string").map(checkKey);
    } else if (key === "enum") {
      if (Array.isArray(value)) out["enum"] = withoutNulls(value);
    } else if (!key.startsWith("$")) {
      out[checkKey(key)] = withoutNulls(value);
    }
  }
  out["type"] = typeName(base);
  if (nullable) out["nullable"] = true;
  return out;
}

/** Resolves `$ref`, `allOf`, `anyOf`, `oneOf` and `type` lists to one plain schema: the first alternative that is not null. */
function flatten(schema: Json, root: Json, depth: number): { base: Json; nullable: boolean } {
  if (depth > MAX_DEPTH) return { base: { type: "object" }, nullable: false };
  const { $ref, allOf, anyOf, oneOf, ...own } = schema;
  let base: Json = own;
  let nullable = schema["nullable"] === true;
  const absorb = (member: unknown): void => {
    if (!isObject(member)) return;
    const inner = flatten(member, root, depth + 1);
    base = { ...inner.base, ...base };
    nullable ||= inner.nullable;
  };
  if (typeof $ref === "string") absorb(resolve($ref, root));
  if (Array.isArray(allOf)) allOf.forEach(absorb);
  const alternatives = Array.isArray(anyOf) ? anyOf : Array.isArray(oneOf) ? oneOf : [];
  const isNull = (member: unknown): boolean => isObject(member) && member["type"] === "null";
  absorb(alternatives.find((member) => !isNull(member)));
  nullable ||= alternatives.some(isNull);
  const type = base["type"];
  if (Array.isArray(type)) {
    nullable ||= type.includes("null");
    base = { ...base, type: type.find((name) => name !== "null") ?? "string" };
  }
  return { base, nullable };
}

function resolve(ref: string, root: Json): unknown {
  if (!ref.startsWith("#")) return undefined;
  let at: unknown = root;
  for (const step of ref.slice(1).split("/").filter(Boolean)) {
    const key = step.replaceAll("~1", "/").replaceAll("~0", "~");
    at = isObject(at) && Object.hasOwn(at, key) ? at[key] : undefined;
  }
  return at;
}

function typeName(schema: Json): string {
  const { type } = schema;
  if (typeof type === "string") return checkName(type);
  if (isObject(schema["properties"])) return "object";
  if ("items" in schema) return "array";
  const sample = Array.isArray(schema["enum"]) ? schema["enum"][0] : schema["const"];
  if (typeof sample === "number") return Number.isInteger(sample) ? "integer" : "number";
  return typeof sample === "boolean" ? "boolean" : "string";
}

/** Objects lose null members, lists keep their length: templates would print nulls as nothing at all. */
export function withoutNulls(value: unknown): unknown {
  if (value === null || value === undefined) return "null";
  if (Array.isArray(value)) return value.map(withoutNulls);
  if (!isObject(value)) return value;
  const kept = Object.entries(value).filter(([, member]) => member !== null && member !== undefined);
  return Object.fromEntries(kept.map(([key, member]) => [checkKey(key), withoutNulls(member)]));
}

/** Arguments as an object: templates brace a JSON string twice. Throws UsageError if the text is no JSON object. */
export function callArguments(call: ToolCall): Json {
  let value: unknown = call.arguments;
  if (typeof value === "string") {
    try {
      value = value.trim() === "" ? {} : JSON.parse(value);
    } catch (cause) {
      throw new UsageError("tool_arguments", `the arguments of ${JSON.stringify(call.name)} are not valid JSON`, "Send back the arguments as they were generated.", { cause });
    }
  }
  if (!isObject(value)) {
    throw new UsageError("tool_arguments", `the arguments of ${JSON.stringify(call.name)} are not an object`, "Send back the arguments as they were generated.");
  }
  return withoutNulls(value) as Json;
}
