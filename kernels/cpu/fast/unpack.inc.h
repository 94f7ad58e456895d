// Each GGUF block format, unpacked for W weight rows at once. `block` gives a sink, in ascending order of columns,
//   scale(v)      scale of the next group of GROUP columns, all of a block before its values or mixed with them
//   minimum(v)    what the format adds to each weight of that group (MINIMUM only)
//   values(f)     32 columns: f(t) for t = 0..7 is the dword t of every row, bytes 0..255 with the format's OFFSET still in
// and `pair`, where it exists, two blocks of 32 columns with fewer loads,
// so that weight = scale * (value - OFFSET) + minimum, exact up to the addition. HEAD bytes at HEAD_AT are gathered by the caller into `head`.

// Compile-time loop: shifts are immediates.
template <int I> struct index_t { static constexpr int value = I; };
template <int N, int I = 0, class F> BAO_INLINE void unroll(F&& f) {
  if constexpr (I < N) {
    f(index_t<I>{});
    unroll<N, I + 1>(f);
  }
}

// Bytes 0..255 as weights are kept (lanes.inc.h).
template <int OFFSET> BAO_INLINE vi kept(vi x) {
  if constexpr (!UNSIGNED_BYTES) {
    if constexpr (OFFSET == 128) return ixor(x, ibytes(0x80));
    else if constexpr (OFFSET != 0) return isub8(x, ibytes(OFFSET));
  } else if constexpr (SIGNED_WIDE && OFFSET == 128) {
    return ixor(x, ibytes(0x80));
  }
  return x;
}
template <int N> BAO_INLINE vi low_bits(vi x) { return iand(x, ibytes((1 << N) - 1)); }
BAO_INLINE vf low_half(vi x) { return ihalf(iand(x, iset(0xFFFF))); }
BAO_INLINE vf high_half(vi x) { return ihalf(ishr<16>(x)); }
BAO_INLINE vf negated(vf x) { return ifloat_bits(ixor(ibits(x), iset(0x80000000u))); }

// Dword t of 32 columns with a fifth bit: bit 4t + i of `bits` becomes bit 4 of byte i.
template <int T> BAO_INLINE vi with_fifth_bit(vi low, vi bits) {
#if defined(__AVX512F__)
  constexpr int B = T / 2 * 0x01010101, NIBBLE = T % 2 * 4;
  const vi index = _mm512_broadcast_i32x4(_mm_setr_epi32(B, B + 0x04040404, B + 0x08080808, B + 0x0C0C0C0C));
  __mmask64 set = _mm512_test_epi8_mask(_mm512_shuffle_epi8(bits, index), iset(0x08040201u << NIBBLE));
  return _mm512_mask_add_epi8(low, set, low, ibytes(16));
#else
  return ior(low, iand(imul(iand(ishr<4 * T>(bits), iset(15)), iset(0x00204081u << 4)), ibytes(16)));
#endif
}
// Split-half nibbles: dword t of 32 columns from the four dwords of 16 bytes.
template <int T> BAO_INLINE vi nibbles(const vi x[4]) { return low_bits<4>(ishr<T < 4 ? 0 : 4>(x[T % 4])); }
template <class Sink> BAO_INLINE void nibbles32(const uint8_t* p, int64_t stride, Sink& sink) {
  vi x[4];
  load_rows(p, stride, x);
  sink.values([&](auto t) { return nibbles<decltype(t)::value>(x); });
}
template <class Sink> BAO_INLINE void nibbles32(const uint8_t* p, int64_t stride, table_t table, Sink& sink) {
  vi x[4];
  load_rows(p, stride, x);
  sink.values([&](auto t) { return ilookup(table, nibbles<decltype(t)::value>(x)); });
}

// The dwords that start two bytes into x[0], x[1] ...
BAO_INLINE void two_bytes_on(const vi* x, vi out[4]) {
  for (int t = 0; t < 4; t++) out[t] = ior(ishr<16>(x[t]), ishl<16>(x[t + 1]));
}
// Two 18-byte blocks of d and nibbles: p holds bytes 0-31, the nibbles of the second block are loaded by themselves.
template <class Sink, class F> BAO_INLINE void pair18(const uint8_t* p, int64_t stride, Sink& sink, F&& level) {
  vi x[8], first[4], second[4];
  load_rows32(p, stride, x);
  load_rows(p + 20, stride, second);
  two_bytes_on(x, first);
  sink.scale(low_half(x[0]));
  sink.values([&](auto t) { return level(nibbles<decltype(t)::value>(first)); });
  sink.scale(high_half(x[4]));
  sink.values([&](auto t) { return level(nibbles<decltype(t)::value>(second)); });
}

