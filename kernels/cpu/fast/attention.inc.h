// Attention over paged K and V with a streamed softmax; scores of one page at a time, never of the whole context.
//
// One order of operations for each (row, query head), whatever else the step holds: pages in ascending order at absolute positions; in a page
// the scores of its 64 keys, their maximum, exp, the sum of the weights, and V in ascending key order. A split is a run of pages fixed by their
// absolute index; each split starts afresh and splits are merged in ascending order. A few rows (decode) spread their splits over pieces, many
// rows (prefill) share the pages of a tile of rows in one piece: the arithmetic of a row is the same, so both give the same bits.

constexpr int64_t PAGE = 64;
constexpr int64_t KEYS = 16;        // keys unpacked at a time: they stay in the first-level cache while all queries of the tile pass
constexpr int32_t MAX_QUERIES = 64; // (row, head) pairs of a tile
constexpr int32_t MAX_SPLITS = 80;  // of a layer without window: 2^20 tokens

// ---------------------------------------------------------------- splits

// With a window: runs of window_pages pages. Without: 16 runs of 4 pages, then eight runs for each doubling of the context.
struct Splits {
  int32_t window_pages;
  BAO_INLINE int32_t of_page(int32_t page) const {
    if (window_pages > 0) return page / window_pages;
    if (page < 64) return page / 4;
    int32_t e = 25 - __builtin_clz(uint32_t(page));  // 64 * 2^e <= page
    return 16 + 8 * e + ((page - (64 << e)) >> (3 + e));
  }
  BAO_INLINE int32_t first_page(int32_t split) const {
    if (window_pages > 0) return split * window_pages;
    if (split < 16) return split * 4;
    int32_t e = (split - 16) / 8;
    return (64 << e) + (((split - 16) % 8) << (3 + e));
  }
};
BAO_INLINE Splits splits_of(const AttentionArgs& a) {
  if (a.window <= 0) return {0};
  int64_t pages = (a.window + PAGE - 1) / PAGE;
  return {int32_t(larger(4, (pages + 7) / 8))};
}

// Visible keys of a row: positions [first, end).
struct Visible { int32_t first, end; };
BAO_INLINE Visible visible_of(const AttentionArgs& a, int32_t position) {
  return {a.window > 0 && position >= a.window ? position - a.window + 1 : 0, position + 1};
}

// ---------------------------------------------------------------- a tile

// Queries of one tile: `rows` rows of one sequence in ascending position, `heads` adjacent query heads of one KV head; query r * heads + h.
struct Tile {
  const AttentionArgs* a;
  const StepRef* step;
  int32_t sequence, kv_head, rows, heads;
  const float* q[MAX_QUERIES];
  Visible visible[MAX_QUERIES];  // [rows]
  // Of the split in progress: maximum, sum of weights, weighted sum of V (queries, head_dim).
  float m[MAX_QUERIES], l[MAX_QUERIES];
  float* o;
  float* scores;  // (queries, 64)
  float* keys;    // (16, head_dim): unpacked K or V
};
BAO_INLINE int64_t tile_floats(int64_t head_dim) { return MAX_QUERIES * PAGE + KEYS * head_dim; }

// What a later loop will read, fetched a little at a time while this one computes.
struct PageAhead {
  const char* p;
  int64_t bytes;
  BAO_INLINE void fetch(int64_t share) {
    int64_t now = smaller(share, bytes);
    for (int64_t i = 0; i < now; i += 64) __builtin_prefetch(p + i, 0, 2);
    p += now;
    bytes -= now;
  }
};

