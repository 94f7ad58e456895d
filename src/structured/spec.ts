// What callers may ask of an answer's form. Plain data: it crosses thread borders.

/** The form of the answer: free text, any JSON object, or JSON that satisfies a schema. */
export type ResponseFormat =
  | { readonly type: "text" }
  | { readonly type: "json_object" }
  | { readonly type: "json_schema"; readonly schema: Readonly<Record<string, unknown>> | boolean };

/** Whether the model calls tools: never, as it sees fit, at least one, or the named one. */
export type ToolChoice = "none" | "auto" | "required" | { readonly name: string };