struct UnpackQ4_0 {
  static constexpr int ELEMENTS = 32, BYTES = 18, GROUP = 32, OFFSET = 8, HEAD = 2, HEAD_AT = 0;
  static constexpr bool MINIMUM = false, PAIR = true;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, Sink& sink) {
    sink.scale(ihalf(head));
    nibbles32(p + 2, stride, sink);
  }
  template <class Sink> static BAO_INLINE void pair(const uint8_t* p, int64_t stride, Sink& sink) {
    pair18(p, stride, sink, [](vi q) { return q; });
  }
};

struct UnpackQ4_1 {
  static constexpr int ELEMENTS = 32, BYTES = 20, GROUP = 32, OFFSET = 0, HEAD = 4, HEAD_AT = 0;
  static constexpr bool MINIMUM = true, PAIR = true;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, Sink& sink) {
    sink.scale(low_half(head));
    sink.minimum(high_half(head));
    nibbles32(p + 4, stride, sink);
  }
  template <class Sink> static BAO_INLINE void pair(const uint8_t* p, int64_t stride, Sink& sink) {
    vi x[8], second[4];
    load_rows32(p, stride, x);
    load_rows(p + 24, stride, second);
    sink.scale(low_half(x[0]));
    sink.minimum(high_half(x[0]));
    sink.values([&](auto t) { return nibbles<decltype(t)::value>(x + 1); });
    sink.scale(low_half(x[5]));
    sink.minimum(high_half(x[5]));
    sink.values([&](auto t) { return nibbles<decltype(t)::value>(second); });
  }
};

template <class Sink> BAO_INLINE void fives32(const vi x[4], vi high, Sink& sink) {
  sink.values([&](auto t) {
    constexpr int T = decltype(t)::value;
    return with_fifth_bit<T>(nibbles<T>(x), high);
  });
}

struct UnpackQ5_0 {
  static constexpr int ELEMENTS = 32, BYTES = 22, GROUP = 32, OFFSET = 16, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = false, PAIR = true;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, Sink& sink) {
    vi x[4];
    load_rows(p, stride, x);
    sink.scale(low_half(x[0]));
    vi q[4];
    load_rows(p + 6, stride, q);
    fives32(q, ior(ishr<16>(x[0]), ishl<16>(x[1])), sink);
  }
  template <class Sink> static BAO_INLINE void pair(const uint8_t* p, int64_t stride, Sink& sink) {
    vi x[8], first[4], second[4];
    load_rows32(p, stride, x);
    load_rows(p + 28, stride, second);
    two_bytes_on(x + 1, first);
    sink.scale(low_half(x[0]));
    fives32(first, ior(ishr<16>(x[0]), ishl<16>(x[1])), sink);
    sink.scale(high_half(x[5]));
    fives32(second, x[6], sink);
  }
};

struct UnpackQ5_1 {
  static constexpr int ELEMENTS = 32, BYTES = 24, GROUP = 32, OFFSET = 0, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = true, PAIR = true;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, Sink& sink) {
    vi x[4];
    load_rows(p, stride, x);
    sink.scale(low_half(x[0]));
    sink.minimum(high_half(x[0]));
    vi q[4];
    load_rows(p + 8, stride, q);
    fives32(q, x[1], sink);
  }
  template <class Sink> static BAO_INLINE void pair(const uint8_t* p, int64_t stride, Sink& sink) {
    vi x[8], second[4];
    load_rows32(p, stride, x);
    load_rows(p + 32, stride, second);
    sink.scale(low_half(x[0]));
    sink.minimum(high_half(x[0]));
    fives32(x + 2, x[1], sink);
    sink.scale(low_half(x[6]));
    sink.minimum(high_half(x[6]));
    fives32(second, x[7], sink);
  }
};

struct UnpackQ8_0 {
  static constexpr int ELEMENTS = 32, BYTES = 34, GROUP = 32, OFFSET = 128, HEAD = 2, HEAD_AT = 0;
  static constexpr bool MINIMUM = false, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, Sink& sink) {
    sink.scale(ihalf(head));
    vi x[8];
    load_rows32(p + 2, stride, x);
    sink.values([&](auto t) { return ixor(x[decltype(t)::value], ibytes(0x80)); });
  }
};

struct UnpackQ2_K {
  static constexpr int ELEMENTS = 256, BYTES = 84, GROUP = 16, OFFSET = 0, HEAD = 4, HEAD_AT = 80;
  static constexpr bool MINIMUM = true, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, Sink& sink) {
    vf d = low_half(head), dmin = negated(high_half(head));
    vi scales[4];
    load_rows(p, stride, scales);
    unroll<16>([&](auto j) {
      constexpr int J = decltype(j)::value;
      vi b = ishr<8 * (J % 4)>(scales[J / 4]);
      sink.scale(vmul(d, vfloat(iand(b, iset(15)))));
      sink.minimum(vmul(dmin, vfloat(iand(ishr<4>(b), iset(15)))));
    });
    for (int half = 0; half < 2; half++) {
      vi x[8];
      load_rows32(p + 16 + 32 * half, stride, x);
      unroll<4>([&](auto c) {
        sink.values([&](auto t) { return low_bits<2>(ishr<2 * decltype(c)::value>(x[decltype(t)::value])); });
      });
    }
  }
};

