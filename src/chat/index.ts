// The chat folder's public names, exports only.

export type { TextPiece } from "./holders.ts";
export type { Content, Message, TextPart, ToolCall, ToolInput, ToolSpec } from "./messages.ts";
export { type Dialect, dialectOf, type Part, type PartOptions, PartStream, type TokenTexts } from "./parts.ts";
export { isSchemaObject, type JsonSchema, plainSchema, type SchemaObject, type SchemaResult } from "./schema.ts";
export {
  type ChatTemplate,
  createChatTemplate,
  defaultTemplateSource,
  type RenderedPrompt,
  type RenderOptions,
  type SpecialTexts,
} from "./template.ts";
export { plainTool, toolSpec } from "./tools.ts";
