// The example host: automatic reference counting, one command buffer at a time. host.proof.ts plants bugs into this text.
#include "example.h"

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include <map>
#include <string>
#include <vector>

struct ex_buffer { id<MTLBuffer> buffer; ex_context* context; };
struct ex_context {
  id<MTLDevice> device;
  id<MTLCommandQueue> queue;
  id<MTLLibrary> library;
  id<MTLCommandBuffer> commands, last;
  id<MTLComputeCommandEncoder> encoder;
  id<MTLResidencySet> resident;  // holds every buffer
  std::vector<id<MTLComputePipelineState>> pipelines;
  std::map<std::string, int> by_name;
  bool requested;
};

static thread_local std::string error_text;

static int bad(NSString* text) {
  error_text = text.UTF8String ? text.UTF8String : "unknown error";
  return -1;
}

static ex_buffer* made(ex_context* c, id<MTLBuffer> buffer) {
  if (!buffer) return bad(@"the buffer could not be made"), nullptr;
  [c->resident addAllocation:buffer];
  return new ex_buffer{buffer, c};
}

extern "C" {

const char* ex_error(void) { return error_text.c_str(); }

ex_context* ex_open(const char* source) {
  @autoreleasepool {
    ex_context* c = new ex_context();
    c->device = MTLCreateSystemDefaultDevice();
    c->queue = [c->device newCommandQueue];
    MTLCompileOptions* options = [MTLCompileOptions new];
    options.languageVersion = MTLLanguageVersion3_1;
    options.fastMathEnabled = NO;
    NSError* error = nil;
    c->library = [c->device newLibraryWithSource:[NSString stringWithUTF8String:source] options:options error:&error];
    c->resident = [c->device newResidencySetWithDescriptor:[MTLResidencySetDescriptor new] error:&error];
    [c->queue addResidencySet:c->resident];
    if (c->library) return c;
    bad(error.localizedDescription);
    delete c;
    return nullptr;
  }
}

void ex_close(ex_context* c) {
  @autoreleasepool {
    ex_wait(c);
    if (c->requested) [c->resident endResidency];
    [c->queue removeResidencySet:c->resident];
    delete c;
  }
}

ex_buffer* ex_allocate(ex_context* c, uint64_t bytes) {
  @autoreleasepool { return made(c, [c->device newBufferWithLength:bytes options:MTLResourceStorageModeShared]); }
}

ex_buffer* ex_wrap(ex_context* c, void* pages, uint64_t bytes) {
  @autoreleasepool { return made(c, [c->device newBufferWithBytesNoCopy:pages length:bytes options:MTLResourceStorageModeShared deallocator:nil]); }
}

void* ex_contents(ex_buffer* b) { return b->buffer.contents; }

void ex_free(ex_buffer* b) {
  @autoreleasepool {
    [b->context->resident removeAllocation:b->buffer];
    [b->context->resident commit];
    delete b;
  }
}

int ex_pipeline(ex_context* c, const char* name, uint32_t flags, uint32_t count) {
  @autoreleasepool {
    std::string key = std::string(name) + "#" + std::to_string(flags);
    auto found = c->by_name.find(key);
    if (found != c->by_name.end()) return found->second;
    MTLFunctionConstantValues* values = [MTLFunctionConstantValues new];
    for (uint32_t i = 0; i < count; i++) {
      BOOL value = flags >> i & 1;
      [values setConstantValue:&value type:MTLDataTypeBool atIndex:i];
    }
    NSError* error = nil;
    id<MTLFunction> function = [c->library newFunctionWithName:[NSString stringWithUTF8String:name] constantValues:values error:&error];
    if (!function) return bad(error.localizedDescription);
    id<MTLComputePipelineState> pipeline = [c->device newComputePipelineStateWithFunction:function error:&error];
    if (!pipeline) return bad(error.localizedDescription);
    c->pipelines.push_back(pipeline);
    return c->by_name[key] = int(c->pipelines.size()) - 1;
  }
}

int ex_begin(ex_context* c) {
  @autoreleasepool {
    if (c->encoder) return bad(@"a pass is open");
    c->commands = [c->queue commandBuffer];
    c->encoder = [c->commands computeCommandEncoder];
    return c->encoder ? 0 : bad(@"no encoder");
  }
}

int ex_dispatch(ex_context* c, int index, const ex_operand* operands, int n, const void* params, uint32_t bytes, int at, uint32_t group_memory, const uint32_t* groups, const uint32_t* threads) {
  @autoreleasepool {
    if (!c->encoder) return bad(@"no pass is open");
    id<MTLComputePipelineState> pipeline = c->pipelines.at(size_t(index));
    MTLSize grid = MTLSizeMake(groups[0], groups[1], groups[2]), group = MTLSizeMake(threads[0], threads[1], threads[2]);
    if (group.width * group.height * group.depth > pipeline.maxTotalThreadsPerThreadgroup) return bad(@"too many threads in a threadgroup for this pipeline");
    [c->encoder setComputePipelineState:pipeline];
    for (int i = 0; i < n; i++) {
      if (operands[i].buffer) [c->encoder setBuffer:operands[i].buffer->buffer offset:operands[i].offset atIndex:NSUInteger(i)];
    }
    if (bytes) [c->encoder setBytes:params length:bytes atIndex:NSUInteger(at)];
    if (group_memory) [c->encoder setThreadgroupMemoryLength:group_memory atIndex:0];
    [c->encoder dispatchThreadgroups:grid threadsPerThreadgroup:group];
    return 0;
  }
}

int ex_end(ex_context* c, int wait) {
  @autoreleasepool {
    if (!c->encoder) return bad(@"no pass is open");
    [c->encoder endEncoding];
    c->encoder = nil;
    [c->resident commit];
    if (!c->requested) [c->resident requestResidency];
    c->requested = true;
    [c->commands commit];
    c->last = c->commands;
    c->commands = nil;
  }
  return wait ? ex_wait(c) : 0;
}

int ex_wait(ex_context* c) {
  @autoreleasepool {
    if (!c->last) return 0;
    [c->last waitUntilCompleted];
    int result = c->last.status == MTLCommandBufferStatusError ? bad(c->last.error.localizedDescription) : 0;
    c->last = nil;
    return result;
  }
}

}  // extern "C"
