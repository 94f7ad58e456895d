// Where a token's keys and values lie, and how they are rounded: shared by the appends and attention.
#pragma once
#include "../common/dequant.h"
#include "run.h"

namespace bao {

struct TokenPlace { int32_t sequence, position, page; };  // page -1: nowhere

__device__ __forceinline__ int32_t page_of(const StepRef* step, int32_t table, int32_t sequence, int32_t position) {
  int32_t index = position / BAO_KV_PAGE_TOKENS;
  return position < 0 || index >= step->pages[table] ? -1 : step->page(table, sequence, index);
}

__device__ __forceinline__ TokenPlace place_of(const StepRef* step, int32_t rows_of, int32_t r, int32_t table) {
  int32_t row = step->step_row(rows_of, r);
  TokenPlace p{step->row_sequence[row], step->row_position[row], -1};
  p.page = page_of(step, table, p.sequence, p.position);
  return p;
}

// To the bit as the reference does: a NaN keeps its payload.
__device__ __forceinline__ uint16_t f16_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return isnan(x) ? uint16_t((bits >> 16 & 0x8000) | 0x7e00 | (bits >> 13 & 0x3ff)) : __half_as_ushort(__float2half_rn(x));
}

// One warp stores `n` values of x (any memory) as token `slot` of a plane, rounded to the pool's type, to the bit as the reference does.
__device__ __forceinline__ void store_head(const PoolRef& pool, char* plane, int32_t slot, const float* x, int lane, int step_size) {
  int64_t n = pool.head_dim;
  if (pool.dtype == BAO_F32) {
    float* dst = reinterpret_cast<float*>(plane) + slot * n;
    for (int32_t i = lane; i < n; i += step_size) dst[i] = x[i];
  } else if (pool.dtype == BAO_F16) {
    uint16_t* dst = reinterpret_cast<uint16_t*>(plane) + slot * n;
    for (int32_t i = lane; i < n; i += step_size) dst[i] = f16_of(x[i]);
  } else {
    int8_t* dst = reinterpret_cast<int8_t*>(plane) + slot * n;
    float* scales = reinterpret_cast<float*>(plane + pool.scales_offset) + slot * (n / 32);
    for (int32_t i = lane; i < n; i += step_size) {  // whole warps: a block of 32 is one warp's lanes
      float v = x[i];
      bool finite = __all_sync(0xffffffffu, isfinite(v));
      float max = warp_max(fabsf(v)), d = max / 127.0f;
      float q = finite && d > 0 ? nearbyintf(v / d) : 0.0f;
      dst[i] = int8_t(q > 127 ? 127 : q < -127 ? -127 : q);
      if ((threadIdx.x & 31) == 0) scales[i / 32] = finite ? d : __int_as_float(0x7fc00000);
    }
  }
}

// Value i of token `slot` of a plane.
template <int KV>
__device__ __forceinline__ float kv_value(const char* plane, int64_t scales_offset, int32_t head_dim, int32_t slot, int32_t i) {
  if constexpr (KV == BAO_F32) return reinterpret_cast<const float*>(plane)[slot * head_dim + i];
  if constexpr (KV == BAO_F16) return __half2float(reinterpret_cast<const __half*>(plane)[slot * head_dim + i]);
  float d = reinterpret_cast<const float*>(plane + scales_offset)[slot * (head_dim / 32) + i / 32];
  return d * float(reinterpret_cast<const int8_t*>(plane)[slot * head_dim + i]);
}

}  // namespace bao
