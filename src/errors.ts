// The one error hierarchy of Bao. Every error says what happened (message), what to do (hint) and has a stable code.

/** How a failure is reported at the process boundary; see docs/cli.md for the same list as exit codes. */
export type ErrorClass = "runtime" | "usage" | "model" | "resource";

/** Base of every error that Bao throws on purpose. `code` never changes between releases; `hint` may be shown to a person. */
export class BaoError extends Error {
  override readonly name: string = "BaoError";
  readonly kind: ErrorClass = "runtime";
  constructor(
    /** Stable identifier, e.g. `gguf_truncated`. */
    readonly code: string,
    message: string,
    /** What the reader can do about it. */
    readonly hint: string = "",
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** A request that cannot be carried out as written: bad option, bad prompt, context overflow. */
export class UsageError extends BaoError {
  override readonly name = "UsageError";
  override readonly kind = "usage";
}

/** A file that is not a model we can run: damaged, truncated, unsupported. Names file, tensor, found and expected. */
export class ModelFileError extends BaoError {
  override readonly name = "ModelFileError";
  override readonly kind = "model";
}

/** Not enough memory, no such device, device lost. */
export class ResourceError extends BaoError {
  override readonly name = "ResourceError";
  override readonly kind = "resource";
}

/** A kernel library refused a call or failed while working. `status` is the C status, `fn` the C function. */
export class KernelError extends BaoError {
  override readonly name = "KernelError";
  constructor(
    code: string,
    message: string,
    readonly fn: string,
    readonly status: number,
    hint = "",
  ) {
    super(code, message, hint);
  }
}

/** Use of an object after `dispose()`. */
export class DisposedError extends BaoError {
  override readonly name = "DisposedError";
  constructor(what: string) {
    super("disposed", `${what} was used after it was disposed`, "Keep the object alive for as long as it is in use.");
  }
}
