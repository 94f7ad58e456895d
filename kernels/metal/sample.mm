// What follows the logits: launches of sample.metal.
#include "encode.h"

namespace bao {
namespace {

#define SAME(name) static_assert(int(name) == int(BAO_##name), "params.h follows bao.h");
SAME(SAMPLER_TEMPERATURE) SAME(SAMPLER_TOP_K) SAME(SAMPLER_TOP_P) SAME(SAMPLER_MIN_P) SAME(SAMPLER_REPETITION) SAME(SAMPLER_PRESENCE)
SAME(SAMPLER_FREQUENCY) SAME(SAMPLER_SEED_LOW) SAME(SAMPLER_SEED_HIGH) SAME(SAMPLER_TOP_LOGPROBS) SAME(SAMPLER_FLAGS) SAME(SAMPLER_BIAS_START)
SAME(SAMPLER_BIAS_COUNT) SAME(SAMPLER_WORDS) SAME(SAMPLE_MASK) SAME(SAMPLE_HOLD) SAME(RESULT_ID) SAME(RESULT_FINITE)
SAME(RESULT_LOGPROB) SAME(RESULT_TOP_COUNT) SAME(RESULT_TOP_IDS) SAME(RESULT_TOP_LOGPROBS) SAME(RESULT_LOG_SUM) SAME(RESULT_WORDS)
#undef SAME

// Bytes that so many passes over the rows of logits read, about: what a launch costs.
double passes(const Tensor& logits, const Run& run, double count) { return count * run.bound(logits) * double(logits.columns()) * 4; }

// The slot that holds RESULT.
char* host_slot(const Run& run) { return run.step->host + run.slot * run.step->slot_bytes; }

void encode_process(const LogitsArgs& a, const Run& run) {
  run.launch("sample", "logits_process").out(0, a.logits).in(1, a.mask).params(LogitsParams{rows_of(a.logits), rows_of(a.mask)})
      .cost(passes(a.logits, run, 3), 0).groups(1, run.bound(a.logits), 1, 256);
}

void encode_logprobs(const SampleArgs& a, const Run& run) {
  Launch launch = run.launch("sample", "logprobs");
  launch.in(0, a.logits).out(AT_HOST, host_slot(run), run.step->slot_bytes).params(LogitsParams{rows_of(a.logits), Rows{}})
      .cost(passes(a.logits, run, 8), 0).groups(1, run.bound(a.logits), 1, launch.threads_for(a.logits.columns(), 1024));
}

constexpr int64_t chunk = 4096, most_candidates = 128;  // as in sample.metal
int64_t chunks_of(const Tensor& logits) { return logits.columns() <= chunk ? 0 : (logits.columns() + chunk - 1) / chunk; }

struct Draw {
  SampleArgs a;
  int64_t bests, candidates;
};

void encode_sample(const Draw& d, const Run& run) {
  const SampleArgs& a = d.a;
  const int64_t rows = run.bound(a.logits), chunks = chunks_of(a.logits), bests_bytes = rows * chunks * 8, candidates_bytes = rows * chunks * most_candidates * 4;
  if (rows <= 0) return;
  char *bests = chunks ? run.scratch + d.bests : nullptr, *candidates = chunks ? run.scratch + d.candidates : nullptr;
  const DrawParams p{rows_of(a.logits), int32_t(chunks)};
  if (chunks > 0) run.launch("sample", "candidates").in(0, a.logits).out(1, bests, bests_bytes).out(2, candidates, candidates_bytes).params(p)
      .cost(passes(a.logits, run, 4), 0).groups(chunks, rows, 1, 256);
  Launch launch = run.launch("sample", "draw");
  launch.in(0, a.logits).in(1, bests, bests_bytes).in(2, candidates, candidates_bytes).out(AT_HOST, host_slot(run), run.step->slot_bytes).params(p)
      .groups(1, rows, 1, launch.threads_for(a.logits.columns(), 1024));
  run.launch("sample", "advance").in(AT_HOST, host_slot(run), run.step->slot_bytes).out(AT_REGION, run.step->region, run.step->region_bytes).groups(1, 1, 1, 1);
}

}  // namespace

namespace metal {
void logits_process(Builder& b, const LogitsArgs& a) { stage<LogitsArgs, encode_process>(b, a); }
void logprobs(Builder& b, const SampleArgs& a) { stage<SampleArgs, encode_logprobs>(b, a); }
void sample(Builder& b, const SampleArgs& a) {
  const int64_t all = a.logits.d0 * chunks_of(a.logits), bests = b.reserve_scratch(all * 8);
  stage<Draw, encode_sample>(b, Draw{a, bests, b.reserve_scratch(all * most_candidates * 4)});
}
}  // namespace metal

}  // namespace bao
