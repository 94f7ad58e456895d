// KV append, plain and fused, and page copies: launches of kv.metal.
#include "encode.h"

namespace bao {
namespace {

constexpr int32_t threads = 128;

void encode_append(const KvAppendArgs& a, const Run& run) {
  run.launch("kv", "kv_append").pool(0, a.pool, a.layer, true).in(1, a.k).in(2, a.v).params(AppendParams{rows_of(a.k), rows_of(a.v), layer_of(a.pool)})
      .groups(2 * a.pool.kv_heads, run.bound(a.k), 1, threads);
}

void encode_heads(const HeadNormRopeAppendArgs& a, const Run& run) {
  int32_t n = a.q.d2, heads = a.q.d1 + (a.k.present() ? a.pool.kv_heads : 0);
  HeadParams p{rows_of(a.q), rows_of(a.k), rows_of(a.v), rows_of(a.table), layer_of(a.pool), a.mode, a.norm_v, a.wq != nullptr, a.wk != nullptr, a.eps};
  Launch launch = run.launch("kv", "head_norm_rope_append");
  launch.out(0, a.q).in(1, a.k).in(2, a.v).in(3, a.table).in(4, a.wq, int64_t(n) * 4).in(5, a.wk, int64_t(n) * 4);
  if (a.k.present()) launch.pool(6, a.pool, a.layer, true);
  else launch.in(6, nullptr, 0);
  launch.params(p).group_memory(0, int64_t(n) * 8).groups(heads, run.bound(a.q), 1, threads);
}

}  // namespace

void encode_page_copy(Pass& pass, const PoolRef& pool, int32_t destination, int32_t source, int32_t tokens) {
  int32_t element = pool.dtype == BAO_F32 ? 4 : pool.dtype == BAO_F16 ? 2 : 1, scale_bytes = pool.dtype == BAO_Q8_0 ? tokens * pool.head_dim / 32 * 4 : 0;
  PageCopyParams p{layer_of(pool), destination, source, tokens * pool.head_dim * element, scale_bytes};
  for (int32_t layer = 0; layer < pool.layers; layer++) {
    Launch(pass, "kv", "page_copy").pool(0, pool, layer, true).params(p).groups(2 * pool.kv_heads, 1, 1, 256);
  }
}

namespace metal {
void kv_append(Builder& b, const KvAppendArgs& a) { stage<KvAppendArgs, encode_append>(b, a); }
void head_norm_rope_append(Builder& b, const HeadNormRopeAppendArgs& a) { stage<HeadNormRopeAppendArgs, encode_heads>(b, a); }
}  // namespace metal

}  // namespace bao
