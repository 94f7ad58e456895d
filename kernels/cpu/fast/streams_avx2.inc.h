// Streams on AVX2: a tile is two rows of each place, one after the other. Included by streams.inc.h.

// The lower half of a vector belongs to places 0 and 1, the upper one to 2 and 3: 16 bytes of one place in each.
BAO_INLINE vi load_places(const uint8_t* p, int64_t apart) {
  auto at = [](const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(at(p)), at(p + 2 * apart), 1);
}
// The dword at p in its first lane of each half.
BAO_INLINE vi load_dwords(const uint8_t* p, int64_t apart) {
  auto at = [](const uint8_t* p) { return _mm_loadu_si32(p); };
  return _mm256_inserti128_si256(_mm256_castsi128_si256(at(p)), at(p + 2 * apart), 1);
}
BAO_INLINE vi load_twice(const void* p) { return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
BAO_INLINE vi twice(__m128i x) { return _mm256_broadcastsi128_si256(x); }
BAO_INLINE vf twice(__m128 x) { return _mm256_set_m128(x, x); }
BAO_INLINE vf halves(float low, float high) { return _mm256_set_m128(_mm_set1_ps(high), _mm_set1_ps(low)); }
BAO_INLINE vi dots16(vi weights, vi activations) { return _mm256_maddubs_epi16(weights, activations); }  // two products, as one sum of 16 bits
BAO_INLINE vi iadd16(vi a, vi b) { return _mm256_add_epi16(a, b); }
BAO_INLINE vi neighbours16(vi a, vi b) { return _mm256_hadd_epi16(a, b); }
BAO_INLINE vi neighbours32(vi a, vi b) { return _mm256_hadd_epi32(a, b); }
BAO_INLINE vi pair_sums(vi a) { return _mm256_madd_epi16(a, _mm256_set1_epi16(1)); }
// Sums as neighbours leave them, [first, then second group of places 0 and 1 | of 2 and 3], in the order of a step: four places of the first group,
// then of the second.
BAO_INLINE vi by_group(vi x) { return _mm256_permute4x64_epi64(x, 0xD8); }

// x[t] = dword t of the 16 bytes of each place, twice.
BAO_INLINE void load_heads(const uint8_t* p, int64_t apart, vi x[4]) {
  auto at = [&](int64_t r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + r * apart)); };
  __m128i a = at(0), b = at(1), c = at(2), d = at(3);
  __m128i ab0 = _mm_unpacklo_epi32(a, b), ab1 = _mm_unpackhi_epi32(a, b), cd0 = _mm_unpacklo_epi32(c, d), cd1 = _mm_unpackhi_epi32(c, d);
  x[0] = twice(_mm_unpacklo_epi64(ab0, cd0)), x[1] = twice(_mm_unpackhi_epi64(ab0, cd0));
  x[2] = twice(_mm_unpacklo_epi64(ab1, cd1)), x[3] = twice(_mm_unpackhi_epi64(ab1, cd1));
}
// The half-precision numbers at p of each place, in the lower half, and at q in the upper one.
BAO_INLINE vf load_factors(const uint8_t* p, const uint8_t* q, int64_t apart) {
  auto at = [&](const uint8_t* p, int64_t r) {
    uint16_t x;
    __builtin_memcpy(&x, p + r * apart, 2);
    return short(x);
  };
  return _mm256_cvtph_ps(_mm_setr_epi16(at(p, 0), at(p, 1), at(p, 2), at(p, 3), at(q, 0), at(q, 1), at(q, 2), at(q, 3)));
}
// Byte 2 * PAIR % 4 of each dword in the lower half, the one after it in the upper half; the same with its sign.
template <int PAIR> BAO_INLINE vf two_bytes(vi x) {
  const vi by = PAIR % 2 ? _mm256_setr_epi32(16, 16, 16, 16, 24, 24, 24, 24) : _mm256_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8);
  return vfloat(iand(_mm256_srlv_epi32(x, by), iset(255)));
}
template <int PAIR> BAO_INLINE vf two_signed_bytes(vi x) {
  const vi by = PAIR % 2 ? _mm256_setr_epi32(8, 8, 8, 8, 0, 0, 0, 0) : _mm256_setr_epi32(24, 24, 24, 24, 16, 16, 16, 16);
  return vfloat(isar<24>(_mm256_sllv_epi32(x, by)));
}

