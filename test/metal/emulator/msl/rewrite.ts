// MSL to C++ that clang compiles: kernels become functions with a table of their arguments, threadgroup variables places in the executor's memory,
// casts between vectors calls. Everything else stays as it is, line by line. Refuses what Metal refuses and clang would take.
import { fail, lex, Tokens, type Token } from "./lexer.ts";

const VECTOR = /^(float|half|bfloat|char|uchar|short|ushort|int|uint|long|ulong|bool)[234]$/;
const SCALARS = ["float", "half", "bfloat", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong", "bool", "size_t", "int8_t", "uint8_t",
  "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "void"];
const ADDRESS_SPACES = new Set(["device", "constant", "threadgroup", "thread", "threadgroup_imageblock", "ray_data", "object_data"]);
const FORBIDDEN = new Set(["double", "virtual", "throw", "try", "catch", "new", "delete", "dynamic_cast", "typeid", "thread_local", "asm", "goto", "noexcept", "register", "std"]);
const KINDS: Record<string, string> = {
  buffer: "K_BUFFER", threadgroup: "K_THREADGROUP", thread_position_in_grid: "K_POSITION_IN_GRID", thread_position_in_threadgroup: "K_POSITION_IN_GROUP",
  thread_index_in_threadgroup: "K_INDEX_IN_GROUP", threadgroup_position_in_grid: "K_GROUP_POSITION", threads_per_threadgroup: "K_THREADS_PER_GROUP",
  dispatch_threads_per_threadgroup: "K_DISPATCH_THREADS_PER_GROUP", threadgroups_per_grid: "K_GROUPS_PER_GRID", threads_per_grid: "K_THREADS_PER_GRID",
  thread_index_in_simdgroup: "K_LANE", simdgroup_index_in_threadgroup: "K_SIMDGROUP", simdgroups_per_threadgroup: "K_SIMDGROUPS_PER_GROUP",
  threads_per_simdgroup: "K_LANES_PER_SIMDGROUP",
};

class Rewriter {
  readonly #tokens: Token[];
  readonly #t: Tokens;
  readonly #types = new Set(SCALARS);
  // What the table at the end lists.
  readonly #kernels: string[] = [];
  readonly #definitions: string[] = [];
  readonly #constants: string[] = [];
  // Kernels that can be instantiated, with their thread limits; function constants by name, and those that helper functions use.
  readonly #templates = new Map<string, number>();
  readonly #constantIndex = new Map<string, number>();
  readonly #helperConstants = new Set<number>();
  #variables = 0;

  constructor(source: string, file: string) {
    this.#tokens = lex(source, file);
    this.#t = new Tokens(this.#tokens);
  }

  run(checked: boolean): string {
    this.#words();
    this.#casts();
    for (let at = 0; at < this.#t.length;) at = this.#declaration(at);
    return `#include "stdlib/metal_stdlib.h"\n${this.#tokens.map((t) => t.text).join("")}
#if !EMU_CHECK_SPACES
namespace emu {
${this.#definitions.join("\n")}
static const Kernel all_kernels[] = { ${this.#kernels.join(" ")} {nullptr} };
static const FunctionConstant all_constants[] = { ${this.#constants.join(" ")} {-1} };
static const Library this_library = { all_kernels, ${this.#kernels.length}, all_constants, ${this.#constants.length} };
}
${checked ? "extern \"C\" __attribute__((visibility(\"default\"))) const int emu_checked = 1;" : ""}
extern "C" __attribute__((visibility("default"))) const emu::Library* emu_library() { return &emu::this_library; }
#endif
`;
  }

  // Names of types; what Metal forbids; 1.0 is a float.
  #words(): void {
    const t = this.#t;
    for (let i = 0; i < t.length; i++) {
      const token = t.at(i);
      if (token.kind === "number" && /^(\d+\.\d*|\.\d+|\d+(?=[eE]))([eE][-+]?\d+)?$/.test(token.text)) token.text += "f";
      if (token.kind !== "name") continue;
      if (FORBIDDEN.has(token.text)) fail(token, `'${token.text}' is not allowed in Metal`);
      if (["struct", "class", "typename", "using", "enum"].includes(token.text) && t.isName(i + 1)) this.#types.add(t.at(i + 1).text);
      if (token.text !== "typedef") continue;
      let end = i;
      for (; !t.is(end, ";"); end++) if (t.is(end, "{")) end = t.close(end);
      if (t.isName(end - 1)) this.#types.add(t.at(end - 1).text);
    }
  }

  // (float4)x converts between element types in Metal, and means something else to clang. vec<T, 4>(...) is a constructor.
  #casts(): void {
    const t = this.#t;
    const operand = (i: number): boolean => i < t.length && (t.at(i).kind !== "punctuation" || "(-!~*&".includes(t.at(i).text));
    for (let i = 0; i < t.length; i++) {
      const afterOperand = i >= 2 && ((t.isName(i - 2) && !t.is(i - 2, "return")) || /^[)\]>]$/.test(t.at(i - 2).text));
      if (t.isName(i) && VECTOR.test(t.at(i).text) && t.is(i - 1, "(") && t.is(i + 1, ")") && operand(i + 2) && !afterOperand) {
        t.at(i - 1).text = "::metal::_cast<::";
        t.at(i + 1).text = ">()->*";
      } else if (t.is(i, "vec") && t.is(i + 1, "<")) {
        const end = t.closeAngle(i + 1);
        if (end > 0 && t.is(end + 1, "(")) {
          t.at(i).text = "::metal::_make<vec";
          t.at(end).text = ">>";
        }
      }
    }
  }

  // One declaration at file scope; the place behind it. Namespaces are transparent.
  #declaration(start: number): number {
    const t = this.#t;
    if (t.is(start, "}")) return start + 1;
    if (t.is(start, "namespace")) {
      let i = start;
      while (!t.is(i, "{") && !t.is(i, ";")) i++;
      return i + 1;
    }
    const { end, body } = this.#extent(start), headEnd = body < 0 ? end : body;
    if (end >= t.length) return t.length;
    const attributes = t.attributes(start, headEnd), kernel = this.#kernelWord(start, headEnd);
    const host = attributes.find((a) => a.name === "host_name")?.args.replaceAll("\"", "");
    if (kernel >= 0) {
      if (t.is(kernel, "kernel")) t.at(kernel).text = "";
      if (t.is(start, "template") && !t.is(start + 1, "<")) this.#instantiation(start, end, host);
      else if (body >= 0) this.#kernel(start, kernel, body, end, host, Number(attributes.find((a) => a.name === "max_total_threads_per_threadgroup")?.args ?? 0));
    } else if (body >= 0) {
      this.#function(start, body, end);
    } else {
      this.#constant(start, end, attributes.find((a) => a.name === "function_constant")?.args);
    }
    for (let i = start; i < headEnd; i++) {
      if (!t.isAttribute(i)) continue;
      const close = t.close(i);
      t.clear(i, close + 1);
      i = close;
    }
    return end + 1;
  }

  // Where a declaration ends, and where its function body begins, -1 without one.
  #extent(start: number): { end: number; body: number } {
    const t = this.#t;
    let end = start, assigned = false;
    if (t.is(start, "template") && t.is(start + 1, "<")) end = Math.max(end, t.closeAngle(start + 1) + 1);
    for (; end < t.length && !t.is(end, ";"); end++) {
      if (t.is(end, "=")) assigned = true;
      if (!t.opens(end)) continue;
      const close = t.close(end), head = t.is(end - 1, ")") || (t.is(end - 1, "]") && t.is(end - 2, "]"));
      if (t.is(end, "{") && head && !assigned) return { end: close, body: end };
      end = close;
    }
    return { end, body: -1 };
  }

  #kernelWord(start: number, end: number): number {
    const t = this.#t;
    let i = start, found = -1;
    while (t.is(i, "template") && t.is(i + 1, "<")) i = t.closeAngle(i + 1) + 1;
    for (; i < end && !t.is(i, "("); i++) {
      if (t.isAttribute(i)) {
        if (t.is(i + 2, "kernel")) found = i;
        i = t.close(i);
      } else if (t.is(i, "kernel")) {
        found = i;
      }
    }
    return found;
  }

  #register(host: string, instance: string, name: string, most: number): void {
    const thunk = `Thunk<${instance}, arguments_of_${name}>`;
    this.#kernels.push(`{"${host}", &${thunk}::run, ${thunk}::table.argument, ${thunk}::count, ${most}, constants_of_${name}},`);
  }

  // template [[host_name("x")]] kernel void f<int>(...); or: kernel type f<int>;
  #instantiation(start: number, end: number, host: string | undefined): void {
    const t = this.#t;
    let close = end - 1;
    if (t.is(close, ")")) close = t.open(close, "(", start) - 1;
    if (!t.is(close, ">")) fail(t.at(start), "cannot read explicit kernel instantiation");
    const open = t.open(close, "<", start), name = t.at(open - 1).text, most = this.#templates.get(name);
    if (most === undefined) fail(t.at(start), `unknown kernel template ${name}`);
    if (!host) fail(t.at(start), `instantiation of ${name} has no host_name`);
    this.#register(host, `${name}<${t.text(open + 1, close)}>`, name, most);
  }

  #kernel(start: number, word: number, body: number, end: number, host: string | undefined, most: number): void {
    const t = this.#t;
    let open = t.isAttribute(word) ? t.close(word) + 1 : word + 1;
    for (; !t.is(open, "("); open++) if (t.isAttribute(open)) open = t.close(open);
    const close = t.close(open), name = t.at(open - 1).text;
    if (!t.is(open - 2, "void")) fail(t.at(open), `kernel ${name} must return void`);
    this.#definitions.push(`inline constexpr Parameter arguments_of_${name}[] = {${this.#parameters(name, open, close).join(", ") || "{K_NONE, 0}"}};`);
    this.#pointers(open, close);
    const used = t.words(body, end).flatMap((word) => this.#constantIndex.get(word) ?? []);
    this.#definitions.push(`static const int constants_of_${name}[] = {${[...new Set([...used, ...this.#helperConstants]), -1].join(", ")}};`);
    this.#templates.set(name, most);
    if (!t.is(start, "template")) this.#register(host ?? name, `&${name}`, name, most);
    this.#body(body, end, true);
  }

  #parameters(name: string, open: number, close: number): string[] {
    const t = this.#t, out: string[] = [], seen = new Set<string>();
    for (let from = open + 1, to; from < close; from = to + 1) {
      to = from;
      for (let depth = 0; to < close; to++) {
        if (t.opens(to)) to = t.close(to);
        else if (t.is(to, "<")) depth++;
        else if (t.is(to, ">")) depth--;
        else if (t.is(to, ",") && depth === 0) break;
      }
      const found = t.attributes(from, to).filter((a) => KINDS[a.name]), at = t.at(from), words = t.words(from, to);
      const attribute = found.length === 1 ? found[0]! : fail(at, `kernel ${name}: parameter '${t.text(from, Math.min(to, from + 6))}' needs exactly one known attribute`);
      const key = `${attribute.name}(${attribute.args})`;
      if (seen.has(key)) fail(at, `kernel ${name}: [[${key}]] twice`);
      seen.add(key);
      if (attribute.name === "buffer") {
        if (!words.includes("device") && !words.includes("constant")) fail(at, `kernel ${name}: [[buffer]] parameter must be device or constant`);
        if (!words.includes("*") && !words.includes("&")) fail(at, `kernel ${name}: [[buffer]] parameter must be a pointer or reference`);
        if (Number(attribute.args) > 30) fail(at, "buffer index above 30");
      }
      if (attribute.name === "threadgroup" && words[0] !== "threadgroup") fail(at, `kernel ${name}: [[threadgroup]] parameter must be in the threadgroup address space`);
      out.push(`{${KINDS[attribute.name]!}, ${attribute.args || 0}}`);
    }
    return out;
  }

  #function(start: number, body: number, end: number): void {
    const t = this.#t;
    let close = body - 1;
    while (close > start && !t.is(close, ")")) close--;
    if (t.is(close, ")")) this.#pointers(t.open(close, "(", start), body);
    for (const word of t.words(body, end)) {
      const index = this.#constantIndex.get(word);
      if (index !== undefined) this.#helperConstants.add(index);
    }
    this.#body(body, end, false);
  }

  #constant(start: number, end: number, index: string | undefined): void {
    const t = this.#t;
    if (!t.is(start, "constant")) return;
    if (index === undefined) {
      const derived = t.all.slice(start, end).find((token) => this.#constantIndex.has(token.text));
      if (derived) fail(derived, "constant derived from a function constant is not supported by the emulator");
      return;
    }
    let attribute = start;
    while (!t.isAttribute(attribute)) attribute++;
    const name = t.at(attribute - 1).text, type = t.text(start + 1, attribute - 1);
    this.#constantIndex.set(name, Number(index));
    t.at(start).text = "static";
    this.#constants.push(`{${index}, "${name}", type_code<${type}>(), sizeof(${type}), (void*)&${name}},`);
  }

  // Pointers and references need an address space in Metal: TYPE * name, TYPE & name.
  #pointers(from: number, to: number): void {
    const t = this.#t;
    for (let i = from; i < to; i++) {
      if (!(t.is(i, "*") || t.is(i, "&")) || !t.isName(i + 1)) continue;
      const before = t.at(i - 1).text, type = this.#types.has(before) || VECTOR.test(before) || before === "const" || before === ">";
      if (!type || !/^[=;,)[:(]$/.test(t.all[i + 2]?.text ?? "")) continue;
      if (!this.#hasSpace(i - 1, from - 1)) fail(t.at(i), `pointer or reference '${t.at(i + 1).text}' must have an explicit address space`);
    }
  }

  // Whether the declaration that ends at `i` names an address space, or is none at all.
  #hasSpace(i: number, first: number): boolean {
    const t = this.#t;
    for (let j = i; j >= first && !/^[;{}(,]$/.test(t.at(j).text); j--) {
      if (ADDRESS_SPACES.has(t.at(j).text) || t.is(j, "auto")) return true;
      if (t.is(j, ">")) j = t.open(j, "<", first);
      else if (!t.isName(j)) return true;
    }
    return false;
  }

  // threadgroup T a[N], b; becomes references into the executor's threadgroup memory.
  #body(open: number, end: number, kernel: boolean): void {
    const t = this.#t;
    this.#pointers(open + 1, end);
    for (let i = open + 1; i < end; i++) {
      if (!t.is(i, "threadgroup") || !/^[;{}]$/.test(t.at(i - 1).text)) continue;
      let last = i;
      for (; !t.is(last, ";"); last++) if (t.opens(last)) last = t.close(last);
      let at = i + 1;
      while (t.is(at, "const")) at++;
      at++;
      if (t.is(at, "<")) at = t.closeAngle(at) + 1;
      if (t.is(at, "*") || t.is(at, "&") || t.is(at, "const")) continue;  // a pointer variable
      if (!kernel) fail(t.at(i), "threadgroup variable outside a kernel function");
      const type = t.text(i + 1, at), definitions: string[] = [];
      while (at < last) {
        const name = t.at(at);
        if (name.kind !== "name") fail(name, "cannot read threadgroup declaration");
        let next = at + 1;
        while (t.is(next, "[")) next = t.close(next) + 1;
        if (t.is(next, "=")) fail(name, "a threadgroup variable cannot have an initialiser");
        if (next < last && !t.is(next, ",")) fail(name, "cannot read threadgroup declaration");
        const alias = `threadgroup_type_${this.#variables}_${name.text}`;
        definitions.push(`typedef ${type} ${alias}${t.text(at + 1, next)}; threadgroup ${alias} &${name.text} = emu::threadgroup_variable<${alias}, ${this.#variables++}>()`);
        at = next + 1;
      }
      t.clear(i, last);
      t.at(i).text = definitions.join("; ");
    }
  }
}

/** C++ text for preprocessed MSL. Throws MslError. */
export function rewrite(source: string, file: string, checked: boolean): string {
  return new Rewriter(source, file).run(checked);
}
