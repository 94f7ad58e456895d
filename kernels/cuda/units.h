// Quantised weights as they lie in device memory, and how kernels read them: as units of 8 elements of a row, or as operands of 16 x 32 matrix
// multiplications. common/dequant.h is the types' definition; relay.cu lays files out like this while uploading, in the same number of bytes.
//
//   weight = experts x tiles of 16 rows; tile = cells of 256 columns (the last one shorter, rounded up to 64); cell = scales of all its columns, then
//   steps of 64 columns; step = planes of codes: the low 4 bits, the next 2, the next 1 (or whole bytes), each with one piece for each of 32 lanes.
//
// Lane 4 g + t has of rows g and g + 8 of the tile unit t (elements 8 t ... 8 t + 7) of every 32 columns: operand A of mma.m16n8k32 as it is. Rows and
// columns beyond the last are there, with scale 0. So a warp reads a cell with consecutive 16-byte loads, and all types look the same behind Codes and Scales.
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

// ---- layout

constexpr int tile_rows = 16, cell_columns = 256, step_columns = 64;

// How a type packs its scales in a cell; see load_scales for each.
enum class Scaling { half, half_pair, six_bits, bytes_and_half, nibbles_and_pair, signed_six_bits, e8m0, ue4m3 };

template <int DT>
struct Layout {
  static constexpr bool bytes = DT == BAO_Q8_0;
  static constexpr bool two = DT == BAO_Q2_K || DT == BAO_Q3_K || DT == BAO_Q6_K;
  static constexpr bool one = DT == BAO_Q3_K || DT == BAO_Q5_0 || DT == BAO_Q5_1 || DT == BAO_Q5_K;
  static constexpr bool nibbles = !bytes && DT != BAO_Q2_K && DT != BAO_Q3_K;
  static constexpr int two_at = nibbles ? 512 : 0, one_at = two_at + (two ? 256 : 0);
  static constexpr int step_bytes = bytes ? 1024 : one_at + (one ? 128 : 0);
  // A scale for 16 elements, not for 32.
  static constexpr bool sixteen = DT == BAO_Q2_K || DT == BAO_Q3_K || DT == BAO_Q6_K || DT == BAO_NVFP4;
  // Element = scale * (code - offset) + bias, or scale * table[code].
  static constexpr int offset = DT == BAO_Q4_0 ? 8 : DT == BAO_Q5_0 ? 16 : DT == BAO_Q6_K ? 32 : DT == BAO_Q3_K ? 4 : 0;
  static constexpr Scaling scaling = DT == BAO_Q4_1 || DT == BAO_Q5_1 ? Scaling::half_pair : DT == BAO_Q4_K || DT == BAO_Q5_K ? Scaling::six_bits :
                                     DT == BAO_Q6_K || DT == BAO_Q3_K ? Scaling::bytes_and_half : DT == BAO_Q2_K ? Scaling::nibbles_and_pair :
                                     DT == BAO_IQ4_XS ? Scaling::signed_six_bits : DT == BAO_MXFP4 ? Scaling::e8m0 : DT == BAO_NVFP4 ? Scaling::ue4m3 : Scaling::half;
  static constexpr int scale_bytes = scaling == Scaling::half_pair ? 512 : scaling == Scaling::bytes_and_half ? 288 : scaling == Scaling::nibbles_and_pair ? 320 :
                                     scaling == Scaling::signed_six_bits || scaling == Scaling::e8m0 ? 128 : 256;
  static constexpr int cell_bytes = scale_bytes + 4 * step_bytes;
};

// Steps, cells and bytes of a tile of so many columns; all bytes are multiples of 32.
struct TileShape {
  int32_t steps, cells, cell_bytes, step_bytes;
  int64_t bytes;
};
inline TileShape tile_shape(int32_t dtype, int32_t columns) {
  TileShape s{};
  with_dtype(dtype, [&](auto type) {
    constexpr int DT = decltype(type)::value;
    if constexpr (!is_plain(DT)) {
      s.steps = (columns + step_columns - 1) / step_columns;
      s.cells = (columns + cell_columns - 1) / cell_columns;
      s.cell_bytes = Layout<DT>::cell_bytes, s.step_bytes = Layout<DT>::step_bytes;
      s.bytes = int64_t(s.cells) * Layout<DT>::scale_bytes + int64_t(s.steps) * Layout<DT>::step_bytes;
    }
  });
  return s;
}

#if defined(__CUDACC__)

// The tile of row r. A quantised weight's row_bytes is the share of one row in its tile; only whole tiles have an address.
__device__ __forceinline__ const uint8_t* tile_of_row(const WeightRef& w, int64_t expert, int32_t r) {
  return w.data + expert * w.expert_bytes + int64_t(r & ~(tile_rows - 1)) * w.row_bytes;
}

