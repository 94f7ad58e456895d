// The CUDA backend: devices, submits as launches on one stream or as a captured graph, waiting, and failures as typed statuses.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "backend.cuh"

namespace bao {

extern const OpTable cuda_ops;

int32_t status_class(cudaError_t error) {
  return error == cudaSuccess ? BAO_OK : error == cudaErrorMemoryAllocation ? BAO_OUT_OF_MEMORY : BAO_DEVICE;
}

int32_t cuda_status(cudaError_t error, int argument, const char* f) {
  if (error == cudaSuccess) return BAO_OK;
  return fail(status_class(error), argument, f, "CUDA: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
}

namespace {

// Of a step block: the running submit, device copies of the slots, outcomes.
struct StepMemory : BackendState {
  char* data = nullptr;
  Current* current = nullptr;
  int32_t* outcome = nullptr;  // [8]
  char* slots = nullptr;
  int32_t* short_runs = nullptr;  // [1 + max_rows]
  ~StepMemory() override { if (data) cudaFree(data); }
};

// Steps of up to this many rows are captured when their shape comes a second time, and replayed from then on: longer ones are not bound by launches.
constexpr int32_t captured_rows = 64;
constexpr size_t most_captured = 48;

struct Captured {
  int32_t rows, outputs;
  cudaGraphExec_t graph;  // null: seen once, or the driver would not have it
  bool refused;
};

// Of a stream: what tells that a submit has ended, and how.
struct StreamMemory : BackendState {
  cudaEvent_t done[8] = {};
  int32_t* report = nullptr;  // pinned, [8][REPORT_WORDS]
  cudaError_t launched[8] = {};
  std::vector<cudaEvent_t> times;  // one before each op and one after the last, while profiling
  std::vector<Captured> captured;  // the most recently used one last
  int64_t recording = -1;          // that they are of
  void forget() {
    for (Captured& c : captured) if (c.graph) cudaGraphExecDestroy(c.graph);
    captured.clear();
  }
  ~StreamMemory() override {
    forget();
    for (cudaEvent_t event : done) if (event) cudaEventDestroy(event);
    for (cudaEvent_t event : times) cudaEventDestroy(event);
    if (report) cudaFreeHost(report);
  }
};

struct GraphMemory : BackendState {
  cudaGraphExec_t graph = nullptr;
  ~GraphMemory() override { if (graph) cudaGraphExecDestroy(graph); }
};

StreamMemory* stream_memory(Stream& stream, const char* f) {
  if (stream.state) return static_cast<StreamMemory*>(stream.state.get());
  auto memory = std::make_unique<StreamMemory>();
  cudaError_t error = cudaMallocHost(&memory->report, sizeof(int32_t) * REPORT_WORDS * 8);
  for (int i = 0; i < stream.slots && error == cudaSuccess; i++) error = cudaEventCreateWithFlags(&memory->done[i], cudaEventDisableTiming);
  if (error != cudaSuccess) return cudaGetLastError(), cuda_status(error, 0, f), nullptr;
  stream.state = std::move(memory);
  return static_cast<StreamMemory*>(stream.state.get());
}

// Test builds (make ... -DBAO_TEST_TRAP): the submit of this number kills the context, as a lost device does.
#ifdef BAO_TEST_TRAP
__global__ void trap_kernel() { asm volatile("trap;"); }
void trap_at_submit(cudaStream_t stream) {
  static std::atomic<int> submits{0};
  const char* at = std::getenv("BAO_TEST_TRAP");
  if (at && ++submits == std::atoi(at)) trap_kernel<<<1, 1, 0, stream>>>();
}
#else
void trap_at_submit(cudaStream_t) {}
#endif

const char* precision_name(int32_t precision) {
  static const char* const names[] = {"exact", "fast", "fast_int8", "fast_bf16"};
  return names[precision];
}

}  // namespace

CudaBackend::CudaBackend(int32_t index, const cudaDeviceProp& properties) : index_(index), properties_(properties), uploader_(index) {}

CudaBackend::~CudaBackend() {
  enter();
  write_stamps();
  if (stream_) cudaStreamDestroy(stream_);
  if (stop_word_) cudaFreeHost(stop_word_);
  if (tickets_) cudaFree(tickets_);
  cudaGetLastError();
}

// An event on the stream whose time can be asked for, kept until the device closes. Without a file for them: nothing.
void CudaBackend::stamp() {
  cudaEvent_t event;
  if (stamps_file_.empty() || stamps_.size() >= most_stamps || cudaEventCreate(&event) != cudaSuccess) return;
  cudaEventRecord(event, stream_);
  stamps_.push_back(event);
}

// A line a submit: microseconds of its start and its end on the device's clock, from the first start on.
void CudaBackend::write_stamps() {
  std::FILE* file = stamps_.empty() ? nullptr : std::fopen(stamps_file_.c_str(), "w");
  if (file && stream_) cudaStreamSynchronize(stream_);
  double at = 0;
  for (size_t i = 0; i < stamps_.size(); i++) {
    float milliseconds = 0;
    if (file && i && cudaEventElapsedTime(&milliseconds, stamps_[i - 1], stamps_[i]) == cudaSuccess) at += double(milliseconds) * 1e3;
    if (file) std::fprintf(file, i % 2 ? "%.2f\n" : "%.2f\t", at);
  }
  for (cudaEvent_t event : stamps_) cudaEventDestroy(event);
  if (file) std::fclose(file);
}

int32_t CudaBackend::open(const char* f) {
  enter();
  if (int32_t status = cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), 1, f)) return status;
  if (int32_t status = cuda_status(cudaMallocHost(&stop_word_, 128), 1, f)) return status;
  *stop_word_ = 0;
  if (int32_t status = cuda_status(cudaMalloc(&tickets_, most_tickets * sizeof *tickets_), 1, f)) return status;
  if (int32_t status = cuda_status(cudaMemsetAsync(tickets_, 0, most_tickets * sizeof *tickets_, stream_), 1, f)) return status;
  // Switches for comparisons: both ways give the same bits.
  const char* overlap = std::getenv("BAO_CUDA_OVERLAP");
  const char* graphs = std::getenv("BAO_CUDA_GRAPHS");
  overlap_ = properties_.major >= 9 && !(overlap && overlap[0] == '0');
  eager_ = graphs && graphs[0] == '0';
  poison_ = std::getenv("BAO_CUDA_POISON") != nullptr;  // NaNs in scratch before every submit: nothing may be read that was not written
  if (const char* stamps = std::getenv("BAO_CUDA_STAMPS")) stamps_file_ = stamps;  // when each submit began and ended: scripts/cuda/idle.ts reads it
  int supported = 0;
  virtual_memory_ = cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, index_) == cudaSuccess && supported != 0;
  return BAO_OK;
}

