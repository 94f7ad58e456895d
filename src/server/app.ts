// The HTTP application: routes, key, cross-origin rules, body limit, errors. `app.fetch` runs on any host that speaks Request and Response.
import { Hono, type Context } from "hono";
import { bodyLimit } from "hono/body-limit";
import { cors } from "hono/cors";
import { BaoError } from "../errors.ts";
import { Admission } from "./admission.ts";
import type { ServedModel, Serving } from "./answer.ts";
import { CHAT_FIELDS, chatCompletion, chatEvents, parseChat } from "./chat.ts";
import { completion, completionEvents, COMPLETION_FIELDS, parseCompletion } from "./completions.ts";
import { EMBEDDING_FIELDS, embeddings, parseEmbedding } from "./embeddings.ts";
import { ApiError, apiError, errorBody, errorResponse, type FieldNames } from "./errors.ts";
import { Metrics } from "./metrics.ts";
import { modelName } from "./name.ts";
import { pageResponse } from "./page.ts";
import { RESPONSES_FIELDS, parseResponses } from "./responses-request.ts";
import { response, responseEvents } from "./responses.ts";
import { event, sseResponse } from "./sse.ts";
import { jsonBody } from "./validate.ts";

export interface AppOptions {
  /** Name of the model in requests; default: its file's name without ending. */
  name?: string;
  /** Keys of which a request must carry one (`Authorization: Bearer KEY`). /health and the page stay open. */
  apiKeys?: readonly string[];
  /** Origins whose pages may call the API; `*` = all. Default: none but the server's own. */
  cors?: readonly string[];
  /** Answers that may wait when all of the model's sequences are busy. Default 64. */
  queue?: number;
  /** Milliseconds of silence after which a stream sends a comment. Default 5,000: many hosts cut connections after 10 s. */
  keepAliveMs?: number;
  /** Bytes of a request's body at most. Default 16 MiB. */
  maxBody?: number;
  /** Hears of failures that are no fault of a request. Default: nobody. */
  onError?: (e: unknown) => void;
  /** Hears of every request when its headers are sent; status 499 = the client went away first. */
  onRequest?: (r: { method: string; path: string; status: number; ms: number }) => void;
}

/** An endpoint that answers with one object, or with events when the request says `stream`. */
interface Endpoint<R extends { model?: string | undefined; stream?: boolean | undefined }> {
  readonly fields: FieldNames;
  parse(body: unknown): R;
  whole(serving: Serving, r: R, signal: AbortSignal): Promise<object>;
  /** Absent where nothing is streamed. `failure`: what is sent when it fails after its beginning. */
  readonly stream?: { events(serving: Serving, r: R, signal: AbortSignal): AsyncGenerator<string, void>; failure(e: ApiError): string };
}
const dataOnly = (e: ApiError): string => event(errorBody(e));

const gone = (): ApiError => new ApiError(499, "client_closed", "The client closed the connection.");

