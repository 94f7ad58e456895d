// Generates src/native/symbols.ts and docs/abi.md from kernels/bao.h and kernels/host.h, the source of truth of the C ABI.
// Run: bun scripts/abi.ts (writes) or bun scripts/abi.ts --check (fails when the checked-in files are stale).
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

type CType = "bao_handle" | "double" | "int32_t" | "float" | "void*" | "const void*" | "const char*" | "void";
interface Parameter { type: CType; name: string }
interface Fn { name: string; returns: CType; parameters: Parameter[]; doc: string; section: string }
interface Header { fns: Fn[]; constants: [name: string, value: string, doc: string][]; sections: string[] }

/** Functions whose int32 is an answer and not a status that must be 0. */
const ANSWERS = new Set([
  "bao_abi_version", "bao_last_status", "bao_device_count", "bao_caps", "bao_supports", "bao_wait", "bao_poll", "bao_weights_ready", "bao_stream_error",
  "bao_stream_ops", "bao_stream_op",
]);
const FFI: Record<CType, string> = {
  bao_handle: "f64", double: "f64", int32_t: "i32", float: "f32", "void*": "ptr", "const void*": "ptr", "const char*": "ptr", void: "void",
};
const root = join(import.meta.dir, "..");

/** Parses enums, comments and BAO_API prototypes of one header, in order. Throws on a prototype that it does not understand. */
export function parseHeader(text: string): Header {
  const fns: Fn[] = [], constants: Header["constants"] = [], sections: string[] = [];
  let doc = "", section = "";
  const token = /\/\*([\s\S]*?)\*\/|enum\s*\{([\s\S]*?)\};|^BAO_API\s+([^;]*);/gm;
  let end = 0;
  for (let m = token.exec(text); m; m = token.exec(text)) {
    // A blank line between a comment and a prototype ends the comment's reach.
    if (/\n\s*\n/.test(text.slice(end, m.index))) doc = "";
    end = token.lastIndex;
    if (m[1] !== undefined) {
      const body = m[1].replace(/^\s*\*? ?/gm, "").trim();
      const banner = /^-{20,}\s*(.+)$/s.exec(body);
      if (banner) { section = banner[1]!.trim(); sections.push(section); doc = ""; } else doc = body;
    } else if (m[2] !== undefined) {
      let next = 0;
      for (const item of m[2].replace(/\/\*[\s\S]*?\*\//g, "").split(",")) {
        const c = /^\s*(BAO_\w+)\s*(?:=\s*(\d+))?\s*$/.exec(item);
        if (!c) { if (item.trim()) throw new Error(`enum item not understood: ${item}`); continue; }
        if (c[2] !== undefined) next = Number(c[2]);
        constants.push([c[1]!, String(next++), doc]);
      }
    } else if (m[3] !== undefined && m[3].includes("(")) {
      const p = /^(bao_handle|double|int32_t|void|const char\*)\s+(bao_\w+)\(([^)]*)\)$/.exec(m[3].trim().replace(/\s+/g, " "));
      if (!p) throw new Error(`prototype not understood: ${m[3]}`);
      const parameters = p[3] === "void" ? [] : p[3]!.split(",").map((a): Parameter => {
        const q = /^(bao_handle|double|int32_t|float|void\*|const void\*|const char\*) (\w+)$/.exec(a.trim());
        if (!q) throw new Error(`parameter not understood: ${a} of ${p[2]}`);
        return { type: q[1] as CType, name: q[2]! };
      });
      fns.push({ name: p[2]!, returns: p[1] as CType, parameters, doc, section });
    }
  }
  return { fns, constants, sections };
}

const camel = (name: string): string => name.replace(/^bao_/, "").replace(/_(\w)/g, (_, c: string) => c.toUpperCase());
const tsType = (t: CType): string => t === "const char*" ? "string" : t === "void*" || t === "const void*" ? "Memory" : t === "bao_handle" ? "Handle" : "number";

function emitInterface(name: string, h: Header): string {
  const body = h.fns.map((f) => {
    const args = f.parameters.map((p) => `${p.name}: ${tsType(p.type)}`).join(", ");
    const doc = f.doc ? `  /** ${f.doc.replace(/\n/g, "\n   * ").replace(/\*\//g, "")} */\n` : "";
    return `${doc}  ${camel(f.name)}(${args}): ${resultType(f)};`;
  });
  return `export interface ${name} {\n${body.join("\n")}\n}\n`;
}
const isStatus = (f: Fn): boolean => f.returns === "int32_t" && !ANSWERS.has(f.name);
const resultType = (f: Fn): string => isStatus(f) || f.returns === "void" ? "void" : f.returns === "const char*" ? "string" : f.returns === "bao_handle" ? "Handle" : "number";