int32_t CudaBackend::step_made(Step& step, const char* f) {
  enter();
  auto memory = std::make_unique<StepMemory>();
  constexpr int64_t head = 1024;  // Current, then the outcomes
  static_assert(sizeof(Current) <= 768, "the outcomes lie behind");
  int64_t slots = step.slots * step.slot_bytes, bytes = head + slots + (1 + int64_t(step.max_rows)) * 4;
  memory->data = allocate(bytes, Place::device);
  if (!memory->data) return fail(BAO_OUT_OF_MEMORY, 0, f, "%lld bytes for the slots are not available", static_cast<long long>(bytes));
  memory->current = reinterpret_cast<Current*>(memory->data);
  memory->outcome = reinterpret_cast<int32_t*>(memory->data + 768);
  memory->slots = memory->data + head;
  memory->short_runs = reinterpret_cast<int32_t*>(memory->data + head + slots);
  step.state = std::move(memory);
  return BAO_OK;
}

Run CudaBackend::run_of(const Stream& stream, int32_t rows, int32_t outputs) const {
  const StepMemory& step = *static_cast<StepMemory*>(stream.step->state.get());
  return Run{&step.current->ref, stream.scratch, stream_, rows, outputs, properties_.multiProcessorCount, overlap_, tickets_, nullptr, step.short_runs};
}

void CudaBackend::launch_stages(Stream& stream, int32_t rows, int32_t outputs, bool timed) {
  Run run = run_of(stream, rows, outputs);
  LaunchOrder order;
  run.order = &order;
  Current* current = static_cast<StepMemory*>(stream.step->state.get())->current;
  StreamMemory* memory = static_cast<StreamMemory*>(stream.state.get());
  // Steps of few rows are over before anybody could cancel them: their only check is at their start.
  bool checks = rows > 16;
  int32_t count = 0, op = -1;
  for (const Stage& stage : stream.stages) {
    if (timed && stage.op != op) cudaEventRecord(memory->times[size_t(op = stage.op)], stream_);
    if (checks && count++ % 8 == 7) launch_cancel_check(current, stream_), order.first = true;
    stage.run(stage.args.get(), run, 0);
    order.next();
  }
  if (timed) cudaEventRecord(memory->times[stream.ops.size()], stream_);
}

