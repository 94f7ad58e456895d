// The step block: layout of a host slot, and the device region with tables, next ids, lengths and recent ids of every sequence.
#include <algorithm>

#include "backend.h"

namespace bao {

Step::~Step() {
  state.reset();
  if (!device) return;
  Backend& backend = *device->backend;
  if (host) backend.release(host, slots * slot_bytes, Place::host_visible);
  if (accepted) backend.release(accepted, slots * slot_bytes, Place::host_visible);
  if (region) backend.release(region, region_bytes, Place::device);
}

namespace {

constexpr int32_t sequence_delta_words = 68, page_delta_words = 4;

// Hands out parts of one block, each on its own cache line.
struct Carver {
  int64_t at = 0;
  int64_t take(int64_t bytes) {
    int64_t start = at;
    at += (bytes + 127) / 128 * 128;
    return start;
  }
};

bool check_count(int argument, const char* name, int32_t value, int32_t least, int32_t most) {
  if (value >= least && value <= most) return true;
  fail(BAO_INVALID, argument, "bao_step_create", "%s is %d, expected %d to %d", name, value, least, most);
  return false;
}

bao_handle create(bao_handle device_handle, int32_t slots, int32_t max_rows, int32_t max_outputs, int32_t max_sequences, int32_t vocabulary, int32_t max_bias, const int32_t pages[4]) {
  const char* f = "bao_step_create";
  Device* device = need<Device>(device_handle, Kind::device, 1, f);
  if (!device) return 0;
  if (!check_count(2, "slots", slots, 1, 8) || !check_count(3, "maxRows", max_rows, 1, 1 << 20) || !check_count(4, "maxOutputs", max_outputs, 1, 1 << 20) ||
      !check_count(5, "maxSequences", max_sequences, 1, 1 << 16) || !check_count(6, "vocabulary", vocabulary, 1, INT32_MAX) ||
      !check_count(7, "maxBias", max_bias, 0, 1 << 24)) {
    return 0;
  }
  int64_t pages_of_one = 0;
  for (int t = 0; t < 4; t++) {
    if (!check_count(8 + t, "pages", pages[t], 0, 1 << 24)) return 0;
    pages_of_one += pages[t];
  }
  int64_t entries = pages_of_one * max_sequences;
  if (entries > int64_t(1) << 28) return fail(BAO_INVALID, 5, f, "page tables of %lld entries are too large, expected up to %d", static_cast<long long>(entries), 1 << 28), 0;

  auto step = std::make_unique<Step>();
  step->kind = Kind::step;
  step->device = device;
  step->slots = slots;
  step->max_rows = max_rows;
  step->max_outputs = max_outputs;
  step->max_sequences = max_sequences;
  step->vocabulary = vocabulary;
  step->max_bias = max_bias;
  step->max_deltas = static_cast<int32_t>(int64_t(max_sequences) * 8 + max_rows / 16 + pages_of_one);

  const int64_t words[BAO_FIELD_END] = {BAO_HEADER_WORDS, max_rows, max_rows, max_rows, max_outputs, int64_t(max_outputs) * BAO_SAMPLER_WORDS,
                                        int64_t(step->max_deltas) * page_delta_words, int64_t(max_sequences) * sequence_delta_words, int64_t(max_bias) * 2,
                                        int64_t(max_outputs) * BAO_RESULT_WORDS};
  Carver slot;
  for (int i = 0; i < BAO_FIELD_END; i++) step->field[i] = slot.take(words[i] * 4);
  step->slot_bytes = step->field[BAO_FIELD_END] = slot.at;

  Carver region;
  int64_t tables = region.take(entries * 4), next_id = region.take(int64_t(max_sequences) * 4), length = region.take(int64_t(max_sequences) * 4);
  int64_t history = region.take(int64_t(max_sequences) * 64 * 4), history_count = region.take(int64_t(max_sequences) * 4);
  int64_t id = region.take(int64_t(max_rows) * slots * 4), position = region.take(int64_t(max_rows) * slots * 4);
  step->region_bytes = region.at;
  step->table_shadow.assign(static_cast<size_t>(entries), -1);
  step->length_bound.assign(static_cast<size_t>(max_sequences), 0);
  step->seen.assign(static_cast<size_t>(max_sequences), 0);
  Backend& backend = *device->backend;
  step->host = backend.allocate(slots * step->slot_bytes, Place::host_visible);
  step->accepted = step->host ? backend.allocate(slots * step->slot_bytes, Place::host_visible) : nullptr;
  step->region = step->accepted ? backend.allocate(step->region_bytes, Place::device) : nullptr;
  if (!step->region) return fail(BAO_OUT_OF_MEMORY, 0, f, "%lld bytes for the slots are not available", static_cast<long long>(2 * slots * step->slot_bytes + step->region_bytes)), 0;

  char* base = step->region;
  auto words_at = [base](int64_t offset) { return reinterpret_cast<int32_t*>(base + offset); };
  StepRef& ref = step->ref;
  step->tables = words_at(tables);
  ref.next_id = words_at(next_id);
  std::vector<int32_t> none(static_cast<size_t>(std::max<int64_t>(entries, max_sequences)), -1);
  if (backend.write(base + tables, none.data(), entries * 4, f) != BAO_OK || backend.write(base + next_id, none.data(), int64_t(max_sequences) * 4, f) != BAO_OK) return 0;
  ref.length = words_at(length);
  ref.history = words_at(history);
  ref.history_count = words_at(history_count);
  step->resolved_id = words_at(id);
  step->resolved_position = words_at(position);
  int64_t start = 0;
  for (int t = 0; t < 4; t++) {
    step->pages[t] = ref.pages[t] = pages[t];
    step->table_start[t] = start;
    ref.table[t] = step->tables + start;
    start += int64_t(pages[t]) * max_sequences;
  }
  ref.vocabulary = vocabulary;
  ref.max_sequences = max_sequences;
  if (backend.step_made(*step, f) != BAO_OK) return 0;
  return handle_new(std::move(step));
}

}  // namespace
}  // namespace bao

