// What a kernel library has to provide for one device; everything else of bao.h is the frontend's. One implementation a library.
#pragma once
#include "core.h"

namespace bao {

// ---- of the library
const char* backend_name();      // "cpu", "cuda" or "metal"
int32_t backend_caps();          // BAO_CAP_*
int32_t backend_device_count();  // 0 with the reason in the last error
// Opens a checked index: sets ops, threads, isa, info and backend of `device`, whose precision and flags are set. BAO_OK or a failure.
int32_t backend_open(Device& device, int32_t index, int32_t threads, int32_t isa, int32_t flags, const char* function);

enum class Place { device, host_visible };

class Backend {
 public:
  virtual ~Backend() = default;  // after stop(), and after the device's objects are gone

  // ---- memory. Zeroed and 128-byte aligned; null when there is not enough. A host-visible range has one address for host and device.
  virtual char* allocate(int64_t bytes, Place place) = 0;
  virtual void release(char* memory, int64_t bytes, Place place) = 0;
  virtual int64_t memory_total() = 0;
  virtual int64_t memory_available() = 0;
  virtual bool host_addressable(Place place) = 0;
  // Copies between host memory and any range that allocate or reserve gave, after finish().
  virtual int32_t write(char* to, const void* from, int64_t bytes, const char* function) = 0;
  virtual int32_t read(void* to, const char* from, int64_t bytes, const char* function) = 0;

  // ---- KV pools: `layers` ranges of address space, `stride` bytes apart (a multiple of pool_alignment()), each backed from its start on.
  virtual int64_t pool_alignment() = 0;
  virtual char* pool_reserve(Pool& pool, int64_t stride, int32_t layers) = 0;  // null: no address space
  virtual int32_t pool_back(Pool& pool, int64_t before, int64_t after) = 0;     // zeroed bytes of each layer; BAO_OK or OUT_OF_MEMORY, nothing changed
  virtual void pool_release(Pool& pool) = 0;
  // The first `tokens` tokens of page `source` to page `destination`, all layers, in the order of submits.
  virtual int32_t page_copy(Pool& pool, int32_t destination, int32_t source, int32_t tokens, const char* function) = 0;

  // ---- weights
  // Whether [address, address + bytes) can be read; keeps what must live as long as the map. False with the last error set.
  virtual bool map_source(int64_t address, int64_t bytes, std::shared_ptr<const void>* keep, const char* function) = 0;
  // Makes a checked weight usable: its bytes lie at `source` (null for a vector made of values); sets ref.data, strides and `values`.
  virtual int32_t weight_made(Weight& weight, const uint8_t* source, const char* function) = 0;
  virtual int32_t weights_ready(double timeout_ms) = 0;

  // ---- running
  virtual int32_t step_made(Step& step, const char* function) = 0;
  virtual std::mutex& lock() = 0;             // held while a finished submit's times are added to its stream
  virtual bool full() = 0;                    // no room for another submit
  // Queues a checked submit. graph: null or one of this stream. Sets owed, busy and the slot's status.
  virtual int32_t submit(Stream& stream, Graph* graph, int32_t slot, bool continues, const int32_t committed[4], const char* function) = 0;
  virtual void wait(Stream& stream, int32_t slot, double timeout_ms) = 0;  // sets the slot's status when it has ended
  virtual void poll(Stream& stream, int32_t slot) = 0;
  virtual void finish() = 0;                  // waits until everything queued has ended
  virtual void stop() = 0;                    // the same, what has not begun ends as cancelled
  virtual int32_t graph_made(Graph& graph, Stream& stream, const char* function) = 0;
};

// ---- submit.cpp, for backends that resolve a step on the host: applies the deltas to the device region and resolves ids and positions, unless
// the step has started already. False with a text when a row that follows the device region has nowhere to go.
bool submit_begin(Stream& stream, int32_t slot, bool continues, const int32_t committed[4], char* error, size_t error_bytes);

}  // namespace bao
