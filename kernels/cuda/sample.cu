// What follows the logits: mask, bias and penalties, log-probabilities, the draw. docs/sampling.md is the definition; decisions are made with
// integers, whose sums do not depend on order. One block an output row; each warp owns a contiguous range of ids, so that ranks in ascending
// order of id are a sum over warps and a walk inside one.
#include "../common/sample_mass.h"
#include "run.h"

namespace bao {
namespace {

constexpr int threads = 1024, warps = threads / 32;
constexpr int list_most = 1024;  // ids that a top-k may leave for the cuts behind it to go over a list instead of the vocabulary

__device__ __forceinline__ const int32_t* sampler_of(const StepRef* step, int32_t output) { return step->sampler + int64_t(output) * BAO_SAMPLER_WORDS; }
__device__ __forceinline__ int32_t* result_of(const StepRef* step, int32_t output) { return step->result + int64_t(output) * BAO_RESULT_WORDS; }
__device__ __forceinline__ float word(const int32_t* words, int32_t at) { return __int_as_float(words[at]); }

__global__ void __launch_bounds__(256) process_kernel(const StepRef* step, LogitsArgs a) {
  int32_t rows = count_of(step, a.logits), n = int32_t(a.logits.columns());
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const int32_t* sampler = sampler_of(step, r);
    float* logits = a.logits.f32(r);
    __syncthreads();
    if (a.mask.present() && (sampler[BAO_SAMPLER_FLAGS] & BAO_SAMPLE_MASK)) {
      for (int32_t i = threadIdx.x; i < n; i += 256) {
        if (!(uint32_t(a.mask.i32(r)[i / 32]) >> (i % 32) & 1)) logits[i] = -INFINITY;
      }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int32_t i = 0; i < sampler[BAO_SAMPLER_BIAS_COUNT]; i++) {
        const int32_t* entry = step->bias + 2 * (int64_t(sampler[BAO_SAMPLER_BIAS_START]) + i);
        if (entry[0] >= 0 && entry[0] < n) logits[entry[0]] += word(entry, 1);
      }
    }
    __syncthreads();
    float repetition = word(sampler, BAO_SAMPLER_REPETITION), presence = word(sampler, BAO_SAMPLER_PRESENCE), frequency = word(sampler, BAO_SAMPLER_FREQUENCY);
    int32_t sequence = step->row_sequence[step->output_row[r]];
    const int32_t* history = step->history + int64_t(sequence) * 64;
    int32_t valid = min(step->history_count[sequence], 64), i = threadIdx.x;
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

// ---- block-wide helpers

__device__ __forceinline__ uint64_t warp_total(uint64_t v) {
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffffu, (unsigned long long)v, o);
  return v;
}

// The exclusive prefix over the lanes of a warp.
__device__ __forceinline__ uint64_t lane_prefix(uint64_t v) {
  int lane = threadIdx.x & 31;
  uint64_t sum = v;
  for (int o = 1; o < 32; o <<= 1) {
    uint64_t other = __shfl_up_sync(0xffffffffu, (unsigned long long)sum, o);
    if (lane >= o) sum += other;
  }
  return sum - v;
}

struct Shared {
  unsigned long long bins[256], totals[warps];
  uint32_t counts[256];
  int32_t list[list_most];
  uint32_t keys[warps];
  int32_t ids[warps];
  unsigned long long value;
  int32_t id, flag;
};

// A warp's range of ids: whole multiples of 32, so that lanes read side by side.
struct Range { int32_t begin, end; };
__device__ __forceinline__ Range range_of(int32_t n) {
  int32_t per = (n + warps * 32 - 1) / (warps * 32) * 32, begin = min(int32_t(threadIdx.x >> 5) * per, n);
  return {begin, min(begin + per, n)};
}

// Sum over the block of a value of each id.
template <class F>
__device__ uint64_t block_total(Shared& s, int32_t n, F value) {
  uint64_t sum = 0;
  for (int32_t i = threadIdx.x; i < n; i += threads) sum += value(i);
  sum = warp_total(sum);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) s.totals[threadIdx.x >> 5] = sum;
  __syncthreads();
  sum = 0;
  for (int w = 0; w < warps; w++) sum += s.totals[w];
  return sum;
}

