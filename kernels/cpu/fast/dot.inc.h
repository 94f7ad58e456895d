// Dot products of one tile of W weight rows with any number of activation rows: the only place where a matmul's floats are added.
// A chunk of the tile is unpacked into worker scratch, then met by all rows. Each (row, output) has one order, whatever stands beside it:
//   int8:  sum = fma(float(integer dot of a group), s * d, sum), then + m * d * sum(q) when the format has a minimum, groups ascending;
//   f32:   part = fma over the even columns of 32 + fma over the odd ones, ascending; sum = sum + part.

constexpr int64_t CHUNK = 256;            // columns unpacked at a time
constexpr int64_t ROW_BLOCK = 128;        // activation rows that share an unpacked tile
constexpr int64_t AHEAD_BYTES = W == 16 ? 10 << 10 : 14 << 10;  // fetched before they are unpacked
// Lines are fetched in the order of addresses, a tile and a chunk ahead, instead of in the order of use: measured on Zen 3, where the hardware's
// own prefetch joins in; on Zen 5 with 16 rows it is slower.
constexpr bool BY_ADDRESS = W == 8;
// Whole tiles, each `bytes` long, between what is used and what is fetched.
BAO_INLINE int64_t tiles_ahead(int64_t bytes) { return BY_ADDRESS ? 1 : AHEAD_BYTES / bytes; }

// W rows of a weight, `stride` bytes apart; rows at or beyond `rows` do not exist and are not read. `more` tiles follow in memory and are
// next, and after them those at `other`, if any, of the same type and stride.
struct WeightTile {
  const uint8_t* data;
  int64_t stride;
  int rows;
  int64_t more;
  const uint8_t* other = nullptr;
  // The n-th tile after this one; null: unknown.
  BAO_INLINE const uint8_t* after(int64_t n) const {
    if (n <= more) return data + n * W * stride;
    return other ? other + (n - more - 1) * W * stride : nullptr;
  }
};

// What `Ahead` takes for granted when a tile begins: for the first of a run, whose bytes nobody has asked for.
BAO_INLINE void fetch_start(const uint8_t* data, int64_t stride, int64_t columns) {
  int64_t chunks = (columns + CHUNK - 1) / CHUNK, bytes = stride * CHUNK / columns;
  for (int64_t n = 0; n * bytes * W <= AHEAD_BYTES; n++) {
    const uint8_t* p = data + n / chunks * W * stride + n % chunks * bytes;
    for (int r = 0; r < W; r++, p += stride)
      for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(p + at);
  }
}

// Fetches what will be unpacked some chunks later. Hardware loses track of W streams; and lines are asked for little by little (a part with
// every 32 columns), because a burst would fill the miss buffers and hold up the loads. CHUNK_BYTES: of one row of a chunk.
template <class T> struct Ahead {
  static constexpr int CHUNK_BYTES = CHUNK / T::ELEMENTS * T::BYTES, LINES = (CHUNK_BYTES + 63) / 64, DISTANCE = 1 + AHEAD_BYTES / (CHUNK_BYTES * W);
  const WeightTile& tile;
  int64_t chunks, stride = 0;
  const uint8_t* p = nullptr;
  int step = 0;
  BAO_INLINE Ahead(const WeightTile& t, int64_t columns) : tile(t), chunks((columns + CHUNK - 1) / CHUNK) {}
  BAO_INLINE void at_chunk(int64_t chunk) {
    int64_t n = 0;
    for (chunk += BY_ADDRESS ? chunks + 1 : DISTANCE; chunk >= chunks; chunk -= chunks) n++;
    const uint8_t* next = tile.after(n);
    stride = !next ? 0 : BY_ADDRESS ? CHUNK_BYTES : tile.stride;
    p = next ? next + chunk * CHUNK_BYTES * (BY_ADDRESS ? W : 1) : tile.data;
    step = 0;
  }
  BAO_INLINE void fetch() {
    if (W < 8 ? step++ % 2 : (step++, false)) return;
    for (int r = 0; r < (W + 7) / 8; r++, p += stride)
      for (int line = 0; line < LINES; line++) __builtin_prefetch(p + 64 * line);
  }
  // After a chunk of fewer columns: the parts that it left out.
  BAO_INLINE void rest() {
    while (step < CHUNK / 32) fetch();
  }
};

struct TileScratch {
  alignas(64) float f[CHUNK * W];                     // f32 weights
  alignas(64) uint8_t q[CHUNK * W];
  alignas(64) float s[CHUNK / 16 * W], m[CHUNK / 16 * W];
  alignas(64) uint32_t head[CHUNK / 32 * W];
  alignas(64) uint8_t copy[CHUNK * 4 * W];            // rows of an incomplete tile, padded with zero blocks
};

