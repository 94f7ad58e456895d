// The emulator sees bugs in kernels: each is planted into the example's text and must be found, by its compiler, by a checked run, by wrong
// numbers or under a random schedule. Without a bug nothing is found.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { source } from "./rig.ts";

setDefaultTimeout(120_000);

const BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);";
const BUGS: readonly (readonly [name: string, from: string, to: string])[] = [
  ["rmsnorm: barrier removed", "if (lane == 0) part[sg] = s;\n  " + BARRIER, "if (lane == 0) part[sg] = s;"],
  ["rmsnorm: barrier mem_none", "part[sg] = s;\n  threadgroup_barrier(mem_flags::mem_threadgroup)", "part[sg] = s;\n  threadgroup_barrier(mem_flags::mem_none)"],
  ["rmsnorm: barrier mem_device", "part[sg] = s;\n  threadgroup_barrier(mem_flags::mem_threadgroup)", "part[sg] = s;\n  threadgroup_barrier(mem_flags::mem_device)"],
  ["rmsnorm: simdgroup_barrier instead", "part[sg] = s;\n  threadgroup_barrier", "part[sg] = s;\n  simdgroup_barrier"],
  ["gemm: first barrier removed", "    }\n    " + BARRIER + "\n    for (short k", "    }\n    for (short k"],
  ["gemm: second barrier removed", "      }\n    }\n    " + BARRIER, "      }\n    }"],
  ["attn: barrier removed", "sl[sg] = l; }\n  " + BARRIER, "sl[sg] = l; }"],
  ["barrier in divergent branch", "part[sg] = s;\n  " + BARRIER, "part[sg] = s;\n  if (lane < 8) " + BARRIER],
  ["early return before barrier", "  float s = 0.0f;\n  for (uint i = tid; i < a.n", "  if (tid >= 100) return;\n  float s = 0.0f;\n  for (uint i = tid; i < a.n"],
  ["simd_sum in divergent branch", "s = simd_sum(s);\n  if (lane == 0) part", "if (lane < 16) s = simd_sum(s);\n  if (lane == 0) part"],
  ["out of bounds read (i <= n)", "i < a.n; i += nt) s += xr", "i <= a.n; i += nt) s += xr"],
  ["out of bounds write", "i < a.n; i += nt) y[", "i <= a.n; i += nt) y["],
  ["rows guard removed", "if (lane == 0 && r0 + r < a.rows)", "if (lane == 0)"],
  ["threadgroup array too small", "threadgroup float part[32]", "threadgroup float part[2]"],
  ["threadgroup memory 40 KB", "threadgroup float part[32]", "threadgroup float part[10240]"],
  ["uninitialised threadgroup read", "lane < nsg ? part[lane]", "lane < 32 ? part[lane]"],
  ["uninit: first lane forgets to write", "if (lane == 0) { sm[sg] = m; sl[sg] = l; }", "if (lane == 0 && sg) { sm[sg] = m; sl[sg] = l; }"],
  ["two threadgroups write one place", "y[row * a.n + i] = xr", "y[i] = xr"],
  ["all lanes write one place", "if (lane == 0 && r0 + r < a.rows) y[r0 + r]", "if (r0 + r < a.rows) y[r0 + r]"],
  ["misaligned vector load", "(device const float4 *)(x + b * QK + (lane % 4) * 8)", "(device const float4 *)(x + b * QK + (lane % 4) * 8 + (b == 1 ? 1 : 0))"],
  ["misaligned uint load from a 34-byte block", "const float4 q0 = float4(q[0], q[1], q[2], q[3])", "const uint qw = *(device const uint *)q; const float4 q0 = float4((float)as_type<char4>(qw).x, q[1], q[2], q[3])"],
  ["write through a const buffer", "const float r = rsqrt(s / a.n + a.eps);", "const float r = rsqrt(s / a.n + a.eps); ((device float *)w)[0] = 1;"],
  ["device pointer where threadgroup is meant", "threadgroup half *sa = sh,", "threadgroup half *sa = A,"],
  ["threadgroup pointer cast dropped", "*(threadgroup half4 *)(sa", "*(device half4 *)(sa"],
  ["pointer without address space", "device const float *xr = x", "const float *xr = x"],
  ["assign to constant", "float s = 0.0f;", "a.n = 3; float s = 0.0f;"],
  ["double", "float s = 0.0f;", "double s = 0.0f;"],
  ["implicit half4 -> float4", "const float4 x0 = xv[0]", "const half4 hh = half4(0); const float4 x0 = hh"],
  ["float4 with 3 components", "float4(q[4], q[5], q[6], q[7])", "float4(q[4], q[5], q[6])"],
  ["buffer attribute missing", "device float *y [[buffer(2)]],\n                    constant NormArgs", "device float *y,\n                    constant NormArgs"],
  ["buffer index twice", "device const float *w [[buffer(1)]], device float *y [[buffer(2)]],\n                    constant NormArgs", "device const float *w [[buffer(2)]], device float *y [[buffer(2)]],\n                    constant NormArgs"],
  ["unknown attribute name", "[[thread_index_in_simdgroup]], uint sg", "[[thread_index_in_simd_group]], uint sg"],
  ["threadgroup variable in a helper", "// 1. RMSNorm", "inline float bad() { threadgroup float q[4]; return q[0]; }\n// 1."],
  ["unknown function", "rsqrt(s / a.n", "rsqrtf(s / a.n"],
  ["mixed-type max", "max(m, s)", "max(m, 0)"],
  ["simdgroup_load with a wrong stride", "simdgroup_load(ma, sa + sg * 8 * 16 + k, 16)", "simdgroup_load(ma, sa + sg * 8 * 16 + k, 32)"],
  ["simdgroup_load not transposed", "ulong2(0, 0), true)", "ulong2(0, 0), false)"],
  ["lanes give simdgroup_load different pointers", "simdgroup_load(ma, sa + sg * 8 * 16 + k, 16)", "simdgroup_load(ma, sa + (tid % 2) + sg * 8 * 16 + k, 16)"],
  ["accumulator not initialised", "for (short i = 0; i < 4; i++) acc[i] = make_filled", "for (short i = 0; i < 3; i++) acc[i] = make_filled"],
  ["uninitialised local accumulator", "  float s = 0.0f;\n  for (uint i = tid", "  float s;\n  for (uint i = tid"],
  ["local array index out of range", "for (int r = 0; r < NR && r0 + r < a.rows; r++) {", "for (int r = 0; r <= NR && r0 + r < a.rows; r++) {"],
  ["float to char overflow", "y[row * a.n + i] = xr[i] * r * w[i];", "y[row * a.n + i] = xr[i] * r * w[i] + (char)(xr[i] * 1000.0f) * 0;"],
  ["shift by 32", "const uint nb = a.cols / QK", "const uint nb = (a.cols << (lane + 32)) * 0 + a.cols / QK"],
  ["helper lane reads inactive lane", "s = simd_sum(lane < nsg", "s = simd_shuffle(s, 40); s = simd_sum(lane < nsg"],
];