// The graph of a batch shape that has come before, captured at its second time; null to launch kernel by kernel.
cudaGraphExec_t CudaBackend::replayed(Stream& stream, int32_t rows, int32_t outputs) {
  if (rows > captured_rows || eager_) return nullptr;
  StreamMemory& memory = *static_cast<StreamMemory*>(stream.state.get());
  std::vector<Captured>& captured = memory.captured;
  if (memory.recording != stream.recording) memory.forget(), memory.recording = stream.recording;
  auto found = std::find_if(captured.begin(), captured.end(), [&](const Captured& c) { return c.rows == rows && c.outputs == outputs; });
  if (found == captured.end()) {
    if (captured.size() == most_captured) {
      if (captured.front().graph) cudaGraphExecDestroy(captured.front().graph);
      captured.erase(captured.begin());
    }
    captured.push_back(Captured{rows, outputs, nullptr, false});
    return nullptr;
  }
  std::rotate(found, found + 1, captured.end());
  Captured& c = captured.back();
  if (!c.graph && !c.refused) c.refused = capture(stream, rows, outputs, &c.graph) != cudaSuccess;
  return c.graph;
}

int32_t CudaBackend::submit(Stream& stream, Graph* graph, int32_t slot, bool continues, const int32_t committed[4], const char* f) {
  enter();
  StreamMemory* memory = stream_memory(stream, f);
  if (!memory) return BAO_OUT_OF_MEMORY;
  uploader_.wait(-1);
  cudaError_t error = uploader_.error();
  Step& step = *stream.step;
  StepMemory& mine = *static_cast<StepMemory*>(step.state.get());
  const int32_t* header = reinterpret_cast<const int32_t*>(step.accepted_field(slot, BAO_FIELD_HEADER));
  int32_t rows = header[BAO_HEADER_ROWS], outputs = header[BAO_HEADER_OUTPUTS];

  BeginArgs begin{};
  begin.current = mine.current;
  begin.accepted = step.accepted + slot * step.slot_bytes;
  begin.slot = mine.slots + slot * step.slot_bytes;
  std::copy(step.field, step.field + BAO_FIELD_END, begin.field);
  begin.tables = step.tables;
  begin.resolved_id = step.resolved_id + int64_t(slot) * step.max_rows;
  begin.resolved_position = step.resolved_position + int64_t(slot) * step.max_rows;
  begin.short_runs = mine.short_runs;
  std::copy(step.table_start, step.table_start + 4, begin.table_start);
  std::copy(stream.limits.window, stream.limits.window + 4, begin.window);
  std::copy(committed, committed + 4, begin.committed);
  begin.continues = continues;
  begin.samplers = stream.limits.samplers;
  Current& image = begin.image;
  image.ref = step.ref;
  auto field = [&](int32_t at) { return reinterpret_cast<const int32_t*>(begin.slot + step.field[at]); };
  image.ref.row_sequence = field(BAO_FIELD_ROW_SEQUENCE);
  image.ref.row_id = begin.resolved_id;
  image.ref.row_position = begin.resolved_position;
  image.ref.output_row = field(BAO_FIELD_OUTPUT_ROW);
  image.ref.sampler = field(BAO_FIELD_OUTPUT_SAMPLER);
  image.ref.bias = reinterpret_cast<const int32_t*>(step.accepted_field(slot, BAO_FIELD_BIAS));  // few entries, read where they lie
  image.ref.result = reinterpret_cast<int32_t*>(step.host_field(slot, BAO_FIELD_RESULT));
  image.cancel = reinterpret_cast<const int32_t*>(step.host_field(slot, BAO_FIELD_HEADER)) + BAO_HEADER_CANCEL;
  image.stop = stop_word_;
  image.serial = step.serial[slot];
  image.outcome = mine.outcome + slot;
  image.report = memory->report + slot * REPORT_WORDS;
  image.report[REPORT_STATUS] = BAO_INTERNAL;  // until the device has told

  bool timed = stream.profile && !graph;
  while (timed && error == cudaSuccess && memory->times.size() <= stream.ops.size()) {
    cudaEvent_t event;
    error = cudaEventCreate(&event);
    if (error == cudaSuccess) memory->times.push_back(event);
  }
  if (error == cudaSuccess) {
    cudaGraphExec_t replay = graph ? static_cast<GraphMemory*>(graph->state.get())->graph : timed ? nullptr : replayed(stream, rows, outputs);
    stamp();
    launch_begin(begin, stream_);
    if (poison_ && stream.scratch) cudaMemsetAsync(stream.scratch, 0xFF, size_t(stream.scratch_capacity), stream_);
    trap_at_submit(stream_);
    if (replay) cudaGraphLaunch(replay, stream_);
    else launch_stages(stream, rows, outputs, timed);
    stamp();
    error = cudaGetLastError();
  }
  Stream::SlotState& state = stream.slot_state[slot];
  state.owed = true;
  state.status.store(BAO_PENDING, std::memory_order_relaxed);
  step.busy[slot].fetch_add(1, std::memory_order_relaxed);
  pending_.emplace_back(&stream, slot);
  memory->launched[slot] = error;
  cudaError_t recorded = cudaEventRecord(memory->done[slot], stream_);
  if (error == cudaSuccess) memory->launched[slot] = recorded;
  if (timed && memory->launched[slot] == cudaSuccess && cudaEventSynchronize(memory->done[slot]) == cudaSuccess) {
    std::lock_guard<std::mutex> hold(lock_);
    // Ops without stages (of empty launches) have no event: a time runs until the next op that has one.
    std::vector<bool> has(stream.ops.size() + 1);
    for (const Stage& stage : stream.stages) has[size_t(stage.op)] = true;
    has[stream.ops.size()] = true;
    for (size_t i = 0; i < stream.ops.size(); i++) {
      size_t next = i + 1;
      while (!has[next]) next++;
      float milliseconds = 0;
      if (has[i] && cudaEventElapsedTime(&milliseconds, memory->times[i], memory->times[next]) == cudaSuccess) stream.ops[i].nanoseconds += double(milliseconds) * 1e6;
    }
  }
  return BAO_OK;
}

