// Submits: encoded at once, waited for by completion handlers; what the host makes up for when one failed. Page copies go the same way.
#include <algorithm>
#include <chrono>
#include <cstdio>

#include "encode.h"

namespace bao {

namespace {

// Of a step block: CURRENT. Of a stream: REPORT words of each slot.
struct Words : BackendState {
  MetalBackend* backend;
  char* data;
  int64_t bytes;
  Words(MetalBackend* b, int64_t n) : backend(b), data(b->allocate(n, Place::device)), bytes(n) {}
  uint32_t submitted = 0;  // of a step block: number of its last submit
  ~Words() override { if (data) backend->release(data, bytes, Place::device); }
  int32_t* words() const { return reinterpret_cast<int32_t*>(data); }
};

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

// Steps of more rows are prefill: their command buffers are short, and they look at the cancel word between ops.
constexpr int32_t decode_rows = 16, ops_between_looks = 8;
// Command buffers of decode steps take that much more work: as a rule all of a step.
constexpr double decode_commits = 10;
// Launches of a step that the GPU starts with while the rest is encoded, when it has nothing else to do.
constexpr int32_t early_launches = 32;

// Positions that a row of the slot may see. Of rows that follow the device region the host knows a bound.
int32_t reach_of(const Step& step, int32_t slot, int32_t rows) {
  auto words = [&](int32_t field) { return reinterpret_cast<const int32_t*>(step.accepted + slot * step.slot_bytes + step.field[field]); };
  const int32_t *sequence = words(BAO_FIELD_ROW_SEQUENCE), *position = words(BAO_FIELD_ROW_POSITION);
  int64_t most = 0;
  for (int32_t r = 0; r < rows; r++) most = std::max(most, position[r] >= 0 ? int64_t(position[r]) : step.length_bound[size_t(sequence[r])]);
  return int32_t(std::min<int64_t>(most + 1, INT32_MAX));
}

}  // namespace

int32_t MetalBackend::step_made(Step& step, const char* f) {
  @autoreleasepool {
    auto words = std::make_unique<Words>(this, CURRENT_WORDS * 4);
    if (!words->data) return fail(BAO_OUT_OF_MEMORY, 0, f, "no memory for the running step");
    step.state = std::move(words);
    memory.residency.use();  // a model's weights are there by now: they come into memory before the first step waits for them
    return BAO_OK;
  }
}

// Whether the GPU has nothing to do.
bool MetalBackend::idle() {
  std::lock_guard<std::mutex> hold(lock_);
  return std::all_of(pending_.begin(), pending_.end(), [](const Pending& p) { return p.completion->done(); });
}

int32_t MetalBackend::submit(Stream& stream, Graph*, int32_t slot, bool continues, const int32_t committed[4], const char* f) {
  @autoreleasepool {
    if (int32_t status = usable(f)) return status;
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
    bool prefill = rows > decode_rows;
    report[REPORT_STATUS] = BAO_INTERNAL;  // until the device has told
    report[REPORT_REASON] = REASON_NONE;
    const StepLayout layout = layout_of(step, slot);
    auto completion = std::make_shared<Completion>();
    memory.residency.use();

    Pass pass(*this, completion, prefill ? commit_nanoseconds_ : commit_nanoseconds_ * decode_commits, idle() ? early_launches : 0);
    pass.bind_bytes(AT_LAYOUT, &layout, sizeof layout);
    pass.bind(AT_CURRENT, current.data, current.bytes, true);
    pass.bind(AT_REGION, step.region, step.region_bytes, true);
    pass.bind(AT_SLOT, step.accepted + slot * step.slot_bytes, step.slot_bytes, false);
    pass.bind(AT_HOST, step.host + slot * step.slot_bytes, step.slot_bytes, false);
    pass.bind(AT_REPORT, report, REPORT_WORDS * 4, false);
    pass.profile = stream.profile;  // a command buffer for each op, whose times are read at the end
    auto look = [&] {
      if (prefill) Launch(pass, "step", "step_cancel").in(0, stop_word, 4).out(AT_CURRENT, current.data, current.bytes).params(CancelParams{slot, step.serial[slot]}).groups(1, 1, 1, 1);
    };
    pass.reopened = look;

    int32_t predecessor = int32_t(current.submitted), number = int32_t(++current.submitted);
    BeginParams begin{slot, step.serial[slot], continues, stream.limits.samplers, number, predecessor, {}, {}, int32_t(step.field[BAO_FIELD_ROW_ID] / 4),
                      int32_t(step.field[BAO_FIELD_ROW_POSITION] / 4), int32_t(step.field[BAO_FIELD_PAGE_DELTA] / 4), int32_t(step.field[BAO_FIELD_SEQUENCE_DELTA] / 4)};
    std::copy(stream.limits.window, stream.limits.window + 4, begin.window);
    std::copy(committed, committed + 4, begin.committed);
    Launch(pass, "step", "step_begin").in(0, stop_word, 4).out(AT_CURRENT, current.data, current.bytes).out(AT_REGION, step.region, step.region_bytes).params(begin).groups(1, 1, 1, 256);
    const Run run{&pass, stream.scratch, rows, outputs, &step, slot, reach_of(step, slot, rows)};
    int32_t looked = 0;
    for (const Stage& stage : stream.stages) {
      if (stream.profile && stage.op != pass.op) {
        pass.next();
        pass.op = stage.op;
      }
      if (looked++ % ops_between_looks == ops_between_looks - 1) look();
      stage.run(stage.args.get(), run, 0);
    }
    pass.end();

    Stream::SlotState& state = stream.slot_state[slot];
    state.owed = true;
    state.status.store(BAO_PENDING, std::memory_order_relaxed);
    step.busy[slot].fetch_add(1, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> hold(lock_);
      pending_.push_back({&stream, slot, number, continues, {committed[0], committed[1], committed[2], committed[3]}, completion});
    }
    if (stream.profile) {
      finish();
      std::lock_guard<std::mutex> hold(lock_);
      for (auto& [index, done] : pass.timed) {
        if (index >= 0) stream.ops[size_t(index)].nanoseconds += (done.GPUEndTime - done.GPUStartTime) * 1e9;
      }
    }
    return BAO_OK;
  }
}

// ---- ends

// A submit failed. If it had not begun, its deltas are applied here, so that the tables are what the frontend takes them for, and its successors may begin.
// The GPU has nothing to do meanwhile.
void MetalBackend::recover(const Pending& p, int32_t status) {
  Step& step = *p.stream->step;
  int32_t* current = static_cast<Words&>(*step.state).words();
  if (int32_t(uint32_t(current[CURRENT_NUMBER]) - uint32_t(p.number)) < 0) {
    char text[256];
    submit_begin(*p.stream, p.slot, p.continues, p.committed.data(), text, sizeof text);
    current[CURRENT_NUMBER] = p.number;
  }
  current[CURRENT_OUTCOME + p.slot] = status;  // for submits that continue this step
}

// A submit has ended: its status is the command buffers' or the device's report.
void MetalBackend::ended(const Pending& p) {
  Stream& stream = *p.stream;
  Stream::SlotState& state = stream.slot_state[p.slot];
  const Completion& completion = *p.completion;
  const int32_t* report = static_cast<Words&>(*stream.state).words() + p.slot * REPORT_WORDS;
  int32_t status = completion.status != BAO_OK ? completion.status : report[REPORT_STATUS];
  char text[256] = "";
  if (status == BAO_DEVICE && lost_.empty()) lost_ = completion.error;
  if (completion.status != BAO_OK) {
    std::snprintf(text, sizeof text, "%s", completion.error.c_str());
  } else if (!lost_.empty()) {
    status = BAO_DEVICE;
    std::snprintf(text, sizeof text, "%s", lost_.c_str());
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
      case REASON_NOT_BEGUN:
        status = failed_;
        std::snprintf(text, sizeof text, "the submit before this one failed");
        break;
      default: std::snprintf(text, sizeof text, "the device gave no report"); break;
    }
  }
  if (completion.status != BAO_OK) failed_ = completion.status;
  if (completion.status != BAO_OK || report[REPORT_REASON] == REASON_NOT_BEGUN) recover(p, status);
  state.error.assign(text);
  stream.step->busy[p.slot].fetch_sub(1, std::memory_order_release);
  state.status.store(status, std::memory_order_release);
}

