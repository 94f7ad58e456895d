// Rotary position embedding: the table of a step, and the rotation of heads by it.
#include "kernel.h"
#include "rope.h"

// A thread an (angle, row). The angle is rounded to f32 before its cosine and sine are taken.
kernel void rope_table(device float *dst_ [[buffer(0)]], constant float *inverse [[buffer(1)]], constant RopeTableParams &p [[buffer(24)]], STEP_PARAMS,
                       uint2 at [[thread_position_in_grid]]) {
  const Step step = STEP;
  const int32_t r = int32_t(at.y), i = p.first + int32_t(at.x);
  if (r >= step.count(p.dst)) return;
  const float angle = rounded_product(float(step.position(step.step_row(p.dst.rows_of, r))), inverse[at.x]);
  device float *dst = row_of(dst_, p.dst, r);
  dst[i] = precise::cos(angle);
  dst[p.dst.d2 + i] = precise::sin(angle);
}

// A thread a pair of a head, or a value behind the pairs, which is not rotated.
kernel void rope(device float *dst_ [[buffer(0)]], device const float *x_ [[buffer(1)]], device const float *table [[buffer(2)]], constant RopeParams &p [[buffer(24)]], STEP_PARAMS,
                 uint2 at [[thread_position_in_grid]]) {
  const Step step = STEP;
  const int32_t r = int32_t(at.y), pairs = p.table.d2, n = p.x.d2, items = n - pairs, head = int32_t(at.x) / items, i = int32_t(at.x) % items;
  if (r >= step.count(p.dst)) return;
  device const float *x = row_of(x_, p.x, r) + head * n;
  device float *dst = row_of(dst_, p.dst, r) + head * n;
  if (i >= pairs) {
    dst[pairs + i] = x[pairs + i];
    return;
  }
  const Pair pair = rotated_pair(x, row_of(table, p.table, r), i, pairs, p.mode);
  dst[pair.first] = pair.a;
  dst[pair.second] = pair.b;
}
