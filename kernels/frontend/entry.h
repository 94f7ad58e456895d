// Checks that the exported ops share. Each says what is wrong with which argument ("found, expected"), and is false then; nothing is recorded.
#pragma once
#include <cmath>
#include <cstdint>

#include "core.h"

namespace bao::entry {

// One exported op: check(r, args) resolves and validates the operands into args; then the device's table records it.
template <class Args, class Check>
int32_t record(bao_handle stream, int32_t kind, const char* function, void (*OpTable::*op)(Builder&, const Args&), Check&& check) {
  return guarded(function, [&]() -> int32_t {
    Recording r(stream, kind, function);
    Args args{};
    if (r && check(r, args)) (r.device().ops->*op)(r.builder(), args);
    return r.commit();
  });
}

inline const char* rows_name(int32_t rows_of) { return rows_of == BAO_ROWS_STEP ? "STEP" : rows_of == BAO_ROWS_OUTPUT ? "OUTPUT" : "FIXED"; }

inline bool shape(Recording& r, int argument, const char* name, const Tensor& t, int32_t d1, int32_t d2) {
  if (t.d1 == d1 && t.d2 == d2) return true;
  return r.invalid(argument, "%s is (rows, %d, %d), expected (rows, %d, %d)", name, t.d1, t.d2, d1, d2);
}

inline bool columns(Recording& r, int argument, const char* name, const Tensor& t, int64_t expected) {
  if (t.columns() == expected) return true;
  return r.invalid(argument, "%s has %lld columns, expected %lld", name, static_cast<long long>(t.columns()), static_cast<long long>(expected));
}

// The rows of t are counted like those of the op's leading operand. Equal, so that kernels may count the rows of either.
inline bool rows(Recording& r, int argument, const char* name, const Tensor& t, const Tensor& leader) {
  if (t.rows_of != leader.rows_of) {
    return r.invalid(argument, "%s has %s rows, expected %s rows", name, rows_name(t.rows_of), rows_name(leader.rows_of));
  }
  if (t.rows_of != BAO_ROWS_FIXED || t.d0 == leader.d0) return true;
  return r.invalid(argument, "%s has %d FIXED rows, expected %d", name, t.d0, leader.d0);
}

inline bool rows_are(Recording& r, int argument, const char* name, const Tensor& t, int32_t rows_of) {
  if (t.rows_of == rows_of) return true;
  return r.invalid(argument, "%s has %s rows, expected %s rows", name, rows_name(t.rows_of), rows_name(rows_of));
}

// For ops that read each row's id, sequence or position.
inline bool rows_follow(Recording& r, int argument, const char* name, const Tensor& t) {
  if (t.rows_of != BAO_ROWS_FIXED) return true;
  return r.invalid(argument, "%s has FIXED rows, expected STEP or OUTPUT rows", name);
}

inline bool like(Recording& r, int argument, const char* name, const Tensor& t, const Tensor& leader) {
  return rows(r, argument, name, t, leader) && shape(r, argument, name, t, leader.d1, leader.d2);
}

inline bool in_range(Recording& r, int argument, const char* name, int32_t value, int32_t least, int32_t most) {
  if (value >= least && value <= most) return true;
  return r.invalid(argument, "%s is %d, expected %d ... %d", name, value, least, most);
}

inline bool positive(Recording& r, int argument, const char* name, float value) {
  if (std::isfinite(value) && value > 0) return true;
  return r.invalid(argument, "%s is %g, expected a finite number above 0", name, double(value));
}

inline int64_t extent(const Tensor& t) { return t.d0 > 0 ? int64_t(t.d0 - 1) * t.stride + t.columns() * 4 : 0; }

// Whether two views share a byte. Views of one stride may lie side by side in the rows of one buffer.
inline bool overlap(const Tensor& a, const Tensor& b) {
  if (a.data + extent(a) <= b.data || b.data + extent(b) <= a.data) return false;
  if (a.stride != b.stride || a.stride <= 0) return true;
  int64_t apart = ((b.data - a.data) % a.stride + a.stride) % a.stride;
  return apart < a.columns() * 4 || apart + b.columns() * 4 > a.stride;
}

inline bool apart(Recording& r, int argument, const char* name, const Tensor& dst, const char* input_name, const Tensor& input) {
  if (!overlap(dst, input)) return true;
  return r.invalid(argument, "%s overlaps %s, expected separate memory", name, input_name);
}

inline bool one_expert(Recording& r, int argument, const char* name, const WeightRef& w) {
  if (w.experts == 1) return true;
  return r.invalid(argument, "%s has %d experts, expected 1", name, w.experts);
}

// The `fast` word of matmul arguments: what the device's precision asks for; a group's op decides for each of its weights.
inline int32_t rounding(Recording& r) {
  int32_t precision = r.device().precision;
  return precision == BAO_FAST ? r.device().fast : precision == BAO_FAST_INT8 ? 1 : precision == BAO_FAST_BF16 ? 2 : 0;
}

// The same for one weight: int8 for quantised weights only; F32 weights always meet f32 activations.
inline int32_t rounding(Recording& r, const WeightRef& w) {
  int32_t fast = rounding(r);
  bool plain = w.dtype == BAO_F32 || w.dtype == BAO_F16 || w.dtype == BAO_BF16;
  return (fast == 1 && plain) || w.dtype == BAO_F32 ? 0 : fast;
}

}  // namespace bao::entry
