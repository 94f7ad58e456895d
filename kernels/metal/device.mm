// The Metal backend: devices, submits as one command buffer each, waiting, and failures as typed statuses.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "encode.h"

namespace bao {

extern const OpTable metal_ops;

namespace {

// Of a step block: CURRENT. Of a stream: REPORT words of each slot.
struct Words : BackendState {
  MetalBackend* backend;
  char* data;
  int64_t bytes;
  Words(MetalBackend* b, int64_t n) : backend(b), data(b->allocate(n, Place::device)), bytes(n) {}
  ~Words() override { if (data) backend->release(data, bytes, Place::device); }
  int32_t* words() const { return reinterpret_cast<int32_t*>(data); }
};

int32_t status_of(NSError* error) {
  constexpr NSInteger out_of_memory = 8;  // MTLCommandBufferErrorOutOfMemory
  return error && error.code == out_of_memory ? BAO_OUT_OF_MEMORY : BAO_DEVICE;
}

StepLayout layout_of(const Step& step, int32_t slot) {
  const StepRef& ref = step.ref;
  auto in_region = [&](const int32_t* p) { return int32_t(p - reinterpret_cast<const int32_t*>(step.region)); };
  auto in_slot = [&](int32_t field) { return int32_t(step.field[field] / 4); };
  StepLayout l{};
  for (int t = 0; t < 4; t++) l.table[t] = in_region(ref.table[t]), l.pages[t] = ref.pages[t];
  l.next_id = in_region(ref.next_id);
  l.length = in_region(ref.length);
  l.history = in_region(ref.history);
  l.history_count = in_region(ref.history_count);
  l.row_id = in_region(step.resolved_id + int64_t(slot) * step.max_rows);
  l.row_position = in_region(step.resolved_position + int64_t(slot) * step.max_rows);
  l.row_sequence = in_slot(BAO_FIELD_ROW_SEQUENCE);
  l.output_row = in_slot(BAO_FIELD_OUTPUT_ROW);
  l.sampler = in_slot(BAO_FIELD_OUTPUT_SAMPLER);
  l.bias = in_slot(BAO_FIELD_BIAS);
  l.result = in_slot(BAO_FIELD_RESULT);
  l.vocabulary = ref.vocabulary;
  return l;
}

// Steps of more rows than this are worth a look at the cancel word between ops.
constexpr int32_t uninterrupted_rows = 16, ops_between_looks = 8;

}  // namespace

MetalBackend::MetalBackend(id<MTLDevice> device) : library(device), device_(device) {}

MetalBackend::~MetalBackend() {
  @autoreleasepool {
    if (nothing) release(nothing, 256, Place::device);
    if (stop_word) release(stop_word, 256, Place::device);
    queue_ = nil;
    device_ = nil;
  }
}

int32_t MetalBackend::open(const char* f) {
  queue_ = [device_ newCommandQueue];
  nothing = allocate(256, Place::device);
  stop_word = allocate(256, Place::device);
  return queue_ && nothing && stop_word ? BAO_OK : fail(BAO_OUT_OF_MEMORY, 0, f, "the device gives no command queue or no memory");
}

int32_t MetalBackend::step_made(Step& step, const char* f) {
  @autoreleasepool {
    auto words = std::make_unique<Words>(this, CURRENT_WORDS * 4);
    if (!words->data) return fail(BAO_OUT_OF_MEMORY, 0, f, "no memory for the running step");
    step.state = std::move(words);
    return BAO_OK;
  }
}

void MetalBackend::commit(id<MTLCommandBuffer> commands, std::shared_ptr<Completion> completion, bool last) {
  [commands addCompletedHandler:^(id<MTLCommandBuffer> done) {
    std::lock_guard<std::mutex> hold(lock_);
    if (done.status == MTLCommandBufferStatusError && completion->status == BAO_OK) {
      completion->status = status_of(done.error);
      completion->error = std::string("Metal: ") + (done.error ? done.error.localizedDescription.UTF8String : "the command buffer failed");
    }
    if (last) completion->done = true;
    completed_.notify_all();
  }];
  [commands commit];
}

int32_t MetalBackend::submit(Stream& stream, Graph*, int32_t slot, bool continues, const int32_t committed[4], const char* f) {
  @autoreleasepool {
    if (!stream.state) {
      auto words = std::make_unique<Words>(this, 8 * REPORT_WORDS * 4);
      if (!words->data) return fail(BAO_OUT_OF_MEMORY, 0, f, "no memory for reports");
      stream.state = std::move(words);
    }
    Step& step = *stream.step;
    int32_t* report = static_cast<Words&>(*stream.state).words() + slot * REPORT_WORDS;
    Words& current = static_cast<Words&>(*step.state);
    const int32_t* header = reinterpret_cast<const int32_t*>(step.accepted_field(slot, BAO_FIELD_HEADER));
    int32_t rows = header[BAO_HEADER_ROWS], outputs = header[BAO_HEADER_OUTPUTS];
    report[REPORT_STATUS] = BAO_INTERNAL;  // until the device has told
    const StepLayout layout = layout_of(step, slot);
    auto completion = std::make_shared<Completion>();
    std::string error;

    // Everything in one command buffer; while profiling, one for each op, whose times are read at the end.
    id<MTLCommandBuffer> commands = nil;
    id<MTLComputeCommandEncoder> encoder = nil;
    std::unique_ptr<Pass> pass;
    std::vector<std::pair<int32_t, id<MTLCommandBuffer>>> timed;
    auto open = [&](int32_t op) {
      commands = [queue_ commandBuffer];
      encoder = [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
      pass = std::make_unique<Pass>(*this, encoder);
      auto bind = [&](int index, const void* address, int64_t bytes) {
        Bound bound = memory.find(address, bytes);
        [encoder setBuffer:bound.buffer offset:NSUInteger(bound.offset) atIndex:NSUInteger(index)];
      };
      [encoder setBytes:&layout length:sizeof layout atIndex:AT_LAYOUT];
      bind(AT_CURRENT, current.data, current.bytes);
      bind(AT_REGION, step.region, step.region_bytes);
      bind(AT_SLOT, step.accepted + slot * step.slot_bytes, step.slot_bytes);
      bind(AT_HOST, step.host + slot * step.slot_bytes, step.slot_bytes);
      bind(AT_REPORT, report, REPORT_WORDS * 4);
      pass->always(current.data, current.bytes);
      pass->always(step.region, step.region_bytes);
      if (stream.profile) timed.emplace_back(op, commands);
    };
    auto close = [&](bool last) {
      [encoder endEncoding];
      encoder = nil;
      if (pass->failed()) error = pass->error();
      commit(commands, completion, last);
    };

    open(-1);
    BeginParams begin{slot, step.serial[slot], continues, stream.limits.samplers, {}, {}, int32_t(step.field[BAO_FIELD_ROW_ID] / 4), int32_t(step.field[BAO_FIELD_ROW_POSITION] / 4),
                      int32_t(step.field[BAO_FIELD_PAGE_DELTA] / 4), int32_t(step.field[BAO_FIELD_SEQUENCE_DELTA] / 4)};
    std::copy(stream.limits.window, stream.limits.window + 4, begin.window);
    std::copy(committed, committed + 4, begin.committed);
    Launch(*pass, "step", "step_begin").in(0, stop_word, 4).out(AT_CURRENT, current.data, current.bytes).out(AT_REGION, step.region, step.region_bytes).params(begin).groups(1, 1, 1, 256);
    int32_t looked = 0, op = -1;
    for (const Stage& stage : stream.stages) {
      if (stream.profile && stage.op != op) {
        close(false);
        open(op = stage.op);
      }
      if (rows > uninterrupted_rows && looked++ % ops_between_looks == ops_between_looks - 1) {
        Launch(*pass, "step", "step_cancel").in(0, stop_word, 4).out(AT_CURRENT, current.data, current.bytes).params(CancelParams{slot, step.serial[slot]}).groups(1, 1, 1, 1);
      }
      stage.run(stage.args.get(), Run{pass.get(), stream.scratch, rows, outputs, &step, slot}, 0);
    }
    close(true);

    Stream::SlotState& state = stream.slot_state[slot];
    state.owed = true;
    state.status.store(BAO_PENDING, std::memory_order_relaxed);
    step.busy[slot].fetch_add(1, std::memory_order_relaxed);
    if (!error.empty()) {
      std::lock_guard<std::mutex> hold(lock_);
      completion->status = BAO_INTERNAL;
      completion->error = error;
    }
    pending_.push_back({&stream, slot, completion});
    if (stream.profile) {
      finish();
      std::lock_guard<std::mutex> hold(lock_);
      for (auto& [index, done] : timed) {
        if (index >= 0) stream.ops[size_t(index)].nanoseconds += (done.GPUEndTime - done.GPUStartTime) * 1e9;
      }
    }
    return BAO_OK;
  }
}

// The submit of a slot has ended: moves the device's report to the slot's status.
void MetalBackend::ended(Stream& stream, int32_t slot, const Completion& completion) {
  Stream::SlotState& state = stream.slot_state[slot];
  const int32_t* report = static_cast<Words&>(*stream.state).words() + slot * REPORT_WORDS;
  int32_t status = completion.status != BAO_OK ? completion.status : report[REPORT_STATUS];
  char text[256] = "";
  if (completion.status != BAO_OK) {
    std::snprintf(text, sizeof text, "%s", completion.error.c_str());
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
  stream.step->busy[slot].fetch_sub(1, std::memory_order_release);
  state.status.store(status, std::memory_order_release);
}

void MetalBackend::wait(Stream& stream, int32_t slot, double timeout_ms) {
  std::unique_lock<std::mutex> hold(lock_);
  auto mine = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) { return p.stream == &stream && p.slot == slot; });
  if (mine == pending_.end()) return;
  Completion& completion = *mine->completion;
  completed_.wait_for(hold, std::chrono::duration<double, std::milli>(timeout_ms), [&] { return completion.done; });
  if (!completion.done) return;
  Pending found = std::move(*mine);
  pending_.erase(mine);
  ended(stream, slot, *found.completion);
}

void MetalBackend::poll(Stream& stream, int32_t slot) { wait(stream, slot, 0); }

void MetalBackend::finish() {
  std::unique_lock<std::mutex> hold(lock_);
  while (!pending_.empty()) {
    Pending first = pending_.front();
    completed_.wait(hold, [&] { return first.completion->done; });
    pending_.erase(pending_.begin());
    ended(*first.stream, first.slot, *first.completion);
  }
  if (copy_) completed_.wait(hold, [&] { return copy_->done; });
  copy_.reset();
}

void MetalBackend::stop() {
  *reinterpret_cast<volatile int32_t*>(stop_word) = 1;
  finish();
}

int32_t MetalBackend::graph_made(Graph&, Stream&, const char* f) { return fail(BAO_UNSUPPORTED, 0, f, "this backend has no graphs"); }

int32_t MetalBackend::page_copy(Pool& pool, int32_t destination, int32_t source, int32_t tokens, const char* f) {
  @autoreleasepool {
    id<MTLCommandBuffer> commands = [queue_ commandBuffer];
    id<MTLComputeCommandEncoder> encoder = [commands computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
    Pass pass(*this, encoder);
    encode_page_copy(pass, pool.ref, destination, source, tokens);
    [encoder endEncoding];
    copy_ = std::make_shared<Completion>();
    commit(commands, copy_, true);
    return pass.failed() ? fail(BAO_INTERNAL, 0, f, "%s", pass.error().c_str()) : BAO_OK;
  }
}

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
