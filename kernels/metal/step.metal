// The start of a step on the device: applies the slot's deltas, resolves ids and positions, and says so when a row has nowhere to go.
// Afterwards CURRENT tells every kernel how many rows there are.
#include "kernel.h"

#define THREADS 256
#define DELTA_WORDS 68
#define NO_INDEX 0x7FFFFFFF

constant int32_t STATUS_OK = 0;
constant int32_t STATUS_INVALID = 1;
constant int32_t STATUS_CANCELLED = 7;

// The first index that the window of `position` reaches and that is unset or unbacked; NO_INDEX when there is none. All lanes of a simdgroup.
inline int32_t missing_page(constant StepLayout &layout, constant BeginParams &p, device const int32_t *region, int32_t t, int32_t sequence, int32_t position, uint lane) {
  const int32_t first = p.window[t] == 0 ? 0 : max(0, position - (p.window[t] - 1)) / 64, last = position / 64, pages = layout.pages[t];
  int32_t found = last >= pages ? last : NO_INDEX;
  for (int32_t i = first + int32_t(lane); i <= min(last, pages - 1); i += 32) {
    const int32_t page = region[layout.table[t] + sequence * pages + i];
    if ((page < 0 || page >= p.committed[t]) && i < found) found = i;
  }
  return simd_min(found);
}

kernel void step_begin(constant BeginParams &p [[buffer(24)]], constant StepLayout &layout [[buffer(25)]], device int32_t *current [[buffer(26)]],
                       device int32_t *region [[buffer(27)]], device const int32_t *slot [[buffer(28)]], device const atomic_int *host [[buffer(29)]],
                       device int32_t *report [[buffer(30)]], device const atomic_int *stop [[buffer(0)]], uint tid [[thread_index_in_threadgroup]],
                       uint lane [[thread_index_in_simdgroup]], uint warp [[simdgroup_index_in_threadgroup]]) {
  threadgroup atomic_int bad_row;
  const int32_t rows = slot[0], outputs = slot[1];
  if (current[CURRENT_NUMBER] != p.predecessor) {  // the whole threadgroup; the host makes up for it (MetalBackend::recover)
    if (tid != 0) return;
    report[REPORT_REASON] = REASON_NOT_BEGUN;
    report[REPORT_STATUS] = STATUS_INVALID;
    current[CURRENT_ROWS] = -1;
    current[CURRENT_OUTPUTS] = -1;
    return;
  }
  if (tid == 0) atomic_store_explicit(&bad_row, NO_INDEX, memory_order_relaxed);
  if (!p.continues) {
    for (int32_t i = int32_t(tid); i < slot[2]; i += THREADS) {
      device const int32_t *d = slot + p.page_delta + i * 4;
      region[layout.table[d[0]] + d[1] * layout.pages[d[0]] + d[2]] = d[3];
    }
    for (int32_t i = int32_t(warp); i < slot[3]; i += THREADS / 32) {
      device const int32_t *d = slot + p.sequence_delta + i * DELTA_WORDS;
      const int32_t sequence = d[0];
      for (int32_t j = int32_t(lane); j < d[3]; j += 32) region[layout.history + sequence * 64 + j] = d[4 + j];
      if (lane == 0) {
        region[layout.length + sequence] = d[1];
        region[layout.next_id + sequence] = d[2];
        region[layout.history_count + sequence] = d[3];
      }
    }
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  // A simdgroup a row.
  for (int32_t r = int32_t(warp); r < rows; r += THREADS / 32) {
    const int32_t sequence = slot[layout.row_sequence + r], given = slot[p.row_position + r];
    int32_t place = given, token = slot[p.row_id + r];
    if (p.continues) {
      place = region[layout.row_position + r];
      token = region[layout.row_id + r];
    } else if (given == -1) {
      place = region[layout.length + sequence];
      token = region[layout.next_id + sequence];
    }
    if (lane == 0 && !p.continues) {
      region[layout.row_position + r] = place;
      region[layout.row_id + r] = token;
    }
    if (given != -1) continue;
    bool bad = token < 0 || token >= layout.vocabulary;
    for (int32_t t = 0; t < 4 && !bad; t++) bad = p.window[t] >= 0 && missing_page(layout, p, region, t, sequence, place, lane) != NO_INDEX;
    if (bad && lane == 0) atomic_fetch_min_explicit(&bad_row, r, memory_order_relaxed);
  }
  threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);
  if (warp != 0) return;
  // The first simdgroup tells how it went. An earlier submit of the same step that failed or was cancelled ends this one, too.
  const int32_t before = p.continues ? current[CURRENT_OUTCOME + p.slot] : STATUS_OK, bad = atomic_load_explicit(&bad_row, memory_order_relaxed);
  int32_t status = before, reason = before == STATUS_OK ? REASON_NONE : REASON_EARLIER;
  if (status == STATUS_OK && bad != NO_INDEX) {
    const int32_t sequence = slot[layout.row_sequence + bad], place = region[layout.row_position + bad], token = region[layout.row_id + bad];
    status = STATUS_INVALID;
    reason = token < 0 || token >= layout.vocabulary ? REASON_NO_ID : REASON_NO_PAGE;
    int32_t index = NO_INDEX, table = 0;
    for (int32_t t = 0; t < 4 && reason == REASON_NO_PAGE && index == NO_INDEX; t++) {
      if (p.window[t] < 0) continue;
      index = missing_page(layout, p, region, t, sequence, place, lane);
      table = t;
    }
    if (lane == 0) {
      report[REPORT_ROW] = bad;
      report[REPORT_SEQUENCE] = sequence;
      report[REPORT_POSITION] = place;
      report[REPORT_INDEX] = index;
      report[REPORT_TABLE] = table;
    }
  }
  simdgroup_barrier(mem_flags::mem_device);  // lane 0 writes what all have read
  if (lane != 0) return;
  const bool cancelled = atomic_load_explicit(host + 4, memory_order_relaxed) == p.serial || atomic_load_explicit(stop, memory_order_relaxed) != 0;
  if (status == STATUS_OK && cancelled) status = STATUS_CANCELLED;
  report[REPORT_REASON] = reason;
  report[REPORT_STATUS] = status;
  current[CURRENT_NUMBER] = p.number;
  current[CURRENT_OUTCOME + p.slot] = status;
  current[CURRENT_ROWS] = status == STATUS_OK ? rows : -1;
  current[CURRENT_OUTPUTS] = status == STATUS_OK ? outputs : -1;
}

// Between the ops of a long step: one thread.
kernel void step_cancel(constant CancelParams &p [[buffer(24)]], device int32_t *current [[buffer(26)]], device const atomic_int *host [[buffer(29)]],
                        device int32_t *report [[buffer(30)]], device const atomic_int *stop [[buffer(0)]]) {
  const bool cancelled = atomic_load_explicit(host + 4, memory_order_relaxed) == p.serial || atomic_load_explicit(stop, memory_order_relaxed) != 0;
  if (current[CURRENT_ROWS] < 0 || !cancelled) return;
  current[CURRENT_OUTCOME + p.slot] = STATUS_CANCELLED;
  current[CURRENT_ROWS] = -1;
  current[CURRENT_OUTPUTS] = -1;
  report[REPORT_REASON] = REASON_NONE;
  report[REPORT_STATUS] = STATUS_CANCELLED;
}
