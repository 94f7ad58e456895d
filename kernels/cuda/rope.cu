// Rotary position embedding: the table of a step, and the rotation of heads by it.
#include <cmath>

#include "rope.h"

namespace bao {
namespace {

// As transformers: exponent, power, reciprocal and angle are each rounded to f32; cos and sin are those of the rounded angle. Reciprocals of powers
// do not change from step to step: they are computed when the op is recorded, and travel with the launch in slices.
constexpr int32_t slice = 512;
struct Table {
  RopeTableArgs a;
  int32_t first;
  float reciprocal[slice];
};

__global__ void __launch_bounds__(128) rope_table_kernel(const StepRef* step, Table table) {
  let_next_start();
  await_previous();
  const RopeTableArgs& a = table.a;
  int32_t rows = count_of(step, a.dst), at = blockIdx.x * 128 + threadIdx.x, i = table.first + at;
  if (at >= slice || i >= a.dst.d2) return;
  float inv_freq = table.reciprocal[at];
  if (a.factors) inv_freq = inv_freq / a.factors[i];
  inv_freq = __fmul_rn(inv_freq, a.freq_scale);
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const double angle = double(__fmul_rn(float(step->row_position[step->step_row(a.dst.rows_of, r)]), inv_freq));
    // What quarters of a turn leave, by their two-part constant in double: right for whatever f32 a position can give. The rest is below one.
    const double quarters = rint(angle * 0.63661977236758134);
    const float rest = float(fma(-quarters, 6.123233995736766e-17, fma(-quarters, 1.5707963267948966, angle)));
    const int64_t quarter = int64_t(quarters);
    float sine, cosine;
    sincosf(rest, &sine, &cosine);
    if (quarter & 1) {
      const float kept = sine;
      sine = cosine, cosine = -kept;
    }
    a.dst.f32(r)[i] = quarter & 2 ? -cosine : cosine;
    a.dst.f32(r)[a.dst.d2 + i] = quarter & 2 ? -sine : sine;
  }
}

// One thread a pair, or a value that is not rotated.
__global__ void __launch_bounds__(128) rope_kernel(const StepRef* step, RopeArgs a) {
  let_next_start();
  await_previous();
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

void launch_table(const Table& table, const Run& run) {
  int32_t rows = run.bound(table.a.dst), count = table.a.dst.d2 - table.first;
  if (rows > 0) launch(run, rope_table_kernel, dim3(blocks_of(count < slice ? count : slice, 128), grid_rows(rows)), 128, 0, run.step, table);
}

void launch_rope(const RopeArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) launch(run, rope_kernel, dim3(blocks_of(int64_t(a.x.d1) * (a.x.d2 - a.table.d2), 128), grid_rows(rows)), 128, 0, run.step, a);
}

}  // namespace

namespace cuda {
void rope_table(Builder& b, const RopeTableArgs& a) {
  for (int32_t first = 0; first < a.dst.d2; first += slice) {
    Table table{a, first, {}};
    for (int32_t at = 0; at < slice && first + at < a.dst.d2; at++) {
      float exponent = float(2 * (first + at)) / float(a.n_rot);
      table.reciprocal[at] = 1.0f / float(std::pow(double(a.base), double(exponent)));
    }
    stage<Table, launch_table>(b, table);
  }
}
void rope(Builder& b, const RopeArgs& a) { stage<RopeArgs, launch_rope>(b, a); }
}  // namespace cuda

}  // namespace bao