// The submit of a slot has ended: moves the device's report to the slot's status.
void CudaBackend::ended(Stream& stream, int32_t slot, cudaError_t error) {
  Stream::SlotState& state = stream.slot_state[slot];
  const volatile int32_t* report = static_cast<StreamMemory*>(stream.state.get())->report + slot * REPORT_WORDS;
  int32_t status = error != cudaSuccess ? status_class(error) : report[REPORT_STATUS];
  char text[256] = "";
  if (error != cudaSuccess) {
    std::snprintf(text, sizeof text, "CUDA: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
  } else if (status == BAO_CANCELLED && report[REPORT_REASON] != REASON_EARLIER) {
    std::snprintf(text, sizeof text, "the step was cancelled");
  } else if (status != BAO_OK) {
    switch (report[REPORT_REASON]) {
      case REASON_EARLIER: std::snprintf(text, sizeof text, "an earlier submit of the same step failed or was cancelled"); break;
      case REASON_NO_ID: std::snprintf(text, sizeof text, "row %d: sequence %d has no next id", report[REPORT_ROW], report[REPORT_SEQUENCE]); break;
      case REASON_NO_PAGE:
        std::snprintf(text, sizeof text, "row %d: position %d of sequence %d needs index %d of page table %d, which is not set or not backed", report[REPORT_ROW],
                      report[REPORT_POSITION], report[REPORT_SEQUENCE], report[REPORT_INDEX], report[REPORT_TABLE]);
        break;
      default: std::snprintf(text, sizeof text, "the device gave no report"); break;
    }
  }
  state.error.assign(text);
  for (size_t i = 0; i < pending_.size(); i++) {
    if (pending_[i].first != &stream || pending_[i].second != slot) continue;
    pending_.erase(pending_.begin() + ptrdiff_t(i));
    break;
  }
  stream.step->busy[slot].fetch_sub(1, std::memory_order_release);
  state.status.store(status, std::memory_order_release);
}

void CudaBackend::poll(Stream& stream, int32_t slot) {
  Stream::SlotState& state = stream.slot_state[slot];
  if (!stream.state || state.status.load(std::memory_order_acquire) != BAO_PENDING) return;
  enter();
  StreamMemory& memory = *static_cast<StreamMemory*>(stream.state.get());
  cudaError_t error = memory.launched[slot];
  if (error == cudaSuccess) error = cudaEventQuery(memory.done[slot]);
  if (error != cudaErrorNotReady) ended(stream, slot, error);
}

void CudaBackend::wait(Stream& stream, int32_t slot, double timeout_ms) {
  using Clock = std::chrono::steady_clock;
  Clock::time_point began = Clock::now();
  for (int64_t round = 0;; round++) {
    poll(stream, slot);
    if (stream.slot_state[slot].status.load(std::memory_order_acquire) != BAO_PENDING) return;
    double waited = std::chrono::duration<double, std::milli>(Clock::now() - began).count();
    if (waited >= timeout_ms) return;
    // A decode step is over in a millisecond or two: only longer ones are worth a sleep.
    if (waited > 5) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void CudaBackend::finish() {
  enter();
  uploader_.wait(-1);
  cudaStreamSynchronize(stream_);
  for (size_t i = pending_.size(); i-- > 0;) poll(*pending_[i].first, pending_[i].second);
}

void CudaBackend::stop() {
  *const_cast<volatile int32_t*>(stop_word_) = 1;
  finish();
}

// The stream's launches for a batch shape, as a graph.
cudaError_t CudaBackend::capture(Stream& stream, int32_t rows, int32_t outputs, cudaGraphExec_t* made) {
  cudaGraph_t graph = nullptr;
  cudaError_t error = cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  if (error == cudaSuccess) {
    launch_stages(stream, rows, outputs, false);
    error = cudaStreamEndCapture(stream_, &graph);
  }
  if (error == cudaSuccess) error = cudaGraphInstantiate(made, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  if (error != cudaSuccess) cudaGetLastError();
  return error;
}

int32_t CudaBackend::graph_made(Graph& graph, Stream& stream, const char* f) {
  enter();
  if (!stream_memory(stream, f)) return BAO_OUT_OF_MEMORY;
  uploader_.wait(-1);
  auto memory = std::make_unique<GraphMemory>();
  if (int32_t status = cuda_status(capture(stream, graph.rows, graph.outputs, &memory->graph), 1, f)) return status;
  graph.state = std::move(memory);
  return BAO_OK;
}

// ---- the library

const char* backend_name() { return "cuda"; }

int32_t backend_caps() { return BAO_CAP_GRAPH; }

int32_t backend_device_count() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  const char* reason = error == cudaErrorInsufficientDriver ? "no driver: libcuda is missing, or older than this library" : error == cudaErrorNoDevice || error == cudaSuccess ? "no NVIDIA GPU is visible" : cudaGetErrorString(error);
  fail(BAO_UNSUPPORTED, 0, "bao_device_count", "%s", reason);
  return 0;
}

int32_t backend_open(Device& device, int32_t index, int32_t, int32_t isa, int32_t flags, const char* f) {
  if (isa != BAO_ISA_AUTO) return fail(BAO_UNSUPPORTED, 3, f, "isa is %d, a CUDA device takes BAO_ISA_AUTO only", isa);
  if (flags & BAO_OPEN_REFERENCE) return fail(BAO_UNSUPPORTED, 5, f, "the plain reference runs on the CPU");
  if (flags & BAO_OPEN_DETERMINISTIC) return fail(BAO_UNSUPPORTED, 5, f, "this backend is not batch-invariant yet");
  cudaDeviceProp properties{};
  if (int32_t status = cuda_status(cudaGetDeviceProperties(&properties, index), 1, f)) return status;
  if (properties.major < 8) return fail(BAO_UNSUPPORTED, 1, f, "%s has compute capability %d.%d, expected 8.0 or later", properties.name, properties.major, properties.minor);
  auto backend = std::make_unique<CudaBackend>(index, properties);
  if (int32_t status = backend->open(f)) return status;
  device.isa = isa;
  device.threads = 1;
  device.fast = 3;
  device.ops = &cuda_ops;
  std::string name;
  for (const char* c = properties.name; *c; c++) {
    if (*c >= ' ' && *c < 127 && *c != '"' && *c != '\\') name += *c;
  }
  device.info = "{\"name\":\"" + name + "\",\"backend\":\"cuda\",\"architecture\":\"sm_" + std::to_string(properties.major) + std::to_string(properties.minor) +
                "\",\"isa\":\"auto\",\"threads\":1,\"precision\":\"" + precision_name(device.precision) +
                "\",\"reference\":false,\"multiprocessors\":" + std::to_string(properties.multiProcessorCount) + ",\"memory\":" + std::to_string(properties.totalGlobalMem) + "}";
  device.backend = std::move(backend);
  return BAO_OK;
}

}  // namespace bao