export function createApp(model: ServedModel, options: AppOptions = {}): Hono {
  let broken: string | undefined;
  const admission = new Admission(model.info.plan.sequences, options.queue ?? 64);
  const serving: Serving = {
    model, name: options.name ?? modelName(model.info.path), created: Math.trunc(Date.now() / 1000), admission, metrics: new Metrics(admission),
    keepAliveMs: options.keepAliveMs ?? 5_000,
    onError(e) {
      // Whoever supervises this process sees by /health that only a restart helps.
      if (e instanceof BaoError && ["engine_failed", "device_lost"].includes(e.code)) broken = e.code;
      options.onError?.(e);
    },
  };
  const app = new Hono();

  app.use(async (c, next) => {
    const start = performance.now();
    await next();
    const route = c.req.routePath;
    serving.metrics.requests.inc({ route: route === "*" || route === "/*" ? "other" : route, status: String(c.res.status) });
    options.onRequest?.({ method: c.req.method, path: c.req.path, status: c.res.status, ms: performance.now() - start });
  });
  if (options.cors?.length) app.use(cors({ origin: options.cors.includes("*") ? "*" : [...options.cors], exposeHeaders: ["Retry-After"] }));
  if (options.apiKeys?.length) app.use(requireKey(options.apiKeys));
  app.use(bodyLimit({ maxSize: options.maxBody ?? 16 << 20, onError: () => errorResponse(new ApiError(413, "body_too_large", `The body is larger than ${options.maxBody ?? 16 << 20} bytes.`)) }));

  app.get("/", () => pageResponse());
  app.get("/health", (c) => c.json({ status: broken ?? "ok", model: serving.name, running: admission.running, waiting: admission.waiting }, broken === undefined ? 200 : 503));
  app.get("/metrics", async (c) => c.body(await serving.metrics.registry.metrics(), 200, { "Content-Type": serving.metrics.registry.contentType }));
  app.get("/v1/models", (c) => c.json({ object: "list", data: [modelObject(serving)] }));
  app.get("/v1/models/:id{.+}", (c) => { requireModel(serving, c.req.param("id")); return c.json(modelObject(serving)); });
  app.post("/v1/chat/completions", endpoint(serving, {
    fields: CHAT_FIELDS, parse: parseChat, whole: chatCompletion, stream: { events: chatEvents, failure: dataOnly },
  }));
  app.post("/v1/completions", endpoint(serving, {
    fields: COMPLETION_FIELDS, parse: parseCompletion, whole: completion, stream: { events: completionEvents, failure: dataOnly },
  }));
  app.post("/v1/responses", endpoint(serving, {
    fields: RESPONSES_FIELDS, parse: parseResponses, whole: response,
    stream: { events: responseEvents, failure: (e) => event({ type: "error", code: e.code, message: e.message, param: e.param }, "error") },
  }));
  app.post("/v1/embeddings", endpoint(serving, { fields: EMBEDDING_FIELDS, parse: parseEmbedding, whole: embeddings }));

  app.notFound((c) => errorResponse(new ApiError(404, "unknown_url", `There is no ${c.req.method} ${c.req.path} here.`)));
  app.onError((e) => {
    // Failures of an answer were told already.
    if (!(e instanceof ApiError)) serving.onError(e);
    return errorResponse(apiError(e, CHAT_FIELDS));
  });
  return app;
}

function endpoint<R extends { model?: string | undefined; stream?: boolean | undefined }>(serving: Serving, of: Endpoint<R>): (c: Context) => Promise<Response> {
  return async (c) => {
    const request = of.parse(await jsonBody(c.req.raw));
    if (request.model !== undefined) requireModel(serving, request.model);
    // Ends the work when the client goes away: hosts tell by the request's signal, or by cancelling the stream.
    const end = new AbortController();
    const signal = AbortSignal.any([c.req.raw.signal, end.signal]);
    try {
      if (!of.stream || !request.stream) return c.json(await of.whole(serving, request, signal));
      const { events, failure } = of.stream;
      return await sseResponse(events(serving, request, signal), {
        keepAliveMs: serving.keepAliveMs, onCancel: () => end.abort(gone()), onError: (e) => failure(apiError(e, of.fields)),
      });
    } catch (e) {
      if (signal.aborted) return errorResponse(gone());
      throw e;
    }
  };
}

function requireKey(keys: readonly string[]) {
  // Digests have one length, so comparing them tells nothing about a key.
  const digest = (text: string): Uint8Array => new Bun.CryptoHasher("sha256").update(text).digest();
  const known = keys.map(digest);
  const same = (a: Uint8Array, b: Uint8Array): boolean => a.reduce((difference, byte, i) => difference | (byte ^ b[i]!), 0) === 0;
  return async (c: Context, next: () => Promise<void>): Promise<Response | void> => {
    if (c.req.method === "OPTIONS" || c.req.path === "/health" || c.req.path === "/") return next();
    const given = digest(/^Bearer\s+(\S.*)$/i.exec(c.req.header("Authorization") ?? "")?.[1] ?? "");
    if (known.some((k) => same(k, given))) return next();
    return errorResponse(new ApiError(401, "invalid_api_key", "The API key is missing or wrong. Send it as Authorization: Bearer KEY.", null, { headers: { "WWW-Authenticate": "Bearer" } }));
  };
}

function requireModel(serving: Serving, name: string): void {
  if (name !== serving.name) throw new ApiError(404, "model_not_found", `The model ${JSON.stringify(name)} does not exist here; this server has ${JSON.stringify(serving.name)}.`, "model");
}

function modelObject({ name, created, model: { info } }: Serving): object {
  return { id: name, object: "model", created, owned_by: "bao", meta: { name: info.name, architecture: info.architecture, context_length: info.plan.context, trained_context_length: info.contextLength, vocabulary: info.vocabulary, parallel: info.plan.sequences } };
}
