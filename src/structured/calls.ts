// Tool calls as grammar: the declared functions with arguments that fit their parameters, as each family of models writes them.
import { type Dialect as Markers, toolSpec, type ToolInput } from "../chat/index.ts";
import { gemmaArguments, json } from "./dialect.ts";
import { literal, type Rules } from "./ebnf.ts";
import { SchemaGrammar } from "./schema.ts";

/** Grammar of one call without its opening marker, ending with the closing one. `marker` gives the grammar of a marker. */
export function callGrammar(rules: Rules, tools: readonly ToolInput[], markers: Markers, marker: (text: string) => string): string {
  const gemma = markers.quote !== undefined, dialect = gemma ? gemmaArguments(marker(markers.quote)) : json;
  const calls = tools.map((input) => {
    const { name, parameters, strict } = toolSpec(input);
    const schema = new SchemaGrammar(rules, dialect, strict !== true);
    // Parameters describe an object, whether or not they say so.
    const args = parameters === undefined ? '"{}"' : schema.add({ type: "object", properties: {}, ...parameters, ...(hasProperties(parameters) ? {} : { additionalProperties: parameters["additionalProperties"] ?? false }) }, `parameters of ${name}`);
    return gemma ? `${literal(`call:${name}`)} ${args}` : `"\\n"? ${literal(`{"name": ${JSON.stringify(name)}, "arguments": `)} ${args} "}" "\\n"?`;
  });
  return `(${calls.join(" | ")}) ${marker(markers.callClose)}`;
}

// A function without parameters is often declared as an object without properties: that means none, not any.
function hasProperties(parameters: Readonly<Record<string, unknown>>): boolean {
  return ["$ref", "anyOf", "oneOf", "allOf"].some((key) => key in parameters) || Object.keys((parameters["properties"] as object | undefined) ?? {}).length > 0;
}
