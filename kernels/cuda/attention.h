// What the attention kernels share: which kernel serves what, the span of positions that a row sees, and warp-wide tensor core steps.
#pragma once
#include "kv.h"

namespace bao {

constexpr int32_t decode_rows = 64;  // steps of up to this many rows go to the decode kernels, one row a block; of longer ones the rows in short runs

// ---- attention_decode.cu: f16 KV, products in f16 twice over (value and rest), so that f32 is kept. One row at a time, its context split.
struct Decode {
  AttentionArgs a;
  int64_t partial;      // scratch: [item][head][head_dim + 4]: accumulators, maximum, sum
  int32_t most_splits;  // of one row
};
bool decode_serves(const AttentionArgs& a);
void reserve_decode(Builder& b, Decode* d);
void launch_decode(const Decode& d, const Run& run, bool short_runs);  // short_runs: of those rows only

// ---- attention_prefill.cu: f16 KV, q and probabilities in f16, tiles of 64 (row, head) pairs.
// Rows of a step that are in short runs are left out.
bool prefill_serves(const AttentionArgs& a);
void launch_prefill(const AttentionArgs& a, const Run& run);

// ---- attention_warpgroup.cu: the same for heads of 256 and 512 values, where the code for sm_90a runs; elsewhere false, and nothing launched.
bool launch_warpgroup(const AttentionArgs& a, const Run& run);
bool launch_warpgroup_wide(const AttentionArgs& a, const Run& run);  // attention_warpgroup_wide.cu: of 512 values; launch_warpgroup asks it

// Whether rows in short runs are left out of the tiles: where rows are those of the step.
BAO_INLINE bool short_runs_apart(const AttentionArgs& a) { return a.dst.rows_of == BAO_ROWS_STEP; }

inline bool aligned_rows(const Tensor& t) { return reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 16 == 0; }

#if defined(__CUDACC__)

constexpr float log2_e = 1.4426950408889634f;
// Probabilities are kept as 2^14 p: then an f16 holds all that a sum of 2^18 of them could notice.
constexpr float probability_shift = 14.0f;

__device__ __forceinline__ int32_t first_seen(int32_t position, int32_t window) { return window > 0 && position >= window ? position - window + 1 : 0; }

// A power of two that brings values of at most `largest` below 2, and its inverse: f16 then holds them whatever their size.
struct PowerOfTwo { float down, up; };
__device__ __forceinline__ PowerOfTwo fitting(float largest) {
  int32_t e = min(max(int32_t(__float_as_uint(largest) >> 23) & 255, 1), 253);
  return {__int_as_float((254 - e) << 23), __int_as_float(e << 23)};
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// 16 bytes to shared memory in the background; zeros when `bytes` is 0.
__device__ __forceinline__ void copy_16(uint32_t to, const void* from, int32_t bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copies_end() { asm volatile("cp.async.commit_group;"); }
// All groups of this thread's copies but the newest `Pending` have arrived.
template <int Pending>
__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory"); }

__device__ __forceinline__ uint4 load_16(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
  return v;
}

// d (16 x 8, f32) += a (16 x 16) b (16 x 8), both f16.
__device__ __forceinline__ void multiply_add(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Four 8 x 8 matrices of f16; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ uint4 load_matrices(uint32_t from) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint4 load_matrices_transposed(uint32_t from) {
  uint4 v;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
  return v;
}
__device__ __forceinline__ uint32_t transposed(uint32_t matrix) {
  uint32_t v;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(v) : "r"(matrix));
  return v;
}

__device__ __forceinline__ uint32_t packed(float low, float high) {
  __half2 v = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t*>(&v);
}
__device__ __forceinline__ float2 unpacked(uint32_t v) { return __half22float2(*reinterpret_cast<__half2*>(&v)); }

#endif

}  // namespace bao
