// Scalars, vectors (clang's ext_vector_type, as Apple's compiler has them), matrices, conversions.
#pragma once

typedef _Float16 half;
typedef __bf16 bfloat;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
inline half operator""h(long double v) { return (half)v; }

#define EMU_EACH_SCALAR(F) F(float) F(half) F(bfloat) F(char) F(uchar) F(short) F(ushort) F(int) F(uint) F(long) F(ulong) F(bool)
#define EMU_VECTORS(T)                                \
  typedef T T##2 __attribute__((ext_vector_type(2))); \
  typedef T T##3 __attribute__((ext_vector_type(3))); \
  typedef T T##4 __attribute__((ext_vector_type(4)));
EMU_EACH_SCALAR(EMU_VECTORS)
#undef EMU_VECTORS
// Aligned like their elements.
struct packed_float3 { float x, y, z; };
struct packed_float4 { float x, y, z, w; };
struct packed_uint2 { uint x, y; };
struct packed_ushort4 { ushort x, y, z, w; };
struct packed_uchar4 { uchar x, y, z, w; };

namespace metal {

using ::bfloat;
using ::half;
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;
using std::conditional;
using std::conditional_t;
using std::enable_if;
using std::enable_if_t;
using std::false_type;
using std::integral_constant;
using std::is_convertible_v;
using std::is_floating_point_v;
using std::is_integral_v;
using std::is_same;
using std::is_same_v;
using std::is_signed_v;
using std::is_unsigned_v;
using std::numeric_limits;
using std::true_type;

template <class T, int N>
using vec = T __attribute__((ext_vector_type(N)));

// Element and number of elements of a vector; 0 for a scalar.
template <class T>
struct _traits {
  using Element = T;
  static constexpr int count = 0;
};
#define EMU_TRAIT(T, N)             \
  template <>                       \
  struct _traits<T##N> {            \
    using Element = T;              \
    static constexpr int count = N; \
  };
#define EMU_TRAITS(T) EMU_TRAIT(T, 2) EMU_TRAIT(T, 3) EMU_TRAIT(T, 4)
EMU_EACH_SCALAR(EMU_TRAITS)
#undef EMU_TRAITS
#undef EMU_TRAIT
template <class T>
constexpr int _size = _traits<T>::count;
template <class T>
constexpr bool _is_vector = _size<T> > 0;
template <class... A>
constexpr int _total = ((_is_vector<A> ? _size<A> : 1) + ... + 0);

template <class V, class X>
inline void _put(V& to, int& i, X x) {
  using E = typename _traits<V>::Element;
  if constexpr (_is_vector<X>) {
    for (int j = 0; j < _size<X>; j++) to[i++] = (E)x[j];
  } else {
    to[i++] = (E)x;
  }
}

// V(a, b, ...) for a vector type V: as many components as V has, or one scalar, or a vector of another element type.
template <class V, class... A>
inline constexpr V _make(A... a) {
  using E = typename _traits<V>::Element;
  if constexpr (sizeof...(A) == 0) {
    return V{};
  } else if constexpr (sizeof...(A) == 1 && !(_is_vector<A> || ...)) {
    return (V)(((E)a), ...);
  } else if constexpr (sizeof...(A) == 1) {
    static_assert(_total<A...> == _size<V>, "vector size");
    return __builtin_convertvector((a, ...), V);
  } else {
    static_assert(_total<A...> == _size<V>, "wrong number of vector components");
    if constexpr (!(_is_vector<A> || ...)) {
      return V{(E)a...};
    } else {
      V r{};
      int i = 0;
      (_put(r, i, a), ...);
      return r;
    }
  }
}

// (float4)x, as the translator writes it: _cast<float4>()->*x.
template <class V>
struct _cast {};
template <class V, class X>
inline V operator->*(_cast<V>, X x) {
  return _make<V>(x);
}

template <class To, class From>
inline To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type size");
  return __builtin_bit_cast(To, from);
}

template <class T, int C, int R>
struct matrix {
  vec<T, R> column[C];
  matrix() = default;
  explicit matrix(T diagonal) {
    for (int i = 0; i < C; i++) {
      column[i] = vec<T, R>(0);
      if (i < R) column[i][i] = diagonal;
    }
  }
  template <class U>
  explicit matrix(const matrix<U, C, R>& other) {
    for (int i = 0; i < C; i++) column[i] = _make<vec<T, R>>(other.column[i]);
  }
  vec<T, R>& operator[](int i) { return column[i]; }
  const vec<T, R>& operator[](int i) const { return column[i]; }
#if EMU_CHECK_SPACES
  matrix(const matrix&) = default;
  matrix& operator=(const matrix&) = default;
  matrix(const device matrix& other) {
    for (int i = 0; i < C; i++) column[i] = other.column[i];
  }
  matrix(const threadgroup matrix& other) {
    for (int i = 0; i < C; i++) column[i] = other.column[i];
  }
#endif
};

}  // namespace metal

typedef metal::matrix<float, 4, 4> float4x4;
typedef metal::matrix<half, 4, 4> half4x4;
typedef metal::matrix<float, 2, 4> float2x4;
typedef metal::matrix<half, 2, 4> half2x4;
typedef metal::matrix<bfloat, 4, 4> bfloat4x4;
using metal::as_type;
using metal::vec;

#ifndef INFINITY
#define INFINITY __builtin_inff()
#endif
#ifndef NAN
#define NAN __builtin_nanf("")
#endif
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define FLT_EPSILON __FLT_EPSILON__
#define HALF_MAX ((half)65504.0f)
#define M_SQRT1_2_F 0.70710678118654752440f
#define M_PI_F 3.14159265358979323846f
