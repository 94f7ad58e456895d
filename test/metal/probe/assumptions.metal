// Kernels that show what GPU they run on: places in matrices, edges of simdgroup functions, rounding, and a loop that only reads. For assumptions.mm.
#include <metal_stdlib>
using namespace metal;

kernel void matrix_layout(device const float *in [[buffer(0)]], device float *out [[buffer(1)]], uint lane [[thread_index_in_simdgroup]]) {
  simdgroup_float8x8 m;
  simdgroup_load(m, in, 8);
  out[lane * 2] = m.thread_elements()[0];
  out[lane * 2 + 1] = m.thread_elements()[1];
}

// 32 values each: sum, prefix, lane + 4 behind the edge too, votes, lanes of a simdgroup.
kernel void simdgroup_functions(device float *out [[buffer(0)]], uint lane [[thread_index_in_simdgroup]], uint width [[threads_per_simdgroup]]) {
  const float value = float(lane + 1);
  out[lane] = simd_sum(value);
  out[32 + lane] = simd_prefix_inclusive_sum(value);
  out[64 + lane] = simd_shuffle_xor(value, 1);
  out[96 + lane] = simd_shuffle_down(value, 4);
  out[128 + lane] = simd_all(lane < 31) ? 1.0f : simd_any(lane == 31) ? 2.0f : 3.0f;
  out[160 + lane] = float(width);
}

kernel void rounding(device const float *in [[buffer(0)]], device float *out [[buffer(1)]]) {
  out[0] = in[0] * 0.5f;
  out[1] = in[1] * in[1] - in[2];
  out[2] = isnan(in[3]) ? 1.0f : 0.0f;
  out[3] = in[4] > in[5] ? 1.0f : 0.0f;
  out[4] = float(half(in[6]));
  out[5] = rint(in[7]);
  out[6] = exp(in[8]);
  out[7] = in[9] / in[10];
  out[8] = sin(in[11]);
  out[9] = sqrt(in[12]);
}

kernel void read_all(device const float4 *in [[buffer(0)]], device float *out [[buffer(1)]], constant uint &count [[buffer(2)]], uint at [[thread_position_in_grid]], uint threads [[threads_per_grid]]) {
  float4 sum = float4(0.0f);
  for (uint i = at; i < count; i += threads) sum += in[i];
  if (sum.x + sum.y + sum.z + sum.w == -1.0f) out[0] = sum.x;
}
