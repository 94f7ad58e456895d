// Rotary position embedding: inverse frequencies, computed once when an op is recorded because MSL has no double; launches of rope.metal.
#include <algorithm>
#include <cmath>

#include "encode.h"

namespace bao {
namespace {

// A table's columns in pieces, so that their frequencies fit into what setBytes takes.
constexpr int32_t piece = 1024;
struct TablePiece {
  Tensor dst;
  int32_t first, count;
  float inverse[piece];
};

void encode_table(const TablePiece& t, const Run& run) {
  run.launch("rope", "rope_table").out(0, t.dst).bytes(1, t.inverse, size_t(t.count) * 4).params(RopeTableParams{rows_of(t.dst), t.first})
      .threads(t.count, run.bound(t.dst), 1, group_for(t.count));
}

void encode_rope(const RopeArgs& a, const Run& run) {
  int64_t items = int64_t(a.x.d1) * (a.x.d2 - a.table.d2);
  run.launch("rope", "rope").out(0, a.dst).in(1, a.x).in(2, a.table).params(RopeParams{rows_of(a.dst), rows_of(a.x), rows_of(a.table), a.mode})
      .threads(items, run.bound(a.dst), 1, group_for(items));
}

}  // namespace

namespace metal {

// As transformers: exponent, power and reciprocal are each rounded to f32.
void rope_table(Builder& b, const RopeTableArgs& a) {
  for (int32_t first = 0; first < a.dst.d2; first += piece) {
    TablePiece t{a.dst, first, std::min(piece, a.dst.d2 - first), {}};
    for (int32_t j = 0; j < t.count; j++) {
      float exponent = float(2 * (first + j)) / float(a.n_rot), inverse = 1.0f / float(std::pow(double(a.base), double(exponent)));
      if (a.factors) inverse = inverse / a.factors[first + j];
      t.inverse[j] = inverse * a.freq_scale;
    }
    stage<TablePiece, encode_table>(b, t);
  }
}

void rope(Builder& b, const RopeArgs& a) { stage<RopeArgs, encode_rope>(b, a); }

}  // namespace metal

}  // namespace bao
