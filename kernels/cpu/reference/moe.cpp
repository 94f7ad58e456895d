// Reference of the expert ops: top-k of a softmax, matmuls with a weight per (row, slot), and the weighted sum over slots.
#include "../../common/sample_mass.h"
#include "dot.h"

namespace bao::reference {
namespace {

void topk_one(const TopkSoftmaxArgs& a, const Run&, int32_t r) {
  topk_row(a.ids.i32(r), a.weights.f32(r), a.logits.f32(r), int32_t(a.logits.columns()), a.ids.d2, a.renormalise);
}

// Output rows [begin, end) of one (row, slot); a piece covers a range that costs about 8 million products.
struct Range {
  int32_t row, slot;
  int64_t begin, end;
};

int32_t slot_pieces(const Run& run, const Tensor& ids, int64_t outputs, int32_t per) {
  return run.step->count(ids) * ids.d2 * pieces_of(outputs, per);
}

Range range_of(int32_t piece, const Tensor& ids, int64_t outputs, int32_t per) {
  int32_t parts = pieces_of(outputs, per), pair = piece / parts;
  int64_t begin = int64_t(piece % parts) * per;
  return {pair / ids.d2, pair % ids.d2, begin, begin + per < outputs ? begin + per : outputs};
}

// The slot's row of x: one for all slots, or one each. -1 as expert: the id is out of range and the slot yields zeros.
const float* slot_x(const Activations& x, const Run& run, int32_t r, int32_t slot, int32_t columns) {
  return x.row(run, r) + (x.x.d1 == 1 ? 0 : int64_t(slot) * columns);
}

int32_t expert_of(const Tensor& ids, const WeightRef& w, int32_t r, int32_t slot) {
  int32_t id = ids.i32(r)[slot];
  return id >= 0 && id < w.experts ? id : -1;
}

struct SlotArgs {
  Tensor dst, ids;
  Activations x;
  WeightRef w;
};

int32_t moe_pieces(const void* args, const Run& run) {
  const SlotArgs& a = *static_cast<const SlotArgs*>(args);
  return slot_pieces(run, a.ids, a.w.rows, rows_per_piece(a.w.columns));
}

void moe_run(const void* args, const Run& run, int32_t piece) {
  const SlotArgs& a = *static_cast<const SlotArgs*>(args);
  Range at = range_of(piece, a.ids, a.w.rows, rows_per_piece(a.w.columns));
  int32_t expert = expert_of(a.ids, a.w, at.row, at.slot);
  const float* x = slot_x(a.x, run, at.row, at.slot, a.w.columns);
  float* dst = a.dst.f32(at.row) + int64_t(at.slot) * a.w.rows;
  for (int64_t j = at.begin; j < at.end; j++) dst[j] = expert < 0 ? 0.0f : weight_dot(a.w, expert, j, x);
}

struct SlotGluArgs {
  Tensor dst, ids;
  Activations gate_x, up_x;
  WeightRef gate, up;
  int32_t up_row, activation;
};

int32_t moe_glu_pieces(const void* args, const Run& run) {
  const SlotGluArgs& a = *static_cast<const SlotGluArgs*>(args);
  return slot_pieces(run, a.ids, a.dst.d2, rows_per_piece(2 * int64_t(a.gate.columns)));
}

void moe_glu_run(const void* args, const Run& run, int32_t piece) {
  const SlotGluArgs& a = *static_cast<const SlotGluArgs*>(args);
  Range at = range_of(piece, a.ids, a.dst.d2, rows_per_piece(2 * int64_t(a.gate.columns)));
  int32_t expert = expert_of(a.ids, a.gate, at.row, at.slot);
  const float* gate_x = slot_x(a.gate_x, run, at.row, at.slot, a.gate.columns);
  const float* up_x = slot_x(a.up_x, run, at.row, at.slot, a.up.columns);
  float* dst = a.dst.f32(at.row) + int64_t(at.slot) * a.dst.d2;
  for (int64_t j = at.begin; j < at.end; j++) {
    float gate = expert < 0 ? 0.0f : weight_dot(a.gate, expert, j, gate_x);
    float up = expert < 0 ? 0.0f : weight_dot(a.up, expert, a.up_row + j, up_x);
    dst[j] = activate(gate, a.activation) * up;
  }
}

void moe_sum_one(const MoeSumArgs& a, const Run&, int32_t r) {
  const float *x = a.x.f32(r), *weights = a.weights.f32(r);
  int64_t n = a.x.d2;
  for (int64_t i = 0; i < n; i++) {
    double sum = 0;
    for (int32_t s = 0; s < a.x.d1; s++) sum += double(weights[s]) * x[s * n + i];
    a.dst.f32(r)[i] = float(sum);
  }
}

struct SlotSumArgs {
  Tensor dst, ids, weights;
  Activations x;
  WeightRef w;
};

int32_t moe_matmul_sum_per(const SlotSumArgs& a) { return rows_per_piece(int64_t(a.w.columns) * a.ids.d2); }

int32_t moe_matmul_sum_pieces(const void* args, const Run& run) {
  const SlotSumArgs& a = *static_cast<const SlotSumArgs*>(args);
  return run.step->count(a.dst) * pieces_of(a.w.rows, moe_matmul_sum_per(a));
}

void moe_matmul_sum_run(const void* args, const Run& run, int32_t piece) {
  const SlotSumArgs& a = *static_cast<const SlotSumArgs*>(args);
  int32_t per = moe_matmul_sum_per(a), parts = pieces_of(a.w.rows, per), r = piece / parts;
  int64_t begin = int64_t(piece % parts) * per, end = begin + per < a.w.rows ? begin + per : a.w.rows;
  for (int64_t j = begin; j < end; j++) {
    double sum = 0;
    for (int32_t s = 0; s < a.ids.d2; s++) {
      int32_t expert = expert_of(a.ids, a.w, r, s);
      float y = expert < 0 ? 0.0f : weight_dot(a.w, expert, j, slot_x(a.x, run, r, s, a.w.columns));
      sum += double(a.weights.f32(r)[s]) * y;
    }
    a.dst.f32(r)[j] = float(sum);
  }
}

}  // namespace

// Picks by logits, whose order is that of the probabilities without their rounding.
void topk_row(int32_t* ids, float* weights, const float* logits, int32_t experts, int32_t k, int32_t renormalise) {
  auto key = [&](int32_t i) { return order_key(logits[i]); };
  for (int32_t s = 0; s < k; s++) {
    int32_t best = -1;
    for (int32_t i = 0; i < experts; i++) {
      bool taken = false;
      for (int32_t t = 0; t < s; t++) taken = taken || ids[t] == i;
      if (!taken && (best < 0 || key(i) > key(best))) best = i;
    }
    ids[s] = best;
  }
  double max = logits[ids[0]], total = 0;
  if (renormalise) {
    for (int32_t s = 0; s < k; s++) total += std::exp(double(logits[ids[s]]) - max);
  } else {
    for (int32_t i = 0; i < experts; i++) total += std::exp(double(logits[i]) - max);
  }
  for (int32_t s = 0; s < k; s++) weights[s] = float(std::exp(double(logits[ids[s]]) - max) / total);
}

void topk_softmax(Builder& b, const TopkSoftmaxArgs& a) { by_row<TopkSoftmaxArgs, &TopkSoftmaxArgs::ids, topk_one>(b, a); }

void moe_matmul(Builder& b, const MoeMatmulArgs& a) {
  SlotArgs args{a.dst, a.ids, activations(b, a.x, rounding(a.w, a.fast)), a.w};
  b.add(&args, sizeof args, moe_pieces, moe_run);
}

void moe_matmul_glu(Builder& b, const MoeMatmulGluArgs& a) {
  Activations gate_x = activations(b, a.x, rounding(a.gate, a.fast));
  Activations up_x = a.up.present() ? activations(b, a.x, rounding(a.up, a.fast)) : gate_x;
  bool packed = !a.up.present();
  SlotGluArgs args{a.dst, a.ids, gate_x, up_x, a.gate, packed ? a.gate : a.up, packed ? a.gate.rows / 2 : 0, a.activation};
  b.add(&args, sizeof args, moe_glu_pieces, moe_glu_run);
}

void moe_sum(Builder& b, const MoeSumArgs& a) { by_row<MoeSumArgs, &MoeSumArgs::dst, moe_sum_one>(b, a); }

void moe_matmul_sum(Builder& b, const MoeMatmulSumArgs& a) {
  SlotSumArgs args{a.dst, a.ids, a.weights, activations(b, a.x, rounding(a.w, a.fast)), a.w};
  b.add(&args, sizeof args, moe_matmul_sum_pieces, moe_matmul_sum_run);
}

}  // namespace bao::reference
