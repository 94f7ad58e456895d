// Tensor-core products, beside the kernel itself: activations to f16, pairs grouped by expert, the choice of a kernel.
#include "mma.cuh"

#include "../common/dequant.h"

namespace bao {
namespace {

// ---- activations: one block an item. Within each 32 columns the order is the one in which a thread of the product finds its weights: position
// 16 s + 8 p + 2 t + e holds column 8 t + 4 s + p + 2 e (s, p, e of 0, 1; t of 0 ... 3). Columns up to the pitch are zeros.
constexpr int round_threads = 128;

__global__ void __launch_bounds__(round_threads) mma_round_kernel(const StepRef* step, Tensor x, int32_t slots, int32_t columns, int32_t pitch, bool aligned, uint4* out, float* scales) {
  __shared__ float shared[32];
  await_previous();
  let_next_start();
  int32_t items = count_of(step, x) * slots, t = threadIdx.x & 3;
  for (int32_t item = blockIdx.x; item < items; item += gridDim.x) {
    const float* source = x.f32(item / slots) + int64_t(item % slots) * columns;
    auto load8 = [&](int32_t unit, float (&v)[8]) {
      if (unit * 8 >= columns) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = 0;
      } else if (aligned) {
        float4 a = __ldg(reinterpret_cast<const float4*>(source) + unit * 2), b = __ldg(reinterpret_cast<const float4*>(source) + unit * 2 + 1);
        v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
      } else {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = __ldg(source + unit * 8 + i);
      }
    };
    float most = 0;
    for (int32_t u = threadIdx.x; u < columns / 8; u += round_threads) {
      float v[8];
      load8(u, v);
#pragma unroll
      for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(v[i]));
    }
    most = warp_max(most);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = most;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < round_threads / 32; w++) most = fmaxf(most, shared[w]);
    // The row's largest number to [2^14, 2^15); infinities and rows of zeros stay as they are.
    most = bf16_to_f32(f32_to_bf16(most));
    int32_t exponent = __float_as_int(most) >> 23, up = most == 0 || exponent == 255 ? 127 : min(268 - exponent, 253);
    float factor = __int_as_float(up << 23);
    if (threadIdx.x == 0) scales[item] = __int_as_float((254 - up) << 23);
    for (int32_t u0 = 0; u0 < pitch / 8; u0 += round_threads) {
      int32_t u = u0 + threadIdx.x;
      float v[8];
      load8(u, v);
      uint32_t chunk[4];
#pragma unroll
      for (int c = 0; c < 4; c++) {  // c = 2 s + p
        int k = 4 * (c >> 1) + (c & 1);
        __half2 h = __floats2half2_rn(bf16_to_f32(f32_to_bf16(v[k])) * factor, bf16_to_f32(f32_to_bf16(v[k + 2])) * factor);
        chunk[c] = *reinterpret_cast<uint32_t*>(&h);
      }
      // Transposed over the four threads: thread t writes chunk t, 16 bytes.
      auto swap = [&](uint32_t& a, uint32_t& b, int bit) {
        bool odd = t & bit;
        uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? a : b, bit);
        if (odd) a = got;
        else b = got;
      };
      swap(chunk[0], chunk[1], 1), swap(chunk[2], chunk[3], 1);
      swap(chunk[0], chunk[2], 2), swap(chunk[1], chunk[3], 2);
      if (u < pitch / 8) out[int64_t(item) * (pitch / 8) + u] = make_uint4(chunk[0], chunk[1], chunk[2], chunk[3]);
    }
  }
}

// ---- pairs by expert: a counting sort by one block. The order of pairs within an expert does not show in any result.
constexpr int most_bins = 1025, group_threads = 1024, group_batch = 8;

