// The Metal device behind the frontend: what device.mm, memory.mm, library.mm and the op files share.
// All memory is shared between host and GPU, so an address names it for both; what an encoder binds is found by address.
#pragma once
#import <Metal/Metal.h>

#include <condition_variable>
#include <map>

#include "../frontend/backend.h"
#include "params.h"

#if !__has_feature(objc_arc)
#error "compiled with automatic reference counting"
#endif

namespace bao {

// ---- library.mm: MSL texts (one per .metal file), compiled when a kernel of theirs is first used, and pipelines.
class Library {
 public:
  explicit Library(id<MTLDevice> device) : device_(device) {}
  // The pipeline of a kernel; dtype: the weight type that its text is compiled for, -1 for texts without one. nil with error() set.
  id<MTLComputePipelineState> pipeline(const char* module, const char* kernel, int32_t dtype);
  const std::string& error() const { return error_; }

 private:
  id<MTLLibrary> library(const char* module, int32_t dtype);
  id<MTLDevice> device_;
  std::map<std::pair<std::string, int32_t>, id<MTLLibrary>> libraries_;
  std::map<std::tuple<const char*, const char*, int32_t>, id<MTLComputePipelineState>> pipelines_;  // by address of the literals
  std::string error_;
};

// ---- memory.mm: which buffer holds an address.
struct Bound {
  id<MTLBuffer> buffer;
  int64_t offset;
};
class Memory {
 public:
  void add(const char* start, id<MTLBuffer> buffer) { buffers_[start] = buffer; }
  void remove(const char* start) { buffers_.erase(start); }
  // nil when no buffer holds all the bytes. Buffers may overlap.
  Bound find(const void* address, int64_t bytes) const;

 private:
  std::map<const char*, id<MTLBuffer>> buffers_;
};

// A committed submit, as its completion handler leaves it.
struct Completion {
  bool done = false;
  int32_t status = BAO_OK;
  std::string error;
};

class MetalBackend final : public Backend {
 public:
  explicit MetalBackend(id<MTLDevice> device);
  ~MetalBackend() override;
  int32_t open(const char* function);

  char* allocate(int64_t bytes, Place place) override;
  void release(char* memory, int64_t bytes, Place place) override;
  int64_t memory_total() override;
  int64_t memory_available() override;
  bool host_addressable(Place) override { return true; }
  int32_t write(char* to, const void* from, int64_t bytes, const char* function) override;
  int32_t read(void* to, const char* from, int64_t bytes, const char* function) override;

  int64_t pool_alignment() override { return page_bytes; }
  char* pool_reserve(Pool& pool, int64_t stride, int32_t layers) override;
  int32_t pool_back(Pool& pool, int64_t before, int64_t after) override;
  void pool_release(Pool& pool) override;
  int32_t page_copy(Pool& pool, int32_t destination, int32_t source, int32_t tokens, const char* function) override;

  bool map_source(int64_t address, int64_t bytes, std::shared_ptr<const void>* keep, const char* function) override;
  int32_t weight_made(Weight& weight, const uint8_t* source, const char* function) override;
  int32_t weights_ready(double) override { return BAO_OK; }

  int32_t step_made(Step& step, const char* function) override;
  std::mutex& lock() override { return lock_; }
  bool full() override { return false; }
  int32_t submit(Stream& stream, Graph* graph, int32_t slot, bool continues, const int32_t committed[4], const char* function) override;
  void wait(Stream& stream, int32_t slot, double timeout_ms) override;
  void poll(Stream& stream, int32_t slot) override;
  void finish() override;
  void stop() override;
  int32_t graph_made(Graph& graph, Stream& stream, const char* function) override;

  Library library;
  Memory memory;
  char* nothing = nullptr;    // bound where an operand is absent
  char* stop_word = nullptr;  // 1 once the device is closing

  static constexpr int64_t page_bytes = 16384;  // of Apple silicon

 private:
  struct Pending { Stream* stream; int32_t slot; std::shared_ptr<Completion> completion; };
  id<MTLBuffer> window(const uint8_t* source, int64_t bytes);
  // Commits and lets `completion` tell of the end.
  void commit(id<MTLCommandBuffer> commands, std::shared_ptr<Completion> completion, bool last);
  void ended(Stream& stream, int32_t slot, const Completion& completion);

  id<MTLDevice> device_;
  id<MTLCommandQueue> queue_;
  std::mutex lock_;  // completions and times
  std::condition_variable completed_;
  std::vector<Pending> pending_;  // submits that nobody has seen the end of
  std::shared_ptr<Completion> copy_;  // of the last page copy
  std::map<int64_t, int64_t> maps_;   // address and end of the registered mappings
};

}  // namespace bao
