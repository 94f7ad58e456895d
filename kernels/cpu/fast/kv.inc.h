// The KV cache: one head's K or V to and from a page, rounded to the pool's type, and the ops that append to it.

struct Token { int32_t sequence, position; };
BAO_INLINE Token token_of(const StepRef& step, int32_t rows_of, int64_t r) {
  int32_t row = step.step_row(rows_of, int32_t(r));
  return {step.row_sequence[row], step.row_position[row]};
}
// Page `index` of a sequence, or -1: nothing is stored or read there.
BAO_INLINE int32_t page_at(const StepRef& step, const PoolRef& pool, int32_t sequence, int32_t index) {
  return index < 0 || index >= step.pages[pool.table] ? -1 : step.page(pool.table, sequence, index);
}

// Q8_0: d = max|x| / 127, values x / d to nearest, ties to even; a block with a NaN or an infinity reads as all NaN.
void kv_store_q8(int8_t* dst, float* scales, const float* x, int64_t head_dim) {
  for (int64_t block = 0; block < head_dim / 32; block++, x += 32, dst += 32) {
    vf largest = vzero(), check = vzero();
    for (int i = 0; i < 32; i += W) {
      vf v = vload(x + i);
      largest = vmax(vabs(v), largest);
      check = vfma(v, vzero(), check);  // 0 * infinity and 0 * NaN are NaN
    }
    bool finite = vsum(check) == 0.0f;
    float d = vreduce_max(largest) / 127.0f;
    scales[block] = finite ? d : __builtin_nanf("");
    for (int i = 0; i < 32; i += W) {
      vf q = finite && d > 0.0f ? vdiv(vload(x + i), vset1(d)) : vzero();
      vstore_i8(dst + i, vmin(vmax(q, vset1(-127.0f)), vset1(127.0f)));  // a subnormal d may be far from max / 127
    }
  }
}

void kv_store(const PoolRef& pool, int64_t layer, int64_t page, int64_t head, bool v, int64_t slot, const float* x) {
  char* plane = pool.plane(layer, page, head, v);
  const int64_t n = pool.head_dim;
  if (pool.dtype == 0) {
    copy_span(reinterpret_cast<float*>(plane) + slot * n, x, n);
  } else if (pool.dtype == 1) {
    uint16_t* dst = reinterpret_cast<uint16_t*>(plane) + slot * n;
    int64_t i = 0;
    for (; i + W <= n; i += W) vstore_f16(dst + i, vload(x + i));
    for (; i < n; i++) dst[i] = f32_to_f16(x[i]);  // heads that are no multiple of W: the same rounding
  } else {
    kv_store_q8(reinterpret_cast<int8_t*>(plane) + slot * n, reinterpret_cast<float*>(plane + pool.scales_offset) + slot * (n / 32), x, n);
  }
}

// `count` tokens of a plane from `slot` on as f32 (count, head_dim): in place for F32, else unpacked into `to`.
const float* kv_load(const PoolRef& pool, const char* plane, int64_t slot, int64_t count, float* to) {
  const int64_t n = pool.head_dim, total = count * n;
  if (pool.dtype == 0) return reinterpret_cast<const float*>(plane) + slot * n;
  if (pool.dtype == 1) {
    const uint16_t* src = reinterpret_cast<const uint16_t*>(plane) + slot * n;
    for (int64_t i = 0; i < total; i += W) vstore(to + i, vload_f16(src + i));
  } else {
    const int8_t* src = reinterpret_cast<const int8_t*>(plane) + slot * n;
    const float* scales = reinterpret_cast<const float*>(plane + pool.scales_offset) + slot * (n / 32);
    for (int64_t block = 0; block < total / 32; block++) {
      vf d = vset1(scales[block]);
      for (int i = 0; i < 32; i += W) vstore(to + block * 32 + i, vmul(d, vload_i8(src + block * 32 + i)));
    }
  }
  return to;
}

BAO_INLINE void kv_append_head(const PoolRef& pool, int32_t layer, const StepRef& step, Token at, int64_t head, bool v, const float* x) {
  int32_t page = at.position < 0 ? -1 : page_at(step, pool, at.sequence, at.position / 64);
  if (page >= 0) kv_store(pool, layer, page, head, v, at.position % 64, x);
}

void record_kv_append(Builder& b, const KvAppendArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return unit_pieces(args_of<KvAppendArgs>(p).k, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<KvAppendArgs>(p);
          for_units(a.k, run, piece, [&](int64_t u) {
            Token at = token_of(*run.step, a.k.rows_of, u / a.k.d1);
            kv_append_head(a.pool, a.layer, *run.step, at, u % a.k.d1, false, unit_of(a.k, u));
            kv_append_head(a.pool, a.layer, *run.step, at, u % a.k.d1, true, unit_of(a.v, u));
          });
        });
}

// One unit a head: the q heads of a row, then its KV heads. V first, because without a v of its own it is the raw k.
BAO_INLINE int64_t head_units(const HeadNormRopeAppendArgs& a) { return a.q.d1 + (a.k.present() ? a.pool.kv_heads : 0); }
void head_norm_rope_append_unit(const HeadNormRopeAppendArgs& a, const Run& run, int64_t row, int64_t head) {
  const int32_t n = a.q.d2, half = a.table.d2;
  const float *cos = a.table.f32(row), *sin = cos + half;
  if (head < a.q.d1) {
    float* q = a.q.f32(row) + head * n;
    if (a.wq) rms_norm_vector(q, q, a.wq, n, a.eps, 1.0f);
    rotate_head(q, q, cos, sin, half, n, a.mode);
    return;
  }
  head -= a.q.d1;
  Token at = token_of(*run.step, a.q.rows_of, row);
  float* k = a.k.f32(row) + head * n;
  float* v = a.v.present() ? a.v.f32(row) + head * n : k;
  float* normed_v = reinterpret_cast<float*>(run.worker_scratch);
  if (a.norm_v) rms_norm_vector(normed_v, v, nullptr, n, a.eps, 1.0f);
  kv_append_head(a.pool, a.layer, *run.step, at, head, true, a.norm_v ? normed_v : v);
  if (a.wk) rms_norm_vector(k, k, a.wk, n, a.eps, 1.0f);
  rotate_head(k, k, cos, sin, half, n, a.mode);
  kv_append_head(a.pool, a.layer, *run.step, at, head, false, k);
}
void record_head_norm_rope_append(Builder& b, const HeadNormRopeAppendArgs& a) {
  b.add(&a, sizeof a,
        [](const void* p, const Run& run) {
          const auto& a = args_of<HeadNormRopeAppendArgs>(p);
          return piece_count(run.step->count(a.q) * head_units(a), units_per_piece(a.q.d2));
        },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<HeadNormRopeAppendArgs>(p);
          int64_t heads = head_units(a), per_piece = units_per_piece(a.q.d2);
          int64_t end = smaller(run.step->count(a.q) * heads, (int64_t(piece) + 1) * per_piece);
          for (int64_t u = piece * per_piece; u < end; u++) head_norm_rope_append_unit(a, run, u / heads, u % heads);
        });
}
