// Blocks of 256 columns met by one or two activation rows with lanes along the columns, for AVX-512: weights are used as they are
// loaded, and only the dot products of groups are transposed. Integer sums do not depend on their order, and floats are added as everywhere
// (dot_end), so the bits are those of the lanes-are-rows form. Included by dot.inc.h.

// block<ROWS>: sum[r] += W rows of 256 columns, `stride` bytes apart, times a[r], which moves on.
template <class T> struct Columns;
template <class T> constexpr bool along_columns = false;

#if defined(__AVX512F__)
template <> constexpr bool along_columns<UnpackQ4_K> = true;
template <> constexpr bool along_columns<UnpackQ5_K> = true;
template <> constexpr bool along_columns<UnpackQ6_K> = true;

BAO_INLINE vi packed16(vi a, vi b) { return _mm512_packs_epi32(a, b); }
BAO_INLINE vi pair_sums(vi a) { return _mm512_madd_epi16(a, _mm512_set1_epi16(1)); }
template <int PICK> BAO_INLINE vi dwords_of(vi a, vi b) { return ibits(_mm512_shuffle_ps(ifloat_bits(a), ifloat_bits(b), PICK)); }
constexpr int EVEN = 0x88, ODD = 0xDD;  // elements 0 and 2, or 1 and 3, of a, then of b

// Sums of neighbours in each 128-bit lane, a's before b's. Values have to fit into 16 bits.
BAO_INLINE vi neighbours(vi a, vi b) { return pair_sums(packed16(a, b)); }
BAO_INLINE vi neighbours_wide(vi a, vi b) { return iadd(dwords_of<EVEN>(a, b), dwords_of<ODD>(a, b)); }
// Dword i of each 128-bit lane: the sum of that lane of x[i]. Largest: of a value of x.
template <int LARGEST> BAO_INLINE vi lane_sums(const vi x[4]) {
  static_assert(LARGEST < 1 << 15, "packed to 16 bits");
  vi a = neighbours(x[0], x[1]), b = neighbours(x[2], x[3]);
  if constexpr (2 * LARGEST < 1 << 15) return neighbours(a, b);
  else return neighbours_wide(a, b);
}

// Of Q4_K and Q5_K: scales and minimums of W rows; bytes of a dword are four groups.
struct PairsHead {
  vf d, dmin;
  vi scales[2], minimums[2];
  BAO_INLINE PairsHead(const uint8_t* p, int64_t stride) {
    vi x[4];
    load_rows(p, stride, x);
    d = low_half(x[0]), dmin = negated(high_half(x[0]));
    scales[0] = iand(x[1], ibytes(63));
    minimums[0] = iand(x[2], ibytes(63));
    scales[1] = ior(low_bits<4>(x[3]), iand(ishr<2>(x[1]), ibytes(0x30)));
    minimums[1] = ior(low_bits<4>(ishr<4>(x[3])), iand(ishr<2>(x[2]), ibytes(0x30)));
  }
  template <int J> static BAO_INLINE vf value(const vi x[2]) { return vfloat(iand(ishr<8 * (J % 4)>(x[J / 4]), iset(255))); }
  template <int J> BAO_INLINE vf scale() const { return vmul(d, value<J>(scales)); }
  template <int J> BAO_INLINE vf minimum() const { return vmul(dmin, value<J>(minimums)); }
};

