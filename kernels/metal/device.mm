// The Metal device: opening, what the library says of itself, command buffers and how they fail.
#include <cstdlib>

#include "encode.h"

namespace bao {

extern const OpTable metal_ops;

namespace {

// What is still true after a command buffer failed. Out of memory and out of time: this work was not done, and the next may be. Everything else (an
// address fault, a GPU that was taken out or that takes no more from this process) leaves a device that can be closed only.
int32_t status_of(NSError* error) {
  if (![error.domain isEqualToString:MTLCommandBufferErrorDomain]) return BAO_DEVICE;
  switch (error.code) {
    case MTLCommandBufferErrorOutOfMemory: return BAO_OUT_OF_MEMORY;
    case MTLCommandBufferErrorTimeout: return BAO_TIMEOUT;
    default: return BAO_DEVICE;
  }
}

// Milliseconds of estimated work in a command buffer of a prefill step. The screen waits for one that runs; a step is ended early between two.
double commit_milliseconds() {
  const char* given = std::getenv("BAO_METAL_COMMIT_MS");
  double value = given ? std::atof(given) : 0;
  return value > 0 ? std::min(value, 10000.0) : 50;
}

}  // namespace

MetalBackend::MetalBackend(id<MTLDevice> device) : library(device), device_(device) {}

MetalBackend::~MetalBackend() {
  @autoreleasepool {
    memory.residency.close();
    if (nothing) release(nothing, 256, Place::device);
    if (stop_word) release(stop_word, 256, Place::device);
    queue_ = nil;
    device_ = nil;
  }
}

int32_t MetalBackend::open(const char* f) {
  // A long prefill is hundreds of command buffers; at 64, which is the default, encoding would wait for the GPU.
  queue_ = [device_ newCommandQueueWithMaxCommandBufferCount:1024];
  commit_nanoseconds_ = commit_milliseconds() * 1e6;
  memory.residency.open(device_, queue_);
  nothing = allocate(256, Place::device);
  stop_word = allocate(256, Place::device);
  return queue_ && nothing && stop_word ? BAO_OK : fail(BAO_OUT_OF_MEMORY, 0, f, "the device gives no command queue or no memory");
}

void MetalBackend::commit(id<MTLCommandBuffer> commands, std::shared_ptr<Completion> completion) {
  {
    std::lock_guard<std::mutex> hold(lock_);
    completion->left++;
  }
  [commands addCompletedHandler:^(id<MTLCommandBuffer> done) {
    std::lock_guard<std::mutex> hold(lock_);
    if (done.status == MTLCommandBufferStatusError) {
      NSError* error = done.error;
      completion->failed(status_of(error), std::string("Metal: ") + (error ? error.localizedDescription.UTF8String : "a command buffer failed"));
    }
    completion->left--;
    completed_.notify_all();
  }];
  [commands commit];
}

void MetalBackend::committed_all(Completion& completion, int32_t status, const std::string& error) {
  std::lock_guard<std::mutex> hold(lock_);
  if (status != BAO_OK) completion.failed(status, error);
  completion.left--;
  completed_.notify_all();
}

int32_t MetalBackend::graph_made(Graph&, Stream&, const char* f) { return fail(BAO_UNSUPPORTED, 0, f, "this backend has no graphs"); }

// ---- the library

const char* backend_name() { return "metal"; }

int32_t backend_caps() { return BAO_CAP_HOST_MEMORY; }

int32_t backend_device_count() {
  @autoreleasepool {
    if (MTLCreateSystemDefaultDevice()) return 1;
    fail(BAO_UNSUPPORTED, 0, "bao_device_count", "this machine has no Metal device");
    return 0;
  }
}

int32_t backend_open(Device& device, int32_t, int32_t, int32_t isa, int32_t flags, const char* f) {
  @autoreleasepool {
    if (isa != BAO_ISA_AUTO) return fail(BAO_UNSUPPORTED, 3, f, "isa is %d, a Metal device takes BAO_ISA_AUTO only", isa);
    if (flags & BAO_OPEN_REFERENCE) return fail(BAO_UNSUPPORTED, 5, f, "the plain reference runs on the CPU");
    if (flags & BAO_OPEN_DETERMINISTIC) return fail(BAO_UNSUPPORTED, 5, f, "this backend is not batch-invariant yet");
    id<MTLDevice> metal = MTLCreateSystemDefaultDevice();
    if (![metal supportsFamily:MTLGPUFamilyApple7]) return fail(BAO_UNSUPPORTED, 1, f, "%s is no Apple silicon GPU (family Apple7 or later)", metal.name.UTF8String);
    auto backend = std::make_unique<MetalBackend>(metal);
    if (int32_t status = backend->open(f)) return status;
    device.isa = isa;
    device.threads = 1;
    device.ops = &metal_ops;
    std::string name;
    for (const char* c = metal.name.UTF8String; *c; c++) {
      if (*c >= ' ' && *c < 127 && *c != '"' && *c != '\\') name += *c;
    }
    static const char* const precisions[] = {"exact", "fast", "fast_int8", "fast_bf16"};
    device.info = "{\"name\":\"" + name + "\",\"backend\":\"metal\",\"isa\":\"auto\",\"threads\":1,\"precision\":\"" + precisions[device.precision] +
                  "\",\"reference\":false,\"memory\":" + std::to_string(backend->memory_total()) + "}";
    device.backend = std::move(backend);
    return BAO_OK;
  }
}

}  // namespace bao
