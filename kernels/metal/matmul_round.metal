// Activations rounded before several products read them.
#include "kernel.h"
#include "../common/dequant.h"

// To bf16: a thread two columns, a word.
kernel void round_bf16(device uint32_t *dst [[buffer(0)]], device const float *x_ [[buffer(1)]], constant RoundParams &p [[buffer(24)]], STEP_PARAMS, uint2 at [[thread_position_in_grid]]) {
  const Step step = STEP;
  const int32_t i = int32_t(at.x), r = int32_t(at.y), slot = i / p.dst.d2, c = i % p.dst.d2 * 2;
  if (r >= step.count(p.dst)) return;
  device const float *x = row_of(x_, p.x, r) + slot * p.columns;
  const uint32_t low = c < p.columns ? f32_to_bf16(x[c]) : 0, high = c + 1 < p.columns ? f32_to_bf16(x[c + 1]) : 0;
  dst[r * p.dst.stride + i] = low | high << 16;
}

// To int8: the values d * q that the numbers stand for, per 32 columns. d = max|x| / 127; a block with a NaN or an infinity is all NaN.

kernel void round_int8(device float *dst [[buffer(0)]], device const float *x [[buffer(1)]], constant RoundParams &p [[buffer(24)]], STEP_PARAMS, uint2 at [[thread_position_in_grid]]) {
  const Step step = STEP;
  const int32_t i = int32_t(at.x), r = int32_t(at.y);  // whole simdgroups: columns of quantised weights are a multiple of 32
  if (r >= step.count(p.dst)) return;
  const float value = row_of(x, p.x, r)[i], most = simd_max(fabs(value)), d = most / 127.0f;
  float inverse = most > 0.0f ? 127.0f / most : 0.0f;
  if (!isfinite(inverse)) inverse = 0.0f;
  row_of(dst, p.dst, r)[i] = simd_all(isfinite(value)) ? d * rint(value * inverse) : NAN;
}
