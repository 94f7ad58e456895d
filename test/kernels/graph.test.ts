// Instantiated recordings (BAO_CAP_GRAPH): a graph gives the bits that submitting its recording gives, for any counts up to its own, and ends
// with the recording.
import { describe, expect, test } from "bun:test";
import { BAO } from "../../src/native/symbols.ts";
import { allowTime, batchInvariant, fill, Random, Rig, subject, type StepSpec } from "./harness.ts";
import { refused, using } from "./refused.ts";

allowTime();

const HAS = (subject().caps & BAO.CAP_GRAPH) !== 0, VOCABULARY = 97, N = 64;

/** A little of everything: lookup, norm, KV, attention, experts, logits, draw. */
function recorded(rig: Rig): { logits: ReturnType<Rig["view"]> } {
  const { r } = rig, most = 40, view = (d1: number, d2: number): ReturnType<Rig["view"]> => rig.view(most, d1, d2), random = new Random(3);
  const [x, h, a, y, e] = [view(1, N), view(1, N), view(2, 32), view(1, N), view(2, 32)], ids = rig.view(most, 1, 2, { dtype: "i32" }), weights = view(1, 2);
  const k = view(2, 32), last = rig.view(most, 1, N, { rowsOf: "output" }), logits = rig.view(most, 1, VOCABULARY, { rowsOf: "output" });
  const w = (dtype: number, rows: number, columns: number, experts = 1): ReturnType<Rig["weight"]> => rig.weight({ dtype, rows, columns, experts, scale: 0.2 });
  const embedding = w(BAO.Q8_0, VOCABULARY, N), pool = rig.pool({ kvHeads: 2, headDim: 32, type: "f16", pages: 8 });
  rig.stream.record(() => {
    r.embed(x, embedding, 8);
    r.rmsNorm(h, x, rig.vector(random.f32(N)), 1e-6);
    r.matmulGroup([a, k, undefined], h, [w(BAO.Q4_0, N, N), w(BAO.F16, N, N), undefined]);
    r.kvAppend(pool, 0, k, k);
    r.attention(a, a, pool, 0, 70, 0.2);
    r.matmul(y, a, w(BAO.Q5_0, N, N));
    r.router(ids, weights, y, w(BAO.F32, 5, N), true);
    r.moeMatmulGlu(e, y, w(BAO.Q8_0, 32, N, 5), w(BAO.Q8_0, 32, N, 5), ids, "gelu");
    r.moeMatmulSum(x, e, w(BAO.Q4_1, N, 32, 5), ids, weights);
    r.gatherRows(last, x);
    r.matmul(logits, last, embedding);
    r.logitsProcess(logits, undefined);
    r.sample(logits);
  });
  return { logits };
}

const STEPS: readonly StepSpec[] = [
  { rows: [{ sequence: 1, position: 0, id: 5 }, { sequence: 1, position: 1, id: 7 }, { sequence: 4, position: 0, id: 9 }], outputs: [1, 2], pages: [[0, 1, 0, 3], [0, 4, 0, 6]], samplers: [{ temperature: 1, seed: [1, 2] }, {}] },
  { rows: [{ sequence: 1 }, { sequence: 4 }], samplers: [{ temperature: 1, seed: [1, 2] }, {}] },
  { rows: 0 },
  { rows: [{ sequence: 4 }], samplers: [{}] },
];

describe.skipIf(!HAS)("graphs", () => {
  test("replays give the bits of submits, for any counts up to the graph's", () => {
    for (const precision of ["exact", "fast"] as const) {
      const run = (replayed: boolean): number[][] => {
        const found: number[][] = [], rig = new Rig(subject({ precision }), { vocabulary: VOCABULARY });
        try {
          const { k } = rig.device, { logits } = recorded(rig);
          let graph = replayed ? k.graphCreate(rig.stream.handle, 4, 3) : 0;
          for (const step of STEPS) {
            fill(rig.step.slots[0]!, step, VOCABULARY);
            // Where bits depend on how many rows a launch is made for, only a graph of the same counts gives the same ones.
            if (graph && !batchInvariant(rig.device)) {
              const { header } = rig.step.slots[0]!;
              k.graphFree(graph);
              graph = k.graphCreate(rig.stream.handle, Math.max(1, header[BAO.HEADER_ROWS]!), header[BAO.HEADER_OUTPUTS]!);
            }
            if (graph) k.graphSubmit(graph, 0); else rig.stream.submit(0);
            expect(rig.stream.wait(0, 20_000)).toBe("done");
            const outputs = rig.step.slots[0]!.header[BAO.HEADER_OUTPUTS]!;
            found.push([...rig.f32(logits, 3).subarray(0, outputs * VOCABULARY), ...Array.from({ length: outputs }, (_, i) => rig.step.slots[0]!.result[i * BAO.RESULT_WORDS]!)]);
          }
          if (graph) k.graphFree(graph);
        } finally {
          rig.dispose();
        }
        return found;
      };
      const expected = run(false);
      expect(expected[0]!.some((v) => v !== 0)).toBe(true);
      expect(run(true)).toEqual(expected);
      expect(run(true)).toEqual(expected);
    }
  });

  test("counts beyond the graph's, and a recording that has ended, are refused", () => {
    using((rig) => {
      const { k } = rig.device;
      recorded(rig);
      for (const [rows, outputs] of [[0, 1], [-1, 1], [41, 1], [1, 41], [1, -1]] as const) refused(() => k.graphCreate(rig.stream.handle, rows, outputs));
      const graph = k.graphCreate(rig.stream.handle, 2, 1);
      fill(rig.step.slots[0]!, STEPS[0]!, VOCABULARY);
      refused(() => k.graphSubmit(graph, 0), 2);
      fill(rig.step.slots[0]!, { ...STEPS[0]!, rows: [{ sequence: 1, position: 0, id: 5 }], outputs: [0] }, VOCABULARY);
      k.graphSubmit(graph, 0);
      expect(rig.stream.wait(0, 20_000)).toBe("done");
      rig.stream.record(() => undefined);
      refused(() => k.graphSubmit(graph, 0), 1);
      k.graphFree(graph);
      refused(() => k.graphFree(graph), 1);
    });
  });
});
