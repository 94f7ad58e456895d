// Attention over paged KV, for the type that this text is compiled for: one threadgroup serves up to HEADS query heads of a KV head, for one row and
// one split of its pages; softmax streamed over pages in f32. The number of splits depends on the row's own length, or is 1 in steps of many rows.
#include "kernel.h"
#include "../common/dequant.h"
#include "kv.h"

#define THREADS 128
#define SIMDGROUPS 4
#define MOST_SPLITS 32

// Value i of token `token` of a plane.
inline float kv_value(device const uint8_t *plane, constant PoolLayer &pool, int32_t token, int32_t i) {
#if BAO_DTYPE == 0
  return ((device const float *)plane)[token * pool.head_dim + i];
#elif BAO_DTYPE == 1
  return float(((device const half *)plane)[token * pool.head_dim + i]);
#else
  return ((device const float *)(plane + pool.scales_bytes))[token * (pool.head_dim / 32) + i / 32] * float(((device const int8_t *)plane)[token * pool.head_dim + i]);
#endif
}

// The positions and pages that a row sees, and how many splits share them.
struct Span { int32_t first, last, first_page, pages, splits; };
inline Span span_of(int32_t position, int32_t window, int32_t splits) {
  Span s;
  s.last = position;
  s.first = window > 0 && position >= window ? position - window + 1 : 0;
  s.first_page = s.first / PAGE_TOKENS;
  s.pages = s.last / PAGE_TOKENS - s.first_page + 1;
  s.splits = min(s.pages, splits);
  return s;
}

