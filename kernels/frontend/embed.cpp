// Exported embedding lookup: validation of its operands.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

int32_t bao_embed(bao_handle stream, bao_handle dst, bao_handle weight, float scale) {
  return record(stream, BAO_OP_EMBED, "bao_embed", &OpTable::embed, [&](Recording& r, EmbedArgs& a) {
    a.scale = scale;
    if (!(r.tensor(2, "dst", dst, &a.dst) && rows_follow(r, 2, "dst", a.dst) && r.weight(3, "weight", weight, BAO_USE_ROWS, &a.w) &&
          one_expert(r, 3, "weight", a.w) && columns(r, 2, "dst", a.dst, a.w.columns) && r.finite(4, "scale", scale))) {
      return false;
    }
    int32_t vocabulary = r.step().vocabulary;
    return a.w.rows >= vocabulary || r.invalid(3, "weight has %d rows, expected at least the step block's vocabulary of %d", a.w.rows, vocabulary);
  });
}
