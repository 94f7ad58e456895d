// Random weights that were never floats: valid blocks of any type that a converted file can hold, made in a pool of a few megabytes and
// repeated with other scales, so that they come as fast as a disk takes them. Reads nothing, quantises nothing.

import { ggmlType, type GgmlTypeName } from "../gguf/index.ts";

/** Bytes of a pool: small beside any model, large beside its rows. */
const POOL_BYTES = 4 << 20;
/** A pool's scales vary by up to this factor either way from one pass to the next. */
const VARIATION = 1.25;

/** Deterministic 32-bit generator (xorshift): the same seed, the same file. */
export class RandomBits {
  #state: number;
  constructor(seed: number) { this.#state = (seed ^ 0x9e3779b9) >>> 0 || 1; }
  /** A whole number in [0, 2^32). */
  next(): number {
    let x = this.#state;
    x ^= x << 13;
    x ^= x >>> 17;
    x ^= x << 5;
    return (this.#state = x >>> 0);
  }
  /** A number in [low, high). */
  between(low: number, high: number): number { return low + (this.next() / 2 ** 32) * (high - low); }
  /** Random bytes; their number is a multiple of 4 or padded to one. */
  bytes(count: number): Uint8Array {
    const words = new Uint32Array(Math.ceil(count / 4));
    for (let i = 0; i < words.length; i++) words[i] = this.next();
    return new Uint8Array(words.buffer, 0, count);
  }
}

/** Where a block type keeps its scale, and what a scale of 1 gives. */
interface Layout {
  /** Byte of the half `d` in a block. */
  readonly scaleAt: number;
  /** Byte of a second half, a minimum that centres the values: `minimum` times `d`. */
  readonly minimumAt?: number;
  readonly minimum?: number;
  /** The numbers lie around -0.5: half of the blocks get a negative scale, which centres their sum. */
  readonly signed?: boolean;
  /** Standard deviation of the values when d is 1. */
  readonly deviation: number;
  /** Rewrites the block's inner scales, if it has any. */
  readonly inner?: (block: Uint8Array, random: RandomBits) => void;
}

/** Standard deviation of n whole numbers that are equally likely. */
const uniform = (n: number): number => Math.sqrt((n * n - 1) / 12);
/** Root mean square of the whole numbers low..high. */
const rms = (low: number, high: number): number => {
  let sum = 0;
  for (let i = low; i <= high; i++) sum += i * i;
  return Math.sqrt(sum / (high - low + 1));
};

// Sub-blocks of K-quants: scale and minimum are the same 6-bit number, from 32 to 63, so one dmin centres all of them.
function equalScalesAndMinimums(at: number): (block: Uint8Array, random: RandomBits) => void {
  return (block, random) => {
    const bits = random.next(), more = random.next();
    for (let j = 0; j < 4; j++) {
      const first = 32 + ((bits >>> (8 * j)) & 31), second = 32 + ((more >>> (8 * j)) & 31);
      const high = (second >> 4) << 6;
      block[at + j] = first | high;
      block[at + 4 + j] = first | high;
      block[at + 8 + j] = (second & 15) * 0x11;
    }
  };
}

const LAYOUTS: Partial<Record<GgmlTypeName, Layout>> = {
  Q4_0: { scaleAt: 0, signed: true, deviation: Math.hypot(uniform(16), 0.5) },
  Q5_0: { scaleAt: 0, signed: true, deviation: Math.hypot(uniform(32), 0.5) },
  Q5_1: { scaleAt: 0, minimumAt: 2, minimum: -15.5, deviation: uniform(32) },
  Q8_0: { scaleAt: 0, signed: true, deviation: Math.hypot(uniform(256), 0.5) },
  Q4_K: { scaleAt: 0, minimumAt: 2, minimum: 7.5, deviation: uniform(16) * rms(32, 63), inner: equalScalesAndMinimums(4) },
  Q5_K: { scaleAt: 0, minimumAt: 2, minimum: 15.5, deviation: uniform(32) * rms(32, 63), inner: equalScalesAndMinimums(4) },
  // Sixteen signed scales; half of them negative.
  Q6_K: {
    scaleAt: 208, deviation: Math.hypot(uniform(64), 0.5) * rms(32, 63),
    inner: (block, random) => {
      for (let j = 0; j < 16; j++) block[192 + j] = (32 + (random.next() & 31)) * (random.next() & 256 ? 1 : -1);
    },
  },
};

const isPrime = (n: number): boolean => {
  for (let i = 2; i * i <= n; i++) if (n % i === 0) return false;
  return n > 1;
};

/** Blocks of one type whose values have mean 0 and a given standard deviation. */
export class RandomBlocks {
  readonly #random: RandomBits;
  readonly #layout: Layout | undefined;
  readonly #blockBytes: number;
  readonly #pool: Uint8Array;
  readonly #halves: DataView;
  readonly #scale: number;
  #at = 0;

  /** Throws RangeError for a type that no converted file has. */
  constructor(type: GgmlTypeName, deviation: number, seed: number) {
    const { blockBytes, blockElements } = ggmlType(type);
    this.#random = new RandomBits(seed);
    this.#layout = LAYOUTS[type];
    this.#blockBytes = blockBytes;
    // A prime number of blocks: rows of any length begin at ever different places of it.
    let blocks = Math.floor(POOL_BYTES / blockBytes);
    while (!isPrime(blocks)) blocks--;
    this.#scale = this.#layout ? deviation / this.#layout.deviation : deviation;
    if (blockElements === 1) this.#pool = this.#floats(type, blocks, deviation);
    else {
      if (!this.#layout) throw new RangeError(`random blocks of ${type} are not known`);
      this.#pool = this.#random.bytes(blocks * blockBytes);
      if (this.#layout.inner) for (let b = 0; b < blocks; b++) this.#layout.inner(this.#pool.subarray(b * blockBytes, (b + 1) * blockBytes), this.#random);
    }
    this.#halves = new DataView(this.#pool.buffer, this.#pool.byteOffset, this.#pool.byteLength);
    this.#vary();
  }

  /** The next `bytes` (whole blocks) in pieces, each valid until the next one is asked for. */
  *take(bytes: number): Generator<Uint8Array, void, undefined> {
    for (let left = bytes; left > 0;) {
      if (this.#at === this.#pool.length) {
        this.#at = 0;
        this.#vary();
      }
      const piece = this.#pool.subarray(this.#at, Math.min(this.#pool.length, this.#at + left));
      this.#at += piece.length;
      left -= piece.length;
      yield piece;
    }
  }

  #floats(type: GgmlTypeName, count: number, deviation: number): Uint8Array {
    const width = Math.sqrt(3) * deviation, values = Float32Array.from({ length: count }, () => this.#random.between(-width, width));
    if (type === "F32") return new Uint8Array(values.buffer);
    if (type === "F16") return new Uint8Array(Float16Array.from(values).buffer);
    if (type === "BF16") return new Uint8Array(Uint16Array.from(new Uint32Array(values.buffer), (bits) => bits >>> 16).buffer);
    throw new RangeError(`random values of ${type} are not known`);
  }

  /** Gives every block another scale; floats go round as they are, which the prime length shifts against the rows. */
  #vary(): void {
    if (!this.#layout) return;
    const { scaleAt, minimumAt, minimum = 0, signed } = this.#layout;
    for (let at = 0; at < this.#pool.length; at += this.#blockBytes) {
      const size = this.#scale * this.#random.between(1 / VARIATION, VARIATION), d = signed && this.#random.next() & 1 ? -size : size;
      this.#halves.setFloat16(at + scaleAt, d, true);
      if (minimumAt !== undefined) this.#halves.setFloat16(at + minimumAt, d * minimum, true);
    }
  }
}