// ---- register tiles

// KIND 0: unsigned without offset, 1: unsigned with an offset of 2^SHIFT, 2: signed.
template <class T> constexpr int kind_of() { return !UNSIGNED_BYTES || (SIGNED_WIDE && T::OFFSET == 128) ? 2 : T::OFFSET ? 1 : 0; }
template <int V> constexpr int log2_of() { return V <= 1 ? 0 : 1 + log2_of<V / 2>(); }

// The integer dot product of a group starts at what takes the offset off, and ends as two roundings of the float sum.
template <int GROUP, int KIND, int SHIFT> BAO_INLINE vi dot_start(const ActBlock* a, int half) {
  return KIND == 1 ? ishl<SHIFT>(iset(uint32_t(GROUP == 32 ? a->less32 : a->less16[half]))) : iset(0);
}
template <int GROUP, bool MINIMUM> BAO_INLINE vf dot_end(vf sum, vi dot, vf scale, vf minimum, const ActBlock* a, int half) {
  sum = vfma(vfloat(dot), vmul(scale, vset1(a->d)), sum);
  return MINIMUM ? vfma(minimum, vset1(GROUP == 32 ? a->sum32 : a->sum16[half]), sum) : sum;
}

template <int ROWS, int GROUP, bool MINIMUM, int KIND, int SHIFT>
__attribute__((noinline)) void dot_int8(const TileScratch& t, int64_t blocks, const void* const* rows, int64_t first, float* acc) {
  const uint8_t* q = t.q;
  const float *s = t.s, *m = t.m;
  const ActBlock* a[ROWS];
  vf sum[ROWS];
  for (int r = 0; r < ROWS; r++) {
    a[r] = static_cast<const ActBlock*>(rows[r]) + first;
    sum[r] = vload(acc + r * W);
  }
  for (int64_t b = 0; b < blocks; b++) {
    unroll<32 / GROUP>([&](auto part) {
      constexpr int H = decltype(part)::value;
      vi dot[ROWS];
      for (int r = 0; r < ROWS; r++) dot[r] = dot_start<GROUP, KIND, SHIFT>(a[r], H);
#pragma GCC unroll 8
      for (int i = 0; i < GROUP; i += 4) {
        vi w = iload(q);
        q += 4 * W;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) dot[r] = dot4<KIND == 2>(dot[r], w, a[r]->q + H * GROUP + i);
      }
      vf scale = vload(s), minimum = MINIMUM ? vload(m) : vzero();
      s += W;
      m += MINIMUM ? W : 0;
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) sum[r] = dot_end<GROUP, MINIMUM>(sum[r], dot[r], scale, minimum, a[r], H);
    });
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) a[r]++;
  }
  for (int r = 0; r < ROWS; r++) vstore(acc + r * W, sum[r]);
}

