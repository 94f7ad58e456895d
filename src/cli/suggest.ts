// "Did you mean": the known word nearest to a mistyped one.

/** The nearest of `known` that is at most a third of the word away, or undefined. */
export function nearest(word: string, known: readonly string[]): string | undefined {
  const ranked = known.map((k): [string, number] => [k, distance(word, k)]).sort((a, b) => a[1] - b[1]);
  const best = ranked[0];
  return best && best[1] <= Math.max(1, Math.floor(word.length / 3)) ? best[0] : undefined;
}

/** Edits between two words; exchanging neighbours counts as one. */
export function distance(a: string, b: string): number {
  const rows: number[][] = [Array.from({ length: b.length + 1 }, (_, j) => j)];
  for (let i = 1; i <= a.length; i++) {
    const row = [i];
    for (let j = 1; j <= b.length; j++) {
      const same = a[i - 1] === b[j - 1] ? 0 : 1;
      let best = Math.min(rows[i - 1]![j]! + 1, row[j - 1]! + 1, rows[i - 1]![j - 1]! + same);
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) best = Math.min(best, rows[i - 2]![j - 2]! + 1);
      row.push(best);
    }
    rows.push(row);
  }
  return rows[a.length]![b.length]!;
}
