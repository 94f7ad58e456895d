// Attention: rows of prompts go to tiles (attention_tile.h), all others one by one (attention.metal), their contexts in splits. Which rows are which follows
// from what a submit says of its rows' sequences; positions that only the device knows are bounded.
#include <algorithm>
#include <vector>

#include "encode.h"

namespace bao {
namespace {

constexpr int32_t threads = 128, simdgroups = threads / 32, tile_keys = 32;
constexpr int32_t short_run = 8;  // up to this many rows in a row are of one sequence: one by one, since a tile takes its context in one go
// Enough threadgroups for a GPU of 40 cores and some that end late; splits beyond 64 would cost more in merging than they gain.
constexpr int32_t groups_wanted = 256, most_splits = 64;
constexpr int32_t most_ranges = 4096 / sizeof(RowRange);  // of a launch

struct Attention {
  AttentionArgs a;
  int64_t parts;
};

// How many query heads a threadgroup of attention_row takes, and how many of a head's values a lane.
int32_t heads_at_once(const AttentionArgs& a) {
  int32_t per_kv = a.dst.d1 / a.pool.kv_heads, most = a.dst.d2 > 512 ? 4 : 8, heads = 1;
  while (heads < per_kv && heads < most) heads *= 2;
  return heads;
}
int32_t values_at_once(int32_t heads) { return heads == 8 ? 4 : 8; }
int32_t head_groups(const AttentionArgs& a) {
  int32_t heads = heads_at_once(a);
  return a.pool.kv_heads * ((a.dst.d1 / a.pool.kv_heads + heads - 1) / heads);
}

bool tile_serves(const AttentionArgs& a) { return a.dst.d2 == 64 || a.dst.d2 == 128 || a.dst.d2 == 256 || a.dst.d2 == 512; }
bool tile_in_half(const AttentionArgs& a) { return a.fast && a.pool.dtype == BAO_F16; }
// As Shape::PAIRS in attention_tile.h.
int32_t tile_pairs(const AttentionArgs& a) { return std::min(32, 16384 / (a.dst.d2 * (tile_in_half(a) ? 2 : 4))); }

// A list of ranges of rows, in as many pieces as it takes: encode(ranges, items).
struct Ranges {
  std::vector<RowRange> list;
  int32_t items = 0;
  void add(int32_t row, int32_t rows, int32_t more, bool join) {
    if (join && !list.empty() && list.back().row + list.back().rows == row) list.back().rows += rows;
    else list.push_back({row, rows, items});
    items += more;
  }
  template <class Encode>
  void each(Encode&& encode) const {
    for (size_t i = 0; i < list.size(); i += most_ranges) {
      std::vector<RowRange> some(list.begin() + ptrdiff_t(i), list.begin() + ptrdiff_t(std::min(list.size(), i + most_ranges)));
      int32_t first = some[0].first, end = i + most_ranges < list.size() ? list[i + most_ranges].first : items;
      for (RowRange& range : some) range.first -= first;
      encode(some, end - first);
    }
  }
};

void encode_attention(const Attention& t, const Run& run) {
  const AttentionArgs& a = t.a;
  const int32_t rows = run.bound(a.dst), n = a.dst.d2, kv_heads = a.pool.kv_heads, per_kv = a.dst.d1 / kv_heads;
  auto field = [&](int32_t f) { return reinterpret_cast<const int32_t*>(run.step->accepted + run.slot * run.step->slot_bytes + run.step->field[f]); };
  const int32_t *sequence = field(BAO_FIELD_ROW_SEQUENCE), *output = field(BAO_FIELD_OUTPUT_ROW);
  auto sequence_of = [&](int32_t r) { return sequence[a.dst.rows_of == BAO_ROWS_OUTPUT ? output[r] : r]; };
  Ranges ones, tiles;
  for (int32_t row = 0, end; row < rows; row = end) {
    for (end = row + 1; end < rows && sequence_of(end) == sequence_of(row); end++) {}
    if (!tile_serves(a) || end - row <= short_run) ones.add(row, end - row, end - row, true);
    else tiles.add(row, end - row, int32_t((int64_t(end - row) * per_kv + tile_pairs(a) - 1) / tile_pairs(a)), false);
  }

  // Keys that a row sees, at most. An item costs a look at that many: their bytes, and two products with each.
  const int64_t keys = a.window > 0 ? std::min<int64_t>(run.reach, a.window) : run.reach;
  const double key_bytes = 2.0 * double(a.pool.plane_bytes / int64_t(BAO_KV_PAGE_TOKENS));
  AttentionParams p{rows_of(a.dst), rows_of(a.q), layer_of(a.pool), a.window, 0, 0, 1, 32, 1, a.scale};
  tiles.each([&](const std::vector<RowRange>& ranges, int32_t items) {
    const char* module = n == 64 ? "attention_tile_64" : n == 128 ? "attention_tile_128" : n == 256 ? "attention_tile_256" : "attention_tile_512";
    const double bytes = double(items) * kv_heads * double(keys) * key_bytes, flops = double(items) * kv_heads * tile_pairs(a) * double(keys) * n * 4;
    p.ranges = int32_t(ranges.size());
    run.cut(items, 1, bytes, flops, [&](int32_t first, int32_t count, double share) {
      p.first = first;
      run.launch(module, tile_in_half(a) ? "attention_tile_half" : "attention_tile_float", a.pool.dtype).out(0, a.dst).in(1, a.q).pool(2, a.pool, a.layer, false)
          .bytes(4, ranges.data(), ranges.size() * sizeof(RowRange)).params(p).cost(bytes * share, flops * share).groups(kv_heads, count, 1, threads);
    });
  });

  const int32_t heads = heads_at_once(a), values = values_at_once(heads), units = (n + values - 1) / values, groups = head_groups(a);
  p.lanes = 8;  // at least a lane for each head's sum
  while (p.lanes < units && p.lanes < 32) p.lanes *= 2;
  while (p.lanes * p.shares < units) p.shares *= 2;
  // No more than tiles of keys; a window's first and last ones may be parts.
  p.splits = int32_t(std::min<int64_t>(std::clamp(groups_wanted / (groups * std::max(ones.items, 1)), 1, most_splits), (keys + 2 * tile_keys - 2) / tile_keys));
  const int64_t memory = std::max(p.shares * heads * tile_keys, p.shares < simdgroups ? heads * n : 0) * 4;
  const char* kernel = heads == 1 ? "attention_row_1" : heads == 2 ? "attention_row_2" : heads == 4 ? "attention_row_4" : "attention_row_8";
  ones.each([&](const std::vector<RowRange>& ranges, int32_t items) {
    char* parts = run.scratch + t.parts;
    const int64_t part_bytes = int64_t(items) * a.dst.d1 * p.splits * (n + 2) * 4;
    const size_t range_bytes = ranges.size() * sizeof(RowRange);
    const double bytes = double(items) * groups * double(keys) * key_bytes, flops = double(items) * a.dst.d1 * double(keys) * n * 4;
    p.ranges = int32_t(ranges.size());
    run.cut(items, 1, bytes, flops, [&](int32_t first, int32_t count, double share) {
      p.first = first;
      Launch launch = run.launch("attention", kernel, a.pool.dtype);
      if (p.splits == 1) launch.out(0, a.dst).in(1, nullptr, 0);
      else launch.in(0, nullptr, 0).out(1, parts, part_bytes);
      launch.in(2, a.q).pool(3, a.pool, a.layer, false).bytes(4, ranges.data(), range_bytes).params(p).group_memory(0, memory).cost(bytes * share, flops * share)
          .groups(groups, count, p.splits, threads);
    });
    if (p.splits == 1) return;
    p.first = 0;
    run.launch("attention", "attention_merge", a.pool.dtype).out(0, a.dst).in(1, parts, part_bytes).bytes(4, ranges.data(), range_bytes).params(p)
        .cost(double(part_bytes), 0).groups(int64_t(a.dst.d1) * ((n + 127) / 128), items, 1, threads);
  });
}

}  // namespace

namespace metal {
void attention(Builder& b, const AttentionArgs& a) {
  // rows * splits is largest where the most threadgroups are wanted.
  const int64_t most = std::min(int64_t(a.dst.d0) * most_splits, int64_t(groups_wanted) / head_groups(a));
  stage<Attention, encode_attention>(b, Attention{a, b.reserve_scratch(std::max(most, int64_t(1)) * a.dst.d1 * (a.dst.d2 + 2) * 4)});
}
}  // namespace metal

}  // namespace bao