// ---- loads. Pointers may be to global or shared memory.

__device__ __forceinline__ uint32_t load4(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }
__device__ __forceinline__ float half_of(uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits))); }
__device__ __forceinline__ float half_at(const uint8_t* p) { return half_of(*reinterpret_cast<const uint16_t*>(p)); }

// Four nibbles (one a byte) through a table of 16 signed bytes.
__device__ __forceinline__ uint32_t lookup16(uint32_t codes, uint32_t t0, uint32_t t1, uint32_t t2, uint32_t t3) {
  uint32_t low = codes & 0x07070707u;
  uint32_t selector = (low | low >> 4) & 0x00770077u;
  selector = (selector | selector >> 8) & 0x7777u;
  uint32_t first = __byte_perm(t0, t1, selector), second = __byte_perm(t2, t3, selector), mask = (codes >> 3 & 0x01010101u) * 0xFFu;
  return (first & ~mask) | (second & mask);
}

// Codes of four elements as signed bytes, the offset not yet subtracted.
template <int DT>
__device__ __forceinline__ uint32_t coded(uint32_t codes) {
  if constexpr (DT == BAO_IQ4_NL || DT == BAO_IQ4_XS) return lookup16(codes, 0xBFAD9881u, 0xF6EADDCFu, 0x26190D01u, 0x71594535u);
  if constexpr (DT == BAO_MXFP4 || DT == BAO_NVFP4) return lookup16(codes, 0x03020100u, 0x0C080604u, 0xFDFEFF00u, 0xF4F8FAFCu);
  return codes;
}

// What one lane has of one step: units t of its two groups of 32 columns, of rows g and g + 8.
template <int DT>
struct Codes {
  using L = Layout<DT>;
  uint4 low[L::bytes ? 2 : 1];  // bytes: of group 0, 1. nibbles: words (group, row): low nibbles elements 0-3, high ones 4-7
  uint2 two;                    // of rows g and g + 8: bits 2 i of each byte, i = 2 * group + (0: elements 0-3, 1: 4-7)
  uint32_t one;                 // bits i of each byte for row g, 4 + i for row g + 8

  __device__ __forceinline__ void load(const uint8_t* step, int lane) {
    if constexpr (L::bytes || L::nibbles) low[0] = *reinterpret_cast<const uint4*>(step + lane * 16);
    if constexpr (L::bytes) low[1] = *reinterpret_cast<const uint4*>(step + 512 + lane * 16);
    if constexpr (L::two) two = *reinterpret_cast<const uint2*>(step + L::two_at + lane * 8);
    if constexpr (L::one) one = *reinterpret_cast<const uint32_t*>(step + L::one_at + lane * 4);
  }
  // Elements 4 part ... 4 part + 3 of unit t of group k, of row g + 8 * high, as signed bytes (offset not subtracted). All arguments are constants.
  __device__ __forceinline__ uint32_t word(int k, int part, int high) const {
    if constexpr (L::bytes) {
      const uint4& v = low[k];
      return part == 0 ? (high ? v.y : v.x) : (high ? v.w : v.z);
    }
    return packed(L::nibbles ? (k == 0 ? (high ? low[0].y : low[0].x) : (high ? low[0].w : low[0].z)) : 0, high ? two.y : two.x, k, part, high);
  }
  // The same from the row's own words.
  __device__ __forceinline__ uint32_t packed(uint32_t nibble_word, uint32_t two_word, int k, int part, int high) const {
    int i = 2 * k + part;
    uint32_t codes = 0;
    if constexpr (L::nibbles) codes = (part ? nibble_word >> 4 : nibble_word) & 0x0F0F0F0Fu;
    if constexpr (L::two) {
      constexpr int at = L::nibbles ? 4 : 0;
      codes |= (2 * i >= at ? two_word >> (2 * i - at) : two_word << (at - 2 * i)) & 0x03030303u << at;
    }
    if constexpr (L::one) {
      constexpr int at = L::nibbles ? 4 : 2;
      int from = 4 * high + i;
      codes |= (from >= at ? one >> (from - at) : one << (at - from)) & 0x01010101u << at;
    }
    return coded<DT>(codes);
  }
};

