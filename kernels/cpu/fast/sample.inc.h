// What follows the logits: mask, bias and penalties, log-probabilities, the draw. docs/sampling.md is the definition, and every id is the
// reference's. A row of a quarter million logits is cut into chunks that threads share; what chunks found is combined in ascending order.

constexpr int64_t LOGIT_CHUNK = 16384;

BAO_INLINE float word_f32(const int32_t* words, int32_t index) {
  float value;
  __builtin_memcpy(&value, words + index, sizeof value);
  return value;
}
BAO_INLINE void store_f32(int32_t* words, int32_t index, float value) { __builtin_memcpy(words + index, &value, sizeof value); }
BAO_INLINE const int32_t* sampler_of(const Run& run, int64_t output) { return run.step->sampler + output * BAO_SAMPLER_WORDS; }
BAO_INLINE int32_t* result_of(const Run& run, int64_t output) { return run.step->result + output * BAO_RESULT_WORDS; }

// ---------------------------------------------------------------- mask, bias, penalties

void mask_span(float* logits, const uint32_t* words, int64_t n) {
  for (int64_t i = 0; i < n; i += 32) {
    uint32_t word = words[i / 32];
    int64_t count = smaller(32, n - i);
    if (word == 0xFFFFFFFFu) continue;
    for (int64_t j = 0; j < count; j++)
      if (!(word >> j & 1)) logits[i + j] = LOWEST;
  }
}

void adjust_row(float* logits, int64_t n, const int32_t* sampler, const StepRef& step, int32_t sequence) {
  for (int32_t i = 0; i < sampler[BAO_SAMPLER_BIAS_COUNT]; i++) {
    const int32_t* entry = step.bias + 2 * (int64_t(sampler[BAO_SAMPLER_BIAS_START]) + i);
    if (entry[0] >= 0 && entry[0] < n) logits[entry[0]] += word_f32(entry, 1);
  }
  const float repetition = word_f32(sampler, BAO_SAMPLER_REPETITION), presence = word_f32(sampler, BAO_SAMPLER_PRESENCE),
              frequency = word_f32(sampler, BAO_SAMPLER_FREQUENCY);
  if (repetition == 1.0f && presence == 0.0f && frequency == 0.0f) return;
  const int32_t* history = step.history + int64_t(sequence) * 64;
  const int32_t valid = int32_t(smaller(64, step.history_count[sequence]));
  for (int32_t i = 0; i < valid; i++) {
    const int32_t id = history[i];
    int32_t before = 0, count = 0;
    for (int32_t j = 0; j < valid; j++) {
      before += j < i && history[j] == id;
      count += history[j] == id;
    }
    if (before || id < 0 || id >= n) continue;  // each distinct id once
    float l = logits[id];
    if (repetition != 1.0f) l = l > 0.0f ? l / repetition : l * repetition;
    if (presence != 0.0f) l = l - presence;
    if (frequency != 0.0f) l = l - frequency * float(count);
    logits[id] = l;
  }
}

void record_logits_process(Builder& b, const LogitsArgs& a) {
  if (a.mask.present()) {
    b.add(&a, sizeof a,
          [](const void* p, const Run& run) {
            const auto& a = args_of<LogitsArgs>(p);
            return int32_t(run.step->count(a.logits) * piece_count(a.logits.columns(), LOGIT_CHUNK));
          },
          [](const void* p, const Run& run, int32_t piece) {
            const auto& a = args_of<LogitsArgs>(p);
            int64_t n = a.logits.columns(), chunks = piece_count(n, LOGIT_CHUNK), row = piece / chunks, first = piece % chunks * LOGIT_CHUNK;
            if (!(sampler_of(run, row)[BAO_SAMPLER_FLAGS] & BAO_SAMPLE_MASK)) return;
            mask_span(a.logits.f32(row) + first, reinterpret_cast<const uint32_t*>(a.mask.i32(row)) + first / 32, smaller(n - first, LOGIT_CHUNK));
          });
  }
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return run.step->count(args_of<LogitsArgs>(p).logits); },
        [](const void* p, const Run& run, int32_t row) {
          const auto& a = args_of<LogitsArgs>(p);
          adjust_row(a.logits.f32(row), a.logits.columns(), sampler_of(run, row), *run.step, run.step->row_sequence[run.step->output_row[row]]);
        });
}

// ---------------------------------------------------------------- the k largest

