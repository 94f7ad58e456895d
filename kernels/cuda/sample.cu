// What follows the logits: mask, bias and penalties, log-probabilities, argmax; the draw itself is in draw.cu. docs/sampling.md is the definition.
#include "sample.h"

namespace bao {
namespace {

__host__ __device__ inline int32_t chunks_of(int64_t n) { return int32_t((n + chunk_ids - 1) / chunk_ids); }

// Launches a kernel over (chunks, rows), in slices that have a ticket for each row.
template <class... P, class... A>
void launch_rows(const Run& run, void (*kernel)(P...), int64_t columns, int32_t bound, const A&... args) {
  for (int32_t first = 0; first < bound; first += most_tickets) {
    unsigned count = unsigned(bound - first < most_tickets ? bound - first : most_tickets);
    launch(run, kernel, dim3(unsigned(chunks_of(columns)), count), sample_threads, 0, run.step, args..., first, run.tickets);
  }
}

// ---- mask, bias, penalties

__global__ void __launch_bounds__(256) mask_kernel(const StepRef* step, LogitsArgs a) {
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, a.logits), n = int32_t(a.logits.columns()), i = blockIdx.x * 256 + threadIdx.x;
  if (i >= n) return;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    if ((sampler_of(step, r)[BAO_SAMPLER_FLAGS] & BAO_SAMPLE_MASK) && !(uint32_t(a.mask.i32(r)[i / 32]) >> (i % 32) & 1)) a.logits.f32(r)[i] = -INFINITY;
  }
}

__global__ void __launch_bounds__(256) process_kernel(const StepRef* step, LogitsArgs a) {
  __shared__ int2 entries[256];
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, a.logits), n = int32_t(a.logits.columns()), i = threadIdx.x;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const int32_t* sampler = sampler_of(step, r);
    float* logits = a.logits.f32(r);
    // Entries in order: 256 at a time, one thread an id, which is the first of them that names it.
    int32_t biases = sampler[BAO_SAMPLER_BIAS_COUNT];
    for (int32_t from = 0; from < biases; from += 256) {
      __syncthreads();
      if (from + i < biases) entries[i] = reinterpret_cast<const int2*>(step->bias)[int64_t(sampler[BAO_SAMPLER_BIAS_START]) + from + i];
      __syncthreads();
      int32_t count = min(biases - from, 256), id = i < count ? entries[i].x : -1;
      bool first = id >= 0 && id < n;
      for (int32_t j = 0; j < i && first; j++) first = entries[j].x != id;
      if (!first) continue;
      float l = logits[id];
      for (int32_t j = i; j < count; j++) {
        if (entries[j].x == id) l += __int_as_float(entries[j].y);
      }
      logits[id] = l;
    }
    __syncthreads();
    float repetition = word(sampler, BAO_SAMPLER_REPETITION), presence = word(sampler, BAO_SAMPLER_PRESENCE), frequency = word(sampler, BAO_SAMPLER_FREQUENCY);
    if (repetition == 1 && presence == 0 && frequency == 0) continue;
    int32_t sequence = step->row_sequence[step->output_row[r]];
    const int32_t* history = step->history + int64_t(sequence) * 64;
    int32_t valid = min(step->history_count[sequence], 64);
    if (i >= valid) continue;
    int32_t id = history[i], count = 0, first = -1;
    for (int32_t j = 0; j < valid; j++) {
      if (history[j] != id) continue;
      if (first < 0) first = j;
      count++;
    }
    if (first != i || id < 0 || id >= n) continue;  // each distinct id once
    float l = logits[id];
    if (repetition != 1) l = l > 0 ? __fdiv_rn(l, repetition) : __fmul_rn(l, repetition);
    if (presence != 0) l = __fsub_rn(l, presence);
    if (frequency != 0) l = __fsub_rn(l, __fmul_rn(frequency, float(count)));
    logits[id] = l;
  }
}

// ---- log-probabilities: each chunk's largest logit, sum and best ids, merged by the block that ends last.

constexpr int most_top = 20;
struct ChunkSum { double sum; float max; int32_t unused; };
struct Logprobs { SampleArgs a; int64_t sums, tops; };

