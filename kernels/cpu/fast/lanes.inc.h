// Integer vectors for matmuls, beside the float ones of simd.h: W dwords whose lane is a weight row and whose four bytes run along K.
// Loading 16 bytes of W rows transposes them on the way, so that every block format is unpacked for W rows with plain shifts and masks.

// How unpacked weights are kept. UNSIGNED_BYTES: as 0..255 with the format's offset still in, for a dot product of unsigned by signed
// bytes. Otherwise signed, offset taken off. SIGNED_WIDE: only formats that need all eight bits are signed (16-bit sums would saturate).
#if defined(__AVX512F__)
constexpr bool UNSIGNED_BYTES = true, SIGNED_WIDE = false;
constexpr int MAX_ROWS = 8;  // activation rows of one register tile
using table_t = __m512i;
BAO_INLINE vi iload(const void* p) { return _mm512_loadu_si512(p); }
BAO_INLINE void istore(void* p, vi x) { _mm512_storeu_si512(p, x); }
BAO_INLINE vi iset(uint32_t x) { return _mm512_set1_epi32(int32_t(x)); }
BAO_INLINE vi iand(vi a, vi b) { return _mm512_and_si512(a, b); }
BAO_INLINE vi ior(vi a, vi b) { return _mm512_or_si512(a, b); }
BAO_INLINE vi ixor(vi a, vi b) { return _mm512_xor_si512(a, b); }
BAO_INLINE vi iadd(vi a, vi b) { return _mm512_add_epi32(a, b); }
BAO_INLINE vi isub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
BAO_INLINE vi isub8(vi a, vi b) { return _mm512_sub_epi8(a, b); }
BAO_INLINE vi imul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
BAO_INLINE vi imax(vi a, vi b) { return _mm512_max_epi32(a, b); }
template <int N> BAO_INLINE vi ishr(vi a) { return _mm512_srli_epi32(a, N); }
template <int N> BAO_INLINE vi isar(vi a) { return _mm512_srai_epi32(a, N); }
template <int N> BAO_INLINE vi ishl(vi a) { return _mm512_slli_epi32(a, N); }
BAO_INLINE vf ifloat_bits(vi a) { return _mm512_castsi512_ps(a); }
BAO_INLINE vi ibits(vf a) { return _mm512_castps_si512(a); }
// Lanes hold a half in their low 16 bits, the rest zero.
BAO_INLINE vf ihalf(vi a) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a)); }
BAO_INLINE table_t itable(const uint8_t* p) { return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
BAO_INLINE vi ilookup(table_t t, vi index) { return _mm512_shuffle_epi8(t, index); }
template <int I> BAO_INLINE __m512i four_rows(const uint8_t* p, int64_t s) {
  auto at = [&](int64_t r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + r * s)); };
  __m512i x = _mm512_castsi128_si512(at(I));
  x = _mm512_mask_broadcast_i32x4(x, 0x00F0, at(I + 4));
  x = _mm512_mask_broadcast_i32x4(x, 0x0F00, at(I + 8));
  return _mm512_mask_broadcast_i32x4(x, 0xF000, at(I + 12));
}
// x[t] = dword t of the 16 bytes at p + lane * s.
BAO_INLINE void load_rows(const uint8_t* p, int64_t s, vi x[4]) {
  __m512i a = four_rows<0>(p, s), b = four_rows<1>(p, s), c = four_rows<2>(p, s), d = four_rows<3>(p, s);
  __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b), cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
  x[0] = _mm512_unpacklo_epi64(ab0, cd0);
  x[1] = _mm512_unpackhi_epi64(ab0, cd0);
  x[2] = _mm512_unpacklo_epi64(ab1, cd1);
  x[3] = _mm512_unpackhi_epi64(ab1, cd1);
}
// x[t] = dword t of the 32 bytes at p + lane * s: half the loads of two load_rows.
BAO_INLINE void load_rows32(const uint8_t* p, int64_t s, vi x[8]) {
  auto at = [&](int64_t r) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + r * s)); };
  auto pair = [&](int64_t r) { return _mm512_inserti64x4(_mm512_castsi256_si512(at(r)), at(r + 4), 1); };
  __m512i half[2][4];
  for (int h = 0; h < 2; h++) {
    __m512i a = pair(8 * h), b = pair(8 * h + 1), c = pair(8 * h + 2), d = pair(8 * h + 3);
    __m512i ab0 = _mm512_unpacklo_epi32(a, b), ab1 = _mm512_unpackhi_epi32(a, b), cd0 = _mm512_unpacklo_epi32(c, d), cd1 = _mm512_unpackhi_epi32(c, d);
    half[h][0] = _mm512_unpacklo_epi64(ab0, cd0);
    half[h][1] = _mm512_unpackhi_epi64(ab0, cd0);
    half[h][2] = _mm512_unpacklo_epi64(ab1, cd1);
    half[h][3] = _mm512_unpackhi_epi64(ab1, cd1);
  }
  for (int t = 0; t < 4; t++) {
    x[t] = _mm512_shuffle_i32x4(half[0][t], half[1][t], 0x88);
    x[t + 4] = _mm512_shuffle_i32x4(half[0][t], half[1][t], 0xDD);
  }
}
// sum[lane] += w (four bytes of the lane) . a (the same four signed bytes for all lanes)
template <bool SIGNED> BAO_INLINE vi dot4(vi sum, vi w, const int8_t* a) {
  static_assert(!SIGNED, "weights are unsigned here");
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(four));
}