// The first id, ascending, at which the running total of value(id) exceeds `target`; n when none does. 
template <class F>
__device__ int32_t first_above(Shared& s, int32_t n, uint64_t target, F value) {
  Range range = range_of(n);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  uint64_t sum = 0;
  for (int32_t i = range.begin + lane; i < range.end; i += 32) sum += value(i);
  sum = warp_total(sum);
  __syncthreads();
  if (lane == 0) s.totals[warp] = sum;
  if (threadIdx.x == 0) s.id = n;
  __syncthreads();
  uint64_t before = 0;
  for (int w = 0; w < warp; w++) before += s.totals[w];
  if (before <= target && before + sum > target) {
    for (int32_t i0 = range.begin; i0 < range.end; i0 += 32) {
      int32_t i = i0 + lane;
      uint64_t v = i < range.end ? value(i) : 0, until = before + lane_prefix(v) + v;
      unsigned reached = __ballot_sync(0xffffffffu, until > target);
      if (reached) {
        if (lane == 0) s.id = i0 + __ffs(int(reached)) - 1;
        break;
      }
      before = __shfl_sync(0xffffffffu, (unsigned long long)until, 31);
    }
  }
  __syncthreads();
  return s.id;
}

// The largest threshold t for which the sum of weight(id) over ids with key(id) >= t reaches `target` (at least 1, at most the total); and that
// sum for keys above t. By digits of 8 bits, most significant first.
// Count: every weight is 1; lanes of one digit add together.
template <bool Count, class Key, class Weight>
__device__ uint32_t largest_threshold(Shared& s, int32_t n, uint64_t target, Key key, Weight weight, uint64_t* above) {
  uint32_t prefix = 0;
  uint64_t over = 0;  // of keys above the prefix's range
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < 256) s.bins[threadIdx.x] = 0, s.counts[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t i0 = 0; i0 < n; i0 += threads) {
      int32_t i = i0 + int32_t(threadIdx.x);
      uint64_t w = i < n ? weight(i) : 0;
      uint32_t k = w ? key(i) : 0;
      bool in = w != 0 && (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8));
      if constexpr (Count) {
        unsigned active = __ballot_sync(0xffffffffu, in);
        if (!in) continue;
        unsigned peers = __match_any_sync(active, k >> shift & 255u);
        if ((threadIdx.x & 31) == unsigned(__ffs(int(peers)) - 1)) atomicAdd(&s.counts[k >> shift & 255u], unsigned(__popc(peers)));
      } else if (in) {
        atomicAdd(&s.bins[k >> shift & 255u], (unsigned long long)w);  // integers: any order gives the same sum
      }
    }
    __syncthreads();
    if (Count && threadIdx.x < 256) s.bins[threadIdx.x] = s.counts[threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) {
      int digit = 255;
      uint64_t sum = over;
      while (digit > 0 && sum + s.bins[digit] < target) sum += s.bins[digit--];
      s.id = digit;
      s.value = sum;
    }
    __syncthreads();
    prefix |= uint32_t(s.id) << shift;
    over = s.value;
  }
  *above = over;
  return prefix;
}

// The ids that keep(id) keeps, ascending, into s.list; at most list_most of them.
template <class F>
__device__ void make_list(Shared& s, int32_t n, F keep) {
  Range range = range_of(n);
  int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  int32_t found = 0;
  for (int32_t i0 = range.begin; i0 < range.end; i0 += 32) found += __popc(__ballot_sync(0xffffffffu, i0 + lane < range.end && keep(i0 + lane)));
  __syncthreads();
  if (lane == 0) s.ids[warp] = found;
  __syncthreads();
  int32_t at = 0;
  for (int w = 0; w < warp; w++) at += s.ids[w];
  for (int32_t i0 = range.begin; i0 < range.end && found; i0 += 32) {
    bool kept = i0 + lane < range.end && keep(i0 + lane);
    unsigned all = __ballot_sync(0xffffffffu, kept);
    if (kept) s.list[at + __popc(all & ((1u << lane) - 1))] = i0 + lane;
    at += __popc(all);
  }
  __syncthreads();
}

struct Scan { float max; int32_t argmax; bool finite; };

// The largest logit, ties to the lower id; finite: no NaN, no +infinity, and something above -infinity.
__device__ Scan scan_row(Shared& s, const float* logits, int32_t n) {
  uint32_t key = 0;
  int32_t id = INT32_MAX, odd = 0;
  for (int32_t i = threadIdx.x; i < n; i += threads) {
    float l = logits[i];
    odd |= isnan(l) || l == INFINITY;
    uint32_t k = order_key(l);
    if (k > key) key = k, id = i;
  }
  for (int o = 16; o; o >>= 1) {
    uint32_t other = __shfl_xor_sync(0xffffffffu, key, o);
    int32_t other_id = __shfl_xor_sync(0xffffffffu, id, o);
    if (other > key || (other == key && other_id < id)) key = other, id = other_id;
  }
  odd = __syncthreads_or(odd);
  if ((threadIdx.x & 31) == 0) s.keys[threadIdx.x >> 5] = key, s.ids[threadIdx.x >> 5] = id;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < warps; w++) {
      if (s.keys[w] > key || (s.keys[w] == key && s.ids[w] < id)) key = s.keys[w], id = s.ids[w];
    }
    s.id = id == INT32_MAX ? 0 : id;
  }
  __syncthreads();
  Scan out{logits[s.id], s.id, false};
  out.finite = !odd && out.max > -INFINITY;
  __syncthreads();
  return out;
}

