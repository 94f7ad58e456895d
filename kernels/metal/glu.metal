// Gated activations: dst = act(gate) * up, element by element. Packed: every d2 of gate holds gate, then up.
#include "kernel.h"
#include "activate.h"

kernel void glu(device float *dst [[buffer(0)]], device const float *gate_ [[buffer(1)]], device const float *up_ [[buffer(2)]], constant GluParams &p [[buffer(24)]],
                STEP_PARAMS, uint2 at [[thread_position_in_grid]]) {
  const Step step = STEP;
  const int32_t i = int32_t(at.x), r = int32_t(at.y), n = p.dst.d2;
  if (i >= p.dst.d1 * n || r >= step.count(p.dst)) return;
  device const float *gate = row_of(gate_, p.gate, r);
  const bool packed = p.up.d0 == 0;
  const int32_t g = packed ? i / n * 2 * n + i % n : i;
  const float up = packed ? gate[g + n] : row_of(up_, p.up, r)[i];
  row_of(dst, p.dst, r)[i] = activate(gate[g], p.activation) * up;
}
