// Attention: which kernel of attention.metal serves how many heads, and into how many splits contexts go.
#include <algorithm>

#include "encode.h"

namespace bao {
namespace {

constexpr int32_t threads = 128, most_splits = 32;
constexpr int32_t split_rows = 32;                   // up to this many rows a step's attention is split: beyond, rows alone are enough threadgroups
constexpr int64_t most_group_memory = 24 * 1024;     // for q and weighted values: scores take up to 2 KiB more

struct Attention {
  AttentionArgs a;
  int64_t parts;
};

void encode_attention(const Attention& t, const Run& run) {
  static const char* const kernels[] = {"attention_1", "attention_2", "attention_4", "attention_8"};
  const AttentionArgs& a = t.a;
  int32_t rows = run.bound(a.dst), n = a.dst.d2, per_kv = a.dst.d1 / a.pool.kv_heads, splits = rows > split_rows ? 1 : most_splits, kernel = 3;
  if (rows <= 0) return;
  auto group_memory = [&] { return (int64_t(2) << kernel) * n * 4; };
  while (kernel > 0 && ((1 << (kernel - 1)) >= per_kv || group_memory() > most_group_memory)) kernel--;
  AttentionParams p{rows_of(a.dst), rows_of(a.q), layer_of(a.pool), a.window, splits, a.scale};
  char* parts = run.scratch + t.parts;
  int64_t bytes = int64_t(rows) * a.dst.d1 * splits * (n + 2) * 4;
  Launch launch = run.launch("attention", kernels[kernel], a.pool.dtype);
  if (splits == 1) launch.out(0, a.dst).in(1, nullptr, 0);
  else launch.in(0, nullptr, 0).out(1, parts, bytes);
  launch.in(2, a.q).pool(3, a.pool, a.layer, false).params(p).group_memory(0, group_memory());
  launch.groups(a.pool.kv_heads * ((per_kv + (1 << kernel) - 1) >> kernel), rows, splits, threads);
  if (splits > 1) run.launch("attention", "attention_combine", a.pool.dtype).out(0, a.dst).in(1, parts, bytes).params(p).groups(a.dst.d1, rows, 1, threads);
}

}  // namespace

namespace metal {
void attention(Builder& b, const AttentionArgs& a) {
  int64_t rows = std::min(a.dst.d0, split_rows);
  stage<Attention, encode_attention>(b, Attention{a, b.reserve_scratch(rows * a.dst.d1 * most_splits * (a.dst.d2 + 2) * 4)});
}
}  // namespace metal

}  // namespace bao
