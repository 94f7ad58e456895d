// Decode attention over f16 KV on tensor cores: a block serves up to 8 query heads of a KV head, for one row and one split of its context, in tiles
// of 16 tokens; each warp has a ring of its own in shared memory. Warps take tiles in turn, or, of heads of 256 values and more, each a part of a tile's
// values. Scores are K Q^T, outputs V^T P^T: tokens, then values, are the long side, heads the short one. Splits depend on the context and the step's
// rows only and are merged in ascending order: by the block that ends last where they are few, else by a second launch.
#include "attention_wide.cuh"

namespace bao {
namespace {

template <int D>
struct Shape {
  static constexpr int dims = D < 128 ? D : 128, parts = D / dims;  // a stage holds `dims` values of 16 tokens; a tile is `parts` stages of K, then of V
  static constexpr int chunks = dims / 8, row_bytes = 2 * dims, stage_bytes = tile * row_bytes, ring_bytes = stages * stage_bytes;
  static constexpr int q_bytes = 2 * D * most_heads, merge_row = D + 8, merge_bytes = 4 * merge_row * most_heads;
  static constexpr int area_bytes = warps * (ring_bytes > merge_bytes ? ring_bytes : merge_bytes);
  static constexpr int shared_bytes = 2 * q_bytes + area_bytes;
};

template <int D>
__global__ void __launch_bounds__(threads, 2) decode_kernel(const StepRef* step, Decode args, const int32_t* list, float* partial, uint32_t* tickets) {
  using S = Shape<D>;
  extern __shared__ __align__(128) char memory[];
  __shared__ float factors[most_heads], maxima[warps][most_heads], sums[warps][most_heads], totals[most_heads];
  __shared__ bool is_last;
  const AttentionArgs& a = args.a;
  let_next_start();
  await_previous();
  const Grid grid(a);
  const int32_t warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int32_t kv_head = blockIdx.x / grid.groups, first_head = kv_head * grid.per_kv + int32_t(blockIdx.x) % grid.groups * most_heads;
  const int32_t heads = min(most_heads, (kv_head + 1) * grid.per_kv - first_head), rows = row_count(step, a, list);
  char* area = memory + 2 * S::q_bytes;
  const uint32_t q_high = shared_address(memory), q_low = q_high + S::q_bytes, ring = shared_address(area) + warp * S::ring_bytes;
  const int64_t part_row = D + 4, split_stride = a.dst.d1 * part_row;

  const int32_t most = splits_for(args.most_splits, rows);  // rows have different numbers of splits, but room for the same

  for (int32_t item = blockIdx.y; item < rows * most; item += gridDim.y) {
    const int32_t split = item % most, r = at_row(list, item / most), row = step->step_row(a.dst.rows_of, r), sequence = step->row_sequence[row];
    const Span span = span_of(step->row_position[row], a.window);
    const int32_t splits = min(most, splits_in(span));
    if (split >= splits) continue;
    const int32_t tile_begin = span.first_tile + int32_t(int64_t(span.tiles) * split / splits) + warp;
    const int32_t tile_end = span.first_tile + int32_t(int64_t(span.tiles) * (split + 1) / splits);
    __syncthreads();  // the former round has been read

    // ---- copies run three stages ahead of their use; the page after the next tile's is looked up a tile ahead
    int32_t copy_tile = tile_begin, copy_part = 0, copy_slot = 0;
    auto page_at = [&](int32_t at) { return at < tile_end ? page_of(step, a.pool.table, sequence, at * tile) : -1; };
    int32_t page = page_at(tile_begin), next_page = page_at(tile_begin + warps);
    auto copy_stage = [&] {
      if (copy_tile < tile_end) {
        const bool v = copy_part >= S::parts;
        const int32_t token0 = copy_tile * tile, slot0 = token0 % page_tokens;
        const char* plane = page < 0 ? a.pool.base : a.pool.plane(a.layer, page, kv_head, v) + (int64_t(slot0) * D + (v ? copy_part - S::parts : copy_part) * S::dims) * 2;
        const uint32_t to = ring + copy_slot * S::stage_bytes;
#pragma unroll
        for (int i = 0; i < S::chunks / 2; i++) {
          const int32_t at = i * 32 + lane, token = at / S::chunks, chunk = at % S::chunks;
          // Rows are swizzled so that the reads below meet no bank twice.
          const int32_t swizzled = chunk ^ (v ? token & 6 : (token & 1) << 2);
          const bool seen = page >= 0 && token0 + token >= span.first && token0 + token <= span.last;
          copy_16(to + token * S::row_bytes + swizzled * 16, page < 0 ? plane : plane + token * (2 * D) + chunk * 16, seen ? 16 : 0);
        }
      }
      copies_end();
      copy_slot = (copy_slot + 1) % stages;
      if (++copy_part == 2 * S::parts) {
        copy_part = 0;
        copy_tile += warps;
        page = next_page;
        next_page = page_at(copy_tile + warps);
      }
    };
#pragma unroll
    for (int i = 0; i < stages - 1; i++) copy_stage();

    // ---- q as f16 and what that leaves, in the order of the fragments: [32 values][head][8 of them a lane]
    for (int32_t h = warp; h < most_heads; h += warps) {
      const float* q = a.q.f32(r) + int64_t(first_head + h) * D;
      float value[(D + 255) / 256][8], largest = 0;
#pragma unroll
      for (int i = 0; i < (D + 255) / 256; i++) {
        const int32_t d = (i * 32 + lane) * 8;
        float4 low{0, 0, 0, 0}, high{0, 0, 0, 0};
        if (d < D && h < heads) low = *reinterpret_cast<const float4*>(q + d), high = *reinterpret_cast<const float4*>(q + d + 4);
        *reinterpret_cast<float4*>(value[i]) = low;
        *reinterpret_cast<float4*>(value[i] + 4) = high;
#pragma unroll
        for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(value[i][j]));
      }
      const PowerOfTwo scale = fitting(warp_max(largest));
      if (lane == 0) factors[h] = scale.up * a.scale * log2_e;
#pragma unroll
      for (int i = 0; i < (D + 255) / 256; i++) {
        const int32_t eight = i * 32 + lane;
        if (eight * 8 >= D) continue;
        uint32_t high[4], low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const float x = value[i][2 * j] * scale.down, y = value[i][2 * j + 1] * scale.down;
          high[j] = packed(x, y);
          const float2 kept = unpacked(high[j]);
          low[j] = packed(x - kept.x, y - kept.y);
        }
        const int32_t at = ((eight / 4) * 32 + h * 4 + eight % 4) * 16;
        *reinterpret_cast<uint4*>(memory + at) = uint4{high[0], high[1], high[2], high[3]};
        *reinterpret_cast<uint4*>(memory + S::q_bytes + at) = uint4{low[0], low[1], low[2], low[3]};
      }
    }
    __syncthreads();