BAO_INLINE vi two_halves(vi low, vi high) { return _mm512_inserti64x4(low, _mm512_castsi512_si256(high), 1); }
BAO_INLINE vi load_half(const void* p) { return _mm512_castsi256_si512(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
BAO_INLINE vi load_twice(const void* p) { return _mm512_broadcast_i64x4(_mm256_loadu_si256(static_cast<const __m256i*>(p))); }
// Four products of each dword, as one sum.
BAO_INLINE vi dots(vi weights, vi activations) { return _mm512_dpbusd_epi32(iset(0), weights, activations); }
// low | (high & mask)
BAO_INLINE vi with_bits(vi low, vi high, vi mask) { return _mm512_ternarylogic_epi32(low, high, mask, 0xF8); }
// Bits of a where mask is set, else of b.
BAO_INLINE vi chosen(vi a, vi b, vi mask) { return _mm512_ternarylogic_epi32(a, b, mask, 0xE4); }
template <int PICK> BAO_INLINE vi lanes_of(vi a, vi b) { return _mm512_shuffle_i32x4(a, b, PICK); }

// Q4_K and Q5_K: 64 bytes hold groups g and g + 2 in their low nibbles, g + 1 and g + 3 in their high ones.
template <class T> struct ColumnsOfPairs {
  static constexpr bool FIFTH = T::BYTES != 144;

  // Bit `group` of each byte of x becomes bit 4; the upper half of the vector takes bit `group` + 2.
  template <int GROUP> static BAO_INLINE vi fifth(vi x) {
    static_assert(GROUP % 4 < 2, "no shift in both directions");
    if constexpr (GROUP < 4) return _mm512_sllv_epi64(x, two_halves(_mm512_set1_epi64(4 - GROUP), _mm512_set1_epi64(2 - GROUP)));
    else return _mm512_srlv_epi64(x, two_halves(_mm512_set1_epi64(GROUP - 4), _mm512_set1_epi64(GROUP - 2)));
  }

  template <int ROWS> static BAO_INLINE void block(const uint8_t* p, int64_t stride, Ahead<T>& ahead, const ActBlock** a, vf* sum) {
    constexpr int LARGEST = 4 * (FIFTH ? 31 : 15) * 127;
    vi q[ROWS][4], part[ROWS][4][4];  // q[k]: groups g_k and g_k + 2, where g_k = 0, 1, 4, 5; part[k][quad]: their sums for four rows
    for (int r = 0; r < ROWS; r++) {
      for (int k = 0; k < 4; k++) q[r][k] = two_halves(load_half(a[r][k / 2 * 4 + k % 2].q), load_half(a[r][k / 2 * 4 + k % 2 + 2].q));
    }
    unroll<4>([&](auto quad) {
      constexpr int Q = decltype(quad)::value;
      ahead.fetch();
      ahead.fetch();
      const uint8_t* at = p + 4 * Q * stride + 16;
      unroll<2>([&](auto half) {
        constexpr int H = decltype(half)::value;
        vi low[4], high[4];
        for (int i = 0; i < 4; i++) {
          vi x = iload(at + i * stride + (FIFTH ? 32 : 0) + 64 * H);
          low[i] = low_bits<4>(x), high[i] = low_bits<4>(ishr<4>(x));
          if constexpr (FIFTH) {
            vi bits = load_twice(at + i * stride);
            low[i] = with_bits(low[i], fifth<4 * H>(bits), ibytes(16));
            high[i] = with_bits(high[i], fifth<4 * H + 1>(bits), ibytes(16));
          }
        }
        for (int r = 0; r < ROWS; r++) {
          vi x[4], y[4];
          for (int i = 0; i < 4; i++) x[i] = dots(low[i], q[r][2 * H]), y[i] = dots(high[i], q[r][2 * H + 1]);
          part[r][2 * H][Q] = lane_sums<LARGEST>(x);
          part[r][2 * H + 1][Q] = lane_sums<LARGEST>(y);
        }
      });
    });
    PairsHead head(p, stride);
    for (int r = 0; r < ROWS; r++) {
      vi dot[8];
      for (int k = 0; k < 4; k++) {
        const vi* x = part[r][k];
        vi upper = iadd(lanes_of<EVEN>(x[0], x[1]), lanes_of<ODD>(x[0], x[1])), lower = iadd(lanes_of<EVEN>(x[2], x[3]), lanes_of<ODD>(x[2], x[3]));
        dot[k / 2 * 4 + k % 2] = lanes_of<EVEN>(upper, lower);
        dot[k / 2 * 4 + k % 2 + 2] = lanes_of<ODD>(upper, lower);
      }
      unroll<8>([&](auto j) {
        constexpr int J = decltype(j)::value;
        sum[r] = dot_end<32, true>(sum[r], dot[J], head.template scale<J>(), head.template minimum<J>(), a[r] + J, 0);
      });
      a[r] += 8;
    }
  }
};
template <> struct Columns<UnpackQ4_K> : ColumnsOfPairs<UnpackQ4_K> {};
template <> struct Columns<UnpackQ5_K> : ColumnsOfPairs<UnpackQ5_K> {};

// Q6_K: 64 bytes hold 64 columns in their low nibbles and the next 64 in their high ones; a group of 16 is a 128-bit lane.
template <> struct Columns<UnpackQ6_K> {
  template <int ROWS> static BAO_INLINE void block(const uint8_t* p, int64_t stride, Ahead<UnpackQ6_K>& ahead, const ActBlock** a, vf* sum) {
    // Of the four pairs of bits in a byte two that no shift puts into bits 6 and 7; bits 0 ... 3 are then taken from the nibbles.
    const vi pairs = two_halves(ibytes(0x33), ibytes(0xCC));
    const vi left = two_halves(_mm512_set1_epi64(4), _mm512_set1_epi64(2)), right = two_halves(iset(0), _mm512_set1_epi64(2));
    vi last[8];  // the last 32 bytes of a block: scales from byte 14, and d
    load_rows32(p + 178, stride, last);
    vf d = ihalf(ishr<16>(last[7]));
    unroll<2>([&](auto half) {
      constexpr int H = decltype(half)::value;
      vi q[ROWS][2], less[ROWS][2], part[ROWS][2][4];
      for (int r = 0; r < ROWS; r++) {
        for (int k = 0; k < 2; k++) {
          q[r][k] = two_halves(load_half(a[r][4 * H + 2 * k].q), load_half(a[r][4 * H + 2 * k + 1].q));
          less[r][k] = isub(iset(0), dots(ibytes(32), q[r][k]));  // takes the offset off, and sums then fit into 16 bits
        }
      }
      unroll<4>([&](auto quad) {
        constexpr int Q = decltype(quad)::value;
        ahead.fetch();
        const uint8_t* at = p + 4 * Q * stride;
        vi low[4], high[4];
        for (int i = 0; i < 4; i++) {
          vi x = iload(at + i * stride + 64 * H), bits = iand(load_twice(at + i * stride + 128 + 32 * H), pairs);
          low[i] = chosen(x, _mm512_sllv_epi64(bits, left), ibytes(15));
          high[i] = chosen(ishr<4>(x), _mm512_srlv_epi64(bits, right), ibytes(15));
        }
        for (int r = 0; r < ROWS; r++) {
          vi x[4], y[4];
          for (int i = 0; i < 4; i++) x[i] = _mm512_dpbusd_epi32(less[r][0], low[i], q[r][0]), y[i] = _mm512_dpbusd_epi32(less[r][1], high[i], q[r][1]);
          part[r][0][Q] = lane_sums<4 * 32 * 127>(x);
          part[r][1][Q] = lane_sums<4 * 32 * 127>(y);
        }
      });
      for (int r = 0; r < ROWS; r++) {
        unroll<2>([&](auto k) {
          constexpr int K = decltype(k)::value;
          const vi* x = part[r][K];
          vi even[2] = {lanes_of<EVEN>(x[0], x[1]), lanes_of<EVEN>(x[2], x[3])}, odd[2] = {lanes_of<ODD>(x[0], x[1]), lanes_of<ODD>(x[2], x[3])};
          vi dot[4] = {lanes_of<EVEN>(even[0], even[1]), lanes_of<EVEN>(odd[0], odd[1]), lanes_of<ODD>(even[0], even[1]), lanes_of<ODD>(odd[0], odd[1])};
          unroll<4>([&](auto group) {
            constexpr int G = decltype(group)::value, J = 8 * H + 4 * K + G, AT = J + 14;
            vf scale = vmul(d, vfloat(isar<24>(ishl<24 - 8 * (AT % 4)>(last[AT / 4]))));
            sum[r] = dot_end<16, false>(sum[r], dot[G], scale, vzero(), a[r] + J / 2, J % 2);
          });
        });
      }
    });
    for (int r = 0; r < ROWS; r++) a[r] += 8;
  }
};
#endif