template <int ROWS> __attribute__((noinline)) void dot_f32(const TileScratch& t, int64_t columns, const void* const* rows, int64_t first, float* acc) {
  const float* w = t.f;
  const float* x[ROWS];
  for (int r = 0; r < ROWS; r++) x[r] = static_cast<const float*>(rows[r]) + first;
  for (int64_t k = 0; k < columns; k += 32) {
    vf even[ROWS], odd[ROWS];
    for (int r = 0; r < ROWS; r++) even[r] = odd[r] = vzero();
    int64_t end = columns - k < 32 ? columns - k : 32, i = 0;
    for (; i + 2 <= end; i += 2) {
      vf v0 = vload(w), v1 = vload(w + W);
      w += 2 * W;
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        even[r] = vfma(v0, vset1(x[r][i]), even[r]);
        odd[r] = vfma(v1, vset1(x[r][i + 1]), odd[r]);
      }
    }
    if (i < end) {
      vf v = vload(w);
      w += W;
      for (int r = 0; r < ROWS; r++) even[r] = vfma(v, vset1(x[r][i]), even[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      x[r] += 32;
      vstore(acc + r * W, vadd(vload(acc + r * W), vadd(even[r], odd[r])));
    }
  }
}

// Calls f<n>(first row) with n in {MAX_ROWS ... 1} until all rows are served.
template <class F> BAO_INLINE void for_row_tiles(int64_t rows, F&& f) {
  int64_t r = 0;
  for (; r + MAX_ROWS <= rows; r += MAX_ROWS) f(index_t<MAX_ROWS>{}, r);
  if constexpr (MAX_ROWS > 4) {
    if (r + 4 <= rows) { f(index_t<4>{}, r); r += 4; }
  }
  if (r + 3 == rows) f(index_t<3>{}, r);
  else if (r + 2 == rows) f(index_t<2>{}, r);
  else if (r + 1 == rows) f(index_t<1>{}, r);
}

// ---- unpacking a chunk

// Keeps what is unpacked: q [columns / 4][W][4 bytes], s and m [groups][W].
template <class T> struct StoreSink {
  Ahead<T>& ahead;
  uint8_t* q;
  float *s, *m;
  BAO_INLINE void scale(vf v) { vstore(s, v), s += W; }
  BAO_INLINE void minimum(vf v) { vstore(m, v), m += W; }
  template <class F> BAO_INLINE void values(F&& f) {
    ahead.fetch();
    unroll<8>([&](auto t) { istore(q + decltype(t)::value * 4 * W, kept<T::OFFSET>(f(t))); });
    q += 32 * W;
  }
};

// Meets the values at once with one or two activation rows: the same sums as dot_int8, without the way through memory.
template <class T, int ROWS> struct DotSink {
  Ahead<T>& ahead;
  float *s, *m;              // scales are kept until their values come
  const float *s_next, *m_next;
  const ActBlock* a[ROWS];
  vf sum[ROWS];
  BAO_INLINE void scale(vf v) { vstore(s, v), s += W; }
  BAO_INLINE void minimum(vf v) { vstore(m, v), m += W; }
  template <class F> BAO_INLINE void values(F&& f) {
    ahead.fetch();
    unroll<32 / T::GROUP>([&](auto part) {
      constexpr int H = decltype(part)::value, N = T::GROUP / 4;
      vi dot[ROWS][2];  // two chains, half as long
      for (int r = 0; r < ROWS; r++) dot[r][0] = dot_start<T::GROUP, kind_of<T>(), log2_of<T::OFFSET>()>(a[r], H), dot[r][1] = iset(0);
      unroll<N>([&](auto t) {
        constexpr int I = H * N + decltype(t)::value;
        vi w = kept<T::OFFSET>(f(index_t<I>{}));
        for (int r = 0; r < ROWS; r++) dot[r][I % 2] = dot4<kind_of<T>() == 2>(dot[r][I % 2], w, a[r]->q + 4 * I);
      });
      vf scale = vload(s_next), minimum = T::MINIMUM ? vload(m_next) : vzero();
      s_next += W;
      if constexpr (T::MINIMUM) m_next += W;
      for (int r = 0; r < ROWS; r++) sum[r] = dot_end<T::GROUP, T::MINIMUM>(sum[r], iadd(dot[r][0], dot[r][1]), scale, minimum, a[r], H);
    });
    for (int r = 0; r < ROWS; r++) a[r]++;
  }
};

#include "streams.inc.h"

template <class T> BAO_INLINE void gather_heads(TileScratch& t, const uint8_t* p, int64_t stride, int64_t blocks) {
  for (int r = 0; r < W; r++) {
    const uint8_t* at = p + r * stride + T::HEAD_AT;
    for (int64_t b = 0; b < blocks; b++) {
      uint32_t head = 0;
      __builtin_memcpy(&head, at + b * T::BYTES, T::HEAD);
      t.head[b * W + r] = head;
    }
  }
}
template <class T, class Sink> BAO_INLINE void unpack_chunk(TileScratch& t, const uint8_t* p, int64_t stride, int64_t blocks, Sink& sink) {
  if constexpr (T::PAIR) {
    for (; blocks >= 2; blocks -= 2, p += 2 * T::BYTES) T::pair(p, stride, sink);
    if (blocks == 0) return;
  }
  if constexpr (T::HEAD != 0) gather_heads<T>(t, p, stride, blocks);
  for (int64_t b = 0; b < blocks; b++) T::block(p + b * T::BYTES, stride, T::HEAD ? iload(t.head + b * W) : iset(0), sink);
}

// Integers to f32 weights: exact but for the addition of a minimum.
template <class T> BAO_INLINE void expand_chunk(TileScratch& t, int64_t columns) {
  for (int64_t g = 0; g < columns / T::GROUP; g++) {
    vf scale = vload(t.s + g * W), minimum = T::MINIMUM ? vload(t.m + g * W) : vzero();
    for (int i = 0; i < T::GROUP; i += 4) {
      vi q = iload(t.q + (g * T::GROUP + i) * W);
      float* out = t.f + (g * T::GROUP + i) * W;
      unroll<4>([&](auto byte) {
        constexpr int B = decltype(byte)::value;
        vi v = kind_of<T>() == 2 ? isar<24>(ishl<24 - 8 * B>(q)) : isub(iand(ishr<8 * B>(q), iset(255)), iset(uint32_t(T::OFFSET)));
        vf x = vmul(vfloat(v), scale);
        vstore(out + B * W, T::MINIMUM ? vadd(x, minimum) : x);
      });
    }
  }
}

// The chunk at byte `at` of each row, `bytes` long: in place for a whole tile, else copied with zeros for what is missing.
BAO_INLINE const uint8_t* chunk_rows(TileScratch& t, const WeightTile& tile, int64_t at, int64_t bytes, int64_t padded, int64_t* stride) {
  if (tile.rows >= W && bytes == padded) {
    *stride = tile.stride;
    return tile.data + at;
  }
  for (int r = 0; r < W; r++) {
    uint8_t* out = t.copy + r * padded;
    int64_t n = r < tile.rows ? bytes : 0;
    __builtin_memcpy(out, tile.data + r * (n ? tile.stride : 0) + at, size_t(n));
    __builtin_memset(out + n, 0, size_t(padded - n));
  }
  *stride = padded;
  return t.copy;
}

template <class T, int ROWS> __attribute__((noinline)) void tile_few(TileScratch& t, const WeightTile& tile, int64_t columns, const void* const* rows, float* acc) {
  constexpr int64_t BLOCKS = CHUNK / T::ELEMENTS;
  int64_t all = columns / T::ELEMENTS;
  Ahead<T> ahead(tile, columns);
  DotSink<T, ROWS> sink = {ahead, t.s, t.m, t.s, t.m, {}, {}};
  for (int r = 0; r < ROWS; r++) {
    sink.a[r] = static_cast<const ActBlock*>(rows[r]);
    sink.sum[r] = vzero();
  }
  for (int64_t b = 0; b < all; b += BLOCKS) {
    int64_t blocks = all - b < BLOCKS ? all - b : BLOCKS, stride;
    const uint8_t* p = chunk_rows(t, tile, b * T::BYTES, blocks * T::BYTES, blocks * T::BYTES, &stride);
    ahead.at_chunk(b / BLOCKS);
    sink.s = t.s, sink.m = t.m, sink.s_next = t.s, sink.m_next = t.m;
    unpack_chunk<T>(t, p, stride, blocks, sink);
    ahead.rest();
  }
  for (int r = 0; r < ROWS; r++) vstore(acc + r * W, sink.sum[r]);
}

// acc [rows][W] += the tile times each of `rows` activation rows; rows[i] points to ActBlocks (fast) or floats.
template <class T> void tile_quantised(TileScratch& t, const WeightTile& tile, int64_t columns, bool fast, const void* const* rows, int64_t count, float* acc) {
  constexpr int64_t BLOCKS = CHUNK / T::ELEMENTS;
  int64_t all = columns / T::ELEMENTS;
  if (fast && count == 1) return tile_few<T, 1>(t, tile, columns, rows, acc);
  if (fast && count == 2) return tile_few<T, 2>(t, tile, columns, rows, acc);
  Ahead<T> ahead(tile, columns);
  for (int64_t b = 0; b < all; b += BLOCKS) {
    int64_t blocks = all - b < BLOCKS ? all - b : BLOCKS, k = b * T::ELEMENTS, n = blocks * T::ELEMENTS, stride;
    const uint8_t* p = chunk_rows(t, tile, b * T::BYTES, blocks * T::BYTES, blocks * T::BYTES, &stride);
    ahead.at_chunk(b / BLOCKS);
    StoreSink<T> sink = {ahead, t.q, t.s, t.m};
    unpack_chunk<T>(t, p, stride, blocks, sink);
    ahead.rest();
    if (fast) {
      for_row_tiles(count, [&](auto r, int64_t first) {
        dot_int8<decltype(r)::value, T::GROUP, T::MINIMUM, kind_of<T>(), log2_of<T::OFFSET>()>(t, n / 32, rows + first, k / 32, acc + first * W);
      });
    } else {
      expand_chunk<T>(t, n);
      for_row_tiles(count, [&](auto r, int64_t first) { dot_f32<decltype(r)::value>(t, n, rows + first, k, acc + first * W); });
    }
  }
}

// Whole groups of 32 columns of one or two rows, without the way through memory. Gives the column that it stopped at.
template <class T, int ROWS> __attribute__((noinline)) int64_t tile_plain_few(const WeightTile& tile, int64_t columns, const void* const* rows, float* acc) {
  Ahead<T> ahead(tile, columns);
  const float* x[ROWS];
  vf sum[ROWS];
  for (int r = 0; r < ROWS; r++) x[r] = static_cast<const float*>(rows[r]), sum[r] = vzero();
  int64_t k = 0;
  for (; k + 32 <= columns; k += 32) {
    if (k % CHUNK == 0) ahead.at_chunk(k / CHUNK);
    ahead.fetch();
    vf even[ROWS], odd[ROWS];
    for (int r = 0; r < ROWS; r++) even[r] = odd[r] = vzero();
#pragma GCC unroll 4
    for (int i = 0; i < 32; i += 8) {
      vf w[8];
      T::eight(tile.data + (k + i) * T::BYTES, tile.stride, w);
      for (int r = 0; r < ROWS; r++) {
        for (int j = 0; j < 8; j += 2) {
          even[r] = vfma(w[j], vset1(x[r][k + i + j]), even[r]);
          odd[r] = vfma(w[j + 1], vset1(x[r][k + i + j + 1]), odd[r]);
        }
      }
    }
    for (int r = 0; r < ROWS; r++) sum[r] = vadd(sum[r], vadd(even[r], odd[r]));
  }
  if (k > 0) ahead.rest();
  for (int r = 0; r < ROWS; r++) vstore(acc + r * W, sum[r]);
  return k;
}

template <class T> void tile_plain(TileScratch& t, const WeightTile& tile, int64_t columns, const void* const* rows, int64_t count, float* acc) {
  Ahead<T> ahead(tile, columns);
  int64_t k = 0;
  if (tile.rows >= W && count == 1) k = tile_plain_few<T, 1>(tile, columns, rows, acc);
  if (tile.rows >= W && count == 2) k = tile_plain_few<T, 2>(tile, columns, rows, acc);
  for (; k < columns; k += CHUNK) {
    int64_t n = columns - k < CHUNK ? columns - k : CHUNK, padded = (n + 7) / 8 * 8, stride;
    ahead.at_chunk(k / CHUNK);
    const uint8_t* p = chunk_rows(t, tile, k * T::BYTES, n * T::BYTES, padded * T::BYTES, &stride);
    for (int64_t i = 0; i < padded; i += 8) {
      if (i % 32 == 0) ahead.fetch();
      vf w[8];
      T::eight(p + i * T::BYTES, stride, w);
      for (int j = 0; j < 8; j++) vstore(t.f + (i + j) * W, w[j]);
    }
    ahead.rest();
    for_row_tiles(count, [&](auto r, int64_t first) { dot_f32<decltype(r)::value>(t, n, rows + first, k, acc + first * W); });
  }
}

BAO_INLINE bool is_quantised(int32_t dtype) { return dtype != BAO_F32 && dtype != BAO_F16 && dtype != BAO_BF16; }

void tile_dot(TileScratch& t, const WeightTile& tile, int32_t dtype, int64_t columns, bool fast, const void* const* rows, int64_t count, float* acc) {
  __builtin_memset(acc, 0, size_t(count * W) * sizeof(float));
  switch (dtype) {
    case BAO_F32: return tile_plain<PlainF32>(t, tile, columns, rows, count, acc);
    case BAO_F16: return tile_plain<PlainF16>(t, tile, columns, rows, count, acc);
    case BAO_BF16: return tile_plain<PlainBF16>(t, tile, columns, rows, count, acc);
    case BAO_Q4_0: return tile_quantised<UnpackQ4_0>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q4_1: return tile_quantised<UnpackQ4_1>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q5_0: return tile_quantised<UnpackQ5_0>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q5_1: return tile_quantised<UnpackQ5_1>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q8_0: return tile_quantised<UnpackQ8_0>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q2_K: return tile_quantised<UnpackQ2_K>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q3_K: return tile_quantised<UnpackQ3_K>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q4_K: return tile_quantised<UnpackQ4_K>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q5_K: return tile_quantised<UnpackQ5_K>(t, tile, columns, fast, rows, count, acc);
    case BAO_Q6_K: return tile_quantised<UnpackQ6_K>(t, tile, columns, fast, rows, count, acc);
    case BAO_IQ4_NL: return tile_quantised<UnpackIQ4_NL>(t, tile, columns, fast, rows, count, acc);
    case BAO_IQ4_XS: return tile_quantised<UnpackIQ4_XS>(t, tile, columns, fast, rows, count, acc);
    case BAO_MXFP4: return tile_quantised<UnpackMXFP4>(t, tile, columns, fast, rows, count, acc);
    case BAO_NVFP4: return tile_quantised<UnpackNVFP4>(t, tile, columns, fast, rows, count, acc);
    default: return;  // refused when the weight was made
  }
}