// The first `count` pending submits are done. After a failure the GPU is left to end everything first: what follows may have been refused.
void MetalBackend::settle(std::unique_lock<std::mutex>& hold, size_t count) {
  auto clean = [](const Pending& p) {
    return p.completion->status == BAO_OK && static_cast<Words&>(*p.stream->state).words()[p.slot * REPORT_WORDS + REPORT_REASON] != REASON_NOT_BEGUN;
  };
  settle_copies();
  if (!std::all_of(pending_.begin(), pending_.begin() + ptrdiff_t(count), clean)) {
    completed_.wait(hold, [&] { return std::all_of(pending_.begin(), pending_.end(), [](const Pending& p) { return p.completion->done(); }); });
    count = pending_.size();
  }
  for (size_t i = 0; i < count; i++) ended(pending_[i]);
  pending_.erase(pending_.begin(), pending_.begin() + ptrdiff_t(count));
}

// A page whose copy failed holds nothing that anyone could know of: no step may use it, and there is no telling which would.
void MetalBackend::settle_copies() {
  while (!copies_.empty() && copies_.front()->done()) {
    if (copies_.front()->status != BAO_OK && lost_.empty()) lost_ = "a page copy failed: " + copies_.front()->error;
    copies_.erase(copies_.begin());
  }
}

