// Sampling against docs/sampling.md: known answers of Philox, masks, penalties, log-probabilities, and draws compared with a second
// implementation that sorts. No arguments.
#include <algorithm>

#include "../../kernels/common/sample_mass.h"
#include "harness.h"

using namespace harness;

namespace {

#define OK(call) Bench::ok(call, #call)

void integers() {
  context = "integers";
  const uint32_t f = 0xFFFFFFFFu;
  struct { uint32_t c[4], k[2], out[4]; } known[] = {
      {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
      {{f, f, f, f}, {f, f}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
      {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
  };
  for (auto& n : known) {
    bao::Philox p = bao::philox(n.c[0], n.c[1], n.c[2], n.c[3], n.k[0], n.k[1]);
    for (int i = 0; i < 4; i++) same(p.word[i], n.out[i], "Philox4x32-10");
  }
  same(bao::mass_of(0), 1 << 30, "mass of the largest logit");
  same(bao::mass_of(-21), 0, "mass far below");
  same(bao::mass_of(NAN), 0, "mass of NaN");
  same(bao::mass_of(-INFINITY), 0, "mass of -infinity");
  uint32_t last = 1u << 30;
  for (int i = 0; i < 21000; i++) {
    float delta = -0.001f * float(i);
    uint32_t m = bao::mass_of(delta);
    if (!expect(std::fabs(double(m) - std::exp(double(delta)) * 1073741824.0) < 24 && m <= last, "mass_of(" + std::to_string(delta) + ")")) break;
    last = m;
  }
  same(int64_t(bao::mass_share(1ull << 32, (1ull << 48) + 5)), (1ll << 48) + 5, "all of a mass");
  same(int64_t(bao::mass_share(0x80000000u, (1ull << 48) + 5)), (1ll << 47) + 2, "half of a mass");
}

struct Wish {
  float temperature = 1;
  int32_t top_k = 0;
  float top_p = 1, min_p = 0;
  uint32_t seed_low = 0, seed_high = 0;
};

// The same definition by sorting.
int32_t draw(const std::vector<float>& l, const Wish& w, uint32_t position) {
  int32_t n = int32_t(l.size());
  float max = -INFINITY;
  for (float x : l) max = std::max(max, x);
  float inv = 1.0f / w.temperature;
  std::vector<int32_t> ids(n);
  std::vector<uint32_t> mass(n);
  for (int32_t i = 0; i < n; i++) ids[i] = i, mass[i] = bao::mass_of((l[i] - max) * inv);
  if (w.top_k > 0 && w.top_k < n) {
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return l[a] > l[b]; });
    ids.resize(w.top_k);
    std::sort(ids.begin(), ids.end());
  }
  if (w.top_p < 1) {
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return mass[a] > mass[b]; });
    uint64_t total = 0, reached = 0;
    for (int32_t i : ids) total += mass[i];
    unsigned __int128 target = (unsigned __int128)(uint64_t(double(w.top_p) * 4294967296.0)) * total >> 32;
    if (target == 0) target = 1;
    size_t keep = 0;
    while (reached < target) reached += mass[ids[keep++]];
    ids.resize(keep);
    std::sort(ids.begin(), ids.end());
  }
  if (w.min_p > 0) {
    uint32_t least = uint32_t(double(w.min_p) * 1073741824.0);
    ids.erase(std::remove_if(ids.begin(), ids.end(), [&](int32_t i) { return mass[i] < least; }), ids.end());
  }
  uint64_t total = 0;
  for (int32_t i : ids) total += mass[i];
  uint64_t r = uint64_t((unsigned __int128)bao::philox(position, 0, 0, 0, w.seed_low, w.seed_high).word[0] * total >> 32), reached = 0;
  for (int32_t i : ids) {
    reached += mass[i];
    if (reached > r) return i;
  }
  return -1;
}

void want(Bench& b, int32_t* sampler, const Wish& w) {
  b.put(sampler + BAO_SAMPLER_TEMPERATURE, w.temperature);
  sampler[BAO_SAMPLER_TOP_K] = w.top_k;
  b.put(sampler + BAO_SAMPLER_TOP_P, w.top_p);
  b.put(sampler + BAO_SAMPLER_MIN_P, w.min_p);
  sampler[BAO_SAMPLER_SEED_LOW] = int32_t(w.seed_low);
  sampler[BAO_SAMPLER_SEED_HIGH] = int32_t(w.seed_high);
}

