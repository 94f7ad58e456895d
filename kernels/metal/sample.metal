// What follows the logits: mask, bias and penalties, log-probabilities, the draw. docs/sampling.md is the definition; decisions are made with integers,
// whose sums do not depend on order. A threadgroup an output row; each simdgroup owns a contiguous range of ids, so that ranks in ascending order
// of id are a sum over simdgroups and a walk inside one. One threadgroup is slow at reading many logits: of large vocabularies all look for
// candidates first.
#include "kernel.h"
#include "../common/sample_mass.h"

#define LISTED 1024
#define CHUNK 4096
#define MOST_CANDIDATES 128
#define NO_ID 0x7FFFFFFF

constant uint32_t ORDER_OF_MINUS_INFINITY = 0x007FFFFFu;
constant uint32_t ORDER_OF_INFINITY = 0xFF800000u;

struct Shared {
  atomic_uint low[256], high[256];  // sums by digit
  ulong totals[32];
  uint32_t keys[32];
  int32_t ids[32];
  float sums[32];
  int32_t list[LISTED];  // ids that a top-k has left
  ulong value;
  int32_t id;
};

// The threads of a row.
struct Group {
  threadgroup Shared *shared;
  int32_t tid, threads, lane, warp, warps;
};

#define GROUP_PARAMS                                                                                                                                            \
  uint2 at [[threadgroup_position_in_grid]], uint tid [[thread_index_in_threadgroup]], uint threads [[dispatch_threads_per_threadgroup]],                       \
      uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]], uint warps [[simdgroups_per_threadgroup]]
#define GROUP Group{&shared, int32_t(tid), int32_t(threads), int32_t(lane), int32_t(warp), int32_t(warps)}

inline float word(device const int32_t *words, int32_t at) { return as_type<float>(words[at]); }
inline device const int32_t *sampler_of(Step step, int32_t output) { return step.slot + step.layout->sampler + output * SAMPLER_WORDS; }

// ---- mask, bias, penalties

kernel void logits_process(device float *logits_ [[buffer(0)]], device const int32_t *mask_ [[buffer(1)]], constant LogitsParams &p [[buffer(24)]], STEP_PARAMS,
                           uint2 at [[threadgroup_position_in_grid]], uint tid_ [[thread_index_in_threadgroup]], uint threads_ [[dispatch_threads_per_threadgroup]]) {
  const Step step = STEP;
  const int32_t r = int32_t(at.y), n = p.logits.d1 * p.logits.d2, tid = int32_t(tid_), threads = int32_t(threads_);
  if (r >= step.count(p.logits)) return;
  device const int32_t *sampler = sampler_of(step, r);
  device float *logits = row_of(logits_, p.logits, r);
  if (p.mask.d0 != 0 && (sampler[SAMPLER_FLAGS] & SAMPLE_MASK) != 0) {
    device const int32_t *mask = row_of(mask_, p.mask, r);
    for (int32_t i = tid; i < n; i += threads) {
      if ((uint32_t(mask[i / 32]) >> (i % 32) & 1u) == 0) logits[i] = -INFINITY;
    }
  }
  threadgroup_barrier(mem_flags::mem_device);
  if (tid == 0) {
    for (int32_t i = 0; i < sampler[SAMPLER_BIAS_COUNT]; i++) {
      device const int32_t *entry = step.slot + step.layout->bias + 2 * (sampler[SAMPLER_BIAS_START] + i);
      if (entry[0] >= 0 && entry[0] < n) logits[entry[0]] += word(entry, 1);
    }
  }
  threadgroup_barrier(mem_flags::mem_device);
  const float repetition = word(sampler, SAMPLER_REPETITION), presence = word(sampler, SAMPLER_PRESENCE), frequency = word(sampler, SAMPLER_FREQUENCY);
  const int32_t sequence = step.sequence(step.output_row(r)), valid = min(step.region[step.layout->history_count + sequence], 64);
  device const int32_t *history = step.region + step.layout->history + sequence * 64;
  for (int32_t i = tid; i < valid; i += threads) {
    const int32_t id = history[i];
    int32_t count = 0, first = NO_ID;
    for (int32_t j = 0; j < valid; j++) {
      if (history[j] != id) continue;
      first = min(first, j);
      count++;
    }
    if (first != i || id < 0 || id >= n) continue;  // each distinct id once
    float l = logits[id];
    if (repetition != 1.0f) l = l > 0.0f ? l / repetition : l * repetition;
    if (presence != 0.0f) l = l - presence;
    if (frequency != 0.0f) l = l - rounded_product(frequency, float(count));
    logits[id] = l;
  }
}

