// KV append and attention of every fast table: near the plain reference, and the same bits for one-shot prefill, any chunking, decode token by
// token and decode among other sequences. Pages are scattered and their unwritten slots hold NaN.
#include "ops_harness.h"

using namespace harness;

namespace {

struct Shape {
  int dtype, kv_heads, group, head_dim, window, tokens;
  std::string text() const {
    return "dtype " + std::to_string(dtype) + " kv_heads " + std::to_string(kv_heads) + " group " + std::to_string(group) + " head_dim " +
           std::to_string(head_dim) + " window " + std::to_string(window) + " tokens " + std::to_string(tokens);
  }
};

struct Cache {
  PoolRef ref{};
  std::vector<char> memory;
  Cache(const Shape& s, int pages) {
    int64_t element = s.dtype == BAO_F32 ? 4 : s.dtype == BAO_F16 ? 2 : 1, values = 64LL * s.head_dim * element;
    ref.scales_offset = (values + 127) / 128 * 128;
    ref.plane_bytes = s.dtype == BAO_Q8_0 ? ref.scales_offset + (64LL * s.head_dim / 32 * 4 + 127) / 128 * 128 : ref.scales_offset;
    ref.page_stride = ref.plane_bytes * s.kv_heads * 2;
    ref.layer_stride = ref.page_stride * pages;
    ref.layers = 2;
    ref.kv_heads = s.kv_heads;
    ref.head_dim = s.head_dim;
    ref.dtype = s.dtype;
    memory.assign(size_t(ref.layer_stride * 2 + 128), char(0xFF));
    ref.base = memory.data() + (128 - reinterpret_cast<uintptr_t>(memory.data()) % 128) % 128;
  }
};

// Two sequences over scattered pages; sequence 1 has `tokens` tokens, sequence 0 a few.
struct World {
  Shape s;
  int pages;
  Cache cache;
  Buffer q, k, v;
  std::vector<int32_t> table;
  World(const Shape& s)
      : s(s), pages(s.tokens / 64 + 2), cache(s, 2 * pages), q(1, s.tokens, s.kv_heads * s.group, s.head_dim), k(1, s.tokens, s.kv_heads, s.head_dim),
        v(1, s.tokens, s.kv_heads, s.head_dim), table(size_t(2 * pages)) {
    q.random(1.5f);
    k.random();
    v.random();
    for (int i = 0; i < 2 * pages; i++) table[size_t(i)] = i;
    std::shuffle(table.begin(), table.end(), rng());
  }
  Step step(int first, int rows, int sequence) {
    Step step(rows, 0, 2, pages);
    step.table = table;
    for (int t = 0; t < 4; t++) step.ref.table[t] = step.table.data();
    for (int r = 0; r < rows; r++) {
      step.position[size_t(r)] = first + r;
      step.sequence[size_t(r)] = sequence;
    }
    return step;
  }
  void append(const OpTable& ops, int first, int rows, int sequence, int row = -1) {
    Step st = step(first, rows, sequence);
    run_op(ops.kv_append, KvAppendArgs{cache.ref, 1, k.tensor(row < 0 ? first : row), v.tensor(row < 0 ? first : row)}, st.ref);
  }
  void attend(const OpTable& ops, Buffer& dst, int first, int rows, int threads) {
    Step st = step(first, rows, 1);
    run_op(ops.attention, AttentionArgs{dst.tensor(first), q.tensor(first), cache.ref, 1, s.window, 0.3f / std::sqrt(float(s.head_dim))}, st.ref, threads);
  }
};

void attention(const NamedTable& t, const Shape& s, bool every_token) {
  World w(s);
  const std::string name = std::string(t.name) + " " + s.text();
  Buffer once(1, s.tokens, s.kv_heads * s.group, s.head_dim), chunked = once, decoded = once, expected = once;
  // Chunks, appending as they go: later slots are still NaN.
  for (int first = 0; first < s.tokens;) {
    int rows = std::min(s.tokens - first, pick(0, 3) ? pick(1, 90) : pick(1, 5));
    w.append(*t.ops, first, rows, 1);
    w.attend(*t.ops, chunked, first, rows, pick(1, 16));
    first += rows;
  }
  std::vector<char> filled = w.cache.memory;
  w.append(*t.ops, 0, s.tokens, 1);
  check(filled == w.cache.memory, name + ": appended bits");
  w.attend(*t.ops, once, 0, s.tokens, 4);
  check_same(once, chunked, name + " chunked");
  int step = every_token ? 1 : 37;
  for (int first = 0; first < s.tokens; first++) {
    if (first % step == 0 || first > s.tokens - 3) w.attend(*t.ops, decoded, first, 1, 2);
    else std::memcpy(decoded.row(first), once.row(first), size_t(once.columns()) * 4);
  }
  check_same(once, decoded, name + " decoded");
  for (int first = 0; first < s.tokens; first++) {
    if (first % step == 0 || first > s.tokens - 3) w.attend(reference_ops, expected, first, 1, 1);
    else std::memcpy(expected.row(first), once.row(first), size_t(once.columns()) * 4);
  }
  check_near(once, expected, 4e-6f, name);

  // The last row as one of three sequences' rows, and through a view of output rows.
  const int last = s.tokens - 1, other = std::min(s.tokens, 70);
  w.append(*t.ops, 0, other, 0, 0);
  Buffer mixed(2, 3, once.d1, once.d2), q_rows(2, 3, once.d1, once.d2);
  Step st(5, 3, 2, w.pages);
  st.table = w.table;
  for (int i = 0; i < 4; i++) st.ref.table[i] = st.table.data();
  st.sequence = {0, 0, 0, 1, 1};
  st.position = {other - 3, other - 2, other - 1, last - 1, last};
  if (other < 3 || last < 1) return;
  st.ref.row_sequence = st.sequence.data();
  st.ref.row_position = st.position.data();
  st.output = {0, 2, 4};
  st.ref.output_row = st.output.data();
  for (int i = 0; i < 3; i++) std::memcpy(q_rows.row(i), w.q.row(i == 0 ? other - 3 : i == 1 ? other - 1 : last), size_t(once.columns()) * 4);
  run_op(t.ops->attention, AttentionArgs{mixed.tensor(), q_rows.tensor(), w.cache.ref, 1, s.window, 0.3f / std::sqrt(float(s.head_dim))}, st.ref, 1);
  bool same = true;
  for (int i = 0; i < 3; i++)
    same = same && !std::memcmp(mixed.row(i), once.row(i == 0 ? other - 3 : i == 1 ? other - 1 : last), size_t(once.columns()) * 4);
  check(same, name + " among other sequences");
}

// A NaN or an infinity in one token's K or V reaches the rows that see it, and no other.
void poison(const NamedTable& t) {
  Shape s{BAO_F16, 1, 2, 64, 100, 300};
  World w(s);
  Buffer clean(1, s.tokens, 2, 64), dirty = clean;
  w.append(*t.ops, 0, s.tokens, 1);
  w.attend(*t.ops, clean, 0, s.tokens, 2);
  w.v.row(130)[5] = NAN;
  w.k.row(131)[6] = INFINITY;
  w.append(*t.ops, 0, s.tokens, 1);
  w.attend(*t.ops, dirty, 0, s.tokens, 2);
  bool same = true, seen = true;
  for (int r = 0; r < s.tokens; r++) {
    bool sees = r >= 130 && r < 130 + 100;
    if (!sees && r != 230) same = same && !std::memcmp(clean.row(r), dirty.row(r), 2 * 64 * 4);
    if (sees) seen = seen && std::isnan(dirty.row(r)[5]);
  }
  check(same, std::string(t.name) + " NaN stays with the rows that see it");
  check(seen, std::string(t.name) + " NaN is not lost");
}

void head_norm_rope_append(const NamedTable& t, int dtype, int head_dim) {
  for (int variant = 0; variant < 16; variant++) {
    Shape s{dtype, 2, 3, head_dim, 0, 70};
    World w(s);
    Cache plain(s, 2 * w.pages), expected(s, 2 * w.pages);
    const bool norms = variant & 1, own_v = variant & 2, norm_v = variant & 4, append = !(variant & 8) || variant == 15;
    std::vector<float> wq(static_cast<size_t>(head_dim)), wk(static_cast<size_t>(head_dim));
    for (int i = 0; i < head_dim; i++) wq[size_t(i)] = 1 + normal(0.2f), wk[size_t(i)] = 1 + normal(0.2f);
    Step st = w.step(0, 70, 1);
    int half = variant & 1 ? head_dim / 2 : head_dim / 4, mode = variant & 2;
    Buffer table(1, 70, 2, half);
    run_op(t.ops->rope_table, RopeTableArgs{table.tensor(), nullptr, 2 * half, 1e4f, 1.0f}, st.ref);
    Buffer q = w.q, k = w.k, v = w.v, q_p = w.q, k_p = w.k, v_p = own_v ? w.v : w.k, q_r = w.q, k_r = w.k, v_r = w.v;
    auto args = [&](Buffer& q, Buffer& k, Buffer& v, Cache& c) {
      return HeadNormRopeAppendArgs{q.tensor(), append ? k.tensor() : Tensor{}, append && own_v ? v.tensor() : Tensor{}, table.tensor(), norms ? wq.data() : nullptr, norms ? wk.data() : nullptr, c.ref, mode ? 1 : 0, 1, norm_v, 1e-6f};
    };
    run_op(t.ops->head_norm_rope_append, args(q, k, v, w.cache), st.ref);
    run_op(reference_ops.head_norm_rope_append, args(q_r, k_r, v_r, expected), st.ref);
    if (norms) run_op(t.ops->rms_norm, RmsNormArgs{q_p.tensor(), q_p.tensor(), wq.data(), 1e-6f, 1.0f}, st.ref);
    run_op(t.ops->rope, RopeArgs{q_p.tensor(), q_p.tensor(), table.tensor(), mode ? 1 : 0}, st.ref);
    if (append) {
      if (norm_v) run_op(t.ops->rms_norm, RmsNormArgs{v_p.tensor(), v_p.tensor(), nullptr, 1e-6f, 1.0f}, st.ref);
      if (norms) run_op(t.ops->rms_norm, RmsNormArgs{k_p.tensor(), k_p.tensor(), wk.data(), 1e-6f, 1.0f}, st.ref);
      run_op(t.ops->rope, RopeArgs{k_p.tensor(), k_p.tensor(), table.tensor(), mode ? 1 : 0}, st.ref);
      run_op(t.ops->kv_append, KvAppendArgs{plain.ref, 1, k_p.tensor(), v_p.tensor()}, st.ref);
    }
    const std::string name = std::string(t.name) + " head_norm_rope_append " + s.text() + " variant " + std::to_string(variant);
    check_same(q, q_p, name + " q");
    check_near(q, q_r, 2e-6f, name + " q");
    int64_t bytes = plain.ref.layer_stride * 2;
    check(!std::memcmp(plain.ref.base, w.cache.ref.base, size_t(bytes)), name + " pool");
    if (dtype == BAO_F32) {
      bool near = true;
      const float *a = reinterpret_cast<float*>(expected.ref.base), *b = reinterpret_cast<float*>(w.cache.ref.base);
      for (int64_t i = 0; i < bytes / 4; i++) near = near && (std::isnan(a[i]) ? std::isnan(b[i]) : std::fabs(a[i] - b[i]) < 1e-5f);
      check(near, name + " pool against the reference");
    }
  }
  // The stored bits of plain appends are the reference's own, odd values included.
  Shape s{dtype, 1, 1, head_dim, 0, 20};
  World w(s);
  for (int i = 0; i < head_dim; i++) w.k.row(3)[i] = 0, w.k.row(4)[i] = normal(1e-38f), w.k.row(5)[i] = normal(3e4f), w.k.row(8)[i] = normal(1e-44f);
  w.k.row(6)[1] = INFINITY;
  w.k.row(7)[2] = 1e6f;
  Cache expected(s, 2 * w.pages);
  Step st = w.step(0, 20, 1);
  w.append(*t.ops, 0, 20, 1);
  run_op(reference_ops.kv_append, KvAppendArgs{expected.ref, 1, w.k.tensor(), w.v.tensor()}, st.ref);
  check(!std::memcmp(expected.ref.base, w.cache.ref.base, size_t(expected.ref.layer_stride * 2)), std::string(t.name) + " kv_append " + s.text());
}

}  // namespace

