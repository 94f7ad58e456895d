// Metal off a Mac: the emulated device answers to BAO_METAL_EMULATOR=1 and --device metal together, and to nothing less.
// That it then works is shown by proof/models.proof.ts, which needs it built.
import { expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { chooseDevice } from "../../src/engine/choose.ts";
import { ResourceError } from "../../src/errors.ts";
import { findLibrary, openLibrary } from "../../src/native/library.ts";
import { bao, root } from "../cli/spawn.ts";

setDefaultTimeout(120_000);

const GENERATE = ["generate", "-p", "Once", "-n", "1", "-t", "0", "--stats"];
const BUILT = existsSync(join(root, "build/metal-emulator/libmetal_kernels.so"));

/** Runs something with the switch as given; tests of the emulated library itself have it set. */
function withSwitch<T>(value: string | undefined, what: () => T): T {
  const before = process.env["BAO_METAL_EMULATOR"];
  if (value === undefined) delete process.env["BAO_METAL_EMULATOR"]; else process.env["BAO_METAL_EMULATOR"] = value;
  try { return what(); } finally { if (before === undefined) delete process.env["BAO_METAL_EMULATOR"]; else process.env["BAO_METAL_EMULATOR"] = before; }
}
function failureOf(what: () => unknown): unknown {
  try { what(); } catch (e) { return e; }
  throw new Error("nothing was thrown");
}

test.skipIf(process.platform === "darwin")("without the switch, metal is refused with a typed error, by the command line and by the library", async () => {
  for (const env of [{}, { BAO_METAL_EMULATOR: "0" }, { BAO_KERNELS: join(root, "build/metal-emulator") }]) {
    const { code, stdout, stderr } = await bao([...GENERATE, "--device", "metal"], { env });
    expect({ code, stdout }).toEqual({ code: 4, stdout: "" });
    expect(stderr).toContain("bao: Metal needs macOS on Apple Silicon\nhint: Use --device cpu or --device auto.");
  }
  withSwitch(undefined, () => {
    expect(findLibrary("metal")).toBeUndefined();
    for (const open of [() => chooseDevice("metal"), () => openLibrary("metal")]) {
      const error = failureOf(open);
      expect(error).toBeInstanceOf(ResourceError);
      expect((error as ResourceError).message).toContain("macOS");
    }
  });
});

test.skipIf(process.platform === "darwin")("auto never takes it, with or without the switch", async () => {
  for (const value of [undefined, "1"]) {
    const choice = withSwitch(value, () => chooseDevice("auto"));
    expect(choice.backend).not.toBe("metal");
    expect(choice.why).toContain("metal needs macOS");
    const { code, stderr } = await bao(GENERATE, { env: value ? { BAO_METAL_EMULATOR: value } : {} });
    expect(code).toBe(0);
    expect(stderr).toContain("metal needs macOS");
  }
  // Only the name, the switch and the built library together lead to it.
  expect(withSwitch("1", () => findLibrary("metal") !== undefined)).toBe(BUILT);
});
