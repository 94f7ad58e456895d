// KV append, plain and fused with head norms and rotation; page copies.
#include "kernel.h"
#include "../common/dequant.h"
#include "kv.h"
#include "rope.h"

// A threadgroup a (head of K, then of V; row).
kernel void kv_append(device uint8_t *layer [[buffer(0)]], device const float *k [[buffer(1)]], device const float *v [[buffer(2)]], constant AppendParams &p [[buffer(24)]], STEP_PARAMS,
                      uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], uint threads [[dispatch_threads_per_threadgroup]]) {
  const Step step = STEP;
  const int32_t r = int32_t(at.y), heads = p.pool.kv_heads, head = int32_t(at.x) % heads;
  const bool is_v = int32_t(at.x) >= heads;
  if (r >= step.count(p.k)) return;
  const int32_t row = step.step_row(p.k.rows_of, r), position = step.position(row), page = step.page(p.pool.table, step.sequence(row), position);
  if (page < 0) return;
  device const float *x = (is_v ? row_of(v, p.v, r) : row_of(k, p.k, r)) + head * p.k.d2;
  store_head(p.pool, layer + plane_at(p.pool, page, head, is_v), position % PAGE_TOKENS, x, int32_t(tid), int32_t(threads));
}

// A threadgroup a (query head, or behind them KV head; row). memory: the head, then what becomes of it.
kernel void head_norm_rope_append(device float *q_ [[buffer(0)]], device const float *k_ [[buffer(1)]], device const float *v_ [[buffer(2)]], device const float *table_ [[buffer(3)]],
                                  device const float *wq [[buffer(4)]], device const float *wk [[buffer(5)]], device uint8_t *layer [[buffer(6)]],
                                  constant HeadParams &p [[buffer(24)]], STEP_PARAMS, threadgroup float *memory [[threadgroup(0)]],
                                  uint2 at [[threadgroup_position_in_grid]], uint tid_ [[thread_index_in_threadgroup]], uint threads_ [[dispatch_threads_per_threadgroup]],
                                  uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]], uint warps [[simdgroups_per_threadgroup]]) {
  threadgroup float shared[32];
  const Step step = STEP;
  const int32_t r = int32_t(at.y), n = p.q.d2, pairs = p.table.d2, tid = int32_t(tid_), threads = int32_t(threads_);
  if (r >= step.count(p.q)) return;
  const bool query = int32_t(at.x) < p.q.d1, weighted = (query ? p.has_wq : p.has_wk) != 0;
  const int32_t head = query ? int32_t(at.x) : int32_t(at.x) - p.q.d1;
  device const float *source = query ? (device const float *)row_of(q_, p.q, r) + head * n : row_of(k_, p.k, r) + head * n;
  device const float *w = query ? wq : wk;
  threadgroup float *x = memory, *y = memory + n;
  for (int32_t i = tid; i < n; i += threads) x[i] = source[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int32_t page = -1, slot = 0;
  if (!query) {
    const int32_t row = step.step_row(p.q.rows_of, r), position = step.position(row);
    page = step.page(p.pool.table, step.sequence(row), position);
    slot = position % PAGE_TOKENS;
    for (int32_t i = tid; i < n; i += threads) y[i] = p.v.d0 != 0 ? row_of(v_, p.v, r)[head * n + i] : x[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (p.norm_v) {
      float squares = 0.0f;
      for (int32_t i = tid; i < n; i += threads) squares += y[i] * y[i];
      const float factor = 1.0f / sqrt(group_sum(squares, shared, lane, warp, warps) / float(n) + p.eps);
      for (int32_t i = tid; i < n; i += threads) y[i] = y[i] * factor;
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (page >= 0) store_head(p.pool, layer + plane_at(p.pool, page, head, true), slot, y, tid, threads);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (weighted) {
    float squares = 0.0f;
    for (int32_t i = tid; i < n; i += threads) squares += x[i] * x[i];
    const float factor = 1.0f / sqrt(group_sum(squares, shared, lane, warp, warps) / float(n) + p.eps);
    for (int32_t i = tid; i < n; i += threads) x[i] = x[i] * factor * w[i];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (int32_t i = tid; i < pairs; i += threads) {
    const Pair pair = rotated_pair(x, row_of(table_, p.table, r), i, pairs, p.mode);
    y[pair.first] = pair.a;
    y[pair.second] = pair.b;
  }
  for (int32_t i = 2 * pairs + tid; i < n; i += threads) y[i] = x[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (query) {
    device float *dst = row_of(q_, p.q, r) + head * n;
    for (int32_t i = tid; i < n; i += threads) dst[i] = y[i];
  } else if (page >= 0) {
    store_head(p.pool, layer + plane_at(p.pool, page, head, false), slot, y, tid, threads);
  }
}

// A threadgroup a plane: the first bytes of its values, and of its scales.
kernel void page_copy(device uint8_t *layer [[buffer(0)]], constant PageCopyParams &p [[buffer(24)]], uint at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
                      uint threads [[dispatch_threads_per_threadgroup]]) {
  device uint8_t *to = layer + plane_at(p.pool, p.destination, int32_t(at), false);
  device const uint8_t *from = layer + plane_at(p.pool, p.source, int32_t(at), false);
  for (int32_t i = int32_t(tid); i < p.bytes / 2; i += int32_t(threads)) ((device uint16_t *)to)[i] = ((device const uint16_t *)from)[i];
  device uint32_t *scales = (device uint32_t *)(to + p.pool.scales_bytes);
  device const uint32_t *from_scales = (device const uint32_t *)(from + p.pool.scales_bytes);
  for (int32_t i = int32_t(tid); i < p.scale_bytes / 4; i += int32_t(threads)) scales[i] = from_scales[i];
}
