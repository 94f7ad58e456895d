// The loop over a row's blocks, what becomes of non-finite input, and the types whose scale follows from a group's extremes alone
// (Q4_0 to Q8_0). Types that search for their scale are in quantize_k.cpp and quantize_fp4.cpp.
#include "quantize.h"

#include <cstring>

#include "../common/dequant.h"
#include "dequantize.h"
#include "quantize_blocks.h"

namespace bao {
namespace {

// The largest magnitude that a type is given to quantise: the levels' reach times the largest finite half. Where a minimum is stored as a
// half of its own, or the search multiplies up to five inputs, the bound is that half itself, which keeps every sum finite.
constexpr float largest_half = 65504.0f;

float input_limit(int dtype) {
  switch (dtype) {
    case DTYPE_Q8_0: return 127.0f * largest_half;
    case DTYPE_Q4_0: return 8.0f * largest_half;
    case DTYPE_Q5_0: return 16.0f * largest_half;
    case DTYPE_MXFP4: return 3.4028234663852886e38f;
    default: return largest_half;
  }
}

float made_finite(float v, float limit) {
  if (v != v) return 0.0f;
  if (v > limit) return limit;
  if (v < -limit) return -limit;
  return v;
}

template <class Block>
void quantize_blocks(const float* src, uint8_t* dst, int64_t n, int dtype) {
  const float limit = input_limit(dtype);
  const int elements = block_elements(dtype);
  for (int64_t start = 0; start < n; start += elements, dst += sizeof(Block)) {
    float x[256];
    for (int i = 0; i < elements; i++) x[i] = made_finite(src[start + i], limit);
    Block block;
    std::memset(&block, 0, sizeof block);
    quantize_block(x, &block);
    std::memcpy(dst, &block, sizeof block);
  }
}

template <uint16_t (*convert)(float)>
void narrow(const float* src, uint8_t* dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t bits = convert(src[i]);
    std::memcpy(dst + 2 * i, &bits, sizeof bits);
  }
}

uint16_t narrow_f16(float v) { return f32_to_f16(v); }
uint16_t narrow_bf16(float v) { return f32_to_bf16(v); }

// A symmetric scale puts the largest element on the level of largest magnitude, -center; the other sign has one level less.
float symmetric_levels(const float* x, int center, uint8_t* levels) {
  float d = signed_peak(x, 32) / static_cast<float>(-center);
  float per_d = reciprocal(d);
  for (int i = 0; i < 32; i++) {
    levels[i] = static_cast<uint8_t>(truncate(x[i] * per_d + (static_cast<float>(center) + 0.5f), 0, 2 * center - 1));
  }
  return d;
}

// An affine scale spans smallest to largest.
float affine_levels(const float* x, int top, uint8_t* levels, float* minimum) {
  float low = x[0], high = x[0];
  for (int i = 1; i < 32; i++) {
    if (x[i] < low) low = x[i];
    if (x[i] > high) high = x[i];
  }
  float d = (high - low) / static_cast<float>(top);
  float per_d = reciprocal(d);
  for (int i = 0; i < 32; i++) levels[i] = static_cast<uint8_t>(truncate((x[i] - low) * per_d + 0.5f, 0, top));
  *minimum = low;
  return d;
}

void pack_fifth_bits(const uint8_t* levels, uint8_t* qh) {
  for (int i = 0; i < 32; i++) qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | (levels[i] >> 4) << (i % 8));
}

}  // namespace

void quantize_block(const float* x, BlockQ4_0* b) {
  uint8_t levels[32];
  b->d = f32_to_f16(symmetric_levels(x, 8, levels));
  pack_split_nibbles(levels, b->qs, 16);
}

void quantize_block(const float* x, BlockQ4_1* b) {
  uint8_t levels[32];
  float minimum;
  b->d = f32_to_f16(affine_levels(x, 15, levels, &minimum));
  b->m = f32_to_f16(minimum);
  pack_split_nibbles(levels, b->qs, 16);
}

