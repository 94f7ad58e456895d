// What decode products of one row and of several share: activations rounded to int8, and operands of their byte matrix multiplications.
#pragma once
#include "few.h"
#include "ptx.h"

namespace bao {
namespace few {

// Adding an integer to this float's bits adds it to the float: products accumulate on top of it, and need no conversion.
constexpr float magic = 12582912.0f;  // 1.5 * 2^23

// Four values of a group, by one of eight neighbouring threads: their bytes; the group's numbers are right in the first of the eight.
__device__ __forceinline__ uint32_t round_group(float4 v, GroupOfX& group) {
  uint32_t largest = max(max(__float_as_uint(v.x) & 0x7FFFFFFFu, __float_as_uint(v.y) & 0x7FFFFFFFu), max(__float_as_uint(v.z) & 0x7FFFFFFFu, __float_as_uint(v.w) & 0x7FFFFFFFu));
#pragma unroll
  for (int o = 1; o < 8; o <<= 1) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, o));
  bool finite = largest < 0x7F800000u;
  float most = __uint_as_float(largest), inverse = finite && largest ? 127.0f / most : 0.0f;
  if (!isfinite(inverse)) inverse = 0;
  uint32_t bytes = 0;
  if (finite) {
    bytes = (uint32_t(int32_t(rintf(v.x * inverse))) & 255) | (uint32_t(int32_t(rintf(v.y * inverse))) & 255) << 8 |
            (uint32_t(int32_t(rintf(v.z * inverse))) & 255) << 16 | uint32_t(int32_t(rintf(v.w * inverse))) << 24;
  }
  int32_t sum = __dp4a(int32_t(bytes), 0x01010101, 0);
  sum += __shfl_xor_sync(0xffffffffu, sum, 1);
  sum += __shfl_xor_sync(0xffffffffu, sum, 2);
  int32_t other = __shfl_xor_sync(0xffffffffu, sum, 4);
  group = GroupOfX{finite ? most / 127.0f : __int_as_float(0x7fc00000), float(sum), float(other), float(sum + other)};
  return bytes;
}

__device__ __forceinline__ float4 four_of(const float* x) {
  if ((reinterpret_cast<uintptr_t>(x) & 15) == 0) return *reinterpret_cast<const float4*>(x);
  return make_float4(x[0], x[1], x[2], x[3]);
}

template <int DT>
__device__ __forceinline__ int32_t start_of(float sum) {
  return __float_as_int(Layout<DT>::offset ? fmaf(float(-Layout<DT>::offset), sum, magic) : magic);
}

template <int DT>
__device__ __forceinline__ void operand(const Codes<DT>& codes, int k, uint32_t (&a)[4]) {
  a[0] = codes.word(k, 0, 0), a[1] = codes.word(k, 0, 1), a[2] = codes.word(k, 1, 0), a[3] = codes.word(k, 1, 1);
}

}  // namespace few
}  // namespace bao