// Keeps keys above the threshold, and of those on it the ids up to `last`.
struct Cut {
  uint32_t threshold;
  int32_t last;
  __device__ bool keeps(uint32_t key, int32_t id) const { return key > threshold || (key == threshold && id <= last); }
};

__global__ void __launch_bounds__(threads) draw_kernel(const StepRef* step, SampleArgs a) {
  __shared__ Shared s;
  int32_t rows = count_of(step, a.logits), n = int32_t(a.logits.columns());
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const int32_t* sampler = sampler_of(step, r);
    const float* logits = a.logits.f32(r);
    Scan scan = scan_row(s, logits, n);
    float temperature = word(sampler, BAO_SAMPLER_TEMPERATURE), inverse = __fdiv_rn(1.0f, temperature);
    int32_t id = 0;
    if (scan.finite) id = scan.argmax;
    if (scan.finite && temperature > 0 && isfinite(inverse)) {
      Cut top_k{0, INT32_MAX}, top_p{0, INT32_MAX};
      int32_t k = sampler[BAO_SAMPLER_TOP_K];
      auto one = [](int32_t) -> uint64_t { return 1; };
      auto key = [&](int32_t i) { return order_key(logits[i]); };
      auto mass = [&](int32_t i) { return mass_of(__fmul_rn(__fsub_rn(logits[i], scan.max), inverse)); };
      if (k > 0 && k < n) {
        uint64_t above;
        top_k.threshold = largest_threshold<true>(s, n, uint64_t(k), key, one, &above);
        uint64_t ties = uint64_t(k) - above;  // at least 1
        top_k.last = first_above(s, n, ties - 1, [&](int32_t i) -> uint64_t { return key(i) == top_k.threshold; });
      }
      // What follows goes over places 0 ... left - 1 in ascending order of id: of a list, or of the vocabulary itself.
      bool listed = k > 0 && k < n && k <= list_most;
      int32_t left = listed ? k : n;
      if (listed) make_list(s, n, [&](int32_t i) { return top_k.keeps(key(i), i); });
      auto id_of = [&](int32_t i) { return listed ? s.list[i] : i; };
      auto kept = [&](int32_t i) -> uint64_t {
        int32_t at = id_of(i);
        return listed || top_k.keeps(key(at), at) ? mass(at) : 0;
      };
      float p = word(sampler, BAO_SAMPLER_TOP_P);
      if (p < 1) {
        uint64_t target = mass_share(mass_fraction(p), block_total(s, left, kept)), above;
        if (target == 0) target = 1;
        top_p.threshold = largest_threshold<false>(s, left, target, [&](int32_t i) { return mass(id_of(i)); }, kept, &above);
        if (top_p.threshold > 0) {
          uint64_t ties = (target - above + top_p.threshold - 1) / top_p.threshold;
          top_p.last = first_above(s, left, ties - 1, [&](int32_t i) -> uint64_t { return kept(i) == top_p.threshold; });
        }
      }
      float min_p = word(sampler, BAO_SAMPLER_MIN_P);
      uint32_t least = min_p > 0 ? uint32_t(mass_fraction(min_p) >> 2) : 0;
      auto drawn = [&](int32_t i) -> uint64_t {
        uint32_t m = uint32_t(kept(i));
        return top_p.keeps(m, i) && m >= least ? m : 0;
      };
      uint64_t total = block_total(s, left, drawn);
      uint32_t position = uint32_t(step->row_position[step->output_row[r]]) + 1;
      uint32_t u = philox(position, 0, 0, 0, uint32_t(sampler[BAO_SAMPLER_SEED_LOW]), uint32_t(sampler[BAO_SAMPLER_SEED_HIGH])).word[0];
      id = id_of(first_above(s, left, mass_share(u, total), drawn));
    }
    if (threadIdx.x == 0) {
      int32_t* result = result_of(step, r);
      result[BAO_RESULT_ID] = id;
      result[BAO_RESULT_FINITE] = scan.finite;
      if (sampler[BAO_SAMPLER_TOP_LOGPROBS] >= 0) result[BAO_RESULT_LOGPROB] = __float_as_int(__fsub_rn(logits[id], __int_as_float(result[BAO_RESULT_LOG_SUM])));
    }
    __syncthreads();
  }
}