void quantize_block(const float* x, BlockQ5_0* b) {
  uint8_t levels[32];
  b->d = f32_to_f16(symmetric_levels(x, 16, levels));
  pack_split_nibbles(levels, b->qs, 16);
  pack_fifth_bits(levels, b->qh);
}

void quantize_block(const float* x, BlockQ5_1* b) {
  uint8_t levels[32];
  float minimum;
  b->d = f32_to_f16(affine_levels(x, 31, levels, &minimum));
  b->m = f32_to_f16(minimum);
  pack_split_nibbles(levels, b->qs, 16);
  pack_fifth_bits(levels, b->qh);
}

void quantize_block(const float* x, BlockQ8_0* b) {
  float d = std::fabs(signed_peak(x, 32)) / 127.0f;
  float per_d = reciprocal(d);
  b->d = f32_to_f16(d);
  for (int i = 0; i < 32; i++) b->qs[i] = static_cast<int8_t>(round_away(x[i] * per_d, 127));
}

bool can_quantize(int dtype) { return block_elements(dtype) != 0; }

bool quantize_row(int dtype, const float* src, void* dst, int64_t n) {
  int64_t bytes = row_bytes(dtype, n);
  if (bytes == 0) return false;
  uint8_t* to = static_cast<uint8_t*>(dst);
  switch (dtype) {
    case DTYPE_F32: std::memcpy(dst, src, static_cast<size_t>(bytes)); return true;
    case DTYPE_F16: narrow<narrow_f16>(src, to, n); return true;
    case DTYPE_BF16: narrow<narrow_bf16>(src, to, n); return true;
    case DTYPE_Q4_0: quantize_blocks<BlockQ4_0>(src, to, n, dtype); return true;
    case DTYPE_Q4_1: quantize_blocks<BlockQ4_1>(src, to, n, dtype); return true;
    case DTYPE_Q5_0: quantize_blocks<BlockQ5_0>(src, to, n, dtype); return true;
    case DTYPE_Q5_1: quantize_blocks<BlockQ5_1>(src, to, n, dtype); return true;
    case DTYPE_Q8_0: quantize_blocks<BlockQ8_0>(src, to, n, dtype); return true;
    case DTYPE_Q2_K: quantize_blocks<BlockQ2_K>(src, to, n, dtype); return true;
    case DTYPE_Q3_K: quantize_blocks<BlockQ3_K>(src, to, n, dtype); return true;
    case DTYPE_Q4_K: quantize_blocks<BlockQ4_K>(src, to, n, dtype); return true;
    case DTYPE_Q5_K: quantize_blocks<BlockQ5_K>(src, to, n, dtype); return true;
    case DTYPE_Q6_K: quantize_blocks<BlockQ6_K>(src, to, n, dtype); return true;
    case DTYPE_IQ4_NL: quantize_blocks<BlockIQ4_NL>(src, to, n, dtype); return true;
    case DTYPE_IQ4_XS: quantize_blocks<BlockIQ4_XS>(src, to, n, dtype); return true;
    case DTYPE_MXFP4: quantize_blocks<BlockMXFP4>(src, to, n, dtype); return true;
    case DTYPE_NVFP4: quantize_blocks<BlockNVFP4>(src, to, n, dtype); return true;
    default: return false;
  }
}

bool quantize_q8_0(const float* src, void* dst, int64_t n) { return quantize_row(DTYPE_Q8_0, src, dst, n); }

void quantize_stats(int dtype, const float* src, const void* q, int64_t n, double* err2, double* ref2) {
  if (row_bytes(dtype, n) == 0) return;
  const uint8_t* from = static_cast<const uint8_t*>(q);
  for (int64_t start = 0; start < n; start += 256) {
    float back[256];
    int64_t count = n - start < 256 ? n - start : 256;  // a block never straddles: every block length divides 256
    dequantize_row(dtype, from, back, count);
    from += row_bytes(dtype, count);
    for (int64_t i = 0; i < count; i++) {
      double x = src[start + i];
      double difference = x - static_cast<double>(back[i]);
      *err2 += difference * difference;
      *ref2 += x * x;
    }
  }
}

}  // namespace bao
