// Vectors of W floats over one instruction set, chosen by the compiler's target macros; everything inline, nothing of the standard library.
// Included inside the anonymous namespace of an isa_*.cpp, which includes <immintrin.h> or <arm_neon.h> and ops.h first.
//
// Order rules that the bits rest on: vsum folds halves (lane i + lane i + W/2, and so on down to one lane), vsum4 folds four vectors in that
// same order, and vfma is one rounding where the hardware has FMA and mul-then-add everywhere on SSE, never a mixture.
#pragma once

#if defined(__AVX512F__)
// ---------------------------------------------------------------- AVX-512
constexpr int W = 16;
using vf = __m512;
using vi = __m512i;
using vm = __mmask16;
BAO_INLINE vf vload(const float* p) { return _mm512_loadu_ps(p); }
BAO_INLINE void vstore(float* p, vf x) { _mm512_storeu_ps(p, x); }
BAO_INLINE vf vset1(float x) { return _mm512_set1_ps(x); }
BAO_INLINE vf vzero() { return _mm512_setzero_ps(); }
BAO_INLINE vf vadd(vf a, vf b) { return _mm512_add_ps(a, b); }
BAO_INLINE vf vsub(vf a, vf b) { return _mm512_sub_ps(a, b); }
BAO_INLINE vf vmul(vf a, vf b) { return _mm512_mul_ps(a, b); }
BAO_INLINE vf vdiv(vf a, vf b) { return _mm512_div_ps(a, b); }
BAO_INLINE vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
BAO_INLINE vf vmax(vf a, vf b) { return _mm512_max_ps(a, b); }
BAO_INLINE vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
BAO_INLINE vf vabs(vf a) { return _mm512_abs_ps(a); }
BAO_INLINE vf vcopysign(vf magnitude, vf sign) {
  const __m512i s = _mm512_set1_epi32(int32_t(0x80000000u));
  return _mm512_castsi512_ps(_mm512_ternarylogic_epi32(s, _mm512_castps_si512(sign), _mm512_castps_si512(magnitude), 0xCA));
}
BAO_INLINE vm vlt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
BAO_INLINE vm veq(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
BAO_INLINE uint32_t vbits(vm m) { return m; }
BAO_INLINE vf vselect(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
// Lanes i with first + i < end.
BAO_INLINE vm vbelow(int64_t first, int64_t end) {
  int64_t n = end - first;
  return n >= 16 ? vm(0xFFFF) : n <= 0 ? vm(0) : vm((1u << n) - 1u);
}
BAO_INLINE vf vload_tail(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(vbelow(0, n), p); }
BAO_INLINE void vstore_tail(float* p, vf x, int64_t n) { _mm512_mask_storeu_ps(p, vbelow(0, n), x); }
BAO_INLINE vi vround_int(vf x) { return _mm512_cvtps_epi32(x); }
BAO_INLINE vf vfloat(vi x) { return _mm512_cvtepi32_ps(x); }
// x * 2^n by the exponent field: for results that stay normal.
BAO_INLINE vf vshift_exponent(vf x, vi n) { return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(n, 23))); }
BAO_INLINE vf vload_f16(const void* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
BAO_INLINE void vstore_f16(void* p, vf x) { _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
BAO_INLINE vf vload_bf16(const void* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p))), 16));
}
BAO_INLINE vf vload_i8(const int8_t* p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))); }
// Whole numbers within int8, nearest with ties to even; NaN and out-of-range values give some int8.
BAO_INLINE void vstore_i8(int8_t* p, vf x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x))); }
BAO_INLINE __m128 vfold4(vf x) {
  __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  return _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
}
BAO_INLINE __m128 vfold4_max(vf x) {
  __m256 y = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
  return _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
}

