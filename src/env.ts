// Every environment variable that Bao reads, with type, default and meaning. Nothing else reads process.env for settings.

interface Variable { readonly type: "path" | "flag" | "text"; readonly description: string }

/** Registered variables; `bao --help` lists them. */
export const VARIABLES = {
  BAO_KERNELS: { type: "path", description: "Folder that holds the kernel libraries (default: build/ of the package)" },
  BAO_TRACE: { type: "flag", description: "1 = count and time FFI calls, submits and waits, and print time per op at the end" },
  BAO_API_KEY: { type: "text", description: "Key that requests to bao serve must carry" },
  BAO_METAL_EMULATOR: { type: "flag", description: "1 = tests on Linux: metal is an emulated GPU (make metal-emulated)" },
  BAO_METAL_COMMIT_MS: { type: "text", description: "Metal: milliseconds of estimated work in a command buffer (default: 50)" },
  HF_TOKEN: { type: "text", description: "Token for private and gated models on the hub" },
  HF_HUB_CACHE: { type: "path", description: "Folder of models fetched by name (default: hub/ under HF_HOME, or under ~/.cache/huggingface)" },
  HF_HOME: { type: "path", description: "Folder of all Hugging Face tools" },
  HF_HUB_OFFLINE: { type: "flag", description: "1 = never ask the hub; what is in the cache can be used" },
  HF_ENDPOINT: { type: "text", description: "Address of the hub (default: https://huggingface.co)" },
  CXX: { type: "text", description: "C++ compiler that builds a missing CPU library (default: g++, c++ or clang++)" },
  NO_COLOR: { type: "flag", description: "Any value = no colours" },
  FORCE_COLOR: { type: "flag", description: "1 = colours even when the output is no terminal" },
  TERM: { type: "text", description: "dumb = no colours and no progress bars" },
} as const satisfies Record<string, Variable>;

/** Value of each variable at the time of reading; undefined when unset or empty, and for flags when "0". */
export const env: { readonly [K in keyof typeof VARIABLES]: string | undefined } = {
  get BAO_KERNELS() { return process.env["BAO_KERNELS"] || undefined; },
  get BAO_TRACE() { return flag("BAO_TRACE"); },
  get BAO_API_KEY() { return process.env["BAO_API_KEY"] || undefined; },
  get BAO_METAL_EMULATOR() { return flag("BAO_METAL_EMULATOR"); },
  get BAO_METAL_COMMIT_MS() { return process.env["BAO_METAL_COMMIT_MS"] || undefined; },
  get HF_TOKEN() { return process.env["HF_TOKEN"] || undefined; },
  get HF_HUB_CACHE() { return process.env["HF_HUB_CACHE"] || undefined; },
  get HF_HOME() { return process.env["HF_HOME"] || undefined; },
  get HF_HUB_OFFLINE() { return flag("HF_HUB_OFFLINE"); },
  get HF_ENDPOINT() { return process.env["HF_ENDPOINT"] || undefined; },
  get CXX() { return process.env["CXX"] || undefined; },
  // no-color.org: present and not empty, whatever the value.
  get NO_COLOR() { return process.env["NO_COLOR"] || undefined; },
  get FORCE_COLOR() { return flag("FORCE_COLOR"); },
  get TERM() { return process.env["TERM"] || undefined; },
};

function flag(name: string): string | undefined {
  const value = process.env[name];
  return value && value !== "0" ? value : undefined;
}
