// Mask, bias, penalties, log-probabilities and draws of every fast table against the plain reference: the same ids, to the last tie.
#include "ops_harness.h"

using namespace harness;

namespace {

void set_f32(std::vector<int32_t>& words, int at, float value) { std::memcpy(&words[size_t(at)], &value, 4); }
float get_f32(const std::vector<int32_t>& words, int at) {
  float value;
  std::memcpy(&value, &words[size_t(at)], 4);
  return value;
}

// Logits of many characters: smooth, flat, few distinct values, steep, mostly masked, with NaN or infinities.
void fill(float* x, int n, int kind) {
  for (int i = 0; i < n; i++) {
    switch (kind) {
      case 0: x[i] = normal(3.0f); break;
      case 1: x[i] = 1.25f; break;
      case 2: x[i] = float(pick(-3, 3)); break;
      case 3: x[i] = normal(40.0f); break;
      case 4: x[i] = pick(0, 9) ? -INFINITY : normal(2.0f); break;
      case 5: x[i] = -5.0f + 1e-4f * float(i % 97); break;
      case 6: x[i] = normal(0.01f) * (pick(0, 1) ? 0.0f : 1.0f); break;
      case 7: x[i] = -INFINITY; break;
      default: x[i] = normal(3.0f); break;
    }
  }
  if (kind == 8) x[pick(0, n - 1)] = NAN;
  if (kind == 9) x[pick(0, n - 1)] = INFINITY;
  if (kind == 10) x[pick(0, n - 1)] = 3e38f;
}

void draws(const NamedTable& t, int n, int rounds) {
  const float temperatures[] = {0, 0.3f, 1, 1, 1, 4, 1e-39f, 1e30f, INFINITY, -1};
  const float top_ps[] = {1, 1, 0.95f, 0.5f, 0.999f, 1e-9f, 0};
  const float min_ps[] = {0, 0, 0.05f, 0.5f, 1, 1e-9f};
  for (int round = 0; round < rounds; round++) {
    const int rows = 6;
    Buffer logits(2, rows, 1, n);
    Step a(rows, rows, rows, 1);
    for (int r = 0; r < rows; r++) {
      fill(logits.row(r), n, pick(0, 10));
      a.output[size_t(r)] = r;
      a.sequence[size_t(r)] = r;
      a.position[size_t(r)] = pick(0, 1 << 20);
      int s = r * BAO_SAMPLER_WORDS;
      const int top_ks[] = {0, 0, 1, 3, 64, 127, 128, 129, 700, n - 1, n, n + 1};
      set_f32(a.sampler, s + BAO_SAMPLER_TEMPERATURE, temperatures[pick(0, 9)]);
      a.sampler[size_t(s + BAO_SAMPLER_TOP_K)] = top_ks[pick(0, 11)];
      set_f32(a.sampler, s + BAO_SAMPLER_TOP_P, top_ps[pick(0, 6)]);
      set_f32(a.sampler, s + BAO_SAMPLER_MIN_P, min_ps[pick(0, 5)]);
      a.sampler[size_t(s + BAO_SAMPLER_SEED_LOW)] = int32_t(rng()());
      a.sampler[size_t(s + BAO_SAMPLER_SEED_HIGH)] = int32_t(rng()());
      a.sampler[size_t(s + BAO_SAMPLER_TOP_LOGPROBS)] = pick(-1, 20);
      a.sampler[size_t(s + BAO_SAMPLER_FLAGS)] = pick(0, 3) ? 0 : BAO_SAMPLE_HOLD;
      a.count[size_t(r)] = pick(0, 200);
    }
    Step b = a;
    for (Step* step : {&a, &b}) {
      step->ref.row_sequence = step->sequence.data();
      step->ref.row_position = step->position.data();
      step->ref.output_row = step->output.data();
      step->ref.sampler = step->sampler.data();
      step->ref.result = step->result.data();
      step->ref.next_id = step->next.data();
      step->ref.length = step->length.data();
      step->ref.history = step->history.data();
      step->ref.history_count = step->count.data();
      const OpTable& ops = step == &a ? *t.ops : reference_ops;
      run_op(ops.logprobs, SampleArgs{logits.tensor()}, step->ref);
      run_op(ops.sample, SampleArgs{logits.tensor()}, step->ref);
    }
    const std::string name = std::string(t.name) + " n " + std::to_string(n) + " round " + std::to_string(round) + " row ";
    for (int r = 0; r < rows; r++) {
      int s = r * BAO_SAMPLER_WORDS;
      std::string text = name + std::to_string(r) + " temperature " + std::to_string(get_f32(a.sampler, s)) + " top_k " + std::to_string(a.sampler[size_t(s + 1)]) +
                         " top_p " + std::to_string(get_f32(a.sampler, s + 2)) + " min_p " + std::to_string(get_f32(a.sampler, s + 3));
      bool ids = true, values = true;
      // logit - LOG_SUM cancels: an error of an ulp of LOG_SUM remains.
      float size = std::fabs(get_f32(b.result, r * BAO_RESULT_WORDS + BAO_RESULT_LOG_SUM));
      float tolerance = 2e-6f + (std::isfinite(size) ? 3e-7f * size : 0);
      for (int i = 0; i < BAO_RESULT_WORDS; i++) {
        int at = r * BAO_RESULT_WORDS + i;
        bool is_float = i == BAO_RESULT_LOGPROB || i == BAO_RESULT_LOG_SUM || i >= BAO_RESULT_TOP_LOGPROBS;
        float x = get_f32(a.result, at), y = get_f32(b.result, at);
        if (!is_float) ids = ids && a.result[size_t(at)] == b.result[size_t(at)];
        else values = values && (a.result[size_t(at)] == b.result[size_t(at)] || (std::isnan(x) && std::isnan(y)) || std::fabs(x - y) <= tolerance + 1e-6f * std::fabs(y));
      }
      check(ids, text + ": ids " + std::to_string(a.result[size_t(r * BAO_RESULT_WORDS)]) + ", expected " + std::to_string(b.result[size_t(r * BAO_RESULT_WORDS)]));
      check(values, text + ": log-probabilities");
    }
    check(a.next == b.next && a.length == b.length && a.history == b.history && a.count == b.count, name + "sequences");
  }
}

void processing(const NamedTable& t, int n) {
  for (int round = 0; round < 20; round++) {
    const int rows = 4, words = (n + 31) / 32;
    Buffer logits(2, rows, 1, n), mask(2, rows, 1, words);
    Step s(rows, rows, rows, 1);
    for (int r = 0; r < rows; r++) {
      fill(logits.row(r), n, pick(0, 10));
      for (int i = 0; i < words; i++) mask.ids(r)[i] = pick(0, 2) == 0 ? -1 : pick(0, 1) ? 0 : int32_t(rng()());
      s.output[size_t(r)] = r;
      s.sequence[size_t(r)] = r;
      s.count[size_t(r)] = pick(0, 100);
      for (int i = 0; i < 64; i++) s.history[size_t(r * 64 + i)] = pick(0, 1) ? pick(0, n - 1) : pick(0, std::min(n - 1, 5));
      int at = r * BAO_SAMPLER_WORDS;
      const float repetitions[] = {1, 1.1f, 0.5f}, amounts[] = {0, 0.7f, -0.3f};
      set_f32(s.sampler, at + BAO_SAMPLER_REPETITION, repetitions[pick(0, 2)]);
      set_f32(s.sampler, at + BAO_SAMPLER_PRESENCE, amounts[pick(0, 2)]);
      set_f32(s.sampler, at + BAO_SAMPLER_FREQUENCY, amounts[pick(0, 2)]);
      s.sampler[size_t(at + BAO_SAMPLER_FLAGS)] = pick(0, 1) ? BAO_SAMPLE_MASK : 0;
      s.sampler[size_t(at + BAO_SAMPLER_BIAS_START)] = r * 3;
      s.sampler[size_t(at + BAO_SAMPLER_BIAS_COUNT)] = pick(0, 3);
    }
    for (int i = 0; i < 20; i++) {
      s.bias[size_t(2 * i)] = pick(-1, n);
      set_f32(s.bias, 2 * i + 1, normal(5.0f));
    }
    Buffer expected = logits;
    Tensor none{};
    run_op(t.ops->logits_process, LogitsArgs{logits.tensor(), round % 3 ? mask.tensor() : none}, s.ref);
    run_op(reference_ops.logits_process, LogitsArgs{expected.tensor(), round % 3 ? mask.tensor() : none}, s.ref);
    check_same(logits, expected, std::string(t.name) + " logits_process " + std::to_string(n));
  }
}

}  // namespace

int main(int argc, char**) {
  const int rounds = brief() ? 60 : 400;
  for (const NamedTable& t : tables()) {
    for (int n : {1, 7, 33, 1000, 16384, 40001}) processing(t, n);
    for (int n : {1, 2, 7, 33, 1000}) draws(t, n, rounds);
    draws(t, 16384 + 5, rounds / 13);
    draws(t, 70001, argc > 1 ? 200 : rounds / 50);
    if (argc > 1) draws(t, 262144, 20);
  }
  return report("draw");
}
