// One or two activation rows and memory that is waited for, on AVX2 and AVX-512. A tile is not W rows in a row but as many from each of four places,
// a quarter of the matrix apart: its bytes come as four streams that each run on from tile to tile, which the hardware's own prefetch follows; W
// rows side by side are too many for it, and lines asked for by hand come slower. Measured on Zen 3 (docs/speed.md). Lanes are along the columns:
// weights are used as they are loaded, only the dot products of groups are transposed. Floats are added as in dot.inc.h, so the bits are the same.

constexpr int PLACES = beginning_places;
constexpr int PLACE_ROWS = W / PLACES;  // rows of each place in a tile

#if defined(__AVX2__)
constexpr int64_t STREAM_AHEAD = 512;  // bytes of a stream that are asked for before they are used

// Whether few rows of a weight are read so.
BAO_INLINE bool reads_places(int32_t dtype, int64_t rows, int64_t columns) {
  if (rows % W != 0) return false;
  if (dtype == BAO_Q4_K || dtype == BAO_Q5_K || dtype == BAO_Q6_K) return true;
  return columns % 64 == 0 && (dtype == BAO_Q8_0 || dtype == BAO_Q4_0 || dtype == BAO_Q5_0);
}

// For the first tile of a run, whose bytes nobody has asked for.
BAO_INLINE void start_streams(const uint8_t* data, int64_t apart) {
  for (int64_t at = 0; at < STREAM_AHEAD; at += 64)
    for (int r = 0; r < PLACES; r++) __builtin_prefetch(data + r * apart + at);
}
// Asks for what a stream has STREAM_AHEAD bytes on; BYTES of each place are about to be used.
template <int BYTES> BAO_INLINE void fetch_stream(const uint8_t* p, int64_t apart) {
  for (int r = 0; r < PLACES; r++)
    for (int at = 0; at < BYTES; at += 64) __builtin_prefetch(p + r * apart + STREAM_AHEAD + at);
}

#if defined(__AVX512F__)
#include "streams_avx512.inc.h"
#else
#include "streams_avx2.inc.h"
#endif

// tile_dot of a tile in places. rows: 1 or 2, rounded.
void places_dot(StreamScratch& scratch, const uint8_t* data, int64_t apart, int64_t row_bytes, int32_t dtype, int64_t columns, const void* const* rows, int64_t count, float* acc) {
  auto dot = [&](auto type) {
    using T = decltype(type);
    (count == 1 ? tile_places<T, 1> : tile_places<T, 2>)(scratch, data, apart, row_bytes, columns, rows, acc);
  };
  switch (dtype) {
    case BAO_Q8_0: return dot(UnpackQ8_0());
    case BAO_Q4_0: return dot(UnpackQ4_0());
    case BAO_Q5_0: return dot(UnpackQ5_0());
    case BAO_Q4_K: return dot(UnpackQ4_K());
    case BAO_Q5_K: return dot(UnpackQ5_K());
    default: return dot(UnpackQ6_K());
  }
}
#else
struct StreamScratch {};
BAO_INLINE bool reads_places(int32_t, int64_t, int64_t) { return false; }
BAO_INLINE void places_dot(StreamScratch&, const uint8_t*, int64_t, int64_t, int32_t, int64_t, const void* const*, int64_t, float*) {}
BAO_INLINE void store_places(float*, const float*, int64_t) {}
BAO_INLINE void start_streams(const uint8_t*, int64_t) {}
#endif