#elif defined(__AVX2__)
// ---------------------------------------------------------------- AVX2 + FMA + F16C
constexpr int W = 8;
using vf = __m256;
using vi = __m256i;
using vm = __m256;
BAO_INLINE vf vload(const float* p) { return _mm256_loadu_ps(p); }
BAO_INLINE void vstore(float* p, vf x) { _mm256_storeu_ps(p, x); }
BAO_INLINE vf vset1(float x) { return _mm256_set1_ps(x); }
BAO_INLINE vf vzero() { return _mm256_setzero_ps(); }
BAO_INLINE vf vadd(vf a, vf b) { return _mm256_add_ps(a, b); }
BAO_INLINE vf vsub(vf a, vf b) { return _mm256_sub_ps(a, b); }
BAO_INLINE vf vmul(vf a, vf b) { return _mm256_mul_ps(a, b); }
BAO_INLINE vf vdiv(vf a, vf b) { return _mm256_div_ps(a, b); }
BAO_INLINE vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
BAO_INLINE vf vmax(vf a, vf b) { return _mm256_max_ps(a, b); }
BAO_INLINE vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
BAO_INLINE vf vabs(vf a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
BAO_INLINE vf vcopysign(vf magnitude, vf sign) {
  const vf s = _mm256_set1_ps(-0.0f);
  return _mm256_or_ps(_mm256_and_ps(s, sign), _mm256_andnot_ps(s, magnitude));
}
BAO_INLINE vm vlt(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
BAO_INLINE vm veq(vf a, vf b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
BAO_INLINE uint32_t vbits(vm m) { return uint32_t(_mm256_movemask_ps(m)); }
BAO_INLINE vf vselect(vm m, vf yes, vf no) { return _mm256_blendv_ps(no, yes, m); }
BAO_INLINE vm vbelow(int64_t first, int64_t end) {
  int64_t n = end - first;
  int32_t k = n >= 8 ? 8 : n <= 0 ? 0 : int32_t(n);
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(_mm256_set1_epi32(k), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}
BAO_INLINE vf vload_tail(const float* p, int64_t n) { return _mm256_maskload_ps(p, _mm256_castps_si256(vbelow(0, n))); }
BAO_INLINE void vstore_tail(float* p, vf x, int64_t n) { _mm256_maskstore_ps(p, _mm256_castps_si256(vbelow(0, n)), x); }
BAO_INLINE vi vround_int(vf x) { return _mm256_cvtps_epi32(x); }
BAO_INLINE vf vfloat(vi x) { return _mm256_cvtepi32_ps(x); }
BAO_INLINE vf vshift_exponent(vf x, vi n) { return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(n, 23))); }
BAO_INLINE vf vload_f16(const void* p) { return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
BAO_INLINE void vstore_f16(void* p, vf x) { _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
BAO_INLINE vf vload_bf16(const void* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p))), 16));
}
BAO_INLINE vf vload_i8(const int8_t* p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))); }
BAO_INLINE void vstore_i8(int8_t* p, vf x) {
  __m256i n = _mm256_cvtps_epi32(x);
  __m128i n16 = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(n16, n16));
}
BAO_INLINE __m128 vfold4(vf x) { return _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }
BAO_INLINE __m128 vfold4_max(vf x) { return _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)); }

