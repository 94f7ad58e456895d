// JSON Schema to grammar. Every text of the grammar satisfies the schema; what cannot be guaranteed is refused with its place, never dropped.
import { UsageError } from "../errors.ts";
import type { Dialect } from "./dialect.ts";
import { type Rules, unsupported } from "./ebnf.ts";
import { FORMATS } from "./formats.ts";
import { merge } from "./merge.ts";
import { integers, numbers } from "./numbers.ts";
import { patternGrammar } from "./pattern.ts";

export type Schema = Readonly<Record<string, unknown>>;

/** Keywords that restrict values in a way that no grammar here expresses. Unknown words are annotations, as the standard has it. */
const REFUSED = [
  "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains", "patternProperties", "unevaluatedItems", "additionalItems",
  "$dynamicRef", "$recursiveRef", "minProperties", "maxProperties",
];
const TYPES = ["object", "array", "string", "number", "integer", "boolean", "null"];
const MAX_DEPTH = 64;
const MAX_ENUM = 2000;
/** Items that a bounded list may go beyond its minimum. */
const MAX_ITEMS = 256;
/** Wide character positions of patterns: each costs a pass over the vocabulary when the grammar is compiled. */
const MAX_COST = 24;

const isSchema = (value: unknown): value is Schema => typeof value === "object" && value !== null && !Array.isArray(value);

/** Builds the grammar of one schema into `rules`. */
export class SchemaGrammar {
  readonly #named = new Map<unknown, string>();
  /** References that were followed without anything written: coming back to one is a circle. */
  readonly #open = new Set<unknown>();
  #cost = 0;
  #root: Schema | boolean = true;

  /** `relaxed`: what cannot be guaranteed is left to the model, instead of being refused. */
  constructor(private readonly rules: Rules, private readonly dialect: Dialect, private readonly relaxed = false) {}

