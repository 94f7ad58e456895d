// RMS norms and their fusions with residual additions. A fused op runs the very functions of the plain ones, so its bits are the same.

// 1 / sqrt(mean(x^2) + eps), the sum in the order of vsum_of.
BAO_INLINE float rms_from(float sum_of_squares, int64_t n, float eps) { return 1.0f / scalar_sqrt(sum_of_squares / float(n) + eps); }
BAO_INLINE float rms_inverse(const float* x, int64_t n, float eps) {
  float squares = vsum_of(n, [&](int64_t i, int64_t lanes, vf acc) {
    vf v = vload_any(x + i, lanes);
    return vfma(v, v, acc);
  });
  return rms_from(squares, n, eps);
}

// x * factor * w; w may be null.
BAO_INLINE vf normed(vf x, vf factor, const float* w, int64_t i, int64_t lanes) {
  vf y = vmul(x, factor);
  return w ? vmul(y, vload_any(w + i, lanes)) : y;
}
BAO_INLINE void rms_norm_apply(float* dst, const float* x, const float* w, int64_t n, float factor) {
  vf f = vset1(factor);
  vfor(n, [&](int64_t i, int64_t lanes) { vstore_any(dst + i, normed(vload_any(x + i, lanes), f, w, i, lanes), lanes); });
}
BAO_INLINE void rms_norm_vector(float* dst, const float* x, const float* w, int64_t n, float eps, float scale) {
  rms_norm_apply(dst, x, w, n, rms_inverse(x, n, eps) * scale);
}
BAO_INLINE void norm_add_vector(float* dst, const float* residual, const float* x, const float* w, int64_t n, float eps, float scale) {
  vf f = vset1(rms_inverse(x, n, eps)), s = vset1(scale);
  vfor(n, [&](int64_t i, int64_t lanes) {
    vf y = vadd(vload_any(residual + i, lanes), normed(vload_any(x + i, lanes), f, w, i, lanes));
    vstore_any(dst + i, vmul(y, s), lanes);
  });
}

void record_rms_norm(Builder& b, const RmsNormArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return unit_pieces(args_of<RmsNormArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<RmsNormArgs>(p);
          for_units(a.dst, run, piece, [&](int64_t u) { rms_norm_vector(unit_of(a.dst, u), unit_of(a.x, u), a.w, a.dst.d2, a.eps, a.scale); });
        });
}

void record_norm_add(Builder& b, const NormAddArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return unit_pieces(args_of<NormAddArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<NormAddArgs>(p);
          for_units(a.dst, run, piece, [&](int64_t u) {
            norm_add_vector(unit_of(a.dst, u), unit_of(a.residual, u), unit_of(a.x, u), a.w, a.dst.d2, a.eps, a.scale);
          });
        });
}

void record_add_norm(Builder& b, const AddNormArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return unit_pieces(args_of<AddNormArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<AddNormArgs>(p);
          for_units(a.dst, run, piece, [&](int64_t u) {
            float* sum = unit_of(a.sum, u);
            const float *residual = unit_of(a.residual, u), *x = unit_of(a.x, u);
            vfor(a.dst.d2, [&](int64_t i, int64_t lanes) { vstore_any(sum + i, vadd(vload_any(residual + i, lanes), vload_any(x + i, lanes)), lanes); });
            rms_norm_vector(unit_of(a.dst, u), sum, a.w, a.dst.d2, a.eps, 1.0f);
          });
        });
}

void record_norm_add_norms(Builder& b, const NormAddNormsArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return unit_pieces(args_of<NormAddNormsArgs>(p).sum, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<NormAddNormsArgs>(p);
          const int64_t n = a.sum.d2;
          for_units(a.sum, run, piece, [&](int64_t u) {
            float* sum = unit_of(a.sum, u);
            norm_add_vector(sum, unit_of(a.residual, u), unit_of(a.x, u), a.w, n, a.eps, a.scale);
            float inverse = rms_inverse(sum, n, a.eps);
            if (a.y0.present()) rms_norm_apply(unit_of(a.y0, u), sum, a.w0, n, inverse * 1.0f);
            if (a.y1.present()) rms_norm_apply(unit_of(a.y1, u), sum, a.w1, n, inverse * a.scale1);
            if (a.y2.present()) rms_norm_apply(unit_of(a.y2, u), sum, a.w2, n, inverse * 1.0f);
          });
        });
}

// m is never stored: both passes compute it anew from a and b, with the roundings of two norms and an addition.
void moe_merge_vector(float* sum, float* y, const float* residual, const float* xa, const float* xb, const MoeMergeArgs& a) {
  const int64_t n = a.sum.d2;
  vf fa = vset1(rms_inverse(xa, n, a.eps)), fb = vset1(rms_inverse(xb, n, a.eps));
  auto merged = [&](int64_t i, int64_t lanes) {
    return vadd(normed(vload_any(xa + i, lanes), fa, a.wa, i, lanes), normed(vload_any(xb + i, lanes), fb, a.wb, i, lanes));
  };
  // Lanes beyond the tail are zero only while the factors are finite, and an infinite factor makes the whole row NaN anyway.
  float squares = vsum_of(n, [&](int64_t i, int64_t lanes, vf acc) {
    vf m = merged(i, lanes);
    return vfma(m, m, acc);
  });
  vf f = vset1(rms_from(squares, n, a.eps)), s = vset1(a.scale);
  vfor(n, [&](int64_t i, int64_t lanes) {
    vf v = vadd(vload_any(residual + i, lanes), normed(merged(i, lanes), f, a.w, i, lanes));
    vstore_any(sum + i, vmul(v, s), lanes);
  });
  if (y) rms_norm_vector(y, sum, a.wy, n, a.eps, 1.0f);
}

void record_moe_merge(Builder& b, const MoeMergeArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return unit_pieces(args_of<MoeMergeArgs>(p).sum, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<MoeMergeArgs>(p);
          for_units(a.sum, run, piece, [&](int64_t u) {
            moe_merge_vector(unit_of(a.sum, u), a.y.present() ? unit_of(a.y, u) : nullptr, unit_of(a.residual, u), unit_of(a.a, u), unit_of(a.b, u), a);
          });
        });
}

// (rms(projected * projectedScale) * w + token) * scale: the scaled projection is formed twice, never stored.
void record_ple_combine(Builder& b, const PleCombineArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return unit_pieces(args_of<PleCombineArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<PleCombineArgs>(p);
          const int64_t n = a.dst.d2;
          vf ps = vset1(a.projected_scale), s = vset1(a.scale);
          for_units(a.dst, run, piece, [&](int64_t u) {
            const float *x = unit_of(a.projected, u), *token = unit_of(a.token, u);
            float* dst = unit_of(a.dst, u);
            float squares = vsum_of(n, [&](int64_t i, int64_t lanes, vf acc) {
              vf v = vmul(vload_any(x + i, lanes), ps);
              return vfma(v, v, acc);
            });
            vf f = vset1(rms_from(squares, n, a.eps));
            vfor(n, [&](int64_t i, int64_t lanes) {
              vf y = normed(vmul(vload_any(x + i, lanes), ps), f, a.w, i, lanes);
              vstore_any(dst + i, vmul(vadd(y, vload_any(token + i, lanes)), s), lanes);
            });
          });
        });
}
