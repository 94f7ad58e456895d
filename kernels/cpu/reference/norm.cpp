// Reference of RMS norm and of what Gemma and Llama do around it. A sum of squares is taken in double over the whole row; each plain op's
// result is rounded to f32 before the next one reads it, so fused and unfused forms agree to the bit.
#include "reference.h"

namespace bao::reference {
namespace {

void norm_row(float* dst, const float* x, const float* w, int32_t d1, int32_t d2, float eps, float scale) {
  for (int32_t h = 0; h < d1; h++, dst += d2, x += d2) {
    double factor = rms_factor(x, d2, eps);
    for (int32_t i = 0; i < d2; i++) dst[i] = normed(x[i], factor, scale, w, i);
  }
}

void norm_add_row(float* dst, const float* residual, const float* x, const float* w, int32_t d1, int32_t d2, float eps, float scale) {
  for (int32_t h = 0; h < d1; h++, dst += d2, residual += d2, x += d2) {
    double factor = rms_factor(x, d2, eps);
    for (int32_t i = 0; i < d2; i++) dst[i] = (residual[i] + normed(x[i], factor, 1.0f, w, i)) * scale;
  }
}

void rms_norm_one(const RmsNormArgs& a, const Run&, int32_t r) {
  norm_row(a.dst.f32(r), a.x.f32(r), a.w, a.dst.d1, a.dst.d2, a.eps, a.scale);
}

void norm_add_one(const NormAddArgs& a, const Run&, int32_t r) {
  norm_add_row(a.dst.f32(r), a.residual.f32(r), a.x.f32(r), a.w, a.dst.d1, a.dst.d2, a.eps, a.scale);
}

void add_norm_one(const AddNormArgs& a, const Run&, int32_t r) {
  float* sum = a.sum.f32(r);
  const float *residual = a.residual.f32(r), *x = a.x.f32(r);
  for (int64_t i = 0; i < a.sum.columns(); i++) sum[i] = residual[i] + x[i];
  norm_row(a.dst.f32(r), sum, a.w, a.dst.d1, a.dst.d2, a.eps, 1.0f);
}

void norm_add_norms_one(const NormAddNormsArgs& a, const Run&, int32_t r) {
  norm_add_row(a.sum.f32(r), a.residual.f32(r), a.x.f32(r), a.w, a.sum.d1, a.sum.d2, a.eps, a.scale);
  const float* sum = a.sum.f32(r);
  norm_row(a.y0.f32(r), sum, a.w0, a.sum.d1, a.sum.d2, a.eps, 1.0f);
  if (a.y1.present()) norm_row(a.y1.f32(r), sum, a.w1, a.sum.d1, a.sum.d2, a.eps, a.scale1);
  if (a.y2.present()) norm_row(a.y2.f32(r), sum, a.w2, a.sum.d1, a.sum.d2, a.eps, 1.0f);
}

void moe_merge_one(const MoeMergeArgs& a, const Run&, int32_t r) {
  int32_t n = a.sum.d2;
  for (int32_t h = 0; h < a.sum.d1; h++) {
    int64_t o = int64_t(h) * n;
    const float *residual = a.residual.f32(r) + o, *xa = a.a.f32(r) + o, *xb = a.b.f32(r) + o;
    float* sum = a.sum.f32(r) + o;
    double fa = rms_factor(xa, n, a.eps), fb = rms_factor(xb, n, a.eps);
    // m is needed twice, for its norm and for the sum: computed twice rather than stored.
    auto m = [&](int32_t i) { return normed(xa[i], fa, 1.0f, a.wa, i) + normed(xb[i], fb, 1.0f, a.wb, i); };
    double squares = 0;
    for (int32_t i = 0; i < n; i++) squares += double(m(i)) * m(i);
    double fm = 1.0 / std::sqrt(squares / double(n) + double(a.eps));
    for (int32_t i = 0; i < n; i++) sum[i] = (residual[i] + normed(m(i), fm, 1.0f, a.w, i)) * a.scale;
  }
  if (a.y.present()) norm_row(a.y.f32(r), a.sum.f32(r), a.wy, a.sum.d1, n, a.eps, 1.0f);
}

void ple_combine_one(const PleCombineArgs& a, const Run&, int32_t r) {
  int32_t n = a.dst.d2;
  for (int32_t l = 0; l < a.dst.d1; l++) {
    int64_t o = int64_t(l) * n;
    const float *projected = a.projected.f32(r) + o, *token = a.token.f32(r) + o;
    float* dst = a.dst.f32(r) + o;
    double squares = 0;
    for (int32_t i = 0; i < n; i++) {
      float x = projected[i] * a.projected_scale;
      squares += double(x) * x;
    }
    double factor = 1.0 / std::sqrt(squares / double(n) + double(a.eps));
    for (int32_t i = 0; i < n; i++) dst[i] = (normed(projected[i] * a.projected_scale, factor, 1.0f, a.w, i) + token[i]) * a.scale;
  }
}

}  // namespace

void rms_norm(Builder& b, const RmsNormArgs& a) { by_row<RmsNormArgs, &RmsNormArgs::dst, rms_norm_one>(b, a); }
void norm_add(Builder& b, const NormAddArgs& a) { by_row<NormAddArgs, &NormAddArgs::dst, norm_add_one>(b, a); }
void add_norm(Builder& b, const AddNormArgs& a) { by_row<AddNormArgs, &AddNormArgs::dst, add_norm_one>(b, a); }
void norm_add_norms(Builder& b, const NormAddNormsArgs& a) { by_row<NormAddNormsArgs, &NormAddNormsArgs::sum, norm_add_norms_one>(b, a); }
void moe_merge(Builder& b, const MoeMergeArgs& a) { by_row<MoeMergeArgs, &MoeMergeArgs::sum, moe_merge_one>(b, a); }
void ple_combine(Builder& b, const PleCombineArgs& a) { by_row<PleCombineArgs, &PleCombineArgs::dst, ple_combine_one>(b, a); }

}  // namespace bao::reference
