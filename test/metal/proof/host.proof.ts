// The emulator sees bugs in hosts: each is planted into example.mm, compiled and run; the compiler, a broken rule of the API, a leak or wrong
// numbers must tell. Correct hosts are left alone.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { copyFileSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BUILT } from "./rig.ts";

setDefaultTimeout(120_000);

interface Bug { name: string; changes?: readonly (readonly [from: string, to: string])[]; env?: Record<string, string>; task?: "norms" | "decode" | "freedAtOnce" }

const CONCURRENT = ["[c->commands computeCommandEncoder]", "[c->commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent]"] as const;
const SET_BUFFER = "offset:operands[i].offset atIndex:NSUInteger(i)]";
const DISPATCH = "[c->encoder dispatchThreadgroups:grid threadsPerThreadgroup:group];";
const COMMIT = "[c->commands commit];";
const SPOIL = "static_cast<char*>(first->buffer.contents)[5] ^= 1;";
const KEEP_FIRST = [["struct ex_context {", "extern \"C\" uint64_t emu_dispatches();\nstatic ex_buffer* first;\nstruct ex_context {"], ["[c->encoder setComputePipelineState:pipeline];", "[c->encoder setComputePipelineState:pipeline]; first = operands[0].buffer;"]] as const;
const LIMIT = "if (group.width * group.height * group.depth > pipeline";

const CORRECT: readonly Bug[] = [
  { name: "as it is" },
  { name: "as it is, checked", env: { METAL_EMULATOR_CHECKED: "1" } },
  { name: "a decode loop, checked", task: "decode", env: { METAL_EMULATOR_CHECKED: "1" } },
  { name: "buffers freed before the GPU ran: the command buffer holds them", task: "freedAtOnce", env: { METAL_EMULATOR_DELAY_US: "2000" } },
  { name: "a concurrent encoder with barriers", changes: [CONCURRENT, [DISPATCH, DISPATCH + "[c->encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];"]], task: "decode", env: { METAL_EMULATOR_CHECKED: "1" } },
];