struct UnpackQ3_K {
  static constexpr int ELEMENTS = 256, BYTES = 110, GROUP = 16, OFFSET = 4, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = false, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, Sink& sink) {
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
      sink.scale(vmul(d, vfloat(scale)));
    });
    vi mask[8];
    load_rows32(p, stride, mask);
    unroll<2>([&](auto half) {
      constexpr int HALF = decltype(half)::value;
      vi x[8];
      load_rows32(p + 32 + 32 * HALF, stride, x);
      unroll<4>([&](auto c) {
        constexpr int C = decltype(c)::value;
        sink.values([&](auto t) {
          constexpr int T = decltype(t)::value;
          return ior(low_bits<2>(ishr<2 * C>(x[T])), ishl<2>(low_bits<1>(ishr<4 * HALF + C>(mask[T]))));
        });
      });
    });
  }
};

// d, dmin and the eight 6-bit scales and minimums that Q4_K and Q5_K share.
template <class Sink> BAO_INLINE void k_header(const uint8_t* p, int64_t stride, Sink& sink) {
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
    sink.scale(vmul(d, vfloat(scale)));
    sink.minimum(vmul(dmin, vfloat(minimum)));
  });
}

struct UnpackQ4_K {
  static constexpr int ELEMENTS = 256, BYTES = 144, GROUP = 32, OFFSET = 0, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = true, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, Sink& sink) {
    k_header(p, stride, sink);
    for (int pair = 0; pair < 4; pair++) {
      vi x[8];
      load_rows32(p + 16 + 32 * pair, stride, x);
      sink.values([&](auto t) { return low_bits<4>(x[decltype(t)::value]); });
      sink.values([&](auto t) { return low_bits<4>(ishr<4>(x[decltype(t)::value])); });
    }
  }
};

struct UnpackQ5_K {
  static constexpr int ELEMENTS = 256, BYTES = 176, GROUP = 32, OFFSET = 0, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = true, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, Sink& sink) {
    k_header(p, stride, sink);
    vi high[8];
    load_rows32(p + 16, stride, high);
    unroll<4>([&](auto pair) {
      constexpr int P = decltype(pair)::value;
      vi x[8];
      load_rows32(p + 48 + 32 * P, stride, x);
      sink.values([&](auto t) { return ior(low_bits<4>(x[decltype(t)::value]), ishl<4>(low_bits<1>(ishr<2 * P>(high[decltype(t)::value])))); });
      sink.values([&](auto t) { return ior(low_bits<4>(ishr<4>(x[decltype(t)::value])), ishl<4>(low_bits<1>(ishr<2 * P + 1>(high[decltype(t)::value])))); });
    });
  }
};

