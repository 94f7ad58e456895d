// The emulated Metal objects, and what their files share. Compute only; every rule of the API that is broken ends in violation().
#pragma once
#import <Metal/Metal.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../executor/executor.h"

extern "C" {
NSString* emu_string(const char* text);
NSError* emu_error(const char* domain, NSInteger code, const char* text);
}

namespace emu {

constexpr NSUInteger page_bytes = 16384;  // of Apple silicon, not of this machine

long setting(const char* name, long otherwise);  // METAL_EMULATOR_<name>
// Prints, and ends the process unless METAL_EMULATOR_SOFT is set.
void violation(const char* format, ...) __attribute__((format(printf, 1, 2)));

// Shared by the queue's thread and the callers. Never destroyed: the thread outlives everything.
struct State {
  std::mutex lock;
  std::condition_variable changed;
  NSUInteger allocated = 0, peak = 0;
  std::atomic<uint64_t> dispatches{0}, buffers{0};  // that have run
  std::atomic<uint64_t> residency_requests{0};
  std::atomic<int64_t> resident{0};  // bytes of sets whose residency is requested
  struct { long n, code, operations; } failing{0, 0, 0};  // the command buffer that fails: see emu_fail_buffer
  std::string last;  // violation or fault
};
State& state();

}  // namespace emu

#define REQUIRE(condition, ...)    \
  do {                             \
    if (!(condition)) {            \
      emu::violation(__VA_ARGS__); \
      return;                      \
    }                              \
  } while (0)
#define REQUIRE_OR(value, condition, ...) \
  do {                                    \
    if (!(condition)) {                   \
      emu::violation(__VA_ARGS__);        \
      return value;                       \
    }                                     \
  } while (0)

@interface EmulatedBuffer : NSObject <MTLBuffer> {
 @public
  char* bytes;
  NSUInteger size;
  MTLResourceOptions options;
  size_t mapped;  // 0: memory of the caller's
  bool written_by_host;  // can be
  void (^deallocator)(void*, NSUInteger);
}
@property(nullable, copy) NSString* label;
@end

using ConstantValue = std::pair<int, std::string>;  // MTLDataType, bytes

@interface MTLFunctionConstantValues () {
 @public
  std::map<int, ConstantValue> values;
}
@end

@interface EmulatedLibrary : NSObject <MTLLibrary> {
 @public
  const emu::Library* library;
  bool checked;
}
// A compiled library, or nil with an error.
+ (nullable EmulatedLibrary*)open:(const char*)path error:(NSError* _Nullable* _Nullable)error;
// Translates and compiles MSL text, or finds what it became before.
+ (nullable EmulatedLibrary*)compile:(NSString*)source options:(nullable MTLCompileOptions*)options error:(NSError* _Nullable* _Nullable)error;
@end

@interface EmulatedFunction : NSObject <MTLFunction> {
 @public
  EmulatedLibrary* library;
  const emu::Kernel* kernel;
  std::map<int, ConstantValue> constants;
}
@property(nullable, copy) NSString* label;
@end

@interface EmulatedPipeline : NSObject <MTLComputePipelineState> {
 @public
  EmulatedFunction* function;
}
@end

@class EmulatedCommandBuffer;

namespace emu {
// An interval that a dispatch of a concurrent encoder touched since the last barrier.
struct Touched { uintptr_t low, high; bool written; const void* dispatch; };

// ---- watch.mm, for checked kernels: a host that writes to memory which a committed command buffer still reads.
struct Image {
  uintptr_t low;
  std::string bytes;  // as of the commit, with what the GPU has written since
};
struct Watch {
  std::vector<Image> images;
  std::vector<std::pair<uintptr_t, uintptr_t>> read;  // by its kernels
};
bool host_can_write(const void* pages, size_t bytes);
void watch_commit(EmulatedCommandBuffer* commands);
void watch_dispatch(EmulatedCommandBuffer* commands, const Dispatch& dispatch);
void watch_write(const void* bytes, size_t size);  // by the GPU
void watch_end(EmulatedCommandBuffer* commands);
}

@class EmulatedQueue;

@interface EmulatedCommandBuffer : NSObject <MTLCommandBuffer> {
 @public
  std::vector<std::function<std::string()>> operations;  // each gives an error, or ""
  std::vector<id> kept;
  bool unretained, encoding;
  MTLCommandBufferStatus state;
  NSError* failure;
  std::vector<MTLCommandBufferHandler> handlers;
  double started, ended;
  std::vector<emu::Touched> touched;
  std::unique_ptr<emu::Watch> watch;
  std::shared_ptr<std::atomic<long>> slot;  // counts the queue's command buffers that have not ended
  EmulatedQueue* queue;
}
- (void)leave;
@property(nullable, copy) NSString* label;
@end

// What is added and removed takes effect with commit.
@interface EmulatedResidencySet : NSObject <MTLResidencySet> {
 @public
  std::set<id> added, committed;
  bool requested;
}
@property(nullable, readonly) NSString* label;
@end

@interface EmulatedEncoder : NSObject <MTLCommandEncoder> {
 @public
  EmulatedCommandBuffer* commands;
  bool ended;
}
@property(nullable, copy) NSString* label;
- (BOOL)live;
@end

namespace emu {
struct Binding {
  __unsafe_unretained EmulatedBuffer* buffer = nil;
  NSUInteger offset = 0;
  std::shared_ptr<std::string> bytes;
};
}

@interface EmulatedComputeEncoder : EmulatedEncoder <MTLComputeCommandEncoder> {
 @public
  EmulatedPipeline* pipeline;
  emu::Binding bindings[31];
  NSUInteger threadgroup_bytes[31];
  bool concurrent;
}
@end

@interface EmulatedBlitEncoder : EmulatedEncoder <MTLBlitCommandEncoder>
@end

@interface EmulatedQueue : NSObject <MTLCommandQueue> {
 @public
  std::shared_ptr<std::atomic<long>> open;
  NSUInteger most;
  std::vector<EmulatedResidencySet*> sets;
}
// What the command buffer uses must be in the queue's residency sets, when it has any.
- (void)checkResidency:(EmulatedCommandBuffer*)commands;
@property(nullable, copy) NSString* label;
@end
