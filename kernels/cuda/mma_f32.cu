// The router of many rows: F32 weights keep f32 activations, and near ties f32 sums. A tiled product whose columns are cut into pieces, then a warp a row
// that adds the pieces in order and ranks the experts.
#include "../common/sample_mass.h"
#include "mma.cuh"

namespace bao {
namespace {

// A block computes 64 rows by 128 experts over the columns of its piece, 16 at a time; a thread 4 by 8.
constexpr int tile_x = 64, tile_w = 128, chunk = 16, threads = 256, pitch_x = tile_x + 4, pitch_w = tile_w + 4;
constexpr int32_t most_ranked = 256, most_pieces = 16, wanted_blocks = 256;

int32_t tiles_of(int32_t rows) { return (rows + tile_x - 1) / tile_x; }
int32_t pieces_of(int32_t rows) {
  int32_t pieces = wanted_blocks / tiles_of(rows);
  return pieces < 1 ? 1 : pieces > most_pieces ? most_pieces : pieces;
}

__global__ void __launch_bounds__(threads, 2) router_product_kernel(const StepRef* step, Tensor x, WeightRef w, int32_t piece_columns, int32_t bound, float* parts) {
  __shared__ __align__(16) float xs[2][chunk][pitch_x], ws[2][chunk][pitch_w];
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, x), n = w.rows, row0 = blockIdx.x * tile_x, expert0 = blockIdx.y * tile_w, tid = threadIdx.x;
  if (row0 >= rows) return;
  int32_t first = blockIdx.z * piece_columns, last = min(w.columns, first + piece_columns);
  // Loads: 4 columns of a row of x, and of two experts. Beyond the last one: the last one again, whose products nobody writes.
  int32_t load = tid >> 2, quarter = tid & 3;
  const float* from_x = x.f32(min(row0 + load, rows - 1)) + quarter * 4;
  const float* from_w[2];
#pragma unroll
  for (int i = 0; i < 2; i++) from_w[i] = reinterpret_cast<const float*>(w.row(0, min(expert0 + load + 64 * i, n - 1))) + quarter * 4;
  float4 next_x, next_w[2];
  auto fetch = [&](int32_t c) {
    bool in = c + quarter * 4 < last;
    const float4 none = make_float4(0, 0, 0, 0);
    next_x = in ? *reinterpret_cast<const float4*>(from_x + c) : none;
#pragma unroll
    for (int i = 0; i < 2; i++) next_w[i] = in ? __ldg(reinterpret_cast<const float4*>(from_w[i] + c)) : none;
  };
  auto put = [&](int b) {
    float* to = &xs[b][quarter * 4][load];
    to[0] = next_x.x, to[pitch_x] = next_x.y, to[2 * pitch_x] = next_x.z, to[3 * pitch_x] = next_x.w;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      to = &ws[b][quarter * 4][load + 64 * i];
      to[0] = next_w[i].x, to[pitch_w] = next_w[i].y, to[2 * pitch_w] = next_w[i].z, to[3 * pitch_w] = next_w[i].w;
    }
  };
  // A warp is 8 threads along x by 4 along w.
  int32_t warp = tid >> 5, lane = tid & 31, ty = (warp >> 2) * 8 + (lane >> 2), tx = (warp & 3) * 4 + (lane & 3);
  float acc[4][8] = {};
  fetch(first);
  put(0);
  int b = 0;
  for (int32_t c = first; c < last; c += chunk, b ^= 1) {
    __syncthreads();  // the chunk is there; and the other buffer, read a chunk ago, is free
    if (c + chunk < last) fetch(c + chunk);
#pragma unroll
    for (int k = 0; k < chunk; k++) {
      float4 a = *reinterpret_cast<const float4*>(&xs[b][k][ty * 4]);
      float4 v0 = *reinterpret_cast<const float4*>(&ws[b][k][tx * 4]), v1 = *reinterpret_cast<const float4*>(&ws[b][k][64 + tx * 4]);
      float left[4] = {a.x, a.y, a.z, a.w}, right[8] = {v0.x, v0.y, v0.z, v0.w, v1.x, v1.y, v1.z, v1.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 8; j++) acc[i][j] = fmaf(left[i], right[j], acc[i][j]);
      }
    }
    if (c + chunk < last) put(b ^ 1);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int32_t row = row0 + ty * 4 + i;
    if (row >= rows) continue;
    float* to = parts + (int64_t(blockIdx.z) * bound + row) * n;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      int32_t expert = expert0 + (j >> 2) * 64 + tx * 4 + (j & 3);
      if (expert < n) to[expert] = acc[i][j];
    }
  }
}

