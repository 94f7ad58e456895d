// Decode attention for heads of 256 values and more, and what it shares with that for smaller heads (attention_decode.cu): how a row's context is
// split, and how splits are weighed. Included by that file only.
#pragma once
#include "attention.h"

namespace bao {
namespace {

constexpr int warps = 4, threads = 32 * warps, most_heads = 8, tile = 16, stages = 4, wide_stages = 6;
constexpr int32_t page_tokens = BAO_KV_PAGE_TOKENS, blocks_wanted = 264, splits_limit = 128, most_merged = 64 * 1024;

struct Grid {
  int32_t per_kv, groups;
  __host__ __device__ explicit Grid(const AttentionArgs& a) : per_kv(a.dst.d1 / a.pool.kv_heads), groups((per_kv + most_heads - 1) / most_heads) {}
};

// More rows need fewer splits each; no warp without a tile.
__host__ __device__ __forceinline__ int32_t splits_for(int32_t most, int32_t rows) { return max(most / max((rows + 3) / 4, 1), 1); }

struct Span { int32_t first, last, first_tile, tiles; };
__device__ __forceinline__ Span span_of(int32_t position, int32_t window) {
  Span s{first_seen(position, window), position, 0, 0};
  s.first_tile = s.first / tile;
  s.tiles = s.last / tile - s.first_tile + 1;
  return s;
}

__device__ __forceinline__ int32_t splits_in(const Span& s) { return (s.tiles + warps - 1) / warps; }

// The rows that a launch is about: those of `list` (a count, then rows), or all.
__device__ __forceinline__ int32_t row_count(const StepRef* step, const AttentionArgs& a, const int32_t* list) {
  int32_t rows = count_of(step, a.dst);
  return list ? min(rows, list[0]) : rows;
}
__device__ __forceinline__ int32_t at_row(const int32_t* list, int32_t i) { return list ? list[1 + i] : i; }

__device__ __forceinline__ float4 load_l2(const float* p) { return __ldcg(reinterpret_cast<const float4*>(p)); }

// Weights of the splits of one head, by a warp: to `weight`; gives the total that divides the weighted sum. part: the head's first split.
template <int D>
__device__ float split_weights(const float* part, int64_t split_stride, int32_t splits, float* weight) {
  int lane = threadIdx.x & 31;
  float high = -INFINITY, total = 0;
  for (int32_t s = lane; s < splits; s += 32) high = fmaxf(high, __ldcg(part + s * split_stride + D));
  high = warp_max(high);
  for (int32_t s = lane; s < splits; s += 32) {
    float m = __ldcg(part + s * split_stride + D), w = m == -INFINITY ? 0.0f : exp2f(m - high);
    weight[s] = w;
    total += w * __ldcg(part + s * split_stride + D + 1);
  }
  return warp_sum(total);
}

__device__ __forceinline__ void add_weighted(float4& sum, float w, float4 v) { sum.x += w * v.x, sum.y += w * v.y, sum.z += w * v.z, sum.w += w * v.w; }
__device__ __forceinline__ float4 divided(float4 v, float by) { return by == 0 ? float4{0, 0, 0, 0} : float4{v.x / by, v.y / by, v.z / by, v.w / by}; }

// Whether the last block of a row and its heads merges the splits in decode_wide_kernel; else merge_kernel does.
__device__ __forceinline__ bool merged_at_once(int32_t splits, const Grid& grid, int32_t dims) { return splits * min(most_heads, grid.per_kv) * dims <= most_merged; }

// Heads of 256 values and more: the warps share a tile, each a quarter of the values. A warp keeps its part of q in registers; the parts of scores meet
// in shared memory, with a barrier a tile. All warps hold the same maxima and sums, and their part of the outputs as a whole.
template <int D>
__global__ void __launch_bounds__(threads, 2) decode_wide_kernel(const StepRef* step, Decode args, const int32_t* list, float* partial, uint32_t* tickets) {
  constexpr int dims = D / warps, chunks = dims / 8, row_bytes = 2 * dims, stage_bytes = tile * row_bytes;
  extern __shared__ __align__(128) char memory[];
  __shared__ float4 scores[2][warps][32];
  __shared__ float weights[most_heads][splits_limit], totals[most_heads];
  __shared__ bool is_last;
  const AttentionArgs& a = args.a;
  let_next_start();
  const Grid grid(a);
  const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, from_dim = warp * dims;
  const int32_t rows = row_count(step, a, list), most = splits_for(args.most_splits, rows);
  const uint32_t ring = shared_address(memory) + warp * wide_stages * stage_bytes;
  const int64_t part_row = D + 4, split_stride = a.dst.d1 * part_row;
  bool waited = false;  // for the launch before: not until the first pages are known, which the start of the step has left behind

  for (int32_t item = blockIdx.y; item < rows * most; item += gridDim.y) {
    const int32_t index = item / most, split = item - index * most, r = at_row(list, index), row = step->step_row(a.dst.rows_of, r), sequence = step->row_sequence[row];
    const Span span = span_of(step->row_position[row], a.window);
    const int32_t splits = min(most, splits_in(span));
    if (split >= splits) continue;
    const int32_t kv_head = int32_t(blockIdx.x) / grid.groups, first_head = kv_head * grid.per_kv + (int32_t(blockIdx.x) - kv_head * grid.groups) * most_heads;
    const int32_t heads = min(most_heads, (kv_head + 1) * grid.per_kv - first_head);
    const int32_t tile_begin = span.first_tile + span.tiles * split / splits, tile_end = span.first_tile + span.tiles * (split + 1) / splits;
    __syncthreads();  // the former round has been read

    // ---- copies run ahead of their use: K, then V of a tile, a warp its own values; the page after the next tile's is looked up a tile ahead
    int32_t copy_tile = tile_begin, copy_slot = 0;
    bool copy_v = false;
    auto page_at = [&](int32_t at) { return at < tile_end ? page_of(step, a.pool.table, sequence, at * tile) : -1; };
    int32_t page = page_at(tile_begin), next_page = page_at(tile_begin + 1);
    if (!waited) await_previous();
    waited = true;

    // ---- q: lane 4 g + t has values 8 t ... 8 t + 7 of each 32 of head g
    float q[dims / 32][8];
    const float* from = a.q.f32(r) + int64_t(first_head + g) * D + from_dim + 8 * t;
#pragma unroll
    for (int c = 0; c < dims / 32; c++) {
      *reinterpret_cast<float4*>(q[c]) = g < heads ? *reinterpret_cast<const float4*>(from + 32 * c) : float4{0, 0, 0, 0};
      *reinterpret_cast<float4*>(q[c] + 4) = g < heads ? *reinterpret_cast<const float4*>(from + 32 * c + 4) : float4{0, 0, 0, 0};
    }

    auto copy_stage = [&] {
      if (copy_tile < tile_end) {
        const int32_t token0 = copy_tile * tile;
        const char* plane = page < 0 ? a.pool.base : a.pool.plane(a.layer, page, kv_head, copy_v) + ((token0 % page_tokens) * D + from_dim) * 2;
#pragma unroll
        for (int i = 0; i < chunks / 2; i++) {
          const int32_t at = i * 32 + lane, token = at / chunks, chunk = at % chunks;
          // Rows are swizzled so that the reads below meet no bank twice.
          const int32_t swizzled = chunk ^ (copy_v ? token & 6 : (token & 1) << 2);
          const bool seen = page >= 0 && token0 + token >= span.first && token0 + token <= span.last;
          copy_16(ring + copy_slot * stage_bytes + token * row_bytes + swizzled * 16, page < 0 ? plane : plane + token * (2 * D) + chunk * 16, seen ? 16 : 0);
        }
      }
      copies_end();
      copy_slot = copy_slot == wide_stages - 1 ? 0 : copy_slot + 1;
      if (copy_v) copy_tile++, page = next_page, next_page = page_at(copy_tile + 1);
      copy_v = !copy_v;
    };
#pragma unroll 1
    for (int i = 0; i < wide_stages - 1; i++) copy_stage();

    // ---- q as f16 and what that leaves, each warp's part of a head by a factor of its own
    float largest = 0;
#pragma unroll
    for (int i = 0; i < dims / 4; i++) largest = fmaxf(largest, fabsf(q[i / 8][i % 8]));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const PowerOfTwo scale = fitting(largest);
    uint32_t high[dims / 32][4], low[dims / 32][4];
#pragma unroll
    for (int i = 0; i < dims / 8; i++) {
      const float x = q[i / 4][i % 4 * 2] * scale.down, y = q[i / 4][i % 4 * 2 + 1] * scale.down;
      high[i / 4][i % 4] = packed(x, y);
      const float2 kept = unpacked(high[i / 4][i % 4]);
      low[i / 4][i % 4] = packed(x - kept.x, y - kept.y);
    }
    const float factor = scale.up * a.scale * log2_e, factor0 = __shfl_sync(0xffffffffu, factor, 8 * t), factor1 = __shfl_sync(0xffffffffu, factor, 8 * t + 4);

    // ---- the tiles. A lane holds heads 2t and 2t + 1: scores of tokens g and g + 8, outputs of eight values from 8g on.
    float out[dims / 64][4][4] = {}, max0 = -INFINITY, max1 = -INFINITY, sum0 = 0, sum1 = 0;
    int32_t slot = 0;
    auto next_stage = [&] {
      await_copies<wide_stages - 2>();
      __syncwarp();
      copy_stage();
      const uint32_t stage = ring + slot * stage_bytes;
      slot = slot == wide_stages - 1 ? 0 : slot + 1;
      return stage;
    };
    int turn = 0;
#pragma unroll 1
    for (int32_t at = tile_begin; at < tile_end; at++) {
      float score[4][4] = {};  // of q's values and rests, even and odd steps: four chains of additions
      const uint32_t k = next_stage() + g * row_bytes;
#pragma unroll
      for (int c = 0; c < dims / 32; c++) {
        const uint32_t chunk = ((4 * c + t) ^ ((g & 1) << 2)) * 16;
        const uint4 k0 = load_16(k + chunk), k1 = load_16(k + 8 * row_bytes + chunk);
        multiply_add(score[0], k0.x, k1.x, k0.y, k1.y, high[c][0], high[c][1]);
        multiply_add(score[1], k0.z, k1.z, k0.w, k1.w, high[c][2], high[c][3]);
        multiply_add(score[2], k0.x, k1.x, k0.y, k1.y, low[c][0], low[c][1]);
        multiply_add(score[3], k0.z, k1.z, k0.w, k1.w, low[c][2], low[c][3]);
      }
      float s[4];
#pragma unroll
      for (int i = 0; i < 4; i++) s[i] = ((score[0][i] + score[1][i]) + (score[2][i] + score[3][i])) * (i % 2 ? factor1 : factor0);
      scores[turn][warp][lane] = float4{s[0], s[1], s[2], s[3]};
      __syncthreads();  // one a tile: a place is written again only after the barrier between
      float4 all = scores[turn][0][lane];
#pragma unroll
      for (int w = 1; w < warps; w++) add_weighted(all, 1.0f, scores[turn][w][lane]);
      turn ^= 1;
      const int32_t token = at * tile + g;
      const bool seen0 = token >= span.first && token <= span.last, seen1 = token + 8 >= span.first && token + 8 <= span.last;
      s[0] = seen0 ? all.x : -INFINITY, s[1] = seen0 ? all.y : -INFINITY, s[2] = seen1 ? all.z : -INFINITY, s[3] = seen1 ? all.w : -INFINITY;
      float high0 = fmaxf(s[0], s[2]), high1 = fmaxf(s[1], s[3]);
#pragma unroll
      for (int o = 4; o <= 16; o <<= 1) {
        high0 = fmaxf(high0, __shfl_xor_sync(0xffffffffu, high0, o));
        high1 = fmaxf(high1, __shfl_xor_sync(0xffffffffu, high1, o));
      }
      high0 = fmaxf(high0, max0), high1 = fmaxf(high1, max1);
      const float base0 = high0 == -INFINITY ? 0.0f : high0, base1 = high1 == -INFINITY ? 0.0f : high1;
      const float keep0 = exp2f(max0 - base0), keep1 = exp2f(max1 - base1);
      max0 = high0, max1 = high1;
      if (__any_sync(0xffffffffu, keep0 != 1.0f || keep1 != 1.0f)) {
#pragma unroll
        for (int c = 0; c < dims / 64; c++) {
#pragma unroll
          for (int i = 0; i < 4; i++) out[c][i][0] *= keep0, out[c][i][1] *= keep1, out[c][i][2] *= keep0, out[c][i][3] *= keep1;
        }
        sum0 *= keep0, sum1 *= keep1;
      }
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; i++) p[i] = exp2f(s[i] - (i % 2 ? base1 : base0) + probability_shift);
      sum0 += p[0] + p[2], sum1 += p[1] + p[3];
      uint32_t p_high[2], p_low[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t kept_high = packed(p[2 * i], p[2 * i + 1]);
        const float2 kept = unpacked(kept_high);
        p_high[i] = transposed(kept_high);
        p_low[i] = transposed(packed(p[2 * i] - kept.x, p[2 * i + 1] - kept.y));
      }
      const uint32_t v = next_stage() + 2 * t * row_bytes;
#pragma unroll
      for (int c = 0; c < dims / 64; c++) {
        const uint32_t chunk = ((8 * c + g) ^ (2 * t)) * 16;  // the same in all four rows
        const uint4 v0 = load_16(v + chunk), v1 = load_16(v + row_bytes + chunk), v8 = load_16(v + 8 * row_bytes + chunk), v9 = load_16(v + 9 * row_bytes + chunk);
        const uint32_t w0[4] = {v0.x, v0.y, v0.z, v0.w}, w1[4] = {v1.x, v1.y, v1.z, v1.w}, w8[4] = {v8.x, v8.y, v8.z, v8.w}, w9[4] = {v9.x, v9.y, v9.z, v9.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {  // values 8g + 2i and 8g + 2i + 1 are rows g and g + 8
          const uint32_t a0 = __byte_perm(w0[i], w1[i], 0x5410), a1 = __byte_perm(w0[i], w1[i], 0x7632), a2 = __byte_perm(w8[i], w9[i], 0x5410), a3 = __byte_perm(w8[i], w9[i], 0x7632);
          multiply_add(out[c][i], a0, a1, a2, a3, p_high[0], p_high[1]);
          multiply_add(out[c][i], a0, a1, a2, a3, p_low[0], p_low[1]);
        }
      }
    }
    await_copies<0>();
#pragma unroll
    for (int o = 4; o <= 16; o <<= 1) {
      sum0 += __shfl_xor_sync(0xffffffffu, sum0, o);
      sum1 += __shfl_xor_sync(0xffffffffu, sum1, o);
    }
#pragma unroll
    for (int odd = 0; odd < 2; odd++) {
      const int32_t h = 2 * t + odd;
      if (h >= heads) continue;
      float* to = splits == 1 ? a.dst.f32(r) + int64_t(first_head + h) * D : partial + item * split_stride + (first_head + h) * part_row;
      const float sum = odd ? sum1 : sum0, by = splits > 1 ? 1.0f : sum == 0 ? 0.0f : 1.0f / sum;
#pragma unroll
      for (int c = 0; c < dims / 64; c++) {
        float4* eight = reinterpret_cast<float4*>(to + from_dim + c * 64 + 8 * g);
        eight[0] = float4{out[c][0][odd] * by, out[c][0][2 + odd] * by, out[c][1][odd] * by, out[c][1][2 + odd] * by};
        eight[1] = float4{out[c][2][odd] * by, out[c][2][2 + odd] * by, out[c][3][odd] * by, out[c][3][2 + odd] * by};
      }
      if (splits > 1 && warp == 0 && g == 0) to[D] = odd ? max1 : max0, to[D + 1] = sum;
    }
    if (splits == 1 || !merged_at_once(splits, grid, D)) continue;

    // ---- the last block of this row and these heads merges the splits
    __syncthreads();
    if (threadIdx.x == 0) {
      __threadfence();
      uint32_t* ticket = tickets + index * gridDim.x + blockIdx.x;
      is_last = atomicAdd(ticket, 1u) == uint32_t(splits - 1);
      if (is_last) *ticket = 0;
      __threadfence();
    }
    __syncthreads();
    if (!is_last) continue;
    const float* parts = partial + (item - split) * split_stride + first_head * part_row;
    for (int32_t h = warp; h < heads; h += warps) {
      const float total = split_weights<D>(parts + h * part_row, split_stride, splits, weights[h]);
      if (lane == 0) totals[h] = total == 0 ? 0.0f : 1.0f / total;
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < heads * (D / 4); i += threads) {
      const int32_t h = i / (D / 4), d = i % (D / 4) * 4;
      float4 sum{0, 0, 0, 0}, scaled{0, 0, 0, 0};
#pragma unroll 4
      for (int32_t s = 0; s < splits; s++) add_weighted(sum, weights[h][s], load_l2(parts + s * split_stride + h * part_row + d));
      add_weighted(scaled, totals[h], sum);
      *reinterpret_cast<float4*>(a.dst.f32(r) + int64_t(first_head + h) * D + d) = scaled;
    }
  }
  if (!waited) await_previous();
}

}  // namespace
}  // namespace bao