const original = source();
let folder = "";
beforeAll(() => { folder = mkdtempSync(join(tmpdir(), "metal-proof-")); });
afterAll(() => rmSync(folder, { recursive: true }));

// What a run of the kernels says, "" when all is well.
function fault(text: string, env: Record<string, string>): string {
  const file = join(folder, "mutant.metal");
  writeFileSync(file, text);
  const p = Bun.spawnSync([process.execPath, join(import.meta.dir, "run_kernels.ts")], { env: { ...process.env, METAL_EXAMPLE_SOURCE: file, ...env }, stdout: "pipe", stderr: "pipe", timeout: 60_000 });
  if (p.exitCode === 0) return "";
  const out = p.stdout.toString() + p.stderr.toString();
  return /(?:error: |GPU fault: |violation: )[^\n]*/.exec(out)?.[0] ?? /FAIL[^\n]*/.exec(out)?.[0] ?? `exit ${p.exitCode} ${p.signalCode ?? ""}`;
}

const RUNS: readonly Record<string, string>[] = [{ METAL_EMULATOR_CHECKED: "1" }, {}, ...[1, 2, 3].map((seed) => ({ METAL_EMULATOR_RANDOM: "1", METAL_EMULATOR_SEED: String(seed) }))];

test("no bug", () => { for (const env of RUNS) expect(fault(original, env)).toBe(""); });

for (const [name, from, to] of BUGS) {
  test(name, () => {
    expect(original).toContain(from);
    const mutant = original.replace(from, () => to);
    expect(RUNS.some((env) => fault(mutant, env) !== "")).toBe(true);
  });
}
