// A slice of a weight's row as f32, and its product with rows of x: what matmul.cpp and moe.cpp share. Columns are taken in chunks of whole
// blocks, so that any row length works with a small array; the sum itself runs over all columns in ascending order, in double.
#pragma once
#include "../dequantize.h"
#include "reference.h"

namespace bao::reference {

constexpr int32_t chunk_columns = 1024;  // a multiple of every type's block

inline int32_t chunk_length(const WeightRef& w, int32_t c0) { return w.columns - c0 < chunk_columns ? w.columns - c0 : chunk_columns; }

inline void weight_chunk(const WeightRef& w, int64_t expert, int64_t row, int32_t c0, float* out) {
  const uint8_t* start = w.row(expert, row) + (c0 == 0 ? 0 : row_bytes(w.dtype, c0));
  dequantize_row(w.dtype, start, out, chunk_length(w, c0));
}

// Weight rows per piece, so that a piece is about `budget` products.
inline int32_t rows_per_piece(int64_t products_per_row, int64_t budget = int64_t(8) << 20) {
  int64_t rows = budget / (products_per_row > 0 ? products_per_row : 1);
  return rows < 1 ? 1 : rows > (1 << 20) ? 1 << 20 : int32_t(rows);
}

inline int32_t pieces_of(int64_t rows, int32_t per_piece) { return int32_t((rows + per_piece - 1) / per_piece); }

}  // namespace bao::reference
