// RMS norms and what Gemma and Llama do around them: one block a (row, head), sums of squares in f32 in a fixed order. Any width and alignment;
// aligned rows of up to 5632 values go to norm_wide.cu.
#include "norm.h"

namespace bao {
namespace {

constexpr int threads = 256;

// Block (head, row) of t; strides over rows beyond the grid.
template <class Body>
__device__ void each_head(const StepRef* step, const Tensor& t, Body body) {
  await_previous();
  int32_t rows = count_of(step, t);
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) body(r, int64_t(blockIdx.x) * t.d2);
}

template <class F>
__device__ float factor_of(int32_t n, float eps, float* shared, F value) {
  float sum = 0;
  for (int32_t i = threadIdx.x; i < n; i += threads) {
    float v = value(i);
    sum += v * v;
  }
  return 1.0f / sqrtf(block_sum(sum, shared) / float(n) + eps);
}

__device__ __forceinline__ float weighted(float x, float factor, float scale, const float* w, int32_t i) {
  return x * factor * scale * (w ? w[i] : 1.0f);
}

__device__ void norm_to(float* dst, const float* x, const float* w, int32_t n, float eps, float scale, float* shared) {
  float factor = factor_of(n, eps, shared, [&](int32_t i) { return x[i]; });
  for (int32_t i = threadIdx.x; i < n; i += threads) dst[i] = weighted(x[i], factor, scale, w, i);
}

__global__ void __launch_bounds__(threads) rms_norm_kernel(const StepRef* step, RmsNormArgs a) {
  __shared__ float shared[32];
  each_head(step, a.dst, [&](int32_t r, int64_t o) { norm_to(a.dst.f32(r) + o, a.x.f32(r) + o, a.w, a.dst.d2, a.eps, a.scale, shared); });
}

__global__ void __launch_bounds__(threads) norm_add_kernel(const StepRef* step, NormAddArgs a) {
  __shared__ float shared[32];
  each_head(step, a.dst, [&](int32_t r, int64_t o) {
    float* dst = a.dst.f32(r) + o;
    const float *residual = a.residual.f32(r) + o, *x = a.x.f32(r) + o;
    float factor = factor_of(a.dst.d2, a.eps, shared, [&](int32_t i) { return x[i]; });
    for (int32_t i = threadIdx.x; i < a.dst.d2; i += threads) dst[i] = (residual[i] + weighted(x[i], factor, 1.0f, a.w, i)) * a.scale;
  });
}

__global__ void __launch_bounds__(threads) add_norm_kernel(const StepRef* step, AddNormArgs a) {
  __shared__ float shared[32];
  each_head(step, a.sum, [&](int32_t r, int64_t o) {
    float* sum = a.sum.f32(r) + o;
    const float *residual = a.residual.f32(r) + o, *x = a.x.f32(r) + o;
    for (int32_t i = threadIdx.x; i < a.sum.d2; i += threads) sum[i] = residual[i] + x[i];
    norm_to(a.dst.f32(r) + o, sum, a.w, a.sum.d2, a.eps, 1.0f, shared);  // each thread reads what it wrote itself
  });
}

__global__ void __launch_bounds__(threads) norm_add_norms_kernel(const StepRef* step, NormAddNormsArgs a) {
  __shared__ float shared[32];
  each_head(step, a.sum, [&](int32_t r, int64_t o) {
    int32_t n = a.sum.d2;
    float* sum = a.sum.f32(r) + o;
    const float *residual = a.residual.f32(r) + o, *x = a.x.f32(r) + o;
    float factor = factor_of(n, a.eps, shared, [&](int32_t i) { return x[i]; });
    for (int32_t i = threadIdx.x; i < n; i += threads) sum[i] = (residual[i] + weighted(x[i], factor, 1.0f, a.w, i)) * a.scale;
    float again = factor_of(n, a.eps, shared, [&](int32_t i) { return sum[i]; });
    for (int32_t i = threadIdx.x; i < n; i += threads) {
      float s = sum[i];
      a.y0.f32(r)[o + i] = weighted(s, again, 1.0f, a.w0, i);
      if (a.y1.present()) a.y1.f32(r)[o + i] = weighted(s, again, a.scale1, a.w1, i);
      if (a.y2.present()) a.y2.f32(r)[o + i] = weighted(s, again, 1.0f, a.w2, i);
    }
  });
}

__global__ void __launch_bounds__(threads) moe_merge_kernel(const StepRef* step, MoeMergeArgs a) {
  __shared__ float shared[32];
  each_head(step, a.sum, [&](int32_t r, int64_t o) {
    int32_t n = a.sum.d2;
    const float *residual = a.residual.f32(r) + o, *xa = a.a.f32(r) + o, *xb = a.b.f32(r) + o;
    float* sum = a.sum.f32(r) + o;
    float fa = factor_of(n, a.eps, shared, [&](int32_t i) { return xa[i]; }), fb = factor_of(n, a.eps, shared, [&](int32_t i) { return xb[i]; });
    auto m = [&](int32_t i) { return weighted(xa[i], fa, 1.0f, a.wa, i) + weighted(xb[i], fb, 1.0f, a.wb, i); };
    float fm = factor_of(n, a.eps, shared, m);
    for (int32_t i = threadIdx.x; i < n; i += threads) sum[i] = (residual[i] + weighted(m(i), fm, 1.0f, a.w, i)) * a.scale;
    if (a.y.present()) norm_to(a.y.f32(r) + o, sum, a.wy, n, a.eps, 1.0f, shared);
  });
}

__global__ void __launch_bounds__(threads) ple_combine_kernel(const StepRef* step, PleCombineArgs a) {
  __shared__ float shared[32];
  each_head(step, a.dst, [&](int32_t r, int64_t o) {
    const float *projected = a.projected.f32(r) + o, *token = a.token.f32(r) + o;
    float* dst = a.dst.f32(r) + o;
    float factor = factor_of(a.dst.d2, a.eps, shared, [&](int32_t i) { return projected[i] * a.projected_scale; });
    for (int32_t i = threadIdx.x; i < a.dst.d2; i += threads) {
      dst[i] = (weighted(projected[i] * a.projected_scale, factor, 1.0f, a.w, i) + token[i]) * a.scale;
    }
  });
}

template <class Args, Tensor Args::*Leader, void (*Kernel)(const StepRef*, Args)>
void launch_any(const Args& a, const Run& run) {
  int32_t rows = run.bound(a.*Leader);
  if (rows > 0 && !launch_wide(a, run)) launch(run, Kernel, dim3(unsigned((a.*Leader).d1), grid_rows(rows)), threads, 0, run.step, a);
}

}  // namespace

