// The peaks that benchmarks compare with: threads that only read memory, and threads that only multiply and add, in sums that the
// compiler cannot leave out. Uses its own threads and nothing of a device, so that it measures the machine and not our pool.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "../host.h"
#include "core.h"
#include "features.h"

namespace bao {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of the fastest of `passes` passes of work(thread), each begun by all threads together and over when the last one is done.
// prepare(thread) runs once before. The kept sum of the results is what the compiler must not drop.
template <typename Prepare, typename Work>
double fastest_pass(int32_t threads, int32_t passes, const Prepare& prepare, const Work& work) {
  std::atomic<int32_t> arrived{0};
  std::atomic<uint64_t> kept{0};
  auto meet = [&](int32_t round) {
    arrived.fetch_add(1);
    while (arrived.load() < threads * round) std::this_thread::yield();
  };
  double best = 1e30;
  auto run = [&](int32_t t) {
    prepare(t);
    for (int32_t pass = 0; pass < passes; pass++) {
      meet(2 * pass + 1);
      auto began = Clock::now();
      kept.fetch_add(work(t));
      meet(2 * pass + 2);
      if (t == 0) best = std::min(best, std::chrono::duration<double>(Clock::now() - began).count());
    }
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(threads));
  try {
    for (int32_t t = 1; t < threads; t++) others.emplace_back(run, t);
  } catch (...) {
    arrived.store(1 << 30);  // nobody waits for the missing ones
    for (auto& thread : others) thread.join();
    throw;
  }
  run(0);
  for (auto& thread : others) thread.join();
  return kept.load() != 0 ? best : 1e30;
}

bool valid_threads(const char* f, int32_t threads) {
  if (threads >= 1 && threads <= 256) return true;
  return fail(BAO_INVALID, 1, f, "threads is %d, expected 1 ... 256", threads), false;
}

// ---- memory

constexpr int64_t line_bytes = 128;

// Four independent sums keep more loads in flight than one chain of additions would.
uint64_t read_range(const uint64_t* from, int64_t words) {
  uint64_t sums[4] = {};
  for (int64_t i = 0; i < words; i += 16) {
    for (int j = 0; j < 4; j++) sums[j] += from[i + j] + from[i + 4 + j] + from[i + 8 + j] + from[i + 12 + j];
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

double bandwidth(int32_t threads, double bytes_given, int32_t passes) {
  const char* f = "bao_host_read_bandwidth";
  if (!valid_threads(f, threads)) return 0.0;
  if (!(bytes_given >= 1 << 20 && bytes_given <= 1e12)) return fail(BAO_INVALID, 2, f, "bytes is %.17g, expected 2^20 ... 10^12", bytes_given), 0.0;
  if (passes < 1 || passes > 1000) return fail(BAO_INVALID, 3, f, "passes is %d, expected 1 ... 1000", passes), 0.0;
  const int64_t bytes = static_cast<int64_t>(bytes_given) / line_bytes * line_bytes;
  struct Pages {
    int64_t bytes;
    void* address;
    ~Pages() { if (address) pages_free(address, bytes); }
  } pages{bytes, pages_allocate(bytes)};
  if (!pages.address) return fail(BAO_OUT_OF_MEMORY, 2, f, "no memory for %lld bytes", static_cast<long long>(bytes)), 0.0;
  uint64_t* memory = static_cast<uint64_t*>(pages.address);
  const int64_t lines = bytes / line_bytes;
  auto first = [&](int32_t t) { return lines * t / threads * (line_bytes / 8); };
  return double(bytes) / fastest_pass(threads, passes,
    // Written by the thread that reads it: its pages lie on its own memory node.
    [&](int32_t t) { std::fill(memory + first(t), memory + first(t + 1), uint64_t(t) + 1); },
    [&](int32_t t) { return read_range(memory + first(t), first(t + 1) - first(t)); });
}

// ---- arithmetic: chains of independent accumulators, enough of them to hide the latency of one instruction. x = x / 2 + 1 stays near 2,
// and the empty asm makes the compiler believe that a value changed, so that nothing is computed once for all chains or rounds.

constexpr int chains = 12;
constexpr int64_t rounds = 4'000'000;

struct Loop {
  uint64_t (*f32)();
  uint64_t (*int8)();
  int f32_lanes, int8_lanes;  // multiply-adds of one instruction
};

#if defined(__clang__)
#define BAO_CHAINS _Pragma("unroll") for (int c = 0; c < chains; c++)
#else
#define BAO_CHAINS _Pragma("GCC unroll 12") for (int c = 0; c < chains; c++)
#endif
#if defined(__x86_64__)
#define BAO_CHANGED(v) asm volatile("" : "+x"(v))
uint64_t base_f32() {
  __m128 sums[chains] = {}, half = _mm_set1_ps(0.5f), one = _mm_set1_ps(1.0f);
  BAO_CHAINS BAO_CHANGED(sums[c]);
  for (int64_t i = 0; i < rounds; i++) BAO_CHAINS sums[c] = _mm_add_ps(_mm_mul_ps(sums[c], half), one);
  float total = 0;
  for (auto& sum : sums) total += _mm_cvtss_f32(sum);
  return uint64_t(total);
}
uint64_t base_int8() {
  __m128i sums[chains] = {}, a = _mm_set1_epi8(1), b = _mm_set1_epi8(2), ones = _mm_set1_epi16(1);
  for (int64_t i = 0; i < rounds; i++) BAO_CHAINS {
    BAO_CHANGED(a);
    sums[c] = _mm_add_epi32(sums[c], _mm_madd_epi16(_mm_maddubs_epi16(a, b), ones));
  }
  uint64_t total = 0;
  for (auto& sum : sums) total += uint32_t(_mm_cvtsi128_si32(sum));
  return total;
}
__attribute__((target("avx2,fma"))) uint64_t avx2_f32() {
  __m256 sums[chains] = {}, half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
  BAO_CHAINS BAO_CHANGED(sums[c]);
  for (int64_t i = 0; i < rounds; i++) BAO_CHAINS sums[c] = _mm256_fmadd_ps(sums[c], half, one);
  float total = 0;
  for (auto& sum : sums) total += _mm_cvtss_f32(_mm256_castps256_ps128(sum));
  return uint64_t(total);
}
__attribute__((target("avx2,fma"))) uint64_t avx2_int8() {
  __m256i sums[chains] = {}, a = _mm256_set1_epi8(1), b = _mm256_set1_epi8(2), ones = _mm256_set1_epi16(1);
  for (int64_t i = 0; i < rounds; i++) BAO_CHAINS {
    BAO_CHANGED(a);
    sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(_mm256_maddubs_epi16(a, b), ones));
  }
  uint64_t total = 0;
  for (auto& sum : sums) total += uint32_t(_mm_cvtsi128_si32(_mm256_castsi256_si128(sum)));
  return total;
}
#if !defined(BAO_AVX512_EMULATED)
#define BAO_AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni")))
BAO_AVX512 uint64_t avx512_f32() {
  __m512 sums[chains] = {}, half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
  BAO_CHAINS BAO_CHANGED(sums[c]);
  for (int64_t i = 0; i < rounds; i++) BAO_CHAINS sums[c] = _mm512_fmadd_ps(sums[c], half, one);
  float total = 0;
  for (auto& sum : sums) total += _mm512_cvtss_f32(sum);
  return uint64_t(total);
}
BAO_AVX512 uint64_t avx512_int8() {
  __m512i sums[chains] = {}, a = _mm512_set1_epi8(1), b = _mm512_set1_epi8(2);
  for (int64_t i = 0; i < rounds; i++) BAO_CHAINS {
    BAO_CHANGED(a);
    sums[c] = _mm512_dpbusd_epi32(sums[c], a, b);
  }
  uint64_t total = 0;
  for (auto& sum : sums) total += uint32_t(_mm512_cvtsi512_si32(sum));
  return total;
}
#endif
Loop loop_of(int32_t isa) {
#if !defined(BAO_AVX512_EMULATED)
  if (isa == BAO_ISA_AVX512) return {avx512_f32, avx512_int8, 16, 64};
#endif
  if (isa == BAO_ISA_AVX2) return {avx2_f32, avx2_int8, 8, 32};
  return {base_f32, base_int8, 4, 16};
}
#elif defined(__aarch64__)
#define BAO_CHANGED(v) asm volatile("" : "+w"(v))
uint64_t neon_f32() {
  float32x4_t sums[chains] = {}, half = vdupq_n_f32(0.5f), one = vdupq_n_f32(1.0f);
  // The accumulator is a factor here too, so that the sum stays near 2.
  BAO_CHAINS BAO_CHANGED(sums[c]);
  for (int64_t i = 0; i < rounds; i++) BAO_CHAINS sums[c] = vfmaq_f32(one, sums[c], half);
  float total = 0;
  for (auto& sum : sums) total += vgetq_lane_f32(sum, 0);
  return uint64_t(total);
}
#if defined(__APPLE__)
#define BAO_DOTPROD
#else
#define BAO_DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#endif
BAO_DOTPROD uint64_t neon_int8() {
  int32x4_t sums[chains] = {};
  int8x16_t a = vdupq_n_s8(1), b = vdupq_n_s8(2);
  for (int64_t i = 0; i < rounds; i++) BAO_CHAINS {
    BAO_CHANGED(a);
    sums[c] = vdotq_s32(sums[c], a, b);
  }
  uint64_t total = 0;
  for (auto& sum : sums) total += uint32_t(vgetq_lane_s32(sum, 0));
  return total;
}
Loop loop_of(int32_t isa) { return {neon_f32, isa == BAO_ISA_NEON ? neon_int8 : nullptr, 4, 16}; }
#else
Loop loop_of(int32_t) { return {nullptr, nullptr, 0, 0}; }
#endif

double arithmetic(int32_t threads, int32_t isa, int32_t kind, int32_t passes) {
  const char* f = "bao_host_arithmetic";
  if (!valid_threads(f, threads)) return 0.0;
  if (isa == BAO_ISA_AUTO) isa = best_isa();
  if (isa < BAO_ISA_BASE || isa > BAO_ISA_NEON || !has_isa(isa)) return fail(BAO_UNSUPPORTED, 2, f, "instruction set %d is not one of this processor", isa), 0.0;
  if (kind != BAO_ARITHMETIC_F32 && kind != BAO_ARITHMETIC_INT8) return fail(BAO_INVALID, 3, f, "kind is %d, expected 0 or 1", kind), 0.0;
  if (passes < 1 || passes > 1000) return fail(BAO_INVALID, 4, f, "passes is %d, expected 1 ... 1000", passes), 0.0;
  const Loop loop = loop_of(isa);
  const auto work = kind == BAO_ARITHMETIC_F32 ? loop.f32 : loop.int8;
  if (!work) return fail(BAO_UNSUPPORTED, 3, f, "no such loop for this processor"), 0.0;
  const double lanes = kind == BAO_ARITHMETIC_F32 ? loop.f32_lanes : loop.int8_lanes;
  return 2.0 * lanes * chains * double(rounds) * threads / fastest_pass(threads, passes, [](int32_t) {}, [&](int32_t) { return work(); });
}

}  // namespace
}  // namespace bao

extern "C" double bao_host_read_bandwidth(int32_t threads, double bytes, int32_t passes) {
  using namespace bao;
  return guarded("bao_host_read_bandwidth", [&]() -> double { return bandwidth(threads, bytes, passes); });
}

extern "C" double bao_host_arithmetic(int32_t threads, int32_t isa, int32_t kind, int32_t passes) {
  using namespace bao;
  return guarded("bao_host_arithmetic", [&]() -> double { return arithmetic(threads, isa, kind, passes); });
}
