// Top-k of a softmax over experts' logits; and the router of few rows in one launch: a block an expert, the last block to end ranks them.
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
  let_next_start();
  await_previous();
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

// ---- the router of few rows, with F32 weights (Gemma's routers are)

constexpr int router_threads = 128, router_pieces = 8, router_experts = 256, router_rows = 16;

// A warp ranks the logits of one row: up to 32 * P of them, P a lane.
template <int P>
__device__ __forceinline__ void rank(const float* logits, int32_t n, int32_t* ids, float* weights, int32_t k, int32_t renormalise, int32_t lane) {
  uint32_t keys[P];
  float values[P];
#pragma unroll
  for (int i = 0; i < P; i++) {
    values[i] = i * 32 + lane < n ? __ldcg(logits + i * 32 + lane) : 0.0f;
    keys[i] = i * 32 + lane < n ? order_key(values[i]) + 1 : 0;
  }
  int32_t mine = 0, owner = 0;
  float logit = 0;
  for (int32_t s = 0; s < k; s++) {
    uint32_t best = keys[0], id = UINT32_MAX;
    float value = values[0];
#pragma unroll
    for (int i = 1; i < P; i++) best = max(best, keys[i]);
    best = __reduce_max_sync(0xffffffffu, best);
#pragma unroll
    for (int i = P; i-- > 0;) {
      if (keys[i] == best) id = i * 32 + lane, value = values[i];
    }
    id = __reduce_min_sync(0xffffffffu, id);
    owner = int32_t(id & 31);
#pragma unroll
    for (int i = 0; i < P; i++) {
      if (uint32_t(i * 32 + lane) == id) keys[i] = 0;
    }
    value = __shfl_sync(0xffffffffu, value, owner);
    if (lane == s) mine = int32_t(id), logit = value;
  }
  const float max = __shfl_sync(0xffffffffu, logit, 0), e = lane < k ? expf(logit - max) : 0.0f;
  float sum = e;
  if (!renormalise) {
    sum = 0;
#pragma unroll
    for (int i = 0; i < P; i++) sum += i * 32 + lane < n ? expf(values[i] - max) : 0.0f;
  }
  sum = warp_sum(sum);
  if (lane < k) ids[lane] = mine, weights[lane] = e / sum;
}

template <int P>
__device__ __forceinline__ void route(const StepRef* step, const RouterArgs& a, float* logits, uint32_t* ticket, bool apart) {
  __shared__ float sums[router_rows][router_threads / 32];
  __shared__ bool last;
  const int32_t expert = blockIdx.x, n = a.w.rows, columns = a.w.columns, tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const float4* w = reinterpret_cast<const float4*>(a.w.row(0, expert));
  float4 weights[router_pieces];
#pragma unroll
  for (int i = 0; i < router_pieces; i++) {
    const int32_t c = i * router_threads + tid;
    weights[i] = 4 * c < columns ? __ldg(w + c) : make_float4(0, 0, 0, 0);
  }
  const float factor = a.w.factor(0);
  if (!apart) await_previous();
  let_next_start();
  int32_t rows = 0;
  for (int32_t r = 0; r == 0 || r < rows; r++) {  // the first row is on its way before the count of rows is known: x has it
    const float* x = a.x.f32(r);
    const bool aligned = (reinterpret_cast<uintptr_t>(x) & 15) == 0;
    float4 v[router_pieces];
#pragma unroll
    for (int i = 0; i < router_pieces; i++) {
      const int32_t c = 4 * (i * router_threads + tid);
      if (c >= columns) v[i] = make_float4(0, 0, 0, 0);
      else if (aligned) v[i] = __ldcg(reinterpret_cast<const float4*>(x + c));  // not through the first-level cache, which is fresh after a wait only
      else v[i] = make_float4(__ldcg(x + c), __ldcg(x + c + 1), __ldcg(x + c + 2), __ldcg(x + c + 3));
    }
    if (r == 0) rows = count_of(step, a.ids);
    if (rows <= 0) return;
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < router_pieces; i++) {
      if (4 * (i * router_threads + tid) < columns) part[i % 4] += weights[i].x * v[i].x + weights[i].y * v[i].y + weights[i].z * v[i].z + weights[i].w * v[i].w;
    }
    const float sum = warp_sum((part[0] + part[1]) + (part[2] + part[3]));
    if (lane == 0) sums[r][warp] = sum;
  }
  __syncthreads();
  // Lane r of the first warp has row r, and the first lane takes the ticket for all.
  if (warp == 0) {
    static_assert(router_rows <= 32 && router_threads == 128, "a lane a row, four sums each");
    if (lane < rows) __stcg(logits + lane * n + expert, ((sums[lane][0] + sums[lane][1]) + (sums[lane][2] + sums[lane][3])) * factor);
    __syncwarp();
    uint32_t before = 0;
    if (lane == 0) {
      __threadfence();
      before = atomicAdd(ticket, 1u);
      if (before == gridDim.x - 1) *ticket = 0;
      __threadfence();
      last = before == gridDim.x - 1;
    }
    __syncwarp();
  }
  if (rows == 1 && warp > 0) return;  // the first warp ranks a single row
  if (rows > 1) __syncthreads();
  if (!last) return;
  for (int32_t r = warp; r < rows; r += router_threads / 32) rank<P>(logits + r * n, n, a.ids.i32(r), a.weights.f32(r), a.ids.d2, a.renormalise, lane);
}

