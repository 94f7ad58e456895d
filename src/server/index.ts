// The server's public names, exports only: import from "bao-llm/server".
export { createApp, type AppOptions } from "./app.ts";
export type { ServedModel } from "./answer.ts";
export { ApiError } from "./errors.ts";
export { modelName } from "./name.ts";
export { serve, type BaoServer, type ServeOptions } from "./serve.ts";
