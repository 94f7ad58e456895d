// Embedding lookup: the row of each token id, dequantised and scaled.
#include "kernel.h"
#include "formats.h"

kernel void embed(device float *dst [[buffer(0)]], device const uint8_t *w [[buffer(1)]], constant EmbedParams &p [[buffer(24)]], STEP_PARAMS, uint2 at [[thread_position_in_grid]]) {
  const Step step = STEP;
  const int32_t i = int32_t(at.x), r = int32_t(at.y);
  if (i >= p.w.columns || r >= step.count(p.dst)) return;
  const int32_t id = step.id(step.step_row(p.dst.rows_of, r));
  const bool known = id >= 0 && id < p.w.rows;
  row_of(dst, p.dst, r)[i] = known ? element(row_of(w, p.w, 0, id), i) * p.scale : 0.0f;
}
