// A Bun app with a language model inside: POST /story streams a story as plain text, /v1/* speaks OpenAI's API.
// Run: bun examples/endpoint.ts [model.gguf]; then: curl -N -d 'a little dog' http://127.0.0.1:3000/story
import { load, UsageError } from "bao-llm";
import { createApp } from "bao-llm/server";

const model = await load(process.argv[2] ?? new URL("../models/demo.gguf", import.meta.url).pathname, { context: 2048, sessions: 4 });
const api = createApp(model, { name: "story" });

const utf8 = new TextEncoder();
const server = Bun.serve({
  hostname: "127.0.0.1", port: Number(process.env["PORT"] ?? 3000),
  // A long prompt may be silent for a while.
  idleTimeout: 0,
  routes: {
    "/story": {
      async POST(request) {
        const about = (await request.text()).trim();
        if (about === "") return new Response("Say what the story is about.\n", { status: 400 });
        // request.signal: a reader who goes away ends the work.
        const story = model.generate(`Tell me a story about ${about}.`, { maxTokens: 200, signal: request.signal });
        const body = new ReadableStream<Uint8Array>({
          async start(controller) {
            try {
              for await (const part of story) if (part.type === "text") controller.enqueue(utf8.encode(part.text));
            } catch (error) {
              if (request.signal.aborted) return;
              controller.enqueue(utf8.encode(`\n${error instanceof UsageError ? error.message : "The story broke off."}`));
            }
            controller.enqueue(utf8.encode("\n"));
            controller.close();
          },
        });
        return new Response(body, { headers: { "Content-Type": "text/plain; charset=utf-8" } });
      },
    },
  },
  fetch: (request) => api.fetch(request),
});
console.log(`listening on ${server.url}`);

// Ctrl-C: answers in flight are finished first.
process.once("SIGINT", async () => {
  await server.stop();
  await model.dispose();
});
