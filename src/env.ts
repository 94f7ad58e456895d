// Every environment variable that Bao reads, with type, default and meaning. Nothing else reads process.env for settings.

interface Variable { readonly type: "path" | "flag" | "text"; readonly description: string }

/** Registered variables; `bao --help` lists them. */
export const VARIABLES = {
  BAO_KERNELS: { type: "path", description: "Folder that holds the kernel libraries (default: build/ of the package)" },
  BAO_TRACE: { type: "flag", description: "1 = count and time FFI calls, submits and waits, and print time per op at the end" },
} as const satisfies Record<string, Variable>;

/** Value of each variable at the time of reading; undefined when unset or empty, and for flags when "0". */
export const env: { readonly [K in keyof typeof VARIABLES]: string | undefined } = {
  get BAO_KERNELS() { return process.env["BAO_KERNELS"] || undefined; },
  get BAO_TRACE() { const v = process.env["BAO_TRACE"]; return v && v !== "0" ? v : undefined; },
};
