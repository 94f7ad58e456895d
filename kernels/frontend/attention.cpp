// Exported KV append and attention ops: validation of their operands.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

namespace {

constexpr int32_t max_head_dim = 1024;  // a head's accumulators fit in every backend's fast memory

bool head_dim_supported(Recording& r, int argument, const char* name, int32_t head_dim) {
  return head_dim <= max_head_dim || r.unsupported(argument, "%s has head_dim %d, expected at most %d", name, head_dim, max_head_dim);
}

// Rows of k or v for the pool: (rows, kvHeads, headDim).
bool kv_shape(Recording& r, int argument, const char* name, const Tensor& t, const PoolRef& pool) {
  return shape(r, argument, name, t, pool.kv_heads, pool.head_dim);
}

}  // namespace

int32_t bao_kv_append(bao_handle stream, bao_handle pool, int32_t layer, bao_handle k, bao_handle v) {
  return record(stream, BAO_OP_KV_APPEND, "bao_kv_append", &OpTable::kv_append, [&](Recording& r, KvAppendArgs& a) {
    a.layer = layer;
    return r.pool(2, "pool", pool, &a.pool, 1) && in_range(r, 3, "layer", layer, 0, a.pool.layers - 1) && r.tensor(4, "k", k, &a.k) &&
           rows_follow(r, 4, "k", a.k) && kv_shape(r, 4, "k", a.k, a.pool) && r.tensor(5, "v", v, &a.v) && like(r, 5, "v", a.v, a.k);
  });
}

int32_t bao_head_norm_rope_append(bao_handle stream, bao_handle q, bao_handle k, bao_handle v, bao_handle wq, bao_handle wk, bao_handle table,
                                  int32_t mode, bao_handle pool, int32_t layer, int32_t normV, float eps) {
  constexpr auto op = &OpTable::head_norm_rope_append;
  return record(stream, BAO_OP_HEAD_NORM_ROPE_APPEND, "bao_head_norm_rope_append", op, [&](Recording& r, HeadNormRopeAppendArgs& a) {
    a.mode = mode, a.layer = layer, a.norm_v = normV, a.eps = eps;
    if (!(r.tensor(2, "q", q, &a.q) && rows_follow(r, 2, "q", a.q) && head_dim_supported(r, 2, "q", a.q.d2) &&
          r.tensor(3, "k", k, &a.k, BAO_F32, true) && r.tensor(4, "v", v, &a.v, BAO_F32, true) && r.vector(5, "wq", wq, a.q.d2, &a.wq, true) &&
          r.vector(6, "wk", wk, a.q.d2, &a.wk, true) && r.tensor(7, "table", table, &a.table) && rows(r, 7, "table", a.table, a.q) &&
          in_range(r, 8, "mode", mode, BAO_ROPE_NEOX, BAO_ROPE_INTERLEAVED) && in_range(r, 11, "normV", normV, 0, 1) &&
          positive(r, 12, "eps", eps))) {
      return false;
    }
    if (a.table.d1 != 2 || 2 * int64_t(a.table.d2) > a.q.d2) {
      return r.invalid(7, "table is (rows, %d, %d), expected (rows, 2, at most %d)", a.table.d1, a.table.d2, a.q.d2 / 2);
    }
    if (!a.k.present()) return !a.v.present() || r.invalid(4, "v is given, expected 0 because k is 0");
    if (!(r.pool(9, "pool", pool, &a.pool, 1) && in_range(r, 10, "layer", layer, 0, a.pool.layers - 1) && rows(r, 3, "k", a.k, a.q) &&
          kv_shape(r, 3, "k", a.k, a.pool) && (!a.v.present() || like(r, 4, "v", a.v, a.k)))) {
      return false;
    }
    return a.q.d2 == a.pool.head_dim || r.invalid(2, "q has head_dim %d, expected the pool's %d", a.q.d2, a.pool.head_dim);
  });
}

int32_t bao_attention(bao_handle stream, bao_handle dst, bao_handle q, bao_handle pool, int32_t layer, int32_t window, float scale) {
  return record(stream, BAO_OP_ATTENTION, "bao_attention", &OpTable::attention, [&](Recording& r, AttentionArgs& a) {
    a.layer = layer, a.window = window, a.scale = scale, a.fast = rounding(r) != 0;
    if (!(r.tensor(2, "dst", dst, &a.dst) && rows_follow(r, 2, "dst", a.dst) && r.tensor(3, "q", q, &a.q) && like(r, 3, "q", a.q, a.dst) &&
          in_range(r, 6, "window", window, 0, INT32_MAX) && r.pool(4, "pool", pool, &a.pool, window) &&
          in_range(r, 5, "layer", layer, 0, a.pool.layers - 1) && r.finite(7, "scale", scale) && head_dim_supported(r, 3, "q", a.q.d2))) {
      return false;
    }
    if (a.q.d2 != a.pool.head_dim) return r.invalid(3, "q has head_dim %d, expected the pool's %d", a.q.d2, a.pool.head_dim);
    if (a.q.d1 % a.pool.kv_heads != 0) return r.invalid(3, "q has %d heads, expected a multiple of the pool's %d", a.q.d1, a.pool.kv_heads);
    return true;
  });
}
