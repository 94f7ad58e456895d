// Activation buffers of one row set (all rows of a step, or its output rows): named, made once, reused by every layer.
import type { Device, DeviceBuffer, RowsOf, View } from "../native/objects.ts";

/** Owns the buffers of one row set. Views of the same name share one buffer, so a name must have one live value at a time. */
export class Activations implements Disposable {
  readonly #buffers = new Map<string, DeviceBuffer>();
  readonly #outgrown: DeviceBuffer[] = [];
  readonly #views = new Map<string, View>();
  constructor(private readonly device: Device, readonly rowsOf: RowsOf, readonly rows: number) {}

  /** Makes sure that buffer `name` holds [rows, columns] values. Views made before it grew keep the former memory. */
  reserve(name: string, columns: number, hostVisible = false): void {
    const bytes = Math.max(1, this.rows * columns) * 4, old = this.#buffers.get(name);
    if (old && old.bytes >= bytes) return;
    if (old) this.#outgrown.push(old);
    this.#buffers.set(name, this.device.buffer(bytes, hostVisible));
  }
  /** A packed view [rows, d1, d2] at the start of buffer `name`; made once a shape. */
  view(name: string, d1: number, d2: number, dtype: "f32" | "i32" = "f32"): View {
    const key = `${name}/${d1}/${d2}`;
    let v = this.#views.get(key);
    if (!v) {
      this.reserve(name, d1 * d2);
      v = this.#buffers.get(name)!.view(this.rowsOf, this.rows, d1, d2, { dtype });
      this.#views.set(key, v);
    }
    return v;
  }
  /** Columns [first, first + d2) of a packed [rows, columns] buffer. */
  columns(name: string, columns: number, first: number, d2: number): View {
    const key = `${name}[${first}:${d2}]/${columns}`;
    let v = this.#views.get(key);
    if (!v) {
      this.reserve(name, columns);
      v = this.#buffers.get(name)!.view(this.rowsOf, this.rows, 1, d2, { offsetBytes: first * 4, rowStrideBytes: columns * 4 });
      this.#views.set(key, v);
    }
    return v;
  }
  buffer(name: string): DeviceBuffer { return this.#buffers.get(name)!; }
  get bytes(): number { return [...this.#buffers.values()].reduce((n, b) => n + b.bytes, 0); }

  dispose(): void {
    for (const v of this.#views.values()) v.dispose();
    for (const b of [...this.#buffers.values(), ...this.#outgrown]) b.dispose();
    this.#views.clear();
    this.#buffers.clear();
  }
  [Symbol.dispose](): void { this.dispose(); }
}

/** Bytes that the activations of `rows` rows take for widths in floats (for estimates). */
export function activationBytes(rows: number, widths: readonly number[]): number {
  return widths.reduce((n, w) => n + rows * w * 4, 0);
}
