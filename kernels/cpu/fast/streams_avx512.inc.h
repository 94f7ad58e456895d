// Streams on AVX-512: a tile is four rows of each place. In vectors of weights a 128-bit lane belongs to a place; in those of outputs the lane's
// four dwords are the rows of the tile there. Integer dot products of one row after the other are kept, and with the last row floats are added for
// all of them at once: row by row, each addition would wait for the one before it. Included by streams.inc.h.
static_assert(PLACES == 4 && PLACE_ROWS == 4, "a lane for each place, a dword for each of its rows");

// What the integer part leaves of up to COLUMNS columns.
struct StreamScratch {
  static constexpr int64_t COLUMNS = 12288;
  alignas(64) int32_t dots[2][COLUMNS / 64][PLACE_ROWS][W];  // [activation row][four groups, or one][row][place, group]
  alignas(64) uint8_t heads[COLUMNS / 256][PLACE_ROWS][64];  // [block][row][place]: 16 bytes
  alignas(64) uint16_t d[COLUMNS / 32 + 12][W];              // [block][place, row]; the last units of a row may be of one block
};

BAO_INLINE vi load_places(const uint8_t* p, int64_t apart) {
  auto at = [&](int64_t r) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + r * apart)); };
  vi x = _mm512_mask_broadcast_i32x4(_mm512_castsi128_si512(at(0)), 0x00F0, at(1));
  return _mm512_mask_broadcast_i32x4(_mm512_mask_broadcast_i32x4(x, 0x0F00, at(2)), 0xF000, at(3));
}
// The same 16 bytes for all places.
BAO_INLINE vi load_lanes(const void* p) { return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p))); }
// sum + four products of each dword.
BAO_INLINE vi dots(vi sum, vi weights, vi activations) { return _mm512_dpbusd_epi32(sum, weights, activations); }
// low | (high & mask)
BAO_INLINE vi with_bits(vi low, vi high, vi mask) { return _mm512_ternarylogic_epi32(low, high, mask, 0xF8); }
BAO_INLINE uint16_t load16(const uint8_t* p) {
  uint16_t x;
  __builtin_memcpy(&x, p, 2);
  return x;
}
BAO_INLINE void keep_d(uint16_t* d, int row, const uint8_t* p, int64_t apart) {
  for (int r = 0; r < PLACES; r++) d[r * PLACE_ROWS + row] = load16(p + r * apart);
}

// Sums of neighbours in each lane, a's before b's. Packed: if values fit into 16 bits.
template <bool PACKED> BAO_INLINE vi neighbours(vi a, vi b) {
  if constexpr (PACKED) return _mm512_madd_epi16(_mm512_packs_epi32(a, b), _mm512_set1_epi16(1));
  auto pick = [&](auto dwords) { return ibits(_mm512_shuffle_ps(ifloat_bits(a), ifloat_bits(b), decltype(dwords)::value)); };
  return iadd(pick(index_t<0x88>()), pick(index_t<0xDD>()));
}
// Dword i of each lane: the sum of that lane of x[i]. LARGEST: of a dword of x.
template <int LARGEST> BAO_INLINE vi lane_sums(const vi x[4]) {
  constexpr bool once = LARGEST < 1 << 15, twice = 2 * LARGEST < 1 << 15;
  return neighbours<twice>(neighbours<once>(x[0], x[1]), neighbours<once>(x[2], x[3]));
}
// Dword i of x[j] becomes dword j of out[i], in each lane.
BAO_INLINE void transpose(const void* rows, vi out[4]) {
  const vi* x = static_cast<const vi*>(rows);
  vi ab0 = _mm512_unpacklo_epi32(x[0], x[1]), ab1 = _mm512_unpackhi_epi32(x[0], x[1]), cd0 = _mm512_unpacklo_epi32(x[2], x[3]), cd1 = _mm512_unpackhi_epi32(x[2], x[3]);
  out[0] = _mm512_unpacklo_epi64(ab0, cd0), out[1] = _mm512_unpackhi_epi64(ab0, cd0);
  out[2] = _mm512_unpacklo_epi64(ab1, cd1), out[3] = _mm512_unpackhi_epi64(ab1, cd1);
}
// The end of group J of a unit: dot, [place, row], with a's offsets.
template <class T, int J> BAO_INLINE vf add_group(vf sum, vi dot, vf scale, vf minimum, const ActBlock* a) {
  constexpr int BLOCK = J * T::GROUP / 32, HALF = T::GROUP == 16 ? J % 2 : 0;
  dot = iadd(dot, dot_start<T::GROUP, kind_of<T>(), log2_of<T::OFFSET>()>(a + BLOCK, HALF));
  return dot_end<T::GROUP, T::MINIMUM>(sum, dot, scale, minimum, a + BLOCK, HALF);
}

