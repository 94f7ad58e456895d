// POST /v1/responses: parts become output items, and every step of that an event. The whole answer is what the last event carries.
import type { StreamPart } from "../engine/generate.ts";
import { answer, newId, nowSeconds, timingsOf, type Finish, type Serving } from "./answer.ts";
import { ApiError, malformedCall } from "./errors.ts";
import { chatLogprobs, PendingTokens } from "./logprobs.ts";
import { responsesJob, wantsLogprobs, RESPONSES_FIELDS, type ResponsesRequest } from "./responses-request.ts";
import { event } from "./sse.ts";

interface Item { readonly id: string; readonly type: "message" | "reasoning" | "function_call"; status: "in_progress" | "completed" | "incomplete"; text: string; logprobs: object[]; call?: { call_id: string; name: string } }
type Event = { readonly type: string } & Record<string, unknown>;

const textPart = (i: Item): object => (i.type === "reasoning" ? { type: "reasoning_text", text: i.text } : { type: "output_text", text: i.text, annotations: [], logprobs: i.logprobs });

function itemObject(i: Item, begun = true): object {
  const { id, type, status } = i, parts = begun ? [textPart(i)] : [];
  if (type === "function_call") return { id, type, status, ...i.call, arguments: begun ? i.text : "" };
  return type === "reasoning" ? { id, type, status, summary: [], content: parts } : { id, type, status, role: "assistant", content: parts };
}

/** One response while it is being written. Methods give the events of what has happened. */
class Writing {
  readonly #id = newId("resp_");
  readonly #created = nowSeconds();
  readonly #items: Item[] = [];
  #open: Item | undefined;
  #finish: Finish | undefined;
  #error: { code: string; message: string } | null = null;
  constructor(private readonly serving: Serving, private readonly request: ResponsesRequest) {}

