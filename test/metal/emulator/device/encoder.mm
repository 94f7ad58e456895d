// Encoders: what is bound, the rules of binding and dispatching, and each dispatch as an operation of its command buffer.
#include <string.h>

#include "device.h"

using namespace emu;

@implementation EmulatedEncoder
@synthesize label;
- (BOOL)live {
  REQUIRE_OR(NO, !ended, "encoder used after endEncoding");
  return YES;
}
- (void)endEncoding {
  REQUIRE(!ended, "endEncoding twice");
  ended = true;
  commands->encoding = false;
}
- (void)pushDebugGroup:(NSString*)name {
}
- (void)popDebugGroup {
}
- (void)dealloc {
  if (!ended) violation("command encoder released without endEncoding");
}
@end

namespace {

struct Use { int index; bool writable; };

// A dispatch of a concurrent encoder must not touch what an earlier one wrote, nor write what one touched, without a barrier between.
std::string check_hazards(const Dispatch& d, std::vector<Touched>& touched) {
  for (const Range& r : d.ranges) {
    for (const Touched& t : touched) {
      bool written = r.write_low < t.high && t.low < r.write_high, read = r.read_low < t.high && t.low < r.read_high;
      if (t.dispatch == &d || !(written || (read && t.written))) continue;
      return std::string("kernel ") + d.kernel->name + " (concurrent encoder): buffer " + std::to_string(r.index) + " overlaps what an earlier dispatch touched; a memoryBarrier is missing";
    }
  }
  for (const Range& r : d.ranges) {
    if (r.read_low < r.read_high) touched.push_back({r.read_low, r.read_high, false, &d});
    if (r.write_low < r.write_high) touched.push_back({r.write_low, r.write_high, true, &d});
  }
  return "";
}

}  // namespace

@implementation EmulatedComputeEncoder
- (void)setComputePipelineState:(id<MTLComputePipelineState>)given {
  if (![self live]) return;
  REQUIRE(given, "setComputePipelineState: nil");
  pipeline = (EmulatedPipeline*)given;
  commands->kept.push_back(pipeline);
}
- (void)setBuffer:(id<MTLBuffer>)given offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  if (![self live]) return;
  REQUIRE(index < 31, "setBuffer: index %lu above 30", index);
  EmulatedBuffer* buffer = (EmulatedBuffer*)given;
  REQUIRE(!buffer || offset < buffer->size, "setBuffer: offset %lu in a buffer of %lu bytes", offset, buffer->size);
  bindings[index] = Binding();
  bindings[index].buffer = buffer;
  bindings[index].offset = offset;
  if (buffer && !commands->unretained) commands->kept.push_back(buffer);
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
  if (![self live]) return;
  REQUIRE(index < 31 && bindings[index].buffer, "setBufferOffset: no buffer at index %lu", index);
  REQUIRE(offset < bindings[index].buffer->size, "setBufferOffset: %lu in a buffer of %lu bytes", offset, bindings[index].buffer->size);
  bindings[index].offset = offset;
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  if (![self live]) return;
  REQUIRE(index < 31, "setBytes: index %lu above 30", index);
  REQUIRE(length > 0 && bytes, "setBytes: no bytes");
  REQUIRE(length <= 4096, "setBytes: %lu bytes, at most 4096 are allowed", length);
  bindings[index] = Binding();
  bindings[index].bytes = std::make_shared<std::string>((const char*)bytes, length);
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  if (![self live]) return;
  REQUIRE(index < 31, "setThreadgroupMemoryLength: index");
  REQUIRE(length % 16 == 0, "setThreadgroupMemoryLength: %lu is not a multiple of 16", length);
  REQUIRE(length <= 32768, "setThreadgroupMemoryLength: %lu, the device has 32768", length);
  threadgroup_bytes[index] = length;
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)group {
  [self dispatch:{groups.width * group.width, groups.height * group.height, groups.depth * group.depth} group:group];
}
- (void)dispatchThreads:(MTLSize)grid threadsPerThreadgroup:(MTLSize)group {
  [self dispatch:grid group:group];
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  if (![self live]) return;
  REQUIRE(scope & MTLBarrierScopeBuffers, "memoryBarrier: scope");
  [self forget];
}
- (void)memoryBarrierWithResources:(const id<MTLResource>[])resources count:(NSUInteger)count {
  [self memoryBarrierWithScope:MTLBarrierScopeBuffers];
}
- (void)endEncoding {
  [self forget];
  [super endEncoding];
}
- (void)forget {
  EmulatedCommandBuffer* __unsafe_unretained owner = commands;
  commands->operations.push_back([owner] {
    owner->touched.clear();
    return std::string();
  });
}

// Checks one argument of the kernel against what is bound; false after a violation.
- (BOOL)check:(const Argument&)argument of:(const char*)name {
  const Binding& b = bindings[argument.index];
  REQUIRE_OR(NO, b.buffer || b.bytes, "%s: nothing bound at buffer index %d", name, argument.index);
  NSUInteger left = b.bytes ? b.bytes->size() : b.buffer->size - b.offset;
  REQUIRE_OR(NO, left >= argument.size, "%s: buffer %d has %lu bytes, the kernel's type needs %u", name, argument.index, left, argument.size);
  REQUIRE_OR(NO, !b.bytes || argument.constant, "%s: setBytes at index %d, but the kernel may write there", name, argument.index);
  uintptr_t address = b.bytes ? 0 : (uintptr_t)b.buffer->bytes + b.offset;
  REQUIRE_OR(NO, address % argument.align == 0, "%s: buffer %d offset %lu breaks the type's alignment of %u", name, argument.index, b.offset, argument.align);
  REQUIRE_OR(NO, b.offset % 4 == 0 || !argument.reference, "%s: buffer %d: a constant buffer's offset must be a multiple of 4", name, argument.index);
  return YES;
}