    // ---- this warp's tiles. A lane holds heads 2t and 2t + 1: scores of tokens g and g + 8, outputs of eight values from 8g on.
    const float factor0 = factors[2 * t], factor1 = factors[2 * t + 1];
    float out[D / 64][4][4] = {}, max0 = -INFINITY, max1 = -INFINITY, sum0 = 0, sum1 = 0;
    int32_t slot = 0;
    auto next_stage = [&] {
      await_copies<stages - 2>();
      __syncwarp();
      copy_stage();
      const uint32_t from = ring + slot * S::stage_bytes;
      slot = (slot + 1) % stages;
      return from;
    };
    for (int32_t at = tile_begin; at < tile_end; at += warps) {
      float score[4][4] = {};  // of q's values and rests, even and odd steps: four chains of additions
#pragma unroll
      for (int part = 0; part < S::parts; part++) {
        const uint32_t k = next_stage() + g * S::row_bytes;
#pragma unroll
        for (int c = 0; c < S::dims / 32; c++) {
          const uint32_t chunk = ((4 * c + t) ^ ((g & 1) << 2)) * 16, q = ((part * (S::dims / 32) + c) * 32 + lane) * 16;
          const uint4 k0 = load_16(k + chunk), k1 = load_16(k + 8 * S::row_bytes + chunk), high = load_16(q_high + q), low = load_16(q_low + q);
          multiply_add(score[0], k0.x, k1.x, k0.y, k1.y, high.x, high.y);
          multiply_add(score[1], k0.z, k1.z, k0.w, k1.w, high.z, high.w);
          multiply_add(score[2], k0.x, k1.x, k0.y, k1.y, low.x, low.y);
          multiply_add(score[3], k0.z, k1.z, k0.w, k1.w, low.z, low.w);
        }
      }
      const int32_t token = at * tile + g;
      const bool seen0 = token >= span.first && token <= span.last, seen1 = token + 8 >= span.first && token + 8 <= span.last;
      float s[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float sum = (score[0][i] + score[1][i]) + (score[2][i] + score[3][i]);
        s[i] = (i < 2 ? seen0 : seen1) ? sum * (i % 2 ? factor1 : factor0) : -INFINITY;
      }
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
        for (int c = 0; c < D / 64; c++) {
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
        const uint32_t high = packed(p[2 * i], p[2 * i + 1]);
        const float2 kept = unpacked(high);
        p_high[i] = transposed(high);
        p_low[i] = transposed(packed(p[2 * i] - kept.x, p[2 * i + 1] - kept.y));
      }
#pragma unroll
      for (int part = 0; part < S::parts; part++) {
        const uint32_t v = next_stage() + 2 * t * S::row_bytes;
#pragma unroll
        for (int c = 0; c < S::dims / 64; c++) {
          const uint32_t chunk = ((8 * c + g) ^ (2 * t)) * 16;  // the same in all four rows
          const uint4 v0 = load_16(v + chunk), v1 = load_16(v + S::row_bytes + chunk), v8 = load_16(v + 8 * S::row_bytes + chunk), v9 = load_16(v + 9 * S::row_bytes + chunk);
          const uint32_t w0[4] = {v0.x, v0.y, v0.z, v0.w}, w1[4] = {v1.x, v1.y, v1.z, v1.w}, w8[4] = {v8.x, v8.y, v8.z, v8.w}, w9[4] = {v9.x, v9.y, v9.z, v9.w};
          auto& sum = out[part * (S::dims / 64) + c];
#pragma unroll
          for (int i = 0; i < 4; i++) {  // values 8g + 2i and 8g + 2i + 1 are rows g and g + 8
            const uint32_t a0 = __byte_perm(w0[i], w1[i], 0x5410), a1 = __byte_perm(w0[i], w1[i], 0x7632), a2 = __byte_perm(w8[i], w9[i], 0x5410), a3 = __byte_perm(w8[i], w9[i], 0x7632);
            multiply_add(sum[i], a0, a1, a2, a3, p_high[0], p_high[1]);
            multiply_add(sum[i], a0, a1, a2, a3, p_low[0], p_low[1]);
          }
        }
      }
    }
    await_copies<0>();