// Dot products of two groups from sums of eight products. 16 products of up to 15 * 127 fit into 16 bits, of 31 * 127 (FIFTH) only eight do.
template <bool FIFTH> BAO_INLINE vi two_groups(vi first, vi second) {
  return by_group(FIFTH ? neighbours32(pair_sums(first), pair_sums(second)) : pair_sums(neighbours16(first, second)));
}

// Two groups, one after the other: dot_end of four outputs. d, sum: of the activations of each group.
BAO_INLINE __m128 lower(vf x) { return _mm256_castps256_ps128(x); }
BAO_INLINE __m128 upper(vf x) { return _mm256_extractf128_ps(x, 1); }
template <bool MINIMUM> BAO_INLINE __m128 two_dot_ends(__m128 sum, vi dot, vf scale, vf minimum, vf d, float first, float second) {
  vf f = vfloat(dot), factor = vmul(scale, d);
  sum = _mm_fmadd_ps(lower(f), lower(factor), sum);
  if (MINIMUM) sum = _mm_fmadd_ps(lower(minimum), _mm_set1_ps(first), sum);
  sum = _mm_fmadd_ps(upper(f), upper(factor), sum);
  return MINIMUM ? _mm_fmadd_ps(upper(minimum), _mm_set1_ps(second), sum) : sum;
}

// block<ROWS>: sum[r] += COLUMNS columns of a row of each place times a[r].
template <class T> struct Places;

// Two groups of 32 columns.
template <> struct Places<UnpackQ8_0> {
  static constexpr int COLUMNS = 64;
  template <int ROWS> static BAO_INLINE void block(const uint8_t* p, int64_t apart, const ActBlock* const* a, __m128* sum) {
    constexpr int BYTES = UnpackQ8_0::BYTES;
    fetch_stream<2 * BYTES>(p, apart);
    vi x[ROWS][2][2];
    unroll<2>([&](auto group) {
      constexpr int G = decltype(group)::value;
      unroll<2>([&](auto row) {
        constexpr int P = decltype(row)::value;
        const uint8_t* at = p + P * apart + G * BYTES + 2;
        vi w[2] = {load_places(at, apart), load_places(at + 16, apart)};
        vi size[2] = {_mm256_abs_epi8(w[0]), _mm256_abs_epi8(w[1])};
        for (int r = 0; r < ROWS; r++) {
          const int8_t* q = a[r][G].q;
          x[r][G][P] = iadd(pair_sums(dots16(size[0], _mm256_sign_epi8(load_twice(q), w[0]))), pair_sums(dots16(size[1], _mm256_sign_epi8(load_twice(q + 16), w[1]))));
        }
      });
    });
    vf scale = load_factors(p, p + BYTES, apart);
    for (int r = 0; r < ROWS; r++) {
      vi dot = by_group(neighbours32(neighbours32(x[r][0][0], x[r][0][1]), neighbours32(x[r][1][0], x[r][1][1])));
      sum[r] = two_dot_ends<false>(sum[r], dot, scale, vzero(), halves(a[r][0].d, a[r][1].d), 0, 0);
    }
  }
};