// Scale and bias of rows g and g + 8, of two neighbouring groups: [0], [1] row g, [2], [3] row g + 8. Groups are those of 32 columns 2 t and 2 t + 1 of the
// cell; of types with a scale for 16, those of 16 columns 2 t and 2 t + 1 of the first (part 0) or second (part 1) half of the cell.
// Whole warps only. Bias is what is added: minimums come negated.
template <int DT>
__device__ __forceinline__ void load_scales(const uint8_t* cell, int lane, int part, float (&scale)[4], float (&bias)[4]) {
  using L = Layout<DT>;
  auto fields = [&](uint32_t a, uint32_t b) {  // halves
    scale[0] = half_of(a), scale[1] = half_of(a >> 16), scale[2] = half_of(b), scale[3] = half_of(b >> 16);
  };
  if constexpr (L::scaling == Scaling::half) {
    uint2 v = *reinterpret_cast<const uint2*>(cell + lane * 8);
    fields(v.x, v.y);
  } else if constexpr (L::scaling == Scaling::half_pair) {  // scales of both rows, then minimums
    uint4 v = *reinterpret_cast<const uint4*>(cell + lane * 16);
    fields(v.x, v.y);
    bias[0] = half_of(v.z), bias[1] = half_of(v.z >> 16), bias[2] = half_of(v.w), bias[3] = half_of(v.w >> 16);
  } else if constexpr (L::scaling == Scaling::six_bits) {
    // A word a row: scale, minimum, scale, minimum of 6 bits; above them byte t of the row's two halves.
    uint2 v = *reinterpret_cast<const uint2*>(cell + lane * 8);
    uint32_t a = (v.x >> 24) << (8 * (lane & 3)), b = (v.y >> 24) << (8 * (lane & 3));
    a |= __shfl_xor_sync(0xffffffffu, a, 1), b |= __shfl_xor_sync(0xffffffffu, b, 1);
    a |= __shfl_xor_sync(0xffffffffu, a, 2), b |= __shfl_xor_sync(0xffffffffu, b, 2);
    float da = half_of(a), ma = -half_of(a >> 16), db = half_of(b), mb = -half_of(b >> 16);
    scale[0] = da * float(v.x & 63), bias[0] = ma * float(v.x >> 6 & 63), scale[1] = da * float(v.x >> 12 & 63), bias[1] = ma * float(v.x >> 18 & 63);
    scale[2] = db * float(v.y & 63), bias[2] = mb * float(v.y >> 6 & 63), scale[3] = db * float(v.y >> 12 & 63), bias[3] = mb * float(v.y >> 18 & 63);
  } else if constexpr (L::scaling == Scaling::bytes_and_half) {  // four signed bytes a part; then halves of rows g and g + 8
    uint32_t v = load4(cell + lane * 8 + part * 4), d = load4(cell + 256 + (lane >> 2) * 4);
    float a = half_of(d), b = half_of(d >> 16);
    scale[0] = a * float(int8_t(v)), scale[1] = a * float(int8_t(v >> 8)), scale[2] = b * float(int8_t(v >> 16)), scale[3] = b * float(int32_t(v) >> 24);
  } else if constexpr (L::scaling == Scaling::nibbles_and_pair) {  // four bytes a part, minimums in the high nibbles; then both halves of rows g and g + 8
    uint32_t v = load4(cell + lane * 8 + part * 4);
    uint2 d = *reinterpret_cast<const uint2*>(cell + 256 + (lane >> 2) * 8);
    float da = half_of(d.x), ma = -half_of(d.x >> 16), db = half_of(d.y), mb = -half_of(d.y >> 16);
    scale[0] = da * float(v & 15), bias[0] = ma * float(v >> 4 & 15), scale[1] = da * float(v >> 8 & 15), bias[1] = ma * float(v >> 12 & 15);
    scale[2] = db * float(v >> 16 & 15), bias[2] = mb * float(v >> 20 & 15), scale[3] = db * float(v >> 24 & 15), bias[3] = mb * float(v >> 28);
  } else if constexpr (L::scaling == Scaling::signed_six_bits) {  // four of 6 bits, above them nibble t of the halves of rows g and g + 8
    uint32_t v = load4(cell + lane * 4), a = (v >> 24 & 15) << (4 * (lane & 3)) | (v >> 28) << (4 * (lane & 3) + 16);
    a |= __shfl_xor_sync(0xffffffffu, a, 1);
    a |= __shfl_xor_sync(0xffffffffu, a, 2);
    float da = half_of(a), db = half_of(a >> 16);
    scale[0] = da * float(int32_t(v & 63) - 32), scale[1] = da * float(int32_t(v >> 6 & 63) - 32);
    scale[2] = db * float(int32_t(v >> 12 & 63) - 32), scale[3] = db * float(int32_t(v >> 18 & 63) - 32);
  } else {
    uint32_t v = load4(L::scaling == Scaling::e8m0 ? cell + lane * 4 : cell + lane * 8 + part * 4);
#pragma unroll
    for (int i = 0; i < 4; i++) scale[i] = L::scaling == Scaling::e8m0 ? e8m0_halved(uint8_t(v >> (8 * i))) : ue4m3_halved(uint8_t(v >> (8 * i)));
  }
}

