// The decode product of 2 rows and more where the device chooses the rounding: activations in f16, weights made f16 in registers. A block's warps share a
// tile of 16 weight rows as in few_one.cuh; a warp has one cell of every tile, and its part of up to 16 rows of x stays in its registers.
#pragma once
#include "few.h"
#include "mma_weights.cuh"
#include "ptx.h"

namespace bao {
namespace few {

constexpr int rows_warps = 16, column_floats = 20;  // of a column of partial sums: so that no two lanes meet in a bank

// First block of each member, and how many there are.
struct RowsCut { int32_t first[4]; };

// Shared memory: ring [warps][stages][stage_bytes], barriers [warps][stages], partial sums [2][warps][parts][8 N][column_floats].
inline int64_t rows_shared(const FewArgs& a, int32_t n, int32_t parts, int32_t warps) {
  return warps * (a.stages * (int64_t(a.stage_bytes) + 8) + 2 * parts * 8 * n * column_floats * 4);
}

__device__ __forceinline__ void multiply_halves(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A warp's part of 8 rows of x: operand B of this lane's row g, unit t of each of the cell's groups of 32, times a power of two so that the largest lies in
// [2^14, 2^15). back: what undoes it, for rows 2 t and 2 t + 1.
struct RowsOfX {
  uint32_t b[8][4];
  float back[2];
};

__device__ __forceinline__ void load_rows(RowsOfX& x, const float* row, int32_t columns, int32_t lane) {
  int32_t t = lane & 3;
  float4 v[16];
  bool aligned = (reinterpret_cast<uintptr_t>(row) & 15) == 0;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    int32_t at = k * 32 + t * 8;
    v[2 * k] = v[2 * k + 1] = make_float4(0, 0, 0, 0);
    if (!row || at >= columns) continue;
    if (aligned) {
      v[2 * k] = __ldcg(reinterpret_cast<const float4*>(row + at)), v[2 * k + 1] = __ldcg(reinterpret_cast<const float4*>(row + at) + 1);
    } else {
      const float* p = row + at;
      v[2 * k] = make_float4(__ldcg(p), __ldcg(p + 1), __ldcg(p + 2), __ldcg(p + 3)), v[2 * k + 1] = make_float4(__ldcg(p + 4), __ldcg(p + 5), __ldcg(p + 6), __ldcg(p + 7));
    }
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < 16; i++) largest = fmaxf(fmaxf(largest, fmaxf(fabsf(v[i].x), fabsf(v[i].y))), fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  // Infinities and rows of zeros stay as they are.
  int32_t exponent = __float_as_int(largest) >> 23, up = largest == 0 || exponent == 255 ? 127 : min(268 - exponent, 253);
  float factor = __int_as_float(up << 23), back = __int_as_float((254 - up) << 23);
#pragma unroll
  for (int k = 0; k < 8; k++) {
    // In the order in which a lane's weights come: columns (0, 2), (1, 3), (4, 6), (5, 7) of its unit.
    const float4 &low = v[2 * k], &high = v[2 * k + 1];
    x.b[k][0] = mma::as_word(__floats2half2_rn(low.x * factor, low.z * factor)), x.b[k][1] = mma::as_word(__floats2half2_rn(low.y * factor, low.w * factor));
    x.b[k][2] = mma::as_word(__floats2half2_rn(high.x * factor, high.z * factor)), x.b[k][3] = mma::as_word(__floats2half2_rn(high.y * factor, high.w * factor));
  }
  x.back[0] = __shfl_sync(0xffffffffu, back, 8 * t), x.back[1] = __shfl_sync(0xffffffffu, back, 8 * t + 4);
}

// 8 N rows of x against one cell; all four steps, because x is zero where a last cell has none. acc[n]: rows g and g + 8 of the tile, rows 8 n + 2 t and + 1 of x.
template <int DT, int N>
__device__ __forceinline__ void multiply_cell(const uint8_t* cell, const RowsOfX (&x)[N], int lane, float (&acc)[N][4]) {
  using L = Layout<DT>;
  constexpr int parts = L::sixteen ? 2 : 1;
  mma::Weights<DT> w;
  w.lane = lane;
  uint32_t scale[parts][2], bias[parts][2];  // [part][row g, g + 8]: of this lane's two groups
#pragma unroll
  for (int part = 0; part < parts; part++) {
    float f[4], b[4];
    load_scales<DT>(cell, lane, part, f, b);
#pragma unroll
    for (int high = 0; high < 2; high++) {
      scale[part][high] = mma::as_word(__floats2half2_rn(f[2 * high], f[2 * high + 1]));
      if constexpr (has_bias(DT)) bias[part][high] = mma::as_word(__floats2half2_rn(b[2 * high], b[2 * high + 1]));
    }
  }
#pragma unroll
  for (int s = 0; s < 4; s++) {
    w.now[0].load(cell + L::scale_bytes + s * L::step_bytes, lane);
#pragma unroll
    for (int high = 0; high < 2; high++) {
#pragma unroll
      for (int k = 0; k < parts; k++) {
        int part = L::sixteen ? s >> 1 : 0, owner = L::sixteen ? 2 * (s & 1) + k : s;
        w.scale[0][high][k] = __shfl_sync(0xffffffffu, scale[part][high], owner, 4);
        if constexpr (has_bias(DT)) w.bias[0][high][k] = __shfl_sync(0xffffffffu, bias[part][high], owner, 4);
      }
    }
#pragma unroll
    for (int q = 0; q < 4; q++) {
      uint32_t a[4];
      w.operand(0, q, 0, a[0], a[2]);
      w.operand(0, q, 1, a[1], a[3]);
#pragma unroll
      for (int n = 0; n < N; n++) multiply_halves(acc[n], a, x[n].b[2 * s + (q >> 1)][2 * (q & 1)], x[n].b[2 * s + (q >> 1)][2 * (q & 1) + 1]);
    }
  }
}

// A warp's copies: its cell of each tile (of gate, then of up), by turns into its ring.
struct RowsFetch {
  const uint8_t* from[2];  // of the member's first tile
  int32_t tile_bytes, bytes, part, item, end, stride;
};

__device__ __forceinline__ void fetch_cell(RowsFetch& f, int32_t parts, uint8_t* to, uint64_t* barrier, int32_t lane) {
  if (f.item >= f.end) return;
  const uint8_t* from = (f.part ? f.from[1] : f.from[0]) + int64_t(f.item) * f.tile_bytes;
#if __CUDA_ARCH__ >= 900
  if (lane == 0) copy_whole(to, from, uint32_t(f.bytes), barrier);
#else
  copy_shared(to, from, uint32_t(f.bytes), barrier);
#endif
  if (++f.part == parts) f.part = 0, f.item += f.stride;
}

// Everything once x is in registers.
template <int DT, FewKind kind, int N>
__device__ __forceinline__ void multiply_all(const FewArgs& a, const FewMember& member, RowsFetch& f, uint8_t* ring, uint64_t* barrier, float* partials, const RowsOfX (&x)[N], int32_t item,
                                             int32_t first, int32_t count, int32_t lane) {
  constexpr int parts = kind == FewKind::glu ? 2 : 1, size = 8 * N * column_floats;
  const int32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, g = lane >> 2, t = lane & 3;
  const float factor = member.w.factor(0), up_factor = kind == FewKind::glu ? a.member[1].w.factor(0) : 1.0f;
  int32_t slot = 0, turn = 0;
  uint32_t parity = 0;
  for (; item < f.end; item += f.stride) {
    float* partial = partials + turn * (warps * parts * size);
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
      float acc[N][4] = {};
      barrier_wait(barrier + slot, parity);
      multiply_cell<DT, N>(ring + slot * a.stage_bytes, x, lane, acc);
      __syncwarp();
      fetch_cell(f, parts, ring + slot * a.stage_bytes, barrier + slot, lane);
      if (++slot == a.stages) slot = 0, parity ^= 1;
      float* mine = partial + (warp * parts + part) * size + 2 * t * column_floats + g;
#pragma unroll
      for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) mine[(8 * n + (i & 1)) * column_floats + 8 * (i >> 1)] = acc[n][i] * x[n].back[i & 1];
      }
    }
    // Partials lie in two places in turn: a place is written again only after the barrier of the tile between.
    __syncthreads();
    for (int32_t i = threadIdx.x; i < count * tile_rows; i += blockDim.x) {
      int32_t column = i / tile_rows, r = i % tile_rows, j = item * tile_rows + r;
      const float* from = partial + column * column_floats + r;
      float value = 0, up = 0;
      for (int32_t p = 0; p < warps; p++) {
        value += from[p * (parts * size)];
        if constexpr (kind == FewKind::glu) up += from[p * (parts * size) + size];
      }
      value *= factor;
      if constexpr (kind == FewKind::glu) value = activate(value, a.activation) * (up * up_factor);
      if (j < member.outputs) member.dst.f32(first + column)[j] = value;
    }
    turn ^= 1;
  }
}

