// Checks of the tensor table as a whole: all data inside the file, no two tensors on the same bytes.
// Any order and any gaps are fine: a reader that maps the file needs no running sum.

import { alignUp, fileError, printable, REDOWNLOAD } from "./limits.ts";
import type { ByteSource } from "./source.ts";
import type { GgmlType } from "./types.ts";

/** A tensor of one file. */
export interface HeaderTensor {
  readonly name: string;
  readonly type: GgmlType;
  /** ne order. */
  readonly shape: readonly number[];
  readonly bytes: number;
  /** In the finished header absolute; while it is parsed relative to the data section. */
  readonly offsetBytes: number;
}

/**
 * `tensors` carry offsets relative to `dataStart`. Throws `gguf_tensor_overlap`, `gguf_tensor_offset` (no complete file could reach there)
 * or `gguf_truncated` (the table makes sense, the file is too short).
 */
export function checkLayout(source: ByteSource, tensors: readonly HeaderTensor[], dataStart: number, alignment: number): void {
  const { path, sizeBytes } = source;
  const inOrder = tensors.filter((tensor) => tensor.bytes > 0).sort((a, b) => a.offsetBytes - b.offsetBytes);
  // Where the data would end if it lay without gaps: tells an impossible offset from a file that was cut.
  let packed = 0;
  let last: HeaderTensor | undefined;
  for (const tensor of inOrder) {
    if (last !== undefined && last.offsetBytes + last.bytes > tensor.offsetBytes) {
      const taken = `${last.offsetBytes}..${last.offsetBytes + last.bytes}`;
      const what = `tensors ${printable(last.name)} (data bytes ${taken}) and ${printable(tensor.name)} (from ${tensor.offsetBytes}) overlap`;
      throw fileError(path, "gguf_tensor_overlap", what, REDOWNLOAD);
    }
    packed += alignUp(tensor.bytes, alignment);
    last = tensor;
  }

  const start = (tensor: HeaderTensor): number => dataStart + tensor.offsetBytes;
  const end = (tensor: HeaderTensor): number => start(tensor) + tensor.bytes;
  const impossible = tensors.find((tensor) => end(tensor) > sizeBytes && tensor.offsetBytes > packed);
  if (impossible !== undefined) {
    const what = `tensor ${printable(impossible.name)} lies at bytes ${start(impossible)}..${end(impossible)}`;
    throw fileError(
      path,
      "gguf_tensor_offset",
      `${what}, outside of the file of ${sizeBytes} bytes; all tensors together need ${packed}`,
      REDOWNLOAD,
    );
  }
  const cut = inOrder.find((tensor) => end(tensor) > sizeBytes);
  if (cut !== undefined && last !== undefined) {
    const what = `the file is cut: tensor ${printable(cut.name)} lies at bytes ${start(cut)}..${end(cut)}`;
    const found = `expected a file of at least ${end(last)} bytes, found ${sizeBytes}: ${end(last) - sizeBytes} are missing`;
    throw fileError(path, "gguf_truncated", `${what}; ${found}`, REDOWNLOAD);
  }
}
