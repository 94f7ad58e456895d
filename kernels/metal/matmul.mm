// Matmuls with one weight for all rows: plain, grouped, gate/up with its activation, and the router's; and the launches of one product.
#include "matmul.h"
#include "../frontend/core.h"

namespace bao {
namespace {

bool plain(const WeightRef& w) { return w.dtype == BAO_F32 || w.dtype == BAO_F16 || w.dtype == BAO_BF16; }
bool int8(const WeightRef& w, int32_t fast) { return fast == 1 && !plain(w); }
bool bf16(const WeightRef& w, int32_t fast) { return fast == 2 && w.dtype != BAO_F32; }
int32_t padded(int32_t columns) { return (columns + 7) / 8 * 8; }

}  // namespace

// ---- activations

Rounding reserve_rounding(Builder& b, const Tensor& x, std::initializer_list<const WeightRef*> weights) {
  int32_t precision = static_cast<Stream&>(b).device->precision;  // what records is a stream
  Rounding r{-1, -1, precision == BAO_EXACT ? 0 : precision == BAO_FAST_INT8 ? 1 : 2};
  for (const WeightRef* w : weights) {
    if (!w->present()) continue;
    if (r.int8_at < 0 && int8(*w, r.fast)) r.int8_at = b.reserve_scratch(int64_t(x.d0) * x.columns() * 4);
    if (r.bf16_at < 0 && bf16(*w, r.fast)) r.bf16_at = b.reserve_scratch(int64_t(x.d0) * (x.columns() / w->columns) * padded(w->columns) * 2);
  }
  return r;
}

Activations::Activations(const Tensor& x, int32_t columns, const Rounding& rounding, bool together, const Run& run) : x_(x), int8_{}, bf16_{}, fast_(rounding.fast) {
  auto copy = [&](const char* kernel, const Tensor& to) {
    run.launch("matmul_round", kernel).out(0, to).in(1, x).params(RoundParams{rows_of(to), rows_of(x), columns}).threads(to.columns(), run.bound(x), 1, group_for(to.columns()));
  };
  if (rounding.int8_at >= 0) copy("round_int8", int8_ = run.scratch_tensor(rounding.int8_at, x, x.d1, x.d2));
  if (rounding.bf16_at >= 0 && together) copy("round_bf16", bf16_ = run.scratch_tensor(rounding.bf16_at, x, int32_t(x.columns() / columns), padded(columns) / 2));
}

const Tensor& Activations::of(const WeightRef& w) const { return int8(w, fast_) ? int8_ : form(w) == X_PACKED ? bf16_ : x_; }
int32_t Activations::form(const WeightRef& w) const { return !bf16(w, fast_) ? X_F32 : bf16_.data ? X_PACKED : X_ROUNDED; }

// ---- one product

namespace {

bool tiled(const Product& a, const Run& run) { return a.ids.present() ? a.groups.words != nullptr : run.bound(a.dst) > PRODUCT_FEW; }
// Rounded to half: relative errors of 2^-11, no more than x has. Types with a float's range keep it.
bool half_tiles(const Product& a) { return a.form == X_PACKED && a.w.dtype != BAO_BF16; }

struct Second { WeightRef up; int32_t first, activation; Tensor weights; };
Launch launch_of(const char* kernel, const Product& a, const Second& s, const Run& run) {
  Launch launch = run.launch("matmul", kernel, a.w.dtype);
  launch.out(0, a.dst).in(1, a.x).in(2, a.w).in(3, a.w.factors, int64_t(a.w.factor_count) * 4).in(4, a.ids).in(5, a.groups.words, a.groups.bytes)
      .in(6, s.up).in(7, s.up.factors, int64_t(s.up.factor_count) * 4).in(8, s.weights)
      .params(ProductParams{rows_of(a.dst), rows_of(a.x), rows_of(a.ids), rows_of(s.weights), rows_of(a.w), rows_of(s.up), a.first, s.first, a.to, a.count, a.form, s.activation,
                            a.groups.words ? a.groups.order_at : 0});
  return launch;
}

// Threadgroups of 2 simdgroups with `each` results of each of `items` rows, pairs or groups of rows, which are next to each other: they share what is read.
void vector(Launch& launch, const Product& a, int32_t each, int64_t items) { launch.groups(items, (a.count + 2 * each - 1) / (2 * each), 1, 64); }

// Calls encode(part, bytes, flops) for ranges of a product's columns that are short enough; flops and bytes are a range's share of what `weights` of this size cost.
template <class Encode>
void parts(const Product& a, int32_t weights, const Run& run, Encode&& encode) {
  double n = double(run.bound(a.dst)) * (a.ids.present() ? a.ids.d2 : 1), read = a.ids.present() ? std::min(n, double(a.w.experts)) : 1;
  double bytes = weights * read * a.w.row_bytes * a.count + n * (a.w.columns + a.count) * 4, flops = weights * 2.0 * n * a.w.columns * a.count;
  run.cut(a.count, 64, bytes, flops, [&](int32_t first, int32_t count, double share) {
    Product part = a;
    part.first += first, part.to = first, part.count = count;
    encode(part, bytes * share, flops * share);
  });
}

}  // namespace

void encode_product(const Product& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows <= 0) return;
  bool tiles = tiled(a, run);
  int32_t step = a.ids.present() || rows == 1 ? 1 : rows == 2 ? 2 : 4;  // rows of a simdgroup
  const char* kernel = tiles ? (half_tiles(a) ? "product_tile_half" : "product_tile_float") : step == 1 ? "product_vector_1" : step == 2 ? "product_vector_2" : "product_vector_4";
  parts(a, 1, run, [&](const Product& part, double bytes, double flops) {
    Launch launch = launch_of(kernel, part, Second{}, run);
    launch.cost(bytes, flops);
    if (tiles) launch.groups(a.groups.words ? a.groups.most_tiles : (rows + PRODUCT_TILE - 1) / PRODUCT_TILE, (part.count + 63) / 64, 1, 128);
    else vector(launch, part, 4, a.ids.present() ? int64_t(rows) * a.ids.d2 : (rows + step - 1) / step);
  });
}