void MetalBackend::wait(Stream& stream, int32_t slot, double timeout_ms) {
  std::unique_lock<std::mutex> hold(lock_);
  auto mine = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) { return p.stream == &stream && p.slot == slot; });
  if (mine == pending_.end()) return;
  Completion& completion = *mine->completion;
  completed_.wait_for(hold, std::chrono::duration<double, std::milli>(timeout_ms), [&] { return completion.done(); });
  if (completion.done()) settle(hold, size_t(mine - pending_.begin()) + 1);
}

void MetalBackend::poll(Stream& stream, int32_t slot) { wait(stream, slot, 0); }

void MetalBackend::finish() {
  std::unique_lock<std::mutex> hold(lock_);
  completed_.wait(hold, [&] {
    return std::all_of(pending_.begin(), pending_.end(), [](const Pending& p) { return p.completion->done(); }) &&
           std::all_of(copies_.begin(), copies_.end(), [](const std::shared_ptr<Completion>& c) { return c->done(); });
  });
  settle(hold, pending_.size());
}

void MetalBackend::stop() {
  *reinterpret_cast<volatile int32_t*>(stop_word) = 1;
  finish();
}

int32_t MetalBackend::page_copy(Pool& pool, int32_t destination, int32_t source, int32_t tokens, const char* f) {
  @autoreleasepool {
    if (int32_t status = usable(f)) return status;
    auto completion = std::make_shared<Completion>();
    memory.residency.use();
    Pass pass(*this, completion, commit_nanoseconds_, 0);
    encode_page_copy(pass, pool.ref, destination, source, tokens);
    pass.end();
    std::unique_lock<std::mutex> hold(lock_);
    if (!pass.failed()) return copies_.push_back(completion), BAO_OK;
    completed_.wait(hold, [&] { return completion->done(); });  // nobody else knows of it
    return fail(pass.status(), 0, f, "%s", pass.error().c_str());
  }
}

// BAO_OK, or a failure when the device can do no more.
int32_t MetalBackend::usable(const char* f) {
  std::lock_guard<std::mutex> hold(lock_);
  settle_copies();
  return lost_.empty() ? BAO_OK : fail(BAO_DEVICE, 0, f, "%s", lost_.c_str());
}

}  // namespace bao
