// Reference of the matmuls with one weight for all rows: plain, grouped, and gate/up with its activation.
#include "../../common/dequant.h"
#include "dot.h"

namespace bao::reference {
namespace {

struct RoundArgs {
  Tensor x;
  int64_t scratch;
  int32_t rounding;
};

void round_one(const RoundArgs& a, const Run& run, int32_t r) {
  float* dst = reinterpret_cast<float*>(run.scratch + a.scratch) + r * a.x.columns();
  if (a.rounding == 1) {
    round_to_int8(dst, a.x.f32(r), a.x.columns());
  } else {
    for (int64_t i = 0; i < a.x.columns(); i++) dst[i] = bf16_to_f32(f32_to_bf16(a.x.f32(r)[i]));
  }
}

struct ProductArgs {
  Tensor dst;
  Activations x;
  WeightRef w;
};

int32_t per_piece(const ProductArgs& a, const Run& run) { return rows_per_piece(int64_t(a.w.columns) * run.step->count(a.dst)); }

int32_t product_pieces(const void* args, const Run& run) {
  const ProductArgs& a = *static_cast<const ProductArgs*>(args);
  return run.step->count(a.dst) == 0 ? 0 : pieces_of(a.w.rows, per_piece(a, run));
}

// A range of weight rows times all rows of x, 64 rows of x at a time: each chunk of the weight is dequantised once for them.
void product(const void* args, const Run& run, int32_t piece) {
  const ProductArgs& a = *static_cast<const ProductArgs*>(args);
  constexpr int32_t tile = 64;
  float weight[chunk_columns];
  int32_t per = per_piece(a, run), rows = run.step->count(a.dst);
  int64_t end = int64_t(piece + 1) * per < a.w.rows ? int64_t(piece + 1) * per : a.w.rows;
  for (int64_t j = int64_t(piece) * per; j < end; j++) {
    for (int32_t r0 = 0; r0 < rows; r0 += tile) {
      int32_t n = rows - r0 < tile ? rows - r0 : tile;
      double sum[tile] = {};
      for (int32_t c0 = 0; c0 < a.w.columns; c0 += chunk_columns) {
        weight_chunk(a.w, 0, j, c0, weight);
        for (int32_t r = 0; r < n; r++) {
          const float* x = a.x.row(run, r0 + r) + c0;
          for (int32_t c = 0; c < chunk_length(a.w, c0); c++) sum[r] += double(weight[c]) * x[c];
        }
      }
      for (int32_t r = 0; r < n; r++) a.dst.f32(r0 + r)[j] = float(sum[r]) * a.w.factor(0);
    }
  }
}

void add_product(Builder& b, const Tensor& dst, const Activations& x, const WeightRef& w) {
  ProductArgs args{dst, x, w};
  b.add(&args, sizeof args, product_pieces, product);
}

struct GluProductArgs {
  Tensor dst;
  Activations gate_x, up_x;
  WeightRef gate, up;
  int32_t up_row;  // first up row: 0 of `up`, or half way down a gate that holds both
  int32_t activation;
};

int32_t glu_per_piece(const GluProductArgs& a, const Run& run) { return rows_per_piece(2 * int64_t(a.gate.columns) * run.step->count(a.dst)); }

int32_t glu_product_pieces(const void* args, const Run& run) {
  const GluProductArgs& a = *static_cast<const GluProductArgs*>(args);
  return run.step->count(a.dst) == 0 ? 0 : pieces_of(a.dst.columns(), glu_per_piece(a, run));
}

void glu_product(const void* args, const Run& run, int32_t piece) {
  const GluProductArgs& a = *static_cast<const GluProductArgs*>(args);
  int64_t per = glu_per_piece(a, run), columns = a.dst.columns();
  int64_t end = (piece + 1) * per < columns ? (piece + 1) * per : columns;
  for (int32_t r = 0; r < run.step->count(a.dst); r++) {
    for (int64_t j = piece * per; j < end; j++) {
      float gate = weight_dot(a.gate, 0, j, a.gate_x.row(run, r));
      float up = weight_dot(a.up, 0, a.up_row + j, a.up_x.row(run, r));
      a.dst.f32(r)[j] = activate(gate, a.activation) * up;
    }
  }
}

struct TopkArgs {
  Tensor ids, weights;
  int64_t scratch;
  int32_t experts, renormalise;
};

void topk_one(const TopkArgs& a, const Run& run, int32_t r) {
  const float* logits = reinterpret_cast<const float*>(run.scratch + a.scratch) + int64_t(r) * a.experts;
  topk_row(a.ids.i32(r), a.weights.f32(r), logits, a.experts, a.ids.d2, a.renormalise);
}

struct RouterProductArgs {
  Tensor ids;  // whose rows are counted
  Activations x;
  WeightRef w;
  int64_t scratch;
};

void router_one(const RouterProductArgs& a, const Run& run, int32_t r) {
  float* logits = reinterpret_cast<float*>(run.scratch + a.scratch) + int64_t(r) * a.w.rows;
  for (int32_t e = 0; e < a.w.rows; e++) logits[e] = weight_dot(a.w, 0, e, a.x.row(run, r));
}

}  // namespace

float weight_dot(const WeightRef& w, int64_t expert, int64_t row, const float* x) {
  float weight[chunk_columns];
  double sum = 0;
  for (int32_t c0 = 0; c0 < w.columns; c0 += chunk_columns) {
    weight_chunk(w, expert, row, c0, weight);
    for (int32_t c = 0; c < chunk_length(w, c0); c++) sum += double(weight[c]) * x[c0 + c];
  }
  return float(sum) * w.factor(expert);
}

void round_to_int8(float* dst, const float* x, int64_t n) {
  for (int64_t start = 0; start < n; start += 32) {
    int64_t length = n - start < 32 ? n - start : 32;
    float max = 0;
    bool finite = true;
    for (int64_t i = start; i < start + length; i++) {
      finite = finite && std::isfinite(x[i]);
      if (std::fabs(x[i]) > max) max = std::fabs(x[i]);
    }
    float d = max / 127.0f, id = max > 0 ? 127.0f / max : 0.0f;
    if (!std::isfinite(id)) id = 0;
    for (int64_t i = start; i < start + length; i++) dst[i] = finite ? d * std::nearbyint(x[i] * id) : NAN;
  }
}

int32_t rounding(const WeightRef& w, int32_t fast) {
  if (fast == 1) return w.dtype != BAO_F32 && w.dtype != BAO_F16 && w.dtype != BAO_BF16 ? 1 : 0;
  return fast == 2 && w.dtype != BAO_F32 ? 2 : 0;
}

Activations activations(Builder& b, const Tensor& x, int32_t rounding) {
  if (rounding == 0) return {x, -1};
  RoundArgs args{x, b.reserve_scratch(int64_t(x.d0) * x.columns() * int64_t(sizeof(float))), rounding};
  by_row<RoundArgs, &RoundArgs::x, round_one>(b, args);
  return {x, args.scratch};
}

void matmul(Builder& b, const MatmulArgs& a) { add_product(b, a.dst, activations(b, a.x, rounding(a.w, a.fast)), a.w); }

void matmul_group(Builder& b, const MatmulGroupArgs& a) {
  for (int i = 0; i < 3; i++) {
    if (a.w[i].present()) add_product(b, a.dst[i], activations(b, a.x, rounding(a.w[i], a.fast)), a.w[i]);
  }
}

void matmul_glu(Builder& b, const MatmulGluArgs& a) {
  Activations gate_x = activations(b, a.x, rounding(a.gate, a.fast));
  Activations up_x = a.up.present() ? activations(b, a.x, rounding(a.up, a.fast)) : gate_x;
  bool packed = !a.up.present();
  GluProductArgs args{a.dst, gate_x, up_x, a.gate, packed ? a.gate : a.up, packed ? a.gate.rows / 2 : 0, a.activation};
  b.add(&args, sizeof args, glu_product_pieces, glu_product);
}

void router(Builder& b, const RouterArgs& a) {
  Activations x = activations(b, a.x, rounding(a.w, a.fast));
  int64_t logits = b.reserve_scratch(int64_t(a.ids.d0) * a.w.rows * int64_t(sizeof(float)));
  RouterProductArgs product_args{a.ids, x, a.w, logits};
  by_row<RouterProductArgs, &RouterProductArgs::ids, router_one>(b, product_args);
  TopkArgs topk_args{a.ids, a.weights, logits, a.w.rows, a.renormalise};
  by_row<TopkArgs, &TopkArgs::ids, topk_one>(b, topk_args);
}

}  // namespace bao::reference
