// The CUDA device behind the frontend: what device.cu, memory.cu, step.cu and upload.cu share.
#pragma once
#include <condition_variable>
#include <deque>
#include <thread>

#include "../frontend/backend.h"
#include "run.h"

namespace bao {

// The typed failure of a CUDA call: memory that is not there leaves the device usable, anything else has lost it. BAO_OK for success.
int32_t cuda_status(cudaError_t error, int argument, const char* function);
// The same without touching the last error, for work that failed on the device.
int32_t status_class(cudaError_t error);

// ---- step.cu
// What the running submit is, at one address for all submits of a step block: kernels and captured graphs read it there.
struct Current {
  StepRef ref;
  const volatile int32_t* cancel;  // mapped: the slot's cancel word
  const volatile int32_t* stop;    // mapped: 1 once the device is closing
  int32_t serial;
  int32_t* outcome;                // device memory: how the submits of this slot's serial went so far
  volatile int32_t* report;        // mapped: words REPORT_*, read by the host when the submit has ended
};
enum { REPORT_STATUS = 0, REPORT_REASON = 1, REPORT_ROW = 2, REPORT_SEQUENCE = 3, REPORT_POSITION = 4, REPORT_INDEX = 5, REPORT_TABLE = 6, REPORT_WORDS = 8 };
enum { REASON_NONE = 0, REASON_EARLIER = 1, REASON_NO_ID = 2, REASON_NO_PAGE = 3 };

// All that the first launch of a submit needs.
struct BeginArgs {
  Current* current;
  Current image;                 // as it will be, rows and outputs apart
  const char* accepted;          // mapped: the slot's checked copy
  char* slot;                    // device memory: where the fields go that ops read
  int64_t field[BAO_FIELD_END];  // offsets, in both
  int32_t *tables, *resolved_id, *resolved_position, *short_runs;
  int64_t table_start[4];
  int32_t window[4], committed[4];
  int32_t continues, samplers;
};
void launch_begin(const BeginArgs& args, cudaStream_t stream);
void launch_cancel_check(Current* current, cudaStream_t stream);  // between the launches of a long submit

// ---- kv.cu
void launch_page_copy(const PoolRef& pool, int32_t destination, int32_t source, int32_t tokens, cudaStream_t stream);

// ---- relay.cu: `rows` rows of a quantised type, as a file has them, to the tiles of units.h.
void launch_relay(int32_t dtype, const uint8_t* file, int64_t file_row_bytes, int32_t rows, int32_t columns, char* tiles, cudaStream_t stream);

// ---- upload.cu: weights on their way to the device, through pinned staging, on a thread and a stream of their own.
class Uploader {
 public:
  explicit Uploader(int32_t device) : device_(device) {}
  ~Uploader();
  // What is uploaded: bytes as they are, or runs of rows that become tiles (a run fills whole tiles). The source stays readable until the upload has ended.
  struct Job {
    char* destination;
    const uint8_t* source;
    int64_t bytes;  // of a run
    int64_t runs;
    int32_t dtype, rows, columns;  // of a run; rows 0: no tiles
    int64_t row_bytes, tile_bytes, run_bytes;
  };
  void add(const Job& job);
  static constexpr int64_t staging_bytes = int64_t(16) << 20;
  // Whether all uploads have ended within the time; negative: no limit. The first failure of any is kept: ask error().
  bool wait(double timeout_ms);
  cudaError_t error();

 private:
  void run();

  int32_t device_;
  std::mutex lock_;
  std::condition_variable work_, done_;
  std::deque<Job> jobs_;
  int64_t unfinished_ = 0;
  bool quit_ = false;
  cudaError_t error_ = cudaSuccess;
  std::thread thread_;
};

struct DeviceBytes : BackendState {
  char* data = nullptr;
  ~DeviceBytes() override { if (data) cudaFree(data); }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(int32_t index, const cudaDeviceProp& properties);
  ~CudaBackend() override;
  int32_t open(const char* function);

  char* allocate(int64_t bytes, Place place) override;
  void release(char* memory, int64_t bytes, Place place) override;
  int64_t memory_total() override;
  int64_t memory_available() override;
  bool host_addressable(Place place) override { return place == Place::host_visible; }
  int32_t write(char* to, const void* from, int64_t bytes, const char* function) override;
  int32_t read(void* to, const char* from, int64_t bytes, const char* function) override;

  int64_t pool_alignment() override { return granularity_; }
  char* pool_reserve(Pool& pool, int64_t stride, int32_t layers) override;
  int32_t pool_back(Pool& pool, int64_t before, int64_t after) override;
  void pool_release(Pool& pool) override;
  int32_t page_copy(Pool& pool, int32_t destination, int32_t source, int32_t tokens, const char* function) override;

  bool map_source(int64_t address, int64_t bytes, std::shared_ptr<const void>* keep, const char* function) override;
  int32_t weight_made(Weight& weight, const uint8_t* source, const char* function) override;
  int32_t weights_ready(double timeout_ms) override;

  int32_t step_made(Step& step, const char* function) override;
  std::mutex& lock() override { return lock_; }
  bool full() override { return false; }
  int32_t submit(Stream& stream, Graph* graph, int32_t slot, bool continues, const int32_t committed[4], const char* function) override;
  void wait(Stream& stream, int32_t slot, double timeout_ms) override;
  void poll(Stream& stream, int32_t slot) override;
  void finish() override;
  void stop() override;
  int32_t graph_made(Graph& graph, Stream& stream, const char* function) override;

 private:
  void enter() const { cudaSetDevice(index_); }
  void launch_stages(Stream& stream, int32_t rows, int32_t outputs, bool timed);
  cudaGraphExec_t replayed(Stream& stream, int32_t rows, int32_t outputs);
  cudaError_t capture(Stream& stream, int32_t rows, int32_t outputs, cudaGraphExec_t* made);
  void ended(Stream& stream, int32_t slot, cudaError_t error);
  Run run_of(const Stream& stream, int32_t rows, int32_t outputs) const;
  void stamp();
  void write_stamps();

  int32_t index_;
  cudaDeviceProp properties_;
  int64_t granularity_ = 2 << 20;
  bool virtual_memory_ = false, overlap_ = false, eager_ = false, poison_ = false;
  cudaStream_t stream_ = nullptr;
  int32_t* stop_word_ = nullptr;  // pinned
  uint32_t* tickets_ = nullptr;
  static constexpr size_t most_stamps = 1 << 17;
  std::string stamps_file_;
  std::vector<cudaEvent_t> stamps_;  // two a submit
  std::mutex lock_;
  std::vector<std::pair<Stream*, int32_t>> pending_;  // submits that nobody has seen the end of
  Uploader uploader_;
};

}  // namespace bao
