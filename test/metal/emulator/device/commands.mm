// Command buffers and the one thread that runs them in order of their commits.
#include <unistd.h>

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

void run_one(EmulatedCommandBuffer* commands) {
  if (long microseconds = setting("DELAY_US", 0)) usleep((useconds_t)microseconds);
  commands->started = now();
  std::string error;
  for (auto& operation : commands->operations) {
    error = operation();
    if (!error.empty()) break;
  }
  commands->ended = now();
  if (!error.empty()) {
    commands->failure = emu_error("MTLCommandBufferErrorDomain", 1, error.c_str());
    fprintf(stderr, "GPU fault: %s\n", error.c_str());
  }
  commands->operations.clear();
  commands->kept.clear();
  commands->touched.clear();
  std::vector<MTLCommandBufferHandler> handlers;
  handlers.swap(commands->handlers);
  {
    std::lock_guard<std::mutex> hold(state().lock);
    if (!error.empty()) state().last = error;
    commands->state = error.empty() ? MTLCommandBufferStatusCompleted : MTLCommandBufferStatusError;
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

@implementation EmulatedCommandBuffer
@synthesize label;
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
- (id<MTLCommandBuffer>)commandBuffer { return [EmulatedCommandBuffer new]; }
- (id<MTLCommandBuffer>)commandBufferWithUnretainedReferences {
  EmulatedCommandBuffer* commands = [EmulatedCommandBuffer new];
  commands->unretained = true;
  return commands;
}
@end
