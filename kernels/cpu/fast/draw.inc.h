// The draw of one id per output row (docs/sampling.md). Thresholds over integer mass are found with histograms of sums, from coarse buckets
// that chunks fill in parallel to single units, so that a row is read a few times and nothing of its length is stored.

// ---------------------------------------------------------------- buckets of mass

// 31 octaves of eight: ascending with the mass, which is 1 ... 2^30.
constexpr int32_t BUCKETS = 256;
BAO_INLINE int32_t octave_of(uint32_t mass) { return 31 - __builtin_clz(mass); }
BAO_INLINE int32_t bucket_of(uint32_t mass) {
  int32_t e = octave_of(mass);
  return e * 8 + int32_t((e >= 3 ? mass >> (e - 3) : mass << (3 - e)) & 7);
}
// Smallest mass of a bucket, or of the next one that has any.
BAO_INLINE uint32_t bucket_start(int32_t bucket) {
  int32_t e = bucket / 8;
  uint64_t eighths = uint64_t(8 + bucket % 8);
  return uint32_t(e >= 3 ? eighths << (e - 3) : (eighths + (8u >> e) - 1) >> (3 - e));
}

// mass[j] = mass_of(delta lane j), the same integers.
#if defined(__AVX512F__) || defined(__AVX2__)
#if defined(__AVX512F__)
BAO_INLINE vi mass_high(vi a, vi b) {
  vi even = _mm512_srli_epi64(_mm512_mul_epu32(a, b), 32), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), _mm512_srli_epi64(b, 32));
  return _mm512_mask_blend_epi32(0xAAAA, even, odd);
}
BAO_INLINE vi mass_set(uint32_t x) { return _mm512_set1_epi32(int32_t(x)); }
BAO_INLINE vi mass_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
BAO_INLINE vi mass_fraction_bits(vi high, vi low) { return _mm512_or_si512(_mm512_slli_epi32(high, 7), _mm512_srli_epi32(low, 25)); }
BAO_INLINE vi mass_low(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
template <int N> BAO_INLINE vi mass_shift(vi a) { return _mm512_srli_epi32(a, N); }
BAO_INLINE vi mass_shift_by(vi a, vi n) { return _mm512_srlv_epi32(a, n); }
BAO_INLINE vi mass_truncate(vf x) { return _mm512_cvttps_epi32(x); }
BAO_INLINE void mass_store(uint32_t* p, vi x, vm valid) { _mm512_storeu_si512(p, _mm512_maskz_mov_epi32(valid, x)); }
#else
BAO_INLINE vi mass_high(vi a, vi b) {
  vi even = _mm256_srli_epi64(_mm256_mul_epu32(a, b), 32), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), _mm256_srli_epi64(b, 32));
  return _mm256_blend_epi32(even, odd, 0xAA);
}
BAO_INLINE vi mass_set(uint32_t x) { return _mm256_set1_epi32(int32_t(x)); }
BAO_INLINE vi mass_sub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
BAO_INLINE vi mass_fraction_bits(vi high, vi low) { return _mm256_or_si256(_mm256_slli_epi32(high, 7), _mm256_srli_epi32(low, 25)); }
BAO_INLINE vi mass_low(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
template <int N> BAO_INLINE vi mass_shift(vi a) { return _mm256_srli_epi32(a, N); }
BAO_INLINE vi mass_shift_by(vi a, vi n) { return _mm256_srlv_epi32(a, n); }
BAO_INLINE vi mass_truncate(vf x) { return _mm256_cvttps_epi32(x); }
BAO_INLINE void mass_store(uint32_t* p, vi x, vm valid) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_and_si256(x, _mm256_castps_si256(valid))); }
#endif
BAO_INLINE void vmass(uint32_t* mass, vf delta) {
  vi q = mass_truncate(vmul(delta, vset1(-67108864.0f))), log2e = mass_set(3098164009u);
  vi high = mass_high(q, log2e), f = mass_fraction_bits(high, mass_low(q, log2e)), p = mass_set(493577u);
  p = mass_sub(mass_set(5547538u), mass_high(f, p));
  p = mass_sub(mass_set(41218952u), mass_high(f, p));
  p = mass_sub(mass_set(238367376u), mass_high(f, p));
  p = mass_sub(mass_set(1031763206u), mass_high(f, p));
  p = mass_sub(mass_set(2977044447u), mass_high(f, p));
  vi r = mass_sub(mass_set(2147483648u), mass_shift<1>(mass_high(f, p)));
  vi by = mass_sub(mass_shift<25>(high), mass_set(0xFFFFFFFFu));
  mass_store(mass, mass_shift_by(r, by), vlt(vset1(-21.0f), delta));
}
#else
BAO_INLINE void vmass(uint32_t* mass, vf delta) {
  float d[W];
  vstore(d, delta);
  for (int j = 0; j < W; j++) mass[j] = d[j] <= 0.0f ? mass_of(d[j]) : 0;  // lanes past the end of a row may lie above its maximum
}
#endif