int main(int argc, char**) {
  auto tokens = [](int usual, int least) { return brief() ? least : usual; };
  for (const NamedTable& t : tables()) {
    for (int dtype : {BAO_F32, BAO_F16, BAO_Q8_0}) {
      attention(t, {dtype, 2, 1, 32, 0, 150}, true);
      attention(t, {dtype, 1, 8, 64, 0, tokens(700, 200)}, false);
      attention(t, {dtype, 2, 3, 96, 130, tokens(400, 260)}, false);
      attention(t, {dtype, 1, 2, 512, 64, tokens(300, 150)}, false);
      head_norm_rope_append(t, dtype, 64);
    }
    attention(t, {BAO_F16, 3, 16, 128, 0, 200}, false);
    attention(t, {BAO_F16, 1, 1, 256, 1, 200}, false);
    attention(t, {BAO_F32, 1, 5, 80, tokens(1000, 200), tokens(1500, 330)}, false);
    attention(t, {BAO_F16, 1, 70, 16, 0, 90}, true);
    attention(t, {BAO_F32, 1, 2, 6, 40, 100}, false);  // a toy model's head
    attention(t, {BAO_F16, 1, 2, 64, 0, argc > 1 ? 20000 : tokens(6000, 900)}, false);
    head_norm_rope_append(t, BAO_F32, 12);
    head_norm_rope_append(t, BAO_F16, 20);
    poison(t);
  }
  return report("attention");
}
