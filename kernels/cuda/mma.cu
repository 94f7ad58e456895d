// Tensor-core products, beside the kernel itself: activations to f16, pairs grouped by expert, the choice of a kernel.
#include "mma.cuh"

#include "../common/dequant.h"

namespace bao {
namespace {

// ---- activations. Within each 32 columns the order is the one in which a thread of the product finds its weights: position 16 s + 8 p + 2 t + e holds
// column 8 t + 4 s + p + 2 e (s, p, e of 0, 1; t of 0 ... 3). Columns up to the pitch are zeros.
constexpr int round_threads = 256, warp_units = 12;  // a warp keeps rows of up to 12 * 256 columns in registers

struct RoundArgs {
  Tensor x;
  int32_t slots, columns, pitch;
  bool aligned;
  uint4* out;
  float* scales;
};

// Unit u (8 columns) of an item, as pairs of bf16: columns (0, 2), (1, 3), (4, 6), (5, 7). Largest: of their absolute values.
__device__ __forceinline__ void load_unit_of(const RoundArgs& a, const float* source, int32_t u, uint32_t (&pair)[4], float& largest) {
  float v[8];
  if (u * 8 >= a.columns) {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = 0;
  } else if (a.aligned) {
    float4 low = __ldg(reinterpret_cast<const float4*>(source) + u * 2), high = __ldg(reinterpret_cast<const float4*>(source) + u * 2 + 1);
    v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = __ldg(source + u * 8 + i);
  }
#pragma unroll
  for (int c = 0; c < 4; c++) {  // c = 2 s + p
    int k = 4 * (c >> 1) + (c & 1);
    uint32_t even = f32_to_bf16(v[k]), odd = f32_to_bf16(v[k + 2]);
    pair[c] = even | odd << 16;
    largest = fmaxf(largest, fmaxf(fabsf(bf16_to_f32(uint16_t(even))), fabsf(bf16_to_f32(uint16_t(odd)))));
  }
}

// The row's largest number goes to [2^14, 2^15); infinities and rows of zeros stay as they are. Gives the factor, and in `back` what undoes it.
__device__ __forceinline__ float factor_of(float largest, float& back) {
  int32_t exponent = __float_as_int(largest) >> 23, up = largest == 0 || exponent == 255 ? 127 : min(268 - exponent, 253);
  back = __int_as_float((254 - up) << 23);
  return __int_as_float(up << 23);
}

// Whole warps: threads of one group of 32 columns exchange their parts. Thread t writes chunk t, 16 bytes.
__device__ __forceinline__ void store_unit(const RoundArgs& a, int32_t item, int32_t u, const uint32_t (&pair)[4], float factor) {
  uint32_t chunk[4];
#pragma unroll
  for (int c = 0; c < 4; c++) {
    __half2 h = __floats2half2_rn(bf16_to_f32(uint16_t(pair[c])) * factor, bf16_to_f32(uint16_t(pair[c] >> 16)) * factor);
    chunk[c] = *reinterpret_cast<uint32_t*>(&h);
  }
  auto swap = [&](uint32_t& x, uint32_t& y, int bit) {
    bool odd = threadIdx.x & bit;
    uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? x : y, bit);
    if (odd) x = got;
    else y = got;
  };
  swap(chunk[0], chunk[1], 1), swap(chunk[2], chunk[3], 1);
  swap(chunk[0], chunk[2], 2), swap(chunk[1], chunk[3], 2);
  if (u < a.pitch / 8) a.out[int64_t(item) * (a.pitch / 8) + u] = make_uint4(chunk[0], chunk[1], chunk[2], chunk[3]);
}

__device__ __forceinline__ const float* item_of(const RoundArgs& a, int32_t item) { return a.x.f32(item / a.slots) + int64_t(item % a.slots) * a.columns; }

// A block an item, read twice.
__global__ void __launch_bounds__(round_threads) mma_round_long_kernel(const StepRef* step, RoundArgs a) {
  __shared__ float shared[round_threads / 32];
  await_previous();
  let_next_start();
  int32_t items = count_of(step, a.x) * a.slots;
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const float* source = item_of(a, item);
    uint32_t pair[4];
    float most = 0, back;
    for (int32_t u = threadIdx.x; u < a.columns / 8; u += round_threads) load_unit_of(a, source, u, pair, most);
    most = warp_max(most);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < round_threads / 32; w++) most = fmaxf(most, shared[w]);
    float factor = factor_of(most, back);
    if (threadIdx.x == 0) a.scales[item] = back;
    for (int32_t u0 = 0; u0 < a.pitch / 8; u0 += round_threads) {
      load_unit_of(a, source, u0 + threadIdx.x, pair, most);
      store_unit(a, item, u0 + threadIdx.x, pair, factor);
    }
  }
}

