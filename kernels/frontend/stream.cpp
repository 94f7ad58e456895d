// Streams and their recordings: what every op entry point uses to resolve operands and to leave nothing behind when one is wrong.
#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "backend.h"

namespace bao {

// ---- Builder

void Stream::add(const void* args, int64_t bytes, PiecesFn pieces, RunFn run) {
  Stage stage;
  stage.pieces = pieces;
  stage.run = run;
  stage.op = static_cast<int32_t>(ops.size());  // the op being recorded comes next
  stage.args.reset(new char[static_cast<size_t>(bytes)]);
  std::memcpy(stage.args.get(), args, static_cast<size_t>(bytes));
  stages.push_back(std::move(stage));
}

int64_t Stream::reserve_scratch(int64_t bytes) {
  constexpr int64_t most = int64_t(1) << 46;
  int64_t start = op_scratch;
  if (bytes < 0 || bytes > most || start > most) throw std::bad_alloc();
  op_scratch = start + (bytes + 127) / 128 * 128;
  return start;
}

Stream::~Stream() {
  if (!device || !scratch) return;
  device->backend->release(scratch, scratch_capacity, Place::device);
  device->bytes_scratch -= scratch_capacity;
}

// ---- Recording

Recording::Recording(bao_handle stream, int32_t kind, const char* function) : function_(function), kind_(kind) {
  stream_ = need<Stream>(stream, Kind::stream, 1, function);
  if (!stream_) {
    status_ = invalid_argument(1);
    return;
  }
  if (!stream_->open) {
    stream_ = nullptr;
    status_ = fail(BAO_INVALID, 1, function, "the stream is not recording (bao_stream_begin)");
    return;
  }
  stages_before_ = stream_->stages.size();
  uses_before_ = stream_->uses.size();
  ops_before_ = stream_->ops.size();
  pools_before_ = stream_->pools.size();
  limits_before_ = stream_->limits;
  stream_->op_scratch = 0;
}

Recording::~Recording() {
  if (committed_ || !stream_) return;
  stream_->stages.erase(stream_->stages.begin() + static_cast<ptrdiff_t>(stages_before_), stream_->stages.end());
  stream_->uses.resize(uses_before_);
  stream_->ops.resize(ops_before_);
  stream_->pools.resize(pools_before_);
  stream_->limits = limits_before_;
}

// The first fault is the one reported.
#define BAO_REPORT(status_class)                              \
  if (status_ != BAO_OK) return false;                        \
  char text[512];                                             \
  va_list arguments;                                          \
  va_start(arguments, format);                                \
  std::vsnprintf(text, sizeof text, format, arguments);       \
  va_end(arguments);                                          \
  status_ = fail(status_class, argument, function_, "%s", text); \
  return false

bool Recording::invalid(int argument, const char* format, ...) { BAO_REPORT(BAO_INVALID); }

bool Recording::unsupported(int argument, const char* format, ...) { BAO_REPORT(BAO_UNSUPPORTED); }

#undef BAO_REPORT

namespace {

const char* rule_name(int32_t rows_of) {
  return rows_of == BAO_ROWS_FIXED ? "FIXED" : rows_of == BAO_ROWS_STEP ? "STEP" : "OUTPUT";
}

const char* element_name(int32_t dtype) { return dtype == BAO_F32 ? "F32" : "I32"; }

}  // namespace

bool Recording::tensor(int argument, const char* name, bao_handle h, Tensor* out, int32_t dtype, bool optional) {
  *out = Tensor{};
  if (status_ != BAO_OK) return false;
  if (h == 0 && optional) return true;
  View* view = handle_as<View>(h, Kind::view);
  if (!view) return invalid(argument, "%s: handle %.0f is no live view", name, h);
  if (view->device != stream_->device) return invalid(argument, "%s belongs to another device", name);
  if (!handle_get(view->buffer)) return invalid(argument, "%s: its buffer was freed", name);
  if (view->tensor.dtype != dtype) return invalid(argument, "%s is %s, expected %s", name, element_name(view->tensor.dtype), element_name(dtype));
  Limits& limits = stream_->limits;
  if (view->tensor.rows_of == BAO_ROWS_STEP) limits.rows = std::min(limits.rows, view->tensor.d0);
  if (view->tensor.rows_of == BAO_ROWS_OUTPUT) limits.outputs = std::min(limits.outputs, view->tensor.d0);
  stream_->uses.push_back(h);
  stream_->uses.push_back(view->buffer);
  *out = view->tensor;
  return true;
}

bool Recording::weight(int argument, const char* name, bao_handle h, int32_t use, WeightRef* out, bool optional) {
  *out = WeightRef{};
  if (status_ != BAO_OK) return false;
  if (h == 0 && optional) return true;
  Weight* weight = handle_as<Weight>(h, Kind::weight);
  if (!weight) return invalid(argument, "%s: handle %.0f is no live weight", name, h);
  if (weight->device != stream_->device) return invalid(argument, "%s belongs to another device", name);
  if ((weight->use & use) == 0) return invalid(argument, "%s was created for use %d, expected %d", name, weight->use, use);
  if (weight->factors != 0 && !handle_get(weight->factors)) return invalid(argument, "%s: its factors were freed", name);
  stream_->uses.push_back(h);
  if (weight->factors != 0) stream_->uses.push_back(weight->factors);
  weight->named = true;
  *out = weight->ref;
  return true;
}

bool Recording::vector(int argument, const char* name, bao_handle h, int32_t length, const float** out, bool optional) {
  *out = nullptr;
  if (status_ != BAO_OK) return false;
  if (h == 0 && optional) return true;
  Weight* weight = handle_as<Weight>(h, Kind::weight);
  if (!weight) return invalid(argument, "%s: handle %.0f is no live weight", name, h);
  if (weight->device != stream_->device) return invalid(argument, "%s belongs to another device", name);
  if (weight->vector.empty()) return invalid(argument, "%s was created for use %d, expected BAO_USE_VECTOR", name, weight->use);
  if (weight->ref.columns != length) return invalid(argument, "%s has %d values, expected %d", name, weight->ref.columns, length);
  stream_->uses.push_back(h);
  *out = weight->values;
  return true;
}

bool Recording::pool(int argument, const char* name, bao_handle h, PoolRef* out, int32_t window) {
  *out = PoolRef{};
  if (status_ != BAO_OK) return false;
  Pool* pool = handle_as<Pool>(h, Kind::pool);
  if (!pool) return invalid(argument, "%s: handle %.0f is no live KV pool", name, h);
  if (pool->device != stream_->device) return invalid(argument, "%s belongs to another device", name);
  if (stream_->step->pages[pool->table] == 0) return invalid(argument, "%s uses page table %d, which the stream's step does not have", name, pool->table);
  int32_t& reach = stream_->limits.window[pool->table];
  reach = reach == 0 || window <= 0 ? 0 : std::max(reach, window);
  stream_->uses.push_back(h);
  stream_->pools.push_back(h);
  *out = pool->ref;
  return true;
}

bool Recording::same_rows(int argument, const Tensor& a, const Tensor& b) {
  if (status_ != BAO_OK) return false;
  if (a.rows_of != b.rows_of) return invalid(argument, "its rows follow %s, expected %s as the other operands", rule_name(b.rows_of), rule_name(a.rows_of));
  // Capacities of STEP and OUTPUT views are compared with the counts at each submit.
  if (a.rows_of == BAO_ROWS_FIXED && a.d0 != b.d0) return invalid(argument, "%d rows, expected %d", b.d0, a.d0);
  return true;
}

bool Recording::same_shape(int argument, const Tensor& a, const Tensor& b) {
  if (!same_rows(argument, a, b)) return false;
  if (a.d1 != b.d1 || a.d2 != b.d2) return invalid(argument, "rows of %d x %d, expected %d x %d", b.d1, b.d2, a.d1, a.d2);
  return true;
}

bool Recording::finite(int argument, const char* name, float value) {
  if (status_ != BAO_OK) return false;
  return std::isfinite(value) || invalid(argument, "%s is %g, expected a finite number", name, static_cast<double>(value));
}

int32_t Recording::commit() {
  if (status_ != BAO_OK) return status_;
  stream_->ops.push_back(Recorded{kind_, 0});
  stream_->scratch_bytes = std::max(stream_->scratch_bytes, stream_->op_scratch);
  if (kind_ == BAO_OP_LOGITS_PROCESS || kind_ == BAO_OP_LOGPROBS || kind_ == BAO_OP_SAMPLE) stream_->limits.samplers = true;
  if (kind_ == BAO_OP_SAMPLE) stream_->limits.draws = true;
  committed_ = true;
  return BAO_OK;
}

namespace {

bao_handle create(bao_handle device_handle, bao_handle step_handle) {
  const char* f = "bao_stream_create";
  Device* device = need<Device>(device_handle, Kind::device, 1, f);
  if (!device) return 0;
  Step* step = need<Step>(step_handle, Kind::step, 2, f);
  if (!step) return 0;
  if (step->device != device) return fail(BAO_INVALID, 2, f, "the step block belongs to another device"), 0;
  auto stream = std::make_unique<Stream>();
  stream->kind = Kind::stream;
  stream->device = device;
  stream->step = step;
  stream->uses.push_back(step_handle);
  stream->slots = step->slots;
  for (Stream::SlotState& state : stream->slot_state) state.error.reserve(256);  // the end of a submit must not allocate
  return handle_new(std::move(stream));
}

// A stream whose step was freed can only be freed.
Stream* with_step(bao_handle handle, const char* f) {
  Stream* stream = need<Stream>(handle, Kind::stream, 1, f);
  if (!stream) return nullptr;
  if (handle_get(stream->uses.front())) return stream;
  fail(BAO_INVALID, 1, f, "the stream's step block was freed");
  return nullptr;
}

int32_t begin(bao_handle handle) {
  Stream* stream = with_step(handle, "bao_stream_begin");
  if (!stream) return invalid_argument(1);
  stream->device->finish();
  stream->stages.clear();
  stream->ops.clear();
  stream->uses.resize(1);
  stream->pools.clear();
  stream->limits = Limits{};
  stream->scratch_bytes = 0;
  stream->checked_epoch = -1;
  for (Stream::SlotState& state : stream->slot_state) state.owed = false;
  stream->complete = false;
  stream->open = true;
  stream->recording++;
  return BAO_OK;
}

int32_t end(bao_handle handle) {
  const char* f = "bao_stream_end";
  Stream* stream = with_step(handle, f);
  if (!stream) return invalid_argument(1);
  if (!stream->open) return fail(BAO_INVALID, 1, f, "the stream is not recording (bao_stream_begin)");
  if (stream->scratch_bytes > stream->scratch_capacity) {
    Backend& backend = *stream->device->backend;
    char* scratch = backend.allocate(stream->scratch_bytes, Place::device);
    if (!scratch) return fail(BAO_OUT_OF_MEMORY, 0, f, "%lld bytes of scratch asked for, %lld available", static_cast<long long>(stream->scratch_bytes), static_cast<long long>(backend.memory_available()));
    if (stream->scratch) backend.release(stream->scratch, stream->scratch_capacity, Place::device);
    stream->device->bytes_scratch += stream->scratch_bytes - stream->scratch_capacity;
    stream->scratch = scratch;
    stream->scratch_capacity = stream->scratch_bytes;
  }
  stream->open = false;
  stream->complete = true;
  return BAO_OK;
}

Recorded* recorded(bao_handle handle, int32_t index, const char* f, Stream** out) {
  Stream* stream = need<Stream>(handle, Kind::stream, 1, f);
  if (!stream) return nullptr;
  *out = stream;
  if (index >= 0 && static_cast<size_t>(index) < stream->ops.size()) return &stream->ops[static_cast<size_t>(index)];
  fail(BAO_INVALID, 2, f, "op %d, the recording has %zu", index, stream->ops.size());
  return nullptr;
}

}  // namespace
}  // namespace bao

