// The matmul ops for few rows of int8 activations: which ones are served, their scratch, and their one launch.
#include "few.h"

namespace bao {
namespace {

// fast: 1 int8, 3 the device's choice, which is int8 for few rows.
Few record(Builder& b, const Tensor& x, int32_t fast, bool served) {
  Few f{served && (fast == 1 || fast == 3), 0, 0};
  if (f.on) f.x = reserve_few(b, x);
  return f;
}

bool add(FewArgs& p, const MatmulArgs& a) { return few_member(p, a.dst, a.w, 0, a.w.rows); }
bool add(FewArgs& p, const MoeMatmulArgs& a) { return few_member(p, a.dst, a.w, 0, a.w.rows); }
bool add(FewArgs& p, const MoeMatmulSumArgs& a) { return few_member(p, a.dst, a.w, 0, a.w.rows); }
bool add(FewArgs& p, const MatmulGroupArgs& a) {
  for (int i = 0; i < 3; i++) {
    if (a.w[i].present() && !few_member(p, a.dst[i], a.w[i], 0, a.w[i].rows)) return false;
  }
  return true;
}
template <class Args>
bool add_glu(FewArgs& p, const Args& a, int32_t outputs) {
  const WeightRef& up = a.up.present() ? a.up : a.gate;
  return few_member(p, a.dst, a.gate, 0, outputs) && few_member(p, Tensor{}, up, a.up.present() ? 0 : outputs, outputs);
}
bool add(FewArgs& p, const MatmulGluArgs& a) { return add_glu(p, a, int32_t(a.dst.columns())); }
bool add(FewArgs& p, const MoeMatmulGluArgs& a) { return add_glu(p, a, a.dst.d2); }

template <class Args>
Few record_op(Builder& b, const Args& a, FewKind kind, const WeightRef& w) {
  FewArgs p = few_args(kind, a.x, w.columns);
  return record(b, a.x, a.fast, add(p, a));
}

template <class Args>
bool launch_op(const Args& a, FewKind kind, const WeightRef& w, const Few& f, const Run& run, const Tensor& ids = Tensor{}, const Tensor& weights = Tensor{}) {
  if (!f.on) return false;
  FewArgs p = few_args(kind, a.x, w.columns);
  p.ids = ids, p.weights = weights, p.halves = a.fast == 3;
  if constexpr (std::is_same_v<Args, MatmulGluArgs> || std::is_same_v<Args, MoeMatmulGluArgs>) p.activation = a.activation;
  if (!add(p, a)) return false;
  // One row, rounded by the kernel itself: a single launch without scratch, which may run beside the one before it.
  Launched now;
  now.known = run.bound(p.member[0].dst) == 1 && int64_t(kind == FewKind::sum ? ids.d2 : 1) * p.columns <= few_rounds;
  now.reads_of(p.x);
  now.reads_of(ids);
  now.reads_of(weights);
  for (int32_t m = 0; m < p.members; m++) now.writes_to(p.member[m].dst);
  p.apart = now.apart = run.order->apart(now);
  // What follows a GLU may be apart from it; ids that a launch has left behind tell early which weights a sum needs.
  p.late = now.late = kind == FewKind::glu && !now.apart;
  p.settled = kind == FewKind::sum && run.order->settled(ids) && run.order->settled(weights);
  if (!launch_few(p, f.x, run)) return false;
  run.order->now = now;
  return true;
}

}  // namespace

Few record_few(Builder& b, const MatmulArgs& a) { return record_op(b, a, FewKind::plain, a.w); }
Few record_few(Builder& b, const MatmulGroupArgs& a) { return record_op(b, a, FewKind::plain, a.w[0]); }
Few record_few(Builder& b, const MatmulGluArgs& a) { return record_op(b, a, FewKind::glu, a.gate); }
Few record_few(Builder& b, const MoeMatmulArgs& a) { return record_op(b, a, FewKind::plain, a.w); }
Few record_few(Builder& b, const MoeMatmulGluArgs& a) { return record_op(b, a, FewKind::glu, a.gate); }
Few record_few(Builder& b, const MoeMatmulSumArgs& a) {
  Few f = record_op(b, a, FewKind::sum, a.w);
  if (f.on && a.dst.d0 > 1) f.parts = b.reserve_scratch(int64_t(a.dst.d0 < few_rows ? a.dst.d0 : few_rows) * a.ids.d2 * a.w.rows * 4);
  return f;
}

bool launch_few(const MatmulArgs& a, const Few& f, const Run& run) { return launch_op(a, FewKind::plain, a.w, f, run); }
bool launch_few(const MatmulGroupArgs& a, const Few& f, const Run& run) { return launch_op(a, FewKind::plain, a.w[0], f, run); }
bool launch_few(const MatmulGluArgs& a, const Few& f, const Run& run) { return launch_op(a, FewKind::glu, a.gate, f, run); }
bool launch_few(const MoeMatmulArgs& a, const Few& f, const Run& run) { return launch_op(a, FewKind::plain, a.w, f, run, a.ids); }
bool launch_few(const MoeMatmulGluArgs& a, const Few& f, const Run& run) { return launch_op(a, FewKind::glu, a.gate, f, run, a.ids); }
bool launch_few(const MoeMatmulSumArgs& a, const Few& f, const Run& run) {
  int32_t rows = run.bound(a.dst);
  bool shares = rows > 1 && few_shares(rows, a.ids, a.w.experts);
  if (!shares && launch_op(a, FewKind::sum, a.w, f, run, a.ids, a.weights)) return true;
  if (!f.on || rows > few_rows) return false;
  // Several rows: experts' outputs at their places, then the sums over slots.
  Tensor parts = run.scratch_tensor(f.parts, a.dst, a.ids.d2, a.w.rows);
  if (!launch_few(MoeMatmulArgs{parts, a.x, a.ids, a.w, a.fast}, f, run)) return false;
  launch_moe_sum(MoeSumArgs{a.dst, parts, a.weights}, run);
  return true;
}

}  // namespace bao
