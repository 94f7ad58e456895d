// Weights as products read them: pieces of 16 elements of a row, two octets of 8 consecutive columns each, OCTET_GAP columns apart, so that what
// one byte packs is unpacked by one thread. Element i of octet o is scale[o] * q[8 * o + i] + bias[o]. common/dequant.h is the types' definition.
#ifndef BAO_METAL_MATMUL_PIECE_H
#define BAO_METAL_MATMUL_PIECE_H

#include "formats.h"

#if BAO_DTYPE == 2 || BAO_DTYPE == 3 || BAO_DTYPE == 6 || BAO_DTYPE == 7 || BAO_DTYPE == 20 || BAO_DTYPE == 23 || BAO_DTYPE == 39
#define OCTET_GAP 16
#elif BAO_DTYPE == 12 || BAO_DTYPE == 13
#define OCTET_GAP 32
#elif BAO_DTYPE == 10 || BAO_DTYPE == 11 || BAO_DTYPE == 14
#define OCTET_GAP 64
#else
#define OCTET_GAP 8
#endif
#if BAO_DTYPE == 2 || BAO_DTYPE == 3 || BAO_DTYPE == 6 || BAO_DTYPE == 7 || BAO_DTYPE == 10 || BAO_DTYPE == 11 || BAO_DTYPE == 12 || BAO_DTYPE == 13 || BAO_DTYPE == 14
#define BAO_BIAS 1  // an offset of all codes counts as one: scale * sum(x) is one product for 8 columns
#else
#define BAO_BIAS 0
#endif

// Loops over what lies in registers.
#define UNROLL _Pragma("clang loop unroll(full)")

// First column of piece u's first octet: an octet's place among the OCTET_GAP columns, in groups of twice as many.
inline int32_t piece_column(uint32_t u) {
  const uint32_t octets = OCTET_GAP / 8;
  return int32_t(u / octets * (2 * OCTET_GAP) + u % octets * 8);
}

// Four bytes. Blocks of a multiple of 4 bytes are aligned as their rows are; all but MXFP4's of 17 bytes begin at even addresses.
inline uint32_t word_at(device const uint8_t *p, bool aligned) {
#if BAO_DTYPE == 39
  return uint32_t(p[0]) | uint32_t(p[1]) << 8 | uint32_t(p[2]) << 16 | uint32_t(p[3]) << 24;
#else
#if BAO_DTYPE == 0 || BAO_DTYPE == 3 || BAO_DTYPE == 7 || BAO_DTYPE == 10 || BAO_DTYPE == 12 || BAO_DTYPE == 13 || BAO_DTYPE == 23 || BAO_DTYPE == 40
  if (aligned) return *(device const uint32_t *)p;
#endif
  device const uint16_t *h = (device const uint16_t *)p;
  return uint32_t(h[0]) | uint32_t(h[1]) << 16;
#endif
}

inline float half_of(uint16_t bits) { return float(as_type<half>(bits)); }
// Byte i of eight in two words.
inline uint32_t byte_of(thread const uint32_t *words, int i) { return (words[i >> 2] >> (8 * (i & 3))) & 255u; }

