// Ranges of numbers as grammar: digits only, no arithmetic at run time. Bounds are whole numbers.

/** Bounds of a number, inclusive; undefined = none. */
export interface Bounds { readonly min?: number | undefined; readonly max?: number | undefined }

/** Whole numbers are written with this many digits at most, so that reading them back loses nothing. */
const DIGITS = 15;
const LARGEST = 10 ** DIGITS - 1;

/** Whole numbers within the bounds; undefined when there are none. */
export function integers({ min = -LARGEST, max = LARGEST }: Bounds): string | undefined {
  const low = Math.max(min, -LARGEST), high = Math.min(max, LARGEST);
  if (low > high) return undefined;
  const parts: string[] = [];
  if (high >= 0) parts.push(naturals(Math.max(low, 0), high));
  if (low < 0) parts.push(`"-" (${naturals(Math.max(1, -high), -low)})`);
  return parts.join(" | ");
}

/** Numbers within the bounds, with or without a fraction; an exponent only where nothing bounds them. `open`: a bound itself is excluded. */
export function numbers(bounds: Bounds, open: { min: boolean; max: boolean }): string | undefined {
  const { min, max } = bounds, fraction = `"." [0-9]{0,14} [1-9]`;
  if (min === undefined && max === undefined) return `"-"? ("0" | [1-9] [0-9]{0,${DIGITS - 1}}) ("." [0-9]{1,${DIGITS}})? ([eE] [+-]? [0-9]{1,2})?`;
  const whole = integers({ min: min !== undefined && open.min ? min + 1 : min, max: max !== undefined && open.max ? max - 1 : max });
  const parts = whole === undefined ? [] : [whole];
  // n.f lies strictly between n and n + 1, so open bounds need no case of their own.
  const high = Math.min(max ?? LARGEST, LARGEST), low = Math.max(min ?? -LARGEST, -LARGEST);
  if (high >= 1 && Math.max(low, 0) <= high - 1) parts.push(`(${naturals(Math.max(low, 0), high - 1)}) ${fraction}`);
  if (low <= -1 && Math.max(-high, 0) <= -low - 1) parts.push(`"-" (${naturals(Math.max(-high, 0), -low - 1)}) ${fraction}`);
  return parts.length === 0 ? undefined : parts.join(" | ");
}

/** Decimal digits of [low, high], both from 0. */
function naturals(low: number, high: number): string {
  const parts: string[] = [];
  for (let length = String(low).length; length <= String(high).length; length++) {
    const from = Math.max(low, length === 1 ? 0 : 10 ** (length - 1)), to = Math.min(high, 10 ** length - 1);
    parts.push(digits(String(from), String(to)));
  }
  return parts.join(" | ");
}

/** Digit strings from `a` to `b`, of the same length. */
function digits(a: string, b: string): string {
  if (a === "") return '""';
  if (/^0*$/.test(a) && /^9*$/.test(b)) return `[0-9]${a.length === 1 ? "" : `{${a.length}}`}`;
  const [x, y] = [Number(a[0]), Number(b[0])], restA = a.slice(1), restB = b.slice(1);
  const then = (digit: string, rest: string): string => (rest === '""' ? digit : `${digit} (${rest})`);
  if (x === y) return then(`"${x}"`, digits(restA, restB));
  if (restA === "") return `[${x}-${y}]`;
  const lowest = /^0*$/.test(restA), highest = /^9*$/.test(restB), any = digits("0".repeat(restA.length), "9".repeat(restA.length));
  const from = lowest ? x : x + 1, to = highest ? y : y - 1, parts: string[] = [];
  if (!lowest) parts.push(then(`"${x}"`, digits(restA, "9".repeat(restA.length))));
  if (from <= to) parts.push(then(from === to ? `"${from}"` : `[${from}-${to}]`, any));
  if (!highest) parts.push(then(`"${y}"`, digits("0".repeat(restB.length), restB)));
  return parts.join(" | ");
}
