// Each GGUF block format, unpacked for W weight rows at once: `block` turns one block of every row into
//   q  [elements / 4][W][4 bytes]   integers, offset still in (see lanes.inc.h)
//   s  [elements / GROUP][W]        scale of each group of 16 or 32
//   m  [elements / GROUP][W]        what the format adds to each weight (MINIMUM only)
// so that weight = s * (q - OFFSET) + m, exact up to the last addition. HEAD bytes at HEAD_AT are gathered by the caller into `head`.

template <int OFFSET> BAO_INLINE void store_q(uint8_t*& q, vi x) {
  if constexpr (!UNSIGNED_BYTES) {
    if constexpr (OFFSET == 128) x = ixor(x, ibytes(0x80));
    else if constexpr (OFFSET != 0) x = isub8(x, ibytes(OFFSET));
  } else if constexpr (SIGNED_WIDE && OFFSET == 128) {
    x = ixor(x, ibytes(0x80));
  }
  istore(q, x);
  q += 4 * W;
}
template <int N> BAO_INLINE vi low_bits(vi x) { return iand(x, ibytes((1 << N) - 1)); }
BAO_INLINE void store_scale(float*& s, vf x) {
  vstore(s, x);
  s += W;
}
BAO_INLINE vf low_half(vi x) { return ihalf(iand(x, iset(0xFFFF))); }
BAO_INLINE vf high_half(vi x) { return ihalf(ishr<16>(x)); }
BAO_INLINE vf negated(vf x) { return ifloat_bits(ixor(ibits(x), iset(0x80000000u))); }

// Compile-time loop: shifts are immediates.
template <int I> struct index_t { static constexpr int value = I; };
template <int N, int I = 0, class F> BAO_INLINE void unroll(F&& f) {
  if constexpr (I < N) {
    f(index_t<I>{});
    unroll<N, I + 1>(f);
  }
}

// The four bits of `bits` that belong to dword t, moved to bit `TO` of its four bytes.
template <int T, int TO> BAO_INLINE vi spread_bits(vi bits) {
  return iand(imul(iand(ishr<4 * T>(bits), iset(15)), iset(0x00204081u << TO)), ibytes(1 << TO));
}
// Split-half nibbles of 32 elements at p.
template <int OFFSET> BAO_INLINE void nibbles32(const uint8_t* p, int64_t stride, uint8_t*& q) {
  vi x[4];
  load_rows(p, stride, x);
  for (int t = 0; t < 4; t++) store_q<OFFSET>(q, low_bits<4>(x[t]));
  for (int t = 0; t < 4; t++) store_q<OFFSET>(q, low_bits<4>(ishr<4>(x[t])));
}
template <int OFFSET> BAO_INLINE void nibbles32_table(const uint8_t* p, int64_t stride, table_t table, uint8_t*& q) {
  vi x[4];
  load_rows(p, stride, x);
  for (int t = 0; t < 4; t++) store_q<OFFSET>(q, ilookup(table, low_bits<4>(x[t])));
  for (int t = 0; t < 4; t++) store_q<OFFSET>(q, ilookup(table, low_bits<4>(ishr<4>(x[t]))));
}

struct UnpackQ4_0 {
  static constexpr int ELEMENTS = 32, BYTES = 18, GROUP = 32, OFFSET = 8, HEAD = 2, HEAD_AT = 0;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, uint8_t* q, float* s, float*) {
    store_scale(s, ihalf(head));
    nibbles32<OFFSET>(p + 2, stride, q);
  }
};

struct UnpackQ4_1 {
  static constexpr int ELEMENTS = 32, BYTES = 20, GROUP = 32, OFFSET = 0, HEAD = 4, HEAD_AT = 0;
  static constexpr bool MINIMUM = true;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, uint8_t* q, float* s, float* m) {
    store_scale(s, low_half(head));
    store_scale(m, high_half(head));
    nibbles32<OFFSET>(p + 4, stride, q);
  }
};

template <int OFFSET> BAO_INLINE void fives32(const uint8_t* p, int64_t stride, vi high, uint8_t* q) {
  vi x[4];
  load_rows(p, stride, x);
  unroll<8>([&](auto t) {
    constexpr int T = decltype(t)::value;
    vi low = T < 4 ? x[T & 3] : ishr<4>(x[T & 3]);
    store_q<OFFSET>(q, ior(low_bits<4>(low), spread_bits<T, 4>(high)));
  });
}

