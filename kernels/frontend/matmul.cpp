// Exported matmuls with one weight for all rows: validation of their operands, and the device's precision.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

namespace {

// w of one expert whose columns are x's; dst holds one value per row of w.
bool fits(Recording& r, int dst_argument, const char* dst_name, const Tensor& dst, int w_argument, const char* w_name, const WeightRef& w,
          const Tensor& x) {
  if (w.columns != x.columns()) {
    return r.invalid(w_argument, "%s has %d columns, expected %lld as x", w_name, w.columns, static_cast<long long>(x.columns()));
  }
  return one_expert(r, w_argument, w_name, w) && columns(r, dst_argument, dst_name, dst, w.rows);
}

}  // namespace

int32_t bao_matmul(bao_handle stream, bao_handle dst, bao_handle x, bao_handle w) {
  return record(stream, BAO_OP_MATMUL, "bao_matmul", &OpTable::matmul, [&](Recording& r, MatmulArgs& a) {
    bool good = r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && rows(r, 3, "x", a.x, a.dst) &&
                r.weight(4, "w", w, BAO_USE_MATMUL, &a.w) && fits(r, 2, "dst", a.dst, 4, "w", a.w, a.x) &&
                apart(r, 2, "dst", a.dst, "x", a.x);
    if (good) a.fast = rounding(r, a.w);
    return good;
  });
}

int32_t bao_matmul_group(bao_handle stream, bao_handle dst0, bao_handle dst1, bao_handle dst2, bao_handle x, bao_handle w0, bao_handle w1,
                         bao_handle w2) {
  return record(stream, BAO_OP_MATMUL_GROUP, "bao_matmul_group", &OpTable::matmul_group, [&](Recording& r, MatmulGroupArgs& a) {
    const bao_handle dst[3] = {dst0, dst1, dst2}, w[3] = {w0, w1, w2};
    static const char* const dst_name[3] = {"dst0", "dst1", "dst2"};
    static const char* const w_name[3] = {"w0", "w1", "w2"};
    if (!r.tensor(5, "x", x, &a.x)) return false;
    for (int i = 0; i < 3; i++) {
      bool optional = i > 0;  // a group has at least its first member
      if (!r.tensor(2 + i, dst_name[i], dst[i], &a.dst[i], BAO_F32, optional) ||
          !r.weight(6 + i, w_name[i], w[i], BAO_USE_MATMUL, &a.w[i], optional)) {
        return false;
      }
      if (a.dst[i].present() != a.w[i].present()) {
        return r.invalid(2 + i, "one of %s and %s is 0, expected both or neither", dst_name[i], w_name[i]);
      }
      if (a.w[i].present() && !(rows(r, 2 + i, dst_name[i], a.dst[i], a.x) && fits(r, 2 + i, dst_name[i], a.dst[i], 6 + i, w_name[i], a.w[i], a.x) &&
                                apart(r, 2 + i, dst_name[i], a.dst[i], "x", a.x))) {
        return false;
      }
    }
    a.fast = rounding(r);
    return true;
  });
}

int32_t bao_matmul_glu(bao_handle stream, bao_handle dst, bao_handle x, bao_handle gate, bao_handle up, int32_t activation) {
  return record(stream, BAO_OP_MATMUL_GLU, "bao_matmul_glu", &OpTable::matmul_glu, [&](Recording& r, MatmulGluArgs& a) {
    a.activation = activation;
    if (!(r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && rows(r, 3, "x", a.x, a.dst) &&
          r.weight(4, "gate", gate, BAO_USE_MATMUL, &a.gate) && r.weight(5, "up", up, BAO_USE_MATMUL, &a.up, true) &&
          in_range(r, 6, "activation", activation, BAO_ACTIVATION_GELU, BAO_ACTIVATION_SILU) && apart(r, 2, "dst", a.dst, "x", a.x))) {
      return false;
    }
    a.fast = rounding(r);
    if (a.up.present()) return fits(r, 2, "dst", a.dst, 4, "gate", a.gate, a.x) && fits(r, 2, "dst", a.dst, 5, "up", a.up, a.x);
    if (a.gate.rows % 2 != 0) return r.invalid(4, "gate has %d rows, expected an even number because up is 0", a.gate.rows);
    WeightRef half = a.gate;
    half.rows /= 2;
    return fits(r, 2, "dst", a.dst, 4, "gate", half, a.x);
  });
}
