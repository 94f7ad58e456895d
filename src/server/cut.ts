// Tells calls that the token limit cut from calls that the model wrote wrongly.
import type { StreamPart } from "../engine/generate.ts";

/** A call that the token limit cut is no malformed one: the finish says `length`, as it does of any other text. */
export async function* withoutCutCalls(parts: AsyncIterable<StreamPart>): AsyncGenerator<StreamPart, void> {
  let held: StreamPart | undefined;
  for await (const part of parts) {
    if (held && !(part.type === "finish" && part.reason === "length")) yield held;
    held = part.type === "error" ? part : undefined;
    if (!held) yield part;
  }
}