// Q4_0 and Q5_0: two groups. 16 bytes hold half a group in their low nibbles and half in their high ones; the fifth bits come before them, in a dword.
template <class T> struct PlacesOfNibbles {
  static constexpr int COLUMNS = 64, BYTES = T::BYTES;
  static constexpr bool FIFTH = BYTES == 22;
  // Bits 16 * HALF ... of the dword of each half of x as bit 4 of 16 bytes.
  template <int HALF> static BAO_INLINE vi fifth(vi x) {
    const vi bytes = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0101010101010101 * (2 * HALF + 1), 0x0101010101010101 * (2 * HALF)));
    const vi bits = _mm256_set1_epi64x(int64_t(0x8040201008040201u));
    return iand(_mm256_cmpeq_epi8(iand(_mm256_shuffle_epi8(x, bytes), bits), bits), ibytes(16));
  }
  template <int ROWS> static BAO_INLINE void block(const uint8_t* p, int64_t apart, const ActBlock* const* a, __m128* sum) {
    fetch_stream<2 * BYTES>(p, apart);
    vi x[ROWS][2][2];
    unroll<2>([&](auto group) {
      constexpr int G = decltype(group)::value;
      unroll<2>([&](auto row) {
        constexpr int P = decltype(row)::value;
        const uint8_t* at = p + P * apart + G * BYTES;
        vi q = load_places(at + BYTES - 16, apart), low = low_bits<4>(q), high = low_bits<4>(ishr<4>(q));
        if constexpr (FIFTH) {
          vi set = load_dwords(at + 2, apart);
          low = ior(low, fifth<0>(set)), high = ior(high, fifth<1>(set));
        }
        for (int r = 0; r < ROWS; r++) x[r][G][P] = iadd16(dots16(low, load_twice(a[r][G].q)), dots16(high, load_twice(a[r][G].q + 16)));
      });
    });
    vf scale = load_factors(p, p + BYTES, apart);
    for (int r = 0; r < ROWS; r++) {
      vi dot = two_groups<FIFTH>(neighbours16(x[r][0][0], x[r][0][1]), neighbours16(x[r][1][0], x[r][1][1]));
      vi less = ishl<log2_of<T::OFFSET>()>(_mm256_set_m128i(_mm_set1_epi32(a[r][1].less32), _mm_set1_epi32(a[r][0].less32)));
      sum[r] = two_dot_ends<false>(sum[r], iadd(dot, less), scale, vzero(), halves(a[r][0].d, a[r][1].d), 0, 0);
    }
  }
};
template <> struct Places<UnpackQ4_0> : PlacesOfNibbles<UnpackQ4_0> {};
template <> struct Places<UnpackQ5_0> : PlacesOfNibbles<UnpackQ5_0> {};

// Q4_K and Q5_K: 32 bytes hold a group in their low nibbles and the next one in their high ones.
template <class T> struct PlacesOfPairs {
  static constexpr int COLUMNS = 256;
  static constexpr bool FIFTH = T::BYTES != 144;

  template <int ROWS> static BAO_INLINE void block(const uint8_t* p, int64_t apart, const ActBlock* const* a, __m128* sum) {
    vi head[4];
    load_heads(p, apart, head);
    const vf d = low_half(head[0]), dmin = negated(high_half(head[0]));
    const vi scales[2] = {iand(head[1], ibytes(63)), ior(low_bits<4>(head[3]), iand(ishr<2>(head[1]), ibytes(0x30)))};
    const vi minimums[2] = {iand(head[2], ibytes(63)), ior(low_bits<4>(ishr<4>(head[3])), iand(ishr<2>(head[2]), ibytes(0x30)))};
    unroll<4>([&](auto pair) {
      constexpr int G = 2 * decltype(pair)::value;
      fetch_stream<T::BYTES / 4>(p + T::BYTES / 4 * (G / 2), apart);
      vi x[ROWS][2], y[ROWS][2];
      unroll<2>([&](auto row) {
        constexpr int P = decltype(row)::value;
        const uint8_t* at = p + P * apart + 16;
        unroll<2>([&](auto half) {
          constexpr int H = decltype(half)::value;
          vi q = load_places(at + (FIFTH ? 32 : 0) + 16 * G + 16 * H, apart), low = low_bits<4>(q), high = low_bits<4>(ishr<4>(q));
          if constexpr (FIFTH) {
            vi bits = ishr<G>(load_places(at + 16 * H, apart));
            low = ior(low, iand(ishl<4>(bits), ibytes(16))), high = ior(high, iand(ishl<3>(bits), ibytes(16)));
          }
          for (int r = 0; r < ROWS; r++) {
            vi u = dots16(low, load_twice(a[r][G].q + 16 * H)), v = dots16(high, load_twice(a[r][G + 1].q + 16 * H));
            x[r][P] = H ? iadd16(x[r][P], u) : u, y[r][P] = H ? iadd16(y[r][P], v) : v;
          }
        });
      });
      const vf scale = vmul(d, two_bytes<G / 2>(scales[G / 4])), minimum = vmul(dmin, two_bytes<G / 2>(minimums[G / 4]));
      for (int r = 0; r < ROWS; r++) {
        vi first = neighbours16(x[r][0], x[r][1]), second = neighbours16(y[r][0], y[r][1]);
        vi dot = two_groups<FIFTH>(first, second);
        sum[r] = two_dot_ends<true>(sum[r], dot, scale, minimum, halves(a[r][G].d, a[r][G + 1].d), a[r][G].sum32, a[r][G + 1].sum32);
      }
    });
  }
};
template <> struct Places<UnpackQ4_K> : PlacesOfPairs<UnpackQ4_K> {};
template <> struct Places<UnpackQ5_K> : PlacesOfPairs<UnpackQ5_K> {};