struct UnpackQ5_0 {
  static constexpr int ELEMENTS = 32, BYTES = 22, GROUP = 32, OFFSET = 16, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, uint8_t* q, float* s, float*) {
    vi x[4];
    load_rows(p, stride, x);
    store_scale(s, low_half(x[0]));
    fives32<OFFSET>(p + 6, stride, ior(ishr<16>(x[0]), ishl<16>(x[1])), q);
  }
};

struct UnpackQ5_1 {
  static constexpr int ELEMENTS = 32, BYTES = 24, GROUP = 32, OFFSET = 0, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = true;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, uint8_t* q, float* s, float* m) {
    vi x[4];
    load_rows(p, stride, x);
    store_scale(s, low_half(x[0]));
    store_scale(m, high_half(x[0]));
    fives32<OFFSET>(p + 8, stride, x[1], q);
  }
};

struct UnpackQ8_0 {
  static constexpr int ELEMENTS = 32, BYTES = 34, GROUP = 32, OFFSET = 128, HEAD = 2, HEAD_AT = 0;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, uint8_t* q, float* s, float*) {
    store_scale(s, ihalf(head));
    for (int h = 0; h < 2; h++) {
      vi x[4];
      load_rows(p + 2 + 16 * h, stride, x);
      for (int t = 0; t < 4; t++) store_q<OFFSET>(q, ixor(x[t], ibytes(0x80)));
    }
  }
};

struct UnpackQ2_K {
  static constexpr int ELEMENTS = 256, BYTES = 84, GROUP = 16, OFFSET = 0, HEAD = 4, HEAD_AT = 80;
  static constexpr bool MINIMUM = true;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, uint8_t* q, float* s, float* m) {
    vf d = low_half(head), dmin = negated(high_half(head));
    vi scales[4];
    load_rows(p, stride, scales);
    unroll<16>([&](auto j) {
      constexpr int J = decltype(j)::value;
      vi b = ishr<8 * (J % 4)>(scales[J / 4]);
      store_scale(s, vmul(d, vfloat(iand(b, iset(15)))));
      store_scale(m, vmul(dmin, vfloat(iand(ishr<4>(b), iset(15)))));
    });
    for (int half = 0; half < 2; half++) {
      vi x[8];
      load_rows(p + 16 + 32 * half, stride, x);
      load_rows(p + 32 + 32 * half, stride, x + 4);
      unroll<4>([&](auto c) {
        for (int t = 0; t < 8; t++) store_q<OFFSET>(q, low_bits<2>(ishr<2 * decltype(c)::value>(x[t])));
      });
    }
  }
};

struct UnpackQ3_K {
  static constexpr int ELEMENTS = 256, BYTES = 110, GROUP = 16, OFFSET = 4, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, uint8_t* q, float* s, float*) {
    // The last 16 bytes of the block: two of qs, twelve of scales, d.
    vi tail[4], sc[3];
    load_rows(p + 94, stride, tail);
    for (int t = 0; t < 3; t++) sc[t] = ior(ishr<16>(tail[t]), ishl<16>(tail[t + 1]));
    vf d = high_half(tail[3]);
    unroll<16>([&](auto j) {
      constexpr int J = decltype(j)::value;
      vi low = ishr<8 * (J % 4) + (J < 8 ? 0 : 4)>(sc[J % 8 / 4]);
      vi high = ishr<8 * (J % 4) + 2 * (J / 4)>(sc[2]);
      vi scale = isub(ior(iand(low, iset(15)), ishl<4>(iand(high, iset(3)))), iset(32));
      store_scale(s, vmul(d, vfloat(scale)));
    });
    vi mask[8];
    load_rows(p, stride, mask);
    load_rows(p + 16, stride, mask + 4);
    unroll<2>([&](auto half) {
      constexpr int HALF = decltype(half)::value;
      vi x[8];
      load_rows(p + 32 + 32 * HALF, stride, x);
      load_rows(p + 48 + 32 * HALF, stride, x + 4);
      unroll<4>([&](auto c) {
        constexpr int C = decltype(c)::value;
        for (int t = 0; t < 8; t++) store_q<OFFSET>(q, ior(low_bits<2>(ishr<2 * C>(x[t])), ishl<2>(low_bits<1>(ishr<4 * HALF + C>(mask[t])))));
      });
    });
  }
};

