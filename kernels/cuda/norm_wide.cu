// The norms of norm.cu for 16-byte aligned rows of up to 5632 values: one block a (row, head), each value read once and kept in registers,
// weights read before the launch in front has ended. Never anything that the plain kernels do not give within rounding.
#include "norm.h"

namespace bao {
namespace {

constexpr int most_threads = 704, each = 8;  // values a thread, as two groups of four that lie a block apart

struct alignas(16) Slice { float v[each]; };

__device__ __forceinline__ Slice filled(float value) {
  Slice s;
#pragma unroll
  for (int i = 0; i < each; i++) s.v[i] = value;
  return s;
}

// A thread's part of n values; `otherwise` beyond them.
__device__ __forceinline__ Slice load(const float* from, int32_t n, float otherwise = 0.0f) {
  Slice s = filled(otherwise);
#pragma unroll
  for (int j = 0; j < each / 4; j++) {
    int32_t i = 4 * (int32_t(threadIdx.x) + j * int32_t(blockDim.x));
    if (i < n) *reinterpret_cast<float4*>(s.v + 4 * j) = *reinterpret_cast<const float4*>(from + i);
  }
  return s;
}

__device__ __forceinline__ Slice weights(const float* w, int32_t n) { return w ? load(w, n, 1.0f) : filled(1.0f); }

__device__ __forceinline__ void store(float* to, int32_t n, const Slice& s) {
#pragma unroll
  for (int j = 0; j < each / 4; j++) {
    int32_t i = 4 * (int32_t(threadIdx.x) + j * int32_t(blockDim.x));
    if (i < n) *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(s.v + 4 * j);
  }
}

template <class F>
__device__ __forceinline__ Slice made(F value) {
  Slice s;
#pragma unroll
  for (int i = 0; i < each; i++) s.v[i] = value(i);
  return s;
}

// Sums over the block with one barrier each: two places in turn, because a place is written again only after the barrier of the sum between.
struct Sums {
  float2 (*shared)[32];
  int turn = 0;
  __device__ float2 operator()(float2 v) {
    v.x = warp_sum(v.x);
    v.y = warp_sum(v.y);
    float2* mine = shared[turn];
    turn ^= 1;
    if ((threadIdx.x & 31) == 0) mine[threadIdx.x >> 5] = v;
    __syncthreads();
    float2 sum{0, 0};
    for (int w = 0; w < int(blockDim.x >> 5); w++) sum.x += mine[w].x, sum.y += mine[w].y;
    return sum;
  }
  static __device__ float squares(const Slice& s) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < each; i++) sum += s.v[i] * s.v[i];
    return sum;
  }
  static __device__ float factor(float sum, int32_t n, float eps) { return 1.0f / sqrtf(sum / float(n) + eps); }
  __device__ float factor_of(const Slice& s, int32_t n, float eps) { return factor((*this)(float2{squares(s), 0}).x, n, eps); }
};

template <class Body>
__device__ __forceinline__ void each_head(const StepRef* step, const Tensor& t, Body body) {
  __shared__ float2 shared[2][32];
  await_previous();
  let_next_start();
  Sums sums{shared};
  int32_t rows = count_of(step, t);
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) body(r, int64_t(blockIdx.x) * t.d2, sums);
}

__global__ void __launch_bounds__(most_threads) rms_norm_kernel(const StepRef* step, RmsNormArgs a) {
  int32_t n = a.dst.d2;
  Slice w = weights(a.w, n);
  each_head(step, a.dst, [&](int32_t r, int64_t o, Sums& sums) {
    Slice x = load(a.x.f32(r) + o, n);
    float factor = sums.factor_of(x, n, a.eps);
    store(a.dst.f32(r) + o, n, made([&](int i) { return x.v[i] * factor * a.scale * w.v[i]; }));
  });
}

__global__ void __launch_bounds__(most_threads) norm_add_kernel(const StepRef* step, NormAddArgs a) {
  int32_t n = a.dst.d2;
  Slice w = weights(a.w, n);
  each_head(step, a.dst, [&](int32_t r, int64_t o, Sums& sums) {
    Slice x = load(a.x.f32(r) + o, n), residual = load(a.residual.f32(r) + o, n);
    float factor = sums.factor_of(x, n, a.eps);
    store(a.dst.f32(r) + o, n, made([&](int i) { return (residual.v[i] + x.v[i] * factor * w.v[i]) * a.scale; }));
  });
}

__global__ void __launch_bounds__(most_threads) add_norm_kernel(const StepRef* step, AddNormArgs a) {
  int32_t n = a.sum.d2;
  Slice w = weights(a.w, n);
  each_head(step, a.sum, [&](int32_t r, int64_t o, Sums& sums) {
    Slice x = load(a.x.f32(r) + o, n), residual = load(a.residual.f32(r) + o, n), sum = made([&](int i) { return residual.v[i] + x.v[i]; });
    store(a.sum.f32(r) + o, n, sum);
    float factor = sums.factor_of(sum, n, a.eps);
    store(a.dst.f32(r) + o, n, made([&](int i) { return sum.v[i] * factor * w.v[i]; }));
  });
}

