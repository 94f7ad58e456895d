// 8 x 8 matrices spread over a simdgroup: a lane holds two neighbours of a row. METAL_EMULATOR_LAYOUT=1 holds others than Apple's GPUs do, so
// that a kernel that relies on their places fails. An uninitialised matrix holds NaNs.
#pragma once

namespace metal {

EMU_UNCHECKED inline void _matrix_place(unsigned lane, int& row, int& column) {
  if (emu_matrix_layout() == 0) {
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
EMU_UNCHECKED inline void _all_meet(int site, const char* op, const void* same) {
  _exchange<const void*> e(same, site, op);
  if (!e.full()) emu_fail("%s with %d of 32 lanes (line %d)", op, __builtin_popcount(e.mask), site / 1000);
  for (unsigned i = 0; i < 32; i++) {
    if (e.at(i) != same) emu_fail("%s: lanes disagree about an argument (line %d)", op, site / 1000);
  }
}

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

template <class T, class A, class B, class D>
EMU_UNCHECKED inline void _multiply(simdgroup_matrix<T, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a, const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<D, 8, 8>* added, int site) {
  struct Operands {
    vec<A, 2> a;
    vec<B, 2> b;
  };
  _exchange<Operands> e(Operands{a.pair, b.pair}, site, "simdgroup_multiply_accumulate");
  if (!e.full()) emu_fail("simdgroup_multiply with inactive lanes (line %d)", site / 1000);
  float left[8][8], right[8][8];
  int row, column;
  for (unsigned i = 0; i < 32; i++) {
    Operands o = e.at(i);
    _matrix_place(i, row, column);
    left[row][column] = (float)o.a[0];
    left[row][column + 1] = (float)o.a[1];
    right[row][column] = (float)o.b[0];
    right[row][column + 1] = (float)o.b[1];
  }
  _matrix_place(e.lane, row, column);
  float first = added ? (float)added->pair[0] : 0, second = added ? (float)added->pair[1] : 0;
  for (int k = 0; k < 8; k++) {
    first += left[row][k] * right[k][column];
    second += left[row][k] * right[k][column + 1];
  }
  d.pair[0] = (T)first;
  d.pair[1] = (T)second;
}
template <class T, class A, class B, class D>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<D, 8, 8> c, EMU_SITE) {
  _multiply(d, a, b, &c, site);
}
template <class T, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<T, 8, 8>& d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b, EMU_SITE) {
  _multiply(d, a, b, (simdgroup_matrix<T, 8, 8>*)nullptr, site);
}

}  // namespace metal
