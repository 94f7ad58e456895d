// The emulated device and its buffers; settings from the environment; what tests ask.
#include "device.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

using namespace emu;

namespace emu {

State& state() {
  static auto* shared = new State();
  return *shared;
}

long setting(const char* name, long otherwise) {
  const char* value = getenv((std::string("METAL_EMULATOR_") + name).c_str());
  return value && *value ? atol(value) : otherwise;
}

void violation(const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  state().last = text;
  fprintf(stderr, "Metal violation: %s\n", text);
  if (!setting("SOFT", 0)) abort();
}

}  // namespace emu

@interface EmulatedDevice : NSObject <MTLDevice>
@end

static EmulatedDevice* the_device;

@implementation EmulatedBuffer
@synthesize label;
- (NSUInteger)allocatedSize { return size; }
- (id<MTLDevice>)device { return the_device; }
- (NSUInteger)length { return size; }
- (MTLStorageMode)storageMode { return (MTLStorageMode)(options >> MTLResourceStorageModeShift & 15); }
- (void*)contents {
  REQUIRE_OR(nullptr, self.storageMode != MTLStorageModePrivate, "contents of a private buffer");
  return bytes;
}
- (void)didModifyRange:(NSRange)range { violation("didModifyRange: on a buffer that is not managed"); }
- (void)dealloc {
  if (mapped) munmap(bytes, mapped);
  else if (deallocator) deallocator(bytes, size);
  std::lock_guard<std::mutex> hold(state().lock);
  state().allocated -= size;
}
@end

@implementation MTLResidencySetDescriptor
@synthesize label, initialCapacity;
@end

@implementation EmulatedResidencySet
@synthesize label;
- (id<MTLDevice>)device { return the_device; }
- (NSUInteger)allocationCount { return added.size(); }
- (uint64_t)allocatedSize {
  uint64_t bytes = 0;
  for (id<MTLAllocation> a : committed) bytes += a.allocatedSize;
  return bytes;
}
- (BOOL)containsAllocation:(id<MTLAllocation>)allocation { return added.count(allocation) > 0; }
- (void)addAllocation:(id<MTLAllocation>)allocation {
  REQUIRE(allocation, "addAllocation: nil");
  REQUIRE(added.insert(allocation).second, "addAllocation: the set has it");
}
- (void)removeAllocation:(id<MTLAllocation>)allocation { REQUIRE(added.erase(allocation), "removeAllocation: the set does not have it"); }
- (void)removeAllAllocations { added.clear(); }
- (void)commit {
  if (requested) state().resident -= (int64_t)self.allocatedSize;
  committed = added;
  if (requested) state().resident += (int64_t)self.allocatedSize;
}
- (void)requestResidency {
  REQUIRE(!committed.empty(), "requestResidency: nothing was committed");
  state().residency_requests++;
  if (!requested) state().resident += (int64_t)self.allocatedSize;
  requested = true;
}
- (void)endResidency {
  REQUIRE(requested, "endResidency without requestResidency");
  state().resident -= (int64_t)self.allocatedSize;
  requested = false;
}
- (void)dealloc {
  if (requested) violation("residency set released without endResidency");
}
@end

@implementation EmulatedDevice
- (NSString*)name { return @"Emulated Metal device"; }
- (uint64_t)registryID { return 1; }
- (uint64_t)recommendedMaxWorkingSetSize { return (uint64_t)setting("WORKING_SET", 5l << 30); }
- (MTLSize)maxThreadsPerThreadgroup { return MTLSizeMake(1024, 1024, 1024); }
- (BOOL)hasUnifiedMemory { return YES; }
- (NSUInteger)maxThreadgroupMemoryLength { return 32768; }
- (NSUInteger)maxBufferLength { return (NSUInteger)setting("MAX_BUFFER", 4l << 30); }
- (NSUInteger)currentAllocatedSize {
  std::lock_guard<std::mutex> hold(state().lock);
  return state().allocated;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  return family == MTLGPUFamilyApple7 || family == MTLGPUFamilyMac2 || family == MTLGPUFamilyCommon3 || family == MTLGPUFamilyMetal3;
}
- (id<MTLCommandQueue>)newCommandQueue { return [self newCommandQueueWithMaxCommandBufferCount:64]; }
- (id<MTLCommandQueue>)newCommandQueueWithMaxCommandBufferCount:(NSUInteger)most {
  REQUIRE_OR(nil, most > 0, "newCommandQueueWithMaxCommandBufferCount: 0");
  EmulatedQueue* queue = [EmulatedQueue new];
  queue->open = std::make_shared<std::atomic<long>>(0);
  queue->most = most;
  return queue;
}

// METAL_EMULATOR_RESIDENCY=0: a device that has none.
- (id<MTLResidencySet>)newResidencySetWithDescriptor:(MTLResidencySetDescriptor*)descriptor error:(NSError**)error {
  REQUIRE_OR(nil, descriptor, "newResidencySetWithDescriptor: nil");
  if (setting("RESIDENCY", 1)) return [EmulatedResidencySet new];
  if (error) *error = emu_error("MTLResidencySetErrorDomain", 1, "residency sets are not supported");
  return nil;
}

