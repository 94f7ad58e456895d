// Ops that touch each element or row once: add, scale, softcap, copy, gather_rows, pool_rows, argmax.
#include "../common/sample_mass.h"
#include "run.h"

namespace bao {
namespace {

constexpr int threads = 256;

template <class Args, class Value>
__device__ void each_element(const StepRef* step, const Args& a, Value value) {
  int32_t rows = count_of(step, a.dst);
  int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (i >= a.dst.columns()) return;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) a.dst.f32(r)[i] = value(r, i);
}

__global__ void add_kernel(const StepRef* step, AddArgs a) {
  each_element(step, a, [&](int32_t r, int64_t i) { return a.a.f32(r)[i] + a.b.f32(r)[i]; });
}
__global__ void scale_kernel(const StepRef* step, ScaleArgs a) {
  each_element(step, a, [&](int32_t r, int64_t i) { return a.x.f32(r)[i] * a.factor; });
}
__global__ void softcap_kernel(const StepRef* step, ScaleArgs a) {
  each_element(step, a, [&](int32_t r, int64_t i) { return a.factor * tanhf(a.x.f32(r)[i] / a.factor); });
}
__global__ void copy_kernel(const StepRef* step, CopyArgs a) {
  each_element(step, a, [&](int32_t r, int64_t i) { return a.x.f32(r)[i]; });
}
__global__ void gather_kernel(const StepRef* step, CopyArgs a) {
  each_element(step, a, [&](int32_t r, int64_t i) { return a.x.f32(step->output_row[r])[i]; });
}

// One thread a (sequence, column): its rows are added in ascending order.
__global__ void pool_kernel(const StepRef* step, CopyArgs a) {
  int32_t rows = count_of(step, a.x), sequence = blockIdx.y;
  int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (i >= a.dst.columns()) return;
  for (; sequence < a.dst.d0; sequence += gridDim.y) {
    float* dst = a.dst.f32(sequence) + i;
    for (int32_t r = 0; r < rows; r++) {
      int32_t row = step->step_row(a.x.rows_of, r);
      if (step->row_sequence[row] != sequence) continue;
      *dst = step->row_position[row] == 0 ? a.x.f32(r)[i] : *dst + a.x.f32(r)[i];
    }
  }
}

// The larger of two (key, id) candidates, ties to the lower id: a total order, so that any reduction order agrees.
__device__ __forceinline__ void keep_best(uint32_t& key, int32_t& id, uint32_t other_key, int32_t other_id) {
  if (other_key > key || (other_key == key && other_id < id)) key = other_key, id = other_id;
}

__global__ void __launch_bounds__(1024) argmax_kernel(const StepRef* step, CopyArgs a) {
  __shared__ uint32_t keys[32];
  __shared__ int32_t ids[32];
  int32_t rows = count_of(step, a.dst);
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const float* x = a.x.f32(r);
    uint32_t key = 0;  // NaN's: loses to every number
    int32_t id = INT32_MAX;
    for (int32_t i = threadIdx.x; i < int32_t(a.x.columns()); i += 1024) {
      uint32_t k = order_key(x[i]);
      if (k != 0) keep_best(key, id, k, i);
    }
    for (int o = 16; o; o >>= 1) keep_best(key, id, __shfl_xor_sync(0xffffffffu, key, o), __shfl_xor_sync(0xffffffffu, id, o));
    __syncthreads();
    if ((threadIdx.x & 31) == 0) keys[threadIdx.x >> 5] = key, ids[threadIdx.x >> 5] = id;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int w = 1; w < 32; w++) keep_best(key, id, keys[w], ids[w]);
      *a.dst.i32(r) = key == 0 ? 0 : id;
    }
  }
}

template <class Args, void (*Kernel)(const StepRef*, Args)>
void launch(const Args& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) Kernel<<<dim3(blocks_of(a.dst.columns(), threads), grid_rows(rows)), threads, 0, run.stream>>>(run.step, a);
}

void launch_argmax(const CopyArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) argmax_kernel<<<dim3(1, grid_rows(rows)), 1024, 0, run.stream>>>(run.step, a);
}

}  // namespace

namespace cuda {
void add(Builder& b, const AddArgs& a) { stage<AddArgs, launch<AddArgs, add_kernel>>(b, a); }
void scale(Builder& b, const ScaleArgs& a) { stage<ScaleArgs, launch<ScaleArgs, scale_kernel>>(b, a); }
void softcap(Builder& b, const ScaleArgs& a) { stage<ScaleArgs, launch<ScaleArgs, softcap_kernel>>(b, a); }
void copy(Builder& b, const CopyArgs& a) { stage<CopyArgs, launch<CopyArgs, copy_kernel>>(b, a); }
void gather_rows(Builder& b, const CopyArgs& a) { stage<CopyArgs, launch<CopyArgs, gather_kernel>>(b, a); }
void pool_rows(Builder& b, const CopyArgs& a) { stage<CopyArgs, launch<CopyArgs, pool_kernel>>(b, a); }
void argmax(Builder& b, const CopyArgs& a) { stage<CopyArgs, launch_argmax>(b, a); }
}  // namespace cuda

}  // namespace bao
