// Attention for rows that decode, over paged KV of the type that this text is compiled for: a threadgroup serves up to HEADS query heads of a KV head,
// for one row and one split of its context; softmax streamed over tiles of 32 keys, in f32. A second launch merges splits, in ascending order.
#include "attention.h"

#define TILE 32
#define MOST_SPLITS 64
#define MERGED 128  // values of a threadgroup that merges
// Keys whose loads are under way at once, of each lane.
#if BAO_DTYPE == 0
#define AHEAD 2
#else
#define AHEAD 4
#endif

// The tiles that a row sees, and how many splits share them.
struct Tiles { int32_t first, count, splits; };
inline Tiles tiles_of(int32_t position, int32_t window, int32_t splits) {
  Tiles t;
  t.first = first_seen(position, window) / TILE;
  t.count = position / TILE - t.first + 1;
  t.splits = min(t.count, splits);
  return t;
}

// Sums of HEADS values over `lanes` neighbouring lanes, scattered over them: a lane gets that of head (lane % lanes) / (lanes / HEADS). Each exchange
// halves what is left to sum, so that 8 heads cost 9 shuffles of 32 lanes instead of 40.
template <int HEADS>
inline float scattered_sum(thread float *v, int32_t lane, int32_t lanes) {
  int32_t offset = lanes / 2;
  UNROLL for (int n = HEADS / 2; n > 0; n /= 2) {
    const bool upper = (lane & offset) != 0;
    UNROLL for (int i = 0; i < n; i++) {
      const float other = simd_shuffle_xor(upper ? v[i] : v[i + n], ushort(offset));
      v[i] = (upper ? v[i + n] : v[i]) + other;
    }
    offset /= 2;
  }
  for (; offset > 0; offset /= 2) v[0] += simd_shuffle_xor(v[0], ushort(offset));
  return v[0];
}

