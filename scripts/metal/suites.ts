// What can be shown of the Metal library without a Mac: suites in modes of the emulated device, each a process of its own with a time limit.
// A line each, and a total that is clean only when all of them ran to their ends. Builds nothing: `make test-metal` does.
// Usage: bun scripts/metal/suites.ts [--short] [--only REGEX] [--jobs N] [--through COMMAND] [--list]
import { closeSync, mkdirSync, openSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseArgs } from "node:util";

interface Suite {
  readonly name: string;
  readonly file: string;
  /** A pattern of test names; all tests when there is none. */
  readonly tests?: string;
  readonly env?: Readonly<Record<string, string>>;
}
interface Run { readonly mode: string; readonly suite: Suite; readonly seconds: number }
interface Outcome { readonly run: Run; readonly passed: number; readonly failed: readonly string[]; readonly skipped: readonly string[]; readonly trouble: string; readonly wall: number }

const MODES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  plain: {}, checked: { CHECKED: "1" }, "random-1": { RANDOM: "1", SEED: "1" }, "random-2": { RANDOM: "1", SEED: "2" }, "random-3": { RANDOM: "1", SEED: "3" }, layout: { LAYOUT: "1" },
  "threads-256": { MAX_THREADS: "256" }, delay: { DELAY_US: "500" },
};

const part = (file: string, name: string, tests: string): Suite => ({ name: `${file}/${name}`, file: `test/kernels/${file}.test.ts`, tests });
const op = (name: string): Suite => ({ name, file: `test/kernels/${name}.test.ts` });
// Parts are of about one length, so that two at a time end together.
const OPS: readonly Suite[] = [
  part("many", "k", " (Q[234]_K)$"), part("many", "k2", " (Q[56]_K|F16)$"), part("many", "legacy", " (Q4_0|Q4_1|Q5_0)$"), part("many", "legacy2", " (Q5_1|Q8_0|BF16)$"),
  part("many", "other", " (IQ4_NL|IQ4_XS|MXFP4|NVFP4)$"), part("many", "rest", "a group and|NaN and|router:|512 rows"), part("many", "units", "more units"),
  part("attention", "pages", " (f32|f16|q8_0): "), part("attention", "fast", "in fast precision: "), part("attention", "rest", "^(?!.*( (f32|f16|q8_0): |in fast precision: ))"),
  op("determinism"), op("plain"), op("fused"), op("step"), op("matmul"), op("moe"), op("few"), op("sampling"), op("contract"), op("operands"), op("garbage"),
];
const HOST: readonly Suite[] = ["commits", "failures", "memory"].map((name) => ({ name: `host/${name}`, file: `test/metal/host-${name}.test.ts` }));
const GENERATE: Suite = { name: "models/generate", file: "./test/metal/proof/models.proof.ts" };
const reference = (model: string, tests: string): Suite => ({ name: `models/${model}`, file: "test/model/reference.test.ts", tests });
const MODELS: readonly Suite[] = [
  { ...reference("long-8193", "^long .*8193"), env: { METAL_EMULATOR_SECONDS: "3600" } }, reference("long", "^long (?!.*8193)"), ...["dense", "moe", "many-experts", "ple", "wide-heads"].map((model) => reference(model, `^${model} `)),
  { name: "models/stories", file: "test/model/stories.test.ts" }, { name: "models/scheduler", file: "test/engine/scheduler.test.ts" }, GENERATE,
];
const PROOFS: readonly Suite[] = ["emulator", "kernels", "host", "headers", "cross", "probe"].map((name) => ({ name: `proof/${name}`, file: `./test/metal/proof/${name}.proof.ts` }));

/** Everything: ops in all modes; hosts where they could differ; whole models plainly, and a few tokens of them under every check. */
function whole(): Run[] {
  const runs: Run[] = [];
  const add = (mode: string, suites: readonly Suite[], seconds: number): void => { for (const suite of suites) runs.push({ mode, suite, seconds }); };
  add("plain", PROOFS, 900);
  add("plain", MODELS, 7200);
  add("plain", OPS, 900);
  for (const mode of ["checked", "delay"]) add(mode, HOST, 900);
  add("plain", HOST, 900);
  // Words that are no step may name a place of the cache twice: two writers of their own making, which checks must not take.
  const checked = OPS.map((suite) => (suite.name === "step" ? { ...suite, name: "step (but any words)", tests: "^(?!.*any words at all)" } : suite));
  for (const mode of Object.keys(MODES)) if (mode !== "plain") add(mode, mode === "checked" ? checked : OPS, 2700);
  for (const mode of ["checked", "layout", "threads-256", "random-1", "delay"]) add(mode, [{ ...GENERATE, env: { BAO_METAL_TOKENS: "8" } }], 2700);
  return runs;
}

/** For every run of `make test`: every op in plain mode, of the types that models use most; each family of kernels once under every check. */
function short(): Run[] {
  const named = (name: string, tests?: string): Suite => {
    const suite = [...OPS, ...HOST, ...MODELS].find((s) => s.name === name);
    if (!suite) throw new Error(`no suite ${name}`);
    return tests ? { ...suite, name: `${name} (${tests})`, tests } : suite;
  };
  const runs = (mode: string, suites: readonly Suite[]): Run[] => suites.map((suite) => ({ mode, suite, seconds: 200 }));
  return [
    ...runs("plain", [named("plain"), named("matmul", " (F32|F16|BF16|Q8_0|Q4_K|Q6_K) |factors|rows of output|NaN"), named("attention/pages"), named("fused"), named("step"), named("attention/rest"), named("moe"),
      named("sampling"), named("contract"), named("operands"), ...HOST, named("many/k", "many rows (matmul|experts) Q4_K"), { ...GENERATE, tests: "demo model, exact", env: { BAO_METAL_TOKENS: "8" } }, named("models/dense", "^dense .* 40")]),
    ...runs("checked", [named("plain", "rms_norm|rope|softcap|embed"), named("matmul", " Q4_K "), named("attention/pages", "f16: head sizes"), named("sampling", "every combination")]),
    ...runs("random-1", [named("fused"), named("attention/pages", "f16: head sizes")]),
  ];
}

