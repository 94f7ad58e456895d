// What the AVX-512 kernels use of AVX-512, as two AVX2 halves: `make test-avx512` compiles isa_avx512.cpp with this in place of the compiler's
// header, so that its results can be tested on processors without these instructions. Its speed says nothing. Definitions follow Intel's pseudocode.
#pragma once
#pragma GCC system_header
#include <cstdint>
#include_next <immintrin.h>

namespace avx512 {

#define AVX512_INLINE inline __attribute__((always_inline))

struct F { __m256 half[2]; };
struct I { __m256i half[2]; };
template <class T> struct Elements { T at[64 / sizeof(T)]; };
template <class T, class V> AVX512_INLINE Elements<T> elements(V x) { return __builtin_bit_cast(Elements<T>, x); }
template <class V, class T> AVX512_INLINE V vector(const Elements<T>& x) { return __builtin_bit_cast(V, x); }

// Functions that are found by the type of an argument.
#define AVX512_HALVES1(V, R, name, ...) AVX512_INLINE R _mm512_##name(V a) { auto f = [](auto a) { return __VA_ARGS__; }; return {f(a.half[0]), f(a.half[1])}; }
#define AVX512_HALVES2(V, R, name, ...) AVX512_INLINE R _mm512_##name(V a, V b) { auto f = [](auto a, auto b) { return __VA_ARGS__; }; return {f(a.half[0], b.half[0]), f(a.half[1], b.half[1])}; }
#define AVX512_SAME2(V, name) AVX512_HALVES2(V, V, name, _mm256_##name(a, b))
#define AVX512_SHIFT(name) AVX512_INLINE I _mm512_##name(I a, int n) { return {_mm256_##name(a.half[0], n), _mm256_##name(a.half[1], n)}; }
AVX512_SAME2(F, add_ps) AVX512_SAME2(F, sub_ps) AVX512_SAME2(F, mul_ps) AVX512_SAME2(F, div_ps) AVX512_SAME2(F, max_ps) AVX512_SAME2(F, min_ps)
AVX512_SAME2(I, add_epi32) AVX512_SAME2(I, sub_epi32) AVX512_SAME2(I, sub_epi8) AVX512_SAME2(I, mullo_epi32) AVX512_SAME2(I, mul_epu32) AVX512_SAME2(I, max_epi32)
AVX512_SAME2(I, madd_epi16) AVX512_SAME2(I, packs_epi32) AVX512_SAME2(I, shuffle_epi8) AVX512_SAME2(I, srlv_epi32)
AVX512_SAME2(I, unpacklo_epi32) AVX512_SAME2(I, unpackhi_epi32) AVX512_SAME2(I, unpacklo_epi64) AVX512_SAME2(I, unpackhi_epi64)
AVX512_SHIFT(slli_epi32) AVX512_SHIFT(srli_epi32) AVX512_SHIFT(srai_epi32) AVX512_SHIFT(srli_epi64)
AVX512_HALVES2(I, I, and_si512, _mm256_and_si256(a, b))
AVX512_HALVES2(I, I, or_si512, _mm256_or_si256(a, b))
AVX512_HALVES2(I, I, xor_si512, _mm256_xor_si256(a, b))
AVX512_HALVES1(F, F, abs_ps, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a))
AVX512_HALVES1(F, I, cvtps_epi32, _mm256_cvtps_epi32(a))
AVX512_HALVES1(F, I, cvttps_epi32, _mm256_cvttps_epi32(a))
AVX512_HALVES1(I, F, cvtepi32_ps, _mm256_cvtepi32_ps(a))
AVX512_HALVES1(F, I, castps_si512, _mm256_castps_si256(a))
AVX512_HALVES1(I, F, castsi512_ps, _mm256_castsi256_ps(a))
AVX512_INLINE __m256 _mm512_castps512_ps256(F a) { return a.half[0]; }
AVX512_INLINE F _mm512_fmadd_ps(F a, F b, F c) { return {_mm256_fmadd_ps(a.half[0], b.half[0], c.half[0]), _mm256_fmadd_ps(a.half[1], b.half[1], c.half[1])}; }