void draws(Bench& b) {
  int32_t n = b.options.vocabulary, rows = b.options.max_rows;
  View logits = b.outputs(1, n);
  b.record([&](bao_handle s) { OK(bao_sample(s, logits.handle)); });
  uint32_t state = 1;
  auto random = [&] { return state = state * 1664525u + 1013904223u, state >> 8; };
  const float temperatures[] = {0.3f, 1, 2, 1e-6f, 50}, top_ps[] = {1, 0.9f, 0.5f, 1e-7f, 0.999999f}, min_ps[] = {0, 0.05f, 0.9f, 1};
  for (int round = 0; round < 40; round++) {
    int32_t first = int32_t(random() % 1000);
    b.fill(rows, first);
    std::vector<Wish> wishes;
    for (int32_t r = 0; r < rows; r++) {
      Wish w;
      w.temperature = temperatures[random() % 5];
      w.top_k = int32_t(random() % 3 ? random() % 12 : 0);
      w.top_p = top_ps[random() % 5];
      w.min_p = min_ps[random() % 4];
      w.seed_low = random(), w.seed_high = random();
      wishes.push_back(w);
      want(b, b.output(r), w);
      // Few distinct values, so that ties are common; some masked.
      for (int32_t i = 0; i < n; i++) logits.f32(r)[i] = random() % 16 == 0 ? -INFINITY : float(int(random() % 9)) - 4 + (round % 2 ? float(random() % 1000) * 1e-3f : 0);
      logits.f32(r)[random() % n] = -0.0f;
    }
    b.submit();
    for (int32_t r = 0; r < rows; r++) {
      int32_t expected = draw({logits.f32(r), logits.f32(r) + n}, wishes[r], uint32_t(first + r + 1));
      same(b.result(r)[BAO_RESULT_ID], expected, "drawn id, round " + std::to_string(round) + " row " + std::to_string(r));
      same(b.result(r)[BAO_RESULT_FINITE], 1, "finite");
    }
  }
}

void frequencies(Bench& b) {
  int32_t n = b.options.vocabulary, rows = b.options.max_rows, count[3] = {}, others = 0, drawn = 0;
  View logits = b.outputs(1, n);
  b.record([&](bao_handle s) { OK(bao_sample(s, logits.handle)); });
  for (int32_t round = 0; round < 250; round++) {
    b.fill(rows, round * rows);
    for (int32_t r = 0; r < rows; r++) {
      want(b, b.output(r), Wish{});
      for (int32_t i = 0; i < n; i++) logits.f32(r)[i] = -INFINITY;
      logits.f32(r)[3] = std::log(0.5f), logits.f32(r)[10] = std::log(0.25f), logits.f32(r)[n - 1] = std::log(0.25f);
    }
    b.submit();
    for (int32_t r = 0; r < rows; r++) {
      int32_t id = b.result(r)[BAO_RESULT_ID];
      drawn++;
      if (id == 3) count[0]++; else if (id == 10) count[1]++; else if (id == n - 1) count[2]++; else others++;
    }
  }
  same(others, 0, "masked ids are never drawn");
  near(float(count[0]) / float(drawn), 0.5, "share of the first of three", 0.02);
  near(float(count[1]) / float(drawn), 0.25, "share of the second of three", 0.02);
}

void odd_rows(Bench& b) {
  int32_t n = b.options.vocabulary;
  View logits = b.outputs(1, n);
  b.fill(5);
  for (int32_t r = 0; r < 5; r++) {
    int32_t* s = b.output(r);
    want(b, s, Wish{});
    for (int32_t i = 0; i < n; i++) logits.f32(r)[i] = r == 2 ? -INFINITY : float(i % 7);
  }
  logits.f32(0)[n - 1] = NAN, logits.f32(1)[5] = INFINITY;
  b.put(b.sampler(3) + BAO_SAMPLER_TEMPERATURE, 0);
  b.put(b.sampler(4) + BAO_SAMPLER_TEMPERATURE, 1e-45f);  // 1 / T overflows
  b.run([&](bao_handle s) { OK(bao_sample(s, logits.handle)); });
  const char* names[] = {"NaN", "+infinity", "-infinity only"};
  for (int32_t r = 0; r < 3; r++) same(b.result(r)[BAO_RESULT_FINITE], 0, names[r]), same(b.result(r)[BAO_RESULT_ID], 0, names[r]);
  for (int32_t r = 3; r < 5; r++) same(b.result(r)[BAO_RESULT_FINITE], 1, "finite"), same(b.result(r)[BAO_RESULT_ID], 6, "greedy: the first of equals");
}