// ---- pairs by expert: a counting sort by one block. The order of pairs within an expert does not show in any result.
constexpr int most_bins = 1025, group_batch = 8;

struct GroupArgs {
  Tensor ids;
  int32_t experts;
  int32_t* words;  // null: none to group
  int32_t order_at;
};

__device__ void group_pairs(const StepRef* step, const GroupArgs& a) {
  __shared__ int32_t counts[most_bins], warp_pairs[round_threads / 32], warp_tiles[round_threads / 32], pair_base, tile_base;
  int32_t k = a.ids.d2, pairs = max(count_of(step, a.ids), 0) * k, tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, bins = a.experts + 1;
  for (int32_t e = tid; e < bins; e += round_threads) counts[e] = 0;
  if (tid == 0) pair_base = tile_base = 0;
  __syncthreads();
  auto each = [&](auto&& f) {
    for (int32_t p0 = tid; p0 < pairs; p0 += round_threads * group_batch) {
      int32_t bin[group_batch];
#pragma unroll
      for (int i = 0; i < group_batch; i++) {
        int32_t p = p0 + i * round_threads, id = p < pairs ? a.ids.i32(p / k)[p % k] : -1;
        bin[i] = id >= 0 && id < a.experts ? id : a.experts;
      }
#pragma unroll
      for (int i = 0; i < group_batch; i++) {
        int32_t p = p0 + i * round_threads;
        if (p < pairs) f(p, bin[i]);
      }
    }
  };
  each([&](int32_t, int32_t bin) { atomicAdd(&counts[bin], 1); });
  __syncthreads();
  for (int32_t e0 = 0; e0 < bins; e0 += round_threads) {
    int32_t e = e0 + tid, count = e < bins ? counts[e] : 0, need = (count + mma_items - 1) / mma_items, sum = count, tiles = need;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      int32_t below = __shfl_up_sync(0xffffffffu, sum, o), below_tiles = __shfl_up_sync(0xffffffffu, tiles, o);
      if (lane >= o) sum += below, tiles += below_tiles;
    }
    if (lane == 31) warp_pairs[warp] = sum, warp_tiles[warp] = tiles;
    __syncthreads();
    int32_t start = pair_base + sum - count, first = tile_base + tiles - need;
    for (int w = 0; w < warp; w++) start += warp_pairs[w], first += warp_tiles[w];
    if (e < bins) {
      counts[e] = start;  // from here on the next free place
      for (int32_t t = 0; t < need; t++) {
        int32_t* out = a.words + 4 + 3 * (first + t);
        out[0] = e, out[1] = start + t * mma_items, out[2] = min(mma_items, count - t * mma_items);
      }
    }
    __syncthreads();
    if (tid == round_threads - 1) pair_base = start + count, tile_base = first + need;
    __syncthreads();
  }
  each([&](int32_t p, int32_t bin) { a.words[a.order_at + atomicAdd(&counts[bin], 1)] = p; });
  if (tid == 0) a.words[0] = tile_base;
}

// A warp an item, read once; the first block groups, beside them.
__global__ void __launch_bounds__(round_threads) mma_round_kernel(const StepRef* step, RoundArgs a, GroupArgs group) {
  await_previous();
  let_next_start();
  int32_t block = blockIdx.x, blocks = gridDim.x;
  if (group.words) {
    if (block == 0) return group_pairs(step, group);
    block--, blocks--;
  }
  int32_t items = count_of(step, a.x) * a.slots, lane = threadIdx.x & 31;
  for (int32_t item = block * (round_threads / 32) + (threadIdx.x >> 5); item < items; item += blocks * (round_threads / 32)) {
    const float* source = item_of(a, item);
    uint32_t pair[warp_units][4];
    float most = 0, back;
#pragma unroll
    for (int i = 0; i < warp_units; i++) {
      if (i * 256 < a.pitch) load_unit_of(a, source, i * 32 + lane, pair[i], most);
    }
    float factor = factor_of(warp_max(most), back);
    if (lane == 0) a.scales[item] = back;
#pragma unroll
    for (int i = 0; i < warp_units; i++) {
      if (i * 256 < a.pitch) store_unit(a, item, i * 32 + lane, pair[i], factor);
    }
  }
}

__global__ void __launch_bounds__(round_threads) mma_group_kernel(const StepRef* step, GroupArgs a) {
  await_previous();
  let_next_start();
  group_pairs(step, a);
}

// ---- sums over slots, four columns a thread
__global__ void __launch_bounds__(256) mma_sum_kernel(const StepRef* step, Tensor dst, Tensor parts, Tensor weights) {
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, dst), c = (blockIdx.x * 256 + threadIdx.x) * 4, n = parts.d2, k = parts.d1;
  if (c >= n) return;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const float *x = parts.f32(r) + c, *w = weights.f32(r);
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int32_t s = 0; s < k; s++) {
      float4 v = __ldcs(reinterpret_cast<const float4*>(x + int64_t(s) * n));
      float f = w[s];
      sum.x += f * v.x, sum.y += f * v.y, sum.z += f * v.z, sum.w += f * v.w;
    }
    float* to = dst.f32(r) + c;
    to[0] = sum.x, to[1] = sum.y, to[2] = sum.z, to[3] = sum.w;
  }
}

