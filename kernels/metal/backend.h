// The Metal device behind the frontend: what device.mm, submit.mm, memory.mm, library.mm and the op files share.
// All memory is shared between host and GPU, so an address names it for both; what an encoder binds is found by address.
#pragma once
#import <Metal/Metal.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <map>
#include <thread>

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

// ---- residency.mm: a residency set of all buffers, where the system has them. What is added counts from the next use() on.
class Residency {
 public:
  void open(id<MTLDevice> device, id<MTLCommandQueue> queue);
  void close();
  void add(id<MTLBuffer> buffer);
  void remove(id<MTLBuffer> buffer);
  void use();  // before a submit: asks for what there is, and keeps asking for a while

 private:
  void request();
  void let_go();
  void renew();
  id set_ = nil;  // id<MTLResidencySet>, which older systems do not know
  id<MTLCommandQueue> queue_ = nil;
  bool changed_ = false, requested_ = false, closing_ = false;
  std::chrono::steady_clock::time_point used_;
  std::mutex lock_;
  std::condition_variable wake_;
  std::thread renewer_;
};

// ---- memory.mm: which buffer holds an address.
struct Bound {
  id<MTLBuffer> buffer;
  int64_t offset;
};
class Memory {
 public:
  void add(const char* start, id<MTLBuffer> buffer);  // in the place of one that began there
  void remove(const char* start);
  void remove(const char* from, const char* to);  // all that begin there
  // nil when no buffer holds all the bytes. Buffers may overlap.
  Bound find(const void* address, int64_t bytes) const;
  Residency residency;

 private:
  std::map<const char*, id<MTLBuffer>> buffers_;
};

// The command buffers of a submit or of a page copy, as their completion handlers leave it. Under the backend's lock.
struct Completion {
  int32_t left = 1;  // command buffers that have not ended, and one while more may come
  int32_t status = BAO_OK;
  std::string error;
  bool done() const { return left == 0; }
  void failed(int32_t with, std::string text) { if (status == BAO_OK) status = with, error = std::move(text); }
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

  // What launches are made of (encode.h).
  id<MTLCommandBuffer> command_buffer() { return [queue_ commandBuffer]; }
  void commit(id<MTLCommandBuffer> commands, std::shared_ptr<Completion> completion);
  void committed_all(Completion& completion, int32_t status, const std::string& error);  // no more command buffers come

  Library library;
  Memory memory;
  char* nothing = nullptr;    // bound where an operand is absent
  char* stop_word = nullptr;  // 1 once the device is closing

  static constexpr int64_t page_bytes = 16384;  // of Apple silicon

 private:
  // A submit that nobody has seen the end of, with what it takes to make up for one that failed before it began.
  struct Pending {
    Stream* stream;
    int32_t slot, number;
    bool continues;
    std::array<int32_t, 4> committed;
    std::shared_ptr<Completion> completion;
  };
  id<MTLBuffer> window(const uint8_t* source, int64_t bytes);
  bool idle();
  void settle(std::unique_lock<std::mutex>& hold, size_t count);
  void settle_copies();
  void ended(const Pending& pending);
  void recover(const Pending& pending, int32_t status);
  int32_t usable(const char* function);

  id<MTLDevice> device_;
  id<MTLCommandQueue> queue_;
  double commit_nanoseconds_ = 0;  // estimated work of a command buffer, at most
  std::mutex lock_;                // completions and times
  std::condition_variable completed_;
  std::vector<Pending> pending_;                     // in order of submission
  std::vector<std::shared_ptr<Completion>> copies_;  // of page copies
  int32_t failed_ = BAO_OK;                          // status of the last command buffer that failed
  std::string lost_;                                 // why the device can do no more, "" while it can
  std::vector<std::pair<int64_t, int64_t>> maps_;    // start and end of the registered mappings, in whole pages
};

}  // namespace bao
