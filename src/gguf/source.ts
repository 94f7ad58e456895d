// Where header bytes come from: plain positioned reads of a file, or bytes in memory.
// Never maps a file and never reads more than it is asked for.

import { closeSync, fstatSync, openSync, readSync, statSync } from "node:fs";
import { fileError } from "./limits.ts";

/** Random access to the bytes of one file. */
export interface ByteSource extends Disposable {
  /** Shown in messages. */
  readonly path: string;
  readonly sizeBytes: number;
  /** Fills the start of `into` from `position`; returns how many bytes there were. */
  read(into: Uint8Array, position: number): number;
}

/** Opens a regular file for reading. Throws ModelFileError `gguf_not_found`, `gguf_not_a_file` or `gguf_unreadable`. */
export function fileSource(path: string): ByteSource {
  let fd: number;
  let sizeBytes: number;
  try {
    // Looked at before it is opened: opening a named pipe would wait for its writer.
    const kind = statSync(path);
    if (!kind.isFile()) {
      const found = kind.isDirectory() ? "a folder" : "not a regular file";
      throw fileError(path, "gguf_not_a_file", `expected a GGUF file, found ${found}`, "Name the .gguf file itself.");
    }
    fd = openSync(path, "r");
    sizeBytes = fstatSync(fd).size;
  } catch (error) {
    throw openError(path, error);
  }
  return {
    path,
    sizeBytes,
    read(into, position) {
      let done = 0;
      try {
        while (done < into.length) {
          const got = readSync(fd, into, done, into.length - done, position + done);
          if (got === 0) break;
          done += got;
        }
      } catch (error) {
        throw fileError(
          path,
          "gguf_unreadable",
          `reading at byte ${position + done} failed: ${(error as Error).message}`,
          "Check the disk and the permissions of the file.",
        );
      }
      return done;
    },
    [Symbol.dispose]() {
      closeSync(fd);
    },
  };
}

/** Bytes already in memory, under a name for messages. */
export function memorySource(bytes: Uint8Array, path = "(memory)"): ByteSource {
  return {
    path,
    sizeBytes: bytes.length,
    read(into, position) {
      const piece = bytes.subarray(position, position + into.length);
      into.set(piece);
      return piece.length;
    },
    [Symbol.dispose]() {},
  };
}

function openError(path: string, error: unknown): unknown {
  const code = (error as NodeJS.ErrnoException).code;
  if (code === "ENOENT" || code === "ENOTDIR") {
    return fileError(path, "gguf_not_found", "there is no such file", "Check the path; a relative one starts at the current folder.");
  }
  if (typeof code === "string" && code.startsWith("E")) {
    return fileError(path, "gguf_unreadable", `cannot be opened (${code})`, "Check the permissions of the file and of its folder.");
  }
  return error;
}
