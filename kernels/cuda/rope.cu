// Rotary position embedding: the table of a step, and the rotation of heads by it.
#include "rope.h"

namespace bao {
namespace {

// As transformers: exponent, power, reciprocal and angle are each rounded to f32; cos and sin are those of the rounded angle. In double,
// because a step has few angles and their full-range reduction must be right.
__global__ void __launch_bounds__(128) rope_table_kernel(const StepRef* step, RopeTableArgs a) {
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, a.dst), i = blockIdx.x * 128 + threadIdx.x;
  if (i >= a.dst.d2) return;
  float exponent = float(2 * i) / float(a.n_rot);
  float inv_freq = 1.0f / float(pow(double(a.base), double(exponent)));
  if (a.factors) inv_freq = inv_freq / a.factors[i];
  inv_freq = __fmul_rn(inv_freq, a.freq_scale);
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    float angle = __fmul_rn(float(step->row_position[step->step_row(a.dst.rows_of, r)]), inv_freq);
    double sine, cosine;
    sincos(double(angle), &sine, &cosine);
    a.dst.f32(r)[i] = float(cosine);
    a.dst.f32(r)[a.dst.d2 + i] = float(sine);
  }
}

// One thread a pair, or a value that is not rotated.
__global__ void __launch_bounds__(128) rope_kernel(const StepRef* step, RopeArgs a) {
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, a.dst), half = a.table.d2, n = a.x.d2;
  int32_t items = n - half;  // pairs, then the rest
  int64_t t = int64_t(blockIdx.x) * 128 + threadIdx.x;
  if (t >= int64_t(a.x.d1) * items) return;
  int32_t head = int32_t(t / items), i = int32_t(t % items);
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const float* x = a.x.f32(r) + int64_t(head) * n;
    float* dst = a.dst.f32(r) + int64_t(head) * n;
    if (i >= half) {
      dst[half + i] = x[half + i];
      continue;
    }
    Pair p = rotated_pair(x, a.table.f32(r), i, half, a.mode);
    dst[p.first] = p.a;
    dst[p.second] = p.b;
  }
}

void launch_table(const RopeTableArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) launch(run, rope_table_kernel, dim3(blocks_of(a.dst.d2, 128), grid_rows(rows)), 128, 0, run.step, a);
}

void launch_rope(const RopeArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) launch(run, rope_kernel, dim3(blocks_of(int64_t(a.x.d1) * (a.x.d2 - a.table.d2), 128), grid_rows(rows)), 128, 0, run.step, a);
}

}  // namespace

namespace cuda {
void rope_table(Builder& b, const RopeTableArgs& a) { stage<RopeTableArgs, launch_table>(b, a); }
void rope(Builder& b, const RopeArgs& a) { stage<RopeArgs, launch_rope>(b, a); }
}  // namespace cuda

}  // namespace bao
