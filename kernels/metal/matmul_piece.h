// Weights as products read them: pieces of OCTETS times 8 consecutive columns, OCTET_GAP columns apart, so that what one load takes is unpacked by one
// thread and neighbouring threads read neighbouring columns of x. Element i of octet o is scale * q[i] + bias. common/dequant.h is the types' definition.
#ifndef BAO_METAL_MATMUL_PIECE_H
#define BAO_METAL_MATMUL_PIECE_H

#include "formats.h"

// PIECE_ALIGN: of blocks, and of what is loaded from them; the host sees to it that weights begin at multiples of 16.
// PIECE_ZERO: the code that stands for zero. PIECE_BIAS: there is a minimum beside the scale. PIECE_TABLE: codes are places in a table of 16 values.
#ifdef BAO_PLAIN
#define OCTETS 2
#define OCTET_GAP 8
#define PIECE_ALIGN 16
#elif BAO_DTYPE == 10 || BAO_DTYPE == 11 || BAO_DTYPE == 12 || BAO_DTYPE == 13 || BAO_DTYPE == 14
#define OCTETS 4
#define OCTET_GAP 32
#elif BAO_DTYPE == 8 || BAO_DTYPE == 40
#define OCTETS 2
#define OCTET_GAP 8
#else
#define OCTETS 2
#define OCTET_GAP 16
#endif

#if BAO_DTYPE == 12 || BAO_DTYPE == 13
#define PIECE_ALIGN 16
#elif BAO_DTYPE == 7 || BAO_DTYPE == 23
#define PIECE_ALIGN 8
#elif BAO_DTYPE == 3 || BAO_DTYPE == 10 || BAO_DTYPE == 40
#define PIECE_ALIGN 4
#elif BAO_DTYPE == 39
#define PIECE_ALIGN 1
#elif !defined(BAO_PLAIN)
#define PIECE_ALIGN 2
#endif

#if BAO_DTYPE == 2
#define PIECE_ZERO 8.0f
#elif BAO_DTYPE == 6
#define PIECE_ZERO 16.0f
#elif BAO_DTYPE == 8
#define PIECE_ZERO 128.0f
#elif BAO_DTYPE == 11
#define PIECE_ZERO 4.0f
#elif BAO_DTYPE == 14
#define PIECE_ZERO 32.0f
#else
#define PIECE_ZERO 0.0f
#endif

#if BAO_DTYPE == 3 || BAO_DTYPE == 7 || BAO_DTYPE == 10 || BAO_DTYPE == 12 || BAO_DTYPE == 13
#define PIECE_BIAS 1
#else
#define PIECE_BIAS 0
#endif
#if BAO_DTYPE == 20 || BAO_DTYPE == 23 || BAO_DTYPE == 39 || BAO_DTYPE == 40
#define PIECE_TABLE 1
#else
#define PIECE_TABLE 0
#endif

#if BAO_DTYPE == 0
#define PIECE_CODES 16
#elif defined(BAO_PLAIN)
#define PIECE_CODES 8
#elif BAO_DTYPE == 8 || BAO_DTYPE == 12 || BAO_DTYPE == 13 || BAO_DTYPE == 14
#define PIECE_CODES 4
#else
#define PIECE_CODES 2
#endif

// Loops over what lies in registers.
#define UNROLL _Pragma("clang loop unroll(full)")

#define PIECE_COLUMNS (8 * OCTETS)

// First column of octet o of piece u: pieces that share their bytes' neighbourhood take turns of 8 columns.
inline int32_t octet_column(int32_t u, int o) {
  const uint32_t turns = OCTET_GAP / 8;
  return int32_t(uint32_t(u) / turns * (OCTETS * OCTET_GAP) + uint32_t(u) % turns * 8) + o * OCTET_GAP;
}

// A piece as it lies in the block; what a type has no use for is never set.
struct Piece {
  uint32_t codes[PIECE_CODES], high[2], scales[2], d;
};

// 8 bytes by one load, or two where blocks begin anywhere.
inline void load_8(device const uint8_t *p, thread uint32_t *words) {
#if PIECE_ALIGN >= 8
  const uint2 both = *(device const uint2 *)p;
  words[0] = both.x;
  words[1] = both.y;
#elif PIECE_ALIGN == 4
  device const packed_uint2 &both = *(device const packed_uint2 *)p;
  words[0] = both.x;
  words[1] = both.y;
#elif PIECE_ALIGN == 2
  device const packed_ushort4 &four = *(device const packed_ushort4 *)p;
  words[0] = uint32_t(four.x) | uint32_t(four.y) << 16;
  words[1] = uint32_t(four.z) | uint32_t(four.w) << 16;
#else
  UNROLL for (int i = 0; i < 2; i++) {
    device const packed_uchar4 &four = *(device const packed_uchar4 *)(p + 4 * i);
    words[i] = uint32_t(four.x) | uint32_t(four.y) << 8 | uint32_t(four.z) << 16 | uint32_t(four.w) << 24;
  }
#endif
}
inline uint32_t load_4(device const uint8_t *p) {
#if PIECE_ALIGN >= 4
  return *(device const uint32_t *)p;
#elif PIECE_ALIGN == 2
  return uint32_t(*(device const uint16_t *)p) | uint32_t(*(device const uint16_t *)(p + 2)) << 16;
#else
  return uint32_t(p[0]) | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24;
#endif
}

