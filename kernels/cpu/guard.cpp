// See guard.h. The handler runs on the faulting thread, so it takes no lock and allocates nothing.
#include "guard.h"

#include <atomic>
#include <csignal>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace bao {
namespace {

struct Range {
  std::atomic<uintptr_t> first{0}, end{0};  // first = 0: free. `end` is written before `first`
  std::atomic<bool> writable{false};
};
constexpr int ranges_held = 1024;
Range ranges[ranges_held];
std::atomic<int64_t> losses{0};
struct sigaction former;
uintptr_t page_bytes;

void on_bus_error(int, siginfo_t* info, void*) {
  uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Range& r : ranges) {
    uintptr_t first = r.first.load(std::memory_order_acquire);
    if (first == 0 || address < first || address >= r.end.load(std::memory_order_acquire)) continue;
    void* page = reinterpret_cast<void*>(address & ~(page_bytes - 1));
    int protection = r.writable.load(std::memory_order_relaxed) ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mmap(page, page_bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) break;
    losses.fetch_add(1, std::memory_order_release);
    return;
  }
  // Not ours: the fault happens again under whoever was there before.
  sigaction(SIGBUS, &former, nullptr);
}

void install() {
  static std::once_flag once;
  std::call_once(once, [] {
    page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    struct sigaction action {};
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &former);
  });
}

}  // namespace

bool guard_range(const void* address, int64_t bytes, bool writable) {
  static std::mutex lock;
  install();
  std::lock_guard<std::mutex> hold(lock);
  for (Range& r : ranges) {
    if (r.first.load(std::memory_order_relaxed) != 0) continue;
    r.writable.store(writable, std::memory_order_relaxed);
    r.end.store(reinterpret_cast<uintptr_t>(address) + static_cast<uintptr_t>(bytes), std::memory_order_release);
    r.first.store(reinterpret_cast<uintptr_t>(address), std::memory_order_release);
    return true;
  }
  return false;
}

void guard_release(const void* address) {
  for (Range& r : ranges) {
    uintptr_t expected = reinterpret_cast<uintptr_t>(address);
    if (r.first.compare_exchange_strong(expected, 0)) return;
  }
}

int64_t guard_losses() { return losses.load(std::memory_order_acquire); }

}  // namespace bao
