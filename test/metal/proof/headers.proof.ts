// What the emulator's Apple headers declare is what Apple's SDK declares: every method, property and enum value, and since which macOS, against
// the npm package @nativescript/types-ios (generated from the SDK's headers). Fetched into build/ when it is not there; skipped without it.
import { expect, test } from "bun:test";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

const PACKAGE = "@nativescript/types-ios@9.1.2", root = join(import.meta.dir, "../../.."), folder = join(root, "build/apple-names"), types = join(folder, "package/lib/ios/objc-x86_64");

function fetched(): string {
  if (existsSync(types)) return "";
  mkdirSync(folder, { recursive: true });
  const packed = Bun.spawnSync(["npm", "pack", PACKAGE, "--silent"], { cwd: folder, stdout: "pipe", stderr: "pipe", timeout: 120_000 });
  if (packed.exitCode !== 0) return `npm pack ${PACKAGE}: ${packed.stderr.toString().trim() || "failed"}`;
  const opened = Bun.spawnSync(["tar", "xzf", packed.stdout.toString().trim()], { cwd: folder, stderr: "pipe" });
  return existsSync(types) ? "" : `tar: ${opened.stderr.toString()}`;
}

/** A member of an SDK class or protocol: the macOS that has it, from the iOS of the same year; 0 for the oldest. */
interface Sdk { readonly members: Map<string, { bases: string[]; since: Map<string, number> }>; readonly enums: Map<string, number> }

const macosOf = (ios: number): number => (ios >= 26 ? ios : ios >= 14 ? ios - 3 : 10);