// ---- sums and choices of a row's threads

inline ulong joined(uint2 v) { return ulong(v.y) << 32 | ulong(v.x); }
inline uint2 parted(ulong v) { return uint2(uint(v), uint(v >> 32)); }

inline ulong simd_total(ulong v) {
  for (ushort o = 16; o > 0; o >>= 1) v += joined(simd_shuffle_xor(parted(v), o));
  return v;
}

// The sum over the lanes before this one.
inline ulong simd_before(ulong v, int32_t lane) {
  ulong sum = v;
  for (ushort o = 1; o < 32; o <<= 1) {
    const ulong other = joined(simd_shuffle_up(parted(sum), o));
    if (lane >= int32_t(o)) sum += other;
  }
  return sum - v;
}

// The best candidate of all threads, for all of them.
inline Best group_best(Group g, Best best) {
  for (ushort o = 16; o > 0; o >>= 1) best = better(best, Best{simd_shuffle_xor(best.key, o), simd_shuffle_xor(best.id, o)});
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (g.lane == 0) {
    g.shared->keys[g.warp] = best.key;
    g.shared->ids[g.warp] = best.id;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int32_t w = 0; w < g.warps; w++) best = better(best, Best{g.shared->keys[w], g.shared->ids[w]});
  return best;
}

// Keeps what lies above the threshold, and of what lies on it the places up to `last`.
struct Cut {
  uint32_t threshold;
  int32_t last;
  bool keeps(uint32_t value, int32_t place) const { return value > threshold || (value == threshold && place <= last); }
};

// What is drawn from: places 0 ... count - 1 in ascending order of id, of the list or of all ids.
enum { VALUE_TIED_KEY, VALUE_KEPT, VALUE_TIED_MASS, VALUE_DRAWN };
struct Places {
  device const float *logits;
  device const int32_t *candidates;  // when `chosen`
  threadgroup const int32_t *list;   // when `listed`
  bool chosen, listed;
  int32_t count;
  float max, inverse;
  Cut top_k, top_p;
  uint32_t least;

  int32_t id(int32_t i) const { return listed ? list[i] : chosen ? candidates[i] : i; }
  uint32_t key(int32_t i) const { return order_of(logits[id(i)]); }
  uint32_t kept(int32_t i) const {
    if (!listed && !top_k.keeps(key(i), i)) return 0;
    const float distance = logits[id(i)] - max;
    return mass_of(distance * inverse);
  }
  uint32_t value(int32_t what, int32_t i) const {
    if (what == VALUE_TIED_KEY) return key(i) == top_k.threshold ? 1 : 0;
    const uint32_t mass = kept(i);
    if (what == VALUE_KEPT) return mass;
    if (what == VALUE_TIED_MASS) return mass == top_p.threshold ? 1 : 0;
    return top_p.keeps(mass, i) && mass >= least ? mass : 0;
  }
};

inline ulong group_total(Group g, thread const Places &p, int32_t what) {
  ulong sum = 0;
  for (int32_t i = g.tid; i < p.count; i += g.threads) sum += p.value(what, i);
  sum = simd_total(sum);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (g.lane == 0) g.shared->totals[g.warp] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  sum = 0;
  for (int32_t w = 0; w < g.warps; w++) sum += g.shared->totals[w];
  return sum;
}

