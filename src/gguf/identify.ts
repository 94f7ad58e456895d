// Says what a file is that does not start with the GGUF magic, so that the message names the mistake and not only the bytes.
// Looks at the first bytes only and decides nothing else.

interface Foreign {
  readonly what: string;
  readonly hint: string;
}

/** Bytes worth having before `identify` is asked. */
export const IDENTIFY_BYTES = 512;

const CONVERT = "Convert the model to GGUF first (bao convert), or fetch a .gguf file of it.";
const DOWNLOAD = "The download gave something other than the file: use the link to the raw file, and sign in where the model asks for it.";

/** What `head`, the start of a file without the GGUF magic, looks like. */
export function identify(head: Uint8Array): Foreign {
  const text = Buffer.from(head.buffer, head.byteOffset, head.length).toString("latin1");
  const start = text
    .replace(/^\xef\xbb\xbf/, "")
    .trimStart()
    .toLowerCase();
  const magic = text.slice(0, 4);
  if (start.startsWith("<")) return { what: "a web page or XML document saved as a model", hint: DOWNLOAD };
  if (text.startsWith("version https://git-lfs")) {
    return {
      what: "a Git LFS pointer, not the file it stands for",
      hint: "Run `git lfs pull` in the repository that it came from, or download the file itself.",
    };
  }
  if (OLD_MAGICS.has(magic)) {
    return {
      what: `a file of the format before GGUF (magic ${JSON.stringify(magic)})`,
      hint: "Convert the original model again: files of 2023 in GGML format have no metadata to convert from.",
    };
  }
  if (magic === "FUGG") return { what: "a GGUF magic with its bytes reversed (endianness)", hint: "Write the file with little-endian numbers." };
  if (magic === "PK\x03\x04") return { what: "a ZIP archive (PyTorch checkpoints are such)", hint: CONVERT };
  if (text.startsWith("\x1f\x8b") || magic === "\x28\xb5\x2f\xfd" || text.startsWith("\xfd7zXZ")) {
    return { what: "a compressed file", hint: "Decompress it first." };
  }
  if (text.charCodeAt(8) === 0x7b && text.slice(4, 8) === "\0\0\0\0") return { what: "a safetensors file", hint: CONVERT };
  if (start.startsWith("{") || start.startsWith("[")) return { what: "JSON text", hint: DOWNLOAD };
  if (head.length >= 4 && head.every((byte) => byte === 0)) {
    return { what: "zeros, as of a download that reserved its space and never wrote", hint: "Fetch the file again." };
  }
  const hex = Array.from(head.subarray(0, 4), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  return { what: `a file that starts with the bytes ${hex}`, hint: "This is not a GGUF file, or its beginning was lost: fetch it again." };
}

// As their letters read and as little-endian writers stored them.
const OLD_MAGICS = new Set(["ggml", "lmgg", "ggmf", "fmgg", "ggjt", "tjgg", "ggla", "algg", "ggsn", "nsgg"]);