// integers: the dot products of row `row` of each place, COLUMNS columns from p. floats: sum[r] += all rows. unit, a: where these columns are.
template <class T> struct Places;

// Q4_K and Q5_K: 32 bytes hold a group in their low nibbles and the next one in their high ones.
template <class T> struct PlacesOfPairs {
  static constexpr int COLUMNS = 256, LEAST = COLUMNS;
  static constexpr bool FIFTH = T::BYTES != 144;
  // Bit GROUP of each byte as bit 4, among others.
  template <int GROUP> static BAO_INLINE vi fifth(vi x) {
    if constexpr (GROUP < 4) return ishl<4 - GROUP>(x);
    else return ishr<GROUP - 4>(x);
  }
  template <int ROWS, int> static BAO_INLINE void integers(StreamScratch& s, int64_t unit, int row, const uint8_t* p, int64_t apart, const ActBlock* const* a) {
    istore(s.heads[unit][row], load_places(p, apart));
    vi bits[2] = {};
    if constexpr (FIFTH) bits[0] = load_places(p + 16, apart), bits[1] = load_places(p + 32, apart);
    unroll<2>([&](auto quad) {
      constexpr int Q = decltype(quad)::value;
      fetch_stream<Q ? T::BYTES - 128 : 128>(p + 128 * Q, apart);
      vi x[ROWS][4];
      unroll<4>([&](auto part) {
        constexpr int P = decltype(part)::value / 2, H = decltype(part)::value % 2, G = 4 * Q + 2 * P;
        vi q = load_places(p + (FIFTH ? 48 : 16) + 16 * G + 16 * H, apart), low = low_bits<4>(q), high = low_bits<4>(ishr<4>(q));
        if constexpr (FIFTH) low = with_bits(low, fifth<G>(bits[H]), ibytes(16)), high = with_bits(high, fifth<G + 1>(bits[H]), ibytes(16));
        for (int r = 0; r < ROWS; r++) {
          x[r][2 * P] = dots(H ? x[r][2 * P] : iset(0), low, load_lanes(a[r][G].q + 16 * H));
          x[r][2 * P + 1] = dots(H ? x[r][2 * P + 1] : iset(0), high, load_lanes(a[r][G + 1].q + 16 * H));
        }
      });
      for (int r = 0; r < ROWS; r++) istore(s.dots[r][2 * unit + Q][row], lane_sums<8 * (FIFTH ? 31 : 15) * 127>(x[r]));
    });
  }
  template <int ROWS, int> static BAO_INLINE void floats(const StreamScratch& s, int64_t unit, const ActBlock* const* a, vf* sum) {
    vi head[4];
    transpose(s.heads[unit], head);
    const vf d = low_half(head[0]), dmin = negated(high_half(head[0]));
    const vi scales[2] = {iand(head[1], ibytes(63)), with_bits(low_bits<4>(head[3]), ishr<2>(head[1]), ibytes(0x30))};
    const vi minimums[2] = {iand(head[2], ibytes(63)), with_bits(low_bits<4>(ishr<4>(head[3])), ishr<2>(head[2]), ibytes(0x30))};
    unroll<2>([&](auto quad) {
      constexpr int Q = decltype(quad)::value;
      vi dot[ROWS][4];
      for (int r = 0; r < ROWS; r++) transpose(s.dots[r][2 * unit + Q], dot[r]);
      unroll<4>([&](auto group) {
        constexpr int G = decltype(group)::value;
        auto byte = [](vi x) { return vfloat(iand(ishr<8 * G>(x), iset(255))); };
        const vf scale = vmul(d, byte(scales[Q])), minimum = vmul(dmin, byte(minimums[Q]));
        for (int r = 0; r < ROWS; r++) sum[r] = add_group<T, 4 * Q + G>(sum[r], dot[r][G], scale, minimum, a[r]);
      });
    });
  }
};
template <> struct Places<UnpackQ4_K> : PlacesOfPairs<UnpackQ4_K> {};
template <> struct Places<UnpackQ5_K> : PlacesOfPairs<UnpackQ5_K> {};

