// Exported rotary position embedding ops: validation of their operands.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

int32_t bao_rope_table(bao_handle stream, bao_handle dst, bao_handle factors, int32_t nRot, float base, float freqScale) {
  return record(stream, BAO_OP_ROPE_TABLE, "bao_rope_table", &OpTable::rope_table, [&](Recording& r, RopeTableArgs& a) {
    a.n_rot = nRot, a.base = base, a.freq_scale = freqScale;
    if (nRot < 2 || nRot % 2 != 0) return r.invalid(4, "nRot is %d, expected an even number of at least 2", nRot);
    return r.tensor(2, "dst", dst, &a.dst) && rows_follow(r, 2, "dst", a.dst) && shape(r, 2, "dst", a.dst, 2, nRot / 2) &&
           r.vector(3, "factors", factors, nRot / 2, &a.factors, true) && positive(r, 5, "base", base) &&
           positive(r, 6, "freqScale", freqScale);
  });
}

int32_t bao_rope(bao_handle stream, bao_handle dst, bao_handle x, bao_handle table, int32_t mode) {
  return record(stream, BAO_OP_ROPE, "bao_rope", &OpTable::rope, [&](Recording& r, RopeArgs& a) {
    a.mode = mode;
    if (!(r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "x", x, &a.x) && like(r, 3, "x", a.x, a.dst) && r.tensor(4, "table", table, &a.table) &&
          rows(r, 4, "table", a.table, a.dst) && in_range(r, 5, "mode", mode, BAO_ROPE_NEOX, BAO_ROPE_INTERLEAVED))) {
      return false;
    }
    if (a.table.d1 != 2) return r.invalid(4, "table is (rows, %d, %d), expected (rows, 2, nRot / 2)", a.table.d1, a.table.d2);
    if (2 * int64_t(a.table.d2) > a.x.d2) return r.invalid(4, "table rotates %lld values, expected at most head_dim %d", 2LL * a.table.d2, a.x.d2);
    return true;
  });
}