// ---- units: any 8 consecutive elements of any row; element i is scale * q[i] + bias.

struct Unit {
  int32_t q0, q1;
  float scale, bias;
};

// A row of a weight, for load_unit.
struct UnitRow {
  const uint8_t* tile;
  int32_t row;  // in the tile
};
__device__ __forceinline__ UnitRow unit_row(const WeightRef& w, int64_t expert, int32_t r) { return UnitRow{tile_of_row(w, expert, r), r & (tile_rows - 1)}; }

// Scale and bias of one group of a cell (of 32 columns, or of 16) of one row.
template <int DT>
__device__ __forceinline__ void load_scale(const uint8_t* cell, int row, int group, float& scale, float& bias) {
  using L = Layout<DT>;
  int g = row & 7, high = row >> 3, odd = group & 1, part = group >> 3, lane = g * 4 + (group >> 1 & 3);
  bias = 0;
  if constexpr (L::scaling == Scaling::half) {
    scale = half_at(cell + lane * 8 + high * 4 + odd * 2);
  } else if constexpr (L::scaling == Scaling::half_pair) {
    scale = half_at(cell + lane * 16 + high * 4 + odd * 2), bias = half_at(cell + lane * 16 + 8 + high * 4 + odd * 2);
  } else if constexpr (L::scaling == Scaling::six_bits) {
    uint32_t v = load4(cell + lane * 8 + high * 4) >> (12 * odd), d = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) d |= uint32_t(cell[(g * 4 + t) * 8 + high * 4 + 3]) << (8 * t);
    scale = half_of(d) * float(v & 63), bias = -half_of(d >> 16) * float(v >> 6 & 63);
  } else if constexpr (L::scaling == Scaling::bytes_and_half) {
    scale = half_at(cell + 256 + g * 4 + high * 2) * float(int8_t(cell[lane * 8 + part * 4 + high * 2 + odd]));
  } else if constexpr (L::scaling == Scaling::nibbles_and_pair) {
    uint32_t v = cell[lane * 8 + part * 4 + high * 2 + odd], d = load4(cell + 256 + g * 8 + high * 4);
    scale = half_of(d) * float(v & 15), bias = -half_of(d >> 16) * float(v >> 4);
  } else if constexpr (L::scaling == Scaling::signed_six_bits) {
    uint32_t d = 0;
#pragma unroll
    for (int t = 0; t < 4; t++) d |= (load4(cell + (g * 4 + t) * 4) >> (24 + 4 * high) & 15) << (4 * t);
    scale = half_of(d) * float(int32_t(load4(cell + lane * 4) >> (12 * high + 6 * odd) & 63) - 32);
  } else if constexpr (L::scaling == Scaling::e8m0) {
    scale = e8m0_halved(cell[lane * 4 + high * 2 + odd]);
  } else {
    scale = ue4m3_halved(cell[lane * 8 + part * 4 + high * 2 + odd]);
  }
}

// Unit u (elements 8 u ... 8 u + 7) of a row.
template <int DT>
__device__ __forceinline__ Unit load_unit(const UnitRow& w, int32_t u) {
  using L = Layout<DT>;
  const uint8_t* cell = w.tile + int64_t(u >> 5) * L::cell_bytes;
  const uint8_t* step = cell + L::scale_bytes + (u >> 3 & 3) * L::step_bytes;
  int lane = (w.row & 7) * 4 + (u & 3), high = w.row >> 3, k = u >> 2 & 1;
  Unit unit;
  uint32_t q0, q1;
  if constexpr (L::bytes) {
    const uint8_t* q = step + k * 512 + lane * 16 + high * 4;
    q0 = load4(q), q1 = load4(q + 8);
  } else {
    Codes<DT> c;
    uint32_t nibble_word = 0, two_word = 0;
    if constexpr (L::nibbles) nibble_word = load4(step + lane * 16 + k * 8 + high * 4);
    if constexpr (L::two) two_word = load4(step + L::two_at + lane * 8 + high * 4);
    if constexpr (L::one) c.one = load4(step + L::one_at + lane * 4);
    q0 = c.packed(nibble_word, two_word, k, 0, high), q1 = c.packed(nibble_word, two_word, k, 1, high);
  }
  constexpr uint32_t offset = L::offset * 0x01010101u;
  unit.q0 = int32_t(L::offset ? __vsub4(q0, offset) : q0), unit.q1 = int32_t(L::offset ? __vsub4(q1, offset) : q1);
  load_scale<DT>(cell, w.row, L::sixteen ? u >> 1 & 15 : u >> 2 & 7, unit.scale, unit.bias);
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

#endif

}  // namespace bao