    // ---- the warps' sums as one
#pragma unroll
    for (int o = 4; o <= 16; o <<= 1) {
      sum0 += __shfl_xor_sync(0xffffffffu, sum0, o);
      sum1 += __shfl_xor_sync(0xffffffffu, sum1, o);
    }
    if (g == 0) maxima[warp][2 * t] = max0, maxima[warp][2 * t + 1] = max1, sums[warp][2 * t] = sum0, sums[warp][2 * t + 1] = sum1;
    __syncthreads();
    auto highest = [&](int32_t h) { return fmaxf(fmaxf(maxima[0][h], maxima[1][h]), fmaxf(maxima[2][h], maxima[3][h])); };
    auto weight = [&](float m, float high) { return m == -INFINITY ? 0.0f : exp2f(m - high); };
    static_assert(warps == 4, "highest() names the warps");
    float* merge = reinterpret_cast<float*>(area);
    const float weight0 = weight(max0, highest(2 * t)), weight1 = weight(max1, highest(2 * t + 1));
#pragma unroll
    for (int c = 0; c < D / 64; c++) {
#pragma unroll
      for (int odd = 0; odd < 2; odd++) {
        if (2 * t + odd >= heads) continue;
        const float w = odd ? weight1 : weight0;
        float4* to = reinterpret_cast<float4*>(merge + (warp * most_heads + 2 * t + odd) * S::merge_row + c * 64 + 8 * g);
        to[0] = float4{out[c][0][odd] * w, out[c][0][2 + odd] * w, out[c][1][odd] * w, out[c][1][2 + odd] * w};
        to[1] = float4{out[c][2][odd] * w, out[c][2][2 + odd] * w, out[c][3][odd] * w, out[c][3][2 + odd] * w};
      }
    }
    if (int32_t h = threadIdx.x; h < heads) {
      float total = 0, high = highest(h);
      for (int w = 0; w < warps; w++) total += sums[w][h] * weight(maxima[w][h], high);
      totals[h] = total;
      if (splits > 1) {
        float* part = partial + item * split_stride + (first_head + h) * part_row;
        part[D] = high, part[D + 1] = total;
      }
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < heads * (D / 4); i += threads) {
      const int32_t h = i / (D / 4), d = i % (D / 4) * 4;
      float4 sum{0, 0, 0, 0};
#pragma unroll
      for (int w = 0; w < warps; w++) add_weighted(sum, 1.0f, *reinterpret_cast<const float4*>(merge + (w * most_heads + h) * S::merge_row + d));
      if (splits == 1) *reinterpret_cast<float4*>(a.dst.f32(r) + int64_t(first_head + h) * D + d) = divided(sum, totals[h]);
      else *reinterpret_cast<float4*>(partial + item * split_stride + (first_head + h) * part_row + d) = sum;
    }
    if (splits == 1 || !tickets) continue;