#elif defined(__ARM_NEON)
// ---------------------------------------------------------------- NEON (arm64)
constexpr int W = 4;
using vf = float32x4_t;
using vi = int32x4_t;
using vm = uint32x4_t;
BAO_INLINE vf vload(const float* p) { return vld1q_f32(p); }
BAO_INLINE void vstore(float* p, vf x) { vst1q_f32(p, x); }
BAO_INLINE vf vset1(float x) { return vdupq_n_f32(x); }
BAO_INLINE vf vzero() { return vdupq_n_f32(0.0f); }
BAO_INLINE vf vadd(vf a, vf b) { return vaddq_f32(a, b); }
BAO_INLINE vf vsub(vf a, vf b) { return vsubq_f32(a, b); }
BAO_INLINE vf vmul(vf a, vf b) { return vmulq_f32(a, b); }
BAO_INLINE vf vdiv(vf a, vf b) { return vdivq_f32(a, b); }
BAO_INLINE vf vfma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
// As x86 does: b when either is NaN.
BAO_INLINE vf vmax(vf a, vf b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
BAO_INLINE vf vmin(vf a, vf b) { return vbslq_f32(vcltq_f32(a, b), a, b); }
BAO_INLINE vf vabs(vf a) { return vabsq_f32(a); }
BAO_INLINE vf vcopysign(vf magnitude, vf sign) { return vbslq_f32(vdupq_n_u32(0x80000000u), sign, magnitude); }
BAO_INLINE vm vlt(vf a, vf b) { return vcltq_f32(a, b); }
BAO_INLINE vm veq(vf a, vf b) { return vceqq_f32(a, b); }
BAO_INLINE uint32_t vbits(vm m) {
  const uint32x4_t weight = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(m, weight));
}
BAO_INLINE vf vselect(vm m, vf yes, vf no) { return vbslq_f32(m, yes, no); }
BAO_INLINE vm vbelow(int64_t first, int64_t end) {
  int64_t n = end - first;
  const int32x4_t lane = {0, 1, 2, 3};
  return vcltq_s32(lane, vdupq_n_s32(n >= 4 ? 4 : n <= 0 ? 0 : int32_t(n)));
}
BAO_INLINE vf vload_tail(const float* p, int64_t n) {
  float t[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4 && i < n; i++) t[i] = p[i];
  return vld1q_f32(t);
}
BAO_INLINE void vstore_tail(float* p, vf x, int64_t n) {
  float t[4];
  vst1q_f32(t, x);
  for (int i = 0; i < 4 && i < n; i++) p[i] = t[i];
}
BAO_INLINE vi vround_int(vf x) { return vcvtnq_s32_f32(x); }
BAO_INLINE vf vfloat(vi x) { return vcvtq_f32_s32(x); }
BAO_INLINE vf vshift_exponent(vf x, vi n) { return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(n, 23))); }
BAO_INLINE vf vload_f16(const void* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(static_cast<const uint16_t*>(p)))); }
BAO_INLINE void vstore_f16(void* p, vf x) { vst1_u16(static_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(x))); }
BAO_INLINE vf vload_bf16(const void* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(static_cast<const uint16_t*>(p)), 16)); }
BAO_INLINE vf vload_i8(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four)));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
BAO_INLINE void vstore_i8(int8_t* p, vf x) {
  int16x4_t n16 = vqmovn_s32(vcvtnq_s32_f32(x));
  int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(n16, n16))), 0);
  __builtin_memcpy(p, &four, 4);
}
BAO_INLINE float vsum(vf x) {
  float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
BAO_INLINE float vreduce_max(vf x) {
  float best = vgetq_lane_f32(x, 0);
  float others[4];
  vst1q_f32(others, x);
  for (int i = 1; i < 4; i++) best = others[i] > best ? others[i] : best;
  return best;
}
BAO_INLINE void vsum4(float* out, vf a, vf b, vf c, vf d) {
  float32x4_t ab = vaddq_f32(vzip1q_f32(a, b), vzip2q_f32(a, b)), cd = vaddq_f32(vzip1q_f32(c, d), vzip2q_f32(c, d));
  float32x4_t low = vcombine_f32(vget_low_f32(ab), vget_low_f32(cd)), high = vcombine_f32(vget_high_f32(ab), vget_high_f32(cd));
  vst1q_f32(out, vaddq_f32(low, high));
}
BAO_INLINE float scalar_sqrt(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }

#else
// ---------------------------------------------------------------- SSE4.2 (x86-64-v2): no FMA, so vfma rounds twice
constexpr int W = 4;
using vf = __m128;
using vi = __m128i;
using vm = __m128;
BAO_INLINE vf vload(const float* p) { return _mm_loadu_ps(p); }
BAO_INLINE void vstore(float* p, vf x) { _mm_storeu_ps(p, x); }
BAO_INLINE vf vset1(float x) { return _mm_set1_ps(x); }
BAO_INLINE vf vzero() { return _mm_setzero_ps(); }
BAO_INLINE vf vadd(vf a, vf b) { return _mm_add_ps(a, b); }
BAO_INLINE vf vsub(vf a, vf b) { return _mm_sub_ps(a, b); }
BAO_INLINE vf vmul(vf a, vf b) { return _mm_mul_ps(a, b); }
BAO_INLINE vf vdiv(vf a, vf b) { return _mm_div_ps(a, b); }
BAO_INLINE vf vfma(vf a, vf b, vf c) { return _mm_add_ps(_mm_mul_ps(a, b), c); }
BAO_INLINE vf vmax(vf a, vf b) { return _mm_max_ps(a, b); }
BAO_INLINE vf vmin(vf a, vf b) { return _mm_min_ps(a, b); }
BAO_INLINE vf vabs(vf a) { return _mm_andnot_ps(_mm_set1_ps(-0.0f), a); }
BAO_INLINE vf vcopysign(vf magnitude, vf sign) {
  const vf s = _mm_set1_ps(-0.0f);
  return _mm_or_ps(_mm_and_ps(s, sign), _mm_andnot_ps(s, magnitude));
}
BAO_INLINE vm vlt(vf a, vf b) { return _mm_cmplt_ps(a, b); }
BAO_INLINE vm veq(vf a, vf b) { return _mm_cmpeq_ps(a, b); }
BAO_INLINE uint32_t vbits(vm m) { return uint32_t(_mm_movemask_ps(m)); }
BAO_INLINE vf vselect(vm m, vf yes, vf no) { return _mm_blendv_ps(no, yes, m); }
BAO_INLINE vm vbelow(int64_t first, int64_t end) {
  int64_t n = end - first;
  int32_t k = n >= 4 ? 4 : n <= 0 ? 0 : int32_t(n);
  return _mm_castsi128_ps(_mm_cmpgt_epi32(_mm_set1_epi32(k), _mm_setr_epi32(0, 1, 2, 3)));
}
BAO_INLINE vf vload_tail(const float* p, int64_t n) {
  float t[4] = {0, 0, 0, 0};
  for (int i = 0; i < 4 && i < n; i++) t[i] = p[i];
  return _mm_loadu_ps(t);
}
BAO_INLINE void vstore_tail(float* p, vf x, int64_t n) {
  float t[4];
  _mm_storeu_ps(t, x);
  for (int i = 0; i < 4 && i < n; i++) p[i] = t[i];
}
BAO_INLINE vi vround_int(vf x) { return _mm_cvtps_epi32(x); }
BAO_INLINE vf vfloat(vi x) { return _mm_cvtepi32_ps(x); }
BAO_INLINE vf vshift_exponent(vf x, vi n) { return _mm_castsi128_ps(_mm_add_epi32(_mm_castps_si128(x), _mm_slli_epi32(n, 23))); }
// Exponent and mantissa move into place as a (sub)normal float, and one exact multiplication corrects the bias.
BAO_INLINE vf vload_f16(const void* p) {
  __m128i h = _mm_cvtepu16_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  __m128i magnitude = _mm_and_si128(h, _mm_set1_epi32(0x7FFF));
  __m128i sign = _mm_slli_epi32(_mm_and_si128(h, _mm_set1_epi32(0x8000)), 16);
  __m128 value = _mm_mul_ps(_mm_castsi128_ps(_mm_slli_epi32(magnitude, 13)), _mm_set1_ps(5.192296858534828e33f));  // 2^112
  __m128i special = _mm_and_si128(_mm_cmpgt_epi32(magnitude, _mm_set1_epi32(0x7BFF)), _mm_set1_epi32(0x7F800000));
  return _mm_castsi128_ps(_mm_or_si128(_mm_or_si128(_mm_castps_si128(value), special), sign));
}
BAO_INLINE void vstore_f16(void* p, vf x) {
  float t[4];
  uint16_t h[4];
  _mm_storeu_ps(t, x);
  for (int i = 0; i < 4; i++) h[i] = f32_to_f16(t[i]);
  __builtin_memcpy(p, h, sizeof h);
}
BAO_INLINE vf vload_bf16(const void* p) { return _mm_castsi128_ps(_mm_slli_epi32(_mm_cvtepu16_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p))), 16)); }
BAO_INLINE vf vload_i8(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(four)));
}
BAO_INLINE void vstore_i8(int8_t* p, vf x) {
  __m128i n = _mm_cvtps_epi32(x);
  __m128i n16 = _mm_packs_epi32(n, n);
  int32_t four = _mm_cvtsi128_si32(_mm_packs_epi16(n16, n16));
  __builtin_memcpy(p, &four, 4);
}
BAO_INLINE __m128 vfold4(vf x) { return x; }
BAO_INLINE __m128 vfold4_max(vf x) { return x; }
#endif