namespace cuda {
void rms_norm(Builder& b, const RmsNormArgs& a) { stage<RmsNormArgs, launch_any<RmsNormArgs, &RmsNormArgs::dst, rms_norm_kernel>>(b, a); }
void norm_add(Builder& b, const NormAddArgs& a) { stage<NormAddArgs, launch_any<NormAddArgs, &NormAddArgs::dst, norm_add_kernel>>(b, a); }
void add_norm(Builder& b, const AddNormArgs& a) { stage<AddNormArgs, launch_any<AddNormArgs, &AddNormArgs::sum, add_norm_kernel>>(b, a); }
void norm_add_norms(Builder& b, const NormAddNormsArgs& a) { stage<NormAddNormsArgs, launch_any<NormAddNormsArgs, &NormAddNormsArgs::sum, norm_add_norms_kernel>>(b, a); }
void moe_merge(Builder& b, const MoeMergeArgs& a) { stage<MoeMergeArgs, launch_any<MoeMergeArgs, &MoeMergeArgs::sum, moe_merge_kernel>>(b, a); }
void ple_combine(Builder& b, const PleCombineArgs& a) { stage<PleCombineArgs, launch_any<PleCombineArgs, &PleCombineArgs::dst, ple_combine_kernel>>(b, a); }
}  // namespace cuda

}  // namespace bao
