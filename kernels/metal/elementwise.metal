// Ops that touch each element or row once: add, scale, softcap, copy, gather_rows, pool_rows, argmax.
#include "kernel.h"

// A thread an element of a row: grid (columns, rows).
#define ELEMENT_PARAMS constant ElementParams &p [[buffer(24)]], STEP_PARAMS, uint2 at [[thread_position_in_grid]]
#define ELEMENT                                                          \
  const Step step = STEP;                                                \
  const int32_t i = int32_t(at.x), r = int32_t(at.y);                    \
  if (i >= p.dst.d1 * p.dst.d2 || r >= step.count(p.dst)) return;

kernel void add(device float *dst [[buffer(0)]], device const float *a [[buffer(1)]], device const float *b [[buffer(2)]], ELEMENT_PARAMS) {
  ELEMENT
  row_of(dst, p.dst, r)[i] = row_of(a, p.a, r)[i] + row_of(b, p.b, r)[i];
}

kernel void scale(device float *dst [[buffer(0)]], device const float *a [[buffer(1)]], ELEMENT_PARAMS) {
  ELEMENT
  row_of(dst, p.dst, r)[i] = row_of(a, p.a, r)[i] * p.factor;
}

kernel void softcap(device float *dst [[buffer(0)]], device const float *a [[buffer(1)]], ELEMENT_PARAMS) {
  ELEMENT
  row_of(dst, p.dst, r)[i] = p.factor * precise::tanh(row_of(a, p.a, r)[i] / p.factor);
}

// As integers: a copy must not flush anything.
kernel void copy(device int32_t *dst [[buffer(0)]], device const int32_t *a [[buffer(1)]], ELEMENT_PARAMS) {
  ELEMENT
  row_of(dst, p.dst, r)[i] = row_of(a, p.a, r)[i];
}

kernel void gather_rows(device int32_t *dst [[buffer(0)]], device const int32_t *a [[buffer(1)]], ELEMENT_PARAMS) {
  ELEMENT
  row_of(dst, p.dst, r)[i] = row_of(a, p.a, step.output_row(r))[i];
}

// A thread a (sequence, column): its rows are added in ascending order.
kernel void pool_rows(device float *dst [[buffer(0)]], device const float *a [[buffer(1)]], ELEMENT_PARAMS) {
  const Step step = STEP;
  const int32_t i = int32_t(at.x), sequence = int32_t(at.y);
  if (i >= p.dst.d1 * p.dst.d2 || sequence >= p.dst.d0) return;
  device float *sum = row_of(dst, p.dst, sequence) + i;
  for (int32_t r = 0; r < step.count(p.a); r++) {
    const int32_t row = step.step_row(p.a.rows_of, r);
    if (step.sequence(row) != sequence) continue;
    const float x = row_of(a, p.a, r)[i];
    *sum = step.position(row) == 0 ? x : *sum + x;
  }
}

kernel void argmax(device int32_t *dst [[buffer(0)]], device const float *a [[buffer(1)]], constant ElementParams &p [[buffer(24)]], STEP_PARAMS,
                   uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], uint threads [[dispatch_threads_per_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]], uint warps [[simdgroups_per_threadgroup]]) {
  threadgroup uint32_t keys[32];
  threadgroup int32_t ids[32];
  const Step step = STEP;
  const int32_t r = int32_t(at.y), n = p.a.d1 * p.a.d2;
  if (r >= step.count(p.dst)) return;
  device const float *x = row_of(a, p.a, r);
  Best best{0, 0x7FFFFFFF};  // NaN's key: loses to every number
  for (int32_t i = int32_t(tid); i < n; i += int32_t(threads)) {
    const uint32_t key = order_of(x[i]);
    if (key != 0) best = better(best, Best{key, i});
  }
  for (ushort o = 16; o > 0; o >>= 1) best = better(best, Best{simd_shuffle_xor(best.key, o), simd_shuffle_xor(best.id, o)});
  if (lane == 0) {
    keys[warp] = best.key;
    ids[warp] = best.id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid != 0) return;
  for (uint w = 1; w < warps; w++) best = better(best, Best{keys[w], ids[w]});
  *row_of(dst, p.dst, r) = best.key == 0 ? 0 : best.id;
}