// ---------------------------------------------------------------- a row

struct DrawChunk {
  float max;
  int32_t argmax, bad;  // bad: NaN or +infinity
  int64_t key_ties;     // of the ids on the top-k threshold, how many are still to be taken when this chunk begins
  union {
    uint64_t sum[BUCKETS];
    Top top;
  };
};
struct DrawArgs { SampleArgs a; int64_t scratch, chunks; };
BAO_INLINE DrawChunk* draw_chunks(const DrawArgs& args, const Run& run, int64_t row) {
  return reinterpret_cast<DrawChunk*>(run.scratch + args.scratch) + row * args.chunks;
}

// Keeps what lies above `threshold`, and of what lies on it the next `ties` in ascending id order.
struct MassCut {
  uint32_t threshold;
  int64_t ties;
  BAO_INLINE bool keeps(uint32_t value) { return value > threshold || (value == threshold && ties-- > 0); }
};
constexpr int64_t NO_LIMIT = INT64_MAX;

struct Draw {
  const float* logits;
  int64_t n, chunks;
  DrawChunk* chunk;
  float max, inv, top_p;
  bool finite;
  int32_t argmax;
  int64_t top_k;        // 0: off
  uint32_t key;         // top-k threshold of order_key, when it is not by lists
  uint32_t min_mass;
  bool filtered;        // `key` is in use

  BAO_INLINE bool greedy() const { return inv < 0.0f; }
  BAO_INLINE bool listed() const { return top_k > 0 && top_k <= TOP_MAX; }
  BAO_INLINE int64_t first(int64_t c) const { return c * LOGIT_CHUNK; }
  BAO_INLINE int64_t size(int64_t c) const { return smaller(n - c * LOGIT_CHUNK, LOGIT_CHUNK); }

  // f(id, delta, mass) for the ids of a chunk that pass top-k and whose delta lies in (low, high), ascending, until f says false.
  // Ids on the top-k threshold outside (low, high) still count as taken.
  template <class F> BAO_INLINE void each(int64_t c, float low, float high, F&& f) const {
    const float* x = logits + first(c);
    const int64_t count = size(c);
    const vf shift = vset1(max), scale = vset1(inv), bottom = vset1(low), top = vset1(high);
    MassCut cut{key, chunk[c].key_ties};
    uint32_t mass[W];
    for (int64_t i = 0; i < count; i += W) {
      int64_t lanes = smaller(W, count - i);
      vf d = vmul(vsub(vload_any(x + i, lanes), shift), scale);
      uint32_t hits = vbits(vlt(bottom, d)) & vbits(vlt(d, top));
      if (lanes < W) hits &= (1u << lanes) - 1u;
      if (filtered) {
        // Exact ties are rare; only they need the count, and they have one common delta.
        for (int64_t j = 0; j < lanes; j++)
          if (!cut.keeps(order_key(x[i + j]))) hits &= ~(1u << j);
      }
      if (!hits) continue;
      vmass(mass, d);
      for (; hits; hits &= hits - 1) {
        int32_t j = __builtin_ctz(hits);
        if (!f(first(c) + i + j, mass[j])) return;
      }
    }
  }
  // Only masses that may lie in [low, high]: mass_of is within 24 units of the exact value.
  template <class F> BAO_INLINE void each_between(int64_t c, uint32_t low, uint32_t high, F&& f) const {
    double from = low > 64 ? __builtin_log((double(low) - 64.0) / 1073741824.0) : -22.0;
    double to = __builtin_log((double(high) + 64.0) / 1073741824.0);
    each(c, float(from) - 1e-5f, float(to) + 1e-5f, [&](int64_t id, uint32_t m) { return m < low || m > high || f(id, m); });
  }

