// Rows of a file's block types to the tiles of units.h, on the device, while a weight is uploaded. Runs once a weight: written to be obviously right.
#include "backend.cuh"
#include "units.h"

namespace bao {
namespace {

// ---- the file's side: code and scales of one element or group, as common/dequant.h reads them.

template <int DT>
constexpr __device__ int file_block_bytes() {
  return DT == BAO_Q4_0 || DT == BAO_IQ4_NL ? 18 : DT == BAO_Q4_1 ? 20 : DT == BAO_Q5_0 ? 22 : DT == BAO_Q5_1 ? 24 : DT == BAO_Q8_0 ? 34 : DT == BAO_MXFP4 ? 17 :
         DT == BAO_NVFP4 ? 36 : DT == BAO_Q2_K ? 84 : DT == BAO_Q3_K ? 110 : DT == BAO_Q4_K ? 144 : DT == BAO_Q5_K ? 176 : DT == BAO_Q6_K ? 210 : 136;
}
template <int DT>
constexpr __device__ int file_block_elements() {
  return DT == BAO_Q4_0 || DT == BAO_IQ4_NL || DT == BAO_Q4_1 || DT == BAO_Q5_0 || DT == BAO_Q5_1 || DT == BAO_Q8_0 || DT == BAO_MXFP4 ? 32 : DT == BAO_NVFP4 ? 64 : 256;
}
template <int DT>
__device__ const uint8_t* file_block(const uint8_t* row, int32_t i) {
  return row + int64_t(i / file_block_elements<DT>()) * file_block_bytes<DT>();
}
__device__ uint32_t half_bits(const uint8_t* p) { return p[0] | uint32_t(p[1]) << 8; }

// The code of element i, before offset or table.
template <int DT>
__device__ uint32_t file_code(const uint8_t* row, int32_t i) {
  const uint8_t* b = file_block<DT>(row, i);
  i %= file_block_elements<DT>();
  if constexpr (DT == BAO_Q8_0) return b[2 + i];
  if constexpr (DT == BAO_Q4_0 || DT == BAO_IQ4_NL) return split_nibble(b + 2, i, 16);
  if constexpr (DT == BAO_Q4_1) return split_nibble(b + 4, i, 16);
  if constexpr (DT == BAO_MXFP4) return split_nibble(b + 1, i, 16);
  if constexpr (DT == BAO_Q5_0 || DT == BAO_Q5_1) {
    const uint8_t* high = b + (DT == BAO_Q5_1 ? 4 : 2);
    return split_nibble(high + 4, i, 16) | (high[i / 8] >> (i % 8) & 1) << 4;
  }
  if constexpr (DT == BAO_NVFP4) return split_nibble(b + 4 + 8 * (i / 16), i % 16, 8);
  if constexpr (DT == BAO_IQ4_XS) return split_nibble(b + 8 + 16 * (i / 32), i % 32, 16);
  if constexpr (DT == BAO_Q4_K) return split_nibble(b + 16 + 32 * (i / 64), i % 64, 32);
  if constexpr (DT == BAO_Q5_K) return split_nibble(b + 48 + 32 * (i / 64), i % 64, 32) | (b[16 + i % 32] >> (i / 32) & 1) << 4;
  if constexpr (DT == BAO_Q6_K) {
    int n = i / 128, k = i % 128 / 32, l = i % 32, byte = b[64 * n + 32 * (k & 1) + l];
    return (k < 2 ? byte & 15 : byte >> 4) | (b[128 + 32 * n + l] >> (2 * k) & 3) << 4;
  }
  if constexpr (DT == BAO_Q2_K) return b[16 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3;
  if constexpr (DT == BAO_Q3_K) return (b[32 + 32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32)) & 3) | (b[i % 32] >> (i / 32) & 1) << 2;
  return 0;
}

// What units.h packs for one group (of 32, or of 16 for types with a scale for 16): the group's own number(s), and the block's halves.
struct GroupScale { uint32_t own, block; };
template <int DT>
__device__ GroupScale file_scale(const uint8_t* row, int32_t group) {
  using L = Layout<DT>;
  int32_t first = group * (L::sixteen ? 16 : 32);
  const uint8_t* b = file_block<DT>(row, first);
  int j = first % file_block_elements<DT>() / (L::sixteen ? 16 : 32);
  if constexpr (L::scaling == Scaling::half) return {half_bits(b), 0};
  if constexpr (L::scaling == Scaling::half_pair) return {half_bits(b) | half_bits(b + 2) << 16, 0};
  if constexpr (L::scaling == Scaling::six_bits) return {uint32_t(k_scale(b + 4, j)) | uint32_t(k_min(b + 4, j)) << 6, half_bits(b) | half_bits(b + 2) << 16};
  if constexpr (DT == BAO_Q6_K) return {b[192 + j], half_bits(b + 208)};
  if constexpr (DT == BAO_Q3_K) {
    int low = j < 8 ? b[96 + j] & 15 : b[88 + j] >> 4, high = b[104 + j % 4] >> (2 * (j / 4)) & 3;
    return {uint32_t((low | high << 4) - 32) & 255, half_bits(b + 108)};
  }
  if constexpr (DT == BAO_Q2_K) return {b[j], half_bits(b + 80) | half_bits(b + 82) << 16};
  if constexpr (DT == BAO_IQ4_XS) return {uint32_t((b[4 + j / 2] >> (4 * (j % 2)) & 15) | (half_bits(b + 2) >> (2 * j) & 3) << 4), half_bits(b)};
  return {b[DT == BAO_NVFP4 ? j : 0], 0};
}

// ---- a thread is one lane of one step: rows g and g + 8, units t of two groups.
template <int DT>
__global__ void __launch_bounds__(256) relay_kernel(const uint8_t* file, int64_t file_row_bytes, int32_t rows, int32_t columns, uint8_t* tiles, TileShape shape) {
  using L = Layout<DT>;
  int64_t index = int64_t(blockIdx.x) * 256 + threadIdx.x;
  int32_t lane = int32_t(index & 31), s = int32_t((index >> 5) % shape.steps), g = lane >> 2, t = lane & 3;
  int64_t tile = (index >> 5) / shape.steps;
  if (tile * tile_rows >= rows) return;
  uint8_t *cell = tiles + tile * shape.bytes + int64_t(s >> 2) * L::cell_bytes, *step = cell + L::scale_bytes + (s & 3) * L::step_bytes;

  uint32_t nibbles[4] = {}, two[2] = {}, one = 0;
  for (int high = 0; high < 2; high++) {
    int64_t r = tile * tile_rows + g + 8 * high;
    const uint8_t* row = file + r * file_row_bytes;
    for (int k = 0; k < 2; k++) {
      int32_t column = s * step_columns + k * 32 + 8 * t;
      bool there = r < rows && column < columns;
      for (int part = 0; part < 2; part++) {
        uint32_t bytes = 0;
        for (int e = 0; e < 4; e++) {
          uint32_t code = there ? file_code<DT>(row, column + 4 * part + e) : 0;
          bytes |= code << (8 * e);
        }
        if constexpr (L::bytes) {
          *reinterpret_cast<uint32_t*>(step + k * 512 + lane * 16 + (high + 2 * part) * 4) = bytes;
        } else {
          int i = 2 * k + part;
          if constexpr (L::nibbles) nibbles[2 * k + high] |= (bytes & 0x0F0F0F0Fu) << (4 * part);
          if constexpr (L::two) two[high] |= (bytes >> (L::nibbles ? 4 : 0) & 0x03030303u) << (2 * i);
          if constexpr (L::one) one |= (bytes >> (L::nibbles ? 4 : 2) & 0x01010101u) << (4 * high + i);
        }
      }
    }
  }
  if constexpr (L::nibbles) *reinterpret_cast<uint4*>(step + lane * 16) = make_uint4(nibbles[0], nibbles[1], nibbles[2], nibbles[3]);
  if constexpr (L::two) *reinterpret_cast<uint2*>(step + L::two_at + lane * 8) = make_uint2(two[0], two[1]);
  if constexpr (L::one) *reinterpret_cast<uint32_t*>(step + L::one_at + lane * 4) = one;
  if (s & 3) return;

  // Scales of the cell: this lane's groups 2 t and 2 t + 1 (of both halves of the cell, where a group is 16 elements).
  uint32_t words[4] = {}, block[2] = {};
  for (int high = 0; high < 2; high++) {
    int64_t r = tile * tile_rows + g + 8 * high;
    const uint8_t* row = file + r * file_row_bytes;
    for (int part = 0; part < (L::sixteen ? 2 : 1); part++) {
      for (int odd = 0; odd < 2; odd++) {
        int32_t group = (s >> 2) * (L::sixteen ? 16 : 8) + 8 * part + 2 * t + odd;
        if (r >= rows || int64_t(group) * (L::sixteen ? 16 : 32) >= columns) continue;
        GroupScale scale = file_scale<DT>(row, group);
        block[high] = scale.block;
        if constexpr (L::scaling == Scaling::half) words[high] |= scale.own << (16 * odd);
        else if constexpr (L::scaling == Scaling::half_pair) words[high] |= (scale.own & 0xFFFFu) << (16 * odd), words[2 + high] |= (scale.own >> 16) << (16 * odd);
        else if constexpr (L::scaling == Scaling::six_bits) words[high] |= scale.own << (12 * odd);
        else if constexpr (L::scaling == Scaling::signed_six_bits) words[0] |= scale.own << (12 * high + 6 * odd);
        else words[part] |= scale.own << (16 * high + 8 * odd);
      }
    }
  }
  if constexpr (L::scaling == Scaling::six_bits) words[0] |= (block[0] >> (8 * t) & 255) << 24, words[1] |= (block[1] >> (8 * t) & 255) << 24;
  if constexpr (L::scaling == Scaling::signed_six_bits) words[0] |= (block[0] >> (4 * t) & 15) << 24 | (block[1] >> (4 * t) & 15) << 28;
  if constexpr (L::scaling == Scaling::half_pair) *reinterpret_cast<uint4*>(cell + lane * 16) = make_uint4(words[0], words[1], words[2], words[3]);
  else if constexpr (L::scaling == Scaling::signed_six_bits || L::scaling == Scaling::e8m0) *reinterpret_cast<uint32_t*>(cell + lane * 4) = words[0];
  else *reinterpret_cast<uint2*>(cell + lane * 8) = make_uint2(words[0], words[1]);
  if (t != 0) return;
  if constexpr (L::scaling == Scaling::bytes_and_half) *reinterpret_cast<uint32_t*>(cell + 256 + g * 4) = block[0] | block[1] << 16;
  if constexpr (L::scaling == Scaling::nibbles_and_pair) *reinterpret_cast<uint2*>(cell + 256 + g * 8) = make_uint2(block[0], block[1]);
}

}  // namespace

void launch_relay(int32_t dtype, const uint8_t* file, int64_t file_row_bytes, int32_t rows, int32_t columns, char* tiles, cudaStream_t stream) {
  TileShape shape = tile_shape(dtype, columns);
  int64_t threads = (int64_t(rows) + tile_rows - 1) / tile_rows * shape.steps * 32;
  with_dtype(dtype, [&](auto type) {
    constexpr int DT = decltype(type)::value;
    if constexpr (!is_plain(DT)) relay_kernel<DT><<<blocks_of(threads, 256), 256, 0, stream>>>(file, file_row_bytes, rows, columns, reinterpret_cast<uint8_t*>(tiles), shape);
  });
}

}  // namespace bao