template <FewKind kind, int N>
__global__ void __launch_bounds__(rows_warps * 32, 1) rows_kernel(const StepRef* step, const __grid_constant__ FewArgs a, const __grid_constant__ RowsCut cut) {
  extern __shared__ uint4 dynamic[];
  constexpr int parts = kind == FewKind::glu ? 2 : 1;
  const int32_t warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31;
  int32_t m = 0;
  if constexpr (kind == FewKind::plain) {
    while (m + 1 < a.members && int32_t(blockIdx.x) >= cut.first[m + 1]) m++;
  }
  const FewMember& member = a.member[m];
  uint8_t* ring = reinterpret_cast<uint8_t*>(dynamic) + warp * a.stages * a.stage_bytes;
  uint64_t* barriers = reinterpret_cast<uint64_t*>(reinterpret_cast<uint8_t*>(dynamic) + warps * a.stages * a.stage_bytes);
  float* partials = reinterpret_cast<float*>(barriers + warps * a.stages);
  uint64_t* barrier = barriers + warp * a.stages;
  if (lane == 0) {
    for (int32_t i = 0; i < a.stages; i++) barrier_make(barrier + i);
    barriers_made();
  }
  __syncwarp();

  // Weights are on their way before the launch before this one has ended.
  int32_t item = int32_t(blockIdx.x) - cut.first[m];
  RowsFetch f{};
  f.tile_bytes = int32_t(member.w.row_bytes * tile_rows), f.bytes = warp + 1 == a.cells ? member.last_bytes : member.cell_bytes;
  f.item = item, f.end = (member.outputs + tile_rows - 1) / tile_rows, f.stride = cut.first[m + 1] - cut.first[m];
#pragma unroll
  for (int part = 0; part < parts; part++) {
    const FewMember& of = a.member[kind == FewKind::glu ? part : m];
    f.from[part] = of.w.data + int64_t(of.first_tile) * f.tile_bytes + warp * of.cell_bytes;
  }
  int32_t copies = 0;
  for (; copies < a.stages && f.item < f.end; copies++) fetch_cell(f, parts, ring + copies * a.stage_bytes, barrier + copies, lane);
  await_previous();
  let_next_start();

  int32_t first = int32_t(blockIdx.y) * 8 * N, count = min(count_of(step, member.dst) - first, 8 * N);
  if (count <= 0) {  // copies that nobody uses
    for (int32_t i = 0; i < copies; i++) barrier_wait(barrier + i, 0);
    return;
  }
  RowsOfX x[N];
#pragma unroll
  for (int n = 0; n < N; n++) {
    int32_t row = 8 * n + (lane >> 2);
    load_rows(x[n], row < count ? a.x.f32(first + row) + warp * cell_columns : nullptr, a.columns - warp * cell_columns, lane);
  }
#define BAO_CASE(name) case BAO_##name: multiply_all<BAO_##name, kind, N>(a, member, f, ring, barrier, partials, x, item, first, count, lane); break
  switch (member.w.dtype) {
    BAO_CASE(Q4_0); BAO_CASE(Q4_1); BAO_CASE(Q5_0); BAO_CASE(Q5_1); BAO_CASE(Q8_0); BAO_CASE(Q2_K); BAO_CASE(Q3_K); BAO_CASE(Q4_K); BAO_CASE(Q5_K);
    BAO_CASE(Q6_K); BAO_CASE(IQ4_NL); BAO_CASE(IQ4_XS); BAO_CASE(MXFP4); BAO_CASE(NVFP4);
  }
#undef BAO_CASE
}

}  // namespace few
}  // namespace bao