  void fill_sums(int64_t c) const {
    uint64_t* sum = chunk[c].sum;
    for (int32_t i = 0; i < BUCKETS; i++) sum[i] = 0;
    if (!(top_p < 1.0f) && min_mass == 0) {  // no threshold to look for: any bucket will do
      uint64_t total = 0;
      each(c, -21.0f, 1.0f, [&](int64_t, uint32_t m) {
        total += m;
        return true;
      });
      sum[BUCKETS - 1] = total;
      return;
    }
    each(c, -21.0f, 1.0f, [&](int64_t, uint32_t m) {
      if (m) sum[bucket_of(m)] += m;
      return true;
    });
  }
};

Draw draw_of(const DrawArgs& args, const Run& run, int64_t row) {
  const int32_t* sampler = sampler_of(run, row);
  Draw d{};
  d.logits = args.a.logits.f32(row);
  d.n = args.a.logits.columns();
  d.chunks = args.chunks;
  d.chunk = draw_chunks(args, run, row);
  d.max = LOWEST;
  bool bad = false;
  for (int64_t c = 0; c < d.chunks; c++) {
    bad = bad || d.chunk[c].bad;
    if (d.chunk[c].max > d.max) {
      d.max = d.chunk[c].max;
      d.argmax = d.chunk[c].argmax;
    }
  }
  d.finite = !bad && d.max != LOWEST;
  const float temperature = word_f32(sampler, BAO_SAMPLER_TEMPERATURE), inverse = 1.0f / temperature;
  d.inv = temperature > 0.0f && inverse < INFINITE ? inverse : -1.0f;  // -1: argmax
  d.top_k = sampler[BAO_SAMPLER_TOP_K] > 0 && sampler[BAO_SAMPLER_TOP_K] < d.n ? sampler[BAO_SAMPLER_TOP_K] : 0;
  d.top_p = word_f32(sampler, BAO_SAMPLER_TOP_P);
  const float min_p = word_f32(sampler, BAO_SAMPLER_MIN_P);
  d.min_mass = min_p > 0.0f ? uint32_t(mass_fraction(min_p) >> 2) : 0;
  return d;
}

BAO_INLINE uint32_t draw_word(const Run& run, int64_t row) {
  const int32_t* sampler = sampler_of(run, row);
  uint32_t position = uint32_t(run.step->row_position[run.step->output_row[row]]) + 1u;
  return philox(position, 0, 0, 0, uint32_t(sampler[BAO_SAMPLER_SEED_LOW]), uint32_t(sampler[BAO_SAMPLER_SEED_HIGH])).word[0];
}

// ---------------------------------------------------------------- few candidates: top-k by lists

int32_t draw_from_lists(const Draw& d, uint32_t word) {
  const int32_t k = int32_t(d.top_k);
  Top top;
  top.count = 0;
  for (int64_t c = 0; c < d.chunks; c++) top_merge(top, k, d.chunk[c].top);
  // In ascending id order, with their masses.
  int32_t id[TOP_MAX];
  uint32_t mass[TOP_MAX];
  uint64_t total = 0;
  for (int32_t i = 0; i < top.count; i++) {
    uint32_t m = mass_of((top.value[i] - d.max) * d.inv);
    int32_t at = i;
    for (; at > 0 && id[at - 1] > top.id[i]; at--) {
      id[at] = id[at - 1];
      mass[at] = mass[at - 1];
    }
    id[at] = top.id[i];
    mass[at] = m;
    total += m;
  }
  MassCut cut{0, NO_LIMIT};
  if (d.top_p < 1.0f) {
    uint64_t target = mass_share(mass_fraction(d.top_p), total);
    if (target == 0) target = 1;
    uint64_t above_it = 0;
    for (int32_t i = 0; i < top.count; i++) {
      uint64_t at_least = 0, above = 0;
      for (int32_t j = 0; j < top.count; j++) {
        if (mass[j] >= mass[i]) at_least += mass[j];
        if (mass[j] > mass[i]) above += mass[j];
      }
      if (at_least >= target && mass[i] > cut.threshold) {
        cut.threshold = mass[i];
        above_it = above;
      }
    }
    cut.ties = int64_t((target - above_it + cut.threshold - 1) / cut.threshold);
  }
  uint64_t kept = 0;
  for (int32_t i = 0; i < top.count; i++) {
    if (!cut.keeps(mass[i]) || mass[i] < d.min_mass) mass[i] = 0;
    kept += mass[i];
  }
  const uint64_t target = mass_share(word, kept);
  uint64_t reached = 0;
  for (int32_t i = 0; i < top.count; i++) {
    reached += mass[i];
    if (reached > target) return id[i];
  }
  return d.argmax;
}