// Sums of four products of unsigned by signed bytes, with nothing saturated: even bytes, then odd ones, as 16-bit numbers.
AVX512_INLINE __m256i dpbusd(__m256i sum, __m256i a, __m256i b) {
  __m256i even = _mm256_madd_epi16(_mm256_and_si256(a, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8))));
}
AVX512_INLINE I _mm512_dpbusd_epi32(I sum, I a, I b) { return {dpbusd(sum.half[0], a.half[0], b.half[0]), dpbusd(sum.half[1], a.half[1], b.half[1])}; }
AVX512_INLINE I _mm512_ternarylogic_epi32(I a, I b, I c, int table) {
  I all = {_mm256_set1_epi32(-1), _mm256_set1_epi32(-1)}, sum = {};
  for (int i = 0; i < 8; i++) {
    if (!(table >> i & 1)) continue;
    I x = i & 4 ? a : _mm512_xor_si512(a, all), y = i & 2 ? b : _mm512_xor_si512(b, all), z = i & 1 ? c : _mm512_xor_si512(c, all);
    sum = _mm512_or_si512(sum, _mm512_and_si512(x, _mm512_and_si512(y, z)));
  }
  return sum;
}

// Elements moved, chosen by a mask, or converted in number.
template <class T, class V> AVX512_INLINE V blend(uint64_t mask, V no, V yes) {
  Elements<T> a = elements<T>(no), b = elements<T>(yes);
  for (unsigned i = 0; i < 64 / sizeof(T); i++) a.at[i] = mask >> i & 1 ? b.at[i] : a.at[i];
  return vector<V>(a);
}
AVX512_INLINE I _mm512_mask_blend_epi32(__mmask16 m, I no, I yes) { return blend<int32_t>(m, no, yes); }
AVX512_INLINE F _mm512_mask_blend_ps(__mmask16 m, F no, F yes) { return blend<float>(m, no, yes); }
AVX512_INLINE I _mm512_maskz_mov_epi32(__mmask16 m, I yes) { return blend<int32_t>(m, I{}, yes); }
AVX512_INLINE I _mm512_mask_add_epi8(I no, __mmask64 m, I a, I b) { return blend<int8_t>(m, no, I{_mm256_add_epi8(a.half[0], b.half[0]), _mm256_add_epi8(a.half[1], b.half[1])}); }
AVX512_INLINE I broadcast(__m128i x) { return {_mm256_broadcastsi128_si256(x), _mm256_broadcastsi128_si256(x)}; }
AVX512_INLINE I _mm512_mask_broadcast_i32x4(I no, __mmask16 m, __m128i x) { return blend<int32_t>(m, no, broadcast(x)); }
AVX512_INLINE __mmask16 _mm512_cmp_ps_mask(F a, F b, int how) {
  auto mask = [&](int h) {
    __m256 less = _mm256_cmp_ps(a.half[h], b.half[h], _CMP_LT_OQ), equal = _mm256_cmp_ps(a.half[h], b.half[h], _CMP_EQ_OQ);
    if (how != _CMP_LT_OQ && how != _CMP_EQ_OQ) __builtin_trap();
    return unsigned(_mm256_movemask_ps(how == _CMP_LT_OQ ? less : equal));
  };
  return __mmask16(mask(0) | mask(1) << 8);
}
AVX512_INLINE __mmask64 _mm512_test_epi8_mask(I a, I b) {
  Elements<uint8_t> x = elements<uint8_t>(_mm512_and_si512(a, b));
  __mmask64 m = 0;
  for (int i = 0; i < 64; i++) m |= __mmask64(x.at[i] != 0) << i;
  return m;
}
AVX512_INLINE F shuffle_ps(F a, F b, int pick) {
  Elements<float> x = elements<float>(a), y = elements<float>(b), out;
  for (int i = 0; i < 16; i++) out.at[i] = (i % 4 < 2 ? x : y).at[i / 4 * 4 + (pick >> 2 * (i % 4) & 3)];
  return vector<F>(out);
}
AVX512_INLINE I shuffle_i32x4(I a, I b, int pick) {
  Elements<int32_t> x = elements<int32_t>(a), y = elements<int32_t>(b), out;
  for (int i = 0; i < 16; i++) out.at[i] = (i < 8 ? x : y).at[(pick >> i / 4 * 2 & 3) * 4 + i % 4];
  return vector<I>(out);
}
AVX512_INLINE I inserti64x4(I a, __m256i b, int at) { return at ? I{a.half[0], b} : I{b, a.half[1]}; }
AVX512_INLINE __m256 extractf32x8(F a, int at) { return a.half[at]; }
AVX512_INLINE __m256i cvtps_ph(F a, int) { return _mm256_set_m128i(_mm256_cvtps_ph(a.half[1], 0), _mm256_cvtps_ph(a.half[0], 0)); }
AVX512_INLINE __m256i _mm512_cvtepi32_epi16(I a) {
  Elements<int32_t> x = elements<int32_t>(a);
  int16_t out[16];
  for (int i = 0; i < 16; i++) out[i] = int16_t(x.at[i]);
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(out));
}
AVX512_INLINE __m128i _mm512_cvtsepi32_epi8(I a) {
  Elements<int32_t> x = elements<int32_t>(a);
  int8_t out[16];
  for (int i = 0; i < 16; i++) out[i] = int8_t(x.at[i] < -128 ? -128 : x.at[i] > 127 ? 127 : x.at[i]);
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(out));
}