// A thread's best entry behind `last`: a key below, or the same key with a higher id.
__device__ __forceinline__ Best behind(Best best, Best last, uint32_t key, int32_t id) {
  return key < last.key || (key == last.key && id > last.id) ? better(best, Best{key, id}) : best;
}

__global__ void __launch_bounds__(sample_threads) logprobs_kernel(const StepRef* step, SampleArgs a, ChunkSum* sums, Best* tops, int32_t first, uint32_t* tickets) {
  __shared__ Best shared[sample_warps];
  __shared__ double warp_sums[sample_warps];
  __shared__ bool is_last;
  await_previous();
  let_next_start();
  const int32_t r = first + int32_t(blockIdx.y), n = int32_t(a.logits.columns()), blocks = int32_t(gridDim.x), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (r >= count_of(step, a.logits)) return;
  const int32_t wanted = min(sampler_of(step, r)[BAO_SAMPLER_TOP_LOGPROBS], most_top);
  if (wanted < 0) return;
  const float* logits = a.logits.f32(r);
  sums += int64_t(r) * blocks;
  tops += int64_t(r) * blocks * most_top;
  auto block_total = [&](double v) {
    for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();
    if (lane == 0) warp_sums[warp] = v;
    __syncthreads();
    v = 0;
    for (int w = 0; w < sample_warps; w++) v += warp_sums[w];
    return v;
  };
  const uint32_t floor = order_key(-INFINITY);  // ids at -infinity are not listed
  const Best none{0, INT32_MAX}, start{0xffffffffu, -1};

  Best mine[chunk_ids / sample_threads], best = none;
  float value[chunk_ids / sample_threads];
#pragma unroll
  for (int j = 0; j < chunk_ids / sample_threads; j++) {
    int32_t i = blockIdx.x * chunk_ids + j * sample_threads + threadIdx.x;
    value[j] = i < n ? logits[i] : -INFINITY;
    mine[j] = Best{order_key(value[j]), i};
    if (i < n) best = better(best, mine[j]);
  }
  best = block_best(best, shared);
  const float max = best.key == 0 ? -INFINITY : logits[best.id];  // NaN is no maximum
  double sum = 0;
#pragma unroll
  for (int j = 0; j < chunk_ids / sample_threads; j++) sum += value[j] == -INFINITY ? 0.0 : double(expf(value[j] - max));
  sum = block_total(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = ChunkSum{sum, max, 0};
  Best last = start;
  for (int32_t t = 0; t < wanted; t++) {
    best = none;
#pragma unroll
    for (int j = 0; j < chunk_ids / sample_threads; j++) {
      if (mine[j].key > floor) best = behind(best, last, mine[j].key, mine[j].id);
    }
    best = block_best(best, shared);
    if (threadIdx.x == 0) tops[blockIdx.x * most_top + t] = best;
    if (best.key != 0) last = best;
    else last = Best{0, INT32_MAX};
  }
  if (!last_block(tickets + blockIdx.y, gridDim.x, &is_last)) return;

  best = none;
  for (int32_t b = threadIdx.x; b < blocks; b += sample_threads) best = better(best, Best{order_key(__ldcg(&sums[b].max)), b});
  best = block_best(best, shared);
  const float high = __ldcg(&sums[best.id].max);
  sum = 0;
  for (int32_t b = threadIdx.x; b < blocks; b += sample_threads) {
    double part = __ldcg(&sums[b].sum);
    float top = __ldcg(&sums[b].max);
    sum += top == -INFINITY ? part : part * exp(double(top) - double(high));
  }
  sum = block_total(sum);
  const float log_sum = high == -INFINITY ? -INFINITY : float(double(high) + log(sum));
  int32_t* result = result_of(step, r);
  last = start;
  int32_t count = 0;
  for (; count < wanted; count++) {
    best = none;
    for (int32_t i = threadIdx.x; i < blocks * most_top; i += sample_threads) {
      if (i % most_top >= wanted) continue;
      uint2 top = __ldcg(reinterpret_cast<const uint2*>(tops + i));
      if (top.x != 0) best = behind(best, last, top.x, int32_t(top.y));
    }
    best = block_best(best, shared);
    if (best.key == 0) break;
    if (threadIdx.x == 0) {
      result[BAO_RESULT_TOP_IDS + count] = best.id;
      result[BAO_RESULT_TOP_LOGPROBS + count] = __float_as_int(logits[best.id] - log_sum);
    }
    last = best;
  }
  if (threadIdx.x == 0) {
    result[BAO_RESULT_LOG_SUM] = __float_as_int(log_sum);
    result[BAO_RESULT_TOP_COUNT] = count;
  }
}

// ---- argmax

__global__ void __launch_bounds__(sample_threads) argmax_kernel(const StepRef* step, CopyArgs a, Best* parts, int32_t first, uint32_t* tickets) {
  __shared__ Best shared[sample_warps];
  __shared__ bool is_last;
  await_previous();
  let_next_start();
  const int32_t r = first + int32_t(blockIdx.y), n = int32_t(a.x.columns()), blocks = int32_t(gridDim.x);
  if (r >= count_of(step, a.dst)) return;
  parts += int64_t(r) * blocks;
  Best best{0, INT32_MAX};
#pragma unroll
  for (int j = 0; j < chunk_ids / sample_threads; j++) {
    int32_t i = blockIdx.x * chunk_ids + j * sample_threads + threadIdx.x;
    if (i < n) best = better(best, Best{order_key(a.x.f32(r)[i]), i});
  }
  best = block_best(best, shared);
  if (threadIdx.x == 0) parts[blockIdx.x] = best;
  if (!last_block(tickets + blockIdx.y, gridDim.x, &is_last)) return;
  best = Best{0, INT32_MAX};
  for (int32_t b = threadIdx.x; b < blocks; b += sample_threads) {
    uint2 part = __ldcg(reinterpret_cast<const uint2*>(parts + b));
    best = better(best, Best{part.x, int32_t(part.y)});
  }
  best = block_best(best, shared);
  if (threadIdx.x == 0) *a.dst.i32(r) = best.key == 0 ? 0 : best.id;
}

void launch_process(const LogitsArgs& a, const Run& run) {
  int32_t rows = run.bound(a.logits);
  if (rows <= 0) return;
  if (a.mask.present()) launch(run, mask_kernel, dim3(blocks_of(a.logits.columns(), 256), grid_rows(rows)), 256, 0, run.step, a);
  launch(run, process_kernel, dim3(1, grid_rows(rows)), 256, 0, run.step, a);
}

void launch_logprobs(const Logprobs& l, const Run& run) {
  launch_rows(run, logprobs_kernel, l.a.logits.columns(), run.bound(l.a.logits), l.a, reinterpret_cast<ChunkSum*>(run.scratch + l.sums), reinterpret_cast<Best*>(run.scratch + l.tops));
}

struct Argmax { CopyArgs a; int64_t parts; };
void launch_argmax(const Argmax& m, const Run& run) {
  launch_rows(run, argmax_kernel, m.a.x.columns(), run.bound(m.a.dst), m.a, reinterpret_cast<Best*>(run.scratch + m.parts));
}

struct Draw { SampleArgs a; int64_t scratch; };
void launch_sample(const Draw& d, const Run& run) { launch_draw(d.a, d.scratch, run); }

}  // namespace

namespace cuda {

void logits_process(Builder& b, const LogitsArgs& a) { stage<LogitsArgs, launch_process>(b, a); }

void logprobs(Builder& b, const SampleArgs& a) {
  int64_t chunks = int64_t(a.logits.d0) * chunks_of(a.logits.columns());
  Logprobs l{a, b.reserve_scratch(chunks * int64_t(sizeof(ChunkSum))), 0};
  l.tops = b.reserve_scratch(chunks * most_top * int64_t(sizeof(Best)));
  stage<Logprobs, launch_logprobs>(b, l);
}

void argmax(Builder& b, const CopyArgs& a) {
  stage<Argmax, launch_argmax>(b, Argmax{a, b.reserve_scratch(int64_t(a.dst.d0) * chunks_of(a.x.columns()) * int64_t(sizeof(Best)))});
}

void sample(Builder& b, const SampleArgs& a) { stage<Draw, launch_sample>(b, Draw{a, b.reserve_scratch(draw_scratch(a.logits))}); }

}  // namespace cuda

}  // namespace bao
