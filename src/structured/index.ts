// Structured answers: what an answer must look like, as a token mask. Exports only.
export { compileConstraint, type AnswerMask, type ConstraintSpec } from "./constraint.ts";
export type { ResponseFormat, ToolChoice } from "./spec.ts";