  /** Grammar of the values of `schema`. Throws UsageError `unsupported_schema`. */
  add(schema: unknown, path = ""): string {
    if (typeof schema !== "boolean" && !isSchema(schema)) throw unsupported(path, `a schema is an object, found ${JSON.stringify(schema) ?? "nothing"}`, "");
    this.#root = schema;
    this.#named.clear();
    return this.#value(schema, path, 0);
  }
  /** Grammar of any object. */
  anyObject(): string {
    const { rules, dialect } = this;
    this.#any();
    const gap = dialect.gap(rules), member = `${dialect.anyKey(rules)} ":" ${dialect.afterColon} any`;
    return rules.shared("any_object", () => `"{" ${gap} ${member} ("," ${gap} ${member})* ${gap} "}" | "{}"`);
  }
  #any(): string {
    const { rules, dialect } = this;
    return rules.shared("any", () => {
      const gap = dialect.gap(rules);
      const list = rules.shared("any_list", () => `"[" ${gap} any ("," ${gap} any)* ${gap} "]" | "[]"`);
      return `${this.anyObject()} | ${list} | ${dialect.string(rules)} | ${rules.rule(numbers({}, { min: false, max: false })!)} | "true" | "false" | "null"`;
    });
  }

  #value(schema: unknown, path: string, depth: number): string { return this.#or(() => this.#exact(schema, path, depth), () => this.#any()); }
  #or(build: () => string, instead: () => string): string {
    try {
      return build();
    } catch (e) {
      if (!this.relaxed || !(e instanceof UsageError)) throw e;
      return instead();
    }
  }
  #exact(schema: unknown, path: string, depth: number): string {
    if (schema === true) return this.#any();
    if (schema === false) throw unsupported(path, "false allows no value");
    if (!isSchema(schema)) throw unsupported(path, `a schema is an object, found ${JSON.stringify(schema)}`, "");
    if (depth > MAX_DEPTH) throw unsupported(path, `it is nested more than ${MAX_DEPTH} deep`, "Use a flatter schema.");
    for (const word of REFUSED) if (schema[word] !== undefined) throw unsupported(path, `${JSON.stringify(word)} cannot be guaranteed`);
    const { $ref, allOf, anyOf, oneOf, ...own } = schema;
    if ($ref !== undefined) return this.#reference($ref, own, { ...(allOf === undefined ? {} : { allOf }), ...(anyOf === undefined ? {} : { anyOf }), ...(oneOf === undefined ? {} : { oneOf }) }, path, depth);
    if (allOf !== undefined) {
      if (!Array.isArray(allOf)) throw unsupported(path, '"allOf" is no list', "");
      const whole = allOf.map((s) => this.#resolved(s, path)).reduce((a, b) => merge(a, b, path), own);
      return this.#value({ ...whole, ...(anyOf === undefined ? {} : { anyOf }), ...(oneOf === undefined ? {} : { oneOf }) }, path, depth + 1);
    }
    const choices = anyOf ?? oneOf;
    if (choices !== undefined) {
      if (anyOf !== undefined && oneOf !== undefined) throw unsupported(path, '"anyOf" beside "oneOf" cannot be guaranteed');
      if (!Array.isArray(choices) || choices.length === 0) throw unsupported(path, '"anyOf" and "oneOf" are lists of schemas', "");
      // Values that two choices of a oneOf allow would break it; that is for the caller's schema to rule out, as unions in practice do.
      return this.#either(choices.map((c: unknown, i) => this.#value(this.#with(own, c, path), `${path}/${anyOf ? "anyOf" : "oneOf"}/${i}`, depth + 1)));
    }
    if (own["nullable"] === true) return this.#either([this.#plain(own, path, depth), '"null"']);
    return this.#plain(own, path, depth);
  }
  #either(parts: readonly string[]): string { return this.rules.rule([...new Set(parts)].join(" | ")); }
  /** A choice together with what stands beside the list of choices. */
  #with(own: Schema, choice: unknown, path: string): unknown {
    return Object.keys(own).some((k) => MEANINGFUL.has(k)) ? merge(own, this.#resolved(choice, path), path) : choice;
  }

  #reference(ref: unknown, own: Schema, combined: Schema, path: string, depth: number): string {
    const target = this.#target(ref, path), all = { ...own, ...combined };
    if (Object.keys(all).some((k) => MEANINGFUL.has(k) || k in combined)) return this.#value({ ...all, allOf: [...((combined["allOf"] as unknown[] | undefined) ?? []), target] }, path, depth + 1);
    const known = this.#named.get(target);
    if (this.#open.has(target)) throw unsupported(path, `${JSON.stringify(ref)} refers to itself without anything in between`, "");
    if (known !== undefined) return known;
    const name = this.rules.reserve();
    this.#named.set(target, name);
    this.#open.add(target);
    try {
      this.rules.define(name, this.#value(target, typeof ref === "string" ? ref : path, depth + 1));
    } finally {
      this.#open.delete(target);
    }
    return name;
  }
  #target(ref: unknown, path: string): unknown {
    if (typeof ref !== "string" || !ref.startsWith("#")) throw unsupported(path, `the reference ${JSON.stringify(ref)} leaves the schema`, "Put what it refers to under $defs.");
    let at: unknown = this.#root;
    for (const step of ref.slice(1).split("/").slice(1)) {
      const key = unescaped(step).replaceAll("~1", "/").replaceAll("~0", "~");
      at = typeof at === "object" && at !== null && Object.hasOwn(at, key) ? (at as Record<string, unknown>)[key] : undefined;
    }
    if (typeof at !== "boolean" && !isSchema(at)) throw unsupported(path, `the reference ${JSON.stringify(ref)} leads nowhere`, "");
    return at;
  }
  /** A schema without a reference at its top. */
  #resolved(schema: unknown, path: string): Schema {
    let at = schema;
    for (let hops = 0; isSchema(at) && at["$ref"] !== undefined; hops++) {
      if (hops > MAX_DEPTH) throw unsupported(path, "a reference refers to itself", "");
      const { $ref, ...own } = at, target = this.#target($ref, path);
      at = Object.keys(own).some((k) => MEANINGFUL.has(k)) && isSchema(target) ? merge(own, target, path) : target;
    }
    if (at === true) return {};
    if (!isSchema(at)) throw unsupported(path, "a choice that allows no value", "");
    return at;
  }

  #plain(schema: Schema, path: string, depth: number): string {
    const { type } = schema;
    if (schema["const"] !== undefined || schema["enum"] !== undefined) return this.#listed(schema, path);
    if (type === undefined) {
      const implied = TYPES.find((t) => Object.keys(schema).some((k) => KEYWORDS[t]?.includes(k)));
      // Keywords of one type say nothing about values of others; a schema that has some means that type.
      return implied === undefined ? this.#any() : this.#typed(implied, schema, path, depth);
    }
    const types = Array.isArray(type) ? type : [type];
    if (types.length === 0 || !types.every((t) => typeof t === "string" && TYPES.includes(t))) throw unsupported(path, `the type ${JSON.stringify(type)} is none of ${TYPES.join(", ")}`, "");
    return types.length === 1 ? this.#typed(types[0] as string, schema, path, depth) : this.#either(types.map((t) => this.#typed(t as string, schema, path, depth)));
  }
  #typed(type: string, schema: Schema, path: string, depth: number): string {
    switch (type) {
      case "object": return this.#or(() => this.#enclosed(() => this.#object(schema, path, depth)), () => this.anyObject());
      case "array": return this.#enclosed(() => this.#array(schema, path, depth));
      case "string": return this.#or(() => this.#string(schema, path), () => this.dialect.string(this.rules));
      case "null": return '"null"';
      case "boolean": return this.rules.rule('"true" | "false"');
      default: return this.#or(() => this.#number(type === "integer", schema, path), () => this.rules.rule((type === "integer" ? integers({}) : numbers({}, { min: false, max: false }))!));
    }
  }
  /** Inside brackets a reference may come back to where it started. */
  #enclosed(build: () => string): string {
    const open = [...this.#open];
    this.#open.clear();
    try {
      return this.rules.rule(build());
    } finally {
      for (const target of open) this.#open.add(target);
    }
  }

  #listed(schema: Schema, path: string): string {
    const values = schema["const"] !== undefined ? [schema["const"]] : schema["enum"];
    if (!Array.isArray(values) || values.length === 0 || values.length > MAX_ENUM) throw unsupported(path, `"enum" is a list of 1 to ${MAX_ENUM} values`, "");
    const types = schema["type"] === undefined ? undefined : [schema["type"]].flat();
    const others = Object.keys(schema).filter((k) => MEANINGFUL.has(k) && !["type", "enum", "const", "nullable"].includes(k) && !(k === "format" || schema[k] === undefined));
    if (others.length > 0) throw unsupported(path, `${JSON.stringify(others[0])} beside a list of values cannot be guaranteed`);
    const fit = values.filter((v) => types === undefined || types.includes(typeOf(v)) || (types.includes("number") && typeof v === "number"));
    if (fit.length === 0) throw unsupported(path, "no listed value has the type", "");
    return this.#either(fit.map((v) => this.dialect.value(v, this.rules)));
  }

  #string(schema: Schema, path: string): string {
    const { pattern, format, minLength, maxLength } = schema, { dialect, rules } = this;
    const min = length(minLength, "minLength", path) ?? 0, max = length(maxLength, "maxLength", path);
    const source = typeof pattern === "string" ? pattern : typeof format === "string" ? FORMATS[format] : undefined;
    if (pattern !== undefined && typeof pattern !== "string") throw unsupported(path, '"pattern" is no text', "");
    if (source === undefined && format !== undefined) throw unsupported(path, `the format ${JSON.stringify(format)} cannot be guaranteed`, `Formats that can: ${Object.keys(FORMATS).join(", ")}.`);
    if (source !== undefined) {
      if (min > 0 || max !== undefined) throw unsupported(path, "a length beside a pattern or format cannot be guaranteed", "Put the length into the pattern.");
      let parsed: { grammar: string; cost: number };
      try {
        parsed = patternGrammar(source, dialect);
      } catch (e) {
        // A format's own expression stands in for one that a library wrote with look-arounds.
        if (typeof format !== "string" || FORMATS[format] === undefined) throw unsupported(path, (e as Error).message, "Use a simpler pattern: no look-arounds, back references or anchors inside.");
        parsed = patternGrammar(FORMATS[format], dialect);
      }
      this.#spend(parsed.cost, path);
      return rules.rule(dialect.quoted(parsed.grammar));
    }
    if (min === 0 && max === undefined) return dialect.string(rules);
    if (max !== undefined && max < min) throw unsupported(path, '"maxLength" is less than "minLength"', "");
    return max === 0 ? dialect.value("", rules) : rules.rule(dialect.quoted(rules.hole({ min, max, dialect: dialect.name })));
  }
  #spend(cost: number, path: string): void {
    this.#cost += cost;
    if (this.#cost > MAX_COST) throw unsupported(path, `patterns of this schema look at more than ${MAX_COST} characters one by one, which takes too long to prepare`, "Use * or + in patterns instead of counts.");
  }

  #number(whole: boolean, schema: Schema, path: string): string {
    if (schema["multipleOf"] !== undefined && !(whole && schema["multipleOf"] === 1)) throw unsupported(path, '"multipleOf" cannot be guaranteed');
    const bound = (key: string): number | undefined => {
      const value = schema[key];
      if (value === undefined) return undefined;
      if (typeof value !== "number" || !Number.isFinite(value)) throw unsupported(path, `${JSON.stringify(key)} is no number`, "");
      return value;
    };
    const min = bound("minimum"), max = bound("maximum"), above = bound("exclusiveMinimum"), below = bound("exclusiveMaximum");
    const openMin = above !== undefined && (min === undefined || above >= min), openMax = below !== undefined && (max === undefined || below <= max);
    let low = openMin ? above : min, high = openMax ? below : max, made: string | undefined;
    if (whole) {
      if (low !== undefined) low = openMin ? Math.floor(low) + 1 : Math.ceil(low);
      if (high !== undefined) high = openMax ? Math.ceil(high) - 1 : Math.floor(high);
      made = integers({ min: low, max: high });
    } else {
      if ([low, high].some((b) => b !== undefined && !Number.isInteger(b) && Math.abs(b) < 1e15)) throw unsupported(path, "bounds that are not whole numbers cannot be guaranteed", "Use whole bounds, or check the value in the result.");
      made = numbers({ min: low, max: high }, { min: openMin, max: openMax });
    }
    if (made === undefined) throw unsupported(path, "no number lies within the bounds", "");
    return this.rules.rule(made);
  }

  #array(schema: Schema, path: string, depth: number): string {
    const { prefixItems, items } = schema, { rules } = this, gap = this.dialect.gap(rules);
    if (schema["uniqueItems"] === true) throw unsupported(path, '"uniqueItems" cannot be guaranteed');
    const prefix = prefixItems === undefined ? [] : prefixItems;
    if (!Array.isArray(prefix) || Array.isArray(items)) throw unsupported(path, 'lists of item schemas stand under "prefixItems"', "");
    const first = prefix.map((s: unknown, i) => this.#value(s, `${path}/prefixItems/${i}`, depth + 1));
    const min = length(schema["minItems"], "minItems", path) ?? 0, limit = length(schema["maxItems"], "maxItems", path);
    const max = Math.min(limit ?? Infinity, items === false ? first.length : Infinity);
    if (min > MAX_ITEMS || max < min) throw unsupported(path, max < min ? "no list has a length within the bounds" : `"minItems" over ${MAX_ITEMS} takes too long to prepare`, "");
    const item = max > first.length ? this.#value(items ?? true, `${path}/items`, depth + 1) : undefined;
    // From the end: what may follow n items.
    const more = item === undefined ? undefined : `("," ${gap} ${item}){${Math.max(0, min - Math.max(1, first.length))},${limit === undefined ? "" : Math.min(max, min + MAX_ITEMS) - Math.max(1, first.length)}}`;
    let tail = first.length === 0 || more === undefined ? '""' : first.length >= min ? `(${more} | "")` : more;
    for (let i = first.length - 1; i >= 1; i--) tail = rules.rule(`"," ${gap} ${first[i]} ${tail}${i >= min ? ' | ""' : ""}`);
    const head = first[0] ?? item, rest = first.length > 0 ? tail : more ?? '""';
    if (head === undefined || max === 0) return '"[]"';
    return `"[" ${gap} ${head} ${rest} ${gap} "]"${min === 0 ? ' | "[]"' : ""}`;
  }

  #object(schema: Schema, path: string, depth: number): string {
    const { rules, dialect } = this, { properties = {}, required = [], additionalProperties, propertyNames, unevaluatedProperties } = schema;
    if (!isSchema(properties) || !Array.isArray(required) || !required.every((n) => typeof n === "string")) throw unsupported(path, '"properties" is no object, or "required" no list of names', "");
    if (propertyNames !== undefined && !(isSchema(propertyNames) && Object.keys(propertyNames).every((k) => !MEANINGFUL.has(k) || (k === "type" && propertyNames[k] === "string")))) throw unsupported(path, '"propertyNames" cannot be guaranteed');
    if (unevaluatedProperties !== undefined && unevaluatedProperties !== false) throw unsupported(path, '"unevaluatedProperties" cannot be guaranteed');
    const closed = additionalProperties === false || (unevaluatedProperties === false && additionalProperties === undefined);
    const others = additionalProperties === undefined || additionalProperties === false ? true : additionalProperties;
    for (const name of required as string[]) if (closed && !Object.hasOwn(properties, name)) throw unsupported(path, `the required property ${JSON.stringify(name)} is not among its properties`, "");
    const names = dialect.order([...new Set([...Object.keys(properties), ...(required as string[])])]);
    const gap = dialect.gap(rules);
    if (names.length === 0) {
      if (closed) return '"{}"';
      if (others === true) return this.anyObject();
      const member = rules.rule(`${dialect.anyKey(rules)} ":" ${dialect.afterColon} ${this.#value(others, `${path}/additionalProperties`, depth + 1)}`);
      return `"{" ${gap} ${member} ("," ${gap} ${member})* ${gap} "}" | "{}"`;
    }
    // Properties beside the declared ones could repeat a declared name with another type: they are not written.
    // From the end: `after` = what may follow a member, `from` = what may follow the opening bracket.
    let after = '""', from: string | undefined;
    for (const name of [...names].reverse()) {
      const must = (required as string[]).includes(name);
      const value = this.#value(Object.hasOwn(properties, name) ? properties[name] : others, `${path}/properties/${name}`, depth + 1);
      const member = rules.rule(`${dialect.key(name)} ":" ${dialect.afterColon} ${value}`);
      const here = rules.rule(`${member} ${after}`);
      from = must ? here : from === undefined ? `${here} | ""` : `${here} | ${rules.rule(from)}`;
      after = rules.rule(must ? `"," ${gap} ${here}` : `"," ${gap} ${here} | ${after}`);
    }
    return `"{" ${gap} (${from}) ${gap} "}"`;
  }
}

const KEYWORDS: Readonly<Record<string, readonly string[]>> = {
  object: ["properties", "required", "additionalProperties", "propertyNames", "unevaluatedProperties"],
  array: ["items", "prefixItems", "minItems", "maxItems", "uniqueItems"],
  string: ["pattern", "format", "minLength", "maxLength"],
  number: ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"],
};
/** Words that restrict values: what is not here is an annotation. */
const MEANINGFUL = new Set(["type", "enum", "const", "nullable", "$ref", "allOf", "anyOf", "oneOf", ...Object.values(KEYWORDS).flat(), ...REFUSED]);

/** A step of a reference; one that is no URI stands for itself. */
function unescaped(step: string): string {
  try {
    return decodeURIComponent(step);
  } catch {
    return step;
  }
}
function length(value: unknown, word: string, path: string): number | undefined {
  if (value === undefined) return undefined;
  if (typeof value !== "number" || !Number.isSafeInteger(value) || value < 0) throw unsupported(path, `${JSON.stringify(word)} is no whole number`, "");
  return value;
}
function typeOf(value: unknown): string {
  if (value === null) return "null";
  if (Array.isArray(value)) return "array";
  return typeof value === "number" ? (Number.isInteger(value) ? "integer" : "number") : typeof value;
}
