// How JSON values are written: as JSON, or as the arguments of a Gemma 4 call. Grammar pieces only; which values is the schema's business.
import { anyBut, literal, type Rules } from "./ebnf.ts";

export interface Dialect {
  /** Gap after an opening bracket or a comma, and before a closing bracket. */
  gap(rules: Rules): string;
  /** Gap after a colon. */
  readonly afterColon: string;
  /** A string of any content. */
  string(rules: Rules): string;
  readonly name: "json" | "gemma";
  /** A string whose content is `body`, an expression over its characters. */
  quoted(body: string): string;
  /** Grammar of one character of a pattern, as it is written inside a string. */
  character(c: string): string;
  /** Characters that stand for themselves inside strings, as the negation of these. */
  readonly barred: string;
  /** A property's name. */
  key(name: string): string;
  /** Any property name. */
  anyKey(rules: Rules): string;
  /** A value as it stands. */
  value(value: unknown, rules: Rules): string;
  /** The order in which properties are written. */
  order(names: readonly string[]): readonly string[];
}

const HEX = "[0-9a-fA-F]";

/** JSON, compact or indented as programs print it: whitespace only where they put it, and a bounded run of it. */
export const json: Dialect = {
  name: "json",
  gap: (rules) => rules.shared("gap", () => `"" | " " | "\\n" " "{0,32} | "\\n" "\\t"{0,8}`),
  afterColon: '" "?',
  string: (rules) => {
    const escape = rules.shared("escape", () => `["\\\\/bfnrt] | "u" ${HEX} ${HEX} ${HEX} ${HEX}`);
    const rest = rules.shared("string_rest", () => `"\\"" | ${anyBut('"\\')} string_rest | "\\\\" ${escape} string_rest`);
    return rules.shared("string", () => `"\\"" ${rest}`);
  },
  quoted: (body) => `"\\"" ${body} "\\""`,
  character: (c) => literal(JSON.stringify(c).slice(1, -1)),
  barred: '"\\',
  key: (name) => literal(JSON.stringify(name)),
  anyKey: (rules) => json.string(rules),
  value: (value, rules) => {
    if (typeof value !== "object" || value === null) return literal(JSON.stringify(value));
    const list = Array.isArray(value), gap = json.gap(rules);
    const items = list ? value.map((v) => json.value(v, rules)) : Object.entries(value).map(([key, v]) => `${json.key(key)} ":" ${json.afterColon} ${json.value(v, rules)}`);
    if (items.length === 0) return list ? '"[]"' : '"{}"';
    return `"${list ? "[" : "{"}" ${gap} ${items.join(` "," ${gap} `)} ${gap} "${list ? "]" : "}"}"`;
  },
  order: (names) => names,
};

/** Gemma 4's call arguments: bare keys in alphabetical order, strings between quote markers, no whitespace. `quote`: grammar of that marker. */
export function gemmaArguments(quote: string): Dialect {
  const text = (value: unknown): string => {
    if (typeof value === "string") return `${quote} ${literal(value)} ${quote}`;
    if (Array.isArray(value)) return ['"["', ...joined(value.map(text)), '"]"'].join(" ");
    if (typeof value !== "object" || value === null) return literal(JSON.stringify(value));
    const entries = Object.entries(value).sort(([a], [b]) => compare(a, b));
    return ['"{"', ...joined(entries.map(([key, member]) => `${literal(`${key}:`)} ${text(member)}`)), '"}"'].join(" ");
  };
  return {
    name: "gemma",
    gap: () => '""',
    afterColon: '""',
    // The beginning of a spelled quote would end the string for whoever reads it.
    string: (rules) => {
      const rest = rules.shared("string_rest", () => `${quote} | [\\n\\t] string_rest | ${anyBut("<")} string_rest | "<" string_lt`);
      rules.shared("string_lt", () => `${quote} | "<" string_lt | [\\n\\t] string_rest | ${anyBut("<|")} string_rest | "|" string_bar`);
      rules.shared("string_bar", () => `${quote} | "<" string_lt | [\\n\\t] string_rest | ${anyBut('<"')} string_rest`);
      return rules.shared("string", () => `${quote} ${rest}`);
    },
    quoted: (body) => `${quote} ${body} ${quote}`,
    character: literal,
    barred: "<",
    key: literal,
    anyKey: (rules) => rules.shared("key", () => "[A-Za-z_] [A-Za-z0-9_.]{0,63}"),
    value: text,
    order: (names) => [...names].sort(compare),
  };
}

/** As the templates sort: regardless of case. */
const compare = (a: string, b: string): number => {
  const x = a.toLowerCase(), y = b.toLowerCase();
  return x < y ? -1 : x > y ? 1 : 0;
};
const joined = (items: readonly string[]): string[] => items.flatMap((item, i) => (i === 0 ? [item] : ['","', item]));
