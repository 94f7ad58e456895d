// Imports point one way. Reads the import graph of src/ and fails on a back edge, naming both files.
import { expect, test } from "bun:test";
import { Glob } from "bun";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";

const transpiler = new Bun.Transpiler({ loader: "ts" });
const src = join(import.meta.dir, "../src");

/** What each folder may import from, besides itself. Files right under src/ stand for themselves. A folder that is missing here is an error. */
const LEAF = ["errors.ts"];
const BELOW_ENGINE = [...LEAF, "env.ts", "native", "gguf", "model", "kv", "sample"];
const ENGINE = [...BELOW_ENGINE, "tokenizer", "chat", "structured", "hub"];
const ALLOWED: Record<string, readonly string[]> = {
  "errors.ts": [], "env.ts": LEAF,
  gguf: LEAF, safetensors: LEAF, tokenizer: LEAF, chat: LEAF,
  structured: [...LEAF, "chat", "tokenizer"],
  native: [...LEAF, "env.ts"],
  kv: BELOW_ENGINE, sample: BELOW_ENGINE, model: BELOW_ENGINE,
  engine: ENGINE,
  convert: [...ENGINE, "engine", "safetensors"],
  hub: [...LEAF, "env.ts", "gguf", "safetensors"],
  "act.ts": [...ENGINE, "engine"],
  "index.ts": [...ENGINE, "engine", "act.ts"],
  server: [...ENGINE, "engine", "index.ts", "hub"], adapters: [...ENGINE, "engine", "index.ts", "server"],
  cli: [...ENGINE, "engine", "index.ts", "convert", "safetensors", "server", "adapters", "hub"],
};

interface Edge { readonly from: string; readonly to: string; readonly typeOnly: boolean }