// d, dmin and the eight 6-bit scales and minimums that Q4_K and Q5_K share.
BAO_INLINE void k_header(const uint8_t* p, int64_t stride, float* s, float* m) {
  vi x[4];
  load_rows(p, stride, x);
  vf d = low_half(x[0]), dmin = negated(high_half(x[0]));
  unroll<8>([&](auto j) {
    constexpr int J = decltype(j)::value, B = 8 * (J % 4);
    vi scale, minimum;
    if constexpr (J < 4) {
      scale = iand(ishr<B>(x[1]), iset(63));
      minimum = iand(ishr<B>(x[2]), iset(63));
    } else {
      scale = ior(iand(ishr<B>(x[3]), iset(15)), ishl<4>(iand(ishr<B + 6>(x[1]), iset(3))));
      minimum = ior(iand(ishr<B + 4>(x[3]), iset(15)), ishl<4>(iand(ishr<B + 6>(x[2]), iset(3))));
    }
    store_scale(s, vmul(d, vfloat(scale)));
    store_scale(m, vmul(dmin, vfloat(minimum)));
  });
}

struct UnpackQ4_K {
  static constexpr int ELEMENTS = 256, BYTES = 144, GROUP = 32, OFFSET = 0, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = true;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, uint8_t* q, float* s, float* m) {
    k_header(p, stride, s, m);
    for (int pair = 0; pair < 4; pair++) {
      vi x[8];
      load_rows(p + 16 + 32 * pair, stride, x);
      load_rows(p + 32 + 32 * pair, stride, x + 4);
      for (int t = 0; t < 8; t++) store_q<OFFSET>(q, low_bits<4>(x[t]));
      for (int t = 0; t < 8; t++) store_q<OFFSET>(q, low_bits<4>(ishr<4>(x[t])));
    }
  }
};

struct UnpackQ5_K {
  static constexpr int ELEMENTS = 256, BYTES = 176, GROUP = 32, OFFSET = 0, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = true;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, uint8_t* q, float* s, float* m) {
    k_header(p, stride, s, m);
    vi high[8];
    load_rows(p + 16, stride, high);
    load_rows(p + 32, stride, high + 4);
    unroll<4>([&](auto pair) {
      constexpr int P = decltype(pair)::value;
      vi x[8];
      load_rows(p + 48 + 32 * P, stride, x);
      load_rows(p + 64 + 32 * P, stride, x + 4);
      for (int t = 0; t < 8; t++) store_q<OFFSET>(q, ior(low_bits<4>(x[t]), ishl<4>(low_bits<1>(ishr<2 * P>(high[t])))));
      for (int t = 0; t < 8; t++) store_q<OFFSET>(q, ior(low_bits<4>(ishr<4>(x[t])), ishl<4>(low_bits<1>(ishr<2 * P + 1>(high[t])))));
    });
  }
};

struct UnpackQ6_K {
  static constexpr int ELEMENTS = 256, BYTES = 210, GROUP = 16, OFFSET = 32, HEAD = 2, HEAD_AT = 208;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, uint8_t* q, float* s, float*) {
    vf d = ihalf(head);
    vi scales[4];
    load_rows(p + 192, stride, scales);
    unroll<16>([&](auto j) {
      constexpr int J = decltype(j)::value;
      store_scale(s, vmul(d, vfloat(isar<24>(ishl<24 - 8 * (J % 4)>(scales[J / 4])))));
    });
    for (int half = 0; half < 2; half++) {
      vi low[16], high[8];
      for (int i = 0; i < 4; i++) load_rows(p + 64 * half + 16 * i, stride, low + 4 * i);
      for (int i = 0; i < 2; i++) load_rows(p + 128 + 32 * half + 16 * i, stride, high + 4 * i);
      unroll<4>([&](auto k) {
        constexpr int K = decltype(k)::value;
        for (int t = 0; t < 8; t++) {
          vi h = K < 2 ? ishl<4 - 2 * (K & 1)>(high[t]) : ishr<2 * (K & 1)>(high[t]);
          store_q<OFFSET>(q, ior(low_bits<4>(ishr<K < 2 ? 0 : 4>(low[t + 8 * (K & 1)])), iand(h, ibytes(0x30))));
        }
      });
    }
  }
};

