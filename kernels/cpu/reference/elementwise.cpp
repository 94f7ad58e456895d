// Reference of the ops that touch each element or row once: add, scale, softcap, copy, gather_rows, pool_rows, argmax.
#include "reference.h"

namespace bao::reference {
namespace {

void add_one(const AddArgs& a, const Run&, int32_t r) {
  for (int64_t i = 0; i < a.dst.columns(); i++) a.dst.f32(r)[i] = a.a.f32(r)[i] + a.b.f32(r)[i];
}

void scale_one(const ScaleArgs& a, const Run&, int32_t r) {
  for (int64_t i = 0; i < a.dst.columns(); i++) a.dst.f32(r)[i] = a.x.f32(r)[i] * a.factor;
}

void softcap_one(const ScaleArgs& a, const Run&, int32_t r) {
  double cap = a.factor;
  for (int64_t i = 0; i < a.dst.columns(); i++) a.dst.f32(r)[i] = float(cap * std::tanh(double(a.x.f32(r)[i]) / cap));
}

void copy_one(const CopyArgs& a, const Run&, int32_t r) {
  for (int64_t i = 0; i < a.dst.columns(); i++) a.dst.f32(r)[i] = a.x.f32(r)[i];
}

void gather_one(const CopyArgs& a, const Run& run, int32_t r) {
  const float* x = a.x.f32(run.step->output_row[r]);
  for (int64_t i = 0; i < a.dst.columns(); i++) a.dst.f32(r)[i] = x[i];
}

// One piece a sequence: its rows are added in ascending order whatever thread takes it.
void pool_one(const CopyArgs& a, const Run& run, int32_t sequence) {
  float* dst = a.dst.f32(sequence);
  for (int32_t r = 0; r < run.step->count(a.x); r++) {
    int32_t row = run.step->step_row(a.x.rows_of, r);
    if (run.step->row_sequence[row] != sequence) continue;
    bool first = run.step->row_position[row] == 0;
    for (int64_t i = 0; i < a.dst.columns(); i++) dst[i] = first ? a.x.f32(r)[i] : dst[i] + a.x.f32(r)[i];
  }
}

void argmax_one(const CopyArgs& a, const Run&, int32_t r) {
  const float* x = a.x.f32(r);
  int64_t best = -1;
  for (int64_t i = 0; i < a.x.columns(); i++) {
    if (!std::isnan(x[i]) && (best < 0 || x[i] > x[best])) best = i;
  }
  *a.dst.i32(r) = best < 0 ? 0 : int32_t(best);
}

}  // namespace

void add(Builder& b, const AddArgs& a) { by_row<AddArgs, &AddArgs::dst, add_one>(b, a); }
void scale(Builder& b, const ScaleArgs& a) { by_row<ScaleArgs, &ScaleArgs::dst, scale_one>(b, a); }
void softcap(Builder& b, const ScaleArgs& a) { by_row<ScaleArgs, &ScaleArgs::dst, softcap_one>(b, a); }
void copy(Builder& b, const CopyArgs& a) { by_row<CopyArgs, &CopyArgs::dst, copy_one>(b, a); }
void gather_rows(Builder& b, const CopyArgs& a) { by_row<CopyArgs, &CopyArgs::dst, gather_one>(b, a); }
void pool_rows(Builder& b, const CopyArgs& a) { by_row<CopyArgs, &CopyArgs::dst, pool_one>(b, a); }
void argmax(Builder& b, const CopyArgs& a) { by_row<CopyArgs, &CopyArgs::dst, argmax_one>(b, a); }

}  // namespace bao::reference
