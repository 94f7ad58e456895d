// The norms of norm.cu for 16-byte aligned rows of up to 5632 values, each read once and kept in registers, weights before the launch in front has
// ended. A row is one block's, of a thread for four values, or for eight where rows are many or long. Never anything that the plain kernels do not give
// within rounding; sums are made in units of 128 values, so both ways give the same bits.
#include "norm.h"

namespace bao {
namespace {

constexpr int unit = 128, most_units = 44, most_sums = 2;  // a warp holds a unit, four values a lane; or two of them
constexpr int wide_rows = 8, wide_units = 32;             // four values a thread: up to so many rows, of up to so many units

template <int G>
constexpr int most_threads = 32 * (G == 1 ? wide_units : most_units / 2);

template <int G>
struct alignas(16) Slice { float v[4 * G]; };

// Where a thread's group j of four values begins.
__device__ __forceinline__ int32_t place(int j) { return 4 * int32_t(j * blockDim.x + threadIdx.x); }

template <int G>
__device__ __forceinline__ Slice<G> filled(float value) {
  Slice<G> s;
#pragma unroll
  for (int i = 0; i < 4 * G; i++) s.v[i] = value;
  return s;
}

// A thread's part of n values; `otherwise` beyond them.
template <int G>
__device__ __forceinline__ Slice<G> load(const float* from, int32_t n, float otherwise = 0.0f) {
  Slice<G> s = filled<G>(otherwise);
#pragma unroll
  for (int j = 0; j < G; j++) {
    if (int32_t i = place(j); i < n) *reinterpret_cast<float4*>(s.v + 4 * j) = *reinterpret_cast<const float4*>(from + i);
  }
  return s;
}

template <int G>
__device__ __forceinline__ Slice<G> weights(const float* w, int32_t n) { return load<G>(w, w ? n : 0, 1.0f); }

template <int G>
__device__ __forceinline__ void store(float* to, int32_t n, const Slice<G>& s) {
#pragma unroll
  for (int j = 0; j < G; j++) {
    if (int32_t i = place(j); i < n) *reinterpret_cast<float4*>(to + i) = *reinterpret_cast<const float4*>(s.v + 4 * j);
  }
}

template <int G, class F>
__device__ __forceinline__ Slice<G> made(F value) {
  Slice<G> s;
#pragma unroll
  for (int i = 0; i < 4 * G; i++) s.v[i] = value(i);
  return s;
}

__device__ __forceinline__ float factor(float sum, int32_t n, float eps) { return rsqrtf(sum / float(n) + eps); }

template <int K>
struct Several { float v[K]; };

// Sums over a row with one barrier each: two places in turn, because a place is written again only after the barrier of the sum between.
template <int G>
struct Sums {
  float (*shared)[most_sums][64];
  int32_t n;
  int turn = 0;

