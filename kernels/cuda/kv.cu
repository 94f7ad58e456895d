// KV append, plain and fused with head norms and rotation; page copies.
#include <cuda_pipeline.h>

#include "backend.cuh"
#include "kv.h"
#include "rope.h"

namespace bao {
namespace {

constexpr int threads = 128, head_warps = 4;

// Block (head of K then V, row).
__global__ void __launch_bounds__(threads) append_kernel(const StepRef* step, KvAppendArgs a) {
  let_next_start();
  await_previous();
  int32_t rows = count_of(step, a.k), head = blockIdx.x % a.pool.kv_heads;
  bool v = blockIdx.x >= a.pool.kv_heads;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    TokenPlace at = place_of(step, a.k.rows_of, r, a.pool.table);
    if (at.page < 0) continue;
    const float* x = (v ? a.v : a.k).f32(r) + int64_t(head) * a.k.d2;
    store_head(a.pool, a.pool.plane(a.layer, at.page, head, v), at.position % BAO_KV_PAGE_TOKENS, x, threadIdx.x, threads);
  }
}

// Warp (query head; behind them K head; behind those V head), row. The head, its weights and the row's table come to shared memory at once.
__global__ void __launch_bounds__(32 * head_warps) head_kernel(const StepRef* step, HeadNormRopeAppendArgs a) {
  extern __shared__ float memory[];
  let_next_start();
  await_previous();
  int32_t rows = count_of(step, a.q), n = a.q.d2, half = a.table.d2, kv_heads = a.k.present() ? a.pool.kv_heads : 0, lane = threadIdx.x & 31;
  int32_t head = blockIdx.x * head_warps + (threadIdx.x >> 5);
  bool query = head < a.q.d1, value = head >= a.q.d1 + kv_heads;
  if (head >= a.q.d1 + 2 * kv_heads) return;
  if (!query) head -= value ? a.q.d1 + kv_heads : a.q.d1;
  const Tensor& from = query ? a.q : value && a.v.present() ? a.v : a.k;
  const float* w = query ? a.wq : value ? nullptr : a.wk;
  float *x = memory + int32_t(threadIdx.x >> 5) * (2 * n + 2 * half), *y = x + n, *table = y + n;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    float* source = from.f32(r) + int64_t(head) * n;
    __syncwarp();
    for (int32_t i = lane; i < n; i += 32) __pipeline_memcpy_async(x + i, source + i, 4);
    if (w) for (int32_t i = lane; i < n; i += 32) __pipeline_memcpy_async(y + i, w + i, 4);
    if (!value) for (int32_t i = lane; i < 2 * half; i += 32) __pipeline_memcpy_async(table + i, a.table.f32(r) + i, 4);
    __pipeline_commit();
    TokenPlace at{0, 0, -1};
    if (!query) at = place_of(step, a.q.rows_of, r, a.pool.table);
    __pipeline_wait_prior(0);
    if (w || (value && a.norm_v)) {  // a lane reads what it copied itself
      float sum = 0;
      for (int32_t i = lane; i < n; i += 32) sum += x[i] * x[i];
      float factor = 1.0f / sqrtf(warp_sum(sum) / float(n) + a.eps);
      for (int32_t i = lane; i < n; i += 32) x[i] = w ? x[i] * factor * y[i] : x[i] * factor;
    }
    __syncwarp();
    if (!value) {
      for (int32_t i = lane; i < half; i += 32) {
        Pair p = rotated_pair(x, table, i, half, a.mode);
        y[p.first] = p.a;
        y[p.second] = p.b;
      }
      for (int32_t i = 2 * half + lane; i < n; i += 32) y[i] = x[i];
      __syncwarp();
    }
    if (query) {
      for (int32_t i = lane; i < n; i += 32) source[i] = y[i];
    } else if (at.page >= 0) {
      store_head(a.pool, a.pool.plane(a.layer, at.page, head, value), at.position % BAO_KV_PAGE_TOKENS, value ? x : y, lane, 32);
    }
  }
}

