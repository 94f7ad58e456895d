// Inside the quantiser only: one function per block type, and the numeric steps that they share. Inputs are finite already.
#ifndef BAO_CPU_QUANTIZE_BLOCKS_H
#define BAO_CPU_QUANTIZE_BLOCKS_H

#include <cmath>

#include "../common/blocks.h"

namespace bao {

void quantize_block(const float* x, BlockQ4_0* b);
void quantize_block(const float* x, BlockQ4_1* b);
void quantize_block(const float* x, BlockQ5_0* b);
void quantize_block(const float* x, BlockQ5_1* b);
void quantize_block(const float* x, BlockQ8_0* b);
void quantize_block(const float* x, BlockQ2_K* b);
void quantize_block(const float* x, BlockQ3_K* b);
void quantize_block(const float* x, BlockQ4_K* b);
void quantize_block(const float* x, BlockQ5_K* b);
void quantize_block(const float* x, BlockQ6_K* b);
void quantize_block(const float* x, BlockIQ4_NL* b);
void quantize_block(const float* x, BlockIQ4_XS* b);
void quantize_block(const float* x, BlockMXFP4* b);
void quantize_block(const float* x, BlockNVFP4* b);

// A group whose largest magnitude is below this is stored as zeros by the searching methods.
constexpr float tiny_group = 1e-15f;

// Toward zero, held to [low, high]; NaN gives low. A float that no int holds never reaches the conversion.
inline int truncate(float v, int low, int high) {
  if (!(v > static_cast<float>(low))) return low;
  if (v >= static_cast<float>(high)) return high;
  return static_cast<int>(v);
}

// Nearest, ties to even, held to [low, high]; NaN gives low. |low| and |high| are far below 2^22, where adding 1.5 * 2^23 leaves the
// rounded integer in the low mantissa bits.
inline int round_even(float v, int low, int high) {
  if (!(v > static_cast<float>(low))) return low;
  if (v >= static_cast<float>(high)) return high;
  return static_cast<int>((v + 12582912.0f) - 12582912.0f);
}

// Nearest, ties away from zero, held to [-limit, limit]; NaN gives -limit. Exact where adding 0.5 would round up 0.49999997.
inline int round_away(float v, int limit) {
  int whole = truncate(v, -limit, limit);
  float rest = v - static_cast<float>(whole);
  if (rest >= 0.5f && whole < limit) return whole + 1;
  if (rest <= -0.5f && whole > -limit) return whole - 1;
  return whole;
}

// 1 / d, or 0 where that is no finite number: a group so small gets the level that stands for 0.
inline float reciprocal(float d) {
  if (d == 0.0f) return 0.0f;
  float r = 1.0f / d;
  return std::isfinite(r) ? r : 0.0f;
}

// The element of largest magnitude with its sign; the first of equals.
inline float signed_peak(const float* x, int n) {
  float peak = 0.0f;
  for (int i = 0; i < n; i++)
    if (std::fabs(x[i]) > std::fabs(peak)) peak = x[i];
  return peak;
}

// The first 16 levels into low nibbles, the other 16 into high ones.
inline void pack_split_nibbles(const uint8_t* levels, uint8_t* qs, int half) {
  for (int i = 0; i < half; i++) qs[i] = static_cast<uint8_t>((levels[i] & 15) | (levels[i + half] & 15) << 4);
}

}  // namespace bao

#endif
