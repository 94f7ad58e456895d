// Reference of what follows the logits: mask, bias and penalties, log-probabilities, and the draw. docs/sampling.md is the definition.
#include <cstring>

#include "../../common/sample_mass.h"
#include "reference.h"

namespace bao::reference {
namespace {

float word_f32(const int32_t* words, int32_t index) {
  float value;
  std::memcpy(&value, words + index, sizeof value);
  return value;
}

void store_f32(int32_t* words, int32_t index, float value) { std::memcpy(words + index, &value, sizeof value); }

const int32_t* sampler_of(const Run& run, int32_t output) { return run.step->sampler + int64_t(output) * BAO_SAMPLER_WORDS; }

void logits_process_one(const LogitsArgs& a, const Run& run, int32_t r) {
  const StepRef& step = *run.step;
  const int32_t* sampler = sampler_of(run, r);
  float* logits = a.logits.f32(r);
  int64_t n = a.logits.columns();
  if (a.mask.present() && (sampler[BAO_SAMPLER_FLAGS] & BAO_SAMPLE_MASK)) {
    for (int64_t i = 0; i < n; i++) {
      if (!(uint32_t(a.mask.i32(r)[i / 32]) >> (i % 32) & 1)) logits[i] = -INFINITY;
    }
  }
  for (int32_t i = 0; i < sampler[BAO_SAMPLER_BIAS_COUNT]; i++) {
    const int32_t* entry = step.bias + 2 * (int64_t(sampler[BAO_SAMPLER_BIAS_START]) + i);
    if (entry[0] >= 0 && entry[0] < n) logits[entry[0]] += word_f32(entry, 1);
  }
  float repetition = word_f32(sampler, BAO_SAMPLER_REPETITION);
  float presence = word_f32(sampler, BAO_SAMPLER_PRESENCE), frequency = word_f32(sampler, BAO_SAMPLER_FREQUENCY);
  int32_t sequence = step.row_sequence[step.output_row[r]];
  const int32_t* history = step.history + int64_t(sequence) * 64;
  int32_t valid = step.history_count[sequence] < 64 ? step.history_count[sequence] : 64;  // the ring is used from its start
  for (int32_t i = 0; i < valid; i++) {
    int32_t id = history[i], count = 0, first = -1;
    for (int32_t j = 0; j < valid; j++) {
      if (history[j] != id) continue;
      if (first < 0) first = j;
      count++;
    }
    if (first != i || id < 0 || id >= n) continue;  // each distinct id once
    float l = logits[id];
    if (repetition != 1) l = l > 0 ? l / repetition : l * repetition;
    if (presence != 0) l = l - presence;
    if (frequency != 0) l = l - frequency * float(count);
    logits[id] = l;
  }
}

int32_t* result_of(const Run& run, int32_t output) { return run.step->result + int64_t(output) * BAO_RESULT_WORDS; }

void logprobs_one(const SampleArgs& a, const Run& run, int32_t r) {
  int32_t* result = result_of(run, r);
  int32_t wanted = sampler_of(run, r)[BAO_SAMPLER_TOP_LOGPROBS];
  const float* logits = a.logits.f32(r);
  int64_t n = a.logits.columns();
  if (wanted < 0) return;
  double max = -INFINITY, sum = 0;
  for (int64_t i = 0; i < n; i++) {
    if (logits[i] > max) max = logits[i];
  }
  for (int64_t i = 0; i < n; i++) sum += std::exp(double(logits[i]) - max);
  float log_sum = max == -INFINITY ? -INFINITY : float(max + std::log(sum));
  store_f32(result, BAO_RESULT_LOG_SUM, log_sum);
  int32_t count = 0;
  int64_t last = -1;
  for (; count < wanted && count < 20; count++) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++) {
      bool after = last < 0 || logits[i] < logits[last] || (logits[i] == logits[last] && i > last);
      if (after && logits[i] > -INFINITY && (best < 0 || logits[i] > logits[best])) best = i;
    }
    if (best < 0) break;
    result[BAO_RESULT_TOP_IDS + count] = int32_t(best);
    store_f32(result, BAO_RESULT_TOP_LOGPROBS + count, logits[best] - log_sum);
    last = best;
  }
  result[BAO_RESULT_TOP_COUNT] = count;
}

// Keeps what lies above `threshold`, and of what lies on it the first `ties` in ascending id order.
struct Cut {
  uint32_t threshold = 0;
  int64_t ties = INT64_MAX;
  bool keeps(uint32_t value) { return value > threshold || (value == threshold && ties-- > 0); }
};

struct Draw {
  const float* logits;
  int64_t n;
  float max, inv;
  Cut top_k, top_p;
  uint32_t min_mass = 0;

  uint32_t mass(int64_t id) const { return mass_of((logits[id] - max) * inv); }