// The same for heads of 256 J values, aligned, that rotate as a whole in halves, and F16 KV: a lane keeps its 8 J values in registers, pairs together.
template <int J>
__global__ void __launch_bounds__(32 * head_warps, 4) head_wide_kernel(const StepRef* step, HeadNormRopeAppendArgs a) {
  constexpr int n = 256 * J, half = n / 2;
  const int32_t kv_heads = a.k.present() ? a.pool.kv_heads : 0, lane = threadIdx.x & 31, all = blockIdx.x * head_warps + (threadIdx.x >> 5);
  const bool query = all < a.q.d1, value = all >= a.q.d1 + kv_heads, idle = all >= a.q.d1 + 2 * kv_heads;
  const int32_t head = query ? all : value ? all - a.q.d1 - kv_heads : all - a.q.d1;
  const Tensor& from = query ? a.q : value && a.v.present() ? a.v : a.k;
  const float* w = query ? a.wq : value ? nullptr : a.wk;
  float4 weight[2][J];
#pragma unroll
  for (int i = 0; i < 2 * J; i++) weight[i / J][i % J] = w ? __ldg(reinterpret_cast<const float4*>(w + i / J * half + i % J * 128) + lane) : make_float4(1, 1, 1, 1);
  let_next_start();
  // Where the first row goes the start of the step has left behind.
  const int32_t rows = count_of(step, a.q);
  TokenPlace at{0, 0, -1};
  if (!query && int32_t(blockIdx.y) < rows) at = place_of(step, a.q.rows_of, blockIdx.y, a.pool.table);
  await_previous();
  if (idle) return;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    alignas(16) float x[2][J][4], turn[2][J][4];
    float* source = from.f32(r) + int64_t(head) * n;
#pragma unroll
    for (int i = 0; i < 2 * J; i++) {
      const int32_t at = i / J * half + i % J * 128 + 4 * lane;
      *reinterpret_cast<float4*>(x[i / J][i % J]) = *reinterpret_cast<const float4*>(source + at);
      if (!value) *reinterpret_cast<float4*>(turn[i / J][i % J]) = *reinterpret_cast<const float4*>(a.table.f32(r) + at);
    }
    if (!query && r != int32_t(blockIdx.y)) at = place_of(step, a.q.rows_of, r, a.pool.table);
    if (w || (value && a.norm_v)) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < 8 * J; i++) sum = __fmaf_rn((&x[0][0][0])[i], (&x[0][0][0])[i], sum);
      const float factor = rsqrtf(warp_sum(sum) / float(n) + a.eps);
#pragma unroll
      for (int i = 0; i < 2 * J; i++) {
        float* v = x[i / J][i % J];
        const float4 by = weight[i / J][i % J];
        v[0] *= factor * by.x, v[1] *= factor * by.y, v[2] *= factor * by.z, v[3] *= factor * by.w;
      }
    }
    if (!value) {
#pragma unroll
      for (int i = 0; i < 4 * J; i++) {
        const float u = x[0][i / 4][i % 4], v = x[1][i / 4][i % 4], c = turn[0][i / 4][i % 4], s = turn[1][i / 4][i % 4];
        x[0][i / 4][i % 4] = u * c - v * s;
        x[1][i / 4][i % 4] = u * s + v * c;
      }
    }
    uint16_t* plane = query || at.page < 0 ? nullptr : reinterpret_cast<uint16_t*>(a.pool.plane(a.layer, at.page, head, value)) + at.position % BAO_KV_PAGE_TOKENS * n;
#pragma unroll
    for (int i = 0; i < 2 * J; i++) {
      const int32_t to = i / J * half + i % J * 128 + 4 * lane;
      const float* v = x[i / J][i % J];
      if (query) *reinterpret_cast<float4*>(source + to) = float4{v[0], v[1], v[2], v[3]};
      else if (plane) *reinterpret_cast<ushort4*>(plane + to) = ushort4{f16_of(v[0]), f16_of(v[1]), f16_of(v[2]), f16_of(v[3])};
    }
  }
}

void launch_append(const KvAppendArgs& a, const Run& run) {
  int32_t rows = run.bound(a.k);
  if (rows > 0) launch(run, append_kernel, dim3(2 * unsigned(a.pool.kv_heads), grid_rows(rows)), threads, 0, run.step, a);
}

void launch_heads(const HeadNormRopeAppendArgs& a, const Run& run) {
  int32_t rows = run.bound(a.q);
  int32_t heads = a.q.d1 + (a.k.present() ? 2 * a.pool.kv_heads : 0);
  if (rows <= 0) return;
  auto aligned = [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 16 == 0; };
  const bool weights = (reinterpret_cast<uintptr_t>(a.wq) | reinterpret_cast<uintptr_t>(a.wk)) % 16 == 0;
  if (a.mode == BAO_ROPE_NEOX && 2 * a.table.d2 == a.q.d2 && (a.q.d2 == 256 || a.q.d2 == 512) && (!a.k.present() || a.pool.dtype == BAO_F16) && aligned(a.q) &&
      aligned(a.k) && aligned(a.v) && aligned(a.table) && weights) {
    launch(run, a.q.d2 == 256 ? head_wide_kernel<1> : head_wide_kernel<2>, dim3(blocks_of(heads, head_warps), grid_rows(rows)), 32 * head_warps, 0, run.step, a);
    return;
  }
  size_t shared = size_t(2 * a.q.d2 + 2 * a.table.d2) * 4 * head_warps;  // head_dim <= 1024: within 48 KiB
  launch(run, head_kernel, dim3(blocks_of(heads, head_warps), grid_rows(rows)), 32 * head_warps, shared, run.step, a);
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
