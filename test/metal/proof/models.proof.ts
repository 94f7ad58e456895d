// The whole program on the emulated device: `bao generate --device metal` writes what the CPU writes. BAO_METAL_TOKENS: how many tokens (24).
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { bao, DEMO, STORIES } from "../../cli/spawn.ts";

setDefaultTimeout(600_000);

const TOKENS = process.env["BAO_METAL_TOKENS"] || "24";
const modes = Object.fromEntries(Object.entries(process.env).filter(([name]) => name.startsWith("METAL_EMULATOR_"))) as Record<string, string>;

async function generated(device: string, args: readonly string[]): Promise<{ device: string; ids: number[]; text: string }> {
  const { code, stdout, stderr } = await bao(["generate", "-t", "0", "-n", TOKENS, "--json", "--device", device, ...args], { env: { BAO_METAL_EMULATOR: "1", ...modes } });
  expect({ code, stderr: code ? stderr : "" }).toEqual({ code: 0, stderr: "" });
  return JSON.parse(stdout) as { device: string; ids: number[]; text: string };
}

describe("bao generate --device metal", () => {
  const runs: Record<string, string[]> = {
    "the demo model, exact": ["-m", DEMO, "-p", "Tell me a story about a little dog.", "--precision", "exact"],
    "stories, exact": ["-m", STORIES, "--raw", "-p", "Once upon a time", "--precision", "exact"],
  };
  for (const [name, args] of Object.entries(runs)) {
    test(`${name}: the same ids as the CPU`, async () => {
      const [cpu, metal] = [await generated("cpu", args), await generated("metal", args)];
      expect(metal.device).toBe("metal");
      expect(metal.ids).toEqual(cpu.ids);
      expect(metal.text).toBe(cpu.text);
      expect(metal.ids.length).toBeGreaterThan(4);
    });
  }
  test("the demo model, as it runs by default: text, and the same text again", async () => {
    const args = ["-m", DEMO, "-p", "Tell me a story about a little dog."], first = await generated("metal", args);
    expect(first.ids.length).toBeGreaterThan(4);
    expect(first.text.trim().length).toBeGreaterThan(8);
    expect(await generated("metal", args)).toMatchObject({ ids: first.ids, text: first.text });
  });
});
