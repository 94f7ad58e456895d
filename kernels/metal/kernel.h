// What all kernels share: the running step, rows of views, reductions in a fixed order. MSL only.
#ifndef BAO_METAL_KERNEL_H
#define BAO_METAL_KERNEL_H

#include <metal_stdlib>
using namespace metal;

#include "params.h"
using namespace bao;

// Every kernel's last parameters; then `const Step step = STEP;`.
#define STEP_PARAMS                                  \
  constant StepLayout &step_layout [[buffer(25)]],   \
  device const int32_t *step_current [[buffer(26)]], \
  device const int32_t *step_region [[buffer(27)]],  \
  device const int32_t *step_slot [[buffer(28)]]
#define STEP Step{&step_layout, step_current, step_region, step_slot}

constant int32_t ROWS_FIXED = 0;
constant int32_t ROWS_STEP = 1;

struct Step {
  constant StepLayout *layout;
  device const int32_t *current;
  device const int32_t *region;
  device const int32_t *slot;

  int32_t rows() const { return current[CURRENT_ROWS]; }
  int32_t outputs() const { return current[CURRENT_OUTPUTS]; }
  // How many rows of a view an op processes.
  int32_t count(constant Rows &v) const { return v.rows_of == ROWS_FIXED ? (rows() < 0 ? 0 : v.d0) : v.rows_of == ROWS_STEP ? rows() : outputs(); }
  int32_t output_row(int32_t output) const { return slot[layout->output_row + output]; }
  // The step's row behind row r of an operand.
  int32_t step_row(int32_t rows_of, int32_t r) const { return rows_of == 2 ? output_row(r) : r; }
  int32_t sequence(int32_t row) const { return slot[layout->row_sequence + row]; }
  int32_t id(int32_t row) const { return region[layout->row_id + row]; }
  int32_t position(int32_t row) const { return region[layout->row_position + row]; }
  // The page of a position, -1 when there is none.
  int32_t page(int32_t table, int32_t sequence, int32_t position) const {
    const int32_t index = position / 64;
    if (position < 0 || index >= layout->pages[table]) return -1;
    return region[layout->table[table] + sequence * layout->pages[table] + index];
  }
};

inline device float *row_of(device float *p, constant Rows &v, int32_t r) { return p + r * v.stride; }
inline device const float *row_of(device const float *p, constant Rows &v, int32_t r) { return p + r * v.stride; }
inline device int32_t *row_of(device int32_t *p, constant Rows &v, int32_t r) { return p + r * v.stride; }
inline device const int32_t *row_of(device const int32_t *p, constant Rows &v, int32_t r) { return p + r * v.stride; }

// a * b, rounded. Compilers may fuse a plain product with a sum that it goes into, without fast math, too; this one they may not.
inline float rounded_product(float a, float b) { return fma(a, b, 0.0f); }

// As order_key in common/sample_mass.h, by bits alone: GPUs may flush denormal floats, which then compare as zero.
inline uint32_t order_of(float value) {
  const uint32_t bits = as_type<uint32_t>(value), magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return 0;           // NaN
  if (magnitude == 0) return 0x80000000u;          // both zeros
  return (bits & 0x80000000u) ? ~bits : bits | 0x80000000u;
}

// The larger of two (key, id) candidates, ties to the lower id: a total order, so that any order of reduction agrees.
struct Best { uint32_t key; int32_t id; };
inline Best better(Best a, Best b) { return b.key > a.key || (b.key == a.key && b.id < a.id) ? b : a; }

// Sum over a threadgroup of up to 1024 threads, the same for all of them; `shared` holds 32 floats. Simdgroups are added in ascending order.
inline float group_sum(float v, threadgroup float *shared, uint lane, uint simdgroup, uint simdgroups) {
  v = simd_sum(v);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) shared[simdgroup] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  for (uint i = 0; i < simdgroups; i++) sum += shared[i];
  return sum;
}

#endif
