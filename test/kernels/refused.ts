// What contract tests share: a call that must fail with a typed error, and a rig for the time of one test.
import { expect } from "bun:test";
import { KernelError } from "../../src/errors.ts";
import { Rig, subject } from "./harness.ts";

/** The call fails as INVALID (or `code`), with the argument's number in its status, and a text that names the function. */
export function refused(call: () => unknown, argument?: number, code = "invalid_argument"): void {
  let error: unknown;
  try { call(); } catch (e) { error = e; }
  if (!(error instanceof KernelError)) throw new Error(`expected a KernelError (argument ${argument}), got ${error === undefined ? "no error" : String(error)}: ${call.toString()}`);
  if (error.code !== code) throw new Error(`expected ${code}, got ${error.code}: ${error.message}: ${call.toString()}`);
  expect(error.message).toContain(error.fn);
  expect(error.message.length).toBeGreaterThan(error.fn.length + 5);
  if (argument !== undefined && error.status >= 0 && error.status >> 8 !== argument) throw new Error(`argument ${error.status >> 8} is blamed instead of ${argument}: ${error.message}: ${call.toString()}`);
}

export function using(body: (rig: Rig) => void, step = {}): void {
  const rig = new Rig(subject(), step);
  try { body(rig); } finally { rig.dispose(); }
}
