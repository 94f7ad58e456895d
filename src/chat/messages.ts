// The conversation types that callers pass in. Types and small guards only; rendering is in template.ts.
import type { JsonSchema, SchemaObject } from "./schema.ts";

/** A piece of a message. Only text is understood; other types are refused with a reason. */
export interface TextPart {
  readonly type: "text";
  readonly text: string;
}

export type Content = string | readonly TextPart[];

/** A call the model made. `arguments` may be the JSON text that OpenAI clients send back. */
export interface ToolCall {
  readonly id?: string;
  readonly name: string;
  readonly arguments: Readonly<Record<string, unknown>> | string;
}

export type Message =
  | { readonly role: "system" | "user"; readonly content: Content }
  | {
      readonly role: "assistant";
      readonly content?: Content | null;
      /** What the model thought before it answered; rendered only where the template keeps it. */
      readonly reasoning?: string;
      readonly toolCalls?: readonly ToolCall[];
    }
  | {
      readonly role: "tool";
      /** The result: text, or an object for templates that render fields. */
      readonly content: Content | Readonly<Record<string, unknown>>;
      readonly toolCallId?: string;
      readonly name?: string;
    };

/** A function that the model may call; `parameters` is a JSON schema, or a schema of zod. */
export interface ToolSpec {
  readonly name: string;
  readonly description?: string;
  readonly parameters?: JsonSchema | SchemaObject;
  /** Refuse parameters that cannot be guaranteed, instead of leaving them to the model. Default false. */
  readonly strict?: boolean;
}

/** A tool as written by a caller: ours, or the wrapped form of OpenAI's API. */
export type ToolInput = ToolSpec | { readonly type: "function"; readonly function: ToolSpec };
