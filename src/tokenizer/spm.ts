// Score BPE (the `llama` model): repeatedly joins the adjacent pair whose text has the highest score. Knows nothing of BOS or specials.

import { ModelFileError } from "../errors.ts";
import type { Segmenter } from "./bpe.ts";
import { Cutter } from "./split.ts";
import type { Vocab } from "./vocab.ts";

/** Builds the segmenter of a SentencePiece vocabulary. Throws ModelFileError without scores. */
export function scoreSegmenter(vocab: Vocab, scores: ArrayLike<number> | undefined): Segmenter {
  if (scores === undefined) {
    throw new ModelFileError("tokenizer_scores", "tokenizer.ggml.scores is missing", "A SentencePiece vocabulary needs its scores: convert the model again.");
  }
  const cutter = new Cutter();
  for (const text of vocab.textIds.keys()) {
    let previous = -1;
    for (const char of text) {
      const code = char.codePointAt(0) ?? 0;
      if (previous >= 0) cutter.allow(previous, code);
      previous = code;
    }
  }
  return { cutter, segment: (piece) => segment(piece, vocab.textIds, scores) };
}

/** Doubly linked symbols over offsets of `text`, and a binary heap of candidate joins; O(n log n). */
function segment(text: string, ids: ReadonlyMap<string, number>, scores: ArrayLike<number>): string[] {
  const starts: number[] = [];
  for (let i = 0; i < text.length; i += (text.codePointAt(i) ?? 0) > 0xffff ? 2 : 1) starts.push(i);
  const count = starts.length;
  const start = Int32Array.from(starts);
  const end = new Int32Array(count);
  const next = new Int32Array(count);
  const previous = new Int32Array(count);
  for (let i = 0; i < count; i++) {
    end[i] = i + 1 < count ? (start[i + 1] ?? 0) : text.length;
    next[i] = i + 1 < count ? i + 1 : -1;
    previous[i] = i - 1;
  }
  const heap = new JoinHeap();
  const propose = (left: number): void => {
    const right = left < 0 ? -1 : (next[left] ?? -1);
    if (right < 0) return;
    const id = ids.get(text.slice(start[left], end[right]));
    if (id !== undefined) heap.push({ score: scores[id] ?? 0, left, end: end[right] ?? 0 });
  };
  for (let i = 0; i + 1 < count; i++) propose(i);
  for (let join = heap.pop(); join !== undefined; join = heap.pop()) {
    const { left } = join;
    const right = next[left] ?? -1;
    // Stale: one of the two symbols has been joined with another since (a swallowed symbol has an empty range).
    if (right < 0 || end[left] === start[left] || end[right] !== join.end) continue;
    end[left] = join.end;
    end[right] = start[right] ?? 0;
    const after = next[right] ?? -1;
    next[left] = after;
    if (after >= 0) previous[after] = left;
    propose(previous[left] ?? -1);
    propose(left);
  }
  const symbols: string[] = [];
  for (let i = count > 0 ? 0 : -1; i >= 0; i = next[i] ?? -1) symbols.push(text.slice(start[i], end[i]));
  return symbols;
}

interface Join {
  readonly score: number;
  readonly left: number;
  /** End offset of the joined text; tells a live proposal from a stale one. */
  readonly end: number;
}

function before(a: Join, b: Join): boolean {
  return a.score > b.score || (a.score === b.score && a.left < b.left);
}

class JoinHeap {
  private readonly items: Join[] = [];

  push(item: Join): void {
    const { items } = this;
    let at = items.push(item) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = items[parent];
      if (above === undefined || !before(item, above)) break;
      items[at] = above;
      at = parent;
    }
    items[at] = item;
  }

  pop(): Join | undefined {
    const { items } = this;
    const top = items[0];
    const last = items.pop();
    if (last === undefined || items.length === 0) return top;
    let at = 0;
    for (;;) {
      let child = at * 2 + 1;
      let below = items[child];
      const other = items[child + 1];
      if (below === undefined) break;
      if (other !== undefined && before(other, below)) [child, below] = [child + 1, other];
      if (!before(below, last)) break;
      items[at] = below;
      at = child;
    }
    items[at] = last;
    return top;
  }
}
