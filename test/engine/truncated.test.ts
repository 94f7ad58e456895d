// A model file that is cut short while it is in use: a typed error, and the process lives. Runs in a child process, which a failure would end.
import { expect, test } from "bun:test";
import { copyFileSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const root = join(import.meta.dir, "../..");

test("truncating the model while it runs is an error, not the end of the process", async () => {
  const folder = mkdtempSync(join(tmpdir(), "bao-truncated-")), path = join(folder, "model.gguf");
  try {
    copyFileSync(join(root, "models/demo.gguf"), path);
    const script = `
      import { truncateSync } from "node:fs";
      import { load } from ${JSON.stringify(join(root, "src/index.ts"))};
      const model = await load(${JSON.stringify(path)}, { warmup: false, device: { threads: 2 } });
      truncateSync(${JSON.stringify(path)}, 4096);
      try { await model.generate("Hello", { maxTokens: 5 }).text(); console.log("no error"); }
      catch (e) { console.log(e.code, e.kind); }
      try { await model.generate("Hello again", { maxTokens: 5 }).text(); console.log("no error"); }
      catch (e) { console.log(e.code, e.kind); }
      await model.dispose();
      await using other = await load(${JSON.stringify(join(root, "models/demo.gguf"))});
      console.log((await other.generate("Hello", { maxTokens: 5, temperature: 0 }).text()).length > 0);`;
    const child = Bun.spawnSync([process.execPath, "-e", script], { cwd: root, stderr: "inherit" });
    expect({ out: child.stdout.toString().trim().split("\n"), code: child.exitCode }).toEqual({ out: ["device_lost resource", "device_lost resource", "true"], code: 0 });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}, 60_000);