// Memory: whole vectors, and elements that a mask names (others are not touched).
AVX512_INLINE void _mm512_storeu_ps(void* p, F x) { __builtin_memcpy(p, &x, sizeof x); }
AVX512_INLINE void _mm512_storeu_si512(void* p, I x) { __builtin_memcpy(p, &x, sizeof x); }
AVX512_INLINE void _mm512_mask_storeu_ps(void* p, __mmask16 m, F x) {
  Elements<float> from = elements<float>(x);
  for (int i = 0; i < 16; i++)
    if (m >> i & 1) __builtin_memcpy(static_cast<char*>(p) + 4 * i, from.at + i, 4);
}
AVX512_INLINE F maskz_loadu_ps(__mmask16 m, const void* p) {
  Elements<float> to = {};
  for (int i = 0; i < 16; i++)
    if (m >> i & 1) __builtin_memcpy(to.at + i, static_cast<const char*>(p) + 4 * i, 4);
  return vector<F>(to);
}
template <class V> AVX512_INLINE V load(const void* p) {
  V x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
AVX512_INLINE I both(__m256i x) { return {x, x}; }
AVX512_INLINE F both(__m256 x) { return {x, x}; }
AVX512_INLINE __m128i lower(__m256i x) { return _mm256_castsi256_si128(x); }
AVX512_INLINE __m128i upper(__m256i x) { return _mm256_extracti128_si256(x, 1); }
AVX512_INLINE I cvtepi8_epi32(__m128i x) { return {_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_srli_si128(x, 8))}; }
AVX512_INLINE I cvtepu16_epi32(__m256i x) { return {_mm256_cvtepu16_epi32(lower(x)), _mm256_cvtepu16_epi32(upper(x))}; }
AVX512_INLINE F cvtph_ps(__m256i x) { return {_mm256_cvtph_ps(lower(x)), _mm256_cvtph_ps(upper(x))}; }

}  // namespace avx512

// Functions without an argument of these types, and those that are macros with some compilers.
#undef _mm512_shuffle_ps
#undef _mm512_shuffle_i32x4
#undef _mm512_inserti64x4
#undef _mm512_extractf32x8_ps
#undef _mm512_cvtps_ph
#undef _mm512_cmp_ps_mask
#undef _mm512_ternarylogic_epi32
#define _mm512_shuffle_ps avx512::shuffle_ps
#define _mm512_shuffle_i32x4 avx512::shuffle_i32x4
#define _mm512_inserti64x4 avx512::inserti64x4
#define _mm512_extractf32x8_ps avx512::extractf32x8
#define _mm512_cvtps_ph avx512::cvtps_ph
#define _mm512_set1_ps(x) avx512::both(_mm256_set1_ps(x))
#define _mm512_set1_epi32(x) avx512::both(_mm256_set1_epi32(x))
#define _mm512_set1_epi16(x) avx512::both(_mm256_set1_epi16(x))
#define _mm512_setzero_ps() avx512::both(_mm256_setzero_ps())
#define _mm512_loadu_ps avx512::load<avx512::F>
#define _mm512_loadu_si512 avx512::load<avx512::I>
#define _mm512_maskz_loadu_ps avx512::maskz_loadu_ps
#define _mm512_broadcast_i32x4 avx512::broadcast
#define _mm512_castsi128_si512(x) avx512::both(_mm256_castsi128_si256(x))
#define _mm512_castsi256_si512(x) avx512::both(x)
#define _mm512_cvtepi8_epi32 avx512::cvtepi8_epi32
#define _mm512_cvtepu16_epi32 avx512::cvtepu16_epi32
#define _mm512_cvtph_ps avx512::cvtph_ps
#define __m512 avx512::F
#define __m512i avx512::I
#define __AVX512F__ 1
