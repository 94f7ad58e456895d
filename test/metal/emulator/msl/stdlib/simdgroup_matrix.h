// 8 x 8 matrices spread over a simdgroup: a lane holds two neighbours of a row. METAL_EMULATOR_LAYOUT=1 holds others than Apple's GPUs do, so
// that a kernel that relies on their places fails. An uninitialised matrix holds NaNs.
#pragma once

namespace metal {

EMU_UNCHECKED inline void _matrix_place(unsigned lane, int& row, int& column, int layout = emu_matrix_layout()) {
  if (layout == 0) {
    unsigned quad = lane >> 2;
    row = (int)((quad & 4) + ((lane >> 1) & 3));
    column = (int)((quad & 2) * 2 + (lane & 1) * 2);
  } else {
    unsigned k = (lane * 13 + 5) & 31;
    row = (int)(k >> 2);
    column = (int)((k & 3) * 2);
  }
}

template <class T, int C = 8, int R = C>
struct simdgroup_matrix {
  static_assert(C == 8 && R == 8, "only 8x8");
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, half> || std::is_same_v<T, bfloat>, "type");
  vec<T, 2> pair;
  simdgroup_matrix() { __builtin_memset(&pair, 0xff, sizeof pair); }
  explicit simdgroup_matrix(T diagonal) {
    int row, column;
    _matrix_place(_lane(), row, column);
    pair[0] = row == column ? diagonal : (T)0;
    pair[1] = row == column + 1 ? diagonal : (T)0;
  }
  vec<T, 2>& thread_elements() { return pair; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int C = 8, int R = C>
inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, C, R> m;
  m.pair[0] = m.pair[1] = value;
  return m;
}

// All 32 lanes come here together, with the same argument.
EMU_UNCHECKED inline void _require_full(const emu::Simdgroup* g) {
  if (!_full(g)) emu_fail("%s with %d of 32 lanes (line %d)", g->op, __builtin_popcount(g->mask), g->site / 1000);
}
EMU_UNCHECKED inline void _require_same(emu::Simdgroup* g, unsigned char (*slot)[64]) {
  _require_full(g);
  for (unsigned i = 1; i < 32; i++) {
    if (_read<const void*>(slot, i) != _read<const void*>(slot, 0)) emu_fail("%s: lanes disagree about an argument (line %d)", g->op, g->site / 1000);
  }
}
EMU_UNCHECKED inline void _all_meet(int site, const char* op, const void* same) { _exchange<const void*>(same, site, op, _require_same); }

#define EMU_MATRIX_LOAD(SPACE)                                                                                                                                       \
  template <class T, int C, int R>                                                                                                                                   \
  inline void simdgroup_load(simdgroup_matrix<T, C, R>& m, const SPACE T* p, ulong stride = C, ulong2 origin = 0, bool transposed = false, EMU_SITE) {               \
    const SPACE T* from = p + origin.y * stride + origin.x;                                                                                                          \
    _all_meet(site, "simdgroup_load", (const void*)from);                                                                                                            \
    int row, column;                                                                                                                                                 \
    _matrix_place(_lane(), row, column);                                                                                                                             \
    m.pair[0] = transposed ? from[column * stride + row] : from[row * stride + column];                                                                              \
    m.pair[1] = transposed ? from[(column + 1) * stride + row] : from[row * stride + column + 1];                                                                    \
  }
#define EMU_MATRIX_STORE(SPACE)                                                                                                                                      \
  template <class T, int C, int R>                                                                                                                                   \
  inline void simdgroup_store(simdgroup_matrix<T, C, R> m, SPACE T* p, ulong stride = C, ulong2 origin = 0, bool transposed = false, EMU_SITE) {                     \
    SPACE T* to = p + origin.y * stride + origin.x;                                                                                                                  \
    _all_meet(site, "simdgroup_store", (const void*)to);                                                                                                             \
    int row, column;                                                                                                                                                 \
    _matrix_place(_lane(), row, column);                                                                                                                             \
    to[transposed ? column * stride + row : row * stride + column] = m.pair[0];                                                                                      \
    to[transposed ? (column + 1) * stride + row : row * stride + column + 1] = m.pair[1];                                                                            \
  }
EMU_MATRIX_LOAD(device)
EMU_MATRIX_STORE(device)
#if EMU_CHECK_SPACES
EMU_MATRIX_LOAD(threadgroup)
EMU_MATRIX_STORE(threadgroup)
EMU_MATRIX_LOAD(__attribute__((address_space(2))))
#endif

template <class A, class B>
struct _Operands {
  vec<A, 2> a;
  vec<B, 2> b;
  float2 sum;
};
typedef float _row __attribute__((ext_vector_type(8)));
template <class A, class B>
EMU_UNCHECKED void _multiply_slots(emu::Simdgroup* g, unsigned char (*slot)[64]) {
  _require_full(g);
  int layout = emu_matrix_layout(), row, column;
  float left[8][8];
  _row right[8], sum[8];
  for (unsigned i = 0; i < 32; i++) {
    _Operands<A, B> o = _read<_Operands<A, B>>(slot, i);
    _matrix_place(i, row, column, layout);
    for (int k = 0; k < 2; k++) {
      left[row][column + k] = (float)o.a[k];
      right[row][column + k] = (float)o.b[k];
      sum[row][column + k] = o.sum[k];
    }
  }
  for (int r = 0; r < 8; r++) {
    for (int k = 0; k < 8; k++) sum[r] += left[r][k] * right[k];
  }
  for (unsigned i = 0; i < 32; i++) {
    _matrix_place(i, row, column, layout);
    _write(slot, i, float2{sum[row][column], sum[row][column + 1]});
  }
}
template <class T, class A, class B>
EMU_UNCHECKED inline void _multiply(simdgroup_matrix<T, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b, float2 added, int site) {
  _exchange<_Operands<A, B>> e({a.pair, b.pair, added}, site, "simdgroup_multiply_accumulate", _multiply_slots<A, B>);
  float2 sum = _read<float2>(e.slot, e.lane);
  d.pair[0] = (T)sum[0];
  d.pair[1] = (T)sum[1];
}
template <class T, class A, class B, class D>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<D, 8, 8> c, EMU_SITE) {
  _multiply(d, a, b, float2{(float)c.pair[0], (float)c.pair[1]}, site);
}
template <class T, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, EMU_SITE) {
  _multiply(d, a, b, float2{0, 0}, site);
}

}  // namespace metal