inline float half_of(uint32_t bits) { return float(as_type<half>(uint16_t(bits))); }
inline uint32_t byte_of(uint32_t word, int i) { return word >> (8 * i) & 255u; }

// Piece u of a row whose columns are a multiple of 16.
inline void load_piece(device const uint8_t *row, int32_t u, thread Piece &p) {
#ifdef BAO_PLAIN
  UNROLL for (int i = 0; i < PIECE_CODES; i += 4) {
    const uint4 words = *(device const uint4 *)(row + (u * PIECE_CODES + i) * 4);
    UNROLL for (int j = 0; j < 4; j++) p.codes[i + j] = words[j];
  }
#else
  const uint32_t a_block = Format::elements / PIECE_COLUMNS, at = uint32_t(u) % a_block;
  device const Format::Block *b = (device const Format::Block *)row + uint32_t(u) / a_block;
#if OCTETS == 4
  const uint32_t n = at >> 2, part = (at & 3) * 8;  // of 128 columns: 8 bytes at `part` hold columns 32 o + part ...
#if BAO_DTYPE == 12 || BAO_DTYPE == 13
  // Sub-blocks 4 n ... 4 n + 3: a byte each of scales and minimums.
  const uint4 head = *(device const uint4 *)b;
  p.d = head.x;
  p.scales[0] = n == 0 ? head.y & 0x3F3F3F3Fu : (head.w & 0x0F0F0F0Fu) | (head.y >> 2 & 0x30303030u);
  p.scales[1] = n == 0 ? head.z & 0x3F3F3F3Fu : (head.w >> 4 & 0x0F0F0F0Fu) | (head.z >> 2 & 0x30303030u);
  load_8(b->qs + 64 * n + part, p.codes);
  load_8(b->qs + 64 * n + 32 + part, p.codes + 2);
#if BAO_DTYPE == 13
  load_8(b->qh + part, p.high);
  UNROLL for (int i = 0; i < 2; i++) p.high[i] = p.high[i] >> (4 * n);
#endif
#else
  // Sub-blocks of 16: byte 2 o + (part >> 4) of 8, moved to the even bytes.
#if BAO_DTYPE == 14
  p.d = b->d;
  load_8((device const uint8_t *)b->scales + 8 * n, p.scales);
  load_8(b->ql + 64 * n + part, p.codes);
  load_8(b->ql + 64 * n + 32 + part, p.codes + 2);
  load_8(b->qh + 32 * n + part, p.high);
#elif BAO_DTYPE == 10
  p.d = uint32_t(b->d) | uint32_t(b->dmin) << 16;
  load_8(b->scales + 8 * n, p.scales);
  load_8(b->qs + 32 * n + part, p.codes);
#else
  p.d = b->d;
  load_8(b->scales, p.scales);
  const uint32_t upper = load_4(b->scales + 8) >> (4 * n);
  UNROLL for (int i = 0; i < 2; i++) p.scales[i] = (p.scales[i] >> (4 * n) & 0x0F0F0F0Fu) | (upper >> (2 * i) & 0x03030303u) << 4;
  load_8(b->qs + 32 * n + part, p.codes);
  load_8(b->hmask + part, p.high);
  UNROLL for (int i = 0; i < 2; i++) p.high[i] = p.high[i] >> (4 * n);
#endif
  UNROLL for (int i = 0; i < 2; i++) p.scales[i] = p.scales[i] >> (part & 16 ? 8 : 0);
#endif
#elif BAO_DTYPE == 8
  p.d = b->d;
  load_8((device const uint8_t *)b->qs + at * 16, p.codes);
  load_8((device const uint8_t *)b->qs + at * 16 + 8, p.codes + 2);
#else
  load_8(b->qs + at * 8, p.codes);
#if BAO_DTYPE == 39
  p.d = b->e;
#elif BAO_DTYPE == 40
  p.d = b->d[at];
#elif BAO_DTYPE == 3 || BAO_DTYPE == 7
  p.d = *(device const uint32_t *)b;
#else
  p.d = b->d;
#endif
#if BAO_DTYPE == 23
  p.scales[0] = uint32_t(Format::scale(b, int(at >> 1)));
#elif BAO_DTYPE == 6 || BAO_DTYPE == 7
  p.high[0] = load_4(b->qh) >> (8 * at);
#endif
#endif
#endif
}

