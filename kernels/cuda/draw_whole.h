// The draw over a whole row by one block: for what the passes of draw.cu do not serve (a top-k above 1024 ids, thousands of ids in one bin).
#pragma once
#include "sample.h"

namespace bao {

struct Whole {
  unsigned long long bins[256], totals[sample_warps];
  unsigned long long value;
  int32_t id;
};

// Sum over the block of a value of each id.
template <class F>
__device__ uint64_t whole_total(Whole& s, int32_t n, F value) {
  uint64_t sum = 0;
  for (int32_t i = threadIdx.x; i < n; i += sample_threads) sum += value(i);
  return block_prefix(sum, reinterpret_cast<uint64_t(&)[sample_warps]>(s.totals)).total;
}

// The first id, ascending, at which the running total of value(id) exceeds `target`; n when none does.
template <class F>
__device__ int32_t first_above(Whole& s, int32_t n, uint64_t target, F value) {
  __syncthreads();
  if (threadIdx.x == 0) s.id = n;
  uint64_t before = 0;
  for (int32_t i0 = 0; i0 < n; i0 += sample_threads) {
    int32_t i = i0 + int32_t(threadIdx.x);
    uint64_t v = i < n ? value(i) : 0;
    Prefix p = block_prefix(v, reinterpret_cast<uint64_t(&)[sample_warps]>(s.totals));
    if (before + p.before <= target && before + p.before + v > target) s.id = i;
    before += p.total;
    if (before > target) break;
  }
  __syncthreads();
  return s.id;
}

// The largest threshold t for which the sum of weight(id) over ids with key(id) >= t reaches `target` (at least 1, at most the total); and that
// sum for keys above t. By digits of 8 bits, most significant first.
template <class Key, class Weight>
__device__ uint32_t largest_threshold(Whole& s, int32_t n, uint64_t target, Key key, Weight weight, uint64_t* above) {
  uint32_t prefix = 0;
  uint64_t over = 0;  // of keys above the prefix's range
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < 256) s.bins[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += sample_threads) {
      uint64_t w = weight(i);
      uint32_t k = key(i);
      if (w != 0 && (shift == 24 || k >> (shift + 8) == prefix >> (shift + 8))) atomicAdd(&s.bins[k >> shift & 255u], (unsigned long long)w);
    }
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

// Keeps keys above the threshold, and of those on it the ids up to `last`.
struct Cut {
  uint32_t threshold;
  int32_t last;
  __device__ bool keeps(uint32_t key, int32_t id) const { return key > threshold || (key == threshold && id <= last); }
};

// key and mass of an id; u: the first word of the row's random number.
template <class Key, class Mass>
__device__ int32_t draw_whole(Whole& s, int32_t n, const int32_t* sampler, uint32_t u, Key key, Mass mass) {
  Cut top_k{0, INT32_MAX}, top_p{0, INT32_MAX};
  int32_t k = sampler[BAO_SAMPLER_TOP_K];
  if (k > 0 && k < n) {
    uint64_t above;
    top_k.threshold = largest_threshold(s, n, uint64_t(k), key, [](int32_t) -> uint64_t { return 1; }, &above);
    uint64_t ties = uint64_t(k) - above;  // at least 1
    top_k.last = first_above(s, n, ties - 1, [&](int32_t i) -> uint64_t { return key(i) == top_k.threshold; });
  }
  auto kept = [&](int32_t i) -> uint64_t { return top_k.keeps(key(i), i) ? mass(i) : 0; };
  float p = word(sampler, BAO_SAMPLER_TOP_P);
  if (p < 1) {
    uint64_t target = mass_share(mass_fraction(p), whole_total(s, n, kept)), above;
    if (target == 0) target = 1;
    top_p.threshold = largest_threshold(s, n, target, mass, kept, &above);
    if (top_p.threshold > 0) {
      uint64_t ties = (target - above + top_p.threshold - 1) / top_p.threshold;
      top_p.last = first_above(s, n, ties - 1, [&](int32_t i) -> uint64_t { return kept(i) == top_p.threshold; });
    }
  }
  float min_p = word(sampler, BAO_SAMPLER_MIN_P);
  uint32_t least = min_p > 0 ? uint32_t(mass_fraction(min_p) >> 2) : 0;
  auto drawn = [&](int32_t i) -> uint64_t {
    uint32_t m = uint32_t(kept(i));
    return top_p.keeps(m, i) && m >= least ? m : 0;
  };
  uint64_t total = whole_total(s, n, drawn);
  return first_above(s, n, mass_share(u, total), drawn);
}

}  // namespace bao