// P: experts are at most 32 * P. apart: beside the launch before, for whose end it waits before its own.
template <int P>
__global__ void __launch_bounds__(router_threads) router_kernel(const StepRef* step, const __grid_constant__ RouterArgs a, float* logits, uint32_t* ticket, bool apart) {
  route<P>(step, a, logits, ticket, apart);
  if (apart) await_previous();
}

struct Router { RouterArgs a; Rounded x; int64_t logits; Many many; };
void launch_router(const Router& m, const Run& run) {
  const WeightRef& w = m.a.w;
  int32_t rows = run.bound(m.a.ids);
  if (rows <= 0) return;
  if (w.dtype == BAO_F32 && w.columns % 4 == 0 && w.columns <= 4 * router_threads * router_pieces && w.rows <= router_experts && rows <= router_rows &&
      reinterpret_cast<uintptr_t>(w.data) % 16 == 0) {
    float* logits = run.scratch_f32(m.logits);
    Launched now;
    now.known = true;
    now.reads_of(m.a.x);
    now.writes_to(m.a.ids);
    now.writes_to(m.a.weights);
    now.writes_to(run.scratch_tensor(m.logits, m.a.ids, 1, w.rows));
    now.apart = run.order->apart(now), now.late = !now.apart;
    launch(run, w.rows <= 128 ? router_kernel<4> : router_kernel<router_experts / 32>, dim3(unsigned(w.rows)), dim3(router_threads), 0, run.step, m.a, logits, run.tickets, now.apart);
    run.order->now = now;
    return;
  }
  if (launch_many(m.a, m.many, run)) return;
  Tensor logits = run.scratch_tensor(m.logits, m.a.ids, 1, w.rows);
  Activations x = launch_round(m.a.x, m.x, run);
  x.slots = 1, x.columns = w.columns;
  launch_product(Product{logits, w, x, 0, w.rows, Tensor{}, nullptr, 0}, run);
  launch_topk(TopkSoftmaxArgs{m.a.ids, m.a.weights, logits, m.a.renormalise}, run);
}

}  // namespace

void launch_topk(const TopkSoftmaxArgs& a, const Run& run) {
  int32_t rows = run.bound(a.ids);
  if (rows > 0) launch(run, topk_kernel, dim3(1, grid_rows(rows)), dim3(256), 0, run.step, a);
}

namespace cuda {

void topk_softmax(Builder& b, const TopkSoftmaxArgs& a) { stage<TopkSoftmaxArgs, launch_topk>(b, a); }

void router(Builder& b, const RouterArgs& a) {
  Router m{a, reserve_rounded(b, a.x, rounding_of(a.w, a.fast)), 0, record_many(b, a)};
  m.logits = b.reserve_scratch(int64_t(a.ids.d0) * a.w.rows * 4);
  stage<Router, launch_router>(b, m);
}

}  // namespace cuda
}  // namespace bao