// scores[q][key ... key + K - 1] for Q queries: each dot product has one accumulator of W lanes over head_dim, then vsum.
template <int Q, int K> BAO_INLINE void score_block(float* scores, const float* const* q, const float* k, int64_t head_dim) {
  vf acc[Q][K];
#pragma GCC unroll 16
  for (int i = 0; i < Q; i++)
#pragma GCC unroll 16
    for (int j = 0; j < K; j++) acc[i][j] = vzero();
  for (int64_t d = 0; d < head_dim; d += W) {
    vf qv[Q];
#pragma GCC unroll 16
    for (int i = 0; i < Q; i++) qv[i] = vload(q[i] + d);
#pragma GCC unroll 16
    for (int j = 0; j < K; j++) {
      vf kv = vload(k + j * head_dim + d);
#pragma GCC unroll 16
      for (int i = 0; i < Q; i++) acc[i][j] = vfma(qv[i], kv, acc[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Q; i++)
#pragma GCC unroll 16
    for (int j = 0; j < K; j += 4) vsum4(scores + i * PAGE + j, acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
}
#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int SCORE_QUERIES = 4, VALUE_VECTORS = 4, SCORE_KEYS = 16;
#else
constexpr int SCORE_QUERIES = 2, VALUE_VECTORS = 2, SCORE_KEYS = 8;  // 16 registers
#endif

// Scores of the 16 keys unpacked at `slot`.
void score_keys(const Tile& t, int64_t first_query, int64_t end_query, int64_t slot, const float* k, int64_t head_dim, PageAhead ahead) {
  const int64_t share = ahead.bytes * SCORE_QUERIES / (4 * (end_query - first_query)) / 64 * 64 + 64;
  int64_t i = first_query;
  for (; i + SCORE_QUERIES <= end_query; i += SCORE_QUERIES)
    for (int64_t j = 0; j < KEYS; j += 4) {
      score_block<SCORE_QUERIES, 4>(t.scores + i * PAGE + slot + j, t.q + i, k + j * head_dim, head_dim);
      ahead.fetch(share);
    }
  // One query alone needs more keys at a time to keep the multipliers busy.
  for (; i < end_query; i++)
    for (int64_t j = 0; j < KEYS; j += SCORE_KEYS) {
      score_block<1, SCORE_KEYS>(t.scores + i * PAGE + slot + j, t.q + i, k + j * head_dim, head_dim);
      ahead.fetch(share);
    }
}

BAO_INLINE float finite_or_zero(float m) { return m == LOWEST ? 0.0f : m; }

// Scores of one query's page become weights; keys outside [first, end) get exactly 0. Rescales the running sums when the maximum moved.
void soften(Tile& t, int64_t query, int64_t first, int64_t end, float scale, int64_t head_dim) {
  float* s = t.scores + query * PAGE;
  vf best = vset1(LOWEST), factor = vset1(scale);
  for (int64_t i = 0; i < PAGE; i += W) {
    vf x = vmul(vload(s + i), factor);
    if (first > i || end < i + W) {
      x = vselect(vbelow(i, end), x, vset1(LOWEST));
      x = vselect(vbelow(i, first), vset1(LOWEST), x);
    }
    vstore(s + i, x);
    best = vmax(x, best);  // a NaN is passed over here and comes back through exp
  }
  float page_max = vreduce_max(best), before = t.m[query];
  float m = page_max > before ? page_max : before;
  vf shift = vset1(finite_or_zero(m)), sum = vzero();
  for (int64_t i = 0; i < PAGE; i += W) {
    vf p = vexp(vsub(vload(s + i), shift));
    vstore(s + i, p);
    sum = vadd(sum, p);
  }
  if (m != before) {
    float keep = scalar_exp(before - finite_or_zero(m));
    t.l[query] *= keep;
    float* o = t.o + query * head_dim;
    vf k = vset1(keep);
    for (int64_t d = 0; d < head_dim; d += W) vstore(o + d, vmul(vload(o + d), k));
  }
  t.m[query] = m;
  t.l[query] = t.l[query] + vsum(sum);
}

// o[q][d ...] += weights[q][j] * v[j][d ...] for keys j < count in ascending order.
template <int Q, int D> BAO_INLINE void value_block(float* o, const float* weights, const float* v, int64_t count, int64_t head_dim) {
  vf acc[Q][D];
#pragma GCC unroll 16
  for (int i = 0; i < Q; i++)
#pragma GCC unroll 16
    for (int d = 0; d < D; d++) acc[i][d] = vload(o + i * head_dim + d * W);
  for (int64_t j = 0; j < count; j++) {
    vf vv[D];
#pragma GCC unroll 16
    for (int d = 0; d < D; d++) vv[d] = vload(v + j * head_dim + d * W);
#pragma GCC unroll 16
    for (int i = 0; i < Q; i++) {
      vf p = vset1(weights[i * PAGE + j]);
#pragma GCC unroll 16
      for (int d = 0; d < D; d++) acc[i][d] = vfma(p, vv[d], acc[i][d]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Q; i++)
#pragma GCC unroll 16
    for (int d = 0; d < D; d++) vstore(o + i * head_dim + d * W, acc[i][d]);
}
template <int Q> BAO_INLINE void value_queries(float* o, const float* weights, const float* v, int64_t count, int64_t head_dim, PageAhead& ahead, int64_t share) {
  int64_t d = 0;
  ahead.fetch(share);
  if (Q == 1)
    for (; d + 2 * VALUE_VECTORS * W <= head_dim; d += 2 * VALUE_VECTORS * W) value_block<1, 2 * VALUE_VECTORS>(o + d, weights, v + d, count, head_dim);
  for (; d + VALUE_VECTORS * W <= head_dim; d += VALUE_VECTORS * W) value_block<Q, VALUE_VECTORS>(o + d, weights, v + d, count, head_dim);
  for (; d < head_dim; d += W) value_block<Q, 1>(o + d, weights, v + d, count, head_dim);
}
// Queries [first_query, end_query) and the keys [first, end) of a page that lie in the 16 unpacked at `slot`.
void value_keys(const Tile& t, int64_t first_query, int64_t end_query, int64_t first, int64_t end, int64_t slot, const float* v, int64_t head_dim, PageAhead ahead) {
  int64_t from = larger(first, slot), count = smaller(end, slot + KEYS) - from;
  if (count <= 0) return;
  v += (from - slot) * head_dim;
  const int64_t share = ahead.bytes * 4 / (end_query - first_query) / 64 * 64 + 64;
  int64_t i = first_query;
  for (; i + 4 <= end_query; i += 4) value_queries<4>(t.o + i * head_dim, t.scores + i * PAGE + from, v, count, head_dim, ahead, share);
  for (; i + 2 <= end_query; i += 2) value_queries<2>(t.o + i * head_dim, t.scores + i * PAGE + from, v, count, head_dim, ahead, share);
  for (; i < end_query; i++) value_queries<1>(t.o + i * head_dim, t.scores + i * PAGE + from, v, count, head_dim, ahead, share);
}

// One page for all rows of the tile that see any of it: first and last row of those, and each row's range of slots.
void attend_page(Tile& t, int32_t index) {
  const PoolRef& pool = t.a->pool;
  const int64_t head_dim = pool.head_dim;
  const int32_t page = page_at(*t.step, pool, t.sequence, index);
  if (page < 0) return;
  int64_t first[MAX_QUERIES], end[MAX_QUERIES];
  int64_t low = PAGE, high = 0;
  int32_t row_first = t.rows, row_end = 0;
  bool uniform = true;
  for (int32_t r = 0; r < t.rows; r++) {
    first[r] = larger(t.visible[r].first - index * PAGE, 0);
    end[r] = smaller(t.visible[r].end - index * PAGE, PAGE);
    if (first[r] >= end[r]) continue;
    if (row_first == t.rows) row_first = r;
    row_end = r + 1;
    low = smaller(low, first[r]);
    high = larger(high, end[r]);
    uniform = uniform && first[r] == first[row_first] && end[r] == end[row_first];
  }
  if (row_first >= row_end) return;
  // Positions ascend with the rows, so the rows that see the page are adjacent.
  const int64_t q_first = int64_t(row_first) * t.heads, q_end = int64_t(row_end) * t.heads;
  // While 16 keys are in work the next 16 are fetched, after the last of K the first of V.
  const char *k_plane = pool.plane(t.a->layer, page, t.kv_head, false), *v_plane = pool.plane(t.a->layer, page, t.kv_head, true);
  const int64_t bytes = KEYS * head_dim * (pool.dtype == 0 ? 4 : pool.dtype == 1 ? 2 : 1), low_slot = low / KEYS * KEYS;
  for (int64_t slot = low_slot; slot < high; slot += KEYS) {
    const float* k = kv_load(pool, k_plane, slot, KEYS, t.keys);
    const char* next = slot + KEYS < high ? k_plane + (slot / KEYS + 1) * bytes : v_plane + low_slot / KEYS * bytes;
    score_keys(t, q_first, q_end, slot, k, head_dim, {next, bytes});
  }
  for (int64_t q = q_first; q < q_end; q++) soften(t, q, first[q / t.heads], end[q / t.heads], t.a->scale, head_dim);
  // Slots that a row does not see may hold anything, NaN included: they are left out, not multiplied by 0.
  const int32_t next_page = page_at(*t.step, pool, t.sequence, index + 1);
  const char* next_k = next_page >= 0 ? pool.plane(t.a->layer, next_page, t.kv_head, false) : nullptr;
  for (int64_t slot = low_slot; slot < high; slot += KEYS) {
    const float* v = kv_load(pool, v_plane, slot, KEYS, t.keys);
    if (uniform) {
      const char* next = slot + KEYS < PAGE ? v_plane + (slot / KEYS + 1) * bytes : next_k;
      value_keys(t, q_first, q_end, low, high, slot, v, head_dim, {next, next ? bytes : 0});
    } else {
      for (int32_t r = row_first; r < row_end; r++) value_keys(t, int64_t(r) * t.heads, int64_t(r + 1) * t.heads, first[r], end[r], slot, v, head_dim, {nullptr, 0});
    }
  }
}

// A whole split: t.m, t.l and t.o afterwards.
void attend_split(Tile& t, int32_t first_page, int32_t end_page) {
  const int64_t head_dim = t.a->pool.head_dim, queries = int64_t(t.rows) * t.heads;
  for (int64_t q = 0; q < queries; q++) {
    t.m[q] = LOWEST;
    t.l[q] = 0.0f;
  }
  for (int64_t i = 0; i < queries * head_dim; i += W) vstore(t.o + i, vzero());
  for (int32_t page = first_page; page < end_page; page++) attend_page(t, page);
}

// Adds a split's partial result to the running one, which starts as (-infinity, 0, zeros).
void merge_split(float* m, float* l, float* o, float split_m, float split_l, const float* split_o, int64_t head_dim) {
  float both = split_m > *m ? split_m : *m, shift = finite_or_zero(both);
  float keep = scalar_exp(*m - shift), take = scalar_exp(split_m - shift);
  *m = both;
  *l = *l * keep + split_l * take;
  vf k = vset1(keep), s = vset1(take);
  for (int64_t d = 0; d < head_dim; d += W) vstore(o + d, vfma(vload(split_o + d), s, vmul(vload(o + d), k)));
}

BAO_INLINE void finish_head(float* dst, const float* o, float l, int64_t head_dim) {
  vf sum = vset1(l);
  for (int64_t d = 0; d < head_dim; d += W) vstore(dst + d, l == 0.0f ? vzero() : vdiv(vload(o + d), sum));
}

// ---------------------------------------------------------------- pieces

struct AttentionStages {
  AttentionArgs a;
  int64_t scratch;         // partial results (split_rows, heads, slots) of partial_floats each
  int32_t split_rows;      // up to so many rows, splits are pieces of their own
  int32_t slots, heads_per_kv, tile_queries;
};
BAO_INLINE int64_t partial_floats(int64_t head_dim) { return head_dim + 16; }

// How a step is cut: by splits (splits > 0: the most that any row has) or by tiles of tile_rows rows, and either by groups of heads: the query
// heads of a KV head, or an equal part of them.
struct AttentionCut {
  int32_t rows, splits, tile_rows, parts;
  BAO_INLINE int32_t groups(const AttentionArgs& a) const { return a.pool.kv_heads * parts; }
};
// Heads are parted only for threads that would have nothing to do: each part unpacks the keys and values anew.
constexpr int32_t LEAST_HEADS = 4;
BAO_INLINE int32_t head_parts(const AttentionStages& s, const Run& run, int64_t pieces) {
  int32_t parts = 1;
  while (pieces * parts < run.threads && s.heads_per_kv % (2 * parts * LEAST_HEADS) == 0) parts *= 2;
  return parts;
}
AttentionCut attention_cut(const AttentionStages& s, const Run& run) {
  const AttentionArgs& a = s.a;
  const StepRef& step = *run.step;
  const Splits splits = splits_of(a);
  AttentionCut cut{step.count(a.dst), 0, 1, 1};
  int32_t most = 0, longest = 1;
  for (int32_t r = 0; r < cut.rows; r++) {
    Visible v = visible_of(a, token_of(step, a.dst.rows_of, r).position);
    if (v.end <= v.first) continue;
    longest = int32_t(larger(longest, v.end - v.first));
    most = int32_t(larger(most, splits.of_page((v.end - 1) / 64) - splits.of_page(v.first / 64) + 1));
  }
  if (cut.rows <= s.split_rows && most > 1 && most <= s.slots) {
    cut.splits = most;
    cut.parts = head_parts(s, run, int64_t(cut.rows) * most * a.pool.kv_heads);
    return cut;
  }
  // Products of one row in a piece; a piece should stay well below 50 ms, and every thread should get a few.
  double row_work = 2.0 * double(longest) * double(smaller(s.heads_per_kv, s.tile_queries)) * double(a.pool.head_dim);
  int32_t tile = int32_t(larger(1, s.tile_queries / s.heads_per_kv));
  while (tile > 1 && double(tile) * row_work > 2e8) tile /= 2;
  while (tile > 1 && int64_t(piece_count(cut.rows, tile)) * a.pool.kv_heads < 3 * int64_t(run.threads)) tile /= 2;
  cut.tile_rows = tile;
  cut.parts = head_parts(s, run, int64_t(piece_count(cut.rows, tile)) * a.pool.kv_heads);
  return cut;
}

// Fills a tile with rows [row, row + rows) and `heads` query heads from `head` on; o and the buffers lie in the worker's scratch.
void tile_begin(Tile& t, const AttentionStages& s, const Run& run, int32_t row, int32_t rows, int32_t head, int32_t heads) {
  const AttentionArgs& a = s.a;
  t.a = &a;
  t.step = run.step;
  t.sequence = token_of(*run.step, a.dst.rows_of, row).sequence;
  t.kv_head = head / s.heads_per_kv;
  t.rows = rows;
  t.heads = heads;
  for (int32_t r = 0; r < rows; r++) {
    t.visible[r] = visible_of(a, token_of(*run.step, a.dst.rows_of, row + r).position);
    for (int32_t h = 0; h < heads; h++) t.q[r * heads + h] = a.q.f32(row + r) + int64_t(head + h) * a.pool.head_dim;
  }
  t.scores = reinterpret_cast<float*>(run.worker_scratch);
  t.keys = t.scores + MAX_QUERIES * PAGE;
  t.o = t.scores + tile_floats(a.pool.head_dim);
}

void attend_tile(const AttentionStages& s, const Run& run, int32_t row, int32_t rows, int32_t head, int32_t heads) {
  const AttentionArgs& a = s.a;
  const int64_t head_dim = a.pool.head_dim, queries = int64_t(rows) * heads;
  const Splits splits = splits_of(a);
  Tile t;
  tile_begin(t, s, run, row, rows, head, heads);
  float* o = t.o + queries * head_dim;
  float m[MAX_QUERIES], l[MAX_QUERIES];
  for (int64_t q = 0; q < queries; q++) {
    m[q] = LOWEST;
    l[q] = 0.0f;
  }
  for (int64_t i = 0; i < queries * head_dim; i += W) vstore(o + i, vzero());
  const int32_t first_key = t.visible[0].first, end_key = t.visible[rows - 1].end;
  if (first_key < end_key) {
    for (int32_t split = splits.of_page(first_key / 64); split <= splits.of_page((end_key - 1) / 64); split++) {
      int32_t first_page = splits.first_page(split), end_page = splits.first_page(split + 1);
      attend_split(t, int32_t(larger(first_page, first_key / 64)), int32_t(smaller(end_page, (end_key - 1) / 64 + 1)));
      for (int64_t q = 0; q < queries; q++) {
        const Visible& v = t.visible[q / heads];
        if (v.first >= end_page * PAGE || v.end <= first_page * PAGE) continue;  // merging nothing could still turn -0 into 0
        merge_split(&m[q], &l[q], o + q * head_dim, t.m[q], t.l[q], t.o + q * head_dim, head_dim);
      }
    }
  }
  for (int64_t q = 0; q < queries; q++)
    finish_head(a.dst.f32(row + q / heads) + (head + q % heads) * head_dim, o + q * head_dim, l[q], head_dim);
}

// Query heads of one group, at most tile_queries at a time.
template <class F> BAO_INLINE void for_heads(const AttentionStages& s, const AttentionCut& cut, int32_t group, F&& f) {
  const int32_t count = s.heads_per_kv / cut.parts;
  for (int32_t h = 0; h < count; h += s.tile_queries) f(group * count + h, int32_t(smaller(s.tile_queries, count - h)));
}

void attention_tiles(const AttentionStages& s, const Run& run, const AttentionCut& cut, int32_t piece) {
  const AttentionArgs& a = s.a;
  const int32_t group = piece % cut.groups(a);
  int32_t row = piece / cut.groups(a) * cut.tile_rows;
  const int32_t end = int32_t(smaller(cut.rows, row + cut.tile_rows));
  while (row < end) {
    int32_t sequence = token_of(*run.step, a.dst.rows_of, row).sequence, next = row + 1;
    while (next < end && token_of(*run.step, a.dst.rows_of, next).sequence == sequence) next++;
    for_heads(s, cut, group, [&](int32_t head, int32_t heads) { attend_tile(s, run, row, next - row, head, heads); });
    row = next;
  }
}

BAO_INLINE float* partial_of(const AttentionStages& s, const Run& run, int64_t row, int64_t head, int64_t slot) {
  return reinterpret_cast<float*>(run.scratch + s.scratch) + ((row * s.a.dst.d1 + head) * s.slots + slot) * partial_floats(s.a.pool.head_dim);
}

// The longest splits of a context are its last ones: they come first.
void attention_one_split(const AttentionStages& s, const Run& run, const AttentionCut& cut, int32_t piece) {
  const AttentionArgs& a = s.a;
  const int64_t head_dim = a.pool.head_dim;
  const Splits splits = splits_of(a);
  const int32_t groups = cut.groups(a), group = piece % groups, row = piece / groups % cut.rows, slot = cut.splits - 1 - piece / groups / cut.rows;
  Visible v = visible_of(a, token_of(*run.step, a.dst.rows_of, row).position);
  if (v.end <= v.first) return;
  int32_t split = splits.of_page(v.first / 64) + slot, last_page = (v.end - 1) / 64;
  if (split > splits.of_page(last_page)) return;
  for_heads(s, cut, group, [&](int32_t head, int32_t heads) {
    Tile t;
    tile_begin(t, s, run, row, 1, head, heads);
    attend_split(t, int32_t(larger(splits.first_page(split), v.first / 64)), int32_t(smaller(splits.first_page(split + 1), last_page + 1)));
    for (int32_t h = 0; h < heads; h++) {
      float* partial = partial_of(s, run, row, head + h, slot);
      partial[0] = t.m[h];
      partial[1] = t.l[h];
      copy_span(partial + 16, t.o + h * head_dim, head_dim);
    }
  });
}

void attention_merge(const AttentionStages& s, const Run& run, int64_t row, int64_t head) {
  const AttentionArgs& a = s.a;
  const int64_t head_dim = a.pool.head_dim;
  const Splits splits = splits_of(a);
  Visible v = visible_of(a, token_of(*run.step, a.dst.rows_of, row).position);
  float* o = reinterpret_cast<float*>(run.worker_scratch);
  for (int64_t d = 0; d < head_dim; d += W) vstore(o + d, vzero());
  float m = LOWEST, l = 0.0f;
  int32_t count = v.end <= v.first ? 0 : splits.of_page((v.end - 1) / 64) - splits.of_page(v.first / 64) + 1;
  for (int32_t slot = 0; slot < count; slot++) {
    const float* partial = partial_of(s, run, row, head, slot);
    merge_split(&m, &l, o, partial[0], partial[1], partial + 16, head_dim);
  }
  finish_head(a.dst.f32(row) + head * head_dim, o, l, head_dim);
}

constexpr int32_t ATTENTION_MAX_HEAD_DIM = 4096;
void record_attention(Builder& b, const AttentionArgs& a) {
  // Whole vectors only; other sizes occur in toy models alone.
  if (a.pool.head_dim % 16 || a.pool.head_dim > ATTENTION_MAX_HEAD_DIM) return reference_ops.attention(b, a);
  AttentionStages s{};
  s.a = a;
  s.heads_per_kv = a.dst.d1 / a.pool.kv_heads;
  s.tile_queries = int32_t(larger(1, smaller(MAX_QUERIES, 32768 / a.pool.head_dim)));
  s.slots = a.window > 0 ? 12 : MAX_SPLITS;
  s.split_rows = int32_t(smaller(a.dst.d0, larger(1, smaller(8, 64 / a.dst.d1))));
  s.scratch = b.reserve_scratch(int64_t(s.split_rows) * a.dst.d1 * s.slots * partial_floats(a.pool.head_dim) * int64_t(sizeof(float)));
  b.add(&s, sizeof s,
        [](const void* p, const Run& run) {
          const auto& s = args_of<AttentionStages>(p);
          AttentionCut cut = attention_cut(s, run);
          return int32_t(int64_t(cut.splits ? cut.rows * cut.splits : piece_count(cut.rows, cut.tile_rows)) * cut.groups(s.a));
        },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& s = args_of<AttentionStages>(p);
          AttentionCut cut = attention_cut(s, run);
          if (cut.splits) attention_one_split(s, run, cut, piece);
          else attention_tiles(s, run, cut, piece);
        });
  b.add(&s, sizeof s,
        [](const void* p, const Run& run) {
          const auto& s = args_of<AttentionStages>(p);
          AttentionCut cut = attention_cut(s, run);
          return cut.splits ? cut.rows * s.a.dst.d1 : 0;
        },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& s = args_of<AttentionStages>(p);
          attention_merge(s, run, piece / s.a.dst.d1, piece % s.a.dst.d1);
        });
}