    // ---- the last block of this row and these heads merges the splits
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      uint32_t* ticket = tickets + item / most * gridDim.x + blockIdx.x;
      is_last = atomicAdd(ticket, 1u) == uint32_t(splits - 1);
      if (is_last) *ticket = 0;
    }
    __syncthreads();
    if (!is_last) continue;
    __threadfence();
    float* weights = merge;  // [heads][splits]
    const float* parts = partial + (item - split) * split_stride + first_head * part_row;
    for (int32_t h = warp; h < heads; h += warps) {
      float total = split_weights<D>(parts + h * part_row, split_stride, splits, weights + h * splits);
      if (lane == 0) totals[h] = total;
    }
    __syncthreads();
    for (int32_t i = threadIdx.x; i < heads * (D / 4); i += threads) {
      const int32_t h = i / (D / 4), d = i % (D / 4) * 4;
      float4 sum{0, 0, 0, 0};
#pragma unroll 8
      for (int32_t s = 0; s < splits; s++) add_weighted(sum, weights[h * splits + s], load_l2(parts + s * split_stride + h * part_row + d));
      *reinterpret_cast<float4*>(a.dst.f32(r) + int64_t(first_head + h) * D + d) = divided(sum, totals[h]);
    }
  }
}

constexpr int merge_threads = 256, merge_warps = merge_threads / 32;

// Block (head and 128 of its values, row): the warps take splits in turn, four values a lane.
template <int D>
__global__ void __launch_bounds__(merge_threads) merge_kernel(const StepRef* step, Decode args, const int32_t* list, const float* partial) {
  __shared__ float weights[splits_limit], total;
  __shared__ float4 sums[merge_warps][32];
  const AttentionArgs& a = args.a;
  let_next_start();
  await_previous();
  constexpr int blocks = (D + 127) / 128;
  const int32_t rows = row_count(step, a, list), most = splits_for(args.most_splits, rows), head = blockIdx.x / blocks, warp = threadIdx.x >> 5, lane = threadIdx.x & 31, d = (int32_t(blockIdx.x) % blocks * 32 + lane) * 4;
  const int64_t part_row = D + 4, split_stride = a.dst.d1 * part_row;
  for (int32_t i = blockIdx.y; i < rows; i += gridDim.y) {
    const int32_t r = at_row(list, i), row = step->step_row(a.dst.rows_of, r), splits = min(most, splits_in(span_of(step->row_position[row], a.window)));
    if (splits == 1 || (D >= 256 && merged_at_once(splits, Grid(a), D))) continue;
    const float* part = partial + int64_t(i) * most * split_stride + head * part_row;
    __syncthreads();
    if (warp == 0) {
      float sum = split_weights<D>(part, split_stride, splits, weights);
      if (lane == 0) total = sum;
    }
    __syncthreads();
    float4 sum{0, 0, 0, 0};
    if (d < D) {
#pragma unroll 8
      for (int32_t s = warp; s < splits; s += merge_warps) add_weighted(sum, weights[s], load_l2(part + s * split_stride + d));
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp != 0 || d >= D) continue;
    for (int w = 1; w < merge_warps; w++) add_weighted(sum, 1.0f, sums[w][lane]);
    *reinterpret_cast<float4*>(a.dst.f32(r) + int64_t(head) * D + d) = divided(sum, total);
  }
}

