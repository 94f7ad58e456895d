// Exported expert ops: router, matmuls by expert id, weighted sum over slots; validation of their operands. Ids are data: an id that is no
// expert is met when the op runs, and gives zeros.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

namespace {

constexpr int32_t max_slots = 32, max_experts = 1024;

// ids (I32) and weights, both (rows, 1, k), for k of `experts` experts.
bool slots(Recording& r, const Tensor& ids, const Tensor& weights, int32_t experts, const Tensor& x, const char* x_name, int x_argument) {
  if (!(shape(r, 2, "ids", ids, 1, ids.d2) && like(r, 3, "weights", weights, ids) && rows(r, x_argument, x_name, x, ids))) return false;
  if (ids.d2 > experts) return r.unsupported(2, "ids has k = %d, expected at most the %d experts", ids.d2, experts);
  if (ids.d2 > max_slots) return r.unsupported(2, "ids has k = %d, expected at most %d", ids.d2, max_slots);
  if (experts > max_experts) return r.unsupported(x_argument, "there are %d experts, expected at most %d", experts, max_experts);
  return true;
}

// ids (rows, 1, k) and x, (rows, 1, columns) or (rows, k, columns).
bool routed(Recording& r, const Tensor& dst, int x_argument, const Tensor& x, int ids_argument, const Tensor& ids, int32_t w_columns) {
  if (!(rows(r, x_argument, "x", x, dst) && rows(r, ids_argument, "ids", ids, dst) && shape(r, ids_argument, "ids", ids, 1, ids.d2))) return false;
  if (ids.d2 > max_slots) return r.unsupported(ids_argument, "ids has k = %d, expected at most %d", ids.d2, max_slots);
  return x.d1 == 1 ? shape(r, x_argument, "x", x, 1, w_columns) : shape(r, x_argument, "x", x, ids.d2, w_columns);
}

}  // namespace

int32_t bao_topk_softmax(bao_handle stream, bao_handle ids, bao_handle weights, bao_handle logits, int32_t renormalise) {
  return record(stream, BAO_OP_TOPK_SOFTMAX, "bao_topk_softmax", &OpTable::topk_softmax, [&](Recording& r, TopkSoftmaxArgs& a) {
    a.renormalise = renormalise;
    return r.tensor(2, "ids", ids, &a.ids, BAO_I32) && r.tensor(3, "weights", weights, &a.weights) && r.tensor(4, "logits", logits, &a.logits) &&
           shape(r, 4, "logits", a.logits, 1, a.logits.d2) && slots(r, a.ids, a.weights, a.logits.d2, a.logits, "logits", 4) &&
           in_range(r, 5, "renormalise", renormalise, 0, 1);
  });
}

int32_t bao_router(bao_handle stream, bao_handle ids, bao_handle weights, bao_handle x, bao_handle w, int32_t renormalise) {
  return record(stream, BAO_OP_ROUTER, "bao_router", &OpTable::router, [&](Recording& r, RouterArgs& a) {
    a.renormalise = renormalise;
    bool good = r.tensor(2, "ids", ids, &a.ids, BAO_I32) && r.tensor(3, "weights", weights, &a.weights) && r.tensor(4, "x", x, &a.x) &&
                r.weight(5, "w", w, BAO_USE_MATMUL, &a.w) && one_expert(r, 5, "w", a.w) && columns(r, 4, "x", a.x, a.w.columns) &&
                slots(r, a.ids, a.weights, a.w.rows, a.x, "x", 4) && in_range(r, 6, "renormalise", renormalise, 0, 1);
    if (good) a.fast = rounding(r, a.w);
    return good;
  });
}