bool encode_product_glu(const Product& a, const WeightRef& up, int32_t up_first, int32_t activation, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows <= 0) return true;
  if (tiled(a, run) || (rows > 1 && !a.ids.present()) || up.dtype != a.w.dtype) return false;
  parts(a, 2, run, [&](const Product& part, double bytes, double flops) {
    Launch launch = launch_of("product_glu", part, Second{up, up_first + part.to, activation, Tensor{}}, run);
    vector(launch.cost(bytes, flops), part, 2, a.ids.present() ? int64_t(rows) * a.ids.d2 : 1);
  });
  return true;
}

bool encode_product_sum(const Product& a, const Tensor& weights, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows <= 0) return true;
  if (tiled(a, run) || a.w.columns % 16 != 0) return false;
  parts(a, 1, run, [&](const Product& part, double bytes, double flops) {
    Launch launch = launch_of("product_sum", part, Second{WeightRef{}, 0, 0, weights}, run);
    vector(launch.cost(bytes, flops), part, 4, rows);
  });
  return true;
}

Product product_of(const Tensor& dst, const WeightRef& w, int32_t first, int32_t count, const Activations& x) {
  Product p{dst, x.of(w), w, first, count, x.form(w), Tensor{}, Groups{}};
  p.dst.d1 = 1, p.dst.d2 = count;
  p.x.d2 = int32_t(p.x.columns()), p.x.d1 = 1;
  return p;
}

// ---- ops

namespace {

struct Matmul { MatmulArgs a; Rounding x; };
void encode_matmul(const Matmul& m, const Run& run) {
  if (run.bound(m.a.dst) > 0) encode_product(product_of(m.a.dst, m.a.w, 0, m.a.w.rows, Activations(m.a.x, m.a.w.columns, m.x, run.bound(m.a.x) > 1, run)), run);
}

struct Group { MatmulGroupArgs a; Rounding x; };
void encode_group(const Group& m, const Run& run) {
  if (run.bound(m.a.x) <= 0) return;
  Activations x(m.a.x, int32_t(m.a.x.columns()), m.x, run.bound(m.a.x) > 1, run);
  for (int i = 0; i < 3; i++) {
    if (m.a.w[i].present()) encode_product(product_of(m.a.dst[i], m.a.w[i], 0, m.a.w[i].rows, x), run);
  }
}

struct Glu { MatmulGluArgs a; Rounding x; int64_t gate, up; };
void encode_matmul_glu(const Glu& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0) return;
  Activations x(m.a.x, m.a.gate.columns, m.x, run.bound(m.a.x) > 1, run);
  int32_t n = int32_t(m.a.dst.columns()), up_first = m.a.up.present() ? 0 : n;
  const WeightRef& w = m.a.up.present() ? m.a.up : m.a.gate;
  if (encode_product_glu(product_of(m.a.dst, m.a.gate, 0, n, x), w, up_first, m.a.activation, run)) return;
  Tensor gate = run.scratch_tensor(m.gate, m.a.dst, 1, n), up = run.scratch_tensor(m.up, m.a.dst, 1, n), dst = m.a.dst;
  dst.d1 = 1, dst.d2 = n;
  encode_product(product_of(gate, m.a.gate, 0, n, x), run);
  encode_product(product_of(up, w, up_first, n, x), run);
  encode_glu(GluArgs{dst, gate, up, m.a.activation}, run);
}

struct Router { RouterArgs a; Rounding x; int64_t logits; };
void encode_router(const Router& m, const Run& run) {
  if (run.bound(m.a.ids) <= 0) return;
  Tensor logits = run.scratch_tensor(m.logits, m.a.ids, 1, m.a.w.rows);
  encode_product(product_of(logits, m.a.w, 0, m.a.w.rows, Activations(m.a.x, m.a.w.columns, m.x, run.bound(m.a.x) > 1, run)), run);
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
