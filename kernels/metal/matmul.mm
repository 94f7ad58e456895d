// Matmuls with one weight for all rows: plain, grouped, gate/up with its activation, and the router's; and the launches of one product.
#include "matmul.h"
#include "../frontend/core.h"

namespace bao {
namespace {

bool plain(const WeightRef& w) { return w.dtype == BAO_F32 || w.dtype == BAO_F16 || w.dtype == BAO_BF16; }
bool int8(const WeightRef& w, int32_t fast) { return fast == 1 && !plain(w); }

constexpr int32_t vector_rows = 8;

}  // namespace

// ---- activations

Rounding reserve_rounding(Builder& b, const Tensor& x, std::initializer_list<const WeightRef*> weights) {
  int32_t precision = static_cast<Stream&>(b).device->precision;  // what records is a stream
  Rounding r{-1, precision == BAO_EXACT ? 0 : precision == BAO_FAST_INT8 ? 1 : 2};
  for (const WeightRef* w : weights) {
    if (r.int8_at < 0 && w->present() && int8(*w, r.fast)) r.int8_at = b.reserve_scratch(int64_t(x.d0) * x.columns() * 4);
  }
  return r;
}

Activations::Activations(const Tensor& x, const Rounding& rounding, const Run& run) : x_(x), int8_{}, fast_(rounding.fast) {
  if (rounding.int8_at < 0) return;
  int8_ = run.scratch_tensor(rounding.int8_at, x, x.d1, x.d2);
  run.launch("matmul_round", "round_int8").out(0, int8_).in(1, x).params(RoundParams{rows_of(int8_), rows_of(x)})
      .threads(x.columns(), run.bound(x), 1, group_for(x.columns()));
}

const Tensor& Activations::of(const WeightRef& w) const { return int8(w, fast_) ? int8_ : x_; }
bool Activations::bf16(const WeightRef& w) const { return fast_ == 2 && w.dtype != BAO_F32; }

// ---- one product

void encode_product(const Product& a, const Run& run) {
  static const char* const vectors[] = {"product_vector_1", "product_vector_2", "product_vector_4", "product_vector_8"};
  int32_t rows = run.bound(a.dst), slots = a.ids.present() ? a.ids.d2 : 1;
  if (rows <= 0) return;
  bool tiles = a.ids.present() ? a.groups.words != nullptr : rows > vector_rows;
  int32_t step = a.ids.present() || rows == 1 ? 0 : rows == 2 ? 1 : rows <= 4 ? 2 : 3;
  Launch launch = run.launch("matmul", tiles ? "product_tile" : vectors[step], a.w.dtype);
  launch.out(0, a.dst).in(1, a.x).in(2, a.w).in(3, a.w.factors, int64_t(a.w.factor_count) * 4).in(4, a.ids).in(5, a.groups.words, a.groups.bytes)
      .params(ProductParams{rows_of(a.dst), rows_of(a.x), rows_of(a.ids), rows_of(a.w), a.first, a.count, a.bf16, a.groups.words ? a.groups.order_at : 0});
  if (tiles) return launch.groups((a.count + 63) / 64, a.groups.words ? a.groups.most_tiles : (rows + PRODUCT_TILE - 1) / PRODUCT_TILE, 1, 128);
  int32_t per_group = step == 0 ? 16 : 8;
  launch.groups((a.count + per_group - 1) / per_group, a.ids.present() ? int64_t(rows) * slots : 1, 1, 128);
}

void encode_product(const Tensor& dst, const WeightRef& w, int32_t first, int32_t count, const Activations& x, const Run& run) {
  Product p{dst, x.of(w), w, first, count, x.bf16(w), Tensor{}, Groups{}};
  p.dst.d1 = p.x.d1 = 1;
  p.dst.d2 = count;
  p.x.d2 = w.columns;
  encode_product(p, run);
}

// ---- ops

namespace {

struct Matmul { MatmulArgs a; Rounding x; };
void encode_matmul(const Matmul& m, const Run& run) {
  if (run.bound(m.a.dst) > 0) encode_product(m.a.dst, m.a.w, 0, m.a.w.rows, Activations(m.a.x, m.x, run), run);
}

struct Group { MatmulGroupArgs a; Rounding x; };
void encode_group(const Group& m, const Run& run) {
  if (run.bound(m.a.x) <= 0) return;
  Activations x(m.a.x, m.x, run);
  for (int i = 0; i < 3; i++) {
    if (m.a.w[i].present()) encode_product(m.a.dst[i], m.a.w[i], 0, m.a.w[i].rows, x, run);
  }
}

struct Glu { MatmulGluArgs a; Rounding x; int64_t gate, up; };
void encode_matmul_glu(const Glu& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0) return;
  Activations x(m.a.x, m.x, run);
  int32_t n = int32_t(m.a.dst.columns());
  Tensor gate = run.scratch_tensor(m.gate, m.a.dst, 1, n), up = run.scratch_tensor(m.up, m.a.dst, 1, n), dst = m.a.dst;
  dst.d1 = 1, dst.d2 = n;
  encode_product(gate, m.a.gate, 0, n, x, run);
  if (m.a.up.present()) encode_product(up, m.a.up, 0, n, x, run);
  else encode_product(up, m.a.gate, n, n, x, run);
  encode_glu(GluArgs{dst, gate, up, m.a.activation}, run);
}

struct Router { RouterArgs a; Rounding x; int64_t logits; };
void encode_router(const Router& m, const Run& run) {
  if (run.bound(m.a.ids) <= 0) return;
  Tensor logits = run.scratch_tensor(m.logits, m.a.ids, 1, m.a.w.rows);
  encode_product(logits, m.a.w, 0, m.a.w.rows, Activations(m.a.x, m.x, run), run);
  encode_topk(TopkSoftmaxArgs{m.a.ids, m.a.weights, logits, m.a.renormalise}, run);
}

}  // namespace

namespace metal {

void matmul(Builder& b, const MatmulArgs& a) { stage<Matmul, encode_matmul>(b, Matmul{a, reserve_rounding(b, a.x, {&a.w})}); }

void matmul_group(Builder& b, const MatmulGroupArgs& a) { stage<Group, encode_group>(b, Group{a, reserve_rounding(b, a.x, {&a.w[0], &a.w[1], &a.w[2]})}); }

void matmul_glu(Builder& b, const MatmulGluArgs& a) {
  Glu m{a, reserve_rounding(b, a.x, {&a.gate, &a.up}), 0, 0};
  int64_t bytes = int64_t(a.dst.d0) * a.dst.columns() * 4;
  m.gate = b.reserve_scratch(bytes);
  m.up = b.reserve_scratch(bytes);
  stage<Glu, encode_matmul_glu>(b, m);
}

void router(Builder& b, const RouterArgs& a) {
  Router m{a, reserve_rounding(b, a.x, {&a.w}), 0};
  m.logits = b.reserve_scratch(int64_t(a.ids.d0) * a.w.rows * 4);
  stage<Router, encode_router>(b, m);
}

}  // namespace metal

}  // namespace bao