function readSdk(): Sdk {
  const sdk: Sdk = { members: new Map(), enums: new Map() };
  for (const name of ["Metal", "Foundation", "ObjectiveC", "CoreFoundation"]) {
    const text = readFileSync(join(types, `objc!${name}.d.ts`), "utf8");
    for (const [, type, bases1, bases2, body] of text.matchAll(/(?:interface|declare class) (\w+)(?:<[^{]*?>)?(?: extends ([\w, <>]+?))?(?: implements ([\w, ]+?))? \{([\s\S]*?)\n\}/g)) {
      const known = sdk.members.get(type!) ?? { bases: [], since: new Map<string, number>() };
      known.bases.push(...`${bases1 ?? ""},${bases2 ?? ""}`.replaceAll(/<[^>]*>/g, "").split(",").map((b) => b.trim()).filter(Boolean));
      for (const [, comment, member] of body!.matchAll(/(\/\*\*[\s\S]*?\*\/)?\s*(?:static |readonly )*(\w+)(?=[(?:<])[^\n]*/g)) {
        known.since.set(member!, Math.max(0, macosOf(Number(/@since ([\d.]+)/.exec(comment ?? "")?.[1] ?? 0))));
      }
      sdk.members.set(type!, known);
    }
    // Values lie as MTLDataType { None = 0 }; options under the name without the last word too: MTLResourceOptions { StorageModeShared }.
    for (const [, type, body] of text.matchAll(/enum (\w+) \{([\s\S]*?)\n\}/g)) {
      for (const [, key, value] of body!.matchAll(/^\t(\w+) = (-?\d+)/gm)) for (const prefix of [type!, type!.replace(/Options$/, ""), ""]) sdk.enums.set(prefix + key!.replace(/^Version(?=\d)/, prefix ? "" : "Version"), Number(value));
    }
  }
  return sdk;
}

/** The macOS since which a type has a member; undefined when it has none such. */
function since(sdk: Sdk, type: string, member: string): number | undefined {
  const known = sdk.members.get(type);
  if (!known) return undefined;
  const own = known.since.get(member);
  if (own !== undefined) return own;
  for (const base of known.bases) { const inherited = since(sdk, base, member); if (inherited !== undefined) return inherited; }
  return undefined;
}

interface Node { kind: string; name?: string; isImplicit?: boolean; value?: string; inner?: Node[] }
interface Declared { readonly type: string; readonly names: string[]; readonly marked: boolean }

// dispatchThreads:threadsPerThreadgroup: is dispatchThreadsThreadsPerThreadgroup to NativeScript; a setter is a property there.
const camel = (selector: string): string => selector.split(":").map((word, i) => (i && word ? word[0]!.toUpperCase() + word.slice(1) : word)).join("");
const namesOf = (selector: string): string[] => {
  const name = camel(selector);
  return [name, ...(name.startsWith("set") ? [name[3]!.toLowerCase() + name.slice(4)] : []), ...(name.endsWith("Error") ? [name.slice(0, -5)] : [])];
};

function declared(): { members: Declared[]; enums: Map<string, number> } {
  const header = join(root, "test/metal/emulator/apple/Metal/Metal.h");
  const clang = Bun.spawnSync([process.env["METAL_EMULATOR_CLANG"] || "clang-19", "-x", "objective-c++", "-std=c++17", "-fblocks", "-fobjc-runtime=macosx-11", "-fobjc-arc", "-w", `-I${join(root, "test/metal/emulator/apple")}`, "-Xclang", "-ast-dump=json", "-fsyntax-only", header], { stdout: "pipe", stderr: "pipe" });
  const members: Declared[] = [], enums = new Map<string, number>();
  const value = (node: Node | undefined): number | undefined => (node?.value !== undefined ? Number(node.value) : node?.inner ? value(node.inner[0]) : undefined);
  const attributes = (node: Node): string => (node.inner ?? []).map((x) => x.kind).join(" ");
  const walk = (node: Node, marked: boolean): void => {
    const here = marked || attributes(node).includes("AvailabilityAttr");
    if (node.kind === "ObjCProtocolDecl" || node.kind === "ObjCInterfaceDecl") {
      for (const member of node.inner ?? []) {
        if (member.isImplicit || !["ObjCMethodDecl", "ObjCPropertyDecl"].includes(member.kind)) continue;
        members.push({ type: node.name!, names: member.kind === "ObjCPropertyDecl" ? [member.name!] : namesOf(member.name!), marked: here || attributes(member).includes("AvailabilityAttr") });
      }
    } else if (node.kind === "EnumDecl") {
      let next = 0;
      for (const constant of node.inner ?? []) {
        if (constant.kind !== "EnumConstantDecl") continue;
        const at = value(constant.inner?.find((x) => x.kind !== "AvailabilityAttr")) ?? next;
        enums.set(constant.name!, at);
        next = at + 1;
      }
    } else if (node.kind === "LinkageSpecDecl" || node.kind === "TranslationUnitDecl") for (const child of node.inner ?? []) walk(child, here);
  };
  expect(clang.stderr.toString()).toBe("");
  walk(JSON.parse(clang.stdout.toString()) as Node, false);
  return { members, enums };
}

const missing = fetched();
if (missing) console.warn(`SKIPPED: the emulator's headers were not compared with Apple's names: ${missing}`);

// What the package lacks: a method of macOS alone, what NativeScript calls otherwise or not at all (variadic, a constant without its value), and
// a property that buffers had before the protocol came that is said to hold it.
const NOT_THERE = ["MTLBuffer.didModifyRange", "NSCopying.copy", "NSString.stringWithFormat", "NSUTF8StringEncoding", "MTLAllocation.allocatedSize"];

test.skipIf(missing !== "")("methods, properties and enum values are Apple's, and marked with the macOS that has them", () => {
  const sdk = readSdk(), { members, enums } = declared(), unknown: string[] = [], unmarked: string[] = [];
  for (const { type, names, marked } of members) {
    if (NOT_THERE.includes(`${type}.${names[0]}`)) continue;
    const found = names.map((name) => since(sdk, type, name) ?? (type === "NSObject" ? since(sdk, "NSObjectProtocol", name) : undefined)).find((x) => x !== undefined);
    if (found === undefined) unknown.push(`${type}.${names[0]}`);
    // The library is made for macOS 13.
    else if (found > 13 && !marked) unmarked.push(`${type}.${names[0]} is of macOS ${found}`);
  }
  const wrong = [...enums].filter(([name, value]) => sdk.enums.get(name) !== value).filter(([name]) => !NOT_THERE.includes(name)).map(([name, value]) => `${name} = ${value}, SDK ${sdk.enums.get(name)}`);
  console.log(`${members.length} methods and properties, ${enums.size} enum values compared with ${PACKAGE}`);
  expect({ unknown, unmarked, wrong }).toEqual({ unknown: [], unmarked: [], wrong: [] });
  expect(members.length).toBeGreaterThan(80);
  expect(enums.size).toBeGreaterThan(40);
});

test.skipIf(missing !== "")("a name that Apple does not have, and a value that is another, are found", () => {
  const sdk = readSdk();
  expect(since(sdk, "MTLComputeCommandEncoder", camel("dispatchThreads:threadsPerThreadGroup:"))).toBeUndefined();
  expect(since(sdk, "MTLComputeCommandEncoder", camel("dispatchThreads:threadsPerThreadgroup:"))).toBeDefined();
  expect(since(sdk, "MTLCompileOptions", "mathMode")).toBe(15);
  expect(sdk.enums.get("MTLDataTypeFloat")).toBe(3);
});