template <int D>
void launch_dims(const Decode& d, const Run& run, const int32_t* list) {
  using S = Shape<D>;
  const Grid grid(d.a);
  float* partial = run.scratch_f32(d.partial);
  const int32_t rows = run.bound(d.a.dst), x = d.a.pool.kv_heads * grid.groups;
  // How many rows a list has the host does not know: then blocks for two waves take the items in turn.
  const int32_t items = list ? max(2 * blocks_wanted / x, 1) : rows * splits_for(d.most_splits, rows);
  // One block merges a little; much is spread over blocks of a launch of its own.
  const bool apart = int64_t(d.most_splits) * (grid.per_kv < most_heads ? grid.per_kv : most_heads) * D > most_merged;
  const dim3 blocks(unsigned(x), grid_rows(items));
  if constexpr (D >= 256) {
    constexpr int bytes = wide_stages * tile * 2 * D;
    cudaFuncSetAttribute(decode_wide_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    launch(run, decode_wide_kernel<D>, blocks, threads, bytes, run.step, d, list, partial, run.tickets);
  } else {
    cudaFuncSetAttribute(decode_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::shared_bytes);
    launch(run, decode_kernel<D>, blocks, threads, S::shared_bytes, run.step, d, list, partial, apart ? nullptr : run.tickets);
  }
  if (apart) launch(run, merge_kernel<D>, dim3(unsigned(d.a.dst.d1 * ((D + 127) / 128)), grid_rows(list ? min(rows, 32) : rows)), merge_threads, 0, run.step, d, list, partial);
}

}  // namespace

bool decode_serves(const AttentionArgs& a) {
  int32_t n = a.dst.d2;
  return a.pool.dtype == BAO_F16 && (n == 64 || n == 128 || n == 256 || n == 512) && aligned_rows(a.dst) && aligned_rows(a.q);
}

void reserve_decode(Builder& b, Decode* d) {
  const AttentionArgs& a = d->a;
  int64_t blocks = int64_t(a.pool.kv_heads) * Grid(a).groups;
  d->most_splits = int32_t(blocks >= blocks_wanted ? 1 : blocks_wanted / blocks < splits_limit ? blocks_wanted / blocks : splits_limit);
  // Where rows are split at all, rows times splits_for(rows) is at most four times the most. So are the rows: tickets for them are no question.
  int64_t parts = int64_t(a.dst.d0 < 4 ? a.dst.d0 : 4) * d->most_splits;
  static_assert(4 * blocks_wanted <= most_tickets, "a ticket for each row and blockIdx.x");
  d->partial = b.reserve_scratch(parts * a.dst.d1 * (a.dst.d2 + 4) * 4);
}

void launch_decode(const Decode& d, const Run& run, bool short_runs) {
  const int32_t* list = short_runs ? run.short_runs : nullptr;
  switch (d.a.dst.d2) {
    case 64: launch_dims<64>(d, run, list); break;
    case 128: launch_dims<128>(d, run, list); break;
    case 256: launch_dims<256>(d, run, list); break;
    default: launch_dims<512>(d, run, list); break;
  }
}

}  // namespace bao
