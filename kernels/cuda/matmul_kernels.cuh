// The product kernels, as templates over weight type and kind of activations; instantiated by matmul_f32.cu and matmul_int8.cu.
#pragma once
#include "matmul.h"

namespace bao {

constexpr int vector_warps = 4;

// What a block of the mat-vec works on: R rows of x from `row` on, or one (row, slot) pair of an expert (-1: unknown, gives zeros).
struct Target { int32_t row, slot, rows, expert; };

__device__ __forceinline__ int32_t expert_at(const Tensor& ids, const WeightRef& w, int32_t r, int32_t slot) {
  int32_t id = ids.i32(r)[slot];
  return id >= 0 && id < w.experts ? id : -1;
}

template <int DT>
__device__ __forceinline__ auto row_of(const WeightRef& w, int64_t expert, int32_t r) {
  if constexpr (is_plain(DT)) return w.row(expert, r);
  else return unit_row(w, expert, r);
}

// One warp a row of the weight, R rows of x. Lanes take units in turn; sums over lanes by butterflies: one order for any shape.
template <int DT, bool INT8, int R>
__global__ void __launch_bounds__(vector_warps * 32) vector_kernel(const StepRef* step, Product p) {
  int32_t lane = threadIdx.x & 31, j = blockIdx.x * vector_warps + (threadIdx.x >> 5);
  let_next_start();
  await_previous();
  int32_t rows = count_of(step, p.dst);
  if (j >= p.rows_of_w) return;
  int32_t items = p.ids.present() ? rows * p.ids.d2 : (rows + R - 1) / R;
  for (int32_t item = blockIdx.y; item < items; item += gridDim.y) {
    Target t = p.ids.present() ? Target{item / p.ids.d2, item % p.ids.d2, 1, expert_at(p.ids, p.w, item / p.ids.d2, item % p.ids.d2)}
                               : Target{item * R, 0, min(R, rows - item * R), 0};
    float sum[R] = {};
    if (t.expert >= 0) {
      auto w = row_of<DT>(p.w, t.expert, p.row_offset + j);
      if constexpr (is_plain(DT)) {
        const float* x[R];
#pragma unroll
        for (int r = 0; r < R; r++) x[r] = p.x.row(t.row + (r < t.rows ? r : 0), t.slot);
#pragma unroll 4
        for (int32_t c = lane; c < p.w.columns; c += 32) {
          float value = plain_value<DT>(w, c);
#pragma unroll
          for (int r = 0; r < R; r++) sum[r] += value * x[r][c];
        }
      } else if constexpr (INT8) {
        const int2* x[R];
        const float* d[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
          int64_t at = p.x.packed(t.row + (r < t.rows ? r : 0), t.slot);
          x[r] = reinterpret_cast<const int2*>(p.x.q + at * p.w.columns);
          d[r] = p.x.d + at * (p.w.columns / 32);
        }
#pragma unroll 2
        for (int32_t u = lane; u < p.w.columns / 8; u += 32) {
          Unit unit = load_unit<DT>(w, u);
#pragma unroll
          for (int r = 0; r < R; r++) {
            int2 q = __ldg(x[r] + u);
            float dot = unit.scale * float(__dp4a(unit.q1, q.y, __dp4a(unit.q0, q.x, 0)));
            if constexpr (has_bias(DT)) dot += unit.bias * float(__dp4a(0x01010101, q.y, __dp4a(0x01010101, q.x, 0)));
            sum[r] += __ldg(d[r] + (u >> 2)) * dot;
          }
        }
      } else {
        const float* x[R];
#pragma unroll
        for (int r = 0; r < R; r++) x[r] = p.x.row(t.row + (r < t.rows ? r : 0), t.slot);
        for (int32_t u = lane; u < p.w.columns / 8; u += 32) {
          Unit unit = load_unit<DT>(w, u);
#pragma unroll
          for (int i = 0; i < 8; i++) {
            float value = unit_value<DT>(unit, i);
#pragma unroll
            for (int r = 0; r < R; r++) sum[r] += value * x[r][u * 8 + i];
          }
        }
      }
    }
    float factor = t.expert < 0 ? 1.0f : p.w.factor(t.expert);
#pragma unroll
    for (int r = 0; r < R; r++) {
      float s = warp_sum(sum[r]);
      if (lane == 0 && r < t.rows) p.dst.f32(t.row + r)[int64_t(t.slot) * p.rows_of_w + j] = t.expert < 0 ? 0.0f : s * factor;
    }
  }
}

// A tile of 64 rows of the weight and 64 rows of x (or pairs of one expert), 32 columns at a time through shared memory; 4 x 4 outputs a thread.
template <int DT, bool INT8>
__global__ void __launch_bounds__(256) tile_kernel(const StepRef* step, Product p) {
  constexpr int pitch = INT8 ? 9 : tile + 1;
  __shared__ int32_t wq[INT8 ? tile * pitch : 1], xq[INT8 ? tile * pitch : 1];
  __shared__ float ws[INT8 ? tile * 2 : 1], wb[INT8 ? tile * 2 : 1], xd[INT8 ? tile : 1], xs[INT8 ? tile * 2 : 1];
  __shared__ float wf[INT8 ? 1 : 32 * pitch], xf[INT8 ? 1 : 32 * pitch];
  __shared__ int32_t source_row[tile], source_slot[tile];
  let_next_start();
  await_previous();
  int32_t rows = count_of(step, p.dst), expert = 0, first = 0, count;
  const int32_t* order = nullptr;
  if (p.groups) {
    if (rows <= 0 || int32_t(blockIdx.y) >= p.groups[0]) return;
    const int32_t* t = p.groups + 4 + 3 * blockIdx.y;
    expert = t[0], first = t[1], count = t[2];
    order = p.groups + 4 + 3 * p.most_tiles;
  } else {
    first = blockIdx.y * tile;
    count = min(tile, rows - first);
  }
  if (count <= 0) return;
  int32_t tid = threadIdx.x, j0 = blockIdx.x * tile;
  if (tid < tile) {
    int32_t item = tid < count ? (order ? order[first + tid] : first + tid) : -1;
    source_row[tid] = item < 0 ? -1 : order ? item / p.ids.d2 : item;
    source_slot[tid] = order && item >= 0 ? item % p.ids.d2 : 0;
  }
  __syncthreads();
  bool known = expert < p.w.experts;  // the last group holds the pairs whose id is none
  float acc[4][4] = {};
  int32_t tx = tid & 15, ty = tid >> 4, load_row = tid >> 2, part = tid & 3;
  if (known) {
    int32_t j = j0 + load_row;
    auto w = row_of<DT>(p.w, expert, p.row_offset + (j < p.rows_of_w ? j : 0));
    int32_t r = source_row[load_row], slot = source_slot[load_row];
    const float* x = INT8 ? nullptr : p.x.row(r < 0 ? 0 : r, slot);
    int64_t at = INT8 ? p.x.packed(r < 0 ? 0 : r, slot) : 0;
    for (int32_t c0 = 0; c0 < p.w.columns; c0 += 32) {
      __syncthreads();
      int32_t u = c0 / 8 + part;
      if constexpr (INT8) {
        Unit unit = j < p.rows_of_w ? load_unit<DT>(w, u) : Unit{0, 0, 0.0f, 0.0f};
        wq[load_row * pitch + part * 2] = unit.q0;
        wq[load_row * pitch + part * 2 + 1] = unit.q1;
        if ((part & 1) == 0) ws[load_row * 2 + part / 2] = unit.scale, wb[load_row * 2 + part / 2] = unit.bias;
        int2 q = r < 0 ? make_int2(0, 0) : __ldg(reinterpret_cast<const int2*>(p.x.q + at * p.w.columns) + u);
        xq[load_row * pitch + part * 2] = q.x;
        xq[load_row * pitch + part * 2 + 1] = q.y;
        int32_t s = __dp4a(0x01010101, q.y, __dp4a(0x01010101, q.x, 0));
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        if ((part & 1) == 0) xs[load_row * 2 + part / 2] = float(s);
        if (part == 0) xd[load_row] = r < 0 ? 0.0f : __ldg(p.x.d + at * (p.w.columns / 32) + c0 / 32);
      } else {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          int32_t c = c0 + part * 8 + i;
          xf[(part * 8 + i) * pitch + load_row] = r >= 0 && c < p.w.columns ? x[c] : 0.0f;
        }
        if constexpr (is_plain(DT)) {
#pragma unroll
          for (int i = 0; i < 8; i++) {
            int32_t c = c0 + part * 8 + i;
            wf[(part * 8 + i) * pitch + load_row] = j < p.rows_of_w && c < p.w.columns ? plain_value<DT>(w, c) : 0.0f;
          }
        } else {
          Unit unit = j < p.rows_of_w ? load_unit<DT>(w, u) : Unit{0, 0, 0.0f, 0.0f};
#pragma unroll
          for (int i = 0; i < 8; i++) wf[(part * 8 + i) * pitch + load_row] = unit_value<DT>(unit, i);
        }
      }
      __syncthreads();
      if constexpr (INT8) {
#pragma unroll
        for (int b = 0; b < 4; b++) {
          int32_t n = tx + 16 * b;
          int32_t q[8];
#pragma unroll
          for (int i = 0; i < 8; i++) q[i] = xq[n * pitch + i];
#pragma unroll
          for (int a = 0; a < 4; a++) {
            int32_t m = ty + 16 * a, low = 0, high = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
              low = __dp4a(wq[m * pitch + i], q[i], low);
              high = __dp4a(wq[m * pitch + 4 + i], q[4 + i], high);
            }
            float dot = ws[m * 2] * float(low) + ws[m * 2 + 1] * float(high);
            if constexpr (has_bias(DT)) dot += wb[m * 2] * xs[n * 2] + wb[m * 2 + 1] * xs[n * 2 + 1];
            acc[a][b] += xd[n] * dot;
          }
        }
      } else {
#pragma unroll 8
        for (int c = 0; c < 32; c++) {
          float xv[4], wv[4];
#pragma unroll
          for (int b = 0; b < 4; b++) xv[b] = xf[c * pitch + tx + 16 * b], wv[b] = wf[c * pitch + ty + 16 * b];
#pragma unroll
          for (int a = 0; a < 4; a++) {
#pragma unroll
            for (int b = 0; b < 4; b++) acc[a][b] += wv[a] * xv[b];
          }
        }
      }
    }
  }
  float factor = known ? p.w.factor(expert) : 1.0f;