__global__ void __launch_bounds__(most_threads) norm_add_norms_kernel(const StepRef* step, NormAddNormsArgs a) {
  int32_t n = a.sum.d2;
  Slice w = weights(a.w, n), w0 = weights(a.w0, n), w1 = weights(a.w1, n), w2 = weights(a.w2, n);
  each_head(step, a.sum, [&](int32_t r, int64_t o, Sums& sums) {
    Slice x = load(a.x.f32(r) + o, n), residual = load(a.residual.f32(r) + o, n);
    float factor = sums.factor_of(x, n, a.eps);
    Slice sum = made([&](int i) { return (residual.v[i] + x.v[i] * factor * w.v[i]) * a.scale; });
    store(a.sum.f32(r) + o, n, sum);
    float again = sums.factor_of(sum, n, a.eps);
    store(a.y0.f32(r) + o, n, made([&](int i) { return sum.v[i] * again * w0.v[i]; }));
    if (a.y1.present()) store(a.y1.f32(r) + o, n, made([&](int i) { return sum.v[i] * again * a.scale1 * w1.v[i]; }));
    if (a.y2.present()) store(a.y2.f32(r) + o, n, made([&](int i) { return sum.v[i] * again * w2.v[i]; }));
  });
}

__global__ void __launch_bounds__(most_threads) moe_merge_kernel(const StepRef* step, MoeMergeArgs a) {
  int32_t n = a.sum.d2;
  Slice wa = weights(a.wa, n), wb = weights(a.wb, n), w = weights(a.w, n), wy = weights(a.wy, n);
  each_head(step, a.sum, [&](int32_t r, int64_t o, Sums& sums) {
    Slice xa = load(a.a.f32(r) + o, n), xb = load(a.b.f32(r) + o, n), residual = load(a.residual.f32(r) + o, n);
    float2 both = sums(float2{Sums::squares(xa), Sums::squares(xb)});
    float fa = Sums::factor(both.x, n, a.eps), fb = Sums::factor(both.y, n, a.eps);
    Slice m = made([&](int i) { return xa.v[i] * fa * wa.v[i] + xb.v[i] * fb * wb.v[i]; });
    float fm = sums.factor_of(m, n, a.eps);
    Slice sum = made([&](int i) { return (residual.v[i] + m.v[i] * fm * w.v[i]) * a.scale; });
    store(a.sum.f32(r) + o, n, sum);
    if (!a.y.present()) return;
    float fy = sums.factor_of(sum, n, a.eps);
    store(a.y.f32(r) + o, n, made([&](int i) { return sum.v[i] * fy * wy.v[i]; }));
  });
}

__global__ void __launch_bounds__(most_threads) ple_combine_kernel(const StepRef* step, PleCombineArgs a) {
  int32_t n = a.dst.d2;
  Slice w = weights(a.w, n);
  each_head(step, a.dst, [&](int32_t r, int64_t o, Sums& sums) {
    Slice projected = load(a.projected.f32(r) + o, n), token = load(a.token.f32(r) + o, n);
    Slice x = made([&](int i) { return projected.v[i] * a.projected_scale; });
    float factor = sums.factor_of(x, n, a.eps);
    store(a.dst.f32(r) + o, n, made([&](int i) { return (x.v[i] * factor * w.v[i] + token.v[i]) * a.scale; }));
  });
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
bool aligned(const Tensor& t) { return !t.present() || (aligned(t.data) && t.stride % 16 == 0); }

// Launches `kernel` when all operands fit it.
template <class Args, class... Operands>
bool launch_for(void (*kernel)(const StepRef*, Args), const Args& a, const Tensor& leader, const Run& run, const Operands&... operands) {
  int32_t n = leader.d2, rows = run.bound(leader);
  if (n % 4 != 0 || n > each * most_threads || !(aligned(operands) && ...)) return false;
  launch(run, kernel, dim3(unsigned(leader.d1), grid_rows(rows)), blocks_of(n, each * 32) * 32, 0, run.step, a);
  return true;
}

}  // namespace

bool launch_wide(const RmsNormArgs& a, const Run& run) { return launch_for(rms_norm_kernel, a, a.dst, run, a.dst, a.x, a.w); }
bool launch_wide(const NormAddArgs& a, const Run& run) { return launch_for(norm_add_kernel, a, a.dst, run, a.dst, a.residual, a.x, a.w); }
bool launch_wide(const AddNormArgs& a, const Run& run) { return launch_for(add_norm_kernel, a, a.sum, run, a.sum, a.dst, a.residual, a.x, a.w); }
bool launch_wide(const NormAddNormsArgs& a, const Run& run) {
  return launch_for(norm_add_norms_kernel, a, a.sum, run, a.sum, a.y0, a.y1, a.y2, a.residual, a.x, a.w, a.w0, a.w1, a.w2);
}
bool launch_wide(const MoeMergeArgs& a, const Run& run) { return launch_for(moe_merge_kernel, a, a.sum, run, a.sum, a.y, a.residual, a.a, a.b, a.wa, a.wb, a.w, a.wy); }
bool launch_wide(const PleCombineArgs& a, const Run& run) { return launch_for(ple_combine_kernel, a, a.dst, run, a.dst, a.projected, a.token, a.w); }

}  // namespace bao
