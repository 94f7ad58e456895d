// Weights in units of 8 consecutive elements: 8 signed bytes q, one scale and one bias, so that element i is scale * q[i] + bias. All quantised
// types of GGUF have that form (common/dequant.h is their definition). Reads GGUF's own block layout; a re-laid weight gets loaders beside these.
#pragma once
#include <type_traits>

#include "../common/dequant.h"
#include "run.h"

namespace bao {

constexpr __host__ __device__ bool is_plain(int dtype) { return dtype == BAO_F32 || dtype == BAO_F16 || dtype == BAO_BF16; }
constexpr __host__ __device__ bool has_bias(int dtype) {
  return dtype == BAO_Q4_1 || dtype == BAO_Q5_1 || dtype == BAO_Q2_K || dtype == BAO_Q4_K || dtype == BAO_Q5_K;
}

// Calls f(std::integral_constant<int, dtype>) for a weight type.
template <class F>
void with_dtype(int32_t dtype, F&& f) {
#define BAO_CASE(name) case BAO_##name: f(std::integral_constant<int, BAO_##name>{}); break
  switch (dtype) {
    BAO_CASE(F32); BAO_CASE(F16); BAO_CASE(BF16); BAO_CASE(Q4_0); BAO_CASE(Q4_1); BAO_CASE(Q5_0); BAO_CASE(Q5_1); BAO_CASE(Q8_0); BAO_CASE(Q2_K);
    BAO_CASE(Q3_K); BAO_CASE(Q4_K); BAO_CASE(Q5_K); BAO_CASE(Q6_K); BAO_CASE(IQ4_NL); BAO_CASE(IQ4_XS); BAO_CASE(MXFP4); BAO_CASE(NVFP4);
    default: break;
  }
#undef BAO_CASE
}

struct Unit {
  int32_t q0, q1;
  float scale, bias;
};

// 4 bytes at an address of which only the given alignment is known.
template <int Alignment>
__device__ __forceinline__ uint32_t load4(const uint8_t* p) {
  if constexpr (Alignment >= 4) return __ldg(reinterpret_cast<const uint32_t*>(p));
  if constexpr (Alignment == 2) {
    const uint16_t* h = reinterpret_cast<const uint16_t*>(p);
    return __ldg(h) | uint32_t(__ldg(h + 1)) << 16;
  }
  return __ldg(p) | uint32_t(__ldg(p + 1)) << 8 | uint32_t(__ldg(p + 2)) << 16 | uint32_t(__ldg(p + 3)) << 24;
}

__device__ __forceinline__ float half_at(const uint8_t* p) { return __half2float(__ushort_as_half(__ldg(reinterpret_cast<const uint16_t*>(p)))); }

__device__ __forceinline__ uint32_t nibbles(uint32_t word, bool high) { return (high ? word >> 4 : word) & 0x0F0F0F0Fu; }

// Bits 0 ... 3 of b to bit `at` of each byte.
__device__ __forceinline__ uint32_t spread4(uint32_t b, int at) {
  return ((b & 1u) | (b & 2u) << 7 | (b & 4u) << 14 | (b & 8u) << 21) << at;
}

// Four nibbles (one a byte) through a table of 16 signed bytes.
__device__ __forceinline__ int32_t lookup16(uint32_t codes, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
  uint32_t low = codes & 0x07070707u;
  uint32_t selector = (low | low >> 4) & 0x00770077u;
  selector = (selector | selector >> 8) & 0x7777u;
  uint32_t first = __byte_perm(t0, t1, selector), second = __byte_perm(t2, t3, selector), mask = (codes >> 3 & 0x01010101u) * 0xFFu;
  return int32_t((first & ~mask) | (second & mask));
}

__device__ __forceinline__ int32_t iq4_bytes(uint32_t codes) { return lookup16(codes, 0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u); }
__device__ __forceinline__ int32_t e2m1_bytes(uint32_t codes) { return lookup16(codes, 0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu); }

// Unit u (elements 8u ... 8u + 7) of a row.
template <int DT>
__device__ __forceinline__ Unit load_unit(const uint8_t* row, int32_t u) {
  Unit unit;
  unit.bias = 0;
  if constexpr (DT == BAO_Q4_0 || DT == BAO_Q4_1 || DT == BAO_Q5_0 || DT == BAO_Q5_1 || DT == BAO_IQ4_NL || DT == BAO_MXFP4) {
    constexpr bool minimum = DT == BAO_Q4_1 || DT == BAO_Q5_1, fifth = DT == BAO_Q5_0 || DT == BAO_Q5_1;
    constexpr int size = DT == BAO_MXFP4 ? 17 : 18 + (minimum ? 2 : 0) + (fifth ? 4 : 0), header = DT == BAO_MXFP4 ? 1 : minimum ? 4 : 2;
    constexpr int align = size % 4 == 0 ? 4 : size % 2 == 0 ? 2 : 1;
    const uint8_t* block = row + int64_t(u >> 2) * size;
    int part = u & 3;
    const uint8_t* qs = block + header + (fifth ? 4 : 0) + (part & 1) * 8;
    uint32_t a = nibbles(load4<align>(qs), part >= 2), b = nibbles(load4<align>(qs + 4), part >= 2);
    if constexpr (fifth) {
      uint32_t high = __ldg(block + header + part);
      a |= spread4(high, 4);
      b |= spread4(high >> 4, 4);
    }
    if constexpr (DT == BAO_MXFP4) {
      unit.scale = e8m0_halved(__ldg(block));
      unit.q0 = e2m1_bytes(a), unit.q1 = e2m1_bytes(b);
    } else {
      unit.scale = half_at(block);
      if constexpr (minimum) unit.bias = half_at(block + 2);
      if constexpr (DT == BAO_IQ4_NL) {
        unit.q0 = iq4_bytes(a), unit.q1 = iq4_bytes(b);
      } else if constexpr (minimum) {
        unit.q0 = int32_t(a), unit.q1 = int32_t(b);
      } else {
        constexpr uint32_t offset = fifth ? 0x10101010u : 0x08080808u;
        unit.q0 = int32_t(__vsub4(a, offset)), unit.q1 = int32_t(__vsub4(b, offset));
      }
    }
  } else if constexpr (DT == BAO_Q8_0) {
    const uint8_t* block = row + int64_t(u >> 2) * 34;
    unit.scale = half_at(block);
    unit.q0 = int32_t(load4<2>(block + 2 + (u & 3) * 8)), unit.q1 = int32_t(load4<2>(block + 6 + (u & 3) * 8));
  } else if constexpr (DT == BAO_Q2_K || DT == BAO_Q3_K) {
    constexpr int size = DT == BAO_Q2_K ? 84 : 110, align = DT == BAO_Q2_K ? 4 : 2, qs_at = DT == BAO_Q2_K ? 16 : 32;
    const uint8_t* block = row + int64_t(u >> 5) * size;
    int i = (u & 31) * 8, shift = i % 128 / 32 * 2;
    const uint8_t* qs = block + qs_at + 32 * (i / 128) + i % 32;
    uint32_t a = load4<align>(qs) >> shift & 0x03030303u, b = load4<align>(qs + 4) >> shift & 0x03030303u;
    if constexpr (DT == BAO_Q2_K) {
      int scale = __ldg(block + i / 16);
      unit.scale = half_at(block + 80) * float(scale & 15);
      unit.bias = -(half_at(block + 82) * float(scale >> 4));
      unit.q0 = int32_t(a), unit.q1 = int32_t(b);
    } else {
      const uint8_t* mask = block + i % 32;
      a |= (load4<2>(mask) >> (i / 32) & 0x01010101u) << 2;
      b |= (load4<2>(mask + 4) >> (i / 32) & 0x01010101u) << 2;
      int j = i / 16, low = j < 8 ? __ldg(block + 96 + j) & 15 : __ldg(block + 88 + j) >> 4, high = __ldg(block + 104 + j % 4) >> (2 * (j / 4)) & 3;
      unit.scale = half_at(block + 108) * float((low | high << 4) - 32);
      unit.q0 = int32_t(__vsub4(a, 0x04040404u)), unit.q1 = int32_t(__vsub4(b, 0x04040404u));
    }
  } else if constexpr (DT == BAO_Q4_K || DT == BAO_Q5_K) {
    constexpr int size = DT == BAO_Q4_K ? 144 : 176;
    const uint8_t* block = row + int64_t(u >> 5) * size;
    int i = (u & 31) * 8, j = i / 32;
    const uint8_t* qs = block + size - 128 + 32 * (i / 64) + i % 32;
    uint32_t a = nibbles(load4<4>(qs), j & 1), b = nibbles(load4<4>(qs + 4), j & 1);
    if constexpr (DT == BAO_Q5_K) {
      const uint8_t* qh = block + 16 + i % 32;
      a |= (load4<4>(qh) >> j & 0x01010101u) << 4;
      b |= (load4<4>(qh + 4) >> j & 0x01010101u) << 4;
    }
    const uint8_t* s = block + 4;
    int scale, minimum;
    if (j < 4) {
      scale = __ldg(s + j) & 63, minimum = __ldg(s + j + 4) & 63;
    } else {
      int packed = __ldg(s + j + 4);
      scale = (packed & 15) | (__ldg(s + j - 4) >> 6) << 4, minimum = packed >> 4 | (__ldg(s + j) >> 6) << 4;
    }
    uint32_t d = __ldg(reinterpret_cast<const uint32_t*>(block));
    unit.scale = __half2float(__ushort_as_half(uint16_t(d))) * float(scale);
    unit.bias = -(__half2float(__ushort_as_half(uint16_t(d >> 16))) * float(minimum));
    unit.q0 = int32_t(a), unit.q1 = int32_t(b);
  } else if constexpr (DT == BAO_Q6_K) {
    const uint8_t* block = row + int64_t(u >> 5) * 210;
    int i = (u & 31) * 8, n = i / 128, k = i % 128 / 32, l = i % 32;
    const uint8_t *ql = block + 64 * n + 32 * (k & 1) + l, *qh = block + 128 + 32 * n + l;
    uint32_t a = nibbles(load4<2>(ql), k >= 2) | (load4<2>(qh) >> (2 * k) & 0x03030303u) << 4;
    uint32_t b = nibbles(load4<2>(ql + 4), k >= 2) | (load4<2>(qh + 4) >> (2 * k) & 0x03030303u) << 4;
    unit.scale = half_at(block + 208) * float(int8_t(__ldg(block + 192 + i / 16)));
    unit.q0 = int32_t(__vsub4(a, 0x20202020u)), unit.q1 = int32_t(__vsub4(b, 0x20202020u));
  } else if constexpr (DT == BAO_IQ4_XS) {
    const uint8_t* block = row + int64_t(u >> 5) * 136;
    int i = (u & 31) * 8, j = i / 32, part = u & 3;
    const uint8_t* qs = block + 8 + 16 * j + (part & 1) * 8;
    int low = __ldg(block + 4 + j / 2) >> (4 * (j % 2)) & 15, high = __ldg(reinterpret_cast<const uint16_t*>(block + 2)) >> (2 * j) & 3;
    unit.scale = half_at(block) * float((low | high << 4) - 32);
    unit.q0 = iq4_bytes(nibbles(load4<4>(qs), part >= 2)), unit.q1 = iq4_bytes(nibbles(load4<4>(qs + 4), part >= 2));
  } else {
    static_assert(DT == BAO_NVFP4, "a quantised type");
    const uint8_t* block = row + int64_t(u >> 3) * 36;
    int group = (u & 7) >> 1;
    const uint8_t* qs = block + 4 + 8 * group;
    unit.scale = ue4m3_halved(__ldg(block + group));
    unit.q0 = e2m1_bytes(nibbles(load4<4>(qs), u & 1)), unit.q1 = e2m1_bytes(nibbles(load4<4>(qs + 4), u & 1));
  }
  return unit;
}

// Element i of a unit, to the bit as common/dequant.h gives it: scale * q is exact.
template <int DT>
__device__ __forceinline__ float unit_value(const Unit& unit, int i) {
  float q = float(int8_t((i < 4 ? unit.q0 : unit.q1) >> (8 * (i & 3))));
  return has_bias(DT) ? __fmaf_rn(unit.scale, q, unit.bias) : unit.scale * q;
}

// Element i of a row of F32, F16 or BF16.
template <int DT>
__device__ __forceinline__ float plain_value(const uint8_t* row, int64_t i) {
  if constexpr (DT == BAO_F32) return __ldg(reinterpret_cast<const float*>(row) + i);
  uint16_t bits = __ldg(reinterpret_cast<const uint16_t*>(row) + i);
  if constexpr (DT == BAO_F16) return __half2float(__ushort_as_half(bits));
  return __uint_as_float(uint32_t(bits) << 16);
}

}  // namespace bao
