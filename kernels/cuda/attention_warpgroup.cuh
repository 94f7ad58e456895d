// What the warpgroup kernels of prefill attention share (attention_warpgroup.cu, attention_warpgroup_wide.cu): the way over the pages that a cluster's rows
// see, barriers, pages copied to both blocks of a cluster, and the launch. Included by those files only.
#pragma once
#include <cuda.h>

#include "attention.h"
#include "mma_warpgroup.cuh"

namespace bao {
namespace {

constexpr int groups = 2, consumers = 128 * groups, threads = consumers + 128, cluster = 2, page_tokens = BAO_KV_PAGE_TOKENS;

#if defined(BAO_WARPGROUP)

// The pages that a cluster's rows see, sequence after sequence. Every thread that walks takes the same way.
struct Page { int32_t sequence, index, begin, end, first, last; };  // rows [begin, end) of the cluster are of this sequence and see first ... last at most
struct Walk {
  const int32_t *sequences, *positions;  // of the cluster's rows, in shared memory; sequence -1: the row is not this kernel's
  int32_t count, window, left = 0;       // left: pages not yet given
  Page at{-1, 0, 0, 0, 0, -1};
  __device__ Walk(const int32_t* sequences, const int32_t* positions, int32_t count, int32_t window) : sequences(sequences), positions(positions), count(count), window(window) {
    for (int32_t r = 0; r < count;) {
      const int32_t sequence = sequences[r], from = r;
      while (r < count && sequences[r] == sequence) r++;
      if (sequence >= 0) left += positions[r - 1] / page_tokens - first_seen(positions[from], window) / page_tokens + 1;
    }
  }
  __device__ Page next() {
    left--;
    if (at.sequence >= 0 && at.index < at.last / page_tokens) {
      at.index++;
      return at;
    }
    do {
      at.begin = at.end;
      at.sequence = sequences[at.begin];
      while (at.end < count && sequences[at.end] == at.sequence) at.end++;
    } while (at.sequence < 0);
    at.first = first_seen(positions[at.begin], window), at.last = positions[at.end - 1], at.index = at.first / page_tokens;
    return at;
  }
};

__device__ __forceinline__ void arrive(const uint64_t* barrier) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory"); }
// At the same barrier of a block of the cluster. It orders no writes beyond the block: there are none, and a fence for them would take longer than a page.
__device__ __forceinline__ void arrive_at(const uint64_t* barrier, uint32_t block, uint32_t count) {
  asm volatile("{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\nmbarrier.arrive.shared::cluster.b64 _, [there], %2;\n}" ::"r"(shared_address(barrier)), "r"(block), "r"(count) : "memory");
}
// Returns when the phase of this parity (0 first, then 1, 0, ...) has ended.
__device__ __forceinline__ void await_phase(const uint64_t* barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
  } while (!done);
}
__device__ __forceinline__ void make_barrier(const uint64_t* barrier, uint32_t count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory"); }

// A box of the pool to the same place in both blocks; each block's barrier learns of its bytes.
__device__ __forceinline__ void copy_both(uint32_t to, const CUtensorMap* map, uint32_t barrier, int32_t token, int32_t block, int32_t plane, int32_t page) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to), "l"(map), "r"(barrier), "r"(0),
      "r"(token), "r"(block), "r"(plane), "r"(page), "h"(uint16_t(3))
      : "memory");
}

// After the barriers, by the thread that made them.
__device__ __forceinline__ void barriers_made() { asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async;" ::: "memory"); }
__device__ __forceinline__ int32_t same_in_warp(int32_t v) { return __shfl_sync(0xffffffffu, v, 0); }
__device__ __forceinline__ void await_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Makes the rows of a stage zero whose tokens nobody sees: they meet probabilities of zero, but may be anything. By `count` threads, numbered from 0.
__device__ __forceinline__ void clear_unseen(uint32_t stage, int32_t bytes, int32_t tokens, int32_t token0, const Page& page, int32_t thread, int32_t count) {
  for (int32_t i = thread; i < bytes / 16; i += count) {
    const int32_t token = token0 + (i >> 3) % tokens;
    if (token < page.first || token > page.last) asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(stage + i * 16), "r"(0) : "memory");
  }
}

template <int N>
__device__ __forceinline__ void settle_all(float (&r)[N]) {
#pragma unroll
  for (int i = 0; i < N; i++) mma::settle(r[i]);
}
__device__ __forceinline__ void await_threads(int32_t barrier, int32_t count) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(count) : "memory"); }

