// Writes a batch into a slot of the step block: rows, positions, outputs, samplers, page table changes. Decides nothing.
import type { PageDelta, SequencePages } from "../kv/sequence.ts";
import type { StepSlot } from "../native/objects.ts";
import { BAO } from "../native/symbols.ts";
import { writeSampler, type Sampling } from "../sample/params.ts";

/** Ids of a sequence that penalties look at. */
const HISTORY = 64;

/** A sequence's place on the device. Made by `Runner.open`. */
export interface Sequence {
  readonly slot: number;
  readonly pages: SequencePages;
  /** Ids of all tokens whose KV is (or is about to be) in the cache, then of one that was drawn and has not run. Draws in flight are not in it yet. */
  readonly ids: number[];
  /** Tokens of steps that were submitted and not collected: they follow those in `pages`. */
  pending: number;
  /** The device region may stand elsewhere than `ids` says: a draw was dropped or cancelled. The next decode row tells it. */
  stale: boolean;
}

/** Rows of one sequence in a batch: explicit ids (prefill), or "next": the id that was drawn last (decode), known to the host or not. */
export interface BatchEntry {
  readonly sequence: Sequence;
  readonly ids: ArrayLike<number> | "next";
  /** Which of these rows want logits. */
  readonly logits: "none" | "last" | "all";
  /** Draw a token from the last row's logits. */
  readonly sampling?: Sampling;
  /** Adds the rows' hidden states to the sequence's sum: see `Runner.pooled`. All entries of a batch do, or none. */
  readonly pool?: boolean;
  /** The draw waits for `Runner.draw`, which may bring a mask. */
  readonly masked?: boolean;
}

/** An entry's first and last output row; -1 = none. */
export interface Place { readonly first: number; readonly last: number }

export const rowsOf = (e: BatchEntry): number => (e.ids === "next" ? 1 : e.ids.length);

const GREEDY: Sampling = { temperature: 0, topK: 0, topP: 1, minP: 0, repetitionPenalty: 1, presencePenalty: 0, frequencyPenalty: 0, seed: 0, logitBias: new Map(), logprobs: -1 };

/** Fills `slot` as step number `serial`; explicit ids are taken down in their sequences. */
export function fillSlot(slot: StepSlot, serial: number, entries: readonly BatchEntry[], deltas: readonly (readonly PageDelta[])[]): Place[] {
  let rows = 0, outputs = 0, pageDeltas = 0, sequenceDeltas = 0, bias = 0;
  const places = entries.map((e, n): Place => {
    const { sequence } = e, start = sequence.pages.length + sequence.pending, count = rowsOf(e);
    for (const d of deltas[n]!) slot.pageDelta.set([d.table, sequence.slot, d.index, d.page], pageDeltas++ * 4);
    if (e.ids !== "next") {
      sequence.ids.length = start; // ids drawn but not yet run are replaced by explicit ones
      for (let i = 0; i < count; i++) sequence.ids.push(e.ids[i]!);
    }
    let first = -1;
    for (let i = 0; i < count; i++) {
      slot.rowSequence[rows] = sequence.slot;
      slot.rowId[rows] = e.ids === "next" ? -1 : e.ids[i]!;
      slot.rowPosition[rows] = e.ids === "next" ? -1 : start + i;
      if (e.logits === "all" || (e.logits === "last" && i === count - 1)) {
        if (first < 0) first = outputs;
        const last = i === count - 1;
        bias = writeSampler(slot, outputs, last && e.sampling ? e.sampling : GREEDY, bias, !(last && e.sampling));
        slot.outputRow[outputs++] = rows;
      }
      rows++;
    }
    // The device learns where the sequence stands: before the first draw of a prompt (which adds one to the length), and when it lost its place.
    const [length, next] = e.ids !== "next" ? [start + count - 1, 0] : [start, sequence.ids[start]];
    if (e.sampling && (e.ids !== "next" || sequence.stale)) {
      const recent = sequence.ids.slice(-HISTORY), at = sequenceDeltas++ * (4 + HISTORY);
      slot.sequenceDelta.set([sequence.slot, length, next!, recent.length, ...recent], at);
    }
    return { first, last: first < 0 ? -1 : outputs - 1 };
  });
  const h = slot.header;
  h[BAO.HEADER_ROWS] = rows;
  h[BAO.HEADER_OUTPUTS] = outputs;
  h[BAO.HEADER_PAGE_DELTAS] = pageDeltas;
  h[BAO.HEADER_SEQUENCE_DELTAS] = sequenceDeltas;
  h[BAO.HEADER_SERIAL] = serial;
  h[BAO.HEADER_CANCEL] = 0;
  return places;
}
