// Numbers with their units, as every command writes them.

/** 1,234,567 bytes as "1.2 MB"; powers of ten, as file managers and GB/s have them. */
export function bytes(n: number): string {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let i = 0;
  while (n >= 999.5 && i < units.length - 1) { n /= 1000; i++; }
  return `${i === 0 || n >= 100 ? n.toFixed(0) : n.toFixed(1)} ${units[i]}`;
}
export function milliseconds(ms: number): string {
  return ms >= 10_000 ? `${(ms / 1000).toFixed(1)} s` : ms >= 100 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(1)} ms`;
}
/** Tokens a second; 0 when nothing was done. */
export function rate(tokens: number, ms: number): number { return tokens > 0 && ms > 0 ? (tokens * 1000) / ms : 0; }