// Pages pass through a ring of stages in this order: K of page 0, then K of page j and V of page j - 1, then V of the last.
template <int Stages, int OfPage, int Bytes>
struct Ring {
  uint64_t full[Stages], empty[Stages];
  static __device__ __forceinline__ int32_t k(int32_t page) { return OfPage * (page == 0 ? 0 : 2 * page - 1); }
  static __device__ __forceinline__ int32_t v(int32_t page, int32_t pages) { return OfPage * (2 * page + (page == pages - 1 ? 1 : 2)); }
  static __device__ __forceinline__ uint32_t offset(int32_t stage) { return uint32_t(stage % Stages * Bytes); }
  // By one thread, before await_cluster(). releases: of a stage, by both blocks.
  __device__ void make(uint32_t releases) const {
    for (int s = 0; s < Stages; s++) make_barrier(full + s, 1), make_barrier(empty + s, releases);
  }
  __device__ __forceinline__ void await(int32_t stage) const { await_phase(full + stage % Stages, stage / Stages & 1); }
  // By a warp: it has read `OfStages` stages. Both blocks learn of it, as each copies to the other as well; a lane tells one block of one stage.
  template <int OfStages = 1>
  __device__ __forceinline__ void release(int32_t stage, uint32_t count) const {
    if (const int32_t lane = threadIdx.x & 31; lane < cluster * OfStages) arrive_at(empty + (stage + lane / cluster) % Stages, lane % cluster, count);
  }
  // By one thread: copies what both blocks need, as far as its half goes. copy_k, copy_v: (to, barrier, part of the page, page).
  template <class K, class V>
  __device__ __forceinline__ void fill(const StepRef* step, int32_t table, Walk walk, uint32_t ring, int32_t rank, K&& copy_k, V&& copy_v) const {
    const int32_t pages = walk.left;
    int32_t slot = 0, phase = 1;  // the first round waits for nothing
    auto each = [&](auto&& copy, int32_t page) {
      for (int32_t s = 0; s < OfPage; s++) {
        await_phase(empty + slot, phase);
        const uint32_t barrier = shared_address(full + slot);
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(Bytes) : "memory");
        copy(ring + slot * Bytes + rank * (Bytes / cluster), barrier, s, page);
        if (++slot == Stages) slot = 0, phase ^= 1;
      }
    };
    auto page_at = [&] {
      const Page p = walk.next();
      return page_of(step, table, p.sequence, p.index * page_tokens);  // -1 lies outside of the map: zeros
    };
    int32_t page = page_at(), before = -1;
    for (int32_t j = 0; j <= pages; j++) {
      const int32_t next = j + 1 < pages ? page_at() : -1;
      if (j < pages) each(copy_k, page);
      if (j > 0) each(copy_v, before);
      before = page, page = next;
    }
  }
};

