// Failures as OpenAI's clients expect them: a status and { error: { message, type, param, code } }. Turns Bao's errors into that; throws nothing itself.
import { BaoError, DisposedError, ResourceError, UsageError } from "../errors.ts";

/** A refusal with its HTTP status. `param` names the request's field as the client wrote it. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly param: string | null = null,
    readonly more: { readonly headers?: Readonly<Record<string, string>>; readonly fields?: Readonly<Record<string, unknown>> } = {},
  ) {
    super(message);
  }
}

/** A field whose meaning cannot be honoured here: refused by name, never left out in silence. */
export const unsupported = (param: string, message: string): ApiError => new ApiError(400, "unsupported_parameter", message, param);

/** A call that cannot be read ends the answer: its text is kept for a log or a retry. */
export function malformedCall({ message, raw }: { readonly message: string; readonly raw: string }): ApiError {
  return new ApiError(422, "tool_call_malformed", `The model wrote a tool call that cannot be read: ${message}.`, null, { fields: { failed_generation: raw } });
}

/** Field names that an endpoint uses for what the engine calls prompt, answer length and form. */
export interface FieldNames { readonly prompt: string; readonly maxTokens: string; readonly format: string }

const snake = (name: string): string => name.replace(/[A-Z]/g, (c) => `_${c.toLowerCase()}`);

/** Any failure as an ApiError. What is no fault of the request becomes a 5xx without the program's inner details. */
export function apiError(e: unknown, fields: FieldNames): ApiError {
  if (e instanceof ApiError) return e;
  if (!(e instanceof BaoError)) return new ApiError(500, "internal_error", "The server failed; its log says how.");
  // Hints about memory and context are for whoever runs the server, who finds them in its log.
  const operator = e instanceof ResourceError || e.code === "no_session" || e.code === "context_length_exceeded";
  const message = e.hint === "" || operator ? e.message : `${e.message}. ${e.hint}`;
  if (e instanceof DisposedError) return new ApiError(503, "shutting_down", "The model is being unloaded.");
  if (e.code === "no_session") return new ApiError(503, e.code, message);
  if (e instanceof ResourceError) return new ApiError(503, e.code, message, null, { headers: { "Retry-After": "1" } });
  if (!(e instanceof UsageError)) return new ApiError(500, e.code, message);
  // Agents look for this sentence to know that they must shorten the conversation.
  if (e.code === "context_length_exceeded") return new ApiError(400, e.code, `This model's maximum context length was exceeded. ${message}. Shorten the conversation.`, fields.prompt);
  const param = paramOf(e, fields);
  // The engine names options in its own spelling.
  return new ApiError(400, e.code, param !== null && /^bad_/.test(e.code) ? message.replace(/^\w+(?=: )/, param) : message, param);
}

function paramOf(e: UsageError, fields: FieldNames): string | null {
  if (e.code === "bad_sampling" || e.code === "bad_option") {
    const name = /^(\w+): /.exec(e.message)?.[1];
    return name === undefined ? null : name === "maxTokens" ? fields.maxTokens : name === "responseFormat" ? fields.format : name === "logprobs" ? "top_logprobs" : snake(name);
  }
  if (/^tool_(name|schema|key)$|^tools_/.test(e.code)) return "tools";
  if (/^(chat|tool|unsupported_content|empty_prompt|bad_token|bad_prompt)/.test(e.code)) return fields.prompt;
  if (e.code === "unsupported_schema") return e.message.startsWith("parameters of ") ? "tools" : fields.format;
  return null;
}

/** The `error` object of a response body or of an event in a stream. */
export function errorBody(e: ApiError): { error: Record<string, unknown> } {
  const type = e.status === 429 ? "rate_limit_error" : e.status >= 500 ? "server_error" : e.status === 401 ? "authentication_error" : "invalid_request_error";
  return { error: { message: e.message, type, param: e.param, code: e.code, ...e.more.fields } };
}

export function errorResponse(e: ApiError): Response {
  return Response.json(errorBody(e), { status: e.status, headers: e.more.headers ?? {} });
}
