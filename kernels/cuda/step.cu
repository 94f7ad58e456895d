// The start of a step on the device: copies the slot, applies deltas, resolves ids and positions, and says so when a row has nowhere to go.
#include "backend.cuh"

namespace bao {
namespace {

constexpr int threads = 256, delta_words = 68;

// Words from mapped host memory to the device's copy of the slot.
__device__ void take(const BeginArgs& a, int field, int64_t count) {
  const int32_t* from = reinterpret_cast<const int32_t*>(a.accepted + a.field[field]);
  int32_t* to = reinterpret_cast<int32_t*>(a.slot + a.field[field]);
  for (int64_t i = threadIdx.x; i < count; i += threads) to[i] = from[i];
}

// A warp looks for the first index that the window of `position` reaches and that is unset or unbacked; INT32_MAX when there is none.
__device__ int32_t missing_page(const BeginArgs& a, int t, int32_t sequence, int32_t position) {
  const StepRef& ref = a.image.ref;
  int32_t first = a.window[t] == 0 ? 0 : max(0, position - (a.window[t] - 1)) / BAO_KV_PAGE_TOKENS, last = position / BAO_KV_PAGE_TOKENS;
  if (last >= ref.pages[t]) return last;
  int32_t found = INT32_MAX;
  for (int32_t i = first + (threadIdx.x & 31); i <= last; i += 32) {
    int32_t page = ref.page(t, sequence, i);
    if ((page < 0 || page >= a.committed[t]) && i < found) found = i;
  }
  for (int o = 16; o; o >>= 1) found = min(found, __shfl_xor_sync(0xffffffffu, found, o));
  return found;
}

// list: their count, then the rows that are in_short_run(), ascending.
__device__ void list_short_runs(const StepRef& ref, int32_t rows, int32_t* list) {
  __shared__ int32_t counts[threads / 32];
  int32_t total = 0, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int32_t from = 0; from < rows; from += threads) {
    int32_t r = from + int32_t(threadIdx.x);
    bool listed = r < rows && in_short_run(&ref, rows, r);
    uint32_t ballot = __ballot_sync(0xffffffffu, listed);
    __syncthreads();
    if (lane == 0) counts[warp] = __popc(ballot);
    __syncthreads();
    int32_t before = total + __popc(ballot & ((1u << lane) - 1));
    for (int32_t w = 0; w < threads / 32; w++) {
      if (w < warp) before += counts[w];
      total += counts[w];
    }
    if (listed) list[1 + before] = r;
  }
  if (threadIdx.x == 0) list[0] = total;
}

__global__ void __launch_bounds__(threads) begin_kernel(BeginArgs a) {
  __shared__ int32_t bad_row;
  const StepRef& ref = a.image.ref;
  const int32_t* header = reinterpret_cast<const int32_t*>(a.accepted + a.field[BAO_FIELD_HEADER]);
  int32_t rows = header[BAO_HEADER_ROWS], outputs = header[BAO_HEADER_OUTPUTS], tid = threadIdx.x;
  volatile int32_t* report = a.image.report;
  if (tid == 0) bad_row = INT32_MAX;
  take(a, BAO_FIELD_ROW_SEQUENCE, rows);
  take(a, BAO_FIELD_OUTPUT_ROW, outputs);
  if (a.samplers) take(a, BAO_FIELD_OUTPUT_SAMPLER, int64_t(outputs) * BAO_SAMPLER_WORDS);
  if (!a.continues) {
    const int32_t* delta = reinterpret_cast<const int32_t*>(a.accepted + a.field[BAO_FIELD_PAGE_DELTA]);
    for (int32_t i = tid; i < header[BAO_HEADER_PAGE_DELTAS]; i += threads) {
      const int32_t* d = delta + int64_t(i) * 4;
      a.tables[a.table_start[d[0]] + int64_t(d[1]) * ref.pages[d[0]] + d[2]] = d[3];
    }
    delta = reinterpret_cast<const int32_t*>(a.accepted + a.field[BAO_FIELD_SEQUENCE_DELTA]);
    for (int32_t i = tid >> 5; i < header[BAO_HEADER_SEQUENCE_DELTAS]; i += threads / 32) {
      const int32_t* d = delta + int64_t(i) * delta_words;
      int32_t sequence = d[0];
      for (int32_t j = tid & 31; j < d[3]; j += 32) ref.history[int64_t(sequence) * 64 + j] = d[4 + j];
      if ((tid & 31) == 0) ref.length[sequence] = d[1], ref.next_id[sequence] = d[2], ref.history_count[sequence] = d[3];
    }
  }
  __syncthreads();
  const int32_t* id = reinterpret_cast<const int32_t*>(a.accepted + a.field[BAO_FIELD_ROW_ID]);
  const int32_t* position = reinterpret_cast<const int32_t*>(a.accepted + a.field[BAO_FIELD_ROW_POSITION]);
  const int32_t* row_sequence = ref.row_sequence;
  for (int32_t r = tid >> 5; r < rows; r += threads / 32) {  // a warp a row
    int32_t sequence = row_sequence[r], given = position[r], place = given, token = id[r];
    if (a.continues) {
      place = a.resolved_position[r], token = a.resolved_id[r];
    } else if (given == -1) {
      place = ref.length[sequence], token = ref.next_id[sequence];
    }
    __syncwarp();
    if ((tid & 31) == 0 && !a.continues) a.resolved_position[r] = place, a.resolved_id[r] = token;
    if (given != -1) continue;
    bool bad = token < 0 || token >= ref.vocabulary;
    for (int t = 0; t < 4 && !bad; t++) bad = a.window[t] >= 0 && missing_page(a, t, sequence, place) != INT32_MAX;
    if (bad && (tid & 31) == 0) atomicMin(&bad_row, r);
  }
  list_short_runs(ref, rows, a.short_runs);
  __syncthreads();
  if (tid >= 32) return;
  // The first warp tells how it went. An earlier submit of the same step that failed or was cancelled ends this one too.
  int32_t before = a.continues ? *a.image.outcome : BAO_OK;
  int32_t status = before, reason = before == BAO_OK ? REASON_NONE : REASON_EARLIER;
  if (status == BAO_OK && bad_row != INT32_MAX) {
    int32_t r = bad_row, sequence = row_sequence[r], place = a.resolved_position[r], token = a.resolved_id[r];
    status = BAO_INVALID;
    reason = token < 0 || token >= ref.vocabulary ? REASON_NO_ID : REASON_NO_PAGE;
    int32_t index = INT32_MAX, table = 0;
    for (int t = 0; t < 4 && reason == REASON_NO_PAGE && index == INT32_MAX; t++) {
      if (a.window[t] >= 0) index = missing_page(a, t, sequence, place), table = t;
    }
    if (tid == 0) report[REPORT_ROW] = r, report[REPORT_SEQUENCE] = sequence, report[REPORT_POSITION] = place, report[REPORT_INDEX] = index, report[REPORT_TABLE] = table;
  }
  if (tid != 0) return;
  if (status == BAO_OK && (*a.image.cancel == a.image.serial || *a.image.stop)) status = BAO_CANCELLED;
  *a.image.outcome = status;
  report[REPORT_REASON] = reason;
  report[REPORT_STATUS] = status;
  *a.current = a.image;
  a.current->ref.rows = status == BAO_OK ? rows : -1;
  a.current->ref.outputs = status == BAO_OK ? outputs : -1;
}

__global__ void cancel_kernel(Current* c) {
  if (c->ref.rows < 0 || !(*c->cancel == c->serial || *c->stop)) return;
  *c->outcome = BAO_CANCELLED;
  c->report[REPORT_REASON] = REASON_NONE;
  c->report[REPORT_STATUS] = BAO_CANCELLED;
  c->ref.rows = -1;
  c->ref.outputs = -1;
}

}  // namespace

void launch_begin(const BeginArgs& args, cudaStream_t stream) { begin_kernel<<<1, threads, 0, stream>>>(args); }

void launch_cancel_check(Current* current, cudaStream_t stream) { cancel_kernel<<<1, 1, 0, stream>>>(current); }

}  // namespace bao
