// Ops that touch each element or row once: add, scale, softcap, copy, gather_rows, pool_rows.
#include "run.h"

namespace bao {
namespace {

constexpr int threads = 256;

template <class Args, class Value>
__device__ void each_element(const StepRef* step, const Args& a, Value value) {
  await_previous();
  let_next_start();
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
  await_previous();
  let_next_start();
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

template <class Args, void (*Kernel)(const StepRef*, Args)>
void launch_each(const Args& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) launch(run, Kernel, dim3(blocks_of(a.dst.columns(), threads), grid_rows(rows)), threads, 0, run.step, a);
}

}  // namespace

namespace cuda {
void add(Builder& b, const AddArgs& a) { stage<AddArgs, launch_each<AddArgs, add_kernel>>(b, a); }
void scale(Builder& b, const ScaleArgs& a) { stage<ScaleArgs, launch_each<ScaleArgs, scale_kernel>>(b, a); }
void softcap(Builder& b, const ScaleArgs& a) { stage<ScaleArgs, launch_each<ScaleArgs, softcap_kernel>>(b, a); }
void copy(Builder& b, const CopyArgs& a) { stage<CopyArgs, launch_each<CopyArgs, copy_kernel>>(b, a); }
void gather_rows(Builder& b, const CopyArgs& a) { stage<CopyArgs, launch_each<CopyArgs, gather_kernel>>(b, a); }
void pool_rows(Builder& b, const CopyArgs& a) { stage<CopyArgs, launch_each<CopyArgs, pool_kernel>>(b, a); }
}  // namespace cuda

}  // namespace bao
