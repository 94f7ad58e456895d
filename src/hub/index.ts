// Models by name. Exports only.
export { Cache, cachedName, type CachedFile, type CachedModel } from "./cache.ts";
export { chooseFiles, quantOf } from "./choose.ts";
export type { DownloadProgress } from "./download.ts";
export { formatName, isHubName, type ModelName, parseName } from "./name.ts";
export { type HubProgress, type PulledModel, pullModel, resolveModel, type ResolveOptions } from "./resolve.ts";
