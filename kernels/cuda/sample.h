// What the kernels behind the logits share: a row is cut into chunks of 4096 ids, a block each; the block that ends last goes on with what all of
// them left. Decisions are made with integers, whose sums do not depend on order.
#pragma once
#include "../common/sample_mass.h"
#include "run.h"

namespace bao {

constexpr int sample_threads = 1024, sample_warps = sample_threads / 32, chunk_ids = 4096;

void launch_draw(const SampleArgs& a, int64_t scratch, const Run& run);  // draw.cu
int64_t draw_scratch(const Tensor& logits);                              // bytes

#if defined(__CUDACC__)

__device__ __forceinline__ const int32_t* sampler_of(const StepRef* step, int32_t output) { return step->sampler + int64_t(output) * BAO_SAMPLER_WORDS; }
__device__ __forceinline__ int32_t* result_of(const StepRef* step, int32_t output) { return step->result + int64_t(output) * BAO_RESULT_WORDS; }
__device__ __forceinline__ float word(const int32_t* words, int32_t at) { return __int_as_float(words[at]); }

// The larger key, ties to the lower id: a total order, so that any order of reduction agrees. Key 0 is NaN's, or nothing's.
struct Best { uint32_t key; int32_t id; };
__device__ __forceinline__ Best better(Best a, Best b) { return b.key > a.key || (b.key == a.key && b.id < a.id) ? b : a; }
__device__ __forceinline__ Best warp_best(Best v) {
  for (int o = 16; o; o >>= 1) v = better(v, Best{__shfl_xor_sync(0xffffffffu, v.key, o), __shfl_xor_sync(0xffffffffu, v.id, o)});
  return v;
}
// The same for all threads of the block.
__device__ __forceinline__ Best block_best(Best v, Best (&shared)[sample_warps]) {
  v = warp_best(v);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  __syncthreads();
  return warp_best(shared[threadIdx.x & 31]);
}

// The sum of v over the threads below this one, and over all.
struct Prefix { uint64_t before, total; };
__device__ __forceinline__ uint64_t warp_prefix(uint64_t v) {
  for (int o = 1; o < 32; o <<= 1) {
    uint64_t other = __shfl_up_sync(0xffffffffu, (unsigned long long)v, o);
    if (int(threadIdx.x & 31) >= o) v += other;
  }
  return v;
}
__device__ __forceinline__ Prefix block_prefix(uint64_t v, uint64_t (&shared)[sample_warps]) {
  uint64_t until = warp_prefix(v);
  __syncthreads();
  if ((threadIdx.x & 31) == 31) shared[threadIdx.x >> 5] = until;
  __syncthreads();
  uint64_t warps = warp_prefix(shared[threadIdx.x & 31]);
  int warp = threadIdx.x >> 5;
  uint64_t below = __shfl_sync(0xffffffffu, (unsigned long long)warps, (warp + 31) & 31), total = __shfl_sync(0xffffffffu, (unsigned long long)warps, 31);
  return {(warp ? below : 0) + until - v, total};
}

// Whether this block is the last of `blocks` that count in *ticket; what the others wrote before can then be read, past the first cache.
__device__ __forceinline__ bool last_block(uint32_t* ticket, uint32_t blocks, bool* shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *shared = atomicAdd(ticket, 1u) == blocks - 1;
    if (*shared) *ticket = 0;
  }
  __syncthreads();
  if (*shared) __threadfence();
  return *shared;
}

// Sorts n values (a power of two) in shared memory, by the whole block.
template <bool Descending>
__device__ void block_sort(uint64_t* values, int32_t n) {
  for (int32_t size = 2; size <= n; size <<= 1) {
    for (int32_t apart = size >> 1; apart; apart >>= 1) {
      __syncthreads();
      for (int32_t i = threadIdx.x; i < n / 2; i += sample_threads) {
        int32_t low = 2 * i - (i & (apart - 1)), high = low + apart;
        uint64_t a = values[low], b = values[high];
        if (((low & size) == 0) == (Descending ? a < b : a > b)) values[low] = b, values[high] = a;
      }
    }
  }
  __syncthreads();
}
__device__ __forceinline__ int32_t power_of_two(int32_t n) { return n <= 1 ? 1 : 1 << (32 - __clz(n - 1)); }

#endif

}  // namespace bao