using namespace bao;

extern "C" {

bao_handle bao_stream_create(bao_handle device, bao_handle step) {
  return guarded("bao_stream_create", [&]() -> bao_handle { return create(device, step); });
}

int32_t bao_stream_free(bao_handle handle) {
  return guarded("bao_stream_free", [&]() -> int32_t {
    Stream* stream = need<Stream>(handle, Kind::stream, 1, "bao_stream_free");
    if (!stream) return invalid_argument(1);
    stream->device->finish();
    handle_free(handle);
    return BAO_OK;
  });
}

int32_t bao_stream_begin(bao_handle stream) {
  return guarded("bao_stream_begin", [&]() -> int32_t { return begin(stream); });
}

int32_t bao_stream_end(bao_handle stream) {
  return guarded("bao_stream_end", [&]() -> int32_t { return end(stream); });
}

int32_t bao_stream_ops(bao_handle handle) {
  Stream* stream = need<Stream>(handle, Kind::stream, 1, "bao_stream_ops");
  return stream ? static_cast<int32_t>(stream->ops.size()) : 0;
}

int32_t bao_stream_op(bao_handle handle, int32_t index) {
  Stream* stream;
  Recorded* op = recorded(handle, index, "bao_stream_op", &stream);
  return op ? op->kind : 0;
}

int32_t bao_stream_profile(bao_handle handle, int32_t enable) {
  return guarded("bao_stream_profile", [&]() -> int32_t {
    Stream* stream = need<Stream>(handle, Kind::stream, 1, "bao_stream_profile");
    if (!stream) return invalid_argument(1);
    if (enable != 0 && enable != 1) return fail(BAO_INVALID, 2, "bao_stream_profile", "enable is %d, expected 0 or 1", enable);
    std::lock_guard<std::mutex> hold(stream->device->backend->lock());
    stream->profile = enable == 1;
    if (enable == 1) {
      for (Recorded& op : stream->ops) op.nanoseconds = 0;
    }
    return BAO_OK;
  });
}

double bao_stream_time(bao_handle handle, int32_t index) {
  return guarded("bao_stream_time", [&]() -> double {
    Stream* stream;
    Recorded* op = recorded(handle, index, "bao_stream_time", &stream);
    if (!op) return -1;
    std::lock_guard<std::mutex> hold(stream->device->backend->lock());
    return op->nanoseconds;
  });
}

}  // extern "C"