// The values of 16 codes, for types that have them.
inline float table_value(int code) {
#if BAO_DTYPE == 20 || BAO_DTYPE == 23
  return float(iq4_value(code));
#else
  return float(e2m1_doubled(code));
#endif
}
#if PIECE_TABLE
#define TABLE_PARAM , threadgroup const float *table
#define TABLE_ARG , table
#else
#define TABLE_PARAM
#define TABLE_ARG
#endif

// Four codes, a byte each. Without a table a code is made part of a half: 1024 + code, whose bits are 0x6400 + code, so that two codes cost one mask and one OR.
inline void values_of(uint32_t word, thread float *q TABLE_PARAM) {
#if PIECE_TABLE
  UNROLL for (int i = 0; i < 4; i++) q[i] = table[byte_of(word, i)];
#else
  const half2 even = as_type<half2>((word & 0x00FF00FFu) | 0x64006400u), odd = as_type<half2>((word >> 8 & 0x00FF00FFu) | 0x64006400u);
  q[0] = float(even.x) - (1024.0f + PIECE_ZERO);
  q[1] = float(odd.x) - (1024.0f + PIECE_ZERO);
  q[2] = float(even.y) - (1024.0f + PIECE_ZERO);
  q[3] = float(odd.y) - (1024.0f + PIECE_ZERO);
#endif
}

// Octet o of a piece.
inline void octet_of(thread const Piece &p, int o, thread float *q, thread float &scale, thread float &bias TABLE_PARAM) {
  bias = 0.0f;
#ifdef BAO_PLAIN
  scale = 1.0f;
  UNROLL for (int i = 0; i < 8; i++) {
#if BAO_DTYPE == 0
    q[i] = as_type<float>(p.codes[8 * o + i]);
#elif BAO_DTYPE == 1
    q[i] = half_of(p.codes[4 * o + i / 2] >> (16 * (i & 1)));
#else
    q[i] = as_type<float>(i & 1 ? p.codes[4 * o + i / 2] & 0xFFFF0000u : p.codes[4 * o + i / 2] << 16);
#endif
  }
#else
#if BAO_DTYPE == 12 || BAO_DTYPE == 13
  scale = half_of(p.d) * float(byte_of(p.scales[0], o));
  bias = -half_of(p.d >> 16) * float(byte_of(p.scales[1], o));
#elif BAO_DTYPE == 10
  const uint32_t both = byte_of(p.scales[o >> 1], 2 * (o & 1));
  scale = half_of(p.d) * float(both & 15u);
  bias = -half_of(p.d >> 16) * float(both >> 4);
#elif BAO_DTYPE == 11
  scale = half_of(p.d) * float(int32_t(byte_of(p.scales[o >> 1], 2 * (o & 1))) - 32);
#elif BAO_DTYPE == 14
  scale = half_of(p.d) * float(int32_t(p.scales[o >> 1] << (24 - 16 * (o & 1))) >> 24);
#elif BAO_DTYPE == 23
  scale = half_of(p.d) * float(int32_t(p.scales[0]));
#elif BAO_DTYPE == 39
  scale = e8m0_halved(uint8_t(p.d));
#elif BAO_DTYPE == 40
  scale = ue4m3_halved(uint8_t(p.d));
#else
  scale = half_of(p.d);
#if PIECE_BIAS
  bias = half_of(p.d >> 16);
#endif
#endif
  UNROLL for (int i = 0; i < 2; i++) {
#if BAO_DTYPE == 8
    const uint32_t word = p.codes[2 * o + i] ^ 0x80808080u;
#elif BAO_DTYPE == 10
    const uint32_t word = p.codes[i] >> (2 * o) & 0x03030303u;
#elif BAO_DTYPE == 11
    const uint32_t word = (p.codes[i] >> (2 * o) & 0x03030303u) | (p.high[i] >> o & 0x01010101u) << 2;
#elif BAO_DTYPE == 12
    const uint32_t word = p.codes[2 * (o >> 1) + i] >> (4 * (o & 1)) & 0x0F0F0F0Fu;
#elif BAO_DTYPE == 13
    const uint32_t word = (p.codes[2 * (o >> 1) + i] >> (4 * (o & 1)) & 0x0F0F0F0Fu) | (p.high[i] >> o & 0x01010101u) << 4;
#elif BAO_DTYPE == 14
    const uint32_t word = (p.codes[2 * (o & 1) + i] >> (4 * (o >> 1)) & 0x0F0F0F0Fu) | (p.high[i] >> (2 * o) & 0x03030303u) << 4;
#elif BAO_DTYPE == 6 || BAO_DTYPE == 7
    // Four neighbouring bits to a byte each: the factor moves bit k to 8 k + 4, and whatever else it makes lies between.
    const uint32_t word = (p.codes[i] >> (4 * o) & 0x0F0F0F0Fu) | ((p.high[0] >> (16 * o + 4 * i) & 15u) * 0x02040810u & 0x10101010u);
#else
    const uint32_t word = p.codes[i] >> (4 * o) & 0x0F0F0F0Fu;
#endif
    values_of(word, q + 4 * i TABLE_ARG);
  }
#endif
}

#endif