// Q6_K: of 128 columns, 32 bytes hold the low bits of quarters 0 and 2, the next 32 those of 1 and 3, and 32 further ones all upper bits.
template <> struct Places<UnpackQ6_K> {
  static constexpr int COLUMNS = 256, LEAST = COLUMNS;
  template <int ROWS, int> static BAO_INLINE void integers(StreamScratch& s, int64_t unit, int row, const uint8_t* p, int64_t apart, const ActBlock* const* a) {
    istore(s.heads[unit][row], load_places(p + 192, apart));
    keep_d(s.d[unit], row, p + 208, apart);
    unroll<2>([&](auto half) {
      constexpr int H = decltype(half)::value;
      fetch_stream<H ? UnpackQ6_K::BYTES - 128 : 128>(p + 128 * H, apart);
      vi x[ROWS][8];  // of each quarter, 16 columns after 16
      unroll<2>([&](auto part) {
        constexpr int C = decltype(part)::value;
        const uint8_t* at = p + 16 * C;
        vi even = load_places(at + 64 * H, apart), odd = load_places(at + 64 * H + 32, apart), bits = load_places(at + 128 + 32 * H, apart);
        const vi upper = ibytes(48);
        const vi w[4] = {with_bits(low_bits<4>(even), ishl<4>(bits), upper), with_bits(low_bits<4>(odd), ishl<2>(bits), upper),
                         with_bits(low_bits<4>(ishr<4>(even)), bits, upper), with_bits(low_bits<4>(ishr<4>(odd)), ishr<2>(bits), upper)};
        for (int r = 0; r < ROWS; r++)
          for (int k = 0; k < 4; k++) x[r][2 * k + C] = dots(iset(0), w[k], load_lanes(a[r][4 * H + k].q + 16 * C));
      });
      for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < 2; i++) istore(s.dots[r][4 * unit + 2 * H + i][row], lane_sums<4 * 63 * 127>(x[r] + 4 * i));
    });
  }
  template <int ROWS, int> static BAO_INLINE void floats(const StreamScratch& s, int64_t unit, const ActBlock* const* a, vf* sum) {
    vi scales[4];
    transpose(s.heads[unit], scales);
    const vf d = vload_f16(s.d[unit]);
    unroll<4>([&](auto quad) {
      constexpr int Q = decltype(quad)::value;
      vi dot[ROWS][4];
      for (int r = 0; r < ROWS; r++) transpose(s.dots[r][4 * unit + Q], dot[r]);
      unroll<4>([&](auto group) {
        constexpr int G = decltype(group)::value;
        const vf scale = vmul(d, vfloat(isar<24>(ishl<24 - 8 * G>(scales[Q]))));
        for (int r = 0; r < ROWS; r++) sum[r] = add_group<UnpackQ6_K, 4 * Q + G>(sum[r], dot[r][G], scale, vzero(), a[r]);
      });
    });
  }
};