using namespace bao;

extern "C" {

bao_handle bao_step_create(bao_handle device, int32_t slots, int32_t max_rows, int32_t max_outputs, int32_t max_sequences, int32_t vocabulary, int32_t max_bias, int32_t pages0, int32_t pages1, int32_t pages2, int32_t pages3) {
  return guarded("bao_step_create", [&]() -> bao_handle {
    const int32_t pages[4] = {pages0, pages1, pages2, pages3};
    return create(device, slots, max_rows, max_outputs, max_sequences, vocabulary, max_bias, pages);
  });
}

int32_t bao_step_free(bao_handle handle) {
  return guarded("bao_step_free", [&]() -> int32_t {
    Step* step = need<Step>(handle, Kind::step, 1, "bao_step_free");
    if (!step) return invalid_argument(1);
    step->device->finish();
    handle_free(handle);
    return BAO_OK;
  });
}

double bao_step_address(bao_handle handle, int32_t slot) {
  Step* step = need<Step>(handle, Kind::step, 1, "bao_step_address");
  if (!step) return 0;
  if (slot < 0 || slot >= step->slots) return fail(BAO_INVALID, 2, "bao_step_address", "slot %d, expected 0 to %d", slot, step->slots - 1), 0.0;
  return static_cast<double>(reinterpret_cast<uintptr_t>(step->host + slot * step->slot_bytes));
}

double bao_step_field(bao_handle handle, int32_t field) {
  Step* step = need<Step>(handle, Kind::step, 1, "bao_step_field");
  if (!step) return -1;
  if (field < 0 || field > BAO_FIELD_END) return fail(BAO_INVALID, 2, "bao_step_field", "field %d, expected a BAO_FIELD_* number", field), -1.0;
  return static_cast<double>(step->field[field]);
}

}  // extern "C"
