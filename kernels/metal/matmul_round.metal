// Activations rounded to int8: the values d * q that the numbers stand for, per 32 columns. d = max|x| / 127; a block with a NaN or an infinity is all NaN.
#include "kernel.h"

kernel void round_int8(device float *dst [[buffer(0)]], device const float *x [[buffer(1)]], constant RoundParams &p [[buffer(24)]], STEP_PARAMS, uint2 at [[thread_position_in_grid]]) {
  const Step step = STEP;
  const int32_t i = int32_t(at.x), r = int32_t(at.y);  // whole simdgroups: columns of quantised weights are a multiple of 32
  if (r >= step.count(p.dst)) return;
  const float value = row_of(x, p.x, r)[i], most = simd_max(fabs(value)), d = most / 127.0f;
  float inverse = most > 0.0f ? 127.0f / most : 0.0f;
  if (!isfinite(inverse)) inverse = 0.0f;
  row_of(dst, p.dst, r)[i] = simd_all(isfinite(value)) ? d * rint(value * inverse) : NAN;
}
