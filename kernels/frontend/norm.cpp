// Exported norm ops: validation of their operands; the arithmetic is in fast/ and reference/.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

int32_t bao_rms_norm(bao_handle stream, bao_handle dst, bao_handle x, bao_handle w, float eps, float scale) {
  return record(stream, BAO_OP_RMS_NORM, "bao_rms_norm", &OpTable::rms_norm, [&](Recording& r, RmsNormArgs& a) {
    a.eps = eps, a.scale = scale;
    return r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && like(r, 3, "x", a.x, a.dst) &&
           r.vector(4, "w", w, a.dst.d2, &a.w, true) && positive(r, 5, "eps", eps) && r.finite(6, "scale", scale);
  });
}

int32_t bao_norm_add(bao_handle stream, bao_handle dst, bao_handle residual, bao_handle x, bao_handle w, float eps, float scale) {
  return record(stream, BAO_OP_NORM_ADD, "bao_norm_add", &OpTable::norm_add, [&](Recording& r, NormAddArgs& a) {
    a.eps = eps, a.scale = scale;
    return r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "residual", residual, &a.residual) && like(r, 3, "residual", a.residual, a.dst) &&
           r.tensor(4, "x", x, &a.x) && like(r, 4, "x", a.x, a.dst) && r.vector(5, "w", w, a.dst.d2, &a.w, true) &&
           positive(r, 6, "eps", eps) && r.finite(7, "scale", scale);
  });
}

int32_t bao_add_norm(bao_handle stream, bao_handle sum, bao_handle dst, bao_handle residual, bao_handle x, bao_handle w, float eps) {
  return record(stream, BAO_OP_ADD_NORM, "bao_add_norm", &OpTable::add_norm, [&](Recording& r, AddNormArgs& a) {
    a.eps = eps;
    return r.tensor(2, "sum", sum, &a.sum) && r.tensor(3, "dst", dst, &a.dst) && like(r, 3, "dst", a.dst, a.sum) &&
           r.tensor(4, "residual", residual, &a.residual) && like(r, 4, "residual", a.residual, a.sum) && r.tensor(5, "x", x, &a.x) &&
           like(r, 5, "x", a.x, a.sum) && r.vector(6, "w", w, a.sum.d2, &a.w, true) && positive(r, 7, "eps", eps);
  });
}

int32_t bao_norm_add_norms(bao_handle stream, bao_handle sum, bao_handle y0, bao_handle y1, bao_handle y2, bao_handle residual, bao_handle x,
                           bao_handle w, bao_handle w0, bao_handle w1, bao_handle w2, float scale1, float eps, float scale) {
  return record(stream, BAO_OP_NORM_ADD_NORMS, "bao_norm_add_norms", &OpTable::norm_add_norms, [&](Recording& r, NormAddNormsArgs& a) {
    a.scale1 = scale1, a.eps = eps, a.scale = scale;
    return r.tensor(2, "sum", sum, &a.sum) && r.tensor(3, "y0", y0, &a.y0) && like(r, 3, "y0", a.y0, a.sum) &&
           r.tensor(4, "y1", y1, &a.y1, BAO_F32, true) && (!a.y1.present() || like(r, 4, "y1", a.y1, a.sum)) &&
           r.tensor(5, "y2", y2, &a.y2, BAO_F32, true) && (!a.y2.present() || like(r, 5, "y2", a.y2, a.sum)) &&
           r.tensor(6, "residual", residual, &a.residual) && like(r, 6, "residual", a.residual, a.sum) && r.tensor(7, "x", x, &a.x) &&
           like(r, 7, "x", a.x, a.sum) && r.vector(8, "w", w, a.sum.d2, &a.w, true) && r.vector(9, "w0", w0, a.sum.d2, &a.w0, true) &&
           r.vector(10, "w1", w1, a.sum.d2, &a.w1, true) && r.vector(11, "w2", w2, a.sum.d2, &a.w2, true) &&
           r.finite(12, "scale1", scale1) && positive(r, 13, "eps", eps) && r.finite(14, "scale", scale);
  });
}

int32_t bao_moe_merge(bao_handle stream, bao_handle sum, bao_handle y, bao_handle residual, bao_handle xa, bao_handle wa, bao_handle xb,
                      bao_handle wb, bao_handle w, bao_handle wy, float eps, float scale) {
  return record(stream, BAO_OP_MOE_MERGE, "bao_moe_merge", &OpTable::moe_merge, [&](Recording& r, MoeMergeArgs& a) {
    a.eps = eps, a.scale = scale;
    return r.tensor(2, "sum", sum, &a.sum) && r.tensor(3, "y", y, &a.y, BAO_F32, true) && (!a.y.present() || like(r, 3, "y", a.y, a.sum)) &&
           r.tensor(4, "residual", residual, &a.residual) && like(r, 4, "residual", a.residual, a.sum) && r.tensor(5, "a", xa, &a.a) &&
           like(r, 5, "a", a.a, a.sum) && r.vector(6, "wa", wa, a.sum.d2, &a.wa, true) && r.tensor(7, "b", xb, &a.b) &&
           like(r, 7, "b", a.b, a.sum) && r.vector(8, "wb", wb, a.sum.d2, &a.wb, true) && r.vector(9, "w", w, a.sum.d2, &a.w, true) &&
           r.vector(10, "wy", wy, a.sum.d2, &a.wy, true) && positive(r, 11, "eps", eps) && r.finite(12, "scale", scale);
  });
}

int32_t bao_ple_combine(bao_handle stream, bao_handle dst, bao_handle projected, bao_handle token, bao_handle w, float eps, float projectedScale,
                        float scale) {
  return record(stream, BAO_OP_PLE_COMBINE, "bao_ple_combine", &OpTable::ple_combine, [&](Recording& r, PleCombineArgs& a) {
    a.eps = eps, a.projected_scale = projectedScale, a.scale = scale;
    return r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "projected", projected, &a.projected) &&
           like(r, 3, "projected", a.projected, a.dst) && r.tensor(4, "token", token, &a.token) && like(r, 4, "token", a.token, a.dst) &&
           r.vector(5, "w", w, a.dst.d2, &a.w, true) && positive(r, 6, "eps", eps) && r.finite(7, "projectedScale", projectedScale) &&
           r.finite(8, "scale", scale);
  });
}