#pragma unroll
  for (int b = 0; b < 4; b++) {
    int32_t n = tx + 16 * b;
    if (n >= count) continue;
    float* dst = p.dst.f32(source_row[n]) + int64_t(source_slot[n]) * p.rows_of_w;
#pragma unroll
    for (int a = 0; a < 4; a++) {
      int32_t j = j0 + ty + 16 * a;
      if (j < p.rows_of_w) dst[j] = known ? acc[a][b] * factor : 0.0f;
    }
  }
}

template <int DT, bool INT8>
void launch_typed(const Product& p, const Run& run) {
  int32_t rows = run.bound(p.dst);
  bool experts = p.ids.present();
  if (experts ? p.groups != nullptr : rows > vector_rows) {
    unsigned tiles = experts ? unsigned(p.most_tiles) : blocks_of(rows, tile);
    // Tiles of rows beyond the grid's y do not exist: maxRows is at most 2^20.
    launch(run, tile_kernel<DT, INT8>, dim3(blocks_of(p.rows_of_w, tile), tiles), dim3(256), 0, run.step, p);
    return;
  }
  unsigned x = blocks_of(p.rows_of_w, vector_warps);
  if (experts) {
    launch(run, vector_kernel<DT, INT8, 1>, dim3(x, grid_rows(rows * p.ids.d2)), dim3(vector_warps * 32), 0, run.step, p);
  } else if (rows == 1) {
    launch(run, vector_kernel<DT, INT8, 1>, dim3(x, 1), dim3(vector_warps * 32), 0, run.step, p);
  } else {
    launch(run, vector_kernel<DT, INT8, 4>, dim3(x, blocks_of(rows, 4)), dim3(vector_warps * 32), 0, run.step, p);
  }
}

}  // namespace bao
