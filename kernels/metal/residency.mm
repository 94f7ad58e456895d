// Residency: what the GPU may use is kept in memory while the device works, and for a while after. Where the system has no residency sets (before macOS 15)
// nothing here does anything: Metal then makes buffers resident as command buffers use them.
#include <chrono>

#include "backend.h"

#if defined(__MAC_OS_X_VERSION_MAX_ALLOWED) && __MAC_OS_X_VERSION_MAX_ALLOWED < 150000
#define WITH_SET(statements)  // an SDK that does not know them
#else
#define WITH_SET(statements)                            \
  if (@available(macOS 15.0, *)) {                      \
    if (id<MTLResidencySet> set = set_) { statements; } \
  }
#endif

namespace bao {

namespace {
// The system lets go of what nobody has asked for lately, well within a second; a conversation pauses for longer than that.
constexpr auto renewal = std::chrono::milliseconds(500);
constexpr auto kept = std::chrono::minutes(3);
}  // namespace

void Residency::open(id<MTLDevice> device, id<MTLCommandQueue> queue) {
#if !defined(__MAC_OS_X_VERSION_MAX_ALLOWED) || __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
  if (@available(macOS 15.0, *)) {
    id<MTLResidencySet> set = [device newResidencySetWithDescriptor:[MTLResidencySetDescriptor new] error:nil];
    if (!set) return;
    [queue addResidencySet:set];
    queue_ = queue;
    set_ = set;
  }
#endif
}

void Residency::close() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    closing_ = true;
  }
  wake_.notify_all();
  if (renewer_.joinable()) renewer_.join();
  WITH_SET({
    let_go();
    [queue_ removeResidencySet:set];
  })
  set_ = queue_ = nil;
}

void Residency::add(id<MTLBuffer> buffer) {
  std::lock_guard<std::mutex> hold(lock_);
  WITH_SET([set addAllocation:buffer])
  changed_ = true;
}

void Residency::remove(id<MTLBuffer> buffer) {
  std::lock_guard<std::mutex> hold(lock_);
  WITH_SET([set removeAllocation:buffer]; [set commit])  // at once: the set would keep its memory
}

void Residency::request() {
  WITH_SET([set requestResidency])
  requested_ = true;
}

void Residency::let_go() {
  if (!requested_) return;
  WITH_SET([set endResidency])
  requested_ = false;
}

void Residency::use() {
  if (!set_) return;
  std::lock_guard<std::mutex> hold(lock_);
  used_ = std::chrono::steady_clock::now();
  if (changed_) {
    WITH_SET([set commit])
  }
  if (changed_ || !requested_) request();
  changed_ = false;
  if (!renewer_.joinable()) renewer_ = std::thread([this] { renew(); });
  wake_.notify_all();
}

// A thread of its own, because a caller that is idle calls nothing.
void Residency::renew() {
  std::unique_lock<std::mutex> hold(lock_);
  while (!closing_) {
    if (requested_) wake_.wait_for(hold, renewal, [&] { return closing_; });
    else wake_.wait(hold);
    if (closing_ || !requested_) continue;
    @autoreleasepool {
      if (std::chrono::steady_clock::now() - used_ < kept) request();
      else let_go();
    }
  }
}

}  // namespace bao
