// KV append, plain and fused with head norms and rotation; page copies.
#include "backend.cuh"
#include "kv.h"
#include "rope.h"

namespace bao {
namespace {

constexpr int threads = 128;

// Block (head of K then V, row).
__global__ void __launch_bounds__(threads) append_kernel(const StepRef* step, KvAppendArgs a) {
  int32_t rows = count_of(step, a.k), head = blockIdx.x % a.pool.kv_heads;
  bool v = blockIdx.x >= a.pool.kv_heads;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    TokenPlace at = place_of(step, a.k.rows_of, r, a.pool.table);
    if (at.page < 0) continue;
    const float* x = (v ? a.v : a.k).f32(r) + int64_t(head) * a.k.d2;
    store_head(a.pool, a.pool.plane(a.layer, at.page, head, v), at.position % BAO_KV_PAGE_TOKENS, x, threadIdx.x, threads);
  }
}

// Block (query head, or behind them KV head, row). A head lives in shared memory while it is normed and rotated.
__global__ void __launch_bounds__(threads) head_kernel(const StepRef* step, HeadNormRopeAppendArgs a) {
  extern __shared__ float x[];  // [head_dim], then the rotated or normed values [head_dim]
  __shared__ float shared[32];
  int32_t rows = count_of(step, a.q), n = a.q.d2, half = a.table.d2;
  bool query = int32_t(blockIdx.x) < a.q.d1;
  int32_t head = query ? blockIdx.x : blockIdx.x - a.q.d1;
  float* y = x + n;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    float* source = (query ? a.q : a.k).f32(r) + int64_t(head) * n;
    const float* w = query ? a.wq : a.wk;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += threads) x[i] = source[i];
    __syncthreads();
    auto factor_of = [&](const float* values) {
      float sum = 0;
      for (int32_t i = threadIdx.x; i < n; i += threads) sum += values[i] * values[i];
      return 1.0f / sqrtf(block_sum(sum, shared) / float(n) + a.eps);
    };
    TokenPlace at{0, 0, -1};
    if (!query) {
      at = place_of(step, a.q.rows_of, r, a.pool.table);
      const float* value = a.v.present() ? a.v.f32(r) + int64_t(head) * n : x;
      if (a.norm_v) {
        float factor = factor_of(value);
        for (int32_t i = threadIdx.x; i < n; i += threads) y[i] = value[i] * factor;
        value = y;
        __syncthreads();
      }
      if (at.page >= 0) store_head(a.pool, a.pool.plane(a.layer, at.page, head, true), at.position % BAO_KV_PAGE_TOKENS, value, threadIdx.x, threads);
      __syncthreads();
    }
    if (w) {
      float factor = factor_of(x);
      for (int32_t i = threadIdx.x; i < n; i += threads) x[i] = x[i] * factor * w[i];
      __syncthreads();
    }
    const float* table = a.table.f32(r);
    for (int32_t i = threadIdx.x; i < half; i += threads) {
      Pair p = rotated_pair(x, table, i, half, a.mode);
      y[p.first] = p.a;
      y[p.second] = p.b;
    }
    for (int32_t i = 2 * half + threadIdx.x; i < n; i += threads) y[i] = x[i];
    __syncthreads();
    if (query) {
      for (int32_t i = threadIdx.x; i < n; i += threads) source[i] = y[i];
    } else if (at.page >= 0) {
      store_head(a.pool, a.pool.plane(a.layer, at.page, head, false), at.position % BAO_KV_PAGE_TOKENS, y, threadIdx.x, threads);
    }
  }
}

void launch_append(const KvAppendArgs& a, const Run& run) {
  int32_t rows = run.bound(a.k);
  if (rows > 0) append_kernel<<<dim3(2 * unsigned(a.pool.kv_heads), grid_rows(rows)), threads, 0, run.stream>>>(run.step, a);
}

void launch_heads(const HeadNormRopeAppendArgs& a, const Run& run) {
  int32_t rows = run.bound(a.q);
  unsigned heads = unsigned(a.q.d1 + (a.k.present() ? a.pool.kv_heads : 0));
  if (rows > 0) head_kernel<<<dim3(heads, grid_rows(rows)), threads, size_t(a.q.d2) * 8, run.stream>>>(run.step, a);
}

// Block (plane, layer): the first `bytes` of values and of scales.
__global__ void __launch_bounds__(256) copy_kernel(PoolRef pool, int32_t destination, int32_t source, int32_t bytes, int32_t scale_bytes) {
  char* to = pool.plane(blockIdx.y, destination, blockIdx.x, false);
  const char* from = pool.plane(blockIdx.y, source, blockIdx.x, false);
  for (int32_t i = threadIdx.x * 2; i < bytes; i += 512) *reinterpret_cast<uint16_t*>(to + i) = *reinterpret_cast<const uint16_t*>(from + i);
  for (int32_t i = threadIdx.x * 4; i < scale_bytes; i += 1024) {
    *reinterpret_cast<float*>(to + pool.scales_offset + i) = *reinterpret_cast<const float*>(from + pool.scales_offset + i);
  }
}

}  // namespace

void launch_page_copy(const PoolRef& pool, int32_t destination, int32_t source, int32_t tokens, cudaStream_t stream) {
  int32_t element = pool.dtype == BAO_F32 ? 4 : pool.dtype == BAO_F16 ? 2 : 1;
  int32_t scales = pool.dtype == BAO_Q8_0 ? tokens * pool.head_dim / 32 * 4 : 0;
  copy_kernel<<<dim3(2 * unsigned(pool.kv_heads), unsigned(pool.layers)), 256, 0, stream>>>(pool, destination, source, tokens * pool.head_dim * element, scales);
}

namespace cuda {
void kv_append(Builder& b, const KvAppendArgs& a) { stage<KvAppendArgs, launch_append>(b, a); }
void head_norm_rope_append(Builder& b, const HeadNormRopeAppendArgs& a) { stage<HeadNormRopeAppendArgs, launch_heads>(b, a); }
}  // namespace cuda

}  // namespace bao