// A simdgroup's range of places: whole multiples of 32, so that lanes read side by side.
struct Range { int32_t begin, end; };
inline Range range_of(Group g, int32_t n) {
  const int32_t per = (n + g.warps * 32 - 1) / (g.warps * 32) * 32, begin = min(g.warp * per, n);
  return Range{begin, min(begin + per, n)};
}

// The first place at which the running total of a value exceeds `target`; the count when none does.
inline int32_t first_above(Group g, thread const Places &p, int32_t what, ulong target) {
  const Range range = range_of(g, p.count);
  ulong sum = 0;
  for (int32_t i = range.begin + g.lane; i < range.end; i += 32) sum += p.value(what, i);
  sum = simd_total(sum);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (g.lane == 0) g.shared->totals[g.warp] = sum;
  if (g.tid == 0) g.shared->id = p.count;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ulong before = 0;
  for (int32_t w = 0; w < g.warp; w++) before += g.shared->totals[w];
  if (before <= target && before + sum > target) {
    for (int32_t first = range.begin; first < range.end; first += 32) {
      const int32_t i = first + g.lane;
      const ulong v = i < range.end ? p.value(what, i) : 0, until = before + simd_before(v, g.lane) + v;
      const int32_t found = simd_min(until > target ? i : NO_ID);
      if (found != NO_ID) {
        if (g.lane == 0) g.shared->id = found;
        break;
      }
      before += simd_total(v);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return g.shared->id;
}

// Sums of 64 bits in two atomics of 32: who makes the lower one wrap carries.
inline void add_to_digit(threadgroup Shared &s, uint32_t digit, uint32_t v) {
  const uint32_t before = atomic_fetch_add_explicit(&s.low[digit], v, memory_order_relaxed);
  if (before + v < before) atomic_fetch_add_explicit(&s.high[digit], 1u, memory_order_relaxed);
}
inline ulong digit_sum(threadgroup Shared &s, uint32_t digit) {
  return ulong(atomic_load_explicit(&s.high[digit], memory_order_relaxed)) << 32 | ulong(atomic_load_explicit(&s.low[digit], memory_order_relaxed));
}

// By keys, each place counting 1, or by kept masses, each counting itself: the largest threshold for which what lies on or above it reaches `target` (at least 1,
// at most the total), and the sum of what lies above it. By digits of 8 bits, most significant first.
struct Threshold { uint32_t value; ulong above; };
inline Threshold threshold_of(Group g, thread const Places &p, bool by_key, ulong target) {
  Threshold found{0, 0};
  for (uint32_t round = 0; round < 4; round++) {
    const uint32_t shift = 24 - 8 * round;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int32_t i = g.tid; i < 256; i += g.threads) {
      atomic_store_explicit(&g.shared->low[i], 0u, memory_order_relaxed);
      atomic_store_explicit(&g.shared->high[i], 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int32_t i = g.tid; i < p.count; i += g.threads) {
      const uint32_t key = by_key ? p.key(i) : p.kept(i), v = by_key ? 1 : key;
      if (v != 0 && (round == 0 || (key ^ found.value) >> (shift + 8) == 0)) add_to_digit(*g.shared, key >> shift & 255u, v);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (g.warp == 0) {
      // Each lane has 8 digits, lane 0 the largest.
      const uint32_t top = 255u - 8u * uint32_t(g.lane);
      ulong mine = 0;
      for (uint32_t d = 0; d < 8; d++) mine += digit_sum(*g.shared, top - d);
      ulong before = found.above + simd_before(mine, g.lane);
      if (before < target && before + mine >= target) {
        uint32_t digit = top;
        while (before + digit_sum(*g.shared, digit) < target) before += digit_sum(*g.shared, digit--);
        g.shared->id = int32_t(digit);
        g.shared->value = before;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    found.value |= uint32_t(g.shared->id) << shift;
    found.above = g.shared->value;
  }
  return found;
}

// The ids that the top-k cut keeps, ascending, into the list.
inline void make_list(Group g, thread const Places &p) {
  const Range range = range_of(g, p.count);
  int32_t found = 0;
  for (int32_t i = range.begin + g.lane; i < range.end; i += 32) found += p.top_k.keeps(p.key(i), i) ? 1 : 0;
  found = simd_sum(found);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (g.lane == 0) g.shared->ids[g.warp] = found;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  int32_t place = 0;
  for (int32_t w = 0; w < g.warp; w++) place += g.shared->ids[w];
  for (int32_t first = range.begin; first < range.end && found > 0; first += 32) {
    const int32_t i = first + g.lane, keep = i < range.end && p.top_k.keeps(p.key(i), i) ? 1 : 0, before = simd_prefix_exclusive_sum(keep);
    if (keep) g.shared->list[place + before] = p.id(i);
    place += simd_sum(keep);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
}

// ---- the draw

// 1 / temperature in f32, infinity for one that is not above 0. A denormal is divided by as the integer that its bits are, since GPUs may take it for 0.
inline float inverse_of(int32_t bits) {
  if (bits <= 0 || bits > 0x7F800000) return INFINITY;
  return bits < 0x00800000 ? 1.0f / float(bits) * 0x1p127f * 0x1p22f : 1.0f / as_type<float>(bits);
}

// The largest logit, NaN above all: one is enough.
inline Best best_of(Group g, device const float *logits, int32_t begin, int32_t end) {
  Best best{0, NO_ID};
  for (int32_t i = begin + g.tid; i < end; i += g.threads) {
    const uint32_t key = order_of(logits[i]);
    best = better(best, Best{key == 0 ? 0xFFFFFFFFu : key, i});
  }
  return group_best(g, best);
}
inline bool is_finite(Best best) { return best.key > ORDER_OF_MINUS_INFINITY && best.key < ORDER_OF_INFINITY; }

// Whether a row's draw takes its candidates from chunks of the vocabulary: the first k of all are among the first k of each.
inline bool takes_candidates(device const int32_t *sampler) {
  return sampler[SAMPLER_TOP_K] > 0 && sampler[SAMPLER_TOP_K] <= MOST_CANDIDATES && inverse_of(sampler[SAMPLER_TEMPERATURE]) < INFINITY;
}

// A threadgroup (chunk, row): the chunk's best, [row][chunk] of (key, id); then, for a draw with a small top-k, the ids that it keeps, ascending,
// [row][chunk * k ...]. Chunks but the last are larger than k.
kernel void candidates(device const float *logits_ [[buffer(0)]], device int32_t *bests [[buffer(1)]], device int32_t *ids [[buffer(2)]], constant DrawParams &p [[buffer(24)]],
                       STEP_PARAMS, GROUP_PARAMS) {
  threadgroup Shared shared;
  const Step step = STEP;
  const Group g = GROUP;
  const int32_t r = int32_t(at.y), chunk = int32_t(at.x), begin = chunk * CHUNK, end = min(p.logits.d1 * p.logits.d2, begin + CHUNK);
  if (r >= step.count(p.logits)) return;
  device const float *logits = row_of(logits_, p.logits, r);
  const Best best = best_of(g, logits, begin, end);
  if (tid == 0) {
    bests[2 * (r * p.chunks + chunk)] = int32_t(best.key);
    bests[2 * (r * p.chunks + chunk) + 1] = best.id;
  }
  device const int32_t *sampler = sampler_of(step, r);
  if (!takes_candidates(sampler)) return;
  const int32_t k = sampler[SAMPLER_TOP_K], kept = min(k, end - begin);
  Places places{logits + begin, ids, shared.list, false, false, end - begin, 0.0f, 0.0f, Cut{0, NO_ID}, Cut{0, NO_ID}, 0};
  if (kept < end - begin) {
    const Threshold t = threshold_of(g, places, true, ulong(k));
    places.top_k.threshold = t.value;
    places.top_k.last = first_above(g, places, VALUE_TIED_KEY, ulong(k) - t.above - 1);
  }
  make_list(g, places);
  for (int32_t i = g.tid; i < kept; i += g.threads) ids[r * p.chunks * MOST_CANDIDATES + chunk * k + i] = begin + shared.list[i];
}

// The place that is drawn: cuts, then a walk to a random point of what they leave.
inline int32_t drawn_id(Group g, thread Places &p, device const int32_t *sampler, uint32_t position) {
  const int32_t k = sampler[SAMPLER_TOP_K], n = p.count;
  if (k > 0 && k < n) {
    const Threshold t = threshold_of(g, p, true, ulong(k));
    p.top_k.threshold = t.value;
    p.top_k.last = first_above(g, p, VALUE_TIED_KEY, ulong(k) - t.above - 1);
    if (k <= LISTED) {
      make_list(g, p);
      p.listed = true;
      p.count = k;
    }
  }
  const float top_p = word(sampler, SAMPLER_TOP_P), min_p = word(sampler, SAMPLER_MIN_P);
  if (top_p < 1.0f) {
    const ulong target = max(ulong(1), ulong(mass_share(mass_fraction(top_p), group_total(g, p, VALUE_KEPT))));
    const Threshold t = threshold_of(g, p, false, target);
    p.top_p.threshold = t.value;
    if (t.value > 0) p.top_p.last = first_above(g, p, VALUE_TIED_MASS, (target - t.above + t.value - 1) / t.value - 1);
  }
  if (min_p > 0.0f) p.least = uint32_t(mass_fraction(min_p) >> 2);  // of 2^30
  const ulong total = group_total(g, p, VALUE_DRAWN);
  const uint32_t u = philox(position, 0, 0, 0, uint32_t(sampler[SAMPLER_SEED_LOW]), uint32_t(sampler[SAMPLER_SEED_HIGH])).word[0];
  return p.id(first_above(g, p, VALUE_DRAWN, mass_share(u, total)));
}

// bests, ids: of the candidates, when there are chunks.
[[max_total_threads_per_threadgroup(1024)]] kernel void draw(device const float *logits_ [[buffer(0)]], device const int32_t *bests [[buffer(1)]], device const int32_t *ids [[buffer(2)]],
                                                             constant DrawParams &p [[buffer(24)]], STEP_PARAMS, device int32_t *host [[buffer(29)]], GROUP_PARAMS) {
  threadgroup Shared shared;
  const Step step = STEP;
  const Group g = GROUP;
  const int32_t r = int32_t(at.y), n = p.logits.d1 * p.logits.d2;
  if (r >= step.count(p.logits)) return;
  device const int32_t *sampler = sampler_of(step, r);
  device const float *logits = row_of(logits_, p.logits, r);
  Best best{0, NO_ID};
  if (p.chunks == 0) {
    best = best_of(g, logits, 0, n);
  } else {
    for (int32_t i = r * p.chunks + g.tid; i < (r + 1) * p.chunks; i += g.threads) best = better(best, Best{uint32_t(bests[2 * i]), bests[2 * i + 1]});
    best = group_best(g, best);
  }
  const bool finite = is_finite(best);
  const float inverse = inverse_of(sampler[SAMPLER_TEMPERATURE]);
  int32_t id = finite ? best.id : 0;
  if (finite && inverse < INFINITY) {
    const bool chosen = p.chunks > 0 && takes_candidates(sampler);
    const int32_t k = sampler[SAMPLER_TOP_K], count = chosen ? (p.chunks - 1) * k + min(k, n - (p.chunks - 1) * CHUNK) : n;
    Places places{logits, ids + r * p.chunks * MOST_CANDIDATES, shared.list, chosen, false, count, logits[id], inverse, Cut{0, NO_ID}, Cut{0, NO_ID}, 0};
    id = drawn_id(g, places, sampler, uint32_t(step.position(step.output_row(r))) + 1);
  }
  if (tid != 0) return;
  device int32_t *result = host + step_layout.result + r * RESULT_WORDS;
  result[RESULT_ID] = id;
  result[RESULT_FINITE] = finite ? 1 : 0;
  if (sampler[SAMPLER_TOP_LOGPROBS] >= 0) result[RESULT_LOGPROB] = as_type<int32_t>(logits[id] - word(result, RESULT_LOG_SUM));
}

// One thread for all rows, in ascending order: two rows of one sequence must not advance it at the same time.
kernel void advance(constant StepLayout &step_layout [[buffer(25)]], device const int32_t *step_current [[buffer(26)]], device int32_t *region [[buffer(27)]],
                    device const int32_t *step_slot [[buffer(28)]], device const int32_t *host [[buffer(29)]]) {
  const Step step{&step_layout, step_current, region, step_slot};
  for (int32_t r = 0; r < step.outputs(); r++) {
    if ((sampler_of(step, r)[SAMPLER_FLAGS] & SAMPLE_HOLD) != 0) continue;
    const int32_t row = step.output_row(r), sequence = step.sequence(row), id = host[step_layout.result + r * RESULT_WORDS + RESULT_ID];
    device int32_t *count = region + step_layout.history_count + sequence;
    region[step_layout.next_id + sequence] = id;
    region[step_layout.length + sequence] = step.position(row) + 1;
    region[step_layout.history + sequence * 64 + *count % 64] = id;
    *count = *count + 1;
  }
}

// ---- log-probabilities

[[max_total_threads_per_threadgroup(1024)]] kernel void logprobs(device const float *logits_ [[buffer(0)]], constant LogitsParams &p [[buffer(24)]], STEP_PARAMS,
                                                                 device int32_t *host [[buffer(29)]], GROUP_PARAMS) {
  threadgroup Shared shared;
  const Step step = STEP;
  const Group g = GROUP;
  const int32_t r = int32_t(at.y), n = p.logits.d1 * p.logits.d2;
  if (r >= step.count(p.logits)) return;
  const int32_t wanted = min(sampler_of(step, r)[SAMPLER_TOP_LOGPROBS], 20);
  if (wanted < 0) return;
  device int32_t *result = host + step_layout.result + r * RESULT_WORDS;
  device const float *logits = row_of(logits_, p.logits, r);
  Best best{0, NO_ID};
  for (int32_t i = g.tid; i < n; i += g.threads) best = better(best, Best{order_of(logits[i]), i});
  best = group_best(g, best);
  float log_sum = -INFINITY;
  if (best.key > ORDER_OF_MINUS_INFINITY) {
    const float max = logits[best.id];
    float sum = 0.0f;
    for (int32_t i = g.tid; i < n; i += g.threads) sum += precise::exp(logits[i] - max);
    log_sum = max + precise::log(group_sum(sum, shared.sums, lane, warp, warps));
  }
  // The next alternative is the best one behind the last: a key below, or the same key with a higher id.
  int32_t count = 0;
  Best last{0xFFFFFFFFu, -1};
  for (; count < wanted; count++) {
    best = Best{0, NO_ID};
    for (int32_t i = g.tid; i < n; i += g.threads) {
      const uint32_t key = order_of(logits[i]);
      if (key > ORDER_OF_MINUS_INFINITY && (key < last.key || (key == last.key && i > last.id))) best = better(best, Best{key, i});
    }
    best = group_best(g, best);
    if (best.key == 0) break;
    if (tid == 0) {
      result[RESULT_TOP_IDS + count] = best.id;
      result[RESULT_TOP_LOGPROBS + count] = as_type<int32_t>(logits[best.id] - log_sum);
    }
    last = best;
  }
  if (tid == 0) {
    result[RESULT_LOG_SUM] = as_type<int32_t>(log_sum);
    result[RESULT_TOP_COUNT] = count;
  }
}
