// Expert ops: top-k of a softmax, matmuls with a weight per (row, slot), weighted sum over slots. Many pairs are grouped by expert on the device.
#include "../common/sample_mass.h"
#include "mma.cuh"

namespace bao {
namespace {

// ---- top-k: one block a row, the logits' order keys in shared memory.
constexpr int most_experts = 1024;

__global__ void __launch_bounds__(256) topk_kernel(const StepRef* step, TopkSoftmaxArgs a) {
  __shared__ uint32_t keys[most_experts], best_key[8];
  __shared__ int32_t best_id[8], chosen[32];
  __shared__ float shared[32];
  int32_t rows = count_of(step, a.ids), n = a.logits.d2, k = a.ids.d2, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const float* logits = a.logits.f32(r);
    __syncthreads();
    // Shifted by one so that 0 means taken: NaN keeps a place of its own, below -infinity.
    for (int32_t i = threadIdx.x; i < n; i += 256) keys[i] = order_key(logits[i]) + 1;
    for (int32_t s = 0; s < k; s++) {
      __syncthreads();
      uint32_t key = 0;
      int32_t id = INT32_MAX;
      for (int32_t i = threadIdx.x; i < n; i += 256) {
        if (keys[i] > key) key = keys[i], id = i;
      }
      for (int o = 16; o; o >>= 1) {
        uint32_t other = __shfl_xor_sync(0xffffffffu, key, o);
        int32_t other_id = __shfl_xor_sync(0xffffffffu, id, o);
        if (other > key || (other == key && other_id < id)) key = other, id = other_id;
      }
      if (lane == 0) best_key[warp] = key, best_id[warp] = id;
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int w = 1; w < 8; w++) {
          if (best_key[w] > key || (best_key[w] == key && best_id[w] < id)) key = best_key[w], id = best_id[w];
        }
        chosen[s] = id;
        keys[id] = 0;
      }
    }
    __syncthreads();
    float max = logits[chosen[0]], sum = 0;
    if (a.renormalise) {
      for (int32_t s = threadIdx.x; s < k; s += 256) sum += expf(logits[chosen[s]] - max);
    } else {
      for (int32_t i = threadIdx.x; i < n; i += 256) sum += expf(logits[i] - max);
    }
    sum = block_sum(sum, shared);
    for (int32_t s = threadIdx.x; s < k; s += 256) {
      a.ids.i32(r)[s] = chosen[s];
      a.weights.f32(r)[s] = expf(logits[chosen[s]] - max) / sum;
    }
  }
}

__global__ void __launch_bounds__(256) moe_sum_kernel(const StepRef* step, MoeSumArgs a) {
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
  group_kernel<<<1, 1024, 0, run.stream>>>(run.step, ids, experts, words, l);
  *most_tiles = l.most_tiles;
  return words;
}

void launch_topk(const TopkSoftmaxArgs& a, const Run& run) {
  int32_t rows = run.bound(a.ids);
  if (rows > 0) topk_kernel<<<dim3(1, grid_rows(rows)), 256, 0, run.stream>>>(run.step, a);
}

void launch_moe_sum(const MoeSumArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) moe_sum_kernel<<<dim3(blocks_of(a.x.d2, 256), grid_rows(rows)), 256, 0, run.stream>>>(run.step, a);
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

struct Moe { MoeMatmulArgs a; Rounded x; int64_t groups; Many many; };
void launch_moe(const Moe& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0 || launch_many(m.a, m.many, run)) return;
  Activations x = launch_round(m.a.x, m.x, run);
  multiply(m.a.dst, m.a.w, 0, m.a.w.rows, x, m.a.ids, grouped(m.a.ids, m.a.w.experts, m.groups, run), run);
}

struct MoeGlu { MoeMatmulGluArgs a; Rounded gate_x, up_x; int64_t groups, gate, up; Many many; };
void launch_moe_glu(const MoeGlu& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0 || launch_many(m.a, m.many, run)) return;
  int32_t n = m.a.dst.d2, k = m.a.ids.d2;
  const WeightRef& w = m.a.up.present() ? m.a.up : m.a.gate;
  Activations gate_x = launch_round(m.a.x, m.gate_x, run), up_x = m.up_x.rounding < 0 ? gate_x : launch_round(m.a.x, m.up_x, run);
  Grouped g = grouped(m.a.ids, m.a.gate.experts, m.groups, run);
  Tensor gate = run.scratch_tensor(m.gate, m.a.dst, k, n), up = run.scratch_tensor(m.up, m.a.dst, k, n);
  multiply(gate, m.a.gate, 0, n, gate_x, m.a.ids, g, run);
  multiply(up, w, m.a.up.present() ? 0 : n, n, up_x, m.a.ids, g, run);
  launch_glu(GluArgs{m.a.dst, gate, up, m.a.activation}, run);
}

struct MoeMatmulSum { MoeMatmulSumArgs a; Rounded x; int64_t groups, parts; Many many; };
void launch_matmul_sum(const MoeMatmulSum& m, const Run& run) {
  if (run.bound(m.a.dst) <= 0 || launch_many(m.a, m.many, run)) return;
  Activations x = launch_round(m.a.x, m.x, run);
  Tensor parts = run.scratch_tensor(m.parts, m.a.dst, m.a.ids.d2, m.a.w.rows);
  multiply(parts, m.a.w, 0, m.a.w.rows, x, m.a.ids, grouped(m.a.ids, m.a.w.experts, m.groups, run), run);
  launch_moe_sum(MoeSumArgs{m.a.dst, parts, m.a.weights}, run);
}

}  // namespace

namespace cuda {

void topk_softmax(Builder& b, const TopkSoftmaxArgs& a) { stage<TopkSoftmaxArgs, launch_topk>(b, a); }
void moe_sum(Builder& b, const MoeSumArgs& a) { stage<MoeSumArgs, launch_moe_sum>(b, a); }

void moe_matmul(Builder& b, const MoeMatmulArgs& a) {
  stage<Moe, launch_moe>(b, Moe{a, reserve_rounded(b, a.x, rounding_of(a.w, a.fast)), reserve_groups(b, a.ids, a.w.experts), record_many(b, a)});
}

void moe_matmul_glu(Builder& b, const MoeMatmulGluArgs& a) {
  int32_t gate = rounding_of(a.gate, a.fast), up = a.up.present() ? rounding_of(a.up, a.fast) : gate;
  MoeGlu m{a, reserve_rounded(b, a.x, gate), {0, 0, -1}, reserve_groups(b, a.ids, a.gate.experts), 0, 0, record_many(b, a)};
  if (up != gate) m.up_x = reserve_rounded(b, a.x, up);
  int64_t bytes = int64_t(a.dst.d0) * a.dst.columns() * 4;
  m.gate = b.reserve_scratch(bytes);
  m.up = b.reserve_scratch(bytes);
  stage<MoeGlu, launch_moe_glu>(b, m);
}

void moe_matmul_sum(Builder& b, const MoeMatmulSumArgs& a) {
  MoeMatmulSum m{a, reserve_rounded(b, a.x, rounding_of(a.w, a.fast)), reserve_groups(b, a.ids, a.w.experts), 0, record_many(b, a)};
  m.parts = m.many.on ? m.many.parts : b.reserve_scratch(int64_t(a.dst.d0) * a.ids.d2 * a.w.rows * 4);
  stage<MoeMatmulSum, launch_matmul_sum>(b, m);
}

}  // namespace cuda
}  // namespace bao