// Q6_K: of 128 columns, 32 bytes hold the low bits of quarters 0 and 2, the next 32 those of 1 and 3, and 32 further ones all upper bits.
template <> struct Places<UnpackQ6_K> {
  static constexpr int COLUMNS = 256;
  template <int ROWS> static BAO_INLINE void block(const uint8_t* p, int64_t apart, const ActBlock* const* a, __m128* sum) {
    vi scales[4];
    load_heads(p + 192, apart, scales);
    const vf d = load_factors(p + 208, p + 208, apart);
    unroll<2>([&](auto half) {
      constexpr int H = decltype(half)::value;
      vi dot[ROWS][4];  // of each quarter
      unroll<2>([&](auto part) {
        constexpr int C = decltype(part)::value;  // columns 16 * C ... of a quarter
        fetch_stream<64>(p + 64 * (2 * H + C), apart);
        vi x[ROWS][4][2];
        unroll<2>([&](auto row) {
          constexpr int P = decltype(row)::value;
          const uint8_t* at = p + P * apart + 16 * C;
          vi even = load_places(at + 64 * H, apart), odd = load_places(at + 64 * H + 32, apart), bits = load_places(at + 128 + 32 * H, apart);
          const vi w[4] = {ior(low_bits<4>(even), iand(ishl<4>(bits), ibytes(48))), ior(low_bits<4>(odd), iand(ishl<2>(bits), ibytes(48))),
                           ior(low_bits<4>(ishr<4>(even)), iand(bits, ibytes(48))), ior(low_bits<4>(ishr<4>(odd)), iand(ishr<2>(bits), ibytes(48)))};
          for (int r = 0; r < ROWS; r++)
            for (int k = 0; k < 4; k++) x[r][k][P] = dots16(w[k], load_twice(a[r][4 * H + k].q + 16 * C));
        });
        for (int r = 0; r < ROWS; r++) {
          for (int k = 0; k < 4; k++) {
            vi y = pair_sums(neighbours16(x[r][k][0], x[r][k][1]));
            dot[r][k] = C ? by_group(neighbours32(dot[r][k], y)) : y;
          }
        }
      });
      unroll<4>([&](auto quarter) {
        constexpr int K = decltype(quarter)::value, J = 4 * H + K;
        const vf scale = vmul(d, two_signed_bytes<J>(scales[J / 2]));
        for (int r = 0; r < ROWS; r++) {
          const ActBlock& b = a[r][J];
          vi less = ishl<5>(_mm256_set_m128i(_mm_set1_epi32(b.less16[1]), _mm_set1_epi32(b.less16[0])));
          sum[r] = two_dot_ends<false>(sum[r], iadd(dot[r][K], less), scale, vzero(), vset1(b.d), 0, 0);
        }
      });
    });
  }
};

struct StreamScratch {};

// acc [ROWS][W] = two rows of each place times ROWS activation rows: first the places' first rows, then their second ones.
template <class T, int ROWS> __attribute__((noinline)) void tile_places(StreamScratch&, const uint8_t* data, int64_t apart, int64_t row_bytes, int64_t columns, const void* const* rows, float* acc) {
  for (int h = 0; h < PLACE_ROWS; h++) {
    const uint8_t* p = data + h * row_bytes;
    const ActBlock* a[ROWS];
    __m128 sum[ROWS];
    for (int r = 0; r < ROWS; r++) a[r] = static_cast<const ActBlock*>(rows[r]), sum[r] = _mm_setzero_ps();
    constexpr int COLUMNS = Places<T>::COLUMNS;
    for (int64_t k = 0; k < columns; k += COLUMNS, p += COLUMNS / T::ELEMENTS * T::BYTES) {
      Places<T>::template block<ROWS>(p, apart, a, sum);
      for (int r = 0; r < ROWS; r++) a[r] += COLUMNS / 32;
    }
    for (int r = 0; r < ROWS; r++) _mm_storeu_ps(acc + r * W + h * PLACES, sum[r]);
  }
}
// A tile's outputs, where the places are `apart` outputs from each other.
BAO_INLINE void store_places(float* dst, const float* acc, int64_t apart) {
  for (int i = 0; i < W; i++) dst[i % PLACES * apart + i / PLACES] = acc[i];
}
