// Expert ops: the k best of a softmax, matmuls with a weight per (row, slot), weighted sum over slots. Fused ops are sequences of launches.
#include "matmul.h"

namespace bao {
namespace {

// Up to so many pairs, or PRODUCT_FEW rows, each pair reads its expert's rows; beyond, a tile of pairs does.
constexpr int32_t vector_pairs = 64;

// Words of scratch for pairs of so many experts, and where they lie.
struct GroupLayout { int64_t most_tiles, order_at, counts_at, words; };
GroupLayout group_layout(int64_t pairs, int32_t experts) {
  GroupLayout l{};
  l.most_tiles = pairs / PRODUCT_TILE + std::min(int64_t(experts) + 1, pairs);
  l.order_at = GROUP_TILES + 3 * l.most_tiles;
  l.counts_at = l.order_at + pairs;
  l.words = l.counts_at + experts + 1;
  return l;
}

}  // namespace

int64_t reserve_groups(Builder& b, const Tensor& ids, int32_t experts) { return b.reserve_scratch(group_layout(int64_t(ids.d0) * ids.d2, experts).words * 4); }

Groups encode_groups(const Tensor& ids, int32_t experts, int64_t scratch, const Run& run) {
  int64_t pairs = int64_t(run.bound(ids)) * ids.d2;
  if (pairs <= vector_pairs || run.bound(ids) <= PRODUCT_FEW) return Groups{};
  GroupLayout l = group_layout(pairs, experts);
  Groups g{reinterpret_cast<int32_t*>(run.scratch + scratch), l.words * 4, int32_t(l.most_tiles), int32_t(l.order_at)};
  for (const char* kernel : {"group_count", "group_place"}) {
    run.launch("moe", kernel).out(0, g.words, g.bytes).in(1, ids).params(GroupParams{rows_of(ids), experts, int32_t(l.order_at), int32_t(l.counts_at)}).groups(experts + 1, 1, 1, 32);
  }
  return g;
}

void encode_topk(const TopkSoftmaxArgs& a, const Run& run) {
  run.launch("moe", "topk_softmax").out(0, a.ids).out(1, a.weights).in(2, a.logits)
      .params(TopkParams{rows_of(a.ids), rows_of(a.weights), rows_of(a.logits), a.renormalise}).groups(1, run.bound(a.ids), 1, 32);
}

namespace {

void encode_sum(const MoeSumArgs& a, const Run& run) {
  run.launch("moe", "slot_sum").out(0, a.dst).in(1, a.x).in(2, a.weights).params(SlotSumParams{rows_of(a.dst), rows_of(a.x), rows_of(a.weights)})
      .threads(a.x.d2, run.bound(a.dst), 1, group_for(a.x.d2));
}

Product product_of(const Tensor& dst, const WeightRef& w, int32_t first, int32_t count, const Activations& x, const Tensor& ids, const Groups& groups) {
  return Product{dst, x.of(w), w, first, count, x.form(w), ids, groups};
}

struct Moe { MoeMatmulArgs a; Rounding x; int64_t groups; };
void encode_moe(const Moe& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0) return;
  Groups groups = encode_groups(m.a.ids, m.a.w.experts, m.groups, run);
  Activations x(m.a.x, m.a.w.columns, m.x, groups.words, run);
  encode_product(product_of(m.a.dst, m.a.w, 0, m.a.w.rows, x, m.a.ids, groups), run);
}

struct MoeGlu { MoeMatmulGluArgs a; Rounding x; int64_t groups, gate, up; };
void encode_moe_glu(const MoeGlu& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0) return;
  Groups groups = encode_groups(m.a.ids, m.a.gate.experts, m.groups, run);
  Activations x(m.a.x, m.a.gate.columns, m.x, groups.words, run);
  int32_t n = m.a.dst.d2, k = m.a.ids.d2, up_first = m.a.up.present() ? 0 : n;
  const WeightRef& w = m.a.up.present() ? m.a.up : m.a.gate;
  if (encode_product_glu(product_of(m.a.dst, m.a.gate, 0, n, x, m.a.ids, groups), w, up_first, m.a.activation, run)) return;
  Tensor gate = run.scratch_tensor(m.gate, m.a.dst, k, n), up = run.scratch_tensor(m.up, m.a.dst, k, n);
  encode_product(product_of(gate, m.a.gate, 0, n, x, m.a.ids, groups), run);
  encode_product(product_of(up, w, up_first, n, x, m.a.ids, groups), run);
  encode_glu(GluArgs{m.a.dst, gate, up, m.a.activation}, run);
}

struct MoeMatmulSum { MoeMatmulSumArgs a; Rounding x; int64_t groups, parts; };
void encode_matmul_sum(const MoeMatmulSum& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0) return;
  Groups groups = encode_groups(m.a.ids, m.a.w.experts, m.groups, run);
  Activations x(m.a.x, m.a.w.columns, m.x, groups.words, run);
  if (encode_product_sum(product_of(m.a.dst, m.a.w, 0, m.a.w.rows, x, m.a.ids, groups), m.a.weights, run)) return;
  Tensor parts = run.scratch_tensor(m.parts, m.a.dst, m.a.ids.d2, m.a.w.rows);
  encode_product(product_of(parts, m.a.w, 0, m.a.w.rows, x, m.a.ids, groups), run);
  encode_sum(MoeSumArgs{m.a.dst, parts, m.a.weights}, run);
}

}  // namespace

namespace metal {

void topk_softmax(Builder& b, const TopkSoftmaxArgs& a) { stage<TopkSoftmaxArgs, encode_topk>(b, a); }

void moe_sum(Builder& b, const MoeSumArgs& a) { stage<MoeSumArgs, encode_sum>(b, a); }

void moe_matmul(Builder& b, const MoeMatmulArgs& a) {
  stage<Moe, encode_moe>(b, Moe{a, reserve_rounding(b, a.x, {&a.w}), reserve_groups(b, a.ids, a.w.experts)});
}

void moe_matmul_glu(Builder& b, const MoeMatmulGluArgs& a) {
  MoeGlu m{a, reserve_rounding(b, a.x, {&a.gate, &a.up}), reserve_groups(b, a.ids, a.gate.experts), 0, 0};
  int64_t bytes = int64_t(a.dst.d0) * a.dst.columns() * 4;
  m.gate = b.reserve_scratch(bytes);
  m.up = b.reserve_scratch(bytes);
  stage<MoeGlu, encode_moe_glu>(b, m);
}

void moe_matmul_sum(Builder& b, const MoeMatmulSumArgs& a) {
  MoeMatmulSum m{a, reserve_rounding(b, a.x, {&a.w}), reserve_groups(b, a.ids, a.w.experts), 0};
  m.parts = b.reserve_scratch(int64_t(a.dst.d0) * a.ids.d2 * a.w.rows * 4);
  stage<MoeMatmulSum, encode_matmul_sum>(b, m);
}

}  // namespace metal

}  // namespace bao
