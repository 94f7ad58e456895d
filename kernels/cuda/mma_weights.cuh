// Operand A of the tensor-core products: one lane's weights, from memory to registers a step of 64 columns ahead, made f16 when they are needed.
#pragma once
#include "mma.cuh"

namespace bao {
namespace mma {

__device__ __forceinline__ __half2 as_half2(uint32_t v) { return *reinterpret_cast<__half2*>(&v); }
__device__ __forceinline__ uint32_t as_word(__half2 v) { return *reinterpret_cast<uint32_t*>(&v); }
__device__ __forceinline__ void to_second_cache(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// 2^10 + u for bytes 0 and 2 of a word.
__device__ __forceinline__ uint32_t even_bytes(uint32_t w) { return (w & 0x00FF00FFu) | 0x64006400u; }

// The operands of one lane, of rows g and g + 8 of two tiles of 16 rows. operand(i, s, high) gives, of row g + 8 * high of tile i, elements
// 4 (s & 1) + {0, 2} (even) and + {1, 3} (odd) of unit t of group s >> 1 of the step: see units.h, and mma.cu for activations in that order.
template <int DT>
struct Weights {
  using L = Layout<DT>;
  static constexpr int parts = L::sixteen ? 2 : 1;
  static constexpr bool is_signed = L::bytes || DT == BAO_IQ4_NL || DT == BAO_IQ4_XS || DT == BAO_MXFP4 || DT == BAO_NVFP4;
  const uint8_t* tile[2];
  int32_t lane;
  Codes<DT> now[2], next[2];
  uint32_t touched[2];
  // Of this lane's groups of the cell, as load_scales gives them, two f16 a word: [tile][part][row g, g + 8]. Then those of the step: [tile][row].
  uint32_t cell_scale[2][parts][2], cell_bias[2][parts][2], scale[2][2][parts], bias[2][2][parts];

  // Whole cells of two tiles on their way from memory, long before they are fetched.
  static __device__ __forceinline__ void announce(const uint8_t* cell, int32_t lane) {
    if (lane * 128 < L::cell_bytes) to_second_cache(cell + lane * 128);
  }
  static __device__ __forceinline__ void announce_row(const WeightRef& w, int32_t expert, int32_t row, int32_t steps, int32_t lane) {
    if (steps >= 4) announce(tile_of_row(w, expert, row), lane);
    if (steps >= 8) announce(tile_of_row(w, expert, row) + L::cell_bytes, lane);
  }

  __device__ __forceinline__ void init(const WeightRef& w, int32_t expert, int32_t row, int i) {
    tile[i] = tile_of_row(w, expert, row);
    touch(i, tile[i]);
  }
  // Scales are on their way to the first cache while the cell before is multiplied.
  __device__ __forceinline__ void touch(int i, const uint8_t* cell) { touched[i] = __ldg(reinterpret_cast<const uint32_t*>(cell + lane * (L::scale_bytes / 32 & ~3))); }
  // Codes of a step come a step ahead.
  __device__ __forceinline__ void fetch(int32_t step) {
#pragma unroll
    for (int i = 0; i < 2; i++) next[i].load(tile[i] + int64_t(step >> 2) * L::cell_bytes + L::scale_bytes + (step & 3) * L::step_bytes, lane);
  }
  // The scales of a step; then the codes of the next one start.
  __device__ __forceinline__ void begin(int32_t step, int32_t steps) {
    int32_t quarter = step & 3;
    if (quarter == 0) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint8_t* cell = tile[i] + int64_t(step >> 2) * L::cell_bytes;
        asm volatile("" ::"r"(touched[i]));
#pragma unroll
        for (int part = 0; part < parts; part++) {
          float f[4], b[4] = {};
          load_scales<DT>(cell, lane, part, f, b);
#pragma unroll
          for (int high = 0; high < 2; high++) {
            cell_scale[i][part][high] = as_word(__floats2half2_rn(f[2 * high], f[2 * high + 1]));
            if (has_bias(DT)) cell_bias[i][part][high] = as_word(__floats2half2_rn(b[2 * high], b[2 * high + 1]));
          }
        }
        if (step + 4 < steps) touch(i, cell + L::cell_bytes);
        if (step + 12 <= steps) announce(cell + 2 * L::cell_bytes, lane);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      now[i] = next[i];
#pragma unroll
      for (int high = 0; high < 2; high++) {
        if constexpr (L::sixteen) {
          // Of 16 columns each: those of group k of 32 lie with lane 2 (quarter & 1) + k.
#pragma unroll
          for (int k = 0; k < 2; k++) {
            scale[i][high][k] = __shfl_sync(0xffffffffu, quarter < 2 ? cell_scale[i][0][high] : cell_scale[i][1][high], 2 * (quarter & 1) + k, 4);
            if (has_bias(DT)) bias[i][high][k] = __shfl_sync(0xffffffffu, quarter < 2 ? cell_bias[i][0][high] : cell_bias[i][1][high], 2 * (quarter & 1) + k, 4);
          }
        } else {
          scale[i][high][0] = __shfl_sync(0xffffffffu, cell_scale[i][0][high], quarter, 4);
          if (has_bias(DT)) bias[i][high][0] = __shfl_sync(0xffffffffu, cell_bias[i][0][high], quarter, 4);
        }
      }
    }
    if (step + 1 < steps) fetch(step + 1);
  }
  __device__ __forceinline__ void end_part(int, int32_t, int32_t) {}
  // The f16 of group k of 32, twice.
  __device__ __forceinline__ __half2 of_group(const uint32_t (&v)[parts], int k) const {
    if constexpr (L::sixteen) return as_half2(__byte_perm(v[k], 0, lane & 2 ? 0x3232 : 0x1010));
    return as_half2(__byte_perm(v[0], 0, k ? 0x3232 : 0x1010));
  }
  __device__ __forceinline__ void operand(int i, int s, int high, uint32_t& even, uint32_t& odd) const {
    __half2 a, b, f = of_group(scale[i][high], s >> 1);
    if constexpr (L::nibbles && !L::two && !L::one && !is_signed) {
      // High nibbles where they are: 2^10 + 16 u.
      const uint4& v = now[i].low[0];
      uint32_t w = s < 2 ? (high ? v.y : v.x) : (high ? v.w : v.z), mask = s & 1 ? 0x00F000F0u : 0x000F000Fu;
      __half2 x = as_half2((w & mask) | 0x64006400u), y = as_half2((w >> 8 & mask) | 0x64006400u);
      const __half2 down = __float2half2_rn(0.0625f), high_offset = __float2half2_rn(-64.0f - L::offset), offset = __float2half2_rn(1024.0f + L::offset);
      a = s & 1 ? __hfma2(x, down, high_offset) : __hsub2(x, offset), b = s & 1 ? __hfma2(y, down, high_offset) : __hsub2(y, offset);
    } else {
      const __half2 offset = __float2half2_rn(is_signed ? 1152.0f : 1024.0f + L::offset);
      uint32_t w = now[i].word(s >> 1, s & 1, high) ^ (is_signed ? 0x80808080u : 0u);
      a = __hsub2(as_half2(even_bytes(w)), offset), b = __hsub2(as_half2(even_bytes(w >> 8)), offset);
    }
    if constexpr (has_bias(DT)) {
      __half2 add = of_group(bias[i][high], s >> 1);
      even = as_word(__hfma2(a, f, add)), odd = as_word(__hfma2(b, f, add));
    } else {
      even = as_word(__hmul2(a, f)), odd = as_word(__hmul2(b, f));
    }
  }
};

// F16 as it is; BF16 to nearest f16: below 2^-14 with fewer bits, beyond 65504 infinity. Rows as in the file. A group's registers take the next step's as
// soon as they are operands.
template <int DT>
struct Plain16 {
  const uint8_t* row[2][2];
  int32_t lane, units;
  uint4 now[2][2][2];  // [tile][row][group]
  static __device__ __forceinline__ void announce_row(const WeightRef&, int32_t, int32_t, int32_t, int32_t) {}
  __device__ __forceinline__ void init(const WeightRef& w, int32_t expert, int32_t first, int i) {
    units = w.columns / 8;
#pragma unroll
    for (int high = 0; high < 2; high++) row[i][high] = w.row(expert, min(first + (lane >> 2) + 8 * high, w.rows - 1));
  }
  __device__ __forceinline__ void fetch_group(int32_t step, int k) {
    int32_t u = step * 8 + k * 4 + (lane & 3);
#pragma unroll
    for (int n = 0; n < 4; n++) now[n >> 1][n & 1][k] = u < units ? __ldg(reinterpret_cast<const uint4*>(row[n >> 1][n & 1]) + u) : make_uint4(0, 0, 0, 0);
  }
  __device__ __forceinline__ void fetch(int32_t step) { fetch_group(step, 0), fetch_group(step, 1); }
  __device__ __forceinline__ void begin(int32_t, int32_t) {}
  __device__ __forceinline__ void end_part(int s, int32_t step, int32_t steps) {
    if (s & 1 && step + 1 < steps) fetch_group(step + 1, s >> 1);
  }
  __device__ __forceinline__ void operand(int i, int s, int high, uint32_t& even, uint32_t& odd) const {
    const uint4& v = now[i][high][s >> 1];
    uint32_t a = s & 1 ? v.z : v.x, b = s & 1 ? v.w : v.y;
    if constexpr (DT == BAO_F16) {
      even = __byte_perm(a, b, 0x5410), odd = __byte_perm(a, b, 0x7632);
    } else {
      even = as_word(__floats2half2_rn(__uint_as_float(a << 16), __uint_as_float(b << 16)));
      odd = as_word(__floats2half2_rn(__uint_as_float(a & 0xFFFF0000u), __uint_as_float(b & 0xFFFF0000u)));
    }
  }
};
template <> struct Weights<BAO_F16> : Plain16<BAO_F16> {};
template <> struct Weights<BAO_BF16> : Plain16<BAO_BF16> {};

}  // namespace mma
}  // namespace bao