int32_t most_tiles(int64_t pairs, int32_t experts) {
  int64_t bins = int64_t(experts) + 1;
  return int32_t(pairs / mma_items + (bins < pairs ? bins : pairs));
}

// How many items a tile has: as few waves of units as possible, by what a step of 64 columns costs (clock cycles: the products, and what they cannot hide).
int32_t items_of(int32_t rows, const MmaProduct& p, const Run& run) {
  constexpr struct { int32_t items, cost; } choices[] = {{128, 1050}, {96, 820}, {64, 620}, {32, 470}};
  int32_t best = 0;
  int64_t least = INT64_MAX;
  for (auto& c : choices) {
    int64_t tiles = (rows + c.items - 1) / c.items, halves = tiles * (p.whole + p.blocks), waves = (halves + 2 * run.multiprocessors - 1) / (2 * run.multiprocessors);
    if (waves * c.cost < least) least = waves * c.cost, best = c.items;
  }
  return best;
}

}  // namespace

int32_t mma_pitch(int32_t columns) { return (columns + mma_step - 1) / mma_step * mma_step; }

int64_t mma_group_words(int64_t pairs, int32_t experts) { return 4 + 3 * int64_t(most_tiles(pairs, experts)) + pairs; }

MmaInput mma_round(const Tensor& x, int32_t columns, const Tensor& ids, int32_t experts, const Many& many, MmaGroups* groups, const Run& run) {
  int32_t slots = int32_t(x.columns() / columns);
  MmaInput in{run.scratch + many.x, run.scratch_f32(many.scale), mma_pitch(columns), slots};
  int64_t items = int64_t(run.bound(x)) * slots;
  bool aligned = (reinterpret_cast<uintptr_t>(x.data) | uintptr_t(x.stride)) % 16 == 0;  // columns are a multiple of 8
  RoundArgs a{x, slots, columns, in.pitch, aligned, reinterpret_cast<uint4*>(run.scratch + many.x), run.scratch_f32(many.scale)};
  GroupArgs g{};
  if (groups) {
    g = GroupArgs{ids, experts, reinterpret_cast<int32_t*>(run.scratch + many.groups), 0};
    *groups = MmaGroups{g.words, most_tiles(int64_t(run.bound(ids)) * ids.d2, experts), ids.d2};
    g.order_at = 4 + 3 * groups->most_tiles;
  }
  if (in.pitch <= warp_units * 256) {
    int64_t blocks = (items + round_threads / 32 - 1) / (round_threads / 32), most = int64_t(run.multiprocessors) * 32;
    launch(run, mma_round_kernel, dim3(unsigned(blocks < most ? blocks : most) + (groups ? 1u : 0u)), dim3(round_threads), 0, run.step, a, g);
    return in;
  }
  if (groups) launch(run, mma_group_kernel, dim3(1), dim3(round_threads), 0, run.step, g);
  launch(run, mma_round_long_kernel, dim3(unsigned(items < 1 << 20 ? items : 1 << 20)), dim3(round_threads), 0, run.step, a);
  return in;
}

void mma_member(MmaProduct& p, const Tensor& dst, const WeightRef& w, int32_t first, const WeightRef& up, int32_t up_first, int32_t outputs) {
  int32_t rows = up.present() ? mma_rows / 2 : mma_rows, blocks = int32_t(blocks_of(outputs, rows));
  p.member[p.members] = MmaMember{dst, w, up, first, up_first, outputs, p.blocks};
  p.whole = p.blocks + blocks - (p.members == 0 && outputs - (blocks - 1) * rows <= rows / 2 ? 1 : 0);
  p.blocks += blocks;
  if (p.members > 0) p.whole = p.blocks;
  p.members++;
}

void mma_product(MmaProduct& p, const Run& run) {
  p.items = p.groups.words ? mma_items : items_of(run.bound(p.member[0].dst), p, run);
  if (!mma_launch_k(p, run) && !mma_launch_old(p, run)) mma_launch_other(p, run);
}

void mma_sum(const Tensor& dst, const Tensor& parts, const Tensor& weights, const Run& run) {
  if (parts.d2 % 4 != 0) return launch_moe_sum(MoeSumArgs{dst, parts, weights}, run);
  launch(run, mma_sum_kernel, dim3(blocks_of(parts.d2, 1024), grid_rows(run.bound(dst))), dim3(256), 0, run.step, dst, parts, weights);
}

}  // namespace bao