const root = join(import.meta.dir, "../.."), logs = join(root, "build/metal-suites");
const count = (log: string, word: string): number => [...log.matchAll(new RegExp(`^ *(\\d+) ${word}$`, "gm"))].reduce((sum, m) => sum + Number(m[1]), 0);
const names = (log: string, word: string): string[] => [...log.matchAll(new RegExp(`^\\(${word}\\) (.*?)(?: \\[[\\d.]+ms\\])?$`, "gm"))].map((m) => m[1]!);

/** Runs one suite to its end or its limit. */
async function play(run: Run, jobs: number, through: readonly string[]): Promise<Outcome> {
  const { suite, mode, seconds } = run, path = join(logs, `${mode}-${suite.name.replace(/\W+/g, "-")}.log`), log = openSync(path, "w"), began = performance.now();
  const settings = Object.fromEntries(Object.entries(MODES[mode]!).map(([name, value]) => [`METAL_EMULATOR_${name}`, value]));
  const child = Bun.spawn([...through, "timeout", "-k", "10", String(seconds), process.execPath, "test", suite.file, ...(suite.tests ? ["-t", suite.tests] : [])], {
    cwd: root, stdin: "ignore", stdout: log, stderr: log,
    env: { ...process.env, BAO_METAL_EMULATOR: "1", BAO_TEST_DEVICE: "metal", METAL_EMULATOR_BUN: process.execPath, METAL_EMULATOR_SECONDS: "600", ...(jobs > 1 ? { METAL_EMULATOR_THREADS: "1" } : {}), ...settings, ...suite.env },
  });
  const code = await child.exited;
  closeSync(log);
  const text = readFileSync(path, "utf8"), failed = [...new Set(names(text, "fail"))], passed = count(text, "pass"), ended = /^Ran \d+ tests? across/m.test(text);
  const trouble = code === 124 || code === 137 ? `TIMED OUT after ${seconds} s` : !ended ? `ENDED EARLY, exit ${code}` : code !== 0 && failed.length === 0 ? `exit ${code}` : passed + failed.length === 0 ? "NO TEST RAN" : "";
  return { run, passed, failed, skipped: names(text, "skip"), trouble, wall: (performance.now() - began) / 1000 };
}

function line({ run, passed, failed, skipped, trouble, wall }: Outcome): string {
  const what = `${passed} pass${failed.length ? `, ${failed.length} FAIL` : ""}${skipped.length ? `, ${skipped.length} skip` : ""}${trouble ? `, ${trouble}` : ""}`;
  return `${failed.length || trouble ? "FAIL" : "ok  "} ${run.mode.padEnd(11)} ${run.suite.name.padEnd(24)} ${what}, ${wall.toFixed(1)} s${failed.map((name) => `\n       ${name}`).join("")}`;
}

async function main(): Promise<number> {
  const { values: o } = parseArgs({ options: { short: { type: "boolean" }, list: { type: "boolean" }, only: { type: "string" }, jobs: { type: "string" }, through: { type: "string" } } });
  const only = new RegExp(o.only ?? ""), all = (o.short ? short() : whole()), runs = all.filter(({ mode, suite }) => only.test(`${mode} ${suite.name}`)), jobs = Number(o.jobs ?? 2);
  if (o.list || runs.length === 0) {
    console.log(runs.length ? runs.map(({ mode, suite }) => `${mode} ${suite.name}`).join("\n") : `no suite is like ${o.only}`);
    return o.list ? 0 : 2;
  }
  mkdirSync(logs, { recursive: true });
  const outcomes: Outcome[] = [], began = performance.now(), waiting = runs.slice();
  await Promise.all(Array.from({ length: jobs }, async () => {
    for (let run = waiting.shift(); run; run = waiting.shift()) {
      const outcome = await play(run, jobs, o.through?.split(" ") ?? []);
      outcomes.push(outcome);
      console.log(line(outcome));
    }
  }));
  const sum = (of: (outcome: Outcome) => number): number => outcomes.reduce((total, outcome) => total + of(outcome), 0), bad = outcomes.filter((x) => x.failed.length || x.trouble);
  const skipped = [...new Set(outcomes.flatMap((x) => x.skipped))], unplayed = all.length - runs.length, incomplete = outcomes.filter((x) => x.trouble).length;
  console.log(`\nemulated Metal, ${outcomes.length} runs of ${new Set(runs.map((r) => r.mode)).size} modes in ${((performance.now() - began) / 60000).toFixed(1)} min: ${bad.length ? `${bad.length} FAILED (${incomplete} of them did not come to their end)` : "all ended, none failed"}`
    + (unplayed ? `; ${unplayed} runs LEFT OUT by --only` : "") + (skipped.length ? `; SKIPPED by their files:${skipped.map((name) => `\n       ${name}`).join("")}` : ""));
  // As `bun test` ends, for whoever counts.
  console.log(` ${sum((x) => x.passed)} pass\n ${sum((x) => x.failed.length) + incomplete} fail`);
  return bad.length ? 1 : 0;
}

process.exit(await main());
