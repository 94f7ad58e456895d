// The loop over a row's blocks for each type: copies a block out of the byte stream and asks the closed form for each element.
#include "dequantize.h"

#include <cstring>

#include "dequant.h"

namespace bao {
namespace {

// Blocks are copied first: a row may begin at any address (a 17-byte block alone breaks alignment for all that follow).
template <class Format>
void dequantize_blocks(const uint8_t* src, float* dst, int64_t n) {
  for (int64_t start = 0; start < n; start += Format::elements, src += sizeof(typename Format::Block)) {
    typename Format::Block block;
    std::memcpy(&block, src, sizeof block);
    for (int i = 0; i < Format::elements; i++) dst[start + i] = Format::at(&block, i);
  }
}

template <float (*convert)(uint16_t)>
void widen(const uint8_t* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, sizeof bits);
    dst[i] = convert(bits);
  }
}

// BAO_FN functions are always inlined and so have no address to hand to a template.
float widen_f16(uint16_t bits) { return f16_to_f32(bits); }
float widen_bf16(uint16_t bits) { return bf16_to_f32(bits); }

}  // namespace

int64_t row_bytes(int dtype, int64_t n) {
  int elements = block_elements(dtype);
  if (elements == 0 || n <= 0 || n % elements != 0) return 0;
  int64_t blocks = n / elements;
  if (blocks > INT64_MAX / block_bytes(dtype)) return 0;
  return blocks * block_bytes(dtype);
}

const char* dtype_name(int dtype) {
  switch (dtype) {
    case DTYPE_F32: return "F32";
    case DTYPE_F16: return "F16";
    case DTYPE_BF16: return "BF16";
    case DTYPE_Q4_0: return "Q4_0";
    case DTYPE_Q4_1: return "Q4_1";
    case DTYPE_Q5_0: return "Q5_0";
    case DTYPE_Q5_1: return "Q5_1";
    case DTYPE_Q8_0: return "Q8_0";
    case DTYPE_Q2_K: return "Q2_K";
    case DTYPE_Q3_K: return "Q3_K";
    case DTYPE_Q4_K: return "Q4_K";
    case DTYPE_Q5_K: return "Q5_K";
    case DTYPE_Q6_K: return "Q6_K";
    case DTYPE_IQ4_NL: return "IQ4_NL";
    case DTYPE_IQ4_XS: return "IQ4_XS";
    case DTYPE_MXFP4: return "MXFP4";
    case DTYPE_NVFP4: return "NVFP4";
    default: return nullptr;
  }
}

bool dequantize_row(int dtype, const void* src, float* dst, int64_t n) {
  int64_t bytes = row_bytes(dtype, n);
  if (bytes == 0) return false;
  const uint8_t* from = static_cast<const uint8_t*>(src);
  switch (dtype) {
    case DTYPE_F32: std::memcpy(dst, src, static_cast<size_t>(bytes)); return true;
    case DTYPE_F16: widen<widen_f16>(from, dst, n); return true;
    case DTYPE_BF16: widen<widen_bf16>(from, dst, n); return true;
    case DTYPE_Q4_0: dequantize_blocks<FormatQ4_0>(from, dst, n); return true;
    case DTYPE_Q4_1: dequantize_blocks<FormatQ4_1>(from, dst, n); return true;
    case DTYPE_Q5_0: dequantize_blocks<FormatQ5_0>(from, dst, n); return true;
    case DTYPE_Q5_1: dequantize_blocks<FormatQ5_1>(from, dst, n); return true;
    case DTYPE_Q8_0: dequantize_blocks<FormatQ8_0>(from, dst, n); return true;
    case DTYPE_Q2_K: dequantize_blocks<FormatQ2_K>(from, dst, n); return true;
    case DTYPE_Q3_K: dequantize_blocks<FormatQ3_K>(from, dst, n); return true;
    case DTYPE_Q4_K: dequantize_blocks<FormatQ4_K>(from, dst, n); return true;
    case DTYPE_Q5_K: dequantize_blocks<FormatQ5_K>(from, dst, n); return true;
    case DTYPE_Q6_K: dequantize_blocks<FormatQ6_K>(from, dst, n); return true;
    case DTYPE_IQ4_NL: dequantize_blocks<FormatIQ4_NL>(from, dst, n); return true;
    case DTYPE_IQ4_XS: dequantize_blocks<FormatIQ4_XS>(from, dst, n); return true;
    case DTYPE_MXFP4: dequantize_blocks<FormatMXFP4>(from, dst, n); return true;
    case DTYPE_NVFP4: dequantize_blocks<FormatNVFP4>(from, dst, n); return true;
    default: return false;
  }
}

}  // namespace bao
