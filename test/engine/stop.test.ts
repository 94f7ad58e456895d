// Stop strings: whatever the pieces, the text up to the first stop comes out whole, and no part of the stop does.
import { expect, test } from "bun:test";
import fc from "fast-check";
import { StopStrings } from "../../src/engine/stop.ts";

function run(stops: string[], pieces: readonly string[]): { text: string; stopped: string | undefined; early: string[] } {
  const s = new StopStrings(stops), early: string[] = [];
  let text = "";
  for (const p of pieces) {
    text += s.push(p);
    early.push(text);
  }
  return { text: text + s.end(), stopped: s.stopped, early };
}

test("a stop string in one piece, in two, and letter by letter", () => {
  for (const pieces of [["Hello\nUser: x"], ["Hello\nUs", "er: x"], [..."Hello\nUser: x"]]) expect(run(["\nUser:"], pieces)).toMatchObject({ text: "Hello", stopped: "\nUser:" });
});

test("the beginning of a stop string that turns out to be text", () => {
  const { text, stopped, early } = run(["\nUser:"], ["a\nU", "s", "a"]);
  expect([text, stopped]).toEqual(["a\nUsa", undefined]);
  expect(early).toEqual(["a", "a", "a\nUsa"]);
  expect(run(["aab"], ["a", "a", "a", "b!"])).toMatchObject({ text: "a", stopped: "aab" });
});

test("the end of the stream gives back what was held", () => {
  expect(run(["abc"], ["xab"])).toMatchObject({ text: "xab", stopped: undefined });
});

test("any pieces, any stops: the text before the first stop that was complete, nothing of the stop, nothing after it", () => {
  const letter = fc.constantFrom("a", "b", "c");
  const word = fc.array(letter, { minLength: 1, maxLength: 4 }).map((l) => l.join(""));
  fc.assert(fc.property(fc.array(word, { maxLength: 3 }), fc.array(fc.array(letter, { maxLength: 5 }).map((l) => l.join("")), { maxLength: 12 }), (stops, pieces) => {
    const whole = pieces.join(""), result = run(stops, pieces);
    // The stream is read piece by piece: the earliest start among the stops that are complete at the end of the first piece that completes one.
    let expected = whole, found = false;
    for (let n = 1, seen = ""; n <= pieces.length && !found; n++) {
      seen += pieces[n - 1]!;
      const starts = stops.map((s) => seen.indexOf(s)).filter((at) => at >= 0);
      if (starts.length > 0) { expected = seen.slice(0, Math.min(...starts)); found = true; }
    }
    expect([result.text, result.stopped !== undefined]).toEqual([expected, found]);
    for (const shown of result.early) expect(expected.startsWith(shown)).toBe(true);
  }), { numRuns: 400 });
});
