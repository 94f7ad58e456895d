// Expert ops: matmuls with a weight per (row, slot), weighted sum over slots. As in matmul.cu: few rows, many rows, and what neither serves, for which
// pairs are grouped by expert on the device.
#include "few.h"
#include "mma.cuh"

namespace bao {
namespace {

__global__ void __launch_bounds__(256) moe_sum_kernel(const StepRef* step, MoeSumArgs a) {
  let_next_start();
  await_previous();
  int32_t rows = count_of(step, a.dst), i = blockIdx.x * 256 + threadIdx.x;
  if (i >= a.x.d2) return;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const float *x = a.x.f32(r) + i, *weights = a.weights.f32(r);
    float sum = 0;
    for (int32_t s = 0; s < a.x.d1; s++) sum += weights[s] * x[int64_t(s) * a.x.d2];
    a.dst.f32(r)[i] = sum;
  }
}

// ---- pairs by expert: a counting sort by one block. The order of pairs within an expert does not show in any result.
__global__ void __launch_bounds__(1024) group_kernel(const StepRef* step, Tensor ids, int32_t experts, int32_t* words, GroupLayout l) {
  __shared__ int32_t scan[1024];
  __shared__ int32_t pair_base, tile_base;
  let_next_start();
  await_previous();
  int32_t pairs = max(count_of(step, ids), 0) * ids.d2, tid = threadIdx.x, bins = experts + 1;
  int32_t *counts = words + l.counts_at, *cursor = words + l.cursor_at, *order = words + l.order_at, *tiles = words + l.tiles_at;
  for (int32_t e = tid; e < bins; e += 1024) counts[e] = 0;
  if (tid == 0) pair_base = tile_base = 0;
  __syncthreads();
  auto bin = [&](int32_t pair) {
    int32_t id = ids.i32(pair / ids.d2)[pair % ids.d2];
    return id >= 0 && id < experts ? id : experts;
  };
  for (int32_t p = tid; p < pairs; p += 1024) atomicAdd(&counts[bin(p)], 1);
  __syncthreads();
  auto inclusive = [&](int32_t value) {
    scan[tid] = value;
    __syncthreads();
    for (int o = 1; o < 1024; o <<= 1) {
      int32_t add = tid >= o ? scan[tid - o] : 0;
      __syncthreads();
      scan[tid] += add;
      __syncthreads();
    }
    return scan[tid];
  };
  for (int32_t e0 = 0; e0 < bins; e0 += 1024) {
    int32_t e = e0 + tid, count = e < bins ? counts[e] : 0, need = (count + tile - 1) / tile;
    int32_t start = pair_base + inclusive(count) - count;
    __syncthreads();
    int32_t first = tile_base + inclusive(need) - need;
    if (e < bins) {
      cursor[e] = start;
      for (int32_t t = 0; t < need; t++) {
        int32_t* out = tiles + 3 * (first + t);
        out[0] = e, out[1] = start + t * tile, out[2] = min(tile, count - t * tile);
      }
    }
    __syncthreads();
    if (tid == 1023) pair_base = start + count, tile_base = first + need;
    __syncthreads();
  }
  for (int32_t p = tid; p < pairs; p += 1024) order[atomicAdd(&cursor[bin(p)], 1)] = p;
  if (tid == 0) words[0] = tile_base;
}

}  // namespace

GroupLayout group_layout(int64_t pairs, int32_t experts) {
  GroupLayout l{};
  int64_t bins = int64_t(experts) + 1, most = pairs / tile + (bins < pairs ? bins : pairs);
  l.most_tiles = int32_t(most);
  l.tiles_at = 4;
  l.order_at = l.tiles_at + 3 * most;
  l.counts_at = l.order_at + pairs;
  l.cursor_at = l.counts_at + bins;
  l.words = l.cursor_at + bins;
  return l;
}

int64_t reserve_groups(Builder& b, const Tensor& ids, int32_t experts) {
  return b.reserve_scratch(group_layout(int64_t(ids.d0) * ids.d2, experts).words * 4);
}

const int32_t* launch_group(const Tensor& ids, int32_t experts, int64_t scratch, const Run& run, int32_t* most_tiles) {
  int32_t* words = reinterpret_cast<int32_t*>(run.scratch + scratch);
  GroupLayout l = group_layout(int64_t(run.bound(ids)) * ids.d2, experts);
  launch(run, group_kernel, dim3(1), dim3(1024), 0, run.step, ids, experts, words, l);
  *most_tiles = l.most_tiles;
  return words;
}

void launch_moe_sum(const MoeSumArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) launch(run, moe_sum_kernel, dim3(blocks_of(a.x.d2, 256), grid_rows(rows)), dim3(256), 0, run.step, a);
}

