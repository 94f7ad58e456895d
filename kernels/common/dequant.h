// One scalar dequantiser per GGUF block type, element by element: the oracle that every backend's fast code is compared with.
// Compiles as C++14, CUDA and MSL. Written for being obviously right, never for speed.
#ifndef BAO_COMMON_DEQUANT_H
#define BAO_COMMON_DEQUANT_H

#include "blocks.h"

namespace bao {

// ---- numbers ------------------------------------------------------------------------------------------------------------------

BAO_FN float bits_to_float(uint32_t bits) {
#if defined(__METAL_VERSION__)
  return as_type<float>(bits);
#elif defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

BAO_FN uint32_t float_to_bits(float value) {
#if defined(__METAL_VERSION__)
  return as_type<uint32_t>(value);
#elif defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

// Exact for every half, subnormals included; a NaN becomes quiet and keeps its payload, as hardware conversions do.
BAO_FN float f16_to_f32(uint16_t half_bits) {
  uint32_t h = half_bits;
  uint32_t sign = (h & 0x8000u) << 16;
  uint32_t exponent = (h >> 10) & 31u;
  uint32_t mantissa = h & 0x3FFu;
  if (exponent == 0) {
    float magnitude = (float)(int)mantissa * 5.9604644775390625e-8f;  // 2^-24: the product is a normal float, so never flushed
    return bits_to_float(float_to_bits(magnitude) | sign);
  }
  if (exponent == 31) return bits_to_float(sign | 0x7F800000u | (mantissa << 13) | (mantissa ? 0x00400000u : 0u));
  return bits_to_float(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

// Round to nearest, ties to even; beyond 65519.99 infinity, NaN stays a quiet NaN.
BAO_FN uint16_t f32_to_f16(float value) {
  uint32_t bits = float_to_bits(value);
  uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7C00u);  // 65536 and above
  if (magnitude < 0x38800000u) {                                    // below 2^-14: a half subnormal, counted in units of 2^-24
    uint32_t exponent = magnitude >> 23;
    if (exponent < 102u) return (uint16_t)sign;  // below 2^-25: under half a unit
    uint32_t mantissa = (magnitude & 0x7FFFFFu) | 0x800000u;
    uint32_t shift = 126u - exponent;  // 14..24
    uint32_t kept = mantissa >> shift;
    uint32_t rest = mantissa & ((1u << shift) - 1u);
    uint32_t tie = 1u << (shift - 1u);
    if (rest > tie || (rest == tie && (kept & 1u))) kept += 1u;
    return (uint16_t)(sign | kept);
  }
  uint32_t kept = (magnitude - 0x38000000u) >> 13;
  uint32_t rest = magnitude & 0x1FFFu;
  if (rest > 0x1000u || (rest == 0x1000u && (kept & 1u))) kept += 1u;  // the carry may reach infinity, which is right
  return (uint16_t)(sign | kept);
}

BAO_FN float bf16_to_f32(uint16_t bits) { return bits_to_float((uint32_t)bits << 16); }

// Round to nearest, ties to even; a NaN becomes quiet, because truncating its payload could leave an infinity.
BAO_FN uint16_t f32_to_bf16(float value) {
  uint32_t bits = float_to_bits(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return (uint16_t)((bits >> 16) | 0x40u);
  return (uint16_t)((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

// The 16 levels of IQ4_NL and IQ4_XS: -127 -104 -83 -65 -49 -35 -22 -10 1 13 25 38 53 69 89 113. Packed into constants because the
// three languages disagree on where a table may live.
BAO_FN int iq4_value(int code) {
  uint32_t word;
  if (code < 4) word = 0xBFAD9881u;
  else if (code < 8) word = 0xF6EADDCFu;
  else if (code < 12) word = 0x26190D01u;
  else word = 0x71594535u;
  int level = (int)((word >> (8 * (code & 3))) & 255u);
  return level < 128 ? level : level - 256;
}

// Twice the value of an E2M1 code, so that it is an integer: 0 1 2 3 4 6 8 12, bit 3 is the sign. Code 8 gives +0, as in ggml.
BAO_FN int e2m1_doubled(int code) {
  int magnitude = (int)((0xC8643210u >> (4 * (code & 7))) & 15u);
  return code & 8 ? -magnitude : magnitude;
}

// Half of 2^(e - 127), the partner of e2m1_doubled. e = 255 is a NaN in the OCP text; ggml reads it as one more power of two, so do we.
BAO_FN float e8m0_halved(uint8_t e) {
  if (e < 2) return bits_to_float(0x00200000u << e);  // float subnormals 2^-128 and 2^-127
  return bits_to_float(((uint32_t)e - 1u) << 23);
}

// Half of an unsigned E4M3 scale. Bit 7 is unused; 0x7F, NaN in E4M3, reads as 0.
BAO_FN float ue4m3_halved(uint8_t bits) {
  int b = bits & 0x7F;
  if (b == 0x7F) return 0.0f;
  int exponent = b >> 3;
  int mantissa = b & 7;
  if (exponent == 0) return (float)mantissa * 0.0009765625f;  // 2^-9 / 2
  return (float)(mantissa + 8) * bits_to_float((uint32_t)(exponent + 116) << 23);  // 2^(exponent - 7 - 3 - 1)
}

// ---- block types --------------------------------------------------------------------------------------------------------------
//
// Each struct names its block and gives element i of one: `at(block, i)`, 0 <= i < elements. The block pointer's type is a template
// parameter so that MSL deduces its address space. `elements` is an enumerator because MSL has no static data members in thread space.
//
// In all types except MXFP4 every product here is exact in float (scale 11 bits, sub-scale up to 7, level up to 6), so neither the order
// of the factors nor a fused multiply-add can change a bit: only the last addition rounds, and backends can be compared exactly.

// Nibble of element i in a split-half group of 2 * half elements: the low nibbles are the first half.
template <class Bytes>
BAO_FN int split_nibble(Bytes qs, int i, int half) {
  return i < half ? qs[i] & 15 : qs[i - half] >> 4;
}

struct FormatQ4_0 {
  typedef BlockQ4_0 Block;
  enum { dtype = DTYPE_Q4_0, elements = 32 };
  template <class P>
  BAO_FN float at(P b, int i) {
    return f16_to_f32(b->d) * (float)(split_nibble(b->qs, i, 16) - 8);
  }
};

struct FormatQ4_1 {
  typedef BlockQ4_1 Block;
  enum { dtype = DTYPE_Q4_1, elements = 32 };
  template <class P>
  BAO_FN float at(P b, int i) {
    return f16_to_f32(b->d) * (float)split_nibble(b->qs, i, 16) + f16_to_f32(b->m);
  }
};

struct FormatQ5_0 {
  typedef BlockQ5_0 Block;
  enum { dtype = DTYPE_Q5_0, elements = 32 };
  template <class P>
  BAO_FN float at(P b, int i) {
    int high = (b->qh[i / 8] >> (i % 8)) & 1;
    return f16_to_f32(b->d) * (float)((split_nibble(b->qs, i, 16) | high << 4) - 16);
  }
};

struct FormatQ5_1 {
  typedef BlockQ5_1 Block;
  enum { dtype = DTYPE_Q5_1, elements = 32 };
  template <class P>
  BAO_FN float at(P b, int i) {
    int high = (b->qh[i / 8] >> (i % 8)) & 1;
    return f16_to_f32(b->d) * (float)(split_nibble(b->qs, i, 16) | high << 4) + f16_to_f32(b->m);
  }
};

struct FormatQ8_0 {
  typedef BlockQ8_0 Block;
  enum { dtype = DTYPE_Q8_0, elements = 32 };
  template <class P>
  BAO_FN float at(P b, int i) {
    return f16_to_f32(b->d) * (float)b->qs[i];
  }
};

struct FormatQ2_K {
  typedef BlockQ2_K Block;
  enum { dtype = DTYPE_Q2_K, elements = 256 };
  template <class P>
  BAO_FN float at(P b, int i) {
    int scale = b->scales[i / 16];
    int q = (b->qs[32 * (i / 128) + i % 32] >> (2 * ((i % 128) / 32))) & 3;
    return f16_to_f32(b->d) * (float)(scale & 15) * (float)q - f16_to_f32(b->dmin) * (float)(scale >> 4);
  }
};

struct FormatQ3_K {
  typedef BlockQ3_K Block;
  enum { dtype = DTYPE_Q3_K, elements = 256 };
  // Scale of the 16 elements of sub-block j, -32..31.
  template <class P>
  BAO_FN int scale(P b, int j) {
    int low = j < 8 ? b->scales[j] & 15 : b->scales[j - 8] >> 4;
    int high = (b->scales[8 + j % 4] >> (2 * (j / 4))) & 3;
    return (low | high << 4) - 32;
  }
  template <class P>
  BAO_FN float at(P b, int i) {
    int q = (b->qs[32 * (i / 128) + i % 32] >> (2 * ((i % 128) / 32))) & 3;
    if (((b->hmask[i % 32] >> (i / 32)) & 1) == 0) q -= 4;
    return f16_to_f32(b->d) * (float)scale(b, i / 16) * (float)q;
  }
};

// The 6-bit scale and minimum of sub-block j (32 elements) that Q4_K and Q5_K share; `scales` are their 12 packed bytes.
template <class Bytes>
BAO_FN int k_scale(Bytes scales, int j) {
  return j < 4 ? scales[j] & 63 : (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4;
}

template <class Bytes>
BAO_FN int k_min(Bytes scales, int j) {
  return j < 4 ? scales[j + 4] & 63 : scales[j + 4] >> 4 | (scales[j] >> 6) << 4;
}

struct FormatQ4_K {
  typedef BlockQ4_K Block;
  enum { dtype = DTYPE_Q4_K, elements = 256 };
  template <class P>
  BAO_FN float at(P b, int i) {
    int q = split_nibble(b->qs + 32 * (i / 64), i % 64, 32);
    int j = i / 32;
    return f16_to_f32(b->d) * (float)k_scale(b->scales, j) * (float)q - f16_to_f32(b->dmin) * (float)k_min(b->scales, j);
  }
};

struct FormatQ5_K {
  typedef BlockQ5_K Block;
  enum { dtype = DTYPE_Q5_K, elements = 256 };
  template <class P>
  BAO_FN float at(P b, int i) {
    int j = i / 32;
    int q = split_nibble(b->qs + 32 * (i / 64), i % 64, 32) | ((b->qh[i % 32] >> j) & 1) << 4;
    return f16_to_f32(b->d) * (float)k_scale(b->scales, j) * (float)q - f16_to_f32(b->dmin) * (float)k_min(b->scales, j);
  }
};

struct FormatQ6_K {
  typedef BlockQ6_K Block;
  enum { dtype = DTYPE_Q6_K, elements = 256 };
  template <class P>
  BAO_FN float at(P b, int i) {
    int n = i / 128, k = (i % 128) / 32, l = i % 32;
    int byte = b->ql[64 * n + 32 * (k & 1) + l];
    int low = k < 2 ? byte & 15 : byte >> 4;
    int high = (b->qh[32 * n + l] >> (2 * k)) & 3;
    return f16_to_f32(b->d) * (float)b->scales[i / 16] * (float)((low | high << 4) - 32);
  }
};

struct FormatIQ4_NL {
  typedef BlockIQ4_NL Block;
  enum { dtype = DTYPE_IQ4_NL, elements = 32 };
  template <class P>
  BAO_FN float at(P b, int i) {
    return f16_to_f32(b->d) * (float)iq4_value(split_nibble(b->qs, i, 16));
  }
};

struct FormatIQ4_XS {
  typedef BlockIQ4_XS Block;
  enum { dtype = DTYPE_IQ4_XS, elements = 256 };
  // Scale of the 32 elements of sub-block j, -32..31.
  template <class P>
  BAO_FN int scale(P b, int j) {
    int low = (b->scales_l[j / 2] >> (4 * (j % 2))) & 15;
    int high = (b->scales_h >> (2 * j)) & 3;
    return (low | high << 4) - 32;
  }
  template <class P>
  BAO_FN float at(P b, int i) {
    int j = i / 32;
    return f16_to_f32(b->d) * (float)scale(b, j) * (float)iq4_value(split_nibble(b->qs + 16 * j, i % 32, 16));
  }
};

struct FormatMXFP4 {
  typedef BlockMXFP4 Block;
  enum { dtype = DTYPE_MXFP4, elements = 32 };
  template <class P>
  BAO_FN float at(P b, int i) {
    return e8m0_halved(b->e) * (float)e2m1_doubled(split_nibble(b->qs, i, 16));
  }
};

// Without the tensor's own f32 scale, which is applied to the result of the matmul.
struct FormatNVFP4 {
  typedef BlockNVFP4 Block;
  enum { dtype = DTYPE_NVFP4, elements = 64 };
  template <class P>
  BAO_FN float at(P b, int i) {
    int group = i / 16;
    return ue4m3_halved(b->d[group]) * (float)e2m1_doubled(split_nibble(b->qs + 8 * group, i % 16, 8));
  }
};

}  // namespace bao

#endif