// Blocks of a group: four of them, or one at a time at the end of a row.
template <class T> struct PlacesOfGroups {
  static constexpr int COLUMNS = 128, LEAST = 32;
  // The halves of a block as unsigned bytes with the offset in.
  static BAO_INLINE void halves(const uint8_t* p, int64_t apart, vi w[2]) {
    if constexpr (T::OFFSET == 128) {  // Q8_0
      w[0] = ixor(load_places(p + 2, apart), ibytes(0x80)), w[1] = ixor(load_places(p + 18, apart), ibytes(0x80));
    } else {
      vi q = load_places(p + T::BYTES - 16, apart);
      w[0] = low_bits<4>(q), w[1] = low_bits<4>(ishr<4>(q));
      if constexpr (T::OFFSET == 16) {  // Q5_0: bits 16 * h ... of the dword at byte 2 are bit 4 of half h
        const vi head = load_places(p, apart), bit = _mm512_broadcast_i32x4(_mm_set1_epi64x(int64_t(0x8040201008040201u)));
        for (int h = 0; h < 2; h++) {
          const __m128i byte = _mm_set_epi64x(0x0101010101010101 * (2 * h + 3), 0x0101010101010101 * (2 * h + 2));
          w[h] = _mm512_mask_add_epi8(w[h], _mm512_test_epi8_mask(_mm512_shuffle_epi8(head, _mm512_broadcast_i32x4(byte)), bit), w[h], ibytes(16));
        }
      }
    }
  }
  template <int ROWS, int GROUPS> static BAO_INLINE void integers(StreamScratch& s, int64_t unit, int row, const uint8_t* p, int64_t apart, const ActBlock* const* a) {
    fetch_stream<GROUPS * T::BYTES>(p, apart);
    vi x[ROWS][4];
    for (int r = 0; r < ROWS; r++)
      for (int g = GROUPS; g < 4; g++) x[r][g] = iset(0);
    unroll<GROUPS>([&](auto group) {
      constexpr int G = decltype(group)::value;
      vi w[2];
      halves(p + G * T::BYTES, apart, w);
      keep_d(s.d[4 * unit + G], row, p + G * T::BYTES, apart);
      for (int r = 0; r < ROWS; r++) x[r][G] = dots(dots(iset(0), w[0], load_lanes(a[r][G].q)), w[1], load_lanes(a[r][G].q + 16));
    });
    for (int r = 0; r < ROWS; r++) istore(s.dots[r][unit][row], lane_sums<8 * (2 * T::OFFSET - 1) * 127>(x[r]));
  }
  template <int ROWS, int GROUPS> static BAO_INLINE void floats(const StreamScratch& s, int64_t unit, const ActBlock* const* a, vf* sum) {
    vi dot[ROWS][4];
    for (int r = 0; r < ROWS; r++) transpose(s.dots[r][unit], dot[r]);
    unroll<GROUPS>([&](auto group) {
      constexpr int G = decltype(group)::value;
      const vf scale = vload_f16(s.d[4 * unit + G]);
      for (int r = 0; r < ROWS; r++) sum[r] = add_group<T, G>(sum[r], dot[r][G], scale, vzero(), a[r]);
    });
  }
};
template <> struct Places<UnpackQ8_0> : PlacesOfGroups<UnpackQ8_0> {};
template <> struct Places<UnpackQ4_0> : PlacesOfGroups<UnpackQ4_0> {};
template <> struct Places<UnpackQ5_0> : PlacesOfGroups<UnpackQ5_0> {};

// acc [ROWS][W] = four rows of each place times ROWS activation rows, place after place.
template <class T, int ROWS> __attribute__((noinline)) void tile_places(StreamScratch& s, const uint8_t* data, int64_t apart, int64_t row_bytes, int64_t columns, const void* const* rows, float* acc) {
  constexpr int ALL = Places<T>::COLUMNS, LEAST = Places<T>::LEAST;
  vf sum[ROWS];
  for (int r = 0; r < ROWS; r++) sum[r] = vzero();
  for (int64_t first = 0; first < columns; first += StreamScratch::COLUMNS) {
    const int64_t here = smaller(columns - first, StreamScratch::COLUMNS), units = here / ALL, all = units + here % ALL / LEAST;
    // Calls f(unit, its first column, groups of the unit).
    auto each = [&](auto&& f) {
      for (int64_t u = 0; u < units; u++) f(u, first + u * ALL, index_t<4>());
      if constexpr (LEAST < ALL)
        for (int64_t u = units; u < all; u++) f(u, first + units * ALL + (u - units) * LEAST, index_t<1>());
    };
    for (int row = 0; row < PLACE_ROWS; row++) {
      each([&](int64_t unit, int64_t column, auto groups) {
        constexpr int GROUPS = decltype(groups)::value;
        const ActBlock* a[ROWS];
        for (int r = 0; r < ROWS; r++) a[r] = static_cast<const ActBlock*>(rows[r]) + column / 32;
        Places<T>::template integers<ROWS, GROUPS>(s, unit, row, data + row * row_bytes + column / T::ELEMENTS * T::BYTES, apart, a);
        if (row == PLACE_ROWS - 1) Places<T>::template floats<ROWS, GROUPS>(s, unit, a, sum);  // between loads, since these additions only wait
      });
    }
  }
  for (int r = 0; r < ROWS; r++) vstore(acc + r * W, sum[r]);
}
// A tile's outputs, where the places are `apart` outputs from each other.
BAO_INLINE void store_places(float* dst, const float* acc, int64_t apart) {
  for (int r = 0; r < PLACES; r++) _mm_storeu_ps(dst + r * apart, _mm_loadu_ps(acc + r * PLACE_ROWS));
}
