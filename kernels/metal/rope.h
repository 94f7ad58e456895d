// The rotation of one pair of a head, shared by rope and by the fused append. MSL only.
#ifndef BAO_METAL_ROPE_H
#define BAO_METAL_ROPE_H

struct Pair {
  int32_t first, second;
  float a, b;
};

// Pair i of `pairs` of x, which lies in device or threadgroup memory. table: cos [pairs], then sin [pairs]. mode 0: (i, i + pairs), 1: (2 i, 2 i + 1).
template <class P>
inline Pair rotated_pair(P x, device const float *table, int32_t i, int32_t pairs, int32_t mode) {
  Pair p;
  p.first = mode == 0 ? i : 2 * i;
  p.second = mode == 0 ? i + pairs : 2 * i + 1;
  const float c = table[i], s = table[pairs + i], u = x[p.first], v = x[p.second];
  p.a = u * c - v * s;
  p.b = u * s + v * c;
  return p;
}

#endif