struct UnpackQ6_K {
  static constexpr int ELEMENTS = 256, BYTES = 210, GROUP = 16, OFFSET = 32, HEAD = 2, HEAD_AT = 208;
  static constexpr bool MINIMUM = false, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, Sink& sink) {
    vf d = ihalf(head);
    vi scales[4];
    load_rows(p + 192, stride, scales);
    unroll<16>([&](auto j) {
      constexpr int J = decltype(j)::value;
      sink.scale(vmul(d, vfloat(isar<24>(ishl<24 - 8 * (J % 4)>(scales[J / 4])))));
    });
    for (int half = 0; half < 2; half++) {
      vi low[16], high[8];
      for (int i = 0; i < 2; i++) load_rows32(p + 64 * half + 32 * i, stride, low + 8 * i);
      load_rows32(p + 128 + 32 * half, stride, high);
      unroll<4>([&](auto k) {
        constexpr int K = decltype(k)::value;
        sink.values([&](auto t) {
          constexpr int T = decltype(t)::value;
          vi h = K < 2 ? ishl<4 - 2 * (K & 1)>(high[T]) : ishr<2 * (K & 1)>(high[T]);
          return ior(low_bits<4>(ishr<K < 2 ? 0 : 4>(low[T + 8 * (K & 1)])), iand(h, ibytes(0x30)));
        });
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
  static constexpr bool MINIMUM = false, PAIR = true;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, Sink& sink) {
    sink.scale(ihalf(head));
    nibbles32(p + 2, stride, itable(IQ4_LEVELS), sink);
  }
  template <class Sink> static BAO_INLINE void pair(const uint8_t* p, int64_t stride, Sink& sink) {
    table_t table = itable(IQ4_LEVELS);
    pair18(p, stride, sink, [&](vi q) { return ilookup(table, q); });
  }
};

struct UnpackIQ4_XS {
  static constexpr int ELEMENTS = 256, BYTES = 136, GROUP = 32, OFFSET = 128, HEAD = 0, HEAD_AT = 0;
  static constexpr bool MINIMUM = false, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi, Sink& sink) {
    vi x[4];
    load_rows(p, stride, x);
    vf d = low_half(x[0]);
    unroll<8>([&](auto j) {
      constexpr int J = decltype(j)::value;
      vi scale = isub(ior(iand(ishr<4 * J>(x[1]), iset(15)), ishl<4>(iand(ishr<16 + 2 * J>(x[0]), iset(3)))), iset(32));
      sink.scale(vmul(d, vfloat(scale)));
      nibbles32(p + 8 + 16 * J, stride, itable(IQ4_LEVELS), sink);
    });
  }
};

struct UnpackMXFP4 {
  static constexpr int ELEMENTS = 32, BYTES = 17, GROUP = 32, OFFSET = 16, HEAD = 1, HEAD_AT = 0;
  static constexpr bool MINIMUM = false, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, Sink& sink) {
    // 2^(e - 128): the exponent field is e - 1; e = 0 and 1 are the float subnormals with bits 1 << 21 and 2 << 21.
    vf normal = ifloat_bits(ishl<23>(isub(head, iset(1)))), tiny = ifloat_bits(ishl<21>(iadd(head, iset(1))));
    sink.scale(vselect(vlt(vfloat(head), vset1(2.0f)), tiny, normal));
    nibbles32(p + 1, stride, itable(E2M1_LEVELS), sink);
  }
};

struct UnpackNVFP4 {
  static constexpr int ELEMENTS = 64, BYTES = 36, GROUP = 16, OFFSET = 16, HEAD = 4, HEAD_AT = 0;
  static constexpr bool MINIMUM = false, PAIR = false;
  template <class Sink> static BAO_INLINE void block(const uint8_t* p, int64_t stride, vi head, Sink& sink) {
    // UE4M3, halved because the levels are doubled: 2^(e - 8) * (1 + m / 8), or m * 2^-10 where e = 0; 0x7F is 0. No subnormal floats: Intel's
    // processors take a hundred cycles for one.
    unroll<4>([&](auto g) {
      vi code = iand(ishr<8 * decltype(g)::value>(head), iset(0x7F));
      vf number = vfloat(code), normal = ifloat_bits(iadd(ishl<20>(code), iset(119u << 23)));
      vf value = vselect(vlt(number, vset1(8.0f)), vmul(number, vset1(0x1p-10f)), normal);
      sink.scale(vselect(veq(number, vset1(127.0f)), vzero(), value));
    });
    table_t table = itable(E2M1_LEVELS);
    vi x[8];
    load_rows32(p + 4, stride, x);
    unroll<2>([&](auto h) {
      sink.values([&](auto t) {
        constexpr int T = decltype(t)::value;
        return ilookup(table, low_bits<4>(ishr<T % 4 < 2 ? 0 : 4>(x[decltype(h)::value * 4 + T / 4 * 2 + T % 2])));
      });
    });
  }
};

// ---- plain types: eight columns of every row as f32 (the caller pads the last ones)

struct PlainF32 {
  static constexpr int ELEMENTS = 1, BYTES = 4;
  static BAO_INLINE void eight(const uint8_t* p, int64_t stride, vf out[8]) {
    vi x[8];
    load_rows32(p, stride, x);
    for (int t = 0; t < 8; t++) out[t] = ifloat_bits(x[t]);
  }
};

struct PlainF16 {
  static constexpr int ELEMENTS = 1, BYTES = 2;
  static BAO_INLINE void eight(const uint8_t* p, int64_t stride, vf out[8]) {
    vi x[4];
    load_rows(p, stride, x);
    for (int t = 0; t < 4; t++) {
      out[2 * t] = low_half(x[t]);
      out[2 * t + 1] = high_half(x[t]);
    }
  }
};

struct PlainBF16 {
  static constexpr int ELEMENTS = 1, BYTES = 2;
  static BAO_INLINE void eight(const uint8_t* p, int64_t stride, vf out[8]) {
    vi x[4];
    load_rows(p, stride, x);
    for (int t = 0; t < 4; t++) {
      out[2 * t] = ifloat_bits(ishl<16>(x[t]));
      out[2 * t + 1] = ifloat_bits(iand(x[t], iset(0xFFFF0000u)));
    }
  }
};
