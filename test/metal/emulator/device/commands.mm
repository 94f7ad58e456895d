// Command buffers and the one thread that runs them in order of their commits.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "device.h"

using namespace emu;

namespace {

// Never destroyed: the thread may wait here when the process ends.
std::deque<EmulatedCommandBuffer*>& committed() {
  static auto* queue = new std::deque<EmulatedCommandBuffer*>();
  return *queue;
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const char* text_of(long code) {
  switch (code) {
    case MTLCommandBufferErrorTimeout: return "Caused GPU Timeout Error";
    case MTLCommandBufferErrorPageFault: return "Caused GPU Address Fault Error";
    case MTLCommandBufferErrorAccessRevoked: return "Ignored (for causing prior/excessive GPU errors)";
    case MTLCommandBufferErrorNotPermitted: return "Insufficient Permission (to submit GPU work from background)";
    case MTLCommandBufferErrorOutOfMemory: return "Insufficient Memory";
    case MTLCommandBufferErrorDeviceRemoved: return "The device was removed";
    default: return "Internal Error";
  }
}

// How this command buffer is to fail, if a test wants that: its code, and after how many operations.
std::pair<long, long> planned_failure() {
  std::lock_guard<std::mutex> hold(state().lock);
  auto& f = state().failing;
  if (f.n == 0 || --f.n > 0) return {0, 0};
  // A process that lost the GPU does not get it back.
  if (f.code == MTLCommandBufferErrorAccessRevoked || f.code == MTLCommandBufferErrorDeviceRemoved) f.n = 1;
  return {f.code, f.operations};
}

void run_one(EmulatedCommandBuffer* commands) {
  if (long microseconds = setting("DELAY_US", 0)) usleep((useconds_t)microseconds);
  commands->started = now();
  std::string error;
  auto [code, operations] = planned_failure();
  for (size_t i = 0; i < commands->operations.size() && error.empty() && (!code || (long)i < operations); i++) error = commands->operations[i]();
  if (long microseconds = setting("END_US", 0)) usleep((useconds_t)microseconds);
  commands->ended = now();
  watch_end(commands);
  if (code) {
    commands->failure = emu_error("MTLCommandBufferErrorDomain", code, text_of(code));
  } else if (!error.empty()) {
    commands->failure = emu_error("MTLCommandBufferErrorDomain", MTLCommandBufferErrorInternal, error.c_str());
    fprintf(stderr, "GPU fault: %s\n", error.c_str());
  }
  commands->operations.clear();
  commands->kept.clear();
  commands->touched.clear();
  [commands leave];
  std::vector<MTLCommandBufferHandler> handlers;
  handlers.swap(commands->handlers);
  {
    std::lock_guard<std::mutex> hold(state().lock);
    state().buffers++;
    if (!error.empty()) state().last = error;
    commands->state = commands->failure ? MTLCommandBufferStatusError : MTLCommandBufferStatusCompleted;
  }
  for (auto& handler : handlers) handler(commands);
}

void run_all() {
  for (;;) {
    @autoreleasepool {
      EmulatedCommandBuffer* commands;
      {
        std::unique_lock<std::mutex> hold(state().lock);
        state().changed.wait(hold, [] { return !committed().empty(); });
        commands = committed().front();
        committed().pop_front();
      }
      run_one(commands);
      commands = nil;
      state().changed.notify_all();
    }
  }
}

}  // namespace

NSErrorDomain const MTLCommandBufferErrorDomain = @"MTLCommandBufferErrorDomain";

@implementation EmulatedCommandBuffer
@synthesize label;
- (void)leave {
  if (slot) --*slot;
  slot = nullptr;
  emu::state().changed.notify_all();
}
- (void)dealloc { [self leave]; }
- (MTLCommandBufferStatus)status {
  std::lock_guard<std::mutex> hold(emu::state().lock);
  return state;
}
- (NSError*)error { return failure; }
- (BOOL)retainedReferences { return !unretained; }
- (CFTimeInterval)GPUStartTime { return started; }
- (CFTimeInterval)GPUEndTime { return ended; }
- (BOOL)open {
  REQUIRE_OR(NO, state < MTLCommandBufferStatusCommitted, "encoder asked of a committed command buffer");
  REQUIRE_OR(NO, !encoding, "a second encoder while one is open");
  encoding = true;
  return YES;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  return [self computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  if (![self open]) return nil;
  EmulatedComputeEncoder* encoder = [EmulatedComputeEncoder new];
  encoder->commands = self;
  encoder->concurrent = type == MTLDispatchTypeConcurrent;
  return encoder;
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
  if (![self open]) return nil;
  EmulatedBlitEncoder* encoder = [EmulatedBlitEncoder new];
  encoder->commands = self;
  return encoder;
}
- (void)enqueue {
  REQUIRE(state == MTLCommandBufferStatusNotEnqueued, "enqueue twice");
  state = MTLCommandBufferStatusEnqueued;
}
- (void)commit {
  REQUIRE(state < MTLCommandBufferStatusCommitted, "commit twice");
  REQUIRE(!encoding, "commit with an encoder still open");
  [queue checkResidency:self];
  watch_commit(self);
  {
    std::lock_guard<std::mutex> hold(emu::state().lock);
    state = MTLCommandBufferStatusCommitted;
    committed().push_back(self);
    static bool running = false;
    if (!running) std::thread(run_all).detach();
    running = true;
  }
  emu::state().changed.notify_all();
}
- (void)waitUntilScheduled { REQUIRE(state >= MTLCommandBufferStatusCommitted, "wait before commit"); }
- (void)waitUntilCompleted {
  REQUIRE(state >= MTLCommandBufferStatusCommitted, "waitUntilCompleted before commit: it would wait for ever");
  std::unique_lock<std::mutex> hold(emu::state().lock);
  emu::state().changed.wait(hold, [&] { return state >= MTLCommandBufferStatusCompleted; });
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler {
  REQUIRE(state < MTLCommandBufferStatusCommitted, "addCompletedHandler: after commit");
  handlers.push_back([handler copy]);
}
@end

@implementation EmulatedQueue
@synthesize label;
- (void)addResidencySet:(id<MTLResidencySet>)set {
  REQUIRE(set, "addResidencySet: nil");
  sets.push_back((EmulatedResidencySet*)set);
}
- (void)removeResidencySet:(id<MTLResidencySet>)set {
  auto at = std::find(sets.begin(), sets.end(), set);
  REQUIRE(at != sets.end(), "removeResidencySet: the queue does not have that set");
  sets.erase(at);
}
- (void)checkResidency:(EmulatedCommandBuffer*)commands {
  if (sets.empty()) return;
  for (EmulatedResidencySet* set : sets) REQUIRE(set->added == set->committed, "commit of a command buffer while a residency set of its queue has changes that are not committed");
  for (id used : commands->kept) {
    if (![used isKindOfClass:[EmulatedBuffer class]]) continue;
    bool held = std::any_of(sets.begin(), sets.end(), [&](EmulatedResidencySet* set) { return set->committed.count(used) > 0; });
    REQUIRE(held, "a buffer of %lu bytes is used and in no residency set of the queue", ((EmulatedBuffer*)used)->size);
  }
}
// Waits while the queue's most are open, as the real one does.
- (id<MTLCommandBuffer>)commandBuffer {
  {
    std::unique_lock<std::mutex> hold(state().lock);
    bool room = state().changed.wait_for(hold, std::chrono::seconds(60), [&] { return *open < (long)most; });
    REQUIRE_OR(nil, room, "commandBuffer: %lu are open and none ends", most);
    ++*open;
  }
  EmulatedCommandBuffer* commands = [EmulatedCommandBuffer new];
  commands->slot = open;
  commands->queue = self;
  return commands;
}
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences {
  EmulatedCommandBuffer* commands = (EmulatedCommandBuffer*)[self commandBuffer];
  commands->unretained = true;
  return commands;
}
@end