- (EmulatedBuffer*)bufferOf:(NSUInteger)length options:(MTLResourceOptions)options {
  EmulatedBuffer* buffer = [EmulatedBuffer new];
  buffer->size = length;
  buffer->options = options;
  std::lock_guard<std::mutex> hold(state().lock);
  state().allocated += length;
  if (state().allocated > state().peak) state().peak = state().allocated;
  return buffer;
}

// Ends at an inaccessible page.
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  MTLStorageMode mode = (MTLStorageMode)(options >> MTLResourceStorageModeShift & 15);
  REQUIRE_OR(nil, length > 0, "newBufferWithLength: 0");
  REQUIRE_OR(nil, !(options & MTLResourceHazardTrackingModeUntracked), "untracked resources are not used here");
  REQUIRE_OR(nil, mode == MTLStorageModeShared || mode == MTLStorageModePrivate, "managed storage does not exist on Apple silicon");
  if (length > self.maxBufferLength) return nil;
  size_t mapped = ((length + 4095) & ~4095ul) + 4096;
  void* bytes = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (bytes == MAP_FAILED) return nil;
  mprotect((char*)bytes + mapped - 4096, 4096, PROT_NONE);
  EmulatedBuffer* buffer = [self bufferOf:length options:options];
  buffer->bytes = (char*)bytes;
  buffer->mapped = mapped;
  buffer->written_by_host = true;
  return buffer;
}

- (id<MTLBuffer>)newBufferWithBytes:(const void*)bytes length:(NSUInteger)length options:(MTLResourceOptions)options {
  REQUIRE_OR(nil, (options >> MTLResourceStorageModeShift & 15) != MTLStorageModePrivate, "newBufferWithBytes: private storage");
  EmulatedBuffer* buffer = (EmulatedBuffer*)[self newBufferWithLength:length options:options];
  if (buffer) memcpy(buffer->bytes, bytes, length);
  return buffer;
}

- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)bytes length:(NSUInteger)length options:(MTLResourceOptions)options deallocator:(void (^)(void*, NSUInteger))deallocator {
  REQUIRE_OR(nil, (uintptr_t)bytes % page_bytes == 0, "newBufferWithBytesNoCopy: pointer %p is not aligned to the %lu-byte page of Apple silicon", bytes, page_bytes);
  REQUIRE_OR(nil, length && length % page_bytes == 0, "newBufferWithBytesNoCopy: length %lu is not a multiple of %lu", length, page_bytes);
  REQUIRE_OR(nil, (options >> MTLResourceStorageModeShift & 15) == MTLStorageModeShared, "newBufferWithBytesNoCopy: storage must be shared");
  if (length > self.maxBufferLength) return nil;
  unsigned char resident;
  for (NSUInteger i = 0; i < length; i += 4096) {
    REQUIRE_OR(nil, mincore((char*)bytes + i, 1, &resident) == 0, "newBufferWithBytesNoCopy: page %lu of the range is not mapped", i / 4096);
  }
  EmulatedBuffer* buffer = [self bufferOf:length options:options];
  buffer->bytes = (char*)bytes;
  buffer->deallocator = [deallocator copy];
  buffer->written_by_host = host_can_write(bytes, length);
  return buffer;
}

- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error {
  return [EmulatedLibrary compile:source options:options error:error];
}
- (id<MTLLibrary>)newLibraryWithURL:(NSURL*)url error:(NSError**)error { return [EmulatedLibrary open:url.path.UTF8String error:error]; }
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError**)error {
  REQUIRE_OR(nil, function, "newComputePipelineState: nil function");
  EmulatedPipeline* pipeline = [EmulatedPipeline new];
  pipeline->function = (EmulatedFunction*)function;
  return pipeline;
}
@end

extern "C" {

id<MTLDevice> MTLCreateSystemDefaultDevice() {
  std::lock_guard<std::mutex> hold(state().lock);
  if (the_device) return the_device;
  the_device = [EmulatedDevice new];
  options.threads = (int)setting("THREADS", 2);
  options.random = setting("RANDOM", 0);
  options.seed = (uint64_t)setting("SEED", 1);
  options.layout = (int)setting("LAYOUT", 0);
  options.seconds = (double)setting("SECONDS", 120);
  state().failing = {setting("FAIL", 0), setting("FAIL_CODE", 1), setting("FAIL_AFTER", 0)};
  return the_device;
}

// ---- for tests. In environment variables: METAL_EMULATOR_FAIL=n, _FAIL_CODE, _FAIL_AFTER.

// The n-th command buffer from now (1: the next; 0: none) fails with a code of MTLCommandBufferError, after so many of its operations.
void emu_fail_buffer(long n, long code, long operations) {
  std::lock_guard<std::mutex> hold(state().lock);
  state().failing = {n, code, operations};
}
uint64_t emu_buffers() { return state().buffers; }
uint64_t emu_allocated() { return state().allocated; }
uint64_t emu_residency_requests() { return state().residency_requests; }
int64_t emu_resident() { return state().resident; }

const char* emu_last() { return state().last.c_str(); }
uint64_t emu_dispatches() { return state().dispatches; }
uint64_t emu_switches() { return switches; }
uint64_t emu_accesses() { return accesses; }
void emu_schedule(int random, long seed) {
  options.random = random;
  options.seed = (uint64_t)seed;
}
void emu_layout(int layout) { options.layout = layout; }
void emu_threads(int threads) { options.threads = threads; }

}  // extern "C"
