// The integers that sampling decides with: fixed-point probability mass, thresholds and Philox4x32-10. docs/sampling.md gives the rules.
// Integer arithmetic only, so that every backend and instruction set draws the same token; compiles as C++14, CUDA and MSL.
#ifndef BAO_COMMON_SAMPLE_MASS_H
#define BAO_COMMON_SAMPLE_MASS_H

#include "blocks.h"

namespace bao {

// exp(delta) * 2^30 for delta <= 0, within 24 units, exactly 2^30 at 0; 0 below -21 (where the true value is under one unit) and for NaN.
// delta * 2^26 is exact, then truncated; 2^-f is 1 - f * (a1 - f * (a2 - ...)) in units of 2^-32, every product truncated.
BAO_FN uint32_t mass_of(float delta) {
  if (!(delta > -21.0f)) return 0;
  uint32_t q = (uint32_t)(int32_t)(delta * -67108864.0f);
  uint64_t bits = (uint64_t)q * 3098164009u;  // -delta * log2(e), in units of 2^-57
  uint32_t n = (uint32_t)(bits >> 57);        // 0 ... 30
  uint32_t f = (uint32_t)(bits >> 25);
  uint32_t p = 493577u;
  p = 5547538u - (uint32_t)(((uint64_t)f * p) >> 32);
  p = 41218952u - (uint32_t)(((uint64_t)f * p) >> 32);
  p = 238367376u - (uint32_t)(((uint64_t)f * p) >> 32);
  p = 1031763206u - (uint32_t)(((uint64_t)f * p) >> 32);
  p = 2977044447u - (uint32_t)(((uint64_t)f * p) >> 32);
  uint32_t r = 2147483648u - ((uint32_t)(((uint64_t)f * p) >> 32) >> 1);  // 2^-f in units of 2^-31
  return r >> (1 + n);
}

// floor(fraction * total / 2^32) for fraction <= 2^32 and total < 2^63: the product itself needs 96 bits.
BAO_FN uint64_t mass_share(uint64_t fraction, uint64_t total) {
  return fraction * (total >> 32) + ((fraction * (total & 0xFFFFFFFFu)) >> 32);
}

// A probability as a fraction of 2^32, truncated: exact for a float, clamped to [0, 1], NaN as 1 (no cut).
BAO_FN uint64_t mass_fraction(float p) {
  if (!(p < 1.0f)) return 4294967296u;
  return p > 0.0f ? (uint64_t)(p * 4294967296.0f) : 0u;
}

// Order of floats as unsigned integers, ascending; -0 and +0 are equal, NaN is the smallest.
BAO_FN uint32_t order_key(float value) {
  if (value != value) return 0;
  value = value == 0.0f ? 0.0f : value;
  uint32_t bits;
#if defined(__METAL_VERSION__)
  bits = as_type<uint32_t>(value);
#elif defined(__CUDA_ARCH__)
  bits = __float_as_uint(value);
#else
  __builtin_memcpy(&bits, &value, sizeof bits);
#endif
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

struct Philox {
  uint32_t word[4];
};

// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
BAO_FN Philox philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; round++) {
    uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
    c0 = (uint32_t)(b >> 32) ^ c1 ^ key0;
    c1 = (uint32_t)b;
    c2 = (uint32_t)(a >> 32) ^ c3 ^ key1;
    c3 = (uint32_t)a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  Philox out = {{c0, c1, c2, c3}};
  return out;
}

}  // namespace bao

#endif