  /** The response object as it stands. */
  object(status: string): Record<string, unknown> {
    const r = this.request, usage = this.#finish?.usage;
    return {
      id: this.#id, object: "response", created_at: this.#created, status, completed_at: status === "completed" ? nowSeconds() : null,
      error: this.#error, incomplete_details: status === "incomplete" ? { reason: "max_output_tokens" } : null,
      model: this.serving.name, instructions: r.instructions ?? null, output: this.#items.map((i) => itemObject(i)),
      temperature: r.temperature ?? null, top_p: r.top_p ?? null, max_output_tokens: r.max_output_tokens ?? null,
      tools: r.tools ?? [], tool_choice: r.tool_choice ?? "auto", parallel_tool_calls: r.parallel_tool_calls ?? true,
      text: { format: r.text?.format ?? { type: "text" } }, reasoning: { effort: r.reasoning?.effort ?? null, summary: null }, truncation: "disabled",
      previous_response_id: null, store: false, metadata: r.metadata ?? {},
      usage: usage === undefined ? null : {
        input_tokens: usage.promptTokens, input_tokens_details: { cached_tokens: usage.cachedTokens },
        output_tokens: usage.completionTokens, output_tokens_details: { reasoning_tokens: usage.thoughtTokens }, total_tokens: usage.promptTokens + usage.completionTokens,
      },
      ...(usage === undefined ? {} : { timings: timingsOf(usage) }),
    };
  }
  begin(): Event[] {
    const response = this.object("in_progress");
    return [{ type: "response.created", response }, { type: "response.in_progress", response }];
  }
  text(type: "message" | "reasoning", delta: string, logprobs: object[]): Event[] {
    const events: Event[] = [];
    if (this.#open?.type !== type) {
      events.push(...this.#close());
      this.#open = { id: newId(type === "message" ? "msg_" : "rs_"), type, status: "in_progress", text: "", logprobs: [] };
      events.push(this.#added(this.#open), { type: "response.content_part.added", ...this.#at(), content_index: 0, part: textPart(this.#open) });
    }
    this.#open!.text += delta;
    this.#open!.logprobs.push(...logprobs);
    events.push({ type: type === "message" ? "response.output_text.delta" : "response.reasoning_text.delta", ...this.#at(), content_index: 0, delta, ...(type === "message" ? { logprobs } : {}) });
    return events;
  }
  call(part: Extract<StreamPart, { type: "tool_call" }>): Event[] {
    const events = this.#close();
    const item: Item = { id: newId("fc_"), type: "function_call", status: "in_progress", text: JSON.stringify(part.arguments), logprobs: [], call: { call_id: newId("call_"), name: part.name } };
    events.push(this.#added(item));
    const at = this.#at();
    item.status = "completed";
    return [
      ...events, { type: "response.function_call_arguments.delta", ...at, delta: item.text },
      { type: "response.function_call_arguments.done", ...at, name: part.name, arguments: item.text }, this.#done(item),
    ];
  }
  finish(finish: Finish): Event[] {
    // An answer of nothing is a message without text.
    const events = this.#items.length === 0 ? this.text("message", "", []) : [];
    this.#finish = finish;
    const incomplete = finish.reason === "length";
    events.push(...this.#close(incomplete ? "incomplete" : "completed"));
    return [...events, { type: incomplete ? "response.incomplete" : "response.completed", response: this.object(incomplete ? "incomplete" : "completed") }];
  }
  fail(e: ApiError): Event {
    this.#error = { code: e.code, message: e.message, ...e.more.fields };
    return { type: "response.failed", response: this.object("failed") };
  }

  #at(): { item_id: string; output_index: number } { return { item_id: this.#items.at(-1)!.id, output_index: this.#items.length - 1 }; }
  #added(item: Item): Event {
    this.#items.push(item);
    return { type: "response.output_item.added", output_index: this.#items.length - 1, item: itemObject(item, false) };
  }
  #done(item: Item): Event { return { type: "response.output_item.done", output_index: this.#items.length - 1, item: itemObject(item) }; }
  /** Ends the text that is being written. */
  #close(status: "completed" | "incomplete" = "completed"): Event[] {
    const item = this.#open;
    if (!item) return [];
    this.#open = undefined;
    item.status = status;
    const at = { ...this.#at(), content_index: 0 };
    return [
      item.type === "message" ? { type: "response.output_text.done", ...at, text: item.text, logprobs: item.logprobs } : { type: "response.reasoning_text.done", ...at, text: item.text },
      { type: "response.content_part.done", ...at, part: textPart(item) }, this.#done(item),
    ];
  }
}

/** Everything that happens to one response. Throws ApiError. */
async function* happenings(serving: Serving, r: ResponsesRequest, writing: Writing, signal: AbortSignal): AsyncGenerator<Event, void> {
  const tokens = new PendingTokens(), logprobs = wantsLogprobs(r);
  let begun = false;
  for await (const { part } of answer(serving, [responsesJob(serving.model, r)], signal, RESPONSES_FIELDS)) {
    if (!begun) yield* writing.begin();
    begun = true;
    switch (part.type) {
      case "token": tokens.push(part); break;
      case "text": yield* writing.text("message", part.text, logprobs ? chatLogprobs(tokens.take()) : []); break;
      case "thought": tokens.drop(); yield* writing.text("reasoning", part.text, []); break;
      case "tool_call": tokens.drop(); yield* writing.call(part); break;
      case "error": throw malformedCall(part);
      case "finish": yield* writing.finish(part);
    }
  }
}

export async function response(serving: Serving, r: ResponsesRequest, signal: AbortSignal): Promise<object> {
  let last: Event | undefined;
  for await (const e of happenings(serving, r, new Writing(serving, r), signal)) last = e;
  return last!["response"] as object;
}

export async function* responseEvents(serving: Serving, r: ResponsesRequest, signal: AbortSignal): AsyncGenerator<string, void> {
  const writing = new Writing(serving, r);
  let sequence = 0;
  const line = (e: Event): string => event({ ...e, sequence_number: sequence++ }, e.type);
  try {
    for await (const e of happenings(serving, r, writing, signal)) yield line(e);
  } catch (e) {
    // Before the first event a failure has a status of its own.
    if (sequence === 0 || !(e instanceof ApiError)) throw e;
    yield line(writing.fail(e));
  }
}