// parts: [row][head][split][2 + head_dim]: maximum, sum, weighted values; dst, when there is one split. memory: q, then weighted values, [HEADS][head_dim] each.
template <int HEADS>
kernel void attention(device float *dst [[buffer(0)]], device float *parts [[buffer(1)]], device const float *q_ [[buffer(2)]], device const uint8_t *layer [[buffer(3)]],
                      constant AttentionParams &p [[buffer(24)]], STEP_PARAMS, threadgroup float *memory [[threadgroup(0)]], uint3 at [[threadgroup_position_in_grid]],
                      uint tid_ [[thread_index_in_threadgroup]], uint lane_ [[thread_index_in_simdgroup]], uint warp_ [[simdgroup_index_in_threadgroup]]) {
  threadgroup float scores[HEADS * PAGE_TOKENS], maximum[HEADS], total[HEADS], correction[HEADS];
  const Step step = STEP;
  const int32_t tid = int32_t(tid_), lane = int32_t(lane_), warp = int32_t(warp_), r = int32_t(at.y), split = int32_t(at.z);
  if (r >= step.count(p.dst)) return;
  const int32_t row = step.step_row(p.dst.rows_of, r), sequence = step.sequence(row);
  const Span span = span_of(step.position(row), p.window, p.splits);
  if (split >= span.splits) return;
  const int32_t n = p.dst.d2, per_kv = p.dst.d1 / p.pool.kv_heads, groups = (per_kv + HEADS - 1) / HEADS;
  const int32_t kv_head = int32_t(at.x) / groups, first_head = kv_head * per_kv + int32_t(at.x) % groups * HEADS, heads = min(HEADS, (kv_head + 1) * per_kv - first_head);
  const int32_t page_begin = span.first_page + span.pages * split / span.splits, page_end = span.first_page + span.pages * (split + 1) / span.splits;
  threadgroup float *q = memory, *sum = memory + HEADS * n;
  for (int32_t i = tid; i < HEADS * n; i += THREADS) {
    q[i] = i < heads * n ? row_of(q_, p.q, r)[first_head * n + i] : 0.0f;
    sum[i] = 0.0f;
  }
  if (tid < HEADS) {
    maximum[tid] = -FLT_MAX;
    total[tid] = 0.0f;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int32_t index = page_begin; index < page_end; index++) {
    const int32_t page = step.page(p.pool.table, sequence, index * PAGE_TOKENS);
    if (page < 0) continue;  // the checks at the step's start leave none
    device const uint8_t *k = layer + plane_at(p.pool, page, kv_head, false), *v = layer + plane_at(p.pool, page, kv_head, true);
    const int32_t begin = max(span.first - index * PAGE_TOKENS, 0), end = min(span.last - index * PAGE_TOKENS + 1, PAGE_TOKENS);
    for (int32_t j = begin + warp; j < end; j += SIMDGROUPS) {
      float dot[HEADS] = {};
      for (int32_t i = lane; i < n; i += 32) {
        const float key = kv_value(k, p.pool, j, i);
        for (int h = 0; h < HEADS; h++) dot[h] += q[h * n + i] * key;
      }
      for (int h = 0; h < HEADS; h++) {
        const float score = simd_sum(dot[h]) * p.scale;
        if (lane == 0) scores[h * PAGE_TOKENS + j] = score;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int32_t h = warp; h < HEADS; h += SIMDGROUPS) {
      // NaN is no maximum, but makes the sum one.
      const float before = maximum[h];
      float high = before, added = 0.0f;
      for (int32_t j = begin + lane; j < end; j += 32) high = scores[h * PAGE_TOKENS + j] > high ? scores[h * PAGE_TOKENS + j] : high;
      high = simd_max(high);
      for (int32_t j = begin + lane; j < end; j += 32) {
        const float weight = precise::exp(scores[h * PAGE_TOKENS + j] - high);
        scores[h * PAGE_TOKENS + j] = weight;
        added += weight;
      }
      added = simd_sum(added);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (lane == 0) {
        const float keep = precise::exp(before - high);
        maximum[h] = high;
        correction[h] = keep;
        total[h] = total[h] * keep + added;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int32_t i = tid; i < n; i += THREADS) {
      float weighted[HEADS];
      for (int h = 0; h < HEADS; h++) weighted[h] = sum[h * n + i] * correction[h];
      for (int32_t j = begin; j < end; j++) {
        const float value = kv_value(v, p.pool, j, i);
        for (int h = 0; h < HEADS; h++) weighted[h] += scores[h * PAGE_TOKENS + j] * value;
      }
      for (int h = 0; h < HEADS; h++) sum[h * n + i] = weighted[h];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (int32_t h = 0; h < heads; h++) {
    if (p.splits == 1) {
      device float *out = row_of(dst, p.dst, r) + (first_head + h) * n;
      for (int32_t i = tid; i < n; i += THREADS) out[i] = total[h] == 0.0f ? 0.0f : sum[h * n + i] / total[h];
    } else {
      device float *out = parts + ((int64_t(r) * p.dst.d1 + first_head + h) * p.splits + split) * (n + 2);
      for (int32_t i = tid; i < n; i += THREADS) out[2 + i] = sum[h * n + i];
      if (tid == 0) {
        out[0] = maximum[h];
        out[1] = total[h];
      }
    }
  }
}

typedef decltype(attention<1>) attention_kernel;
template [[host_name("attention_1")]] kernel attention_kernel attention<1>;
template [[host_name("attention_2")]] kernel attention_kernel attention<2>;
template [[host_name("attention_4")]] kernel attention_kernel attention<4>;
template [[host_name("attention_8")]] kernel attention_kernel attention<8>;

// A threadgroup a (head, row): its splits, in ascending order. Lane s weighs split s.
kernel void attention_combine(device float *dst [[buffer(0)]], device const float *parts [[buffer(1)]], constant AttentionParams &p [[buffer(24)]], STEP_PARAMS,
                              uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]]) {
  threadgroup float weights[MOST_SPLITS], total[1];
  const Step step = STEP;
  const int32_t r = int32_t(at.y), head = int32_t(at.x), n = p.dst.d2;
  if (r >= step.count(p.dst)) return;
  const Span span = span_of(step.position(step.step_row(p.dst.rows_of, r)), p.window, p.splits);
  device const float *part = parts + (int64_t(r) * p.dst.d1 + head) * p.splits * (n + 2);
  if (tid < MOST_SPLITS) {
    const bool mine = int32_t(tid) < span.splits;
    const float high = mine ? part[int32_t(tid) * (n + 2)] : -FLT_MAX, most = simd_max(high), weight = mine ? precise::exp(high - most) : 0.0f;
    weights[tid] = weight;
    const float sum = simd_sum(mine ? part[int32_t(tid) * (n + 2) + 1] * weight : 0.0f);
    if (tid == 0) total[0] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device float *out = row_of(dst, p.dst, r) + head * n;
  for (int32_t i = int32_t(tid); i < n; i += THREADS) {
    float sum = 0.0f;
    for (int32_t s = 0; s < span.splits; s++) sum += part[s * (n + 2) + 2 + i] * weights[s];
    out[i] = total[0] == 0.0f ? 0.0f : sum / total[0];
  }
}
