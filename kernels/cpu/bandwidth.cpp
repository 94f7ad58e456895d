// The read peak that benchmarks compare with: threads that only read memory, in a sum that the compiler cannot leave out.
// Uses its own threads and nothing of a device, so that it measures the machine and not our pool.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "../host.h"
#include "core.h"

namespace bao {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int64_t line_bytes = 128;

// Four independent sums keep more loads in flight than one chain of additions would.
uint64_t read_range(const uint64_t* from, int64_t words) {
  uint64_t sums[4] = {};
  for (int64_t i = 0; i < words; i += 16) {
    for (int j = 0; j < 4; j++) sums[j] += from[i + j] + from[i + 4 + j] + from[i + 8 + j] + from[i + 12 + j];
  }
  return sums[0] + sums[1] + sums[2] + sums[3];
}

// Seconds of the fastest of `passes` passes, each begun by all threads together and over when the last one is done.
double fastest_pass(uint64_t* memory, int64_t words, int32_t threads, int32_t passes) {
  std::atomic<int32_t> arrived{0};
  std::atomic<uint64_t> kept{0};
  auto meet = [&](int32_t round) {
    arrived.fetch_add(1);
    while (arrived.load() < threads * round) std::this_thread::yield();
  };
  double best = 1e30;
  const int64_t lines = words / (line_bytes / 8);
  auto work = [&](int32_t t) {
    const int64_t first = lines * t / threads * (line_bytes / 8), end = lines * (t + 1) / threads * (line_bytes / 8);
    // Written by the thread that reads it: its pages lie on its own memory node.
    std::fill(memory + first, memory + end, uint64_t(t) + 1);
    for (int32_t pass = 0; pass < passes; pass++) {
      meet(2 * pass + 1);
      auto began = Clock::now();
      kept.fetch_add(read_range(memory + first, end - first));
      meet(2 * pass + 2);
      if (t == 0) best = std::min(best, std::chrono::duration<double>(Clock::now() - began).count());
    }
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(threads));
  try {
    for (int32_t t = 1; t < threads; t++) others.emplace_back(work, t);
  } catch (...) {
    arrived.store(1 << 30);  // nobody waits for the missing ones
    for (auto& thread : others) thread.join();
    throw;
  }
  work(0);
  for (auto& thread : others) thread.join();
  return kept.load() != 0 ? best : 1e30;
}

double bandwidth(int32_t threads, double bytes_given, int32_t passes) {
  const char* f = "bao_host_read_bandwidth";
  if (threads < 1 || threads > 256) return fail(BAO_INVALID, 1, f, "threads is %d, expected 1 ... 256", threads), 0.0;
  if (!(bytes_given >= 1 << 20 && bytes_given <= 1e12)) return fail(BAO_INVALID, 2, f, "bytes is %.17g, expected 2^20 ... 10^12", bytes_given), 0.0;
  if (passes < 1 || passes > 1000) return fail(BAO_INVALID, 3, f, "passes is %d, expected 1 ... 1000", passes), 0.0;
  const int64_t bytes = static_cast<int64_t>(bytes_given) / line_bytes * line_bytes;
  struct Pages {
    int64_t bytes;
    void* address;
    ~Pages() { if (address) pages_free(address, bytes); }
  } pages{bytes, pages_allocate(bytes)};
  if (!pages.address) return fail(BAO_OUT_OF_MEMORY, 2, f, "no memory for %lld bytes", static_cast<long long>(bytes)), 0.0;
  return double(bytes) / fastest_pass(static_cast<uint64_t*>(pages.address), bytes / 8, threads, passes);
}

}  // namespace
}  // namespace bao

extern "C" double bao_host_read_bandwidth(int32_t threads, double bytes, int32_t passes) {
  using namespace bao;
  return guarded("bao_host_read_bandwidth", [&]() -> double { return bandwidth(threads, bytes, passes); });
}
