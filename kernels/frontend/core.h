// The frontend that every kernel library shares: objects behind the handles of bao.h, their bookkeeping and every validation. What a device
// does differently lies behind Backend (backend.h). Kernel files include only ops.h, which has no inline code of the standard library.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "../bao.h"
#include "ops.h"

namespace bao {

enum class Kind : uint8_t { none, device, buffer, view, map, weight, pool, step, stream, file, graph };

// Every object starts with this: its kind, its device (null for files) and its own handle.
struct Object {
  Kind kind = Kind::none;
  struct Device* device = nullptr;
  bao_handle handle = 0;
  virtual ~Object() = default;
};

// ---- handles.cpp: index + generation * 2^20; lookups are lock-free reads of a fixed table of pages.
bao_handle handle_new(std::unique_ptr<Object> object);          // takes ownership; 0 and last error when the table is full
Object* handle_get(bao_handle h);                               // null when absent or stale
void handle_free(bao_handle h);                                 // destroys the object
void handle_free_all(struct Device* device);                    // destroys what belongs to the device, the device itself excepted
template <class T> T* handle_as(bao_handle h, Kind kind) {
  Object* o = handle_get(h);
  return o && o->kind == kind ? static_cast<T*>(o) : nullptr;
}

// The object, or null after a failure that names argument, function and what was expected.
Object* handle_need(bao_handle h, Kind kind, int argument, const char* function);
template <class T> T* need(bao_handle h, Kind kind, int argument, const char* function) {
  return static_cast<T*>(handle_need(h, kind, argument, function));
}
constexpr int32_t invalid_argument(int argument) { return BAO_INVALID | argument << 8; }  // the status to return after `need` failed

// ---- errors.cpp: the thread's last error. fail() formats "function: argument: text" and gives the status.
int32_t fail(int32_t status_class, int argument, const char* function, const char* format, ...) __attribute__((format(printf, 4, 5)));
void clear_error();
// Runs f, turning any C++ exception into a status: nothing may leave an exported function. Used by every export.
template <class F> auto guarded(const char* function, F&& f) noexcept -> decltype(f()) {
  using R = decltype(f());
  try {
    return f();
  } catch (const std::bad_alloc&) {
    int32_t s = fail(BAO_OUT_OF_MEMORY, 0, function, "host memory is exhausted");
    if constexpr (sizeof(R) == sizeof(int32_t)) return static_cast<R>(s); else return R{};
  } catch (...) {
    int32_t s = fail(BAO_INTERNAL, 0, function, "unexpected exception");
    if constexpr (sizeof(R) == sizeof(int32_t)) return static_cast<R>(s); else return R{};
  }
}
// A double that must be a whole number in [0, 2^53]: sizes, offsets.
bool to_size(double value, int64_t* out);

// What a backend keeps beside a step block or a graph.
struct BackendState {
  virtual ~BackendState() = default;
};

struct Buffer : Object {
  char* data = nullptr;                    // as ops see it
  char* address = nullptr;                 // as the host sees it, null when it does not
  int64_t bytes = 0;
  int32_t place = BAO_BUFFER_DEVICE;       // BAO_BUFFER_*
  ~Buffer() override;
};

struct View : Object {
  Tensor tensor{};         // ops.h: pointer, stride, shape
  bao_handle buffer = 0;
};

struct Map : Object {
  const uint8_t* data = nullptr;
  int64_t bytes = 0;
  int32_t weights = 0;                     // alive: the map cannot be freed before them
  std::shared_ptr<const void> mapping;     // the file's pages stay mapped while a map reads them, even when the file is closed
};

struct Weight : Object {
  WeightRef ref{};         // ops.h: pointer, type, shape, factors
  int32_t use = 0;
  bao_handle map = 0, factors = 0;
  std::vector<float> vector;               // VECTOR weights, as f32
  const float* values = nullptr;           // the same as ops see them
  std::unique_ptr<BackendState> state;     // memory of the weight's own: copies, uploads
  int64_t bytes = 0;
  bool named = false;                      // by a recording, which copied ref: factors come too late now
  ~Weight() override;
};

struct Pool : Object {
  PoolRef ref{};           // ops.h: base address per layer, page geometry
  char* base = nullptr;
  int64_t reserved = 0;
  int32_t table = 0, max_pages = 0, committed = 0, layout = 0;
  std::unique_ptr<BackendState> state;
  ~Pool() override;
};

struct Step : Object {
  StepRef ref{};           // ops.h: what ops read while a submit runs
  int32_t slots = 0, max_rows = 0, max_outputs = 0, max_sequences = 0, vocabulary = 0, max_bias = 0, max_deltas = 0;
  int32_t pages[4] = {0, 0, 0, 0};
  int64_t field[BAO_FIELD_END + 1] = {};   // byte offsets of a slot's fields
  int64_t slot_bytes = 0;
  char* host = nullptr;                    // slots * slot_bytes
  char* region = nullptr;                  // tables, next ids, lengths, histories, in device memory; ref points into it
  int64_t region_bytes = 0;
  std::vector<int32_t> table_shadow;       // page tables as of the last accepted submit, for the checks at submit
  int64_t table_start[4] = {0, 0, 0, 0};   // where each table starts, in entries, in table_shadow and in `tables`
  int32_t* tables = nullptr;               // the device region's page tables, all four
  int32_t *resolved_id = nullptr, *resolved_position = nullptr;  // [slots][max_rows], set when a step starts
  char* accepted = nullptr;                // per slot: the copy that was checked and that ops read, so that a late write cannot hurt
  std::vector<int64_t> length_bound;       // per sequence: what its length in the device region can be once all accepted submits have run
  int32_t serial[8] = {};                  // per slot: of its last accepted submit, 0 = none
  bool samplers_taken[8] = {};             // per slot: the sampler records of that serial are in `accepted`
  int32_t outcome[8] = {};                 // per slot, the CPU executor's: how the submits of the running serial went so far
  std::vector<int64_t> seen;               // per sequence: stamp of the check that met it last
  int64_t stamp = 0;
  std::atomic<int32_t> busy[8] = {};       // per slot: submits that have not ended
  std::unique_ptr<BackendState> state;
  char* host_field(int32_t slot, int32_t f) { return host + slot * slot_bytes + field[f]; }
  char* accepted_field(int32_t slot, int32_t f) { return accepted + slot * slot_bytes + field[f]; }
  ~Step() override;
};

// One parallel-for: `pieces(args, run)` independent pieces, any thread may take any piece, results do not depend on who took it. On a GPU:
// one or more launches.
struct Stage {
  PiecesFn pieces = nullptr;
  RunFn run = nullptr;
  int32_t op = 0;                          // index of the recorded op that it belongs to
  std::unique_ptr<char[]> args;
};

struct Recorded {
  int32_t kind = 0;                        // BAO_OP_*
  double nanoseconds = 0;                  // written at the end of a submit, under the backend's lock
};

// What a slot must satisfy for a recording to stay inside its operands.
struct Limits {
  int32_t rows = INT32_MAX, outputs = INT32_MAX;  // smallest capacity of the STEP and OUTPUT views
  int32_t window[4] = {-1, -1, -1, -1};           // per page table: how far back an op reads, 0 = all, -1 = table unused
  bool samplers = false, draws = false;           // sampler records are read; ids are drawn
};

struct Stream : Object, Builder {
  Step* step = nullptr;
  int32_t slots = 0;                       // of the step, which may be freed before the stream
  bool open = false, complete = false, profile = false;
  std::vector<Stage> stages;
  std::vector<Recorded> ops;
  std::vector<bao_handle> uses;            // every handle that the recording names
  std::vector<bao_handle> pools;           // those of them that are pools
  Limits limits;
  int64_t checked_epoch = -1;              // device epoch at which `uses` was last found alive
  int64_t scratch_bytes = 0, op_scratch = 0, scratch_capacity = 0;
  char* scratch = nullptr;
  int64_t recording = 0;                   // number of the recording: a graph of a former one is stale
  // Of the last submit of each slot (bao_wait is per slot):
  struct SlotState {
    std::atomic<int32_t> status{BAO_OK};
    bool owed = false;                     // submitted and not waited for
    std::string error;
  };
  SlotState slot_state[8];
  std::unique_ptr<BackendState> state;