- (void)dispatch:(MTLSize)grid group:(MTLSize)group {
  if (![self live]) return;
  REQUIRE(pipeline, "dispatch without a pipeline state");
  const Kernel& kernel = *pipeline->function->kernel;
  const char* name = kernel.name;
  NSUInteger threads = group.width * group.height * group.depth, total = 0;
  REQUIRE(grid.width && grid.height && grid.depth, "%s: empty grid", name);
  REQUIRE(threads, "%s: empty threadgroup", name);
  REQUIRE(threads <= pipeline.maxTotalThreadsPerThreadgroup, "%s: %lu threads in a threadgroup, the pipeline allows %lu", name, threads, pipeline.maxTotalThreadsPerThreadgroup);
  for (NSUInteger bytes : threadgroup_bytes) total += bytes;
  REQUIRE(total <= 32768, "%s: %lu bytes of threadgroup memory, the device has 32768", name, total);
  auto d = std::make_shared<Dispatch>();
  d->kernel = &kernel;
  d->checked = pipeline->function->library->checked;
  std::vector<Use> uses;
  for (int i = 0; i < kernel.argument_count; i++) {
    const Argument& argument = kernel.arguments[i];
    if (argument.kind == K_THREADGROUP) {
      REQUIRE(threadgroup_bytes[argument.index] > 0, "%s: no threadgroup memory length at index %d", name, argument.index);
      d->threadgroup_bytes[argument.index] = (uint32_t)threadgroup_bytes[argument.index];
    }
    if (argument.kind != K_BUFFER) continue;
    if (![self check:argument of:name]) return;
    uses.push_back({argument.index, !argument.constant});
  }
  const NSUInteger* sizes[2] = {&grid.width, &group.width};
  for (int i = 0; i < 3; i++) {
    d->grid[i] = (uint32_t)sizes[0][i];
    d->group[i] = (uint32_t)sizes[1][i];
  }
  commands->kept.push_back(pipeline->function);
  EmulatedFunction* __unsafe_unretained function = pipeline->function;
  EmulatedCommandBuffer* __unsafe_unretained owner = commands;
  std::vector<Binding> bound(bindings, bindings + 31);
  bool side_by_side = concurrent;
  commands->operations.push_back([d, uses, bound, function, owner, side_by_side]() -> std::string {
    for (const Use& use : uses) {
      const Binding& b = bound[(size_t)use.index];
      NSUInteger size = b.bytes ? b.bytes->size() : b.buffer.length - b.offset;  // the message: a deallocated buffer is seen
      char* bytes = b.bytes ? b.bytes->data() : b.buffer->bytes + b.offset;
      d->buffer[use.index] = bytes;
      d->ranges.push_back({(uintptr_t)bytes, (uintptr_t)bytes + size, use.writable, use.index});
      if (owner->watch && size <= 1 << 20) d->ranges.back().words.resize(size / 4 + 1);
    }
    const Library& library = *function->library->library;
    for (int i = 0; i < library.constant_count; i++) {
      auto value = function->constants.find(library.constants[i].index);
      if (value != function->constants.end()) memcpy(library.constants[i].value, value->second.second.data(), library.constants[i].size);
    }
    state().dispatches++;
    std::string error = run(*d);
    watch_dispatch(owner, *d);
    return error.empty() && d->checked && side_by_side ? check_hazards(*d, owner->touched) : error;
  });
}
@end

@implementation EmulatedBlitEncoder
- (void)copyFromBuffer:(id<MTLBuffer>)source sourceOffset:(NSUInteger)source_offset toBuffer:(id<MTLBuffer>)destination destinationOffset:(NSUInteger)offset size:(NSUInteger)size {
  if (![self live]) return;
  EmulatedBuffer *from = (EmulatedBuffer*)source, *to = (EmulatedBuffer*)destination;
  REQUIRE(from && to && source_offset + size <= from->size && offset + size <= to->size, "blit copy outside a buffer");
  REQUIRE(from != to || source_offset + size <= offset || offset + size <= source_offset, "blit copy overlaps itself");
  REQUIRE(size % 4 == 0 && source_offset % 4 == 0 && offset % 4 == 0, "blit copy: offsets and size must be multiples of 4 on macOS");
  commands->kept.push_back(from);
  commands->kept.push_back(to);
  char *source_bytes = from->bytes + source_offset, *bytes = to->bytes + offset;
  commands->operations.push_back([=] {
    memmove(bytes, source_bytes, size);
    watch_write(bytes, size);
    return std::string();
  });
}
- (void)fillBuffer:(id<MTLBuffer>)given range:(NSRange)range value:(uint8_t)value {
  if (![self live]) return;
  EmulatedBuffer* buffer = (EmulatedBuffer*)given;
  REQUIRE(buffer && range.location + range.length <= buffer->size, "fill outside the buffer");
  commands->kept.push_back(buffer);
  char* bytes = buffer->bytes + range.location;
  commands->operations.push_back([=] {
    memset(bytes, value, range.length);
    watch_write(bytes, range.length);
    return std::string();
  });
}
@end