// The 16 levels of IQ4, plus 128.
alignas(16) constexpr uint8_t IQ4_LEVELS[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
// Twice the 16 values of E2M1, plus 16.
alignas(16) constexpr uint8_t E2M1_LEVELS[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

struct UnpackIQ4_NL {
  static constexpr int ELEMENTS = 32, BYTES = 18, GROUP = 32, OFFSET = 128, HEAD = 2, HEAD_AT = 0;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, uint8_t* q, float* s, float*) {
    store_scale(s, ihalf(head));
    nibbles32_table<OFFSET>(p + 2, stride, itable(IQ4_LEVELS), q);
  }
};

struct UnpackIQ4_XS {
  static constexpr int ELEMENTS = 256, BYTES = 136, GROUP = 32, OFFSET = 128, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, uint8_t* q, float* s, float*) {
    vi x[4];
    load_rows(p, stride, x);
    vf d = low_half(x[0]);
    unroll<8>([&](auto j) {
      constexpr int J = decltype(j)::value;
      vi scale = isub(ior(iand(ishr<4 * J>(x[1]), iset(15)), ishl<4>(iand(ishr<16 + 2 * J>(x[0]), iset(3)))), iset(32));
      store_scale(s, vmul(d, vfloat(scale)));
      nibbles32_table<OFFSET>(p + 8 + 16 * J, stride, itable(IQ4_LEVELS), q);
    });
  }
};

struct UnpackMXFP4 {
  static constexpr int ELEMENTS = 32, BYTES = 17, GROUP = 32, OFFSET = 16, HEAD = 1, HEAD_AT = 0;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, uint8_t* q, float* s, float*) {
    // 2^(e - 128): the exponent field is e - 1; e = 0 and 1 are the float subnormals 2^-128 and 2^-127.
    uint32_t e[W];
    istore(e, head);
    for (int r = 0; r < W; r++) e[r] = e[r] < 2 ? 0x00200000u << e[r] : (e[r] - 1) << 23;
    store_scale(s, ifloat_bits(iload(e)));
    nibbles32_table<OFFSET>(p + 1, stride, itable(E2M1_LEVELS), q);
  }
};

struct UnpackNVFP4 {
  static constexpr int ELEMENTS = 64, BYTES = 36, GROUP = 16, OFFSET = 16, HEAD = 4, HEAD_AT = 0;
  static constexpr bool MINIMUM = false;
  static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, uint8_t* q, float* s, float*) {
    // UE4M3 bits stand right above a float's 20 low mantissa bits; one exact product corrects the bias, subnormals included. 0x7F is 0.
    uint32_t codes[W];
    istore(codes, head);
    for (int g = 0; g < 4; g++) {
      uint32_t bits[W];
      for (int r = 0; r < W; r++) {
        uint32_t b = codes[r] >> (8 * g) & 0x7F;
        bits[r] = b == 0x7F ? 0 : b << 20;
      }
      store_scale(s, vmul(ifloat_bits(iload(bits)), vset1(6.646139978924579e35f)));  // 2^119
    }
    table_t table = itable(E2M1_LEVELS);
    for (int h = 0; h < 2; h++) {
      vi x[4];
      load_rows(p + 4 + 16 * h, stride, x);
      for (int g = 0; g < 2; g++) {
        for (int t = 0; t < 2; t++) store_q<OFFSET>(q, ilookup(table, low_bits<4>(x[2 * g + t])));
        for (int t = 0; t < 2; t++) store_q<OFFSET>(q, ilookup(table, low_bits<4>(ishr<4>(x[2 * g + t]))));
      }
    }
  }
};

// ---- plain types: f32 [k][W], a multiple of 8 columns at a time (the caller pads the last ones)

struct PlainF32 {
  static constexpr int BYTES = 4;
  static BAO_INLINE void eight(const uint8_t* p, int64_t stride, float* out) {
    for (int h = 0; h < 2; h++) {
      vi x[4];
      load_rows(p + 16 * h, stride, x);
      for (int t = 0; t < 4; t++) istore(out + (4 * h + t) * W, x[t]);
    }
  }
};

struct PlainF16 {
  static constexpr int BYTES = 2;
  static BAO_INLINE void eight(const uint8_t* p, int64_t stride, float* out) {
    vi x[4];
    load_rows(p, stride, x);
    for (int t = 0; t < 4; t++) {
      vstore(out + 2 * t * W, low_half(x[t]));
      vstore(out + (2 * t + 1) * W, high_half(x[t]));
    }
  }
};

struct PlainBF16 {
  static constexpr int BYTES = 2;
  static BAO_INLINE void eight(const uint8_t* p, int64_t stride, float* out) {
    vi x[4];
    load_rows(p, stride, x);
    for (int t = 0; t < 4; t++) {
      istore(out + 2 * t * W, ishl<16>(x[t]));
      istore(out + (2 * t + 1) * W, iand(x[t], iset(0xFFFF0000u)));
    }
  }
};