  // Builder (ops.h): what an op's record function calls.
  void add(const void* args, int64_t bytes, PiecesFn pieces, RunFn run) override;
  int64_t reserve_scratch(int64_t bytes) override;
  ~Stream() override;
};

// A recording instantiated for at most `rows` rows and `outputs` output rows.
struct Graph : Object {
  bao_handle stream = 0;
  int64_t recording = 0;
  int32_t rows = 0, outputs = 0;
  std::unique_ptr<BackendState> state;
};

struct Device : Object {
  int32_t threads = 1, isa = BAO_ISA_BASE, precision = BAO_EXACT;
  int32_t fast = 1;  // what BAO_FAST asks of an op: 1 int8 activations; 3 the backend's choice, by shape
  bool reference = false;                  // BAO_OPEN_REFERENCE
  const OpTable* ops = nullptr;            // the kernels that record
  std::string info;
  std::atomic<int64_t> free_epoch{0};      // grows with every freed object
  std::atomic<int64_t> bytes_buffers{0}, bytes_kv{0}, bytes_scratch{0}, bytes_weights{0};
  void finish();                           // waits for the submitted work: before memory that it may touch changes hands
  std::unique_ptr<class Backend> backend;  // backend.h; null once the device is closing
  Device();
  ~Device() override;
};

// ---- recording, used by the op files (stream.cpp). `Recording r(stream, BAO_OP_X, "bao_x")`: resolve operands in order of their argument
// number, then r.commit(): nothing is recorded when any check failed.
class Recording {
 public:
  Recording(bao_handle stream, int32_t kind, const char* function);
  ~Recording();                                           // rolls back unless committed
  explicit operator bool() const { return status_ == BAO_OK; }
  // Resolve operand number `argument` (the stream is argument 1). An absent (0) optional operand gives an empty Tensor / null.
  bool tensor(int argument, const char* name, bao_handle h, Tensor* out, int32_t dtype = BAO_F32, bool optional = false);
  bool weight(int argument, const char* name, bao_handle h, int32_t use, WeightRef* out, bool optional = false);
  bool vector(int argument, const char* name, bao_handle h, int32_t length, const float** out, bool optional);
  // window: how many positions, its own included, a row reaches back in the pool; 0 = all, 1 = its own only (appends). A submit checks
  // that every page so reached is set and backed.
  bool pool(int argument, const char* name, bao_handle h, PoolRef* out, int32_t window = 0);
  // Records a failure with a message; always false.
  bool invalid(int argument, const char* format, ...) __attribute__((format(printf, 3, 4)));
  bool unsupported(int argument, const char* format, ...) __attribute__((format(printf, 3, 4)));
  // Checks: same row count rule and at least as many rows; same columns; finite scalar.
  bool same_rows(int argument, const Tensor& a, const Tensor& b);
  bool same_shape(int argument, const Tensor& a, const Tensor& b);
  bool finite(int argument, const char* name, float value);
  Builder& builder() { return *stream_; }
  Device& device() { return *stream_->device; }
  Step& step() { return *stream_->step; }
  int32_t commit();                                       // keeps what was recorded; the status to return

 private:
  Stream* stream_ = nullptr;
  const char* function_;
  int32_t status_ = BAO_OK, kind_;
  size_t stages_before_ = 0, uses_before_ = 0, ops_before_ = 0, pools_before_ = 0;
  Limits limits_before_;
  bool committed_ = false;
};

}  // namespace bao