  // Calls visit(id, mass) for each id that passes the cuts, in ascending order, until it says false.
  template <class F>
  void each(F&& visit) const {
    Cut k = top_k, p = top_p;
    for (int64_t id = 0; id < n; id++) {
      if (!k.keeps(order_key(logits[id]))) continue;
      uint32_t m = mass(id);
      if (p.keeps(m) && m >= min_mass && !visit(id, m)) return;
    }
  }

  uint64_t total() const {
    uint64_t sum = 0;
    each([&](int64_t, uint32_t m) { return sum += m, true; });
    return sum;
  }

  // The largest threshold for which reached(threshold) holds; it holds at 0 and is falling.
  template <class F>
  static uint32_t search(F&& reached) {
    uint32_t threshold = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
      if (reached(threshold | bit)) threshold |= bit;
    }
    return threshold;
  }

  void cut_top_k(int64_t k) {
    if (k <= 0 || k >= n) return;
    auto count = [&](uint32_t at_least) {
      int64_t found = 0;
      for (int64_t id = 0; id < n; id++) found += order_key(logits[id]) >= at_least;
      return found;
    };
    top_k.threshold = search([&](uint32_t t) { return count(t) >= k; });
    top_k.ties = k - count(top_k.threshold + 1);
  }

  void cut_top_p(float p) {
    if (!(p < 1)) return;
    uint64_t target = mass_share(mass_fraction(p), total());
    if (target == 0) target = 1;
    auto sum = [&](uint64_t at_least) {
      uint64_t found = 0;
      each([&](int64_t, uint32_t m) { return found += m >= at_least ? m : 0, true; });
      return found;
    };
    uint32_t threshold = search([&](uint32_t t) { return sum(t) >= target; });
    uint64_t above = sum(uint64_t(threshold) + 1);
    top_p.ties = threshold == 0 ? INT64_MAX : int64_t((target - above + threshold - 1) / threshold);
    top_p.threshold = threshold;
  }
};

struct Scan {
  float max = -INFINITY;
  int64_t argmax = 0;
  bool finite = false;  // no NaN, no +inf, and something above -inf
};

Scan scan(const float* logits, int64_t n) {
  Scan s;
  for (int64_t i = 0; i < n; i++) {
    if (std::isnan(logits[i]) || logits[i] == INFINITY) return Scan{};
    if (logits[i] > s.max) s.max = logits[i], s.argmax = i, s.finite = true;
  }
  return s;
}

void draw_one(const SampleArgs& a, const Run& run, int32_t r) {
  const int32_t* sampler = sampler_of(run, r);
  const float* logits = a.logits.f32(r);
  int64_t n = a.logits.columns(), id = 0;
  Scan s = scan(logits, n);
  float temperature = word_f32(sampler, BAO_SAMPLER_TEMPERATURE), inv = 1.0f / temperature;
  if (!s.finite) {
    id = 0;
  } else if (!(temperature > 0) || !std::isfinite(inv)) {
    id = s.argmax;
  } else {
    Draw d{logits, n, s.max, inv, {}, {}};
    d.cut_top_k(sampler[BAO_SAMPLER_TOP_K]);
    d.cut_top_p(word_f32(sampler, BAO_SAMPLER_TOP_P));
    float min_p = word_f32(sampler, BAO_SAMPLER_MIN_P);
    if (min_p > 0) d.min_mass = uint32_t(mass_fraction(min_p) >> 2);  // of 2^30
    uint32_t position = uint32_t(run.step->row_position[run.step->output_row[r]]) + 1;
    uint32_t u = philox(position, 0, 0, 0, uint32_t(sampler[BAO_SAMPLER_SEED_LOW]), uint32_t(sampler[BAO_SAMPLER_SEED_HIGH])).word[0];
    uint64_t target = mass_share(u, d.total()), reached = 0;
    d.each([&](int64_t i, uint32_t m) {
      id = i;
      reached += m;
      return reached <= target;
    });
  }
  int32_t* result = result_of(run, r);
  result[BAO_RESULT_ID] = int32_t(id);
  result[BAO_RESULT_FINITE] = s.finite;
  if (sampler[BAO_SAMPLER_TOP_LOGPROBS] >= 0) store_f32(result, BAO_RESULT_LOGPROB, logits[id] - word_f32(result, BAO_RESULT_LOG_SUM));
}

// One piece for all rows: two rows of one sequence must not advance it at the same time.
void advance(const void*, const Run& run, int32_t) {
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

}  // namespace

void logits_process(Builder& b, const LogitsArgs& a) { by_row<LogitsArgs, &LogitsArgs::logits, logits_process_one>(b, a); }
void logprobs(Builder& b, const SampleArgs& a) { by_row<SampleArgs, &SampleArgs::logits, logprobs_one>(b, a); }

void sample(Builder& b, const SampleArgs& a) {
  by_row<SampleArgs, &SampleArgs::logits, draw_one>(b, a);
  b.add(&a, sizeof a, [](const void*, const Run&) -> int32_t { return 1; }, advance);
}

}  // namespace bao::reference
