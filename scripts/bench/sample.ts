// Cases of argmax, logits_process, logprobs and sample over a whole vocabulary. The logits are those of a random model: flat, which is the
// hard case of top-k and top-p.
import { DECODE_ROWS, plainStep, type BenchCase } from "./case.ts";
import type { BenchModel } from "./models.ts";
import type { BenchRig, SamplerShape } from "./rig.ts";

const SAMPLERS: Record<string, SamplerShape> = {
  greedy: {},
  temperature: { temperature: 1 },
  "top-k 64, top-p 0.95": { temperature: 1, topK: 64, topP: 0.95 },
  "top-p 0.95": { temperature: 1, topP: 0.95 },
};

export function cases(model: BenchModel): BenchCase[] {
  const out: BenchCase[] = [], { vocabulary } = model, words = Math.ceil(vocabulary / 32);
  for (const rows of DECODE_ROWS) {
    const push = (op: string, site: string, sampler: SamplerShape, bytes: number, record: (rig: BenchRig) => () => void): void => {
      out.push({
        op, model: model.name, site, dtype: "f32", rows, shape: `${vocabulary}`, step: { ...plainStep(rows), vocabulary, sampler }, bytes: rows * bytes, flops: 0, coldBytes: 0, usual: true,
        prepare: (rig) => ({ copies: 1, op: record(rig) }),
      });
    };
    push("argmax", "logits", {}, vocabulary * 4, (rig) => {
      const x = rig.view(1, vocabulary), dst = rig.ints(new Int32Array(rows), 1), { k } = rig.device;
      return () => k.argmax(rig.stream.handle, dst.handle, x.handle);
    });
    // 64 recent ids are touched, whatever the vocabulary.
    push("logits_process", "penalties", { penalties: true }, 64 * 8, (rig) => {
      const logits = rig.view(1, vocabulary, "output");
      return () => rig.r.logitsProcess(logits, undefined);
    });
    push("logits_process", "mask", { mask: true }, vocabulary * 8 + words * 4, (rig) => {
      const logits = rig.view(1, vocabulary, "output"), mask = rig.ints(new Int32Array(rows * words).fill(0x7fff_fffe), words, "output");
      return () => rig.r.logitsProcess(logits, mask);
    });
    push("logprobs", "top 20", { topLogprobs: 20 }, vocabulary * 4, (rig) => {
      const logits = rig.view(1, vocabulary, "output");
      return () => rig.r.logprobs(logits);
    });
    for (const [site, sampler] of Object.entries(SAMPLERS)) {
      push("sample", site, sampler, vocabulary * 4, (rig) => {
        const logits = rig.view(1, vocabulary, "output");
        return () => rig.r.sample(logits);
      });
    }
  }
  return out;
}