// A warp a row: lane l has experts l, l + 32, and so on.
__global__ void __launch_bounds__(128) router_rank_kernel(const StepRef* step, RouterArgs a, int32_t pieces, int32_t bound, const float* parts) {
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, a.ids), n = a.w.rows, k = a.ids.d2, lane = threadIdx.x & 31, r = blockIdx.x * 4 + (threadIdx.x >> 5);
  if (r >= rows) return;
  constexpr int each = most_ranked / 32;
  float logit[each], factor = a.w.factor(0);
  uint32_t key[each];
#pragma unroll
  for (int i = 0; i < each; i++) {
    logit[i] = 0, key[i] = 0;
    if (i * 32 + lane >= n) continue;
    const float* from = parts + int64_t(r) * n + i * 32 + lane;
    float sum = from[0];
    for (int32_t p = 1; p < pieces; p++) sum += from[int64_t(p) * bound * n];
    logit[i] = sum * factor;
    key[i] = order_key(logit[i]) + 1;  // 0: taken, or none; NaN has a place of its own below -infinity
  }
  int32_t mine = 0;
  float chosen = 0, most = 0;
  for (int32_t s = 0; s < k; s++) {
    uint32_t best = 0, id = UINT32_MAX;
#pragma unroll
    for (int i = 0; i < each; i++) best = max(best, key[i]);
    best = __reduce_max_sync(0xffffffffu, best);
#pragma unroll
    for (int i = each; i-- > 0;) {
      if (key[i] == best) id = i * 32 + lane;  // of this lane's the lowest
    }
    id = __reduce_min_sync(0xffffffffu, id);
    float value = 0;
#pragma unroll
    for (int i = 0; i < each; i++) {
      if (uint32_t(i * 32 + lane) == id) value = logit[i], key[i] = 0;
    }
    value = __shfl_sync(0xffffffffu, value, id & 31);
    if (s == 0) most = value;
    if (lane == s) mine = int32_t(id), chosen = value;
  }
  float e = lane < k ? expf(chosen - most) : 0.0f, sum = e;
  if (!a.renormalise) {
    sum = 0;
#pragma unroll
    for (int i = 0; i < each; i++) {
      if (i * 32 + lane < n) sum += expf(logit[i] - most);
    }
  }
  sum = warp_sum(sum);
  if (lane < k) a.ids.i32(r)[lane] = mine, a.weights.f32(r)[lane] = e / sum;
}

}  // namespace

Many record_many(Builder& b, const RouterArgs& a) {
  Many m{};
  const WeightRef& w = a.w;
  auto aligned = [](const void* data, int64_t stride) { return (reinterpret_cast<uintptr_t>(data) | uintptr_t(stride)) % 16 == 0; };
  m.on = w.dtype == BAO_F32 && w.rows <= most_ranked && w.columns % 4 == 0 && aligned(w.data, w.row_bytes) && aligned(a.x.data, a.x.stride);
  int64_t tiles = tiles_of(a.x.d0), most = tiles > wanted_blocks ? tiles : wanted_blocks;  // rows x pieces is at most this many tiles
  if (m.on) m.parts = b.reserve_scratch(most * tile_x * w.rows * 4);
  return m;
}

bool launch_many(const RouterArgs& a, const Many& m, const Run& run) {
  int32_t rows = run.bound(a.ids);
  if (!m.on || rows < mma_least_rows) return false;
  int32_t pieces = pieces_of(rows), columns = a.w.columns;
  int32_t piece = (columns + pieces * chunk - 1) / (pieces * chunk) * chunk;
  pieces = (columns + piece - 1) / piece;
  float* parts = run.scratch_f32(m.parts);
  launch(run, router_product_kernel, dim3(unsigned(tiles_of(rows)), blocks_of(a.w.rows, tile_w), unsigned(pieces)), dim3(threads), 0, run.step, a.x, a.w, piece, rows, parts);
  launch(run, router_rank_kernel, dim3(blocks_of(rows, 4)), dim3(128), 0, run.step, a, pieces, rows, const_cast<const float*>(parts));
  return true;
}

}  // namespace bao
