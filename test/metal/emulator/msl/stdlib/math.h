// Math, integer and geometric functions. Overload sets as in MSL, not templates: max(1.0f, 2) is ambiguous there, too.
#pragma once

namespace metal {

#define EMU_UNARY(name, expression)                     \
  inline float name(float x) { return expression; }     \
  inline half name(half h) {                            \
    float x = (float)h;                                 \
    return (half)(expression);                          \
  }                                                     \
  template <class V>                                    \
  inline std::enable_if_t<_is_vector<V>, V> name(V v) { \
    V r;                                                \
    for (int i = 0; i < _size<V>; i++) r[i] = name(v[i]); \
    return r;                                           \
  }
#define EMU_MATH                                                                         \
  EMU_UNARY(exp, __builtin_expf(x))                                                      \
  EMU_UNARY(exp2, __builtin_exp2f(x))                                                    \
  EMU_UNARY(exp10, __builtin_exp10f(x))                                                  \
  EMU_UNARY(log, __builtin_logf(x))                                                      \
  EMU_UNARY(log2, __builtin_log2f(x))                                                    \
  EMU_UNARY(log10, __builtin_log10f(x))                                                  \
  EMU_UNARY(sqrt, __builtin_sqrtf(x))                                                    \
  EMU_UNARY(rsqrt, 1.0f / __builtin_sqrtf(x))                                            \
  EMU_UNARY(sin, __builtin_sinf(x))                                                      \
  EMU_UNARY(cos, __builtin_cosf(x))                                                      \
  EMU_UNARY(tanh, __builtin_tanhf(x))                                                    \
  EMU_UNARY(fabs, __builtin_fabsf(x))                                                    \
  EMU_UNARY(floor, __builtin_floorf(x))                                                  \
  EMU_UNARY(ceil, __builtin_ceilf(x))                                                    \
  EMU_UNARY(rint, __builtin_rintf(x))                                                    \
  EMU_UNARY(round, __builtin_roundf(x))                                                  \
  EMU_UNARY(trunc, __builtin_truncf(x))                                                  \
  inline float pow(float a, float b) { return __builtin_powf(a, b); }                    \
  inline float powr(float a, float b) { return __builtin_powf(a, b); }                   \
  inline float atan2(float a, float b) { return __builtin_atan2f(a, b); }                \
  inline float sincos(float x, thread float& cosine) {                                   \
    cosine = __builtin_cosf(x);                                                          \
    return __builtin_sinf(x);                                                            \
  }
EMU_MATH
namespace precise {
EMU_MATH
}
namespace fast {
EMU_MATH
}
#undef EMU_MATH

inline float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline half fma(half a, half b, half c) { return (half)(float)((double)(float)a * (double)(float)b + (double)(float)c); }
inline float copysign(float a, float b) { return __builtin_copysignf(a, b); }
inline float ldexp(float a, int n) { return __builtin_ldexpf(a, n); }
inline float fmin(float a, float b) { return __builtin_fminf(a, b); }
inline float fmax(float a, float b) { return __builtin_fmaxf(a, b); }
inline half fmin(half a, half b) { return (half)__builtin_fminf((float)a, (float)b); }
inline half fmax(half a, half b) { return (half)__builtin_fmaxf((float)a, (float)b); }
inline bool isnan(float x) { return __builtin_isnan(x); }
inline bool isinf(float x) { return __builtin_isinf(x); }
inline bool isfinite(float x) { return __builtin_isfinite(x); }

#define EMU_ORDER(T)                                              \
  inline T min(T a, T b) { return b < a ? b : a; }                \
  inline T max(T a, T b) { return a < b ? b : a; }                \
  inline T clamp(T x, T low, T high) { return min(max(x, low), high); } \
  inline T select(T a, T b, bool c) { return c ? b : a; }         \
  inline T abs(T x) { return x < (T)0 ? (T)-x : x; }
#define EMU_BY_ELEMENT(V, expression)                     \
  V r;                                                    \
  for (int i = 0; i < _size<V>; i++) r[i] = (expression); \
  return r;
#define EMU_VECTOR_ORDER(V)                                       \
  inline V min(V a, V b) { EMU_BY_ELEMENT(V, min(a[i], b[i])) }   \
  inline V max(V a, V b) { EMU_BY_ELEMENT(V, max(a[i], b[i])) }   \
  inline V clamp(V x, V low, V high) { return min(max(x, low), high); } \
  inline V abs(V x) { EMU_BY_ELEMENT(V, abs(x[i])) }
#define EMU_ORDERS(T) EMU_ORDER(T) EMU_VECTOR_ORDER(T##2) EMU_VECTOR_ORDER(T##3) EMU_VECTOR_ORDER(T##4)
EMU_ORDERS(float)
EMU_ORDERS(half)
EMU_ORDERS(char)
EMU_ORDERS(uchar)
EMU_ORDERS(short)
EMU_ORDERS(ushort)
EMU_ORDERS(int)
EMU_ORDERS(uint)
EMU_ORDERS(long)
EMU_ORDERS(ulong)

#define EMU_FLOATING(T)                                                       \
  inline T mix(T a, T b, T t) { return a + (b - a) * t; }                     \
  inline T saturate(T x) { return clamp(x, (T)0, (T)1); }                     \
  inline T sign(T x) { return x > (T)0 ? (T)1 : x < (T)0 ? (T)-1 : (T)0; }    \
  inline T fmod(T a, T b) { return a - b * trunc(a / b); }
EMU_FLOATING(float)
EMU_FLOATING(half)
#define EMU_VECTOR_FLOATING(V)                                             \
  inline V fmin(V a, V b) { EMU_BY_ELEMENT(V, fmin(a[i], b[i])) }          \
  inline V fmax(V a, V b) { EMU_BY_ELEMENT(V, fmax(a[i], b[i])) }          \
  inline V mix(V a, V b, V t) { return a + (b - a) * t; }                  \
  inline V fma(V a, V b, V c) { EMU_BY_ELEMENT(V, fma(a[i], b[i], c[i])) } \
  inline V saturate(V x) { EMU_BY_ELEMENT(V, saturate(x[i])) }             \
  inline V sign(V x) { EMU_BY_ELEMENT(V, sign(x[i])) }
EMU_VECTOR_FLOATING(float2)
EMU_VECTOR_FLOATING(float3)
EMU_VECTOR_FLOATING(float4)
EMU_VECTOR_FLOATING(half2)
EMU_VECTOR_FLOATING(half3)
EMU_VECTOR_FLOATING(half4)

template <class V>
inline typename _traits<V>::Element dot(V a, V b) {
  typename _traits<V>::Element sum = 0;
  for (int i = 0; i < _size<V>; i++) sum += a[i] * b[i];
  return sum;
}
template <class V>
inline typename _traits<V>::Element length(V a) {
  return sqrt(dot(a, a));
}

template <class T>
inline T popcount(T x) {
  return (T)__builtin_popcountl((unsigned long)x);
}
template <class T>
inline T clz(T x) {
  return x ? (T)(__builtin_clzl((unsigned long)x) - (64 - 8 * (int)sizeof(T))) : (T)(8 * sizeof(T));
}
template <class T>
inline T ctz(T x) {
  return x ? (T)__builtin_ctzl((unsigned long)x) : (T)(8 * sizeof(T));
}
inline uint mulhi(uint a, uint b) { return (uint)((ulong)a * b >> 32); }
inline int mulhi(int a, int b) { return (int)((long)a * b >> 32); }
inline ulong mulhi(ulong a, ulong b) { return (ulong)((unsigned __int128)a * b >> 64); }
inline uint extract_bits(uint x, uint offset, uint bits) { return bits == 0 ? 0 : (x >> offset) & (~0u >> (32 - bits)); }

template <class T, int C, int R>
inline vec<T, C> operator*(vec<T, R> v, const matrix<T, C, R>& m) {
  vec<T, C> r;
  for (int i = 0; i < C; i++) r[i] = dot(v, m.column[i]);
  return r;
}
template <class T, int C, int R>
inline vec<T, R> operator*(const matrix<T, C, R>& m, vec<T, C> v) {
  vec<T, R> r = m.column[0] * v[0];
  for (int i = 1; i < C; i++) r += m.column[i] * v[i];
  return r;
}

}  // namespace metal