#elif defined(__AVX2__)
constexpr bool UNSIGNED_BYTES = true, SIGNED_WIDE = true;
constexpr int MAX_ROWS = 4;
using table_t = __m256i;
BAO_INLINE vi iload(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
BAO_INLINE void istore(void* p, vi x) { _mm256_storeu_si256(static_cast<__m256i*>(p), x); }
BAO_INLINE vi iset(uint32_t x) { return _mm256_set1_epi32(int32_t(x)); }
BAO_INLINE vi iand(vi a, vi b) { return _mm256_and_si256(a, b); }
BAO_INLINE vi ior(vi a, vi b) { return _mm256_or_si256(a, b); }
BAO_INLINE vi ixor(vi a, vi b) { return _mm256_xor_si256(a, b); }
BAO_INLINE vi iadd(vi a, vi b) { return _mm256_add_epi32(a, b); }
BAO_INLINE vi isub(vi a, vi b) { return _mm256_sub_epi32(a, b); }
BAO_INLINE vi isub8(vi a, vi b) { return _mm256_sub_epi8(a, b); }
BAO_INLINE vi imul(vi a, vi b) { return _mm256_mullo_epi32(a, b); }
BAO_INLINE vi imax(vi a, vi b) { return _mm256_max_epi32(a, b); }
template <int N> BAO_INLINE vi ishr(vi a) { return _mm256_srli_epi32(a, N); }
template <int N> BAO_INLINE vi isar(vi a) { return _mm256_srai_epi32(a, N); }
template <int N> BAO_INLINE vi ishl(vi a) { return _mm256_slli_epi32(a, N); }
BAO_INLINE vf ifloat_bits(vi a) { return _mm256_castsi256_ps(a); }
BAO_INLINE vi ibits(vf a) { return _mm256_castps_si256(a); }
BAO_INLINE vf ihalf(vi a) { return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1))); }
BAO_INLINE table_t itable(const uint8_t* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
BAO_INLINE vi ilookup(table_t t, vi index) { return _mm256_shuffle_epi8(t, index); }
BAO_INLINE void load_rows(const uint8_t* p, int64_t s, vi x[4]) {
  auto at = [&](int64_t r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + r * s)); };
  auto pair = [&](int64_t r) { return _mm256_inserti128_si256(_mm256_castsi128_si256(at(r)), at(r + 4), 1); };
  __m256i a = pair(0), b = pair(1), c = pair(2), d = pair(3);
  __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b), cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
  x[0] = _mm256_unpacklo_epi64(ab0, cd0);
  x[1] = _mm256_unpackhi_epi64(ab0, cd0);
  x[2] = _mm256_unpacklo_epi64(ab1, cd1);
  x[3] = _mm256_unpackhi_epi64(ab1, cd1);
}
BAO_INLINE void load_rows32(const uint8_t* p, int64_t s, vi x[8]) {
  __m256i half[2][4];
  for (int h = 0; h < 2; h++) {
    auto at = [&](int64_t r) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + (4 * h + r) * s)); };
    __m256i a = at(0), b = at(1), c = at(2), d = at(3);
    __m256i ab0 = _mm256_unpacklo_epi32(a, b), ab1 = _mm256_unpackhi_epi32(a, b), cd0 = _mm256_unpacklo_epi32(c, d), cd1 = _mm256_unpackhi_epi32(c, d);
    half[h][0] = _mm256_unpacklo_epi64(ab0, cd0);
    half[h][1] = _mm256_unpackhi_epi64(ab0, cd0);
    half[h][2] = _mm256_unpacklo_epi64(ab1, cd1);
    half[h][3] = _mm256_unpackhi_epi64(ab1, cd1);
  }
  for (int t = 0; t < 4; t++) {
    x[t] = _mm256_permute2x128_si256(half[0][t], half[1][t], 0x20);
    x[t + 4] = _mm256_permute2x128_si256(half[0][t], half[1][t], 0x31);
  }
}
// Unsigned weights here are at most 63 and signed ones go through |w| <= 128, so a pair of products stays within 16 bits.
template <bool SIGNED> BAO_INLINE vi dot4(vi sum, vi w, const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  __m256i x = _mm256_set1_epi32(four);
  __m256i pairs = SIGNED ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)) : _mm256_maddubs_epi16(w, x);
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#elif defined(__ARM_NEON)
constexpr bool UNSIGNED_BYTES = false, SIGNED_WIDE = true;
constexpr int MAX_ROWS = 8;
using table_t = uint8x16_t;
BAO_INLINE vi iload(const void* p) { return vreinterpretq_s32_u8(vld1q_u8(static_cast<const uint8_t*>(p))); }
BAO_INLINE void istore(void* p, vi x) { vst1q_u8(static_cast<uint8_t*>(p), vreinterpretq_u8_s32(x)); }
BAO_INLINE vi iset(uint32_t x) { return vdupq_n_s32(int32_t(x)); }
BAO_INLINE vi iand(vi a, vi b) { return vandq_s32(a, b); }
BAO_INLINE vi ior(vi a, vi b) { return vorrq_s32(a, b); }
BAO_INLINE vi ixor(vi a, vi b) { return veorq_s32(a, b); }
BAO_INLINE vi iadd(vi a, vi b) { return vaddq_s32(a, b); }
BAO_INLINE vi isub(vi a, vi b) { return vsubq_s32(a, b); }
BAO_INLINE vi isub8(vi a, vi b) { return vreinterpretq_s32_s8(vsubq_s8(vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b))); }
BAO_INLINE vi imul(vi a, vi b) { return vmulq_s32(a, b); }
BAO_INLINE vi imax(vi a, vi b) { return vmaxq_s32(a, b); }
template <int N> BAO_INLINE vi ishr(vi a) {
  if constexpr (N == 0) return a; else return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), N));
}
template <int N> BAO_INLINE vi isar(vi a) {
  if constexpr (N == 0) return a; else return vshrq_n_s32(a, N);
}
template <int N> BAO_INLINE vi ishl(vi a) { return vshlq_n_s32(a, N); }
BAO_INLINE vf ifloat_bits(vi a) { return vreinterpretq_f32_s32(a); }
BAO_INLINE vi ibits(vf a) { return vreinterpretq_s32_f32(a); }
BAO_INLINE vf ihalf(vi a) { return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(a)))); }
BAO_INLINE table_t itable(const uint8_t* p) { return vld1q_u8(p); }
BAO_INLINE vi ilookup(table_t t, vi index) { return vreinterpretq_s32_u8(vqtbl1q_u8(t, vreinterpretq_u8_s32(index))); }
BAO_INLINE void load_rows(const uint8_t* p, int64_t s, vi x[4]) {
  int32x4_t a = iload(p), b = iload(p + s), c = iload(p + 2 * s), d = iload(p + 3 * s);
  int32x4_t ab0 = vzip1q_s32(a, b), ab1 = vzip2q_s32(a, b), cd0 = vzip1q_s32(c, d), cd1 = vzip2q_s32(c, d);
  auto low = [](int32x4_t m, int32x4_t n) { return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(m), vreinterpretq_s64_s32(n))); };
  auto high = [](int32x4_t m, int32x4_t n) { return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(m), vreinterpretq_s64_s32(n))); };
  x[0] = low(ab0, cd0);
  x[1] = high(ab0, cd0);
  x[2] = low(ab1, cd1);
  x[3] = high(ab1, cd1);
}
BAO_INLINE void load_rows32(const uint8_t* p, int64_t s, vi x[8]) {
  load_rows(p, s, x);
  load_rows(p + 16, s, x + 4);
}
template <bool SIGNED> BAO_INLINE vi dot4(vi sum, vi w, const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(four)), y = vreinterpretq_s8_s32(w);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, y, x);
#else
  int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(y), vget_low_s8(x))), high = vpaddlq_s16(vmull_s8(vget_high_s8(y), vget_high_s8(x)));
  return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
}

