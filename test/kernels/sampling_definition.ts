// docs/sampling.md written down a second time, in TypeScript: sorting, BigInt and doubles instead of thresholds. What the kernels' draws are checked by.

export interface Sampler {
  temperature: number; topK: number; topP: number; minP: number; repetition: number; presence: number; frequency: number;
  seed: readonly [low: number, high: number];
}
export const NEUTRAL: Sampler = { temperature: 1, topK: 0, topP: 1, minP: 0, repetition: 1, presence: 0, frequency: 0, seed: [0, 0] };
const f = Math.fround;

/** First word of Philox4x32-10. */
export function philox(counter: readonly [number, number, number, number], key: readonly [number, number]): number[] {
  let [c0, c1, c2, c3] = counter.map((v) => BigInt(v >>> 0)) as [bigint, bigint, bigint, bigint];
  let [k0, k1] = key.map((v) => BigInt(v >>> 0)) as [bigint, bigint];
  const low = 0xffffffffn;
  for (let round = 0; round < 10; round++) {
    const a = c0 * 0xd2511f53n, b = c2 * 0xcd9e8d57n;
    [c0, c1, c2, c3] = [(b >> 32n) ^ c1 ^ k0, b & low, (a >> 32n) ^ c3 ^ k1, a & low];
    k0 = (k0 + 0x9e3779b9n) & low;
    k1 = (k1 + 0xbb67ae85n) & low;
  }
  return [c0, c1, c2, c3].map(Number);
}

/** exp(delta) in units of 2^-30 by the polynomial of kernels/common/sample_mass.h; every step truncates. */
export function massOf(delta: number): bigint {
  if (!(delta > -21)) return 0n;
  const bits = BigInt(Math.trunc(f(delta * -67108864))) * 3098164009n, n = bits >> 57n, x = (bits >> 25n) & 0xffffffffn;
  let p = 493577n;
  for (const a of [5547538n, 41218952n, 238367376n, 1031763206n, 2977044447n]) p = a - ((x * p) >> 32n);
  return (2147483648n - (((x * p) >> 32n) >> 1n)) >> (1n + n);
}

/** Mask, bias and penalties, in that order and in f32; gives new logits. */
export function processed(logits: Float32Array, s: Sampler, history: readonly number[], bias: readonly (readonly [number, number])[] = [], mask?: Int32Array): Float32Array {
  const out = logits.map((l, id) => (mask && !((mask[id >> 5]! >>> (id & 31)) & 1) ? -Infinity : l));
  for (const [id, value] of bias) if (id >= 0 && id < out.length) out[id] = f(out[id]! + f(value));
  const recent = history.slice(-64), counts = new Map<number, number>();
  for (const id of recent) counts.set(id, (counts.get(id) ?? 0) + 1);
  for (const [id, n] of counts) {
    let l = out[id]!;
    const repetition = f(s.repetition), presence = f(s.presence), frequency = f(s.frequency);
    if (repetition !== 1) l = l > 0 ? f(l / repetition) : f(l * repetition);
    if (presence !== 0) l = f(l - presence);
    if (frequency !== 0) l = f(l - f(frequency * n));
    out[id] = l;
  }
  return out;
}

/** Id drawn for a row at `position`, and whether its logits can be drawn from. */
export function drawn(logits: Float32Array, s: Sampler, position: number): { id: number; finite: boolean } {
  if (logits.some((l) => Number.isNaN(l) || l === Infinity) || logits.every((l) => l === -Infinity)) return { id: 0, finite: false };
  const max = logits.reduce((a, b) => Math.max(a, b)), best = logits.findIndex((l) => l === max), inverse = f(1 / f(s.temperature));
  if (!(f(s.temperature) > 0) || !Number.isFinite(inverse)) return { id: best, finite: true };
  const mass = Array.from(logits, (l) => massOf(f(f(l - max) * inverse)));
  let kept = Array.from(logits, (_, id) => id);
  if (s.topK > 0 && s.topK < logits.length) kept = kept.toSorted((a, b) => (logits[a]! === logits[b]! ? a - b : logits[b]! - logits[a]!)).slice(0, s.topK);
  const total = (ids: readonly number[]): bigint => ids.reduce((sum, id) => sum + mass[id]!, 0n);
  if (f(s.topP) < 1) {
    const share = (BigInt(Math.floor(f(s.topP) * 4294967296)) * total(kept)) >> 32n, target = share > 1n ? share : 1n;
    const sorted = kept.toSorted((a, b) => (mass[a] === mass[b] ? a - b : mass[a]! < mass[b]! ? 1 : -1));
    let sum = 0n;
    kept = sorted.filter((id) => { if (sum >= target) return false; sum += mass[id]!; return true; });
  }
  if (s.minP > 0) { const least = BigInt(Math.floor(Math.min(f(s.minP), 1) * 1073741824)); kept = kept.filter((id) => mass[id]! >= least); }
  const r = (BigInt(philox([position + 1, 0, 0, 0], s.seed)[0]!) * total(kept)) >> 32n;
  let sum = 0n;
  for (const id of kept.toSorted((a, b) => a - b)) { sum += mass[id]!; if (sum > r) return { id, finite: true }; }
  throw new Error("the total mass exceeds r, so some id was drawn");
}