// 2^x; below 2^-126 zero.
__device__ __forceinline__ float power(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A block's place in its work: 2 x block_rows rows of one KV head are a cluster's. The last rows see the most: their clusters start first.
struct Work {
  int32_t rank, kv_head, first_row, count;
  __device__ Work(const AttentionArgs& a, int32_t rows, int32_t block_rows) {
    const int32_t item = int32_t(blockIdx.x) / cluster, tiles = int32_t(gridDim.x) / cluster / a.pool.kv_heads;
    rank = int32_t(blockIdx.x) % cluster, kv_head = item % a.pool.kv_heads;
    first_row = (tiles - 1 - item / a.pool.kv_heads) * cluster * block_rows, count = min(cluster * block_rows, rows - first_row);
  }
  // Notes the cluster's rows; whether any is this kernel's. By all threads.
  __device__ bool note(const StepRef* step, const AttentionArgs& a, int32_t rows, int32_t* sequences, int32_t* positions) const {
    bool some = false;
    if (int32_t i = threadIdx.x; i < count) {
      const int32_t row = step->step_row(a.dst.rows_of, first_row + i);
      some = !short_runs_apart(a) || !in_short_run(step, rows, row);
      sequences[i] = some ? step->row_sequence[row] : -1;
      positions[i] = step->row_position[row];
    }
    return __syncthreads_or(some);
  }
};

// One pair's q, by a warp, as f16 with a factor, to row `m` of blocks of 64 values.
template <int D>
__device__ __forceinline__ void store_q(char* tile, int32_t block_bytes, int32_t m, const float* q, bool used, float scale, float* factor) {
  const int32_t lane = threadIdx.x & 31;
  float value[D / 256][8], largest = 0;
#pragma unroll
  for (int i = 0; i < D / 256; i++) {
    const int32_t d = (i * 32 + lane) * 8;
    *reinterpret_cast<float4*>(value[i]) = used ? *reinterpret_cast<const float4*>(q + d) : float4{0, 0, 0, 0};
    *reinterpret_cast<float4*>(value[i] + 4) = used ? *reinterpret_cast<const float4*>(q + d + 4) : float4{0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < 8; j++) largest = fmaxf(largest, fabsf(value[i][j]));
  }
  const PowerOfTwo fit = fitting(warp_max(largest));
  // Never negative nor zero: the largest score is that of the largest product, and minus infinity stays what it is.
  if (lane == 0) *factor = fmaxf(fit.up * fabsf(scale) * log2_e, 0x1p-100f);
#pragma unroll
  for (int i = 0; i < D / 256; i++) {
    const int32_t chunk = i * 32 + lane;
    const float *x = value[i], f = copysignf(fit.down, scale);
    *reinterpret_cast<uint4*>(tile + (chunk >> 3) * block_bytes + m * 128 + (((chunk ^ m) & 7) << 4)) =
        uint4{packed(x[0] * f, x[1] * f), packed(x[2] * f, x[3] * f), packed(x[4] * f, x[5] * f), packed(x[6] * f, x[7] * f)};
  }
}

// A lane's two pairs: their rows of the cluster (-1: none).
struct Pairs {
  int32_t row0, row1, position0, position1;
  float factor0, factor1;
  // pair: of the first; the other is 8 later. from: the block's first row.
  __device__ Pairs(int32_t pair, int32_t heads, int32_t from, int32_t block_rows, int32_t count, const int32_t* positions, const float* factors) {
    auto row = [&](int32_t p) { return p / heads < block_rows && from + p / heads < count ? from + p / heads : -1; };
    row0 = row(pair), row1 = row(pair + 8), position0 = row0 < 0 ? -1 : positions[row0], position1 = row1 < 0 ? -1 : positions[row1];
    factor0 = factors[pair], factor1 = factors[pair + 8];
  }
  // Products of what is not to be seen become minus infinity. Gives the largest scores (products times factor), over the four lanes of a pair.
  __device__ __forceinline__ float2 mask(float (&score)[32], const Page& page, int32_t window) const {
    const int32_t token0 = page.index * page_tokens, t = threadIdx.x & 3;
    auto span = [&](int32_t row, int32_t position) {
      return row >= page.begin && row < page.end ? int2{first_seen(position, window) - token0, position - token0} : int2{0, -1};
    };
    const int2 seen0 = span(row0, position0), seen1 = span(row1, position1);
    if (!__all_sync(0xffffffffu, seen0.x <= 0 && seen0.y >= page_tokens - 1 && seen1.x <= 0 && seen1.y >= page_tokens - 1)) {
#pragma unroll
      for (int i = 0; i < 32; i++) {
        const int32_t at = i / 4 * 8 + 2 * t + i % 2;
        if (at < (i & 2 ? seen1.x : seen0.x) || at > (i & 2 ? seen1.y : seen0.y)) score[i] = -INFINITY;
      }
    }
    float high0 = fmaxf(score[0], score[1]), high1 = fmaxf(score[2], score[3]);
#pragma unroll
    for (int i = 4; i < 32; i += 4) high0 = fmaxf(high0, fmaxf(score[i], score[i + 1])), high1 = fmaxf(high1, fmaxf(score[i + 2], score[i + 3]));
#pragma unroll
    for (int o = 1; o <= 2; o <<= 1) high0 = fmaxf(high0, __shfl_xor_sync(0xffffffffu, high0, o)), high1 = fmaxf(high1, __shfl_xor_sync(0xffffffffu, high1, o));
    return {high0 * factor0, high1 * factor1};
  }
  // The probability of product i (score layout), by the largest scores so far.
  __device__ __forceinline__ float weight(float product, int i, float base0, float base1) const {
    return power(fmaf(product, i & 2 ? factor1 : factor0, probability_shift - (i & 2 ? base1 : base0)));
  }
};

#endif

// A layer of a pool as (64 values, token, block of 64 values, plane, page), copied in boxes of `tokens` x `blocks`.
bool describe_layer(CUtensorMap* map, const AttentionArgs& a, uint32_t tokens, uint32_t blocks) {
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result);
#else
    const cudaError_t error = cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
    if (error != cudaSuccess) cudaGetLastError();
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found) : nullptr;
  }();
  const PoolRef& pool = a.pool;
  const cuuint64_t head_dim = cuuint64_t(pool.head_dim), sizes[5] = {64, page_tokens, head_dim / 64, 2 * cuuint64_t(pool.kv_heads), 1 << 24};
  const cuuint64_t strides[4] = {2 * head_dim, 128, cuuint64_t(pool.plane_bytes), cuuint64_t(pool.page_stride)};
  const cuuint32_t box[5] = {64, tokens, blocks, 1, 1}, steps[5] = {1, 1, 1, 1, 1};
  return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5, pool.base + a.layer * pool.layer_stride, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// Launches a kernel of two blocks a cluster; false, and nothing launched, where it is not code for sm_90a that runs: then the kernel is empty.
template <class... P, class... A>
bool launch_clusters(const Run& run, void (*kernel)(P...), unsigned clusters, int32_t shared, const A&... args) {
  cudaFuncAttributes code{};
  if (cudaFuncGetAttributes(&code, kernel) != cudaSuccess || code.numRegs < 128) return false;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(clusters * cluster);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = size_t(shared);
  config.stream = run.stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster, attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  config.attrs = attributes;
  config.numAttrs = run.overlap ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, P(args)...);
  return true;
}

}  // namespace
}  // namespace bao
