// The matmul ops for many rows on tensor cores: which ones, their scratch, and their launches.
#include "../frontend/core.h"
#include "mma.cuh"

namespace bao {
namespace {

// F32 weights keep f32 activations. A thread reads 8 columns at once: of 16-bit numbers with one 16-byte load.
bool served(const WeightRef& w) {
  if (!w.present()) return true;
  return w.dtype != BAO_F32 && w.columns % (is_plain(w.dtype) ? 8 : 32) == 0;
}

// The up half of a packed gate starts a tile of rows.
bool served_packed(const WeightRef& gate, const WeightRef& up) {
  return served(gate) && served(up) && (up.present() || is_plain(gate.dtype) || gate.rows / 2 % tile_rows == 0);
}

// FAST leaves the choice to us, for every type but F32; FAST_INT8 keeps int8 activations.
Many record(Builder& b, const Tensor& x, const WeightRef& w, bool all_served) {
  int32_t precision = static_cast<Stream&>(b).device->precision;  // what records is a stream
  Many m{all_served && (precision == BAO_FAST || precision == BAO_FAST_BF16), 0, 0, 0, 0, 0};
  if (!m.on) return m;
  int64_t items = int64_t(x.d0) * (x.columns() / w.columns);
  m.x = b.reserve_scratch(items * mma_pitch(w.columns) * 2);
  m.scale = b.reserve_scratch(items * 4);
  return m;
}

void record_groups(Builder& b, Many& m, const Tensor& ids, int32_t experts) {
  if (m.on) m.groups = b.reserve_scratch(mma_group_words(int64_t(ids.d0) * ids.d2, experts) * 4);
}

// Gate and up of two types are multiplied one by one.
bool fused(const WeightRef& gate, const WeightRef& up) { return !up.present() || up.dtype == gate.dtype; }

void record_parts(Builder& b, Many& m, const Tensor& dst, const WeightRef& gate, const WeightRef& up) {
  if (!m.on || fused(gate, up)) return;
  int64_t bytes = int64_t(dst.d0) * dst.columns() * 4;
  m.parts = b.reserve_scratch(bytes);
  m.up_parts = b.reserve_scratch(bytes);
}

// At least `least` rows fill enough of a tile; pairs spread over experts fill theirs more slowly, but a mat-vec reads an expert once a pair.
bool many_rows(const Many& m, const Tensor& dst, const Run& run) { return m.on && run.bound(dst) >= mma_least_rows; }

// dst as (rows, 1, all its columns).
Tensor flat(Tensor t) {
  t.d2 = int32_t(t.columns());
  t.d1 = 1;
  return t;
}

MmaProduct product_of(const MmaInput& x, const MmaGroups& groups) {
  MmaProduct p{};
  p.x = x, p.groups = groups;
  if (!groups.words) p.x.slots = 1;
  return p;
}

void gate_up(const Tensor& dst, const WeightRef& gate, const WeightRef& up, int32_t outputs, int32_t activation, const MmaInput& x, const MmaGroups& groups, const Many& m, const Run& run) {
  MmaProduct p = product_of(x, groups);
  p.activation = activation;
  if (fused(gate, up)) {
    mma_member(p, dst, gate, 0, up.present() ? up : gate, up.present() ? 0 : outputs, outputs);
    return mma_product(p, run);
  }
  Tensor parts[2] = {run.scratch_tensor(m.parts, dst, dst.d1, dst.d2), run.scratch_tensor(m.up_parts, dst, dst.d1, dst.d2)};
  MmaProduct second = p;
  second.beside = true;
  mma_member(p, parts[0], gate, 0, WeightRef{}, 0, outputs);
  mma_member(second, parts[1], up, 0, WeightRef{}, 0, outputs);
  mma_product(p, run);
  mma_product(second, run);
  launch_glu(GluArgs{dst, parts[0], parts[1], activation}, run);
}

}  // namespace

Many record_many(Builder& b, const MatmulArgs& a) { return record(b, a.x, a.w, served(a.w)); }

Many record_many(Builder& b, const MatmulGroupArgs& a) {
  return record(b, a.x, a.w[0], served(a.w[0]) && served(a.w[1]) && served(a.w[2]));
}

Many record_many(Builder& b, const MatmulGluArgs& a) {
  Many m = record(b, a.x, a.gate, served_packed(a.gate, a.up));
  record_parts(b, m, a.dst, a.gate, a.up);
  return m;
}

Many record_many(Builder& b, const MoeMatmulArgs& a) {
  Many m = record(b, a.x, a.w, served(a.w));
  record_groups(b, m, a.ids, a.w.experts);
  return m;
}

Many record_many(Builder& b, const MoeMatmulGluArgs& a) {
  Many m = record(b, a.x, a.gate, served_packed(a.gate, a.up));
  record_groups(b, m, a.ids, a.gate.experts);
  record_parts(b, m, a.dst, a.gate, a.up);
  return m;
}

Many record_many(Builder& b, const MoeMatmulSumArgs& a) {
  Many m = record(b, a.x, a.w, served(a.w));
  record_groups(b, m, a.ids, a.w.experts);
  if (m.on) m.parts = b.reserve_scratch(int64_t(a.dst.d0) * a.ids.d2 * a.w.rows * 4);
  return m;
}

bool launch_many(const MatmulArgs& a, const Many& m, const Run& run) {
  if (!many_rows(m, a.dst, run)) return false;
  MmaProduct p = product_of(mma_round(a.x, a.w.columns, Tensor{}, 0, m, nullptr, run), MmaGroups{});
  mma_member(p, flat(a.dst), a.w, 0, WeightRef{}, 0, a.w.rows);
  mma_product(p, run);
  return true;
}

bool launch_many(const MatmulGroupArgs& a, const Many& m, const Run& run) {
  if (!many_rows(m, a.dst[0], run)) return false;
  MmaInput x = mma_round(a.x, a.w[0].columns, Tensor{}, 0, m, nullptr, run);
  // One launch for each type; those behind the first need nothing of each other.
  bool done[3] = {!a.w[0].present(), !a.w[1].present(), !a.w[2].present()}, beside = false;
  for (int i = 0; i < 3; i++) {
    if (done[i]) continue;
    MmaProduct p = product_of(x, MmaGroups{});
    p.beside = beside;
    for (int j = i; j < 3; j++) {
      if (done[j] || a.w[j].dtype != a.w[i].dtype) continue;
      mma_member(p, flat(a.dst[j]), a.w[j], 0, WeightRef{}, 0, a.w[j].rows);
      done[j] = true;
    }
    mma_product(p, run);
    beside = true;
  }
  return true;
}

bool launch_many(const MatmulGluArgs& a, const Many& m, const Run& run) {
  if (!many_rows(m, a.dst, run)) return false;
  gate_up(flat(a.dst), a.gate, a.up, int32_t(a.dst.columns()), a.activation, mma_round(a.x, a.gate.columns, Tensor{}, 0, m, nullptr, run), MmaGroups{}, m, run);
  return true;
}

bool launch_many(const MoeMatmulArgs& a, const Many& m, const Run& run) {
  if (!many_rows(m, a.dst, run)) return false;
  MmaGroups groups;
  MmaInput x = mma_round(a.x, a.w.columns, a.ids, a.w.experts, m, &groups, run);
  MmaProduct p = product_of(x, groups);
  mma_member(p, a.dst, a.w, 0, WeightRef{}, 0, a.w.rows);
  mma_product(p, run);
  return true;
}

bool launch_many(const MoeMatmulGluArgs& a, const Many& m, const Run& run) {
  if (!many_rows(m, a.dst, run)) return false;
  MmaGroups groups;
  MmaInput x = mma_round(a.x, a.gate.columns, a.ids, a.gate.experts, m, &groups, run);
  gate_up(a.dst, a.gate, a.up, a.dst.d2, a.activation, x, groups, m, run);
  return true;
}

bool launch_many(const MoeMatmulSumArgs& a, const Many& m, const Run& run) {
  if (!many_rows(m, a.dst, run)) return false;
  MmaGroups groups;
  MmaInput x = mma_round(a.x, a.w.columns, a.ids, a.w.experts, m, &groups, run);
  Tensor parts = run.scratch_tensor(m.parts, a.dst, a.ids.d2, a.w.rows);
  MmaProduct p = product_of(x, groups);
  mma_member(p, parts, a.w, 0, WeightRef{}, 0, a.w.rows);
  mma_product(p, run);
  mma_sum(a.dst, parts, a.weights, run);
  return true;
}

}  // namespace bao
