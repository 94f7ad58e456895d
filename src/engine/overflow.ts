// Conversations longer than the context: what a caller may choose to have left out. Never cuts a message; the system turn and the last question stay.
import type { Message } from "../chat/index.ts";

/**
 * The longest end of a conversation for which `fits` holds, system messages in front, beginning with a question of the user; its shortest such end when none
 * fits. `fits` is asked about log2(turns) times and taken to hold for all shorter ends too.
 */
export function latestTurns(messages: readonly Message[], fits: (messages: readonly Message[]) => boolean): readonly Message[] {
  const system = messages.findIndex((m) => m.role !== "system"), head = messages.slice(0, system < 0 ? messages.length : system);
  const from = (start: number): readonly Message[] => [...head, ...messages.slice(start)];
  // An answer or a tool's result without its question would be a conversation that no template knows.
  const starts = [...messages.keys()].filter((i) => i > head.length && messages[i]!.role === "user");
  if (starts.length === 0 || fits(messages)) return messages;
  let short = starts.length - 1, long = -1;
  while (short - long > 1) {
    const middle = (short + long) >> 1;
    if (fits(from(starts[middle]!))) short = middle; else long = middle;
  }
  return from(starts[short]!);
}