// Rows in ascending order: two rows of one sequence must not advance it at the same time.
__global__ void advance_kernel(const StepRef* step) {
  for (int32_t r = 0; r < step->outputs; r++) {
    if (sampler_of(step, r)[BAO_SAMPLER_FLAGS] & BAO_SAMPLE_HOLD) continue;
    int32_t row = step->output_row[r], sequence = step->row_sequence[row], id = result_of(step, r)[BAO_RESULT_ID];
    step->next_id[sequence] = id;
    step->length[sequence] = step->row_position[row] + 1;
    step->history[int64_t(sequence) * 64 + step->history_count[sequence] % 64] = id;
    step->history_count[sequence]++;
  }
}

__global__ void __launch_bounds__(threads) logprobs_kernel(const StepRef* step, SampleArgs a) {
  __shared__ Shared s;
  __shared__ double sums[warps];
  int32_t rows = count_of(step, a.logits), n = int32_t(a.logits.columns());
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    int32_t wanted = sampler_of(step, r)[BAO_SAMPLER_TOP_LOGPROBS];
    if (wanted < 0) continue;
    int32_t* result = result_of(step, r);
    const float* logits = a.logits.f32(r);
    float max = scan_row(s, logits, n).max;
    if (isnan(max)) max = -INFINITY;  // as the reference: NaN is no maximum
    double sum = 0;
    for (int32_t i = threadIdx.x; i < n; i += threads) sum += double(expf(logits[i] - max));
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0;
    for (int w = 0; w < warps; w++) sum += sums[w];
    float log_sum = max == -INFINITY ? -INFINITY : float(double(max) + log(sum));
    // The next alternative is the best one behind the last: a key below, or the same key with a higher id.
    uint32_t last_key = 0xFFFFFFFFu;
    int32_t last_id = -1, count = 0;
    const uint32_t floor = order_key(-INFINITY);
    for (; count < wanted && count < 20; count++) {
      uint32_t key = 0;
      int32_t id = INT32_MAX;
      for (int32_t i = threadIdx.x; i < n; i += threads) {
        uint32_t k = order_key(logits[i]);
        if (k > floor && k > key && (k < last_key || (k == last_key && i > last_id))) key = k, id = i;
      }
      for (int o = 16; o; o >>= 1) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, key, o);
        int32_t other_id = __shfl_xor_sync(0xffffffffu, id, o);
        if (other > key || (other == key && other_id < id)) key = other, id = other_id;
      }
      __syncthreads();
      if ((threadIdx.x & 31) == 0) s.keys[threadIdx.x >> 5] = key, s.ids[threadIdx.x >> 5] = id;
      __syncthreads();
      key = s.keys[0], id = s.ids[0];
      for (int w = 1; w < warps; w++) {
        if (s.keys[w] > key || (s.keys[w] == key && s.ids[w] < id)) key = s.keys[w], id = s.ids[w];
      }
      if (key == 0) break;
      if (threadIdx.x == 0) {
        result[BAO_RESULT_TOP_IDS + count] = id;
        result[BAO_RESULT_TOP_LOGPROBS + count] = __float_as_int(logits[id] - log_sum);
      }
      last_key = key, last_id = id;
    }
    if (threadIdx.x == 0) {
      result[BAO_RESULT_LOG_SUM] = __float_as_int(log_sum);
      result[BAO_RESULT_TOP_COUNT] = count;
    }
    __syncthreads();
  }
}

void launch_process(const LogitsArgs& a, const Run& run) {
  int32_t rows = run.bound(a.logits);
  if (rows > 0) process_kernel<<<dim3(1, grid_rows(rows)), 256, 0, run.stream>>>(run.step, a);
}

void launch_logprobs(const SampleArgs& a, const Run& run) {
  int32_t rows = run.bound(a.logits);
  if (rows > 0) logprobs_kernel<<<dim3(1, grid_rows(rows)), threads, 0, run.stream>>>(run.step, a);
}

void launch_sample(const SampleArgs& a, const Run& run) {
  int32_t rows = run.bound(a.logits);
  if (rows <= 0) return;
  draw_kernel<<<dim3(1, grid_rows(rows)), threads, 0, run.stream>>>(run.step, a);
  advance_kernel<<<1, 1, 0, run.stream>>>(run.step);
}

}  // namespace

namespace cuda {
void logits_process(Builder& b, const LogitsArgs& a) { stage<LogitsArgs, launch_process>(b, a); }
void logprobs(Builder& b, const SampleArgs& a) { stage<SampleArgs, launch_logprobs>(b, a); }
void sample(Builder& b, const SampleArgs& a) { stage<SampleArgs, launch_sample>(b, a); }
}  // namespace cuda

}  // namespace bao
