// Ranked BPE (the `gemma4` and `gpt2` models) over @huggingface/tokenizers' merge loop. Knows nothing of special tokens or BOS.

import { BPE } from "@huggingface/tokenizers";
import { ModelFileError } from "../errors.ts";
import { Cutter, lastCode } from "./split.ts";
import type { Vocab } from "./vocab.ts";

/** Turns a piece of normalised text into symbols that concatenate to it. */
export interface Segmenter {
  readonly cutter: Cutter;
  /** Symbols of `piece`, in order. A symbol may be missing from the vocabulary. */
  segment(piece: string): readonly string[];
}

/**
 * Builds the merge table. `merges` are `"left right"`, best first.
 * Throws ModelFileError if there are none or one has no separator.
 */
export function rankedSegmenter(vocab: Vocab, merges: readonly string[] | undefined): Segmenter {
  if (merges === undefined) {
    throw new ModelFileError("tokenizer_merges", "tokenizer.ggml.merges is missing", "A BPE vocabulary needs its merges: convert the model again.");
  }
  const pairs: [string, string][] = [];
  const cutter = new Cutter();
  for (const merge of merges) {
    // A side may itself begin with a space-like character, so the separator is looked for from index 1.
    const gap = merge.indexOf(" ", 1);
    if (gap < 0 || gap === merge.length - 1) {
      throw new ModelFileError("tokenizer_merges", `tokenizer.ggml.merges holds ${JSON.stringify(merge)}, not "left right"`, "The file is damaged: download it again.");
    }
    const left = merge.slice(0, gap);
    const right = merge.slice(gap + 1);
    // Ordinary text must never be merged into a control, marker or byte token.
    if (!vocab.textIds.has(left + right) && (vocab.specialIds.has(left + right) || isByteText(left + right))) continue;
    pairs.push([left, right]);
    cutter.allow(lastCode(left), right.codePointAt(0) ?? 0);
  }
  // Only the merge loop is used. Ids, byte fallback and caching are ours, hence no vocabulary and no cache here.
  // The library reads the pair format off the first entry, so an empty list is fine as well.
  const bpe = new BPE({ type: "BPE", vocab: {}, merges: pairs, fuse_unk: false, byte_fallback: false } as unknown as ConstructorParameters<typeof BPE>[0]);
  bpe.max_length_to_cache = 0;
  // The rank map holds all that merging needs; dropping the pairs frees a hundred megabytes on a 262k vocabulary.
  bpe.merges = [];
  bpe.config = { ...bpe.config, merges: [] };
  return { cutter, segment: (piece) => bpe.bpe(piece) };
}

function isByteText(text: string): boolean {
  return text.length === 6 && /^<0x[0-9A-Fa-f]{2}>$/.test(text);
}
