// Schemas as callers write them - zod's and others' objects, or plain JSON Schema - as plain JSON Schema. Interprets none of them.
import { UsageError } from "../errors.ts";

/** What zod, and every library of the Standard Schema kind, puts on its schemas. */
export interface SchemaObject<Input = unknown, Output = Input> {
  readonly "~standard": {
    readonly version: 1;
    readonly vendor: string;
    readonly validate: (value: unknown) => SchemaResult<Output> | Promise<SchemaResult<Output>>;
    readonly types?: { readonly input: Input; readonly output: Output } | undefined;
    readonly jsonSchema?: { readonly input: (options: { readonly target: "draft-2020-12" }) => Record<string, unknown> };
  };
}
export type SchemaResult<Output> =
  | { readonly value: Output; readonly issues?: undefined }
  | { readonly issues: readonly { readonly message: string; readonly path?: readonly (PropertyKey | { readonly key: PropertyKey })[] | undefined }[] };
export type JsonSchema = Readonly<Record<string, unknown>>;

export function isSchemaObject(schema: unknown): schema is SchemaObject {
  return (typeof schema === "object" || typeof schema === "function") && schema !== null && "~standard" in schema;
}

/** Plain JSON Schema of what goes into `schema`. Throws UsageError `schema_unreadable` for a library that cannot tell. */
export function plainSchema(schema: JsonSchema | SchemaObject): JsonSchema;
export function plainSchema(schema: JsonSchema | SchemaObject | boolean): JsonSchema | boolean;
export function plainSchema(schema: JsonSchema | SchemaObject | boolean): JsonSchema | boolean {
  if (!isSchemaObject(schema)) return schema;
  const { jsonSchema, vendor } = schema["~standard"];
  if (typeof jsonSchema?.input !== "function") throw new UsageError("schema_unreadable", `This schema of ${vendor} does not tell its JSON Schema`, "Turn it into one first, with the library's own function, or use zod from 4.2 on.");
  try {
    return jsonSchema.input({ target: "draft-2020-12" });
  } catch (cause) {
    throw new UsageError("schema_unreadable", `This schema of ${vendor} has no JSON Schema: ${cause instanceof Error ? cause.message : String(cause)}`, "Leave out transforms, dates, maps and the like: JSON has none.", { cause });
  }
}