int32_t bao_moe_matmul(bao_handle stream, bao_handle dst, bao_handle x, bao_handle w, bao_handle ids) {
  return record(stream, BAO_OP_MOE_MATMUL, "bao_moe_matmul", &OpTable::moe_matmul, [&](Recording& r, MoeMatmulArgs& a) {
    bool good = r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && r.weight(4, "w", w, BAO_USE_MATMUL, &a.w) &&
                r.tensor(5, "ids", ids, &a.ids, BAO_I32) && routed(r, a.dst, 3, a.x, 5, a.ids, a.w.columns) &&
                shape(r, 2, "dst", a.dst, a.ids.d2, a.w.rows) && apart(r, 2, "dst", a.dst, "x", a.x) && apart(r, 2, "dst", a.dst, "ids", a.ids);
    if (good) a.fast = rounding(r, a.w);
    return good;
  });
}

int32_t bao_moe_matmul_glu(bao_handle stream, bao_handle dst, bao_handle x, bao_handle gate, bao_handle up, bao_handle ids, int32_t activation) {
  return record(stream, BAO_OP_MOE_MATMUL_GLU, "bao_moe_matmul_glu", &OpTable::moe_matmul_glu, [&](Recording& r, MoeMatmulGluArgs& a) {
    a.activation = activation;
    if (!(r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && r.weight(4, "gate", gate, BAO_USE_MATMUL, &a.gate) &&
          r.weight(5, "up", up, BAO_USE_MATMUL, &a.up, true) && r.tensor(6, "ids", ids, &a.ids, BAO_I32) &&
          routed(r, a.dst, 3, a.x, 6, a.ids, a.gate.columns) && apart(r, 2, "dst", a.dst, "x", a.x) && apart(r, 2, "dst", a.dst, "ids", a.ids) &&
          in_range(r, 7, "activation", activation, BAO_ACTIVATION_GELU, BAO_ACTIVATION_SILU))) {
      return false;
    }
    a.fast = rounding(r);
    if (!a.up.present()) {
      if (a.gate.rows % 2 != 0) return r.invalid(4, "gate has %d rows, expected an even number because up is 0", a.gate.rows);
      return shape(r, 2, "dst", a.dst, a.ids.d2, a.gate.rows / 2);
    }
    if (a.up.rows != a.gate.rows || a.up.columns != a.gate.columns || a.up.experts != a.gate.experts) {
      return r.invalid(5, "up is [%d][%d][%d], expected [%d][%d][%d] as gate", a.up.experts, a.up.rows, a.up.columns, a.gate.experts, a.gate.rows,
                       a.gate.columns);
    }
    return shape(r, 2, "dst", a.dst, a.ids.d2, a.gate.rows);
  });
}

int32_t bao_moe_sum(bao_handle stream, bao_handle dst, bao_handle x, bao_handle weights) {
  return record(stream, BAO_OP_MOE_SUM, "bao_moe_sum", &OpTable::moe_sum, [&](Recording& r, MoeSumArgs& a) {
    return r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && rows(r, 3, "x", a.x, a.dst) && shape(r, 2, "dst", a.dst, 1, a.x.d2) &&
           r.tensor(4, "weights", weights, &a.weights) && rows(r, 4, "weights", a.weights, a.dst) &&
           shape(r, 4, "weights", a.weights, 1, a.x.d1) && apart(r, 2, "dst", a.dst, "x", a.x);
  });
}

int32_t bao_moe_matmul_sum(bao_handle stream, bao_handle dst, bao_handle x, bao_handle w, bao_handle ids, bao_handle weights) {
  return record(stream, BAO_OP_MOE_MATMUL_SUM, "bao_moe_matmul_sum", &OpTable::moe_matmul_sum, [&](Recording& r, MoeMatmulSumArgs& a) {
    bool good = r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && r.weight(4, "w", w, BAO_USE_MATMUL, &a.w) &&
                r.tensor(5, "ids", ids, &a.ids, BAO_I32) && routed(r, a.dst, 3, a.x, 5, a.ids, a.w.columns) &&
                r.tensor(6, "weights", weights, &a.weights) && like(r, 6, "weights", a.weights, a.ids) &&
                shape(r, 2, "dst", a.dst, 1, a.w.rows) && apart(r, 2, "dst", a.dst, "x", a.x) && apart(r, 2, "dst", a.dst, "ids", a.ids);
    if (good) a.fast = rounding(r, a.w);
    return good;
  });
}