/** Specifiers that a file imports; what is only imported for its types apart. */
function importsOf(source: string): { specifier: string; typeOnly: boolean }[] {
  const out: { specifier: string; typeOnly: boolean }[] = [];
  const atRunTime = new Set(transpiler.scanImports(source.replace(/^#!.*/, "")).map((i) => i.path));
  for (const m of source.matchAll(/^(?:import\s*(?:[\w$*\s{},]+?\s+from\s*)?|export\s+[\w$*\s{},]+?\s+from\s*|[^/\n]*\bimport\(\s*)["']([^"'\n]+)["']/gm)) out.push({ specifier: m[1]!, typeOnly: !atRunTime.has(m[1]!) });
  for (const m of source.matchAll(/new URL\(\s*["'](\.[^"'\n]+)["'],\s*import\.meta\.url/g)) out.push({ specifier: m[1]!, typeOnly: false });
  // The two ways of reading a file must agree, or the rules see less than there is.
  for (const path of atRunTime) if (!out.some((i) => i.specifier === path)) throw new Error(`the import of ${path} was overlooked`);
  return out;
}

const files = [...new Glob("**/*.ts").scanSync(src)].map((f) => f.replaceAll("\\", "/")).sort();
const edges: Edge[] = [], outside = new Map<string, string[]>();
for (const from of files) {
  for (const { specifier, typeOnly } of importsOf(readFileSync(join(src, from), "utf8"))) {
    if (specifier.startsWith(".")) edges.push({ from, to: relative(src, join(src, dirname(from), specifier)).replaceAll("\\", "/"), typeOnly });
    else outside.set(from, [...(outside.get(from) ?? []), specifier]);
  }
}
const place = (file: string): string => file.split("/")[0]!;
/** Whether the rules allow an edge. */
const allowed = (e: Pick<Edge, "from" | "to">): boolean => place(e.from) === place(e.to) || (ALLOWED[place(e.from)]?.includes(place(e.to)) ?? false);

test("the graph was read", () => {
  expect(files.length).toBeGreaterThan(60);
  expect(edges).toContainEqual({ from: "engine/client.ts", to: "engine/worker.ts", typeOnly: false });
  expect(edges).toContainEqual({ from: "model/estimate.ts", to: "kv/pages.ts", typeOnly: false });
  expect(edges.length).toBeGreaterThan(files.length);
});

test("every import names a file that exists, with its extension", () => {
  // Besides TypeScript: package.json for the version, the embedded model, and the server's page; what compiled programs carry, where it was built.
  expect(edges.filter((e) => !files.includes(e.to) && !e.to.startsWith("../build/") && !((e.to.startsWith("../") || e.to.endsWith(".html")) && existsSync(join(src, e.to)))).map((e) => `${e.from} -> ${e.to}`)).toEqual([]);
});

test("no back edges: cli, server, adapters, convert -> engine -> model, kv, sample, structured, hub -> native; leaves import errors only", () => {
  expect(edges.filter((e) => files.includes(e.to) && !allowed(e)).map((e) => `${e.from} -> ${e.to}`)).toEqual([]);
});

test("the rules themselves catch what they are for", () => {
  for (const [from, to] of [["gguf/reader.ts", "native/library.ts"], ["tokenizer/vocab.ts", "gguf/index.ts"], ["chat/template.ts", "tokenizer/index.ts"], ["model/loader.ts", "engine/runner.ts"], ["kv/pages.ts", "engine/session.ts"], ["native/objects.ts", "model/config.ts"], ["engine/model.ts", "cli/bao.ts"], ["engine/worker.ts", "index.ts"], ["engine/generate.ts", "server/http.ts"], ["model/config.ts", "tokenizer/index.ts"], ["new/thing.ts", "errors.ts"]] as const) {
    expect([from, to, allowed({ from, to })]).toEqual([from, to, false]);
  }
});

test("every folder has a rule", () => {
  expect([...new Set(files.map(place))].filter((p) => !(p in ALLOWED))).toEqual([]);
});

test("only src/native reaches C", () => {
  expect([...outside].filter(([file, specifiers]) => specifiers.some((s) => s === "bun:ffi" || s === "bun:jsc") && place(file) !== "native").map(([file]) => file)).toEqual([]);
});

test("packages from outside stay at the edges: the engine and everything below it need none but parsers of templates and texts, grammars, and the hub's client", () => {
  const packages = [...outside].flatMap(([file, specifiers]) => specifiers.filter((s) => !/^(node:|bun$|bun:)/.test(s)).map((s) => ({ place: place(file), name: s })));
  expect(packages.filter((p) => !["cli", "server", "adapters"].includes(p.place) && !["chat: @huggingface/jinja", "tokenizer: @huggingface/tokenizers", "structured: @mlc-ai/web-xgrammar", "hub: @huggingface/hub"].includes(`${p.place}: ${p.name}`)).map((p) => `${p.place}: ${p.name}`)).toEqual([]);
});

test("no cycles at run time", () => {
  const next = new Map<string, string[]>();
  for (const e of edges) if (!e.typeOnly && files.includes(e.to)) next.set(e.from, [...(next.get(e.from) ?? []), e.to]);
  // The Worker is another program that happens to share files.
  next.set("engine/client.ts", (next.get("engine/client.ts") ?? []).filter((f) => f !== "engine/worker.ts"));
  const state = new Map<string, "open" | "done">(), cycles: string[] = [];
  const visit = (file: string, path: string[]): void => {
    if (state.get(file) === "done") return;
    if (state.get(file) === "open") { cycles.push([...path.slice(path.indexOf(file)), file].join(" -> ")); return; }
    state.set(file, "open");
    for (const n of next.get(file) ?? []) visit(n, [...path, file]);
    state.set(file, "done");
  };
  for (const f of files) visit(f, []);
  expect(cycles).toEqual([]);
});

test("settings come from the environment through env.ts alone", () => {
  const readers = files.filter((f) => f !== "env.ts" && /process\.env\b|\bBun\.env\b/.test(readFileSync(join(src, f), "utf8")));
  expect(readers).toEqual([]);
});