namespace {

// Groups are made once for all products of an op; few pairs need none.
struct Grouped { const int32_t* groups; int32_t most_tiles; };
Grouped grouped(const Tensor& ids, int32_t experts, int64_t scratch, const Run& run) {
  Grouped g{nullptr, 0};
  if (int64_t(run.bound(ids)) * ids.d2 > vector_pairs) g.groups = launch_group(ids, experts, scratch, run, &g.most_tiles);
  return g;
}

void multiply(const Tensor& dst, const WeightRef& w, int32_t first, int32_t count, const Activations& x, const Tensor& ids, const Grouped& g, const Run& run) {
  launch_product(Product{dst, w, x, first, count, ids, g.groups, g.most_tiles}, run);
}

struct Moe { MoeMatmulArgs a; Rounded x; int64_t groups; Few few; Many many; };
void launch_moe(const Moe& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0 || launch_few(m.a, m.few, run) || launch_many(m.a, m.many, run)) return;
  Activations x = launch_round(m.a.x, m.x, run);
  multiply(m.a.dst, m.a.w, 0, m.a.w.rows, x, m.a.ids, grouped(m.a.ids, m.a.w.experts, m.groups, run), run);
}

struct MoeGlu { MoeMatmulGluArgs a; Rounded gate_x, up_x; int64_t groups, gate, up; Few few; Many many; };
void launch_moe_glu(const MoeGlu& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0 || launch_few(m.a, m.few, run) || launch_many(m.a, m.many, run)) return;
  int32_t n = m.a.dst.d2, k = m.a.ids.d2;
  const WeightRef& w = m.a.up.present() ? m.a.up : m.a.gate;
  Activations gate_x = launch_round(m.a.x, m.gate_x, run), up_x = m.up_x.rounding < 0 ? gate_x : launch_round(m.a.x, m.up_x, run);
  Grouped g = grouped(m.a.ids, m.a.gate.experts, m.groups, run);
  Tensor gate = run.scratch_tensor(m.gate, m.a.dst, k, n), up = run.scratch_tensor(m.up, m.a.dst, k, n);
  multiply(gate, m.a.gate, 0, n, gate_x, m.a.ids, g, run);
  multiply(up, w, m.a.up.present() ? 0 : n, n, up_x, m.a.ids, g, run);
  launch_glu(GluArgs{m.a.dst, gate, up, m.a.activation}, run);
}

struct MoeMatmulSum { MoeMatmulSumArgs a; Rounded x; int64_t groups, parts; Few few; Many many; };
void launch_matmul_sum(const MoeMatmulSum& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0 || launch_few(m.a, m.few, run) || launch_many(m.a, m.many, run)) return;
  Activations x = launch_round(m.a.x, m.x, run);
  Tensor parts = run.scratch_tensor(m.parts, m.a.dst, m.a.ids.d2, m.a.w.rows);
  multiply(parts, m.a.w, 0, m.a.w.rows, x, m.a.ids, grouped(m.a.ids, m.a.w.experts, m.groups, run), run);
  launch_moe_sum(MoeSumArgs{m.a.dst, parts, m.a.weights}, run);
}

}  // namespace

namespace cuda {

void moe_sum(Builder& b, const MoeSumArgs& a) { stage<MoeSumArgs, launch_moe_sum>(b, a); }

void moe_matmul(Builder& b, const MoeMatmulArgs& a) {
  stage<Moe, launch_moe>(b, Moe{a, reserve_rounded(b, a.x, rounding_of(a.w, a.fast)), reserve_groups(b, a.ids, a.w.experts), record_few(b, a), record_many(b, a)});
}

void moe_matmul_glu(Builder& b, const MoeMatmulGluArgs& a) {
  int32_t gate = rounding_of(a.gate, a.fast), up = a.up.present() ? rounding_of(a.up, a.fast) : gate;
  MoeGlu m{a, reserve_rounded(b, a.x, gate), {0, 0, -1}, reserve_groups(b, a.ids, a.gate.experts), 0, 0, record_few(b, a), record_many(b, a)};
  if (up != gate) m.up_x = reserve_rounded(b, a.x, up);
  int64_t bytes = int64_t(a.dst.d0) * a.dst.columns() * 4;
  m.gate = b.reserve_scratch(bytes);
  m.up = b.reserve_scratch(bytes);
  stage<MoeGlu, launch_moe_glu>(b, m);
}

void moe_matmul_sum(Builder& b, const MoeMatmulSumArgs& a) {
  MoeMatmulSum m{a, reserve_rounded(b, a.x, rounding_of(a.w, a.fast)), reserve_groups(b, a.ids, a.w.experts), 0, record_few(b, a), record_many(b, a)};
  m.parts = m.many.on ? m.many.parts : b.reserve_scratch(int64_t(a.dst.d0) * a.ids.d2 * a.w.rows * 4);
  stage<MoeMatmulSum, launch_matmul_sum>(b, m);
}

}  // namespace cuda
}  // namespace bao
