// The decode product of 2 rows and more. A warp streams cells of 16 weight rows x 256 columns through its own ring in shared memory and multiplies them with
// operands of int8 activations, rounded by a launch before; several warps share a tile where there are few.
#pragma once
#include "few_round.cuh"

namespace bao {
namespace few {

// Shared memory, in this order. Rows of x: 4 or 8 N, interleaved by group of 32.
template <int N>
struct Shared {
  uint8_t* ring;      // [warps][stages][stage_bytes]
  int8_t* q;          // [group][x_rows][32]
  GroupOfX* groups;   // [group][x_rows]
  float* partial;     // [warps][2][8 N][16]
  __device__ Shared(uint4* base, const FewArgs& a) {
    ring = reinterpret_cast<uint8_t*>(base);
    q = reinterpret_cast<int8_t*>(ring + few_warps * few_stages * a.stage_bytes);
    groups = reinterpret_cast<GroupOfX*>(q + a.x_rows * a.cells * cell_columns);
    partial = reinterpret_cast<float*>(groups + a.x_rows * a.cells * 8);
  }
};

// Where a warp is in its work. Units of an item are numbered through its parts; a warp takes [first, end) of each of its items.
struct Place {
  const uint8_t* at;  // null: no more work
  int32_t item, unit, part, cell;
};

struct Warp {
  int32_t lane, first, end, stride, cell_bytes, last_bytes;
  uint8_t* ring;
  uint64_t* barrier;  // [stages]
};

__device__ __forceinline__ const uint8_t* part_at(const FewArgs& a, int32_t item, int32_t part) {
  int32_t m = 0;
  if (a.kind == FewKind::plain) {
    while (m + 1 < a.members && item >= a.member[m + 1].start) m++;
  } else if (a.kind == FewKind::glu) {
    m = part;
  }
  const FewMember& member = a.member[m];
  int32_t tile = member.first_tile + item - (a.kind == FewKind::plain ? member.start : 0);
  return member.w.data + int64_t(tile) * (member.w.row_bytes * tile_rows);
}

__device__ __forceinline__ Place place_at(const FewArgs& a, const Warp& w, int32_t item) {
  Place p{nullptr, item, w.first, w.first / a.cells, w.first % a.cells};
  if (item >= a.items) return p;
  p.at = part_at(a, item, p.part);
  p.at += p.cell * w.cell_bytes;
  return p;
}

__device__ __forceinline__ void advance(const FewArgs& a, const Warp& w, Place& p) {
  p.unit++, p.cell++;
  if (p.unit == w.end) {
    p = place_at(a, w, p.item + w.stride);
  } else if (p.cell == a.cells) {
    p.cell = 0, p.part++;
    p.at = part_at(a, p.item, p.part);
  } else {
    p.at += w.cell_bytes;
  }
}

// Starts the copy of a cell, if there is one. Whole warps.
__device__ __forceinline__ void fetch(const FewArgs& a, const Warp& w, const Place& p, int32_t slot) {
  if (p.item >= a.items) return;
  uint32_t bytes = uint32_t(p.cell + 1 == a.cells ? w.last_bytes : w.cell_bytes);
#if __CUDA_ARCH__ >= 900
  if (w.lane == 0) copy_whole(w.ring + slot * a.stage_bytes, p.at, bytes, w.barrier + slot);
#else
  copy_shared(w.ring + slot * a.stage_bytes, p.at, bytes, w.barrier + slot);
#endif
}

// Waits for first copies that nobody will use.
__device__ __forceinline__ void drain(const FewArgs& a, const Warp& w, int32_t first_item) {
  Place p = place_at(a, w, first_item);
  for (int32_t i = 0; i < few_stages && p.item < a.items; i++) {
    barrier_wait(w.barrier + i, 0);
    advance(a, w, p);
  }
}

// ---- activations

// Copies `count` rows from `first` on that were rounded before; zeros after them.
template <int N>
__device__ __forceinline__ void copy_rows(const FewArgs& a, const Shared<N>& s, int32_t first, int32_t count) {
  int32_t groups = a.cells * 8, whole = a.columns / 32;
  for (int32_t i = threadIdx.x; i < groups * a.x_rows; i += few_warps * 32) {
    int32_t group = i / a.x_rows, n = i % a.x_rows;
    uint4 low{}, high{}, numbers{};
    if (n < count && group < whole) {
      int64_t row = first + n;
      const uint4* q = reinterpret_cast<const uint4*>(a.q + row * a.columns + group * 32);
      low = q[0], high = q[1], numbers = *reinterpret_cast<const uint4*>(a.groups + row * whole + group);
    }
    reinterpret_cast<uint4*>(s.q)[2 * i] = low, reinterpret_cast<uint4*>(s.q)[2 * i + 1] = high;
    reinterpret_cast<uint4*>(s.groups)[i] = numbers;
  }
}

// ---- products of one cell

// Up to 8 N rows of x, each an operand's column (4 of them, when N is 1 and `width` is 4). acc[4 n + i]: rows g (i = 0, 1) and g + 8, columns
// 8 n + 2 t + (i & 1).
template <int DT, int N>
__device__ __forceinline__ void multiply_rows(const uint8_t* cell, int32_t steps, const int8_t* q, const GroupOfX* groups, int32_t width, int lane, float (&acc)[4 * N]) {
  using L = Layout<DT>;
  int t = lane & 3;
  const uint8_t* step = cell + L::scale_bytes;
  float scale[4], bias[4];
  if constexpr (!L::sixteen) load_scales<DT>(cell, lane, 0, scale, bias);
#pragma unroll
  for (int s = 0; s < 4; s++) {
    if (s >= steps) break;
    if constexpr (L::sixteen) {
      if (s % 2 == 0) load_scales<DT>(cell, lane, s / 2, scale, bias);
    }
    Codes<DT> codes;
    codes.load(step + s * L::step_bytes, lane);
#pragma unroll
    for (int k = 0; k < 2; k++) {
      uint32_t w[4];
      operand(codes, k, w);
#pragma unroll
      for (int half = 0; half < (L::sixteen ? 2 : 1); half++) {
        // Which of the four lanes of a row has this group's scales, and where.
        int owner = L::sixteen ? (s & 1) * 2 + k : s, at = L::sixteen ? half : k;
        float scale_g = __shfl_sync(0xffffffffu, scale[at], owner, 4), scale_h = __shfl_sync(0xffffffffu, scale[2 + at], owner, 4), bias_g = 0, bias_h = 0;
        if constexpr (has_bias(DT)) bias_g = __shfl_sync(0xffffffffu, bias[at], owner, 4), bias_h = __shfl_sync(0xffffffffu, bias[2 + at], owner, 4);
#pragma unroll
        for (int n = 0; n < N; n++) {
          int32_t row = (2 * s + k) * width + n * 8;
          uint2 b = make_uint2(0, 0);
          if ((N > 1 || lane >> 2 < width) && (!L::sixteen || half == t >> 1)) b = *reinterpret_cast<const uint2*>(q + row * 32 + lane * 8);
          GroupOfX x[2] = {};
          if (N > 1 || 2 * t < width) x[0] = groups[row + 2 * t], x[1] = groups[row + 2 * t + 1];
          float sum[2];
          int32_t c[4];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            sum[i] = !L::sixteen ? x[i].all : half ? x[i].high : x[i].low;
            c[i] = c[2 + i] = start_of<DT>(sum[i]);
          }
          multiply_bytes(c, w, b.x, b.y);
#pragma unroll
          for (int i = 0; i < 4; i++) {
            float v = (i < 2 ? scale_g : scale_h) * (__int_as_float(c[i]) - magic);
            if constexpr (has_bias(DT)) v = fmaf(i < 2 ? bias_g : bias_h, sum[i & 1], v);
            acc[4 * n + i] = fmaf(x[i & 1].scale, v, acc[4 * n + i]);
          }
        }
      }
    }
  }
}

// ---- results

// The rows that a block writes: columns are `count` rows of x from `first` on.
struct Outputs {
  int32_t count, first;
  float factor[2];  // of gate and up
};

// The value of one output, from the sums of its parts.
__device__ __forceinline__ void store(const FewArgs& a, const Outputs& out, int32_t item, int32_t r, int32_t column, float value, float up) {
  int32_t m = 0;
  if (a.kind == FewKind::plain) {
    while (m + 1 < a.members && item >= a.member[m + 1].start) m++;
  }
  const FewMember& member = a.member[m];
  int32_t j = (item - (a.kind == FewKind::plain ? member.start : 0)) * tile_rows + r;
  if (j >= member.outputs || column >= out.count) return;
  float v = value;
  if (a.kind == FewKind::plain) v *= member.w.factor(0);
  if (a.kind == FewKind::glu) v = activate(value * out.factor[0], a.activation) * (up * out.factor[1]);
  member.dst.f32(out.first + column)[j] = v;
}

// Everything a warp has to do once the activations are in shared memory.
template <int DT, int N>
__device__ __forceinline__ void consume(const FewArgs& a, const Warp& w, const Shared<N>& s, const Outputs& out, Place next) {
  constexpr int sums = 4 * N, columns = 8 * N;
  int g = w.lane >> 2, t = w.lane & 3, warp = threadIdx.x >> 5;
  Place here = place_at(a, w, blockIdx.x * (few_warps / a.split) + warp / a.split);
  float acc[sums] = {}, value[sums] = {}, up[sums] = {};
  int32_t slot = 0;
  uint32_t parity = 0;
  while (here.item < a.items) {
    barrier_wait(w.barrier + slot, parity);
    multiply_rows<DT, N>(w.ring + slot * a.stage_bytes, min(4, a.steps - 4 * here.cell), s.q + here.cell * (cell_columns * a.x_rows), s.groups + here.cell * (8 * a.x_rows),
                         a.x_rows, w.lane, acc);
    __syncwarp();
    fetch(a, w, next, slot);
    advance(a, w, next);
    if (++slot == few_stages) slot = 0, parity ^= 1;

    if (here.unit + 1 == w.end || here.cell + 1 == a.cells) {
#pragma unroll
      for (int i = 0; i < sums; i++) {
        if (here.part) up[i] = acc[i];
        else value[i] = acc[i];
        acc[i] = 0;
      }
    }
    if (here.unit + 1 == w.end) {
      float* partial = s.partial + warp * (2 * columns * tile_rows);
#pragma unroll
      for (int i = 0; i < sums; i++) {
        int r = g + 8 * (i >> 1 & 1), column = 8 * (i >> 2) + 2 * t + (i & 1);
        if (a.split == 1) store(a, out, here.item, r, column, value[i], up[i]);
        else partial[column * tile_rows + r] = value[i], partial[(columns + column) * tile_rows + r] = up[i];
        value[i] = up[i] = 0;
      }
    }
    advance(a, w, here);
  }
}

template <int N>
__global__ void __launch_bounds__(few_warps * 32, N == 1 ? 2 : 1) few_kernel(const StepRef* step, FewArgs a) {
  extern __shared__ uint4 dynamic[];
  __shared__ uint64_t barrier[few_warps * few_stages];
  Shared<N> s(dynamic, a);
  int32_t warp = threadIdx.x >> 5, tid = threadIdx.x, first_item = blockIdx.x * (few_warps / a.split) + warp / a.split;

  Warp w;
  w.lane = tid & 31;
  int32_t units = a.cells * (a.kind == FewKind::glu ? 2 : 1), part = warp % a.split;
  w.first = int32_t(int64_t(units) * part / a.split), w.end = int32_t(int64_t(units) * (part + 1) / a.split);
  w.stride = a.split == 1 ? gridDim.x * few_warps : a.items;
  int32_t m = 0;
  if (a.kind == FewKind::plain) {
    while (m + 1 < a.members && first_item >= a.member[m + 1].start) m++;
  }
  w.cell_bytes = a.member[m].cell_bytes, w.last_bytes = a.member[m].last_bytes;
  w.ring = s.ring + warp * (few_stages * a.stage_bytes);
  w.barrier = barrier + warp * few_stages;
  if (w.lane == 0) {
    for (int32_t i = 0; i < few_stages; i++) barrier_make(w.barrier + i);
    barriers_made();
  }
  __syncwarp();
  if (w.first == w.end) first_item = a.items;  // more warps than units

  // Weights are on their way before the launch before this one has ended.
  Place next = place_at(a, w, first_item);
  for (int32_t i = 0; i < few_stages; i++) {
    fetch(a, w, next, i);
    if (next.item < a.items) advance(a, w, next);
  }
  await_previous();
  let_next_start();

  // Rows of x are cut over the grid's y.
  int32_t first = int32_t(blockIdx.y) * a.x_rows;
  Outputs out{min(a.x_rows, count_of(step, a.member[0].dst) - first), first, {1.0f, 1.0f}};
  if (out.count <= 0) {
    drain(a, w, first_item);
    return;
  }
  if (a.kind == FewKind::glu) out.factor[0] = a.member[0].w.factor(0), out.factor[1] = a.member[1].w.factor(0);

  copy_rows<N>(a, s, first, out.count);
  __syncthreads();

#define BAO_CASE(name) case BAO_##name: consume<BAO_##name, N>(a, w, s, out, next); break
  if (first_item < a.items) {
    switch (a.member[m].w.dtype) {
      BAO_CASE(Q4_0); BAO_CASE(Q4_1); BAO_CASE(Q5_0); BAO_CASE(Q5_1); BAO_CASE(Q8_0); BAO_CASE(Q2_K); BAO_CASE(Q3_K); BAO_CASE(Q4_K); BAO_CASE(Q5_K);
      BAO_CASE(Q6_K); BAO_CASE(IQ4_NL); BAO_CASE(IQ4_XS); BAO_CASE(MXFP4); BAO_CASE(NVFP4);
    }
  }
#undef BAO_CASE
  if (a.split == 1) return;

  // The warps' shares of an item, added in order.
  constexpr int32_t columns = 8 * N;
  if (first_item >= a.items) {
    for (int32_t i = w.lane; i < 2 * columns * tile_rows; i += 32) s.partial[warp * (2 * columns * tile_rows) + i] = 0;
  }
  __syncthreads();
  for (int32_t i = tid; i < few_warps / a.split * columns * tile_rows; i += few_warps * 32) {
    int32_t local = i / (columns * tile_rows), rest = i % (columns * tile_rows), item = blockIdx.x * (few_warps / a.split) + local;
    if (item >= a.items) continue;
    float value = 0, up = 0;
    for (int32_t p = 0; p < a.split; p++) {
      const float* partial = s.partial + (local * a.split + p) * (2 * columns * tile_rows) + rest;
      value += partial[0], up += partial[columns * tile_rows];
    }
    store(a, out, item, rest % tile_rows, rest / tile_rows, value, up);
  }
}

template <int N>
void launch_typed(const FewArgs& a, dim3 grid, size_t shared, int limit, const Run& run) {
  // Asked for again at every launch: it is cheap, and true for whichever device is current.
  cudaFuncSetAttribute(few_kernel<N>, cudaFuncAttributeMaxDynamicSharedMemorySize, limit);
  launch(run, few_kernel<N>, grid, dim3(few_warps * 32), shared, run.step, a);
}

}  // namespace few
}  // namespace bao
