// What callers may ask of an answer's form. Plain data, but for schema objects, which are made plain before they cross to another thread.
import type { JsonSchema, SchemaObject } from "../chat/index.ts";

/** The form of the answer: free text, any JSON object, or JSON that satisfies a schema. */
export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | { readonly type: "json_schema"; /** JSON Schema, or a schema of zod. */ readonly schema: JsonSchema | SchemaObject | boolean };

/** Whether the model calls tools: never, as it sees fit, at least one, or the named one. */
export type ToolChoice = "none" | "auto" | "required" | { readonly name: string };
