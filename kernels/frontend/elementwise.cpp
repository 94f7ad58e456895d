// Exported ops that touch each element or row once: add, scale, softcap, copy, gather_rows, pool_rows, argmax; validation of their operands.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

int32_t bao_add(bao_handle stream, bao_handle dst, bao_handle a, bao_handle b) {
  return record(stream, BAO_OP_ADD, "bao_add", &OpTable::add, [&](Recording& r, AddArgs& args) {
    return r.tensor(2, "dst", dst, &args.dst) && r.tensor(3, "a", a, &args.a) && like(r, 3, "a", args.a, args.dst) &&
           r.tensor(4, "b", b, &args.b) && like(r, 4, "b", args.b, args.dst);
  });
}

int32_t bao_scale(bao_handle stream, bao_handle dst, bao_handle x, float factor) {
  return record(stream, BAO_OP_SCALE, "bao_scale", &OpTable::scale, [&](Recording& r, ScaleArgs& a) {
    a.factor = factor;
    return r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && like(r, 3, "x", a.x, a.dst) && r.finite(4, "factor", factor);
  });
}

int32_t bao_softcap(bao_handle stream, bao_handle dst, bao_handle x, float cap) {
  return record(stream, BAO_OP_SOFTCAP, "bao_softcap", &OpTable::softcap, [&](Recording& r, ScaleArgs& a) {
    a.factor = cap;
    return r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && like(r, 3, "x", a.x, a.dst) && positive(r, 4, "cap", cap);
  });
}

int32_t bao_copy(bao_handle stream, bao_handle dst, bao_handle x) {
  return record(stream, BAO_OP_COPY, "bao_copy", &OpTable::copy, [&](Recording& r, CopyArgs& a) {
    return r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && like(r, 3, "x", a.x, a.dst);
  });
}

int32_t bao_gather_rows(bao_handle stream, bao_handle dst, bao_handle x) {
  return record(stream, BAO_OP_GATHER_ROWS, "bao_gather_rows", &OpTable::gather_rows, [&](Recording& r, CopyArgs& a) {
    return r.tensor(2, "dst", dst, &a.dst) && rows_are(r, 2, "dst", a.dst, BAO_ROWS_OUTPUT) && r.tensor(3, "x", x, &a.x) &&
           rows_are(r, 3, "x", a.x, BAO_ROWS_STEP) && shape(r, 3, "x", a.x, a.dst.d1, a.dst.d2) && apart(r, 2, "dst", a.dst, "x", a.x);
  });
}

int32_t bao_pool_rows(bao_handle stream, bao_handle dst, bao_handle x) {
  return record(stream, BAO_OP_POOL_ROWS, "bao_pool_rows", &OpTable::pool_rows, [&](Recording& r, CopyArgs& a) {
    if (!(r.tensor(2, "dst", dst, &a.dst) && rows_are(r, 2, "dst", a.dst, BAO_ROWS_FIXED) && r.tensor(3, "x", x, &a.x) &&
          rows_follow(r, 3, "x", a.x) && shape(r, 2, "dst", a.dst, a.x.d1, a.x.d2) && apart(r, 2, "dst", a.dst, "x", a.x))) {
      return false;
    }
    int32_t sequences = r.step().max_sequences;
    return a.dst.d0 >= sequences || r.invalid(2, "dst has %d rows, expected at least the step block's %d sequences", a.dst.d0, sequences);
  });
}

int32_t bao_argmax(bao_handle stream, bao_handle dst, bao_handle x) {
  return record(stream, BAO_OP_ARGMAX, "bao_argmax", &OpTable::argmax, [&](Recording& r, CopyArgs& a) {
    if (!(r.tensor(2, "dst", dst, &a.dst, BAO_I32) && shape(r, 2, "dst", a.dst, 1, 1) && r.tensor(3, "x", x, &a.x) &&
          rows(r, 3, "x", a.x, a.dst) && apart(r, 2, "dst", a.dst, "x", a.x))) {
      return false;
    }
    return a.x.columns() <= INT32_MAX || r.invalid(3, "x has %lld columns, expected at most 2147483647", static_cast<long long>(a.x.columns()));
  });
}