  // value(k, i, sum): sum k and what value i of the thread adds to it.
  template <int K, class F>
  __device__ __forceinline__ Several<K> all(F value) {
    const int32_t lane = threadIdx.x & 31, units = (n + unit - 1) / unit;
    auto mine = shared[turn];
    turn ^= 1;
#pragma unroll
    for (int j = 0; j < G; j++) {
      const int32_t at = place(j) / unit;
      float part[K];
#pragma unroll
      for (int k = 0; k < K; k++) part[k] = warp_sum(value(k, 4 * j + 3, value(k, 4 * j + 2, value(k, 4 * j + 1, value(k, 4 * j, 0.0f)))));
      if (at >= units) continue;
#pragma unroll
      for (int k = 0; k < K; k++) {
        if (lane == 0) mine[k][at] = part[k];
      }
    }
    __syncthreads();
    Several<K> sum;
#pragma unroll
    for (int k = 0; k < K; k++) sum.v[k] = (lane < units ? mine[k][lane] : 0.0f) + (lane + 32 < units ? mine[k][lane + 32] : 0.0f);
#pragma unroll
    for (int k = 0; k < K; k++) sum.v[k] = warp_sum(sum.v[k]);
    return sum;
  }
  __device__ __forceinline__ float factor_of(const Slice<G>& s, float eps) {
    return factor(all<1>([&](int, int i, float sum) { return __fmaf_rn(s.v[i], s.v[i], sum); }).v[0], n, eps);
  }
};

// fetch(r, o) loads what row r has, body(what, r, o, sums) does the rest. The first row is on its way before the count of rows is known: operands have it.
template <int G, class Fetch, class Body>
__device__ __forceinline__ void each_head(const StepRef* step, const Tensor& t, Fetch fetch, Body body) {
  __shared__ float shared[2][most_sums][64];
  let_next_start();
  await_previous();
  const int64_t o = int64_t(blockIdx.x) * t.d2;
  auto row = fetch(int32_t(blockIdx.y), o);
  const int32_t rows = count_of(step, t);
  Sums<G> sums{shared, t.d2};
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    if (r != int32_t(blockIdx.y)) row = fetch(r, o);
    body(row, r, o, sums);
  }
}

template <int G>
struct One { Slice<G> x; };
template <int G>
struct Two { Slice<G> x, residual; };
template <int G>
struct Three { Slice<G> a, b, residual; };

template <int G>
__global__ void __launch_bounds__(most_threads<G>) rms_norm_kernel(const StepRef* step, RmsNormArgs a) {
  const int32_t n = a.dst.d2;
  const auto w = weights<G>(a.w, n);
  each_head<G>(step, a.dst, [&](int32_t r, int64_t o) { return One<G>{load<G>(a.x.f32(r) + o, n)}; }, [&](const One<G>& in, int32_t r, int64_t o, Sums<G>& sums) {
    const float f = sums.factor_of(in.x, a.eps) * a.scale;
    store<G>(a.dst.f32(r) + o, n, made<G>([&](int i) { return in.x.v[i] * f * w.v[i]; }));
  });
}

template <int G>
__global__ void __launch_bounds__(most_threads<G>) norm_add_kernel(const StepRef* step, NormAddArgs a) {
  const int32_t n = a.dst.d2;
  const auto w = weights<G>(a.w, n);
  each_head<G>(step, a.dst, [&](int32_t r, int64_t o) { return Two<G>{load<G>(a.x.f32(r) + o, n), load<G>(a.residual.f32(r) + o, n)}; }, [&](const Two<G>& in, int32_t r, int64_t o, Sums<G>& sums) {
    const float f = sums.factor_of(in.x, a.eps);
    store<G>(a.dst.f32(r) + o, n, made<G>([&](int i) { return (in.residual.v[i] + in.x.v[i] * f * w.v[i]) * a.scale; }));
  });
}

template <int G>
__global__ void __launch_bounds__(most_threads<G>) add_norm_kernel(const StepRef* step, AddNormArgs a) {
  const int32_t n = a.sum.d2;
  const auto w = weights<G>(a.w, n);
  each_head<G>(step, a.sum, [&](int32_t r, int64_t o) { return Two<G>{load<G>(a.x.f32(r) + o, n), load<G>(a.residual.f32(r) + o, n)}; }, [&](const Two<G>& in, int32_t r, int64_t o, Sums<G>& sums) {
    const auto sum = made<G>([&](int i) { return in.residual.v[i] + in.x.v[i]; });
    store<G>(a.sum.f32(r) + o, n, sum);
    const float f = sums.factor_of(sum, a.eps);
    store<G>(a.dst.f32(r) + o, n, made<G>([&](int i) { return sum.v[i] * f * w.v[i]; }));
  });
}

template <int G>
__global__ void __launch_bounds__(most_threads<G>) norm_add_norms_kernel(const StepRef* step, NormAddNormsArgs a) {
  const int32_t n = a.sum.d2;
  const auto w = weights<G>(a.w, n), w0 = weights<G>(a.w0, n), w1 = weights<G>(a.w1, n), w2 = weights<G>(a.w2, n);
  each_head<G>(step, a.sum, [&](int32_t r, int64_t o) { return Two<G>{load<G>(a.x.f32(r) + o, n), load<G>(a.residual.f32(r) + o, n)}; }, [&](const Two<G>& in, int32_t r, int64_t o, Sums<G>& sums) {
    const float f = sums.factor_of(in.x, a.eps);
    const auto sum = made<G>([&](int i) { return (in.residual.v[i] + in.x.v[i] * f * w.v[i]) * a.scale; });
    store<G>(a.sum.f32(r) + o, n, sum);
    const float again = sums.factor_of(sum, a.eps), again1 = again * a.scale1;
    store<G>(a.y0.f32(r) + o, n, made<G>([&](int i) { return sum.v[i] * again * w0.v[i]; }));
    if (a.y1.present()) store<G>(a.y1.f32(r) + o, n, made<G>([&](int i) { return sum.v[i] * again1 * w1.v[i]; }));
    if (a.y2.present()) store<G>(a.y2.f32(r) + o, n, made<G>([&](int i) { return sum.v[i] * again * w2.v[i]; }));
  });
}

template <int G>
__global__ void __launch_bounds__(most_threads<G>) moe_merge_kernel(const StepRef* step, MoeMergeArgs a) {
  const int32_t n = a.sum.d2;
  const auto wa = weights<G>(a.wa, n), wb = weights<G>(a.wb, n), w = weights<G>(a.w, n), wy = weights<G>(a.wy, n);
  each_head<G>(step, a.sum, [&](int32_t r, int64_t o) { return Three<G>{load<G>(a.a.f32(r) + o, n), load<G>(a.b.f32(r) + o, n), load<G>(a.residual.f32(r) + o, n)}; }, [&](const Three<G>& in, int32_t r, int64_t o, Sums<G>& sums) {
    const auto both = sums.template all<2>([&](int k, int i, float sum) { return k ? __fmaf_rn(in.b.v[i], in.b.v[i], sum) : __fmaf_rn(in.a.v[i], in.a.v[i], sum); });
    const float fa = factor(both.v[0], n, a.eps), fb = factor(both.v[1], n, a.eps);
    const auto m = made<G>([&](int i) { return __fmaf_rn(in.a.v[i] * fa, wa.v[i], in.b.v[i] * fb * wb.v[i]); });
    const float fm = sums.factor_of(m, a.eps);
    const auto middle = G == 1 ? w : weights<G>(a.w, n);  // two groups of all weights are too many registers
    const auto sum = made<G>([&](int i) { return (in.residual.v[i] + m.v[i] * fm * middle.v[i]) * a.scale; });
    store<G>(a.sum.f32(r) + o, n, sum);
    if (!a.y.present()) return;
    const auto last = G == 1 ? wy : weights<G>(a.wy, n);
    const float fy = sums.factor_of(sum, a.eps);
    store<G>(a.y.f32(r) + o, n, made<G>([&](int i) { return sum.v[i] * fy * last.v[i]; }));
  });
}

template <int G>
__global__ void __launch_bounds__(most_threads<G>) ple_combine_kernel(const StepRef* step, PleCombineArgs a) {
  const int32_t n = a.dst.d2;
  const auto w = weights<G>(a.w, n);
  each_head<G>(step, a.dst, [&](int32_t r, int64_t o) { return Two<G>{load<G>(a.projected.f32(r) + o, n), load<G>(a.token.f32(r) + o, n)}; }, [&](const Two<G>& in, int32_t r, int64_t o, Sums<G>& sums) {
    const auto x = made<G>([&](int i) { return in.x.v[i] * a.projected_scale; });
    const float f = sums.factor_of(x, a.eps);
    store<G>(a.dst.f32(r) + o, n, made<G>([&](int i) { return (x.v[i] * f * w.v[i] + in.residual.v[i]) * a.scale; }));
  });
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
bool aligned(const Tensor& t) { return !t.present() || (aligned(t.data) && t.stride % 16 == 0); }

// Launches a kernel when all operands fit it: with four values a thread, or eight.
template <class Args, class... Operands>
bool launch_for(void (*eight)(const StepRef*, Args), void (*four)(const StepRef*, Args), const Args& a, const Tensor& leader, const Run& run, const Operands&... operands) {
  const int32_t n = leader.d2, rows = run.bound(leader), units = int32_t(blocks_of(n, unit));
  if (n % 4 != 0 || units > most_units || !(aligned(operands) && ...)) return false;
  const bool wide = rows <= wide_rows && units <= wide_units;
  launch(run, wide ? four : eight, dim3(unsigned(leader.d1), grid_rows(rows)), wide ? units * 32 : blocks_of(units, 2) * 32, 0, run.step, a);
  return true;
}

}  // namespace

bool launch_wide(const RmsNormArgs& a, const Run& run) { return launch_for(rms_norm_kernel<2>, rms_norm_kernel<1>, a, a.dst, run, a.dst, a.x, a.w); }
bool launch_wide(const NormAddArgs& a, const Run& run) { return launch_for(norm_add_kernel<2>, norm_add_kernel<1>, a, a.dst, run, a.dst, a.residual, a.x, a.w); }
bool launch_wide(const AddNormArgs& a, const Run& run) { return launch_for(add_norm_kernel<2>, add_norm_kernel<1>, a, a.sum, run, a.sum, a.dst, a.residual, a.x, a.w); }
bool launch_wide(const NormAddNormsArgs& a, const Run& run) {
  return launch_for(norm_add_norms_kernel<2>, norm_add_norms_kernel<1>, a, a.sum, run, a.sum, a.y0, a.y1, a.y2, a.residual, a.x, a.w, a.w0, a.w1, a.w2);
}
bool launch_wide(const MoeMergeArgs& a, const Run& run) {
  return launch_for(moe_merge_kernel<2>, moe_merge_kernel<1>, a, a.sum, run, a.sum, a.y, a.residual, a.a, a.b, a.wa, a.wb, a.w, a.wy);
}
bool launch_wide(const PleCombineArgs& a, const Run& run) { return launch_for(ple_combine_kernel<2>, ple_combine_kernel<1>, a, a.dst, run, a.dst, a.projected, a.token, a.w); }

}  // namespace bao
