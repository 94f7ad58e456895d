// Experts: the k best of a softmax, (row, slot) pairs grouped by expert, the weighted sum over slots. Their products are in matmul.metal.
#include "kernel.h"

// A simdgroup a row. Picks by logits, whose order is that of the probabilities without their rounding; NaN is last, ties go to the lower id.
kernel void topk_softmax(device int32_t *ids_ [[buffer(0)]], device float *weights_ [[buffer(1)]], device const float *logits_ [[buffer(2)]], constant TopkParams &p [[buffer(24)]],
                         STEP_PARAMS, uint2 at [[threadgroup_position_in_grid]], uint lane_ [[thread_index_in_simdgroup]]) {
  const Step step = STEP;
  const int32_t r = int32_t(at.y), lane = int32_t(lane_), experts = p.logits.d1 * p.logits.d2, k = p.ids.d2;
  if (r >= step.count(p.ids)) return;
  device const float *logits = row_of(logits_, p.logits, r);
  uint32_t taken = 0;  // bit i: expert lane + 32 i
  int32_t mine = 0, first = 0;
  for (int32_t s = 0; s < k; s++) {
    uint32_t key = 0;
    int32_t id = 0x7FFFFFFF;
    for (int32_t i = 0; lane + 32 * i < experts; i++) {
      const uint32_t candidate = order_of(logits[lane + 32 * i]);
      if ((taken >> i & 1u) == 0 && (id == 0x7FFFFFFF || candidate > key)) {
        key = candidate;
        id = lane + 32 * i;
      }
    }
    const uint32_t best = simd_max(key);
    const int32_t chosen = simd_min(key == best ? id : 0x7FFFFFFF);
    if ((chosen & 31) == lane) taken |= 1u << (chosen >> 5);
    if (s == lane) mine = chosen;
    if (s == 0) first = chosen;
  }
  const float most = logits[first], exponential = lane < k ? precise::exp(logits[mine] - most) : 0.0f;
  float total = exponential;
  if (!p.renormalise) {
    total = 0.0f;
    for (int32_t i = lane; i < experts; i += 32) total += precise::exp(logits[i] - most);
  }
  total = simd_sum(total);
  if (lane >= k) return;
  row_of(ids_, p.ids, r)[lane] = mine;
  row_of(weights_, p.weights, r)[lane] = exponential / total;
}

kernel void slot_sum(device float *dst [[buffer(0)]], device const float *x_ [[buffer(1)]], device const float *weights_ [[buffer(2)]], constant SlotSumParams &p [[buffer(24)]],
                     STEP_PARAMS, uint2 at [[thread_position_in_grid]]) {
  const Step step = STEP;
  const int32_t i = int32_t(at.x), r = int32_t(at.y), n = p.x.d2;
  if (i >= n || r >= step.count(p.dst)) return;
  device const float *x = row_of(x_, p.x, r), *weights = row_of(weights_, p.weights, r);
  float sum = 0.0f;
  for (int32_t s = 0; s < p.x.d1; s++) sum += weights[s] * x[s * n + i];
  row_of(dst, p.dst, r)[i] = sum;
}

// ---- pairs by expert: a simdgroup an expert, and one for the ids that are none. First the counts, then each finds its place and lists its pairs in order,
// in tiles of up to PRODUCT_TILE. words: [0] tiles; (expert, first, count) of each; the pairs; the counts.

#define GROUP_PARAMS                                                                                                                                   \
  device int32_t *words [[buffer(0)]], device const int32_t *ids [[buffer(1)]], constant GroupParams &p [[buffer(24)]], STEP_PARAMS,                 \
      uint2 at [[threadgroup_position_in_grid]], uint lane_ [[thread_index_in_simdgroup]]

inline bool in_group(device const int32_t *ids, constant GroupParams &p, int32_t pair, int32_t group) {
  const int32_t id = row_of(ids, p.ids, pair / p.ids.d2)[pair % p.ids.d2];
  return (id >= 0 && id < p.experts ? id : p.experts) == group;
}

kernel void group_count(GROUP_PARAMS) {
  const Step step = STEP;
  const int32_t group = int32_t(at.x), pairs = step.count(p.ids) * p.ids.d2;
  int32_t n = 0;
  for (int32_t i = int32_t(lane_); i < pairs; i += 32) n += in_group(ids, p, i, group) ? 1 : 0;
  n = simd_sum(n);
  if (lane_ == 0) words[p.counts_at + group] = n;
}

kernel void group_place(GROUP_PARAMS) {
  const Step step = STEP;
  const int32_t group = int32_t(at.x), lane = int32_t(lane_), pairs = step.count(p.ids) * p.ids.d2;
  int32_t start = 0, tile = 0;
  for (int32_t g = lane; g < group; g += 32) {
    const int32_t n = words[p.counts_at + g];
    start += n;
    tile += (n + PRODUCT_TILE - 1) / PRODUCT_TILE;
  }
  start = simd_sum(start);
  tile = simd_sum(tile);
  const int32_t count = words[p.counts_at + group], tiles = (count + PRODUCT_TILE - 1) / PRODUCT_TILE;
  if (group == p.experts && lane == 0) words[0] = tile + tiles;
  for (int32_t t = lane; t < tiles; t += 32) {
    device int32_t *out = words + GROUP_TILES + 3 * (tile + t);
    out[0] = group;
    out[1] = start + t * PRODUCT_TILE;
    out[2] = min(int32_t(PRODUCT_TILE), count - t * PRODUCT_TILE);
  }
  for (int32_t i0 = 0; i0 < pairs; i0 += 32) {
    const bool here = i0 + lane < pairs && in_group(ids, p, i0 + lane, group);
    const int32_t place = simd_prefix_exclusive_sum(here ? 1 : 0);
    if (here) words[p.order_at + start + place] = i0 + lane;
    start += simd_sum(here ? 1 : 0);
  }
}