void processing(Bench& b) {
  int32_t n = b.options.vocabulary;
  View logits = b.outputs(1, n), mask = b.outputs(1, (n + 31) / 32, BAO_I32);
  for (int32_t i = 0; i < n; i++) logits.f32(0)[i] = logits.f32(1)[i] = float(i == 4 ? 2 : i == 5 ? -2 : 0);
  b.fill(2);
  b.row(0, 0, 1, 3), b.row(1, 1, 1, 0);
  b.sequence(0, 3, -1, {4, 5, 4});
  b.sequence(1, 0, -1, {});
  int32_t* s = b.output(0);
  b.put(s + BAO_SAMPLER_REPETITION, 2), b.put(s + BAO_SAMPLER_PRESENCE, 0.5f), b.put(s + BAO_SAMPLER_FREQUENCY, 0.25f);
  s[BAO_SAMPLER_BIAS_COUNT] = 1;
  b.field(BAO_FIELD_BIAS)[0] = 5;
  b.put(b.field(BAO_FIELD_BIAS) + 1, 1);
  b.output(1)[BAO_SAMPLER_FLAGS] = BAO_SAMPLE_MASK | BAO_SAMPLE_HOLD;
  for (int32_t r = 0; r < 2; r++) b.sampler(r)[BAO_SAMPLER_TOP_LOGPROBS] = 2;
  mask.i32(1)[0] = 1 << 5, mask.i32(1)[1] = 1 << 3;  // ids 5 and 35; row 0 has no MASK flag
  b.run([&](bao_handle t) {
    OK(bao_logits_process(t, logits.handle, mask.handle));
    OK(bao_logprobs(t, logits.handle));
    OK(bao_sample(t, logits.handle));
  });
  near(logits.f32(0)[4], 0, "2 / 2 - 0.5 - 2 * 0.25");
  near(logits.f32(0)[5], -2.75, "(-2 + 1) * 2 - 0.5 - 0.25");
  near(logits.f32(0)[6], 0, "an id that is not recent");
  int32_t allowed = 0;
  for (int32_t i = 0; i < n; i++) allowed += logits.f32(1)[i] > -INFINITY;
  same(allowed, 2, "the mask leaves two ids");
  double sum = std::log(std::exp(-2.0) + 1);
  const int32_t* result = b.result(1);
  near(b.take(result + BAO_RESULT_LOG_SUM), sum, "log of the sum");
  same(result[BAO_RESULT_TOP_COUNT], 2, "top count");
  same(result[BAO_RESULT_TOP_IDS], 35, "most likely");
  same(result[BAO_RESULT_TOP_IDS + 1], 5, "second");
  near(b.take(result + BAO_RESULT_TOP_LOGPROBS + 1), -2 - sum, "its log-probability");
  same(result[BAO_RESULT_ID], 35, "greedy id");
  near(b.take(result + BAO_RESULT_LOGPROB), -sum, "log-probability of the drawn id");
}

// A decode loop over the device region: ids and positions of -1, history and length advanced by sample.
void advancing(Bench& b) {
  int32_t n = b.options.vocabulary;
  View x = b.rows(1, 1), logits = b.outputs(1, n);
  std::vector<float> table(n);
  for (int32_t i = 0; i < n; i++) table[i] = float(i);
  bao_handle w = b.matrix(table, n, 1);
  std::vector<float> column(n, 0.0f);
  column[7] = 1;
  bao_handle head = b.matrix(column, n, 1);
  View gathered = b.outputs(1, 1);
  b.record([&](bao_handle s) {
    OK(bao_embed(s, x.handle, w, 1));
    OK(bao_gather_rows(s, gathered.handle, x.handle));
    OK(bao_matmul(s, logits.handle, gathered.handle, head));
    OK(bao_logits_process(s, logits.handle, 0));
    OK(bao_sample(s, logits.handle));
  });
  auto go = [&](bool hold) {
    int32_t* s = b.output(0);
    if (!hold) s[BAO_SAMPLER_FLAGS] = 0;
    b.put(s + BAO_SAMPLER_PRESENCE, 100);
    b.submit();
    return b.result(0)[BAO_RESULT_ID];
  };
  b.fill(1);
  b.row(0, 3, 9, 0);
  b.sequence(3, 0, -1, {9});
  same(go(false), 7, "logit 7 is the id of the row");
  auto decode = [&](bool hold) {
    b.fill(1);
    b.row(0, 3, -1, -1);
    return go(hold);
  };
  same(decode(true), 0, "7 is recent now, and its logit is punished");
  near(x.f32()[0], 7, "the row's id came from the device region", 0);
  same(decode(true), 0, "HOLD did not advance");
  near(x.f32()[0], 7, "nor its id", 0);
  same(decode(false), 0, "the third id");
  same(decode(false), 1, "0 is recent too");
  near(x.f32()[0], 0, "the next id followed", 0);
}

}  // namespace

int main() {
  integers();
  for (Options options : every_device()) {
    context = name_of(options);
    std::printf("%s\n", name_of(options));
    for (int32_t vocabulary : {64, 1003}) {
      options.vocabulary = vocabulary;
      Bench b(options);
      draws(b);
      frequencies(b);
      odd_rows(b);
      processing(b);
      advancing(b);
    }
  }
  return report();
}