__global__ void __launch_bounds__(group_threads) mma_group_kernel(const StepRef* step, Tensor ids, int32_t experts, int32_t* words, int32_t order_at) {
  __shared__ int32_t counts[most_bins], warp_pairs[32], warp_tiles[32], pair_base, tile_base;
  await_previous();
  let_next_start();
  int32_t pairs = max(count_of(step, ids), 0) * ids.d2, tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, bins = experts + 1;
  for (int32_t e = tid; e < bins; e += group_threads) counts[e] = 0;
  if (tid == 0) pair_base = tile_base = 0;
  __syncthreads();
  auto each = [&](auto&& f) {
    for (int32_t p0 = tid; p0 < pairs; p0 += group_threads * group_batch) {
      int32_t bin[group_batch];
#pragma unroll
      for (int i = 0; i < group_batch; i++) {
        int32_t p = p0 + i * group_threads, id = p < pairs ? ids.i32(p / ids.d2)[p % ids.d2] : -1;
        bin[i] = id >= 0 && id < experts ? id : experts;
      }
#pragma unroll
      for (int i = 0; i < group_batch; i++) {
        int32_t p = p0 + i * group_threads;
        if (p < pairs) f(p, bin[i]);
      }
    }
  };
  each([&](int32_t, int32_t bin) { atomicAdd(&counts[bin], 1); });
  __syncthreads();
  for (int32_t e0 = 0; e0 < bins; e0 += group_threads) {
    int32_t e = e0 + tid, count = e < bins ? counts[e] : 0, need = (count + mma_items - 1) / mma_items, sum = count, tiles = need;
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
      int32_t a = __shfl_up_sync(0xffffffffu, sum, o), b = __shfl_up_sync(0xffffffffu, tiles, o);
      if (lane >= o) sum += a, tiles += b;
    }
    if (lane == 31) warp_pairs[warp] = sum, warp_tiles[warp] = tiles;
    __syncthreads();
    int32_t start = pair_base + sum - count, first = tile_base + tiles - need;
    for (int w = 0; w < warp; w++) start += warp_pairs[w], first += warp_tiles[w];
    if (e < bins) {
      counts[e] = start;  // from here on the next free place
      for (int32_t t = 0; t < need; t++) {
        int32_t* out = words + 4 + 3 * (first + t);
        out[0] = e, out[1] = start + t * mma_items, out[2] = min(mma_items, count - t * mma_items);
      }
    }
    __syncthreads();
    if (tid == group_threads - 1) pair_base = start + count, tile_base = first + need;
    __syncthreads();
  }
  each([&](int32_t p, int32_t bin) { words[order_at + atomicAdd(&counts[bin], 1)] = p; });
  if (tid == 0) words[0] = tile_base;
}

int32_t most_tiles(int64_t pairs, int32_t experts) {
  int64_t bins = int64_t(experts) + 1;
  return int32_t(pairs / mma_items + (bins < pairs ? bins : pairs));
}

}  // namespace

int32_t mma_pitch(int32_t columns) { return (columns + mma_step - 1) / mma_step * mma_step; }

MmaInput mma_round(const Tensor& x, int32_t columns, const Many& many, const Run& run) {
  int32_t slots = int32_t(x.columns() / columns);
  MmaInput in{run.scratch + many.x, run.scratch_f32(many.scale), mma_pitch(columns), slots};
  int64_t items = int64_t(run.bound(x)) * slots;
  bool aligned = (reinterpret_cast<uintptr_t>(x.data) | uintptr_t(x.stride)) % 16 == 0;  // columns are a multiple of 8
  launch(run, mma_round_kernel, dim3(unsigned(items < 1 << 20 ? items : 1 << 20)), dim3(round_threads), 0, run.step, x, slots, columns, in.pitch, aligned,
         reinterpret_cast<uint4*>(run.scratch + many.x), run.scratch_f32(many.scale));
  return in;
}

int64_t mma_group_words(int64_t pairs, int32_t experts) { return 4 + 3 * int64_t(most_tiles(pairs, experts)) + pairs; }

MmaGroups mma_group(const Tensor& ids, int32_t experts, const Many& many, const Run& run) {
  int32_t* words = reinterpret_cast<int32_t*>(run.scratch + many.groups);
  MmaGroups g{words, most_tiles(int64_t(run.bound(ids)) * ids.d2, experts), ids.d2};
  launch(run, mma_group_kernel, dim3(1), dim3(group_threads), 0, run.step, ids, experts, words, 4 + 3 * g.most_tiles);
  return g;
}

void mma_product(const MmaProduct& p, const Run& run) {
  if (!mma_launch_k(p, run) && !mma_launch_old(p, run)) mma_launch_other(p, run);
}

}  // namespace bao