const BUGS: readonly Bug[] = [
  { name: "endEncoding forgotten", changes: [["[c->encoder endEncoding];", ""]] },
  { name: "commit forgotten", changes: [["[c->commands commit];", ""]] },
  { name: "commit twice", changes: [["[c->commands commit];", "[c->commands commit]; [c->commands commit];"]] },
  { name: "dispatch after endEncoding", changes: [["[c->encoder endEncoding];", "[c->encoder endEncoding]; [c->encoder dispatchThreadgroups:MTLSizeMake(1, 1, 1) threadsPerThreadgroup:MTLSizeMake(1, 1, 1)];"]] },
  { name: "wait forgotten", changes: [["[c->last waitUntilCompleted];", ""]], env: { METAL_EMULATOR_DELAY_US: "500" } },
  { name: "second encoder while one is open", changes: [["c->encoder = [c->commands computeCommandEncoder];", "c->encoder = [c->commands computeCommandEncoder]; c->encoder = [c->commands computeCommandEncoder];"]] },
  { name: "pipeline not set", changes: [["[c->encoder setComputePipelineState:pipeline];", ""]] },
  { name: "buffer bound one index too high", changes: [[SET_BUFFER, "offset:operands[i].offset atIndex:NSUInteger(i + 1)]"]] },
  { name: "setBytes of 5000 bytes", changes: [["if (bytes) [c->encoder setBytes:params length:bytes", "static char big[5000]; __builtin_memcpy(big, params, bytes); [c->encoder setBytes:big length:5000"]] },
  { name: "setBytes too short for the struct", changes: [["setBytes:params length:bytes", "setBytes:params length:4"]] },
  { name: "offset outside the buffer", changes: [[SET_BUFFER, "offset:operands[i].offset + 1000000 atIndex:NSUInteger(i)]"]] },
  { name: "offset breaks float alignment", changes: [[SET_BUFFER, "offset:operands[i].offset + 2 atIndex:NSUInteger(i)]"]] },
  { name: "threads above the pipeline's limit", changes: [[LIMIT, "if (false && group.width > pipeline"]], env: { THREADS: "1056" } },
  { name: "a lower limit of the pipeline not asked for", changes: [[LIMIT, "if (false && group.width > pipeline"]], env: { METAL_EMULATOR_MAX_THREADS: "64" } },
  { name: "threadgroup memory not a multiple of 16", env: { GROUP_MEMORY: "20" } },
  { name: "threadgroup memory of 40000 bytes", env: { GROUP_MEMORY: "40000" } },
  { name: "no-copy buffer aligned to 4 KiB", env: { MISALIGNED: "4096" } },
  { name: "no-copy buffer of no whole 16 KiB pages", env: { EXTRA_BYTES: "4096" } },
  { name: "an entry without autorelease pool", changes: [["int ex_begin(ex_context* c) {\n  @autoreleasepool {", "int ex_begin(ex_context* c) {\n  {"]] },
  { name: "unretained references, buffers freed early", changes: [["[c->queue commandBuffer]", "[c->queue commandBufferWithUnretainedReferences]"]], task: "freedAtOnce", env: { METAL_EMULATOR_DELAY_US: "2000" } },
  { name: "a concurrent encoder without barriers", changes: [CONCURRENT], task: "decode", env: { METAL_EMULATOR_CHECKED: "1" } },
  { name: "command buffers kept for ever", changes: [["struct ex_buffer {", "static std::vector<id> kept;\nstruct ex_buffer {"], ["c->encoder = [c->commands", "kept.push_back(c->commands); c->encoder = [c->commands"]] },
  { name: "function constant of the wrong type", changes: [["BOOL value = flags", "int value = flags"], ["type:MTLDataTypeBool", "type:MTLDataTypeInt"]] },
  { name: "misspelt selector", changes: [["threadsPerThreadgroup:group", "threadsPerThreadGroup:group"]] },
  { name: "object of a wrong type", changes: [["id<MTLComputePipelineState> pipeline = c->pipelines.at", "id<MTLBuffer> pipeline = c->pipelines.at"]] },
  { name: "use after release", changes: [["c->last = c->commands;\n    c->commands = nil;", "[c->commands waitUntilCompleted]; __unsafe_unretained id<MTLCommandBuffer> gone = c->commands; c->commands = nil; c->last = nil; @autoreleasepool {} [gone status];"]] },
  { name: "a buffer in no residency set", changes: [["  [c->resident addAllocation:buffer];\n", "  if (buffer.length > 4096) [c->resident addAllocation:buffer];\n"], ["[b->context->resident removeAllocation:b->buffer];", "if (b->buffer.length > 4096) [b->context->resident removeAllocation:b->buffer];"]] },
  { name: "a residency set not committed", changes: [["    [c->resident commit];\n    if (!c->requested)", "    if (!c->requested) [c->resident commit];\n    if (!c->requested)"]] },
  { name: "a freed buffer kept by the residency set", changes: [["    [b->context->resident removeAllocation:b->buffer];\n", ""]] },
  { name: "residency never ended", changes: [["if (c->requested) [c->resident endResidency];", ""]], task: "freedAtOnce" },
  { name: "an operand written after the commit", changes: [...KEEP_FIRST, [COMMIT, `${COMMIT} ${SPOIL}`]], env: { METAL_EMULATOR_CHECKED: "1", METAL_EMULATOR_DELAY_US: "2000" } },
  { name: "an operand written before its command buffer has ended", changes: [...KEEP_FIRST, [COMMIT, `uint64_t before = emu_dispatches(); ${COMMIT} while (emu_dispatches() == before) {} ${SPOIL}`]], env: { METAL_EMULATOR_CHECKED: "1", METAL_EMULATOR_END_US: "200000" } },
  { name: "a grid of zero", changes: [["MTLSizeMake(groups[0], groups[1]", "MTLSizeMake(0, groups[1]"]] },
  { name: "threadgroups given as threads", changes: [["dispatchThreadgroups:grid", "dispatchThreads:grid"]] },
];

const original = readFileSync(join(import.meta.dir, "example.mm"), "utf8");
let folder = "";
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "metal-proof-"));
  copyFileSync(join(BUILT, "libmetal_emulator.so"), join(folder, "libmetal_emulator.so"));
});
afterAll(() => rmSync(folder, { recursive: true }));

// What compiler or run say, "" when all is well. The command is that of make's own libexample.so.
function fault(bug: Bug): string {
  let text = original;
  for (const [from, to] of bug.changes ?? []) {
    expect(text).toContain(from);
    text = text.replace(from, () => to);
  }
  const file = join(folder, "example.mm");
  writeFileSync(file, text);
  const made = Bun.spawnSync(["make", "-s", "metal-example", `EXAMPLE=${file}`, `EXAMPLE_LIBRARY=${join(folder, "libexample.so")}`], { cwd: join(BUILT, "../.."), stdout: "pipe", stderr: "pipe" });
  if (made.exitCode !== 0) return /error: [^\n]*/.exec(made.stderr.toString())?.[0] ?? made.stderr.toString();
  const run = Bun.spawnSync([process.execPath, join(import.meta.dir, "run_host.ts"), bug.task ?? "norms"], { env: { ...process.env, METAL_EXAMPLE: folder, ...bug.env }, stdout: "pipe", stderr: "pipe", timeout: 60_000 });
  if (run.exitCode === 0) return "";
  const out = run.stdout.toString() + run.stderr.toString();
  return /(?:Metal violation|GPU fault|objc|FAIL)[^\n]*/.exec(out)?.[0] ?? /error: [^\n]*/.exec(out)?.[0] ?? `exit ${run.exitCode} ${run.signalCode ?? ""}`;
}

for (const correct of CORRECT) test(`correct: ${correct.name}`, () => expect(fault(correct)).toBe(""));
for (const bug of BUGS) test(bug.name, () => expect(fault(bug)).not.toBe(""));