constexpr int32_t TOP_MAX = 128;
// Largest first, ties to the lower id, as long as values arrive in ascending id order. -infinity and NaN are never taken.
struct Top {
  int32_t count;
  int32_t id[TOP_MAX];
  float value[TOP_MAX];
};
BAO_INLINE float top_bar(const Top& t, int32_t k) { return t.count < k ? LOWEST : t.value[k - 1]; }
void top_insert(Top& t, int32_t k, float value, int32_t id) {
  if (!(value > top_bar(t, k))) return;
  int32_t at = t.count < k ? t.count++ : k - 1;
  for (; at > 0 && t.value[at - 1] < value; at--) {
    t.value[at] = t.value[at - 1];
    t.id[at] = t.id[at - 1];
  }
  t.value[at] = value;
  t.id[at] = id;
}
void top_scan(Top& t, int32_t k, const float* x, int64_t n, int64_t first_id) {
  vfor(n, [&](int64_t i, int64_t lanes) {
    vf v = vload_any(x + i, lanes);
    if (lanes < W) v = vselect(vbelow(0, lanes), v, vset1(LOWEST));
    for (uint32_t hits = vbits(vlt(vset1(top_bar(t, k)), v)); hits; hits &= hits - 1) {
      int64_t at = i + __builtin_ctz(hits);
      top_insert(t, k, x[at], int32_t(first_id + at));
    }
  });
}
BAO_INLINE void top_merge(Top& t, int32_t k, const Top& later) {
  for (int32_t i = 0; i < later.count; i++) top_insert(t, k, later.value[i], later.id[i]);
}

// ---------------------------------------------------------------- log-probabilities

struct LogprobChunk {
  float max, sum;
  Top top;
};
struct LogprobArgs { SampleArgs a; int64_t scratch, chunks; };
BAO_INLINE LogprobChunk* logprob_chunks(const LogprobArgs& args, const Run& run, int64_t row) {
  return reinterpret_cast<LogprobChunk*>(run.scratch + args.scratch) + row * args.chunks;
}
BAO_INLINE int32_t tops_wanted(const Run& run, int64_t row) { return int32_t(smaller(20, sampler_of(run, row)[BAO_SAMPLER_TOP_LOGPROBS])); }

void logprob_chunk(LogprobChunk& c, const float* x, int64_t n, int64_t first_id, int32_t wanted) {
  c.max = max_of(x, n);
  vf shift = vset1(finite_or_zero(c.max));
  c.sum = vsum_of(n, [&](int64_t i, int64_t lanes, vf acc) {
    vf e = vexp(vsub(vload_any(x + i, lanes), shift));
    return vadd(acc, lanes < W ? vselect(vbelow(0, lanes), e, vzero()) : e);
  });
  c.top.count = 0;
  if (wanted > 0) top_scan(c.top, wanted, x, n, first_id);
}

void logprob_row(int32_t* result, const LogprobChunk* chunk, int64_t chunks, int32_t wanted) {
  float max = LOWEST;
  for (int64_t c = 0; c < chunks; c++) max = chunk[c].max > max ? chunk[c].max : max;
  float log_sum = LOWEST;
  if (max != LOWEST) {
    double sum = 0.0;
    for (int64_t c = 0; c < chunks; c++) sum += double(chunk[c].sum) * double(scalar_exp(finite_or_zero(chunk[c].max) - max));
    log_sum = float(double(max) + __builtin_log(sum));
  }
  store_f32(result, BAO_RESULT_LOG_SUM, log_sum);
  Top top;
  top.count = 0;
  for (int64_t c = 0; c < chunks && wanted > 0; c++) top_merge(top, wanted, chunk[c].top);
  for (int32_t i = 0; i < top.count; i++) {
    result[BAO_RESULT_TOP_IDS + i] = top.id[i];
    store_f32(result, BAO_RESULT_TOP_LOGPROBS + i, top.value[i] - log_sum);
  }
  result[BAO_RESULT_TOP_COUNT] = top.count;
}

void record_logprobs(Builder& b, const SampleArgs& a) {
  int64_t chunks = piece_count(a.logits.columns(), LOGIT_CHUNK);
  LogprobArgs args{a, b.reserve_scratch(a.logits.d0 * chunks * int64_t(sizeof(LogprobChunk))), chunks};
  b.add(&args, sizeof args, [](const void* p, const Run& run) { return int32_t(run.step->count(args_of<LogprobArgs>(p).a.logits) * args_of<LogprobArgs>(p).chunks); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& args = args_of<LogprobArgs>(p);
          int64_t row = piece / args.chunks, c = piece % args.chunks, first = c * LOGIT_CHUNK;
          if (tops_wanted(run, row) < 0) return;
          logprob_chunk(logprob_chunks(args, run, row)[c], args.a.logits.f32(row) + first, smaller(args.a.logits.columns() - first, LOGIT_CHUNK), first,
                        tops_wanted(run, row));
        });
  b.add(&args, sizeof args, [](const void* p, const Run& run) { return run.step->count(args_of<LogprobArgs>(p).a.logits); },
        [](const void* p, const Run& run, int32_t row) {
          const auto& args = args_of<LogprobArgs>(p);
          if (tops_wanted(run, row) >= 0) logprob_row(result_of(run, row), logprob_chunks(args, run, row), args.chunks, tops_wanted(run, row));
        });
}