#if !defined(__ARM_NEON)
BAO_INLINE float vsum(vf x) {
  __m128 y = vfold4(x);
  y = _mm_add_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_add_ss(y, _mm_shuffle_ps(y, y, 1)));
}
// NaN lanes may or may not be seen.
BAO_INLINE float vreduce_max(vf x) {
  __m128 y = vfold4_max(x);
  y = _mm_max_ps(y, _mm_movehl_ps(y, y));
  return _mm_cvtss_f32(_mm_max_ss(y, _mm_shuffle_ps(y, y, 1)));
}
// out[0..3] = vsum of each, bit for bit.
BAO_INLINE void vsum4(float* out, vf a, vf b, vf c, vf d) {
  __m128 a4 = vfold4(a), b4 = vfold4(b), c4 = vfold4(c), d4 = vfold4(d);
  __m128 ab = _mm_add_ps(_mm_unpacklo_ps(a4, b4), _mm_unpackhi_ps(a4, b4)), cd = _mm_add_ps(_mm_unpacklo_ps(c4, d4), _mm_unpackhi_ps(c4, d4));
  _mm_storeu_ps(out, _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab)));
}
BAO_INLINE float scalar_sqrt(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
#endif

// ---------------------------------------------------------------- functions, the same steps on every instruction set

constexpr float INFINITE = __builtin_inff();
constexpr float LOWEST = -__builtin_inff();

// e^x within about 1.5 ulp. Results below the smallest normal float are 0; -infinity gives 0, NaN stays NaN.
BAO_INLINE vf vexp(vf x) {
  vi n = vround_int(vmul(x, vset1(1.44269504088896341f)));
  vf k = vfloat(n);
  // ln 2 in two parts; the first has nine bits, so that its product with k is exact also without FMA.
  vf r = vfma(k, vset1(-0.693359375f), x);
  r = vfma(k, vset1(2.12194440e-4f), r);
  vf p = vset1(1.9875691500e-4f);
  p = vfma(p, r, vset1(1.3981999507e-3f));
  p = vfma(p, r, vset1(8.3334519073e-3f));
  p = vfma(p, r, vset1(4.1665795894e-2f));
  p = vfma(p, r, vset1(1.6666665459e-1f));
  p = vfma(p, r, vset1(5.0000001201e-1f));
  p = vfma(p, vmul(r, r), r);
  vf y = vshift_exponent(vadd(p, vset1(1.0f)), n);
  y = vselect(vlt(x, vset1(-87.33654f)), vzero(), y);
  return vselect(vlt(vset1(88.72283f), x), vset1(INFINITE), y);
}

// The same bits for one value.
BAO_INLINE float scalar_exp(float x) {
  float out[W];
  vstore(out, vexp(vset1(x)));
  return out[0];
}

// tanh x with a relative error below 3e-7; odd, saturates at 1, NaN stays NaN.
BAO_INLINE vf vtanh(vf x) {
  vf a = vabs(x), z = vmul(x, x);
  vf p = vset1(-5.70498872745e-3f);
  p = vfma(p, z, vset1(2.06390887954e-2f));
  p = vfma(p, z, vset1(-5.37397155531e-2f));
  p = vfma(p, z, vset1(1.33314422036e-1f));
  p = vfma(p, z, vset1(-3.33332819422e-1f));
  vf small = vfma(vmul(p, z), x, x);
  vf large = vsub(vset1(1.0f), vdiv(vset1(2.0f), vadd(vexp(vadd(a, a)), vset1(1.0f))));
  return vselect(vlt(a, vset1(0.625f)), small, vcopysign(large, x));
}

// Calls f(i, n) for i = 0, W, 2W ...: n = W for whole vectors, fewer for the last. f loads with vload_any and stores with vstore_any.
BAO_INLINE vf vload_any(const float* p, int64_t n) { return n == W ? vload(p) : vload_tail(p, n); }
BAO_INLINE void vstore_any(float* p, vf x, int64_t n) {
  if (n == W) vstore(p, x); else vstore_tail(p, x, n);
}
template <class F> BAO_INLINE void vfor(int64_t count, F&& f) {
  int64_t i = 0;
  for (; i + W <= count; i += W) f(i, int64_t(W));
  if (i < count) f(i, count - i);
}

// Sum over i < n of term(i, lanes) in one fixed order: four accumulators of W lanes in turn, the tail into the next in turn, then a tree.
// term must give 0 in lanes at or beyond `lanes`.
template <class F> BAO_INLINE float vsum_of(int64_t n, F&& term) {
  vf a = vzero(), b = vzero(), c = vzero(), d = vzero();
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
    a = term(i, int64_t(W), a);
    b = term(i + W, int64_t(W), b);
    c = term(i + 2 * W, int64_t(W), c);
    d = term(i + 3 * W, int64_t(W), d);
  }
  if (i < n) { a = term(i, n - i < W ? n - i : W, a); i += W; }
  if (i < n) { b = term(i, n - i < W ? n - i : W, b); i += W; }
  if (i < n) { c = term(i, n - i < W ? n - i : W, c); i += W; }
  if (i < n) { d = term(i, n - i < W ? n - i : W, d); }
  return vsum(vadd(vadd(a, b), vadd(c, d)));
}