#else  // SSE4.2
constexpr bool UNSIGNED_BYTES = true, SIGNED_WIDE = true;
constexpr int MAX_ROWS = 4;
using table_t = __m128i;
BAO_INLINE vi iload(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
BAO_INLINE void istore(void* p, vi x) { _mm_storeu_si128(static_cast<__m128i*>(p), x); }
BAO_INLINE vi iset(uint32_t x) { return _mm_set1_epi32(int32_t(x)); }
BAO_INLINE vi iand(vi a, vi b) { return _mm_and_si128(a, b); }
BAO_INLINE vi ior(vi a, vi b) { return _mm_or_si128(a, b); }
BAO_INLINE vi ixor(vi a, vi b) { return _mm_xor_si128(a, b); }
BAO_INLINE vi iadd(vi a, vi b) { return _mm_add_epi32(a, b); }
BAO_INLINE vi isub(vi a, vi b) { return _mm_sub_epi32(a, b); }
BAO_INLINE vi isub8(vi a, vi b) { return _mm_sub_epi8(a, b); }
BAO_INLINE vi imul(vi a, vi b) { return _mm_mullo_epi32(a, b); }
BAO_INLINE vi imax(vi a, vi b) { return _mm_max_epi32(a, b); }
template <int N> BAO_INLINE vi ishr(vi a) { return _mm_srli_epi32(a, N); }
template <int N> BAO_INLINE vi isar(vi a) { return _mm_srai_epi32(a, N); }
template <int N> BAO_INLINE vi ishl(vi a) { return _mm_slli_epi32(a, N); }
BAO_INLINE vf ifloat_bits(vi a) { return _mm_castsi128_ps(a); }
BAO_INLINE vi ibits(vf a) { return _mm_castps_si128(a); }
BAO_INLINE vf ihalf(vi a) {
  int16_t h[8];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(h), _mm_packus_epi32(a, a));
  return vload_f16(h);
}
BAO_INLINE table_t itable(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); }
BAO_INLINE vi ilookup(table_t t, vi index) { return _mm_shuffle_epi8(t, index); }
BAO_INLINE void load_rows(const uint8_t* p, int64_t s, vi x[4]) {
  __m128i a = iload(p), b = iload(p + s), c = iload(p + 2 * s), d = iload(p + 3 * s);
  __m128i ab0 = _mm_unpacklo_epi32(a, b), ab1 = _mm_unpackhi_epi32(a, b), cd0 = _mm_unpacklo_epi32(c, d), cd1 = _mm_unpackhi_epi32(c, d);
  x[0] = _mm_unpacklo_epi64(ab0, cd0);
  x[1] = _mm_unpackhi_epi64(ab0, cd0);
  x[2] = _mm_unpacklo_epi64(ab1, cd1);
  x[3] = _mm_unpackhi_epi64(ab1, cd1);
}
BAO_INLINE void load_rows32(const uint8_t* p, int64_t s, vi x[8]) {
  load_rows(p, s, x);
  load_rows(p + 16, s, x + 4);
}
// As on AVX2: neither form can saturate.
template <bool SIGNED> BAO_INLINE vi dot4(vi sum, vi w, const int8_t* a) {
  int32_t four;
  __builtin_memcpy(&four, a, 4);
  __m128i x = _mm_set1_epi32(four);
  __m128i pairs = SIGNED ? _mm_maddubs_epi16(_mm_abs_epi8(w), _mm_sign_epi8(x, w)) : _mm_maddubs_epi16(w, x);
  return _mm_add_epi32(sum, _mm_madd_epi16(pairs, _mm_set1_epi16(1)));
}
#endif

// The four bytes of each lane, as a mask or a constant.
BAO_INLINE vi ibytes(uint8_t b) { return iset(b * 0x01010101u); }