// A lane has N values of the head, in registers: of each q, of the outputs, and of a key. `lanes` lanes have a token's; where 32 are too few, `shares`
// simdgroups have a part each. What is left of 4 simdgroups takes keys in turn. parts: [item][head][split][2 + head_dim]: maximum, sum, weighted values;
// dst, when there is one split. memory: scores, [shares][HEADS][TILE]; then outputs that go from simdgroup to simdgroup, [HEADS][head_dim].
template <int HEADS, int N>
kernel void attention_row(device float *dst_ [[buffer(0)]], device float *parts [[buffer(1)]], device const float *q_ [[buffer(2)]], device const uint8_t *layer [[buffer(3)]],
                          constant RowRange *ranges [[buffer(4)]], constant AttentionParams &p [[buffer(24)]], STEP_PARAMS, threadgroup float *memory [[threadgroup(0)]],
                          uint3 at [[threadgroup_position_in_grid]], uint lane_ [[thread_index_in_simdgroup]], uint warp_ [[simdgroup_index_in_threadgroup]]) {
  constexpr int OWN = (HEADS + SIMDGROUPS - 1) / SIMDGROUPS;  // heads whose softmax is a simdgroup's
  threadgroup float weights[TILE * HEADS], keep[HEADS], maxima[HEADS], totals[HEADS];
  const Step step = STEP;
  const int32_t lane = int32_t(lane_), warp = int32_t(warp_), item = p.first + int32_t(at.y), split = int32_t(at.z);
  constant RowRange &range = ranges[range_of(ranges, p.ranges, item)];
  const int32_t r = range.row + item - range.first;
  if (r >= step.count(p.dst)) return;
  const int32_t row = step.step_row(p.dst.rows_of, r), sequence = step.sequence(row), last = step.position(row), first = first_seen(last, p.window);
  const Tiles tiles = tiles_of(last, p.window, p.splits);
  if (split >= tiles.splits) return;
  const int32_t n = p.dst.d2, per_kv = p.dst.d1 / p.pool.kv_heads, groups = (per_kv + HEADS - 1) / HEADS;
  const int32_t kv_head = int32_t(at.x) / groups, first_head = kv_head * per_kv + int32_t(at.x) % groups * HEADS, heads = min(HEADS, (kv_head + 1) * per_kv - first_head);
  const int32_t tile_end = tiles.first + tiles.count * (split + 1) / tiles.splits;

  const int32_t lanes = p.lanes, at_once = 32 / lanes, share = warp % p.shares, team = warp / p.shares, teams = SIMDGROUPS / p.shares, stride = teams * at_once;
  const int32_t d = (share * lanes + lane % lanes) * N, sub = lane / lanes, mine = team * at_once + sub;  // of `stride` keys, this lane's
  float q[HEADS][N], out[HEADS][N], high[OWN], total[OWN];
  UNROLL for (int h = 0; h < HEADS; h++) {
    device const float *from = row_of(q_, p.q, r) + (first_head + h) * n;
    UNROLL for (int i = 0; i < N; i++) {
      q[h][i] = h < heads && d + i < n ? from[d + i] : 0.0f;
      out[h][i] = 0.0f;
    }
  }
  UNROLL for (int i = 0; i < OWN; i++) {
    high[i] = -FLT_MAX;
    total[i] = 0.0f;
  }

  int32_t tile = tiles.first + tiles.count * split / tiles.splits, page = step.page(p.pool.table, sequence, tile * TILE);
  for (; tile < tile_end; tile++) {
    const int32_t next = tile + 1 < tile_end ? step.page(p.pool.table, sequence, (tile + 1) * TILE) : -1, begin = max(first - tile * TILE, 0), end = min(last - tile * TILE + 1, TILE);
    const int32_t slot = tile * TILE % PAGE_TOKENS, here = page;
    page = next;
    if (here < 0) continue;  // the checks at the step's start leave none
    device const uint8_t *k = layer + plane_at(p.pool, here, kv_head, false), *v = layer + plane_at(p.pool, here, kv_head, true);

    // ---- scores, each simdgroup's part of them
    for (int32_t j0 = begin / stride * stride; j0 < end; j0 += AHEAD * stride) {
      KvPiece<N> key[AHEAD];
      UNROLL for (int u = 0; u < AHEAD; u++) {
        const int32_t j = j0 + u * stride + mine;
        key[u] = kv_piece<N>(k, p.pool, slot + j, d, j >= begin && j < end);
      }
      UNROLL for (int u = 0; u < AHEAD; u++) {
        const int32_t j = j0 + u * stride + mine;
        if (j0 + u * stride < end) {
          float dot[HEADS];
          UNROLL for (int h = 0; h < HEADS; h++) dot[h] = 0.0f;
          UNROLL for (int i = 0; i < N; i++) {
            const float x = value_of(key[u], i);
            UNROLL for (int h = 0; h < HEADS; h++) dot[h] += q[h][i] * x;
          }
          const float score = scattered_sum<HEADS>(dot, lane, lanes);
          const int32_t each = lanes / HEADS, within = lane % lanes;
          if (within % each == 0 && j >= begin && j < end) memory[(share * HEADS + within / each) * TILE + j] = score;
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // ---- a simdgroup a head, a lane a key. NaN is no maximum, but makes the sum one.
    UNROLL for (int i = 0; i < OWN; i++) {
      const int32_t h = i * SIMDGROUPS + warp;
      if (h < HEADS) {
        const bool seen = lane >= begin && lane < end;
        float score = 0.0f;
        for (int32_t s = 0; s < p.shares && seen; s++) score += memory[(s * HEADS + h) * TILE + lane];
        score *= p.scale;
        const float before = high[i], most = simd_max(seen && score > before ? score : before), weight = seen ? precise::exp(score - most) : 0.0f;
        weights[lane * HEADS + h] = weight;
        const float kept = precise::exp(before - most);
        total[i] = total[i] * kept + simd_sum(weight);
        high[i] = most;
        if (lane == 0) keep[h] = kept;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // ---- outputs
    UNROLL for (int h = 0; h < HEADS; h++) {
      const float kept = keep[h];
      UNROLL for (int i = 0; i < N; i++) out[h][i] *= kept;
    }
    for (int32_t j0 = begin / stride * stride; j0 < end; j0 += AHEAD * stride) {
      KvPiece<N> value[AHEAD];
      UNROLL for (int u = 0; u < AHEAD; u++) {
        const int32_t j = j0 + u * stride + mine;
        value[u] = kv_piece<N>(v, p.pool, slot + j, d, j >= begin && j < end);
      }
      UNROLL for (int u = 0; u < AHEAD; u++) {
        if (j0 + u * stride < end) {
          UNROLL for (int h = 0; h < HEADS; h++) {
            const float weight = weights[(j0 + u * stride + mine) * HEADS + h];
            UNROLL for (int i = 0; i < N; i++) out[h][i] += weight * value_of(value[u], i);
          }
        }
      }
    }
  }

  // ---- the sums of all keys into those of the first team's first tokens
  for (int32_t offset = lanes; offset < 32; offset *= 2) {
    UNROLL for (int h = 0; h < HEADS; h++) {
      UNROLL for (int i = 0; i < N; i++) out[h][i] += simd_shuffle_xor(out[h][i], ushort(offset));
    }
  }
  UNROLL for (int i = 0; i < OWN; i++) {
    const int32_t h = i * SIMDGROUPS + warp;
    if (h < HEADS && lane == 0) {
      maxima[h] = high[i];
      totals[h] = total[i];
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int32_t t = 1; t < teams; t++) {
    if (team == t && sub == 0) {
      UNROLL for (int i = 0; i < HEADS * N; i++) {
        if (d + i % N < n) memory[i / N * n + d + i % N] = out[i / N][i % N];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (team == 0 && sub == 0) {
      UNROLL for (int i = 0; i < HEADS * N; i++) {
        if (d + i % N < n) out[i / N][i % N] += memory[i / N * n + d + i % N];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  if (team != 0 || sub != 0) return;
  UNROLL for (int h = 0; h < HEADS; h++) {
    if (h < heads) {
      const float sum = totals[h];
      device float *part = parts + ((int64_t(item) * p.dst.d1 + first_head + h) * p.splits + split) * (n + 2), *dst = row_of(dst_, p.dst, r) + (first_head + h) * n;
      UNROLL for (int i = 0; i < N; i++) {
        if (d + i < n && p.splits == 1) dst[d + i] = sum == 0.0f ? 0.0f : out[h][i] / sum;
        if (d + i < n && p.splits > 1) part[2 + d + i] = out[h][i];
      }
      if (p.splits > 1 && d == 0) {
        part[0] = maxima[h];
        part[1] = sum;
      }
    }
  }
}

typedef decltype(attention_row<1, 8>) attention_row_kernel;
template [[host_name("attention_row_1")]] kernel attention_row_kernel attention_row<1, 8>;
template [[host_name("attention_row_2")]] kernel attention_row_kernel attention_row<2, 8>;
template [[host_name("attention_row_4")]] kernel attention_row_kernel attention_row<4, 8>;
template [[host_name("attention_row_8")]] kernel attention_row_kernel attention_row<8, 4>;

// A threadgroup (128 values of a head, row): a simdgroup adds every fourth split, then the four sums are added.
kernel void attention_merge(device float *dst_ [[buffer(0)]], device const float *parts [[buffer(1)]], constant RowRange *ranges [[buffer(4)]],
                            constant AttentionParams &p [[buffer(24)]], STEP_PARAMS, uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]],
                            uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]]) {
  threadgroup float weights[MOST_SPLITS], sums[SIMDGROUPS * MERGED], total[1];
  const Step step = STEP;
  const int32_t n = p.dst.d2, pieces = (n + MERGED - 1) / MERGED, head = int32_t(at.x) / pieces, d0 = int32_t(at.x) % pieces * MERGED, item = p.first + int32_t(at.y);
  constant RowRange &range = ranges[range_of(ranges, p.ranges, item)];
  const int32_t r = range.row + item - range.first;
  if (r >= step.count(p.dst)) return;
  const int32_t splits = tiles_of(step.position(step.step_row(p.dst.rows_of, r)), p.window, p.splits).splits;
  device const float *part = parts + (int64_t(item) * p.dst.d1 + head) * p.splits * (n + 2);
  if (warp == 0) {
    float high = -FLT_MAX, sum = 0.0f;
    for (int32_t s = int32_t(lane); s < splits; s += 32) high = max(high, part[s * (n + 2)]);
    high = simd_max(high);
    for (int32_t s = int32_t(lane); s < splits; s += 32) {
      const float weight = precise::exp(part[s * (n + 2)] - high);
      weights[s] = weight;
      sum += part[s * (n + 2) + 1] * weight;
    }
    sum = simd_sum(sum);
    if (lane == 0) total[0] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum[MERGED / 32];
  UNROLL for (int i = 0; i < MERGED / 32; i++) sum[i] = 0.0f;
  for (int32_t s = int32_t(warp); s < splits; s += SIMDGROUPS) {
    UNROLL for (int i = 0; i < MERGED / 32; i++) {
      const int32_t d = d0 + i * 32 + int32_t(lane);
      if (d < n) sum[i] += weights[s] * part[s * (n + 2) + 2 + d];
    }
  }
  UNROLL for (int i = 0; i < MERGED / 32; i++) sums[warp * MERGED + i * 32 + lane] = sum[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  const int32_t d = d0 + int32_t(tid);
  if (d >= n) return;
  const float all = (sums[tid] + sums[MERGED + tid]) + (sums[2 * MERGED + tid] + sums[3 * MERGED + tid]);
  row_of(dst_, p.dst, r)[head * n + d] = total[0] == 0.0f ? 0.0f : all / total[0];
}