// One wrapper source per function: a call site of its own keeps the JIT's inline caches monomorphic (25 against 140 ns a call).
function emitBind(fnName: string, iface: string, h: Header): string {
  const body = h.fns.map((f) => {
    const args = f.parameters.map((p) => `${p.name}: ${tsType(p.type)}`).join(", ");
    const pass = f.parameters.map((p) => p.type === "const char*" ? `cString(${p.name})` : p.type.endsWith("void*") ? `${p.name}` : p.name).join(", ");
    const call = `s.${f.name}(${pass})`;
    const lines = f.returns === "void" ? `${call};`
      : f.returns === "const char*" ? `return String(${call} ?? "");`
      : f.returns === "bao_handle" ? `const h = ${call}; if (h === 0) fail("${f.name}", -1); return h;`
      : isStatus(f) ? `const rc = ${call}; if (rc !== 0) fail("${f.name}", rc);`
      : `return ${call};`;
    return `    ${camel(f.name)}(${args}): ${resultType(f)} { ${lines} },`;
  });
  return `export function ${fnName}(s: Native<typeof ${iface === "Kernels" ? "kernelSymbols" : "hostSymbols"}>, fail: Fail): ${iface} {\n  return {\n${body.join("\n")}\n  };\n}\n`;
}

function emitSymbols(constName: string, h: Header): string {
  const body = h.fns.map((f) =>
    `  ${f.name}: { args: [${f.parameters.map((p) => `"${FFI[p.type]}"`).join(", ")}], returns: "${f.returns === "const char*" ? "cstring" : FFI[f.returns]}" },`);
  return `export const ${constName} = {\n${body.join("\n")}\n} as const;\n`;
}

/** The text of src/native/symbols.ts. */
export function generateSymbols(bao: Header, host: Header): string {
  const constants = [...bao.constants, ...host.constants].map(([n, v]) => `  ${n.replace(/^BAO_/, "")}: ${v},`).join("\n");
  return `// Generated from kernels/bao.h and kernels/host.h by scripts/abi.ts. Do not edit: change the header and run \`bun scripts/abi.ts\`.

/** Handle of a native object: index + generation * 2^20, 0 = absent. */
export type Handle = number;
/** An address, or typed memory that stays alive during the call. */
export type Memory = number | NodeJS.TypedArray;
/** Throws the typed error for a failed call; status -1 = a constructor gave no handle. */
export type Fail = (fn: string, status: number) => never;
// Both sides are generated from one prototype, so the types of the raw symbols would add nothing.
type Native<T> = { [K in keyof T]: (...args: any[]) => any };
function cString(text: string): Uint8Array {
  return new TextEncoder().encode(text + "\\0");
}

/** Every constant of the headers, without the prefix. */
export const BAO = {
${constants}
} as const;

${emitSymbols("kernelSymbols", bao)}
${emitSymbols("hostSymbols", host)}
/** What every device library does; see docs/abi.md. Failed calls throw. */
${emitInterface("Kernels", bao)}
/** What only the CPU library does. */
${emitInterface("Host", host)}
${emitBind("bindKernels", "Kernels", bao)}
${emitBind("bindHost", "Host", host)}`;
}

/** The text of docs/abi.md. */
export function generateDocs(bao: Header, host: Header, baoText: string): string {
  const intro = /\/\*\n([\s\S]*?)\*\//.exec(baoText)![1]!.replace(/^ \* ?/gm, "").trim();
  const group = (h: Header): string => h.sections.length === 0
    ? h.fns.map(entry).join("\n")
    : h.sections.map((s) => `## ${s.split("\n")[0]}\n\n${s.split("\n").slice(1).join("\n")}\n\n${h.fns.filter((f) => f.section === s).map(entry).join("\n")}`).join("\n");
  const entry = (f: Fn): string =>
    `### ${f.name}\n\n\`\`\`c\n${f.returns} ${f.name}(${f.parameters.map((p) => `${p.type} ${p.name}`).join(", ") || "void"})\n\`\`\`\n\n${f.doc}\n`;
  return `<!-- Generated from kernels/bao.h and kernels/host.h by scripts/abi.ts. -->\n# The C ABI\n\n\`\`\`text\n${intro}\n\`\`\`\n\n${group(bao)}\n# What only the CPU library exports (host.h)\n\n${group(host)}`.replace(/\n{3,}/g, "\n\n").trimEnd() + "\n";
}

/** Everything that is generated, as path and text. */
export function generate(): [path: string, text: string][] {
  const baoText = readFileSync(join(root, "kernels/bao.h"), "utf8");
  const bao = parseHeader(baoText), host = parseHeader(readFileSync(join(root, "kernels/host.h"), "utf8"));
  return [["src/native/symbols.ts", generateSymbols(bao, host)], ["docs/abi.md", generateDocs(bao, host, baoText)]];
}

if (import.meta.main) {
  let stale = false;
  for (const [path, text] of generate()) {
    const full = join(root, path);
    let old = "";
    try { old = readFileSync(full, "utf8"); } catch { /* first run */ }
    if (old === text) continue;
    if (process.argv.includes("--check")) { console.error(`${path} is stale: run bun scripts/abi.ts`); stale = true; } else writeFileSync(full, text);
  }
  process.exit(stale ? 1 : 0);
}
