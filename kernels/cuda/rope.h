// The rotation of one pair of a head, shared by rope and by the fused append.
#pragma once
#include "run.h"

namespace bao {

struct Pair { int32_t first, second; float a, b; };

// table: cos [half], then sin [half].
__device__ __forceinline__ Pair rotated_pair(const float* x, const float* table, int32_t i, int32_t half, int32_t mode) {
  Pair p;
  p.first = mode == BAO_ROPE_NEOX ? i : 2 * i;
  p.second = mode == BAO_ROPE_NEOX ? i + half : 2 * i + 1;
  float c = table[i], s = table[half + i], u = x[p.first], v = x[p.second];
  p.a = u * c - v * s;
  p.b = u * s + v * c;
  return p;
}

}  // namespace bao
