// How row-wise ops are cut into pieces: a unit is one vector of a view's last dimension, a piece is a run of units. Cuts never change bits.

// About this many elements a piece: a few microseconds, far above the cost of taking a piece, far below the 50 ms between looks at cancel.
constexpr int64_t PIECE_ELEMENTS = 16384;

BAO_INLINE int64_t units_per_piece(int64_t unit_elements) { return unit_elements >= PIECE_ELEMENTS ? 1 : PIECE_ELEMENTS / unit_elements; }
BAO_INLINE int32_t piece_count(int64_t units, int64_t per_piece) { return int32_t((units + per_piece - 1) / per_piece); }
BAO_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
BAO_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// Vector `unit` of a view seen as (rows * d1) vectors of d2.
BAO_INLINE float* unit_of(const Tensor& t, int64_t unit) { return t.f32(unit / t.d1) + unit % t.d1 * t.d2; }

// Pieces of an op whose units are the d2-vectors of `t`.
BAO_INLINE int32_t unit_pieces(const Tensor& t, const Run& run) { return piece_count(int64_t(run.step->count(t)) * t.d1, units_per_piece(t.d2)); }
template <class F> BAO_INLINE void for_units(const Tensor& t, const Run& run, int32_t piece, F&& f) {
  int64_t per_piece = units_per_piece(t.d2);
  int64_t end = smaller(int64_t(run.step->count(t)) * t.d1, (int64_t(piece) + 1) * per_piece);
  for (int64_t unit = piece * per_piece; unit < end; unit++) f(unit);
}

// Pieces of an op that treats every element alike: columns are cut too, so that one long row also spreads over threads.
BAO_INLINE int32_t element_pieces(const Tensor& t, const Run& run) {
  int64_t rows = run.step->count(t), columns = t.columns();
  return columns >= PIECE_ELEMENTS ? int32_t(rows * piece_count(columns, PIECE_ELEMENTS)) : piece_count(rows, units_per_piece(columns));
}
// f(row, first column, columns) for each part of a piece.
template <class F> BAO_INLINE void for_elements(const Tensor& t, const Run& run, int32_t piece, F&& f) {
  int64_t rows = run.step->count(t), columns = t.columns();
  if (columns >= PIECE_ELEMENTS) {
    int64_t chunks = piece_count(columns, PIECE_ELEMENTS), first = piece % chunks * PIECE_ELEMENTS;
    f(int64_t(piece / chunks), first, smaller(columns - first, PIECE_ELEMENTS));
  } else {
    int64_t per_piece = units_per_piece(columns), end = smaller(rows, (int64_t(piece) + 1) * per_piece);
    for (int64_t row = piece * per_piece; row < end; row++) f(row, int64_t(0), columns);
  }
}

template <class Args> BAO_INLINE const Args& args_of(const void* args) { return *static_cast<const Args*>(args); }
