// What the attention kernels share: which rows a launch is about, what a row sees, pieces of keys and values for the type that the text is
// compiled for. MSL only.
#ifndef BAO_METAL_ATTENTION_H
#define BAO_METAL_ATTENTION_H

#include "kernel.h"
#include "../common/dequant.h"
#include "kv.h"

// Arrays live in registers when all their indices are constants: loops over them are unrolled. An emulated device only takes longer to compile then.
#if defined(__x86_64__) || defined(__aarch64__)
#define UNROLL
#else
#define UNROLL _Pragma("clang loop unroll(full)")
#endif
#define ATTENTION_THREADS 128
#define SIMDGROUPS 4

// The range that an item of the launch belongs to.
inline int32_t range_of(constant RowRange *ranges, int32_t count, int32_t item) {
  int32_t i = 0;
  while (i + 1 < count && ranges[i + 1].first <= item) i++;
  return i;
}

// The first position that a row sees.
inline int32_t first_seen(int32_t position, int32_t window) { return window > 0 && position >= window ? position - window + 1 : 0; }

// N neighbouring values of a token as they lie in memory: they become floats where they are used, so that loads may be under way meanwhile.
template <int N>
struct KvPiece {
#if BAO_DTYPE == 0
  float4 v[N / 4];
#elif BAO_DTYPE == 1
  half4 v[N / 4];
#else
  char4 v[N / 4];
  float scale;
#endif
};

// Values d ... d + N - 1 of a token of a plane, where d is a multiple of N; zeros where there are none, or where they are not wanted: memory that no
// token was written to may hold anything, and 0 * NaN is NaN.
template <int N>
inline KvPiece<N> kv_piece(device const uint8_t *plane, constant PoolLayer &pool, int32_t token, int32_t d, bool wanted) {
  const int32_t n = pool.head_dim, at = token * n + d;
  KvPiece<N> piece;
#if BAO_DTYPE == 0
  if (wanted && n % N == 0 && d < n) {
    UNROLL for (int i = 0; i < N / 4; i++) piece.v[i] = ((device const float4 *)plane)[at / 4 + i];
  } else {
    UNROLL for (int i = 0; i < N; i++) piece.v[i / 4][i % 4] = wanted && d + i < n ? ((device const float *)plane)[at + i] : 0.0f;
  }
#elif BAO_DTYPE == 1
  if (wanted && n % N == 0 && d < n) {
    UNROLL for (int i = 0; i < N / 8; i++) {
      const uint4 raw = ((device const uint4 *)plane)[at / 8 + i];
      piece.v[2 * i] = as_type<half4>(raw.xy);
      piece.v[2 * i + 1] = as_type<half4>(raw.zw);
    }
    if (N == 4) piece.v[0] = ((device const half4 *)plane)[at / 4];
  } else {
    UNROLL for (int i = 0; i < N; i++) piece.v[i / 4][i % 4] = wanted && d + i < n ? ((device const half *)plane)[at + i] : 0.0h;
  }
#else
  UNROLL for (int i = 0; i < N / 4; i++) piece.v[i] = wanted && d < n ? ((device const char4 *)plane)[at / 4 + i] : char4(0);  // n is a multiple of 32
  piece.scale = wanted && d < n ? ((device const float *)(plane + pool.scales_bytes))[at / 32] : 0.0f;
#endif
  return piece;
}

template <int N>
inline float value_of(thread const KvPiece<N> &piece, int i) {
#if BAO_DTYPE == 8
  return piece.scale * float(piece.v[i / 4][i % 4]);
#else
  return float(piece.v[i / 4][i % 4]);
#endif
}

#endif
