// The draw (docs/sampling.md) in five launches over a row's chunks: scan; bins; the ids that a cut may fall on, sorted; draw; results. A top-k of up to
// 1024 ends with the sorted ids; without one the cut is looked for among all masses. Each launch leaves at once when the row does not need it.
#include "draw_whole.h"

namespace bao {
namespace {

constexpr int each = chunk_ids / sample_threads, bin_count = 4096, list_most = 8192, top_k_most = 1024;

enum Mode : int32_t {
  mode_done,   // the id is known
  mode_top_k,  // the k largest are looked for, the rest follows among them
  mode_mass,   // no top-k
  mode_whole   // one block does it all
};

struct State {
  int32_t id, finite, mode;
  int32_t cuts;  // mode_mass: a top-p is to be found
  float max;
  uint32_t listed, bin, threshold;  // threshold, last: masses above it are kept, and those on it up to that id
  int32_t last;
  uint64_t over, target;  // what lies above the bin; what the cut has to reach
};
static_assert(sizeof(State) <= 128, "the parts lie behind");

struct Rows {
  SampleArgs a;
  int32_t blocks, first;  // chunks of a row; the first row of this launch
};

__host__ __device__ inline int32_t chunks_of(const Tensor& logits) { return int32_t((logits.columns() + chunk_ids - 1) / chunk_ids); }
__host__ __device__ inline int64_t row_bytes(int32_t blocks) { return 128 + (int64_t(blocks) * 24 + 127) / 128 * 128 + (bin_count + list_most) * 8; }

// A row's scratch, and what its sampler asks for.
struct Row {
  State* state;
  uint4* parts;                // [blocks]: key, id, not finite
  unsigned long long* totals;  // [blocks]
  unsigned long long* bins;
  unsigned long long* list;
  const float* logits;
  const int32_t* sampler;
  int32_t n;
  float inverse;
  __device__ Row(const StepRef* step, const Rows& rows, char* scratch, int32_t r) {
    char* at = scratch + r * row_bytes(rows.blocks);
    state = reinterpret_cast<State*>(at);
    parts = reinterpret_cast<uint4*>(at + 128);
    totals = reinterpret_cast<unsigned long long*>(parts + rows.blocks);
    bins = reinterpret_cast<unsigned long long*>(at + 128 + (int64_t(rows.blocks) * 24 + 127) / 128 * 128);
    list = bins + bin_count;
    logits = rows.a.logits.f32(r);
    sampler = sampler_of(step, r);
    n = int32_t(rows.a.logits.columns());
    inverse = __fdiv_rn(1.0f, word(sampler, BAO_SAMPLER_TEMPERATURE));
  }
  __device__ uint32_t mass(float logit, float max) const { return mass_of(__fmul_rn(__fsub_rn(logit, max), inverse)); }
  __device__ float top_p() const { return word(sampler, BAO_SAMPLER_TOP_P); }
  __device__ uint32_t least() const {
    float min_p = word(sampler, BAO_SAMPLER_MIN_P);
    return min_p > 0 ? uint32_t(mass_fraction(min_p) >> 2) : 0;
  }
  // The first word of the row's random number.
  __device__ uint32_t random(const StepRef* step, int32_t r) const {
    uint32_t position = uint32_t(step->row_position[step->output_row[r]]) + 1;
    return philox(position, 0, 0, 0, uint32_t(sampler[BAO_SAMPLER_SEED_LOW]), uint32_t(sampler[BAO_SAMPLER_SEED_HIGH])).word[0];
  }
};

__device__ __forceinline__ uint64_t share_of(float p, uint64_t total) {
  uint64_t target = mass_share(mass_fraction(p), total);
  return target ? target : 1;
}

// Bins of masses above 0, ascending: the leading bit and seven behind it.
__device__ __forceinline__ uint32_t mass_bin(uint32_t m) {
  int e = 31 - __clz(int(m));
  return uint32_t(e) * 128 + ((e >= 7 ? m >> (e - 7) : m << (7 - e)) & 127);
}
// Values in descending order, then ids in ascending order, are descending integers.
__device__ __forceinline__ uint64_t ranked(uint32_t value, int32_t id) { return uint64_t(value) << 32 | uint32_t(~id); }
__device__ __forceinline__ int32_t ranked_id(uint64_t v) { return int32_t(~uint32_t(v)); }

#define FOR_EACH_ROW()                                       \
  await_previous();                                          \
  let_next_start();                                          \
  const int32_t r = rows.first + int32_t(blockIdx.y);        \
  if (r >= count_of(step, rows.a.logits)) return;            \
  const Row row(step, rows, scratch, r)

__global__ void __launch_bounds__(sample_threads) scan_kernel(const StepRef* step, Rows rows, char* scratch, uint32_t* tickets) {
  __shared__ Best shared[sample_warps];
  __shared__ bool is_last;
  FOR_EACH_ROW();
  for (int32_t i = blockIdx.x * sample_threads + threadIdx.x; i < bin_count; i += gridDim.x * sample_threads) row.bins[i] = 0;
  Best best{0, INT32_MAX};
  int odd = 0;
#pragma unroll
  for (int j = 0; j < each; j++) {
    int32_t i = blockIdx.x * chunk_ids + j * sample_threads + threadIdx.x;
    if (i >= row.n) continue;
    float l = row.logits[i];
    odd |= isnan(l) || l == INFINITY;
    best = better(best, Best{order_key(l), i});
  }
  best = block_best(best, shared);
  odd = __syncthreads_or(odd);
  if (threadIdx.x == 0) row.parts[blockIdx.x] = uint4{best.key, uint32_t(best.id), uint32_t(odd), 0};
  if (!last_block(tickets + blockIdx.y, gridDim.x, &is_last)) return;
  best = Best{0, INT32_MAX};
  odd = 0;
  for (int32_t b = threadIdx.x; b < int32_t(gridDim.x); b += sample_threads) {
    uint4 part = __ldcg(row.parts + b);
    best = better(best, Best{part.x, int32_t(part.y)});
    odd |= int(part.z);
  }
  best = block_best(best, shared);
  odd = __syncthreads_or(odd);
  if (threadIdx.x != 0) return;
  State s{};
  s.finite = !odd && best.key > order_key(-INFINITY);
  s.id = s.finite ? best.id : 0;
  s.mode = mode_done;
  if (s.finite && word(row.sampler, BAO_SAMPLER_TEMPERATURE) > 0 && isfinite(row.inverse)) {
    int32_t k = row.sampler[BAO_SAMPLER_TOP_K];
    bool some = k > 0 && k < row.n;
    s.max = row.logits[best.id];
    s.mode = (some && k > top_k_most) || gridDim.x > sample_threads ? mode_whole : some ? mode_top_k : mode_mass;
    s.cuts = row.top_p() < 1;
    s.last = INT32_MAX;
  }
  *row.state = s;
}

// Counts of keys by their upper 12 bits, or sums of masses; the bin that the cut falls into.
__global__ void __launch_bounds__(sample_threads) bins_kernel(const StepRef* step, Rows rows, char* scratch, uint32_t* tickets) {
  __shared__ uint32_t low[bin_count], high[bin_count];  // of masses the lower 16 bits and the rest: a chunk's sums stay below 2^32
  __shared__ uint64_t shared[sample_warps];
  __shared__ bool is_last;
  FOR_EACH_ROW();
  const bool top_k = row.state->mode == mode_top_k;
  if (!top_k && !(row.state->mode == mode_mass && row.state->cuts)) return;
  const float max = row.state->max;
  for (int32_t i = threadIdx.x; i < bin_count; i += sample_threads) low[i] = high[i] = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < each; j++) {
    int32_t i = blockIdx.x * chunk_ids + j * sample_threads + threadIdx.x;
    if (i >= row.n) continue;
    if (top_k) {
      atomicAdd(&low[order_key(row.logits[i]) >> 20], 1u);
    } else if (uint32_t m = row.mass(row.logits[i], max)) {
      atomicAdd(&low[mass_bin(m)], m & 0xffffu);
      atomicAdd(&high[mass_bin(m)], m >> 16);
    }
  }
  __syncthreads();
  for (int32_t i = threadIdx.x; i < bin_count; i += sample_threads) {
    uint64_t v = low[i] + (uint64_t(high[i]) << 16);
    if (v) atomicAdd(row.bins + i, (unsigned long long)v);
  }
  if (!last_block(tickets + blockIdx.y, gridDim.x, &is_last)) return;
  uint64_t v[bin_count / sample_threads], sum = 0;
  const int32_t top = bin_count - 1 - bin_count / sample_threads * int32_t(threadIdx.x);  // from the largest on
#pragma unroll
  for (int j = 0; j < bin_count / sample_threads; j++) sum += v[j] = __ldcg(row.bins + top - j);
  const Prefix p = block_prefix(sum, shared);
  const uint64_t target = top_k ? uint64_t(row.sampler[BAO_SAMPLER_TOP_K]) : share_of(row.top_p(), p.total);
  uint64_t before = p.before;
#pragma unroll
  for (int j = 0; j < bin_count / sample_threads; j++) {
    if (before < target && before + v[j] >= target) row.state->bin = uint32_t(top - j), row.state->over = before, row.state->target = target;
    before += v[j];
  }
}

// The k largest of the list, then the other cuts and the draw among them.
__device__ void finish_top_k(const StepRef* step, const Row& row, int32_t r, uint64_t* values, int32_t size, uint64_t (&shared)[sample_warps], int32_t* cut) {
  const int32_t k = row.sampler[BAO_SAMPLER_TOP_K], tid = threadIdx.x, width = power_of_two(k);
  block_sort<true>(values, size);
  uint64_t v = tid < k ? values[tid] : 0;
  __syncthreads();
  int32_t id = ranked_id(v);
  uint32_t m = tid < k ? row.mass(row.logits[id], row.state->max) : 0;
  if (tid < width) values[tid] = tid < k ? ranked(m, id) : 0;
  if (tid == 0) *cut = k;
  block_sort<true>(values, width);
  v = tid < k ? values[tid] : 0;
  id = ranked_id(v);
  m = uint32_t(v >> 32);
  Prefix p = block_prefix(m, shared);
  if (row.top_p() < 1) {
    uint64_t target = share_of(row.top_p(), p.total);
    if (p.before < target && p.before + m >= target) *cut = tid + 1;
  }
  __syncthreads();
  if (tid < width) values[tid] = tid < *cut && m >= row.least() ? uint64_t(uint32_t(id)) << 32 | m : ~uint64_t(0);
  block_sort<false>(values, width);
  v = tid < width ? values[tid] : ~uint64_t(0);
  m = v == ~uint64_t(0) ? 0 : uint32_t(v);
  p = block_prefix(m, shared);
  const uint64_t at = mass_share(row.random(step, r), p.total);
  if (p.before <= at && p.before + m > at) row.state->id = int32_t(v >> 32);
  if (tid == 0) row.state->mode = mode_done;
}

// The ids in the bin (of keys: and above it) as a list; the block that ends last sorts it and finds the cut.
__global__ void __launch_bounds__(sample_threads) list_kernel(const StepRef* step, Rows rows, char* scratch, uint32_t* tickets) {
  extern __shared__ uint64_t values[];
  __shared__ uint64_t shared[sample_warps];
  __shared__ bool is_last;
  __shared__ int32_t cut;
  FOR_EACH_ROW();
  const bool top_k = row.state->mode == mode_top_k;
  if (!top_k && !(row.state->mode == mode_mass && row.state->cuts)) return;
  const float max = row.state->max;
  const uint32_t bin = row.state->bin;
#pragma unroll
  for (int j = 0; j < each; j++) {
    int32_t i = blockIdx.x * chunk_ids + j * sample_threads + threadIdx.x;
    if (i >= row.n) continue;
    uint32_t value = top_k ? order_key(row.logits[i]) : row.mass(row.logits[i], max);
    if (top_k ? value >> 20 < bin : value == 0 || mass_bin(value) != bin) continue;
    uint32_t at = atomicAdd(&row.state->listed, 1u);
    if (at < list_most) row.list[at] = ranked(value, i);
  }
  if (!last_block(tickets + blockIdx.y, gridDim.x, &is_last)) return;
  const uint32_t listed = __ldcg(&row.state->listed);
  if (listed > list_most) {
    if (threadIdx.x == 0) row.state->mode = mode_whole;
    return;
  }
  const int32_t size = power_of_two(int32_t(listed));
  for (int32_t i = threadIdx.x; i < size; i += sample_threads) values[i] = i < int32_t(listed) ? __ldcg(row.list + i) : 0;
  __syncthreads();
  if (top_k) {
    finish_top_k(step, row, r, values, size, shared, &cut);
    return;
  }
  block_sort<true>(values, size);
  const int32_t per = size <= sample_threads ? 1 : size / sample_threads, begin = int32_t(threadIdx.x) * per, end = begin + per;
  uint64_t sum = 0;
  for (int32_t i = begin; i < end && i < size; i++) sum += values[i] >> 32;
  uint64_t before = row.state->over + block_prefix(sum, shared).before;
  const uint64_t target = row.state->target;
  for (int32_t i = begin; i < end && i < size; i++) {
    uint64_t m = values[i] >> 32;
    if (before < target && before + m >= target) row.state->threshold = uint32_t(m), row.state->last = ranked_id(values[i]);
    before += m;
  }
}

// Without a top-k: the totals of the chunks, then the id in the chunk that the random number falls into.
__global__ void __launch_bounds__(sample_threads) mass_kernel(const StepRef* step, Rows rows, char* scratch, uint32_t* tickets) {
  __shared__ uint64_t shared[sample_warps], base;
  __shared__ int32_t chunk;
  __shared__ bool is_last;
  FOR_EACH_ROW();
  if (row.state->mode != mode_mass) return;
  const float max = row.state->max;
  const uint32_t threshold = row.state->threshold, least = row.least();
  const int32_t last = row.state->last;
  auto drawn = [&](int32_t i) -> uint32_t {
    uint32_t m = i < row.n ? row.mass(row.logits[i], max) : 0;
    return (m > threshold || (m == threshold && i <= last)) && m >= least ? m : 0;
  };
  uint32_t m[each];
  auto chunk_prefix = [&](int32_t c) {
    uint64_t sum = 0;
#pragma unroll
    for (int j = 0; j < each; j++) sum += m[j] = drawn(c * chunk_ids + int32_t(threadIdx.x) * each + j);
    return block_prefix(sum, shared);
  };
  Prefix p = chunk_prefix(int32_t(blockIdx.x));
  if (threadIdx.x == 0) row.totals[blockIdx.x] = p.total;
  if (!last_block(tickets + blockIdx.y, gridDim.x, &is_last)) return;
  const uint64_t total = threadIdx.x < gridDim.x ? __ldcg(row.totals + threadIdx.x) : 0;
  p = block_prefix(total, shared);
  const uint64_t at = mass_share(row.random(step, r), p.total);
  if (p.before <= at && p.before + total > at) chunk = int32_t(threadIdx.x), base = p.before;
  __syncthreads();
  uint64_t before = base + chunk_prefix(chunk).before;
#pragma unroll
  for (int j = 0; j < each; j++) {
    if (before <= at && before + m[j] > at) row.state->id = chunk * chunk_ids + int32_t(threadIdx.x) * each + j;
    before += m[j];
  }
}

// Results; the sequence goes on. At most one row of a sequence is without HOLD, so rows may do so at the same time.
__global__ void __launch_bounds__(sample_threads) finish_kernel(const StepRef* step, Rows rows, char* scratch) {
  __shared__ Whole whole;
  FOR_EACH_ROW();
  int32_t id = row.state->id;
  if (row.state->mode == mode_whole) {
    const float max = row.state->max;
    id = draw_whole(whole, row.n, row.sampler, row.random(step, r), [&](int32_t i) { return order_key(row.logits[i]); }, [&](int32_t i) { return row.mass(row.logits[i], max); });
  }
  if (threadIdx.x != 0) return;
  int32_t* result = result_of(step, r);
  result[BAO_RESULT_ID] = id;
  result[BAO_RESULT_FINITE] = row.state->finite;
  if (row.sampler[BAO_SAMPLER_TOP_LOGPROBS] >= 0) result[BAO_RESULT_LOGPROB] = __float_as_int(__fsub_rn(row.logits[id], __int_as_float(result[BAO_RESULT_LOG_SUM])));
  if (row.sampler[BAO_SAMPLER_FLAGS] & BAO_SAMPLE_HOLD) return;
  int32_t step_row = step->output_row[r], sequence = step->row_sequence[step_row], count = step->history_count[sequence];
  step->next_id[sequence] = id;
  step->length[sequence] = step->row_position[step_row] + 1;
  step->history[int64_t(sequence) * 64 + count % 64] = id;
  step->history_count[sequence] = count + 1;
}

}  // namespace

int64_t draw_scratch(const Tensor& logits) { return logits.d0 * row_bytes(chunks_of(logits)); }

void launch_draw(const SampleArgs& a, int64_t scratch, const Run& run) {
  constexpr size_t list_bytes = size_t(list_most) * 8;
  int32_t bound = run.bound(a.logits);
  char* at = run.scratch + scratch;
  Rows rows{a, chunks_of(a.logits), 0};
  cudaFuncSetAttribute(list_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(list_bytes));
  for (; rows.first < bound; rows.first += most_tickets) {
    unsigned count = unsigned(bound - rows.first < most_tickets ? bound - rows.first : most_tickets);
    dim3 grid(unsigned(rows.blocks), count);
    launch(run, scan_kernel, grid, sample_threads, 0, run.step, rows, at, run.tickets);
    launch(run, bins_kernel, grid, sample_threads, 0, run.step, rows, at, run.tickets);
    launch(run, list_kernel, grid, sample_threads, list_bytes, run.step, rows, at, run.tickets);
    launch(run, mass_kernel, grid, sample_threads, 0, run.step, rows, at, run.tickets);
    launch(run, finish_kernel, dim3(1, count), sample_threads, 0, run.step, rows, at);
  }
}

}  // namespace bao