// Piece u of a row whose columns are a multiple of 16. aligned: rows begin at multiples of 4.
inline void load_piece(device const uint8_t *row, uint32_t u, bool aligned, thread float *q, thread float *scale, thread float *bias) {
  bias[0] = bias[1] = 0.0f;
#ifdef BAO_PLAIN
  scale[0] = scale[1] = 1.0f;
#if BAO_DTYPE == 0
  UNROLL for (int i = 0; i < 16; i++) q[i] = as_type<float>(word_at(row + (u * 16 + i) * 4, aligned));
#else
  UNROLL for (int i = 0; i < 8; i++) {
    device const uint8_t *p = row + (u * 16 + i * 2) * 2;
    const uint32_t both = aligned ? *(device const uint32_t *)p : word_at(p, false);
#if BAO_DTYPE == 1
    q[2 * i] = half_of(uint16_t(both));
    q[2 * i + 1] = half_of(uint16_t(both >> 16));
#else
    q[2 * i] = as_type<float>(both << 16);
    q[2 * i + 1] = as_type<float>(both & 0xFFFF0000u);
#endif
  }
#endif
#else
  device const Format::Block *b = (device const Format::Block *)row + u * 16 / Format::elements;
  const int32_t at = int32_t(u % (Format::elements / 16));  // this piece of the block's
#if BAO_DTYPE == 8
  scale[0] = scale[1] = half_of(b->d);
  UNROLL for (int i = 0; i < 4; i++) {
    const uint32_t codes = word_at((device const uint8_t *)b->qs + at * 16 + i * 4, aligned);
    UNROLL for (int j = 0; j < 4; j++) q[4 * i + j] = float(int32_t(codes << (24 - 8 * j)) >> 24);
  }
#elif BAO_DTYPE == 10 || BAO_DTYPE == 11 || BAO_DTYPE == 14
  // Of 128 columns (n): 8 bytes at `part` hold columns 32 k + part ..., k = m and m + 2.
  const int32_t n = at >> 3, m = at >> 2 & 1, part = (at & 3) * 8, j = 8 * n + 2 * m + (at >> 1 & 1);
  const float d = half_of(b->d);
#if BAO_DTYPE == 14
  device const uint8_t *ql = b->ql + 64 * n + 32 * m + part, *qh = b->qh + 32 * n + part;
  const uint32_t low[2] = {word_at(ql, aligned), word_at(ql + 4, aligned)}, high[2] = {word_at(qh, aligned) >> (2 * m), word_at(qh + 4, aligned) >> (2 * m)};
  scale[0] = d * float(b->scales[j]);
  scale[1] = d * float(b->scales[j + 4]);
  bias[0] = -32.0f * scale[0];
  bias[1] = -32.0f * scale[1];
  UNROLL for (int i = 0; i < 8; i++) {
    const uint32_t l = byte_of(low, i), h = byte_of(high, i);
    q[i] = float((l & 15u) | (h & 3u) << 4);
    q[8 + i] = float(l >> 4 | (h & 48u));
  }
#else
  device const uint8_t *qs = b->qs + 32 * n + part;
  const uint32_t codes[2] = {word_at(qs, aligned) >> (2 * m), word_at(qs + 4, aligned) >> (2 * m)};
#if BAO_DTYPE == 10
  const float minimum = half_of(b->dmin);
  scale[0] = d * float(b->scales[j] & 15);
  scale[1] = d * float(b->scales[j + 4] & 15);
  bias[0] = -minimum * float(b->scales[j] >> 4);
  bias[1] = -minimum * float(b->scales[j + 4] >> 4);
  UNROLL for (int i = 0; i < 8; i++) {
    const uint32_t c = byte_of(codes, i);
    q[i] = float(c & 3u);
    q[8 + i] = float(c >> 4 & 3u);
  }
#else
  device const uint8_t *hmask = b->hmask + part;
  const uint32_t high[2] = {word_at(hmask, aligned) >> (4 * n + m), word_at(hmask + 4, aligned) >> (4 * n + m)};
  scale[0] = d * float(Format::scale(b, j));
  scale[1] = d * float(Format::scale(b, j + 4));
  bias[0] = -4.0f * scale[0];
  bias[1] = -4.0f * scale[1];
  UNROLL for (int i = 0; i < 8; i++) {
    const uint32_t c = byte_of(codes, i), h = byte_of(high, i);
    q[i] = float((c & 3u) | (h & 1u) << 2);
    q[8 + i] = float((c >> 4 & 3u) | (h & 4u));
  }
#endif
#endif
#else
  // Nibbles: the low ones of 8 bytes are one octet, the high ones the other.
#if BAO_DTYPE == 12 || BAO_DTYPE == 13
  const int32_t j = at >> 2 << 1, byte = 16 * j + (at & 3) * 8;
  const float d = half_of(b->d), minimum = half_of(b->dmin);
  scale[0] = d * float(k_scale(b->scales, j));
  scale[1] = d * float(k_scale(b->scales, j + 1));
  bias[0] = -minimum * float(k_min(b->scales, j));
  bias[1] = -minimum * float(k_min(b->scales, j + 1));
#else
  const int32_t byte = at * 8;
#if BAO_DTYPE == 23
  scale[0] = half_of(b->d) * float(Format::scale(b, at >> 1));
#elif BAO_DTYPE == 39
  scale[0] = e8m0_halved(b->e);
#elif BAO_DTYPE == 40
  scale[0] = ue4m3_halved(b->d[at]);
#else
  scale[0] = half_of(b->d);
#endif
  scale[1] = scale[0];
#if BAO_DTYPE == 2
  bias[0] = bias[1] = -8.0f * scale[0];
#elif BAO_DTYPE == 6
  bias[0] = bias[1] = -16.0f * scale[0];
#elif BAO_DTYPE == 3 || BAO_DTYPE == 7
  bias[0] = bias[1] = half_of(b->m);
#endif
#endif
  const uint32_t codes[2] = {word_at(b->qs + byte, aligned), word_at(b->qs + byte + 4, aligned)};
#if BAO_DTYPE == 6 || BAO_DTYPE == 7
  const uint32_t fifth = word_at(b->qh, aligned) >> byte;
#elif BAO_DTYPE == 13
  device const uint8_t *qh = b->qh + (at & 3) * 8;
  const uint32_t fifth[2] = {word_at(qh, aligned) >> j, word_at(qh + 4, aligned) >> j};
#endif
  UNROLL for (int i = 0; i < 8; i++) {
    const uint32_t c = byte_of(codes, i);
#if BAO_DTYPE == 20 || BAO_DTYPE == 23
    q[i] = float(iq4_value(int(c & 15u)));
    q[8 + i] = float(iq4_value(int(c >> 4)));
#elif BAO_DTYPE == 39 || BAO_DTYPE == 40
    q[i] = float(e2m1_doubled(int(c & 15u)));
    q[8 + i] = float(e2m1_doubled(int(c >> 4)));
#elif BAO_DTYPE == 6 || BAO_DTYPE == 7
    q[i] = float((c & 15u) | (fifth >> i & 1u) << 4);
    q[8 + i] = float(c >> 4 | (fifth >> (16 + i) & 1u) << 4);
#elif BAO_DTYPE == 13
    const uint32_t h = byte_of(fifth, i);
    q[i] = float((c & 15u) | (h & 1u) << 4);
    q[8 + i] = float(c >> 4 | (h & 2u) << 3);
#else
    q[i] = float(c & 15u);
    q[8 + i] = float(c >> 4);
#endif
  }
#endif
#endif
}

#endif