// ---------------------------------------------------------------- many candidates: sums by bucket

// Top-k threshold over order_key, a byte at a time; and for each chunk how many ties are left when it begins.
void cut_top_k(Draw& d) {
  uint32_t prefix = 0;
  int64_t left = d.top_k;  // of the ids whose key starts with `prefix`
  for (int32_t shift = 24; shift >= 0; shift -= 8) {
    int64_t count[256] = {};
    for (int64_t i = 0; i < d.n; i++) {
      uint32_t key = order_key(d.logits[i]);
      if (shift == 24 || key >> (shift + 8) == prefix >> (shift + 8)) count[key >> shift & 255]++;
    }
    int32_t digit = 255;
    while (digit > 0 && count[digit] < left) left -= count[digit--];
    prefix |= uint32_t(digit) << shift;
  }
  d.key = prefix;
  d.filtered = true;
  for (int64_t c = 0; c < d.chunks; c++) {
    d.chunk[c].key_ties = left > 0 ? left : 0;
    for (int64_t i = 0; i < d.size(c); i++) left -= order_key(d.logits[d.first(c) + i]) == prefix;
  }
}

// The largest mass such that all masses from it up add to at least `target` > 0, and what lies above it.
struct Threshold { uint32_t mass; uint64_t above; };
Threshold find_threshold(const Draw& d, uint64_t target) {
  uint64_t above = 0;
  int32_t bucket = BUCKETS - 1;
  for (;; bucket--) {
    uint64_t sum = 0;
    for (int64_t c = 0; c < d.chunks; c++) sum += d.chunk[c].sum[bucket];
    if (above + sum >= target || bucket == 0) break;
    above += sum;
  }
  // Within the bucket: nine bits at a time.
  uint32_t low = bucket_start(bucket), width = bucket_start(bucket + 1) - low;
  while (width > 1) {
    uint32_t step = (width + 511) / 512;
    uint64_t sum[512] = {};
    for (int64_t c = 0; c < d.chunks; c++) {
      if (!d.chunk[c].sum[bucket]) continue;
      d.each_between(c, low, low + width - 1, [&](int64_t, uint32_t m) {
        sum[(m - low) / step] += m;
        return true;
      });
    }
    int32_t slot = int32_t((width - 1) / step);
    while (slot > 0 && above + sum[slot] < target) above += sum[slot--];
    uint32_t from = low + uint32_t(slot) * step;
    width = uint32_t(smaller(step, int64_t(low) + width - from));
    low = from;
  }
  return {low, above};
}

int32_t draw_from_sums(Draw& d, uint32_t word) {
  if (d.top_k > 0) {
    cut_top_k(d);
    for (int64_t c = 0; c < d.chunks; c++) d.fill_sums(c);
  }
  MassCut cut{0, NO_LIMIT};
  if (d.top_p < 1.0f) {
    uint64_t total = 0;
    for (int64_t c = 0; c < d.chunks; c++)
      for (int32_t i = 0; i < BUCKETS; i++) total += d.chunk[c].sum[i];
    uint64_t target = mass_share(mass_fraction(d.top_p), total);
    if (target == 0) target = 1;
    Threshold t = find_threshold(d, target);
    cut = {t.mass, int64_t((target - t.above + t.mass - 1) / t.mass)};
  }
  if (d.min_mass > cut.threshold) cut = {d.min_mass, NO_LIMIT};
  // Kept mass of each chunk: whole buckets above the threshold's, and that bucket id by id. It replaces the chunk's first sum.
  const int32_t edge = cut.threshold ? bucket_of(cut.threshold) : -1;
  uint64_t kept = 0;
  MassCut running = cut;
  for (int64_t c = 0; c < d.chunks; c++) {
    uint64_t sum = 0;
    for (int32_t i = edge + 1; i < BUCKETS; i++) sum += d.chunk[c].sum[i];
    if (edge >= 0 && d.chunk[c].sum[edge]) {
      d.each_between(c, bucket_start(edge), bucket_start(edge + 1) - 1, [&](int64_t, uint32_t m) {
        if (running.keeps(m)) sum += m;
        return true;
      });
    }
    d.chunk[c].sum[0] = sum;
    d.chunk[c].sum[1] = uint64_t(running.ties);
    kept += sum;
  }
  const uint64_t target = mass_share(word, kept);
  uint64_t reached = 0;
  for (int64_t c = 0; c < d.chunks; c++) {
    if (reached + d.chunk[c].sum[0] <= target) {
      reached += d.chunk[c].sum[0];
      continue;
    }
    int64_t found = d.argmax;
    MassCut here{cut.threshold, c ? int64_t(d.chunk[c - 1].sum[1]) : cut.ties};
    d.each(c, -21.0f, 1.0f, [&](int64_t id, uint32_t m) {
      if (!m || !here.keeps(m)) return true;
      found = id;
      reached += m;
      return reached <= target;
    });
    return int32_t(found);
  }
  return d.argmax;
}

