// Server-sent events out of an async generator: one event a pull, so a slow reader slows the generator; comments keep a silent connection open.
// Nothing is sent before the first event or the first comment, so that an early failure still has an HTTP status of its own.

const utf8 = new TextEncoder();

/** `data: JSON`, with an event name where the protocol has one. */
export const event = (data: unknown, name?: string): string => `${name === undefined ? "" : `event: ${name}\n`}data: ${typeof data === "string" ? data : JSON.stringify(data)}\n\n`;

export interface SseOptions {
  /** Milliseconds of silence after which a comment is sent. */
  readonly keepAliveMs: number;
  /** What is sent when the generator throws after the response has begun. */
  readonly onError: (e: unknown) => string;
  /** The reader has gone away. */
  readonly onCancel: () => void;
}

/** A response that streams what `events` yields. Rejects with what the generator throws before its first event. */
export async function sseResponse(events: AsyncGenerator<string, void>, options: SseOptions): Promise<Response> {
  // One call of next() is always under way; `begun` is taken up by the first pull.
  let next: Promise<IteratorResult<string, void>> = events.next();
  let opening: "idle" | IteratorResult<string, void> | undefined = await orIdle(next, options.keepAliveMs);
  const body = new ReadableStream<Uint8Array>({
    async pull(controller) {
      try {
        const got = opening ?? await orIdle(next, options.keepAliveMs);
        opening = undefined;
        if (got === "idle") { controller.enqueue(utf8.encode(": keep-alive\n\n")); return; }
        if (got.done) { controller.close(); return; }
        next = events.next();
        // It is awaited by the next pull; until then a failure has a reader to come.
        next.catch(() => {});
        controller.enqueue(utf8.encode(got.value));
      } catch (e) {
        controller.enqueue(utf8.encode(options.onError(e)));
        controller.close();
      }
    },
    async cancel() {
      options.onCancel();
      await events.return().catch(() => {});
    },
  }, { highWaterMark: 0 });
  return new Response(body, { headers: { "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no" } });
}

async function orIdle<T>(work: Promise<T>, ms: number): Promise<T | "idle"> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    return await Promise.race([work, new Promise<"idle">((resolve) => { timer = setTimeout(resolve, ms, "idle"); })]);
  } finally {
    clearTimeout(timer);
  }
}
