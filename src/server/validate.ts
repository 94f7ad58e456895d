// Request bodies against zod schemas: unknown fields are refused by name, unsupported ones say so, and the first fault becomes the error's `param`.
import { z } from "zod";
import { ApiError } from "./errors.ts";

/** A field that is accepted and changes nothing: it steers billing, storage or caching at other hosts. */
export const harmless = z.unknown().optional();

/** A field that would change the answer and that nothing here implements. `allowed` values are those that ask for nothing. */
export function refused(what: string, ...allowed: readonly unknown[]): z.ZodType<unknown> {
  return z.unknown().superRefine((value, ctx) => {
    if (value === undefined || allowed.some((a) => Bun.deepEquals(a, value))) return;
    ctx.addIssue({ code: "custom", message: `${what} is not supported${allowed.length > 0 ? `; leave it out or send ${allowed.map((a) => JSON.stringify(a)).join(" or ")}` : ""}`, params: { code: "unsupported_parameter" } });
  }).optional();
}

/** For other checks whose failure means "not here" rather than "wrong". */
export function unsupportedIssue(ctx: Pick<z.core.$RefinementCtx, "addIssue">, path: readonly (string | number)[], message: string): void {
  ctx.addIssue({ code: "custom", path: [...path], message, params: { code: "unsupported_parameter" } });
}

type Issue = z.core.$ZodIssue;

/** Of a union the branch that got furthest says most: `content[2].type` rather than "no string". */
function innermost(issue: Issue): Issue {
  if (issue.code !== "invalid_union" || issue.errors.length === 0) return issue;
  const inner = issue.errors.map((branch) => branch[0]).filter((i) => i !== undefined).map((i) => innermost(i));
  const deepest = inner.reduce((best, i) => (i.path.length > best.path.length ? i : best), inner[0]!);
  if (deepest.path.length === 0) return issue;
  return { ...deepest, path: [...issue.path, ...deepest.path] } as Issue;
}

/** `messages[0].content`, as OpenAI writes it. */
export function pathText(path: readonly PropertyKey[]): string {
  return path.map((step, i) => (typeof step === "number" ? `[${step}]` : i === 0 ? String(step) : `.${String(step)}`)).join("");
}

/**
 * A parsed body as the schema has it. Top-level nulls count as absent, as OpenAI has it.
 * Throws ApiError 400: `unknown_parameter`, `unsupported_parameter`, `missing_required_parameter` or `invalid_value`.
 */
export function validate<T>(schema: z.ZodType<T>, body: unknown): T {
  if (typeof body !== "object" || body === null || Array.isArray(body)) throw new ApiError(400, "invalid_body", "The body must be a JSON object.");
  const present = Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null));
  const result = schema.safeParse(present);
  if (result.success) return result.data;
  const issue = innermost(result.error.issues[0]!);
  const at = pathText(issue.path);
  if (issue.code === "unrecognized_keys") {
    const key = pathText([...issue.path, issue.keys[0]!]);
    throw new ApiError(400, "unknown_parameter", `Unknown parameter: ${key}. It might change the answer, so it is not ignored.`, key);
  }
  if (issue.code === "custom" && issue.params?.["code"] === "unsupported_parameter") throw new ApiError(400, "unsupported_parameter", `${at}: ${issue.message}.`, at || null);
  if (issue.code === "invalid_type" && valueAt(present, issue.path) === undefined) throw new ApiError(400, "missing_required_parameter", `Missing required parameter: ${at}.`, at || null);
  throw new ApiError(400, "invalid_value", `${at}: ${issue.message}.`, at || null);
}

function valueAt(value: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>((v, step) => (typeof v === "object" && v !== null ? (v as Record<PropertyKey, unknown>)[step] : undefined), value);
}

/** The JSON of a request. Throws ApiError 400 for anything else, 415 for another content type (which also keeps other sites' plain forms out). */
export async function jsonBody(request: Request): Promise<unknown> {
  const type = request.headers.get("content-type") ?? "";
  if (!/^application\/([\w.-]+\+)?json\b/i.test(type)) throw new ApiError(415, "unsupported_media_type", "Send the body as application/json.");
  // A body that stops in the middle has nobody left to be told.
  const text = await request.text().catch(() => { throw new ApiError(499, "client_closed", "The client closed the connection."); });
  try {
    return JSON.parse(text) as unknown;
  } catch (e) {
    throw new ApiError(400, "invalid_json", `The body is not valid JSON: ${(e as Error).message}.`);
  }
}