// ---------------------------------------------------------------- stages

void scan_chunk(DrawChunk& c, const float* x, int64_t n, int64_t first_id) {
  c.max = max_of(x, n);
  int64_t index = index_of(x, n, c.max);
  c.argmax = index < 0 ? 0 : int32_t(first_id + index);
  c.bad = 0;
  c.key_ties = NO_LIMIT;
  vfor(n, [&](int64_t i, int64_t lanes) {
    vf v = vload_any(x + i, lanes);
    if (vbits(vlt(v, vset1(INFINITE))) != (1u << W) - 1u) c.bad = 1;  // lanes beyond the tail are 0
  });
}

// One piece for all rows: two rows of one sequence must not advance it at the same time.
void advance_sequences(const Run& run) {
  const StepRef& step = *run.step;
  for (int32_t r = 0; r < step.outputs; r++) {
    if (sampler_of(run, r)[BAO_SAMPLER_FLAGS] & BAO_SAMPLE_HOLD) continue;
    int32_t row = step.output_row[r], sequence = step.row_sequence[row], id = result_of(run, r)[BAO_RESULT_ID];
    step.next_id[sequence] = id;
    step.length[sequence] = step.row_position[row] + 1;
    step.history[int64_t(sequence) * 64 + step.history_count[sequence] % 64] = id;
    step.history_count[sequence]++;
  }
}

void record_sample(Builder& b, const SampleArgs& a) {
  int64_t chunks = piece_count(a.logits.columns(), LOGIT_CHUNK);
  DrawArgs args{a, b.reserve_scratch(a.logits.d0 * chunks * int64_t(sizeof(DrawChunk))), chunks};
  PiecesFn by_chunk = [](const void* p, const Run& run) { return int32_t(run.step->count(args_of<DrawArgs>(p).a.logits) * args_of<DrawArgs>(p).chunks); };
  b.add(&args, sizeof args, by_chunk, [](const void* p, const Run& run, int32_t piece) {
    const auto& args = args_of<DrawArgs>(p);
    int64_t row = piece / args.chunks, c = piece % args.chunks, first = c * LOGIT_CHUNK;
    scan_chunk(draw_chunks(args, run, row)[c], args.a.logits.f32(row) + first, smaller(args.a.logits.columns() - first, LOGIT_CHUNK), first);
  });
  b.add(&args, sizeof args, by_chunk, [](const void* p, const Run& run, int32_t piece) {
    const auto& args = args_of<DrawArgs>(p);
    int64_t row = piece / args.chunks, c = piece % args.chunks;
    Draw d = draw_of(args, run, row);
    if (!d.finite || d.greedy()) return;
    if (d.listed()) {
      d.chunk[c].top.count = 0;
      top_scan(d.chunk[c].top, int32_t(d.top_k), d.logits + d.first(c), d.size(c), d.first(c));
    } else if (d.top_k == 0) {
      d.fill_sums(c);
    }
  });
  b.add(&args, sizeof args, [](const void* p, const Run& run) { return run.step->count(args_of<DrawArgs>(p).a.logits); },
        [](const void* p, const Run& run, int32_t row) {
          const auto& args = args_of<DrawArgs>(p);
          Draw d = draw_of(args, run, row);
          int32_t id = !d.finite ? 0 : d.greedy() ? d.argmax : d.listed() ? draw_from_lists(d, draw_word(run, row)) : draw_from_sums(d, draw_word(run, row));
          int32_t* result = result_of(run, row);
          result[BAO_RESULT_ID] = id;
          result[BAO_RESULT_FINITE] = d.finite;
          if (sampler_of(run, row)[BAO_SAMPLER_TOP_LOGPROBS] >= 0)
            store_f32(result, BAO_RESULT_LOGPROB, d.logits[id] - word_f32(result, BAO_RESULT_LOG_SUM));
        });
  b.add(&args, sizeof args, [](const void*, const Run&) -> int32_t { return 1; }, [](const void*, const Run& run, int32_t) { advance_sequences(run); });
}
