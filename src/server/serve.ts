// Listens with Bun.serve, and closes without cutting answers off. Refuses strange Host names on a loopback address, the way other sites' pages get in.
import { UsageError } from "../errors.ts";
import { createApp, type AppOptions } from "./app.ts";
import type { ServedModel } from "./answer.ts";
import { ApiError, errorResponse } from "./errors.ts";

export interface ServeOptions extends AppOptions {
  /** Default 127.0.0.1. */
  host?: string;
  /** Default 8080; 0 = any free one. */
  port?: number;
}

export interface BaoServer extends AsyncDisposable {
  readonly url: URL;
  /** Takes no more connections, waits for the answers that are being written (`now`: ends them), then resolves. The model stays loaded. */
  close(now?: boolean): Promise<void>;
}

const LOOPBACK = /^(localhost|127(\.\d{1,3}){3}|::1|\[::1\])$/i;

/** Serves a model. Throws UsageError `listen_failed` when the address cannot be had. */
export function serve(model: ServedModel, options: ServeOptions = {}): BaoServer {
  const host = options.host ?? "127.0.0.1", port = options.port ?? 8080;
  const app = createApp(model, options);
  const local = LOOPBACK.test(host);
  let server: Bun.Server<undefined>;
  try {
    server = Bun.serve({
      hostname: host, port,
      // A long prefill is silent, and so is a client that waits for its turn.
      idleTimeout: 0,
      // The application has its own limit and answers in its own form.
      maxRequestBodySize: 2 * (options.maxBody ?? 16 << 20),
      fetch(request) {
        // A page whose name was re-bound to this address counts as same-origin for a browser, but its name gives it away.
        if (local && !LOOPBACK.test(new URL(request.url).hostname)) return errorResponse(new ApiError(403, "forbidden_host", "This server listens for programs on its own machine only."));
        return app.fetch(request);
      },
    });
  } catch (e) {
    throw new UsageError("listen_failed", `Cannot listen on ${host}:${port}: ${(e as Error).message}`, "Choose another --port, or end the program that uses this one.", { cause: e });
  }
  const close = async (now = false): Promise<void> => { await server.stop(now); };
  return { url: server.url, close, [Symbol.asyncDispose]: () => close() };
}
