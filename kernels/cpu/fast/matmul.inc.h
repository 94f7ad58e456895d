// matmul, matmul_group, matmul_glu: a stage that rounds the activations (fast), then one whose pieces are runs of weight tiles.

// ---- activations as the tiles see them

// `per_row` vectors of `columns` values in each row of x. blocks: where their ActBlocks are in the op's scratch.
struct ActStage {
  Tensor x;
  int32_t per_row;
  int64_t columns, blocks;
  BAO_INLINE const float* f32(int64_t unit) const { return x.f32(unit / per_row) + unit % per_row * columns; }
  BAO_INLINE ActBlock* rounded(const Run& run, int64_t unit) const { return reinterpret_cast<ActBlock*>(run.scratch + blocks) + unit * (columns / 32); }
  BAO_INLINE int64_t units(const Run& run) const { return int64_t(run.step->count(x)) * per_row; }
};

int32_t act_pieces(const void* args, const Run& run) {
  const ActStage& a = args_of<ActStage>(args);
  return piece_count(a.units(run), units_per_piece(a.columns));
}
void act_run(const void* args, const Run& run, int32_t piece) {
  const ActStage& a = args_of<ActStage>(args);
  int64_t per_piece = units_per_piece(a.columns), end = smaller(a.units(run), (int64_t(piece) + 1) * per_piece);
  for (int64_t u = piece * per_piece; u < end; u++) quantise_row(a.rounded(run, u), a.f32(u), a.columns);
}
BAO_INLINE bool rounds(const WeightRef& w, int32_t fast) { return fast == BAO_FAST && is_quantised(w.dtype); }
BAO_INLINE ActStage act_stage(Builder& b, const Tensor& x, int32_t per_row, bool rounded) {
  ActStage a = {x, per_row, x.columns() / per_row, 0};
  if (rounded) a.blocks = b.reserve_scratch(int64_t(x.d0) * per_row * (a.columns / 32) * int64_t(sizeof(ActBlock)));
  return a;
}

// ---- tiles

struct Worker {
  TileScratch tile;
  alignas(64) float acc[ROW_BLOCK * W], acc2[ROW_BLOCK * W];
  const void* rows[ROW_BLOCK];
};
static_assert(sizeof(Worker) <= 1 << 20, "worker scratch");

BAO_INLINE int64_t tile_count(int64_t rows) { return (rows + W - 1) / W; }
// The first output of tile `index` and the lanes that are its own: the last tile reaches back to stay whole, and repeats some outputs of the
// tile before it (with the same bits) that are not stored.
struct OutputTile {
  int64_t first;
  int skip, lanes;
};
BAO_INLINE OutputTile output_tile(int64_t rows, int64_t index) {
  int64_t first = index * W, left = rows - first;
  if (left >= W) return {first, 0, W};
  if (rows >= W) return {rows - W, int(W - left), W};
  return {0, 0, int(rows)};
}
// acc = the tile's dot products with w.rows of `worker`, times the weight's factor. first, more, other: as in WeightTile.
BAO_INLINE void run_tile(Worker& worker, const WeightRef& w, int64_t expert, const OutputTile& place, bool fast, int64_t rows, bool first, int64_t more, float* acc, const uint8_t* other = nullptr) {
  WeightTile tile = {w.row(expert, place.first), w.row_bytes, place.lanes, more, first, other};
  tile_dot(worker.tile, tile, w.dtype, w.columns, fast, worker.rows, rows, acc);
  if (w.factors) {
    vf factor = vset1(w.factor(expert));
    for (int64_t i = 0; i < rows * W; i += W) vstore(acc + i, vmul(vload(acc + i), factor));
  }
}
BAO_INLINE void store_lanes(float* dst, const float* acc, const OutputTile& place) {
  dst += place.first;
  if (place.skip == 0 && place.lanes == W) vstore(dst, vload(acc));
  else for (int i = place.skip; i < place.lanes; i++) dst[i] = acc[i];
}

// How a matmul of `rows` by `tiles` is cut. Pieces of one tile group, differing in rows, follow each other so that they share its bytes.
// Few rows only wait for memory, and every piece has to wait for its first bytes: their pieces begin large and become small, each a share
// of what is left, so that all threads end together.
struct Cut {
  int64_t row_blocks, rows_each, tiles;
  int64_t least, most, shares;  // tiles of a group: 1 / shares of what is left, within least and most
  BAO_INLINE int64_t group(int64_t left) const { return smaller(left, larger(least, smaller(most, left / shares))); }
  BAO_INLINE int32_t pieces() const {
    int64_t n = 0;
    if (least == most) n = (tiles + least - 1) / least;
    else for (int64_t left = tiles; left > 0; left -= group(left)) n++;
    return int32_t(n * row_blocks);
  }
  // The tiles of a piece.
  BAO_INLINE void range(int32_t piece, int64_t* begin, int64_t* end) const {
    int64_t n = piece / row_blocks;
    *begin = 0;
    if (least == most) *begin = n * least;
    else while (n-- > 0) *begin += group(tiles - *begin);
    *end = *begin + group(tiles - *begin);
  }
};
constexpr int64_t PIECE_BYTES = 256 << 10, LEAST_BYTES = 32 << 10, MOST_BYTES = 8 << 20;
constexpr int64_t FEW_ROWS = 4;
BAO_INLINE Cut cut_of(int64_t rows, int64_t tiles, int64_t tile_bytes, int32_t threads) {
  Cut c;
  c.row_blocks = (rows + ROW_BLOCK - 1) / ROW_BLOCK;
  c.rows_each = c.row_blocks ? (rows + c.row_blocks - 1) / c.row_blocks : 0;
  c.rows_each = smaller((c.rows_each + MAX_ROWS - 1) / MAX_ROWS * MAX_ROWS, ROW_BLOCK);
  c.tiles = tiles;
  c.shares = 2 * threads;
  if (rows <= FEW_ROWS) {
    c.least = larger(1, LEAST_BYTES / tile_bytes);
    c.most = larger(c.least + 1, MOST_BYTES / tile_bytes);
  } else {
    int64_t shared = (tiles + 4 * threads - 1) / (4 * threads);
    c.least = c.most = larger(1, smaller(shared, PIECE_BYTES / tile_bytes));
  }
  return c;
}

// ---- matmul and matmul_group: up to three weights, their tiles in one list

struct MatmulStage {
  ActStage act;
  Tensor dst[3];
  WeightRef w[3];
  int32_t count, fast;
  int64_t dst_scratch;  // >= 0: dst[0] is packed rows in the op's scratch
};
BAO_INLINE Cut matmul_cut(const MatmulStage& a, const Run& run) {
  int64_t tiles = 0;
  for (int i = 0; i < a.count; i++) tiles += tile_count(a.w[i].rows);
  return cut_of(a.act.units(run), tiles, a.w[0].row_bytes * W, run.threads);
}
int32_t matmul_pieces(const void* args, const Run& run) {
  return matmul_cut(args_of<MatmulStage>(args), run).pieces();
}
void matmul_run(const void* args, const Run& run, int32_t piece) {
  const MatmulStage& a = args_of<MatmulStage>(args);
  Worker& worker = *reinterpret_cast<Worker*>(run.worker_scratch);
  Cut c = matmul_cut(a, run);
  int64_t first = piece % c.row_blocks * c.rows_each, rows = smaller(a.act.units(run) - first, c.rows_each);
  int64_t begin, end, before = 0;
  c.range(piece, &begin, &end);
  for (int i = 0; i < a.count; i++) {
    const WeightRef& w = a.w[i];
    int64_t tiles = tile_count(w.rows), from = larger(begin - before, 0), to = smaller(end - before, tiles);
    before += tiles;
    if (from >= to) continue;
    bool fast = rounds(w, a.fast);
    for (int64_t r = 0; r < rows; r++) worker.rows[r] = fast ? static_cast<const void*>(a.act.rounded(run, first + r)) : a.act.f32(first + r);
    for (int64_t t = from; t < to; t++) {
      OutputTile place = output_tile(w.rows, t);
      run_tile(worker, w, 0, place, fast, rows, t == from, to - t - 1, worker.acc);
      for (int64_t r = 0; r < rows; r++) {
        float* dst = a.dst_scratch < 0 ? a.dst[i].f32(first + r) : reinterpret_cast<float*>(run.scratch + a.dst_scratch) + (first + r) * w.rows;
        store_lanes(dst, worker.acc + r * W, place);
      }
    }
  }
}
void add_matmul(Builder& b, const MatmulGroupArgs& g, int64_t dst_scratch) {
  MatmulStage a = {};
  a.fast = g.fast;
  a.dst_scratch = dst_scratch;
  bool rounded = false;
  for (int i = 0; i < 3; i++) {
    if (!g.w[i].present()) continue;
    a.dst[a.count] = g.dst[i];
    a.w[a.count++] = g.w[i];
    rounded = rounded || rounds(g.w[i], g.fast);
  }
  a.act = act_stage(b, g.x, 1, rounded);
  if (rounded) b.add(&a.act, sizeof a.act, act_pieces, act_run);
  b.add(&a, sizeof a, matmul_pieces, matmul_run);
}
void record_matmul_group(Builder& b, const MatmulGroupArgs& a) { add_matmul(b, a, -1); }
void record_matmul(Builder& b, const MatmulArgs& a) {
  MatmulGroupArgs g = {};
  g.dst[0] = a.dst;
  g.x = a.x;
  g.w[0] = a.w;
  g.fast = a.fast;
  add_matmul(b, g, -1);
}

// ---- matmul_glu: a gate tile, then the up tile of the same outputs

// up = absent: the gate weight holds gate rows, then up rows.
BAO_INLINE void split_gate_up(WeightRef& gate, WeightRef& up) {
  if (up.present()) return;
  gate.rows /= 2;
  up = gate;
  up.data += up.rows * up.row_bytes;
}
// Calls store(place, values [rows][W]) with act(gate) * up for each of the tiles [begin, end) of outputs. Gate tiles come in runs, and then the up
// tiles of the same outputs: memory is fastest where it is read on.
constexpr int64_t GLU_RUN = 32;
template <class Store> BAO_INLINE void run_glu_tiles(Worker& worker, const WeightRef& gate, const WeightRef& up, int64_t expert, int64_t begin, int64_t end, const void* const* gate_rows, const void* const* up_rows, int64_t rows, int32_t fast, int32_t activation, Store&& store) {
  const int64_t length = larger(1, smaller(GLU_RUN, ROW_BLOCK / rows));
  const bool alike = gate.row_bytes == up.row_bytes && gate.dtype == up.dtype;
  auto at = [&](const WeightRef& w, int64_t t) { return alike && t < end ? w.row(expert, output_tile(w.rows, t).first) : nullptr; };
  for (int64_t from = begin, n; from < end; from += n) {
    n = smaller(length, end - from);
    for (int64_t r = 0; r < rows; r++) worker.rows[r] = gate_rows[r];
    for (int64_t i = 0; i < n; i++) {
      run_tile(worker, gate, expert, output_tile(gate.rows, from + i), rounds(gate, fast), rows, i == 0 && (from == begin || !alike), n - i - 1, worker.acc + i * rows * W, at(up, from));
    }
    for (int64_t r = 0; r < rows; r++) worker.rows[r] = up_rows[r];
    for (int64_t i = 0; i < n; i++) {
      run_tile(worker, up, expert, output_tile(up.rows, from + i), rounds(up, fast), rows, i == 0 && !alike, n - i - 1, worker.acc2 + i * rows * W, at(gate, from + n));
    }
    glu_span(worker.acc, worker.acc, worker.acc2, n * rows * W, activation);
    for (int64_t i = 0; i < n; i++) store(output_tile(gate.rows, from + i), worker.acc + i * rows * W);
  }
}

struct GluStage {
  ActStage act;
  Tensor dst;
  WeightRef gate, up;
  int32_t activation, fast;
};
BAO_INLINE Cut glu_cut(const GluStage& a, const Run& run) {
  return cut_of(a.act.units(run), tile_count(a.gate.rows), (a.gate.row_bytes + a.up.row_bytes) * W, run.threads);
}
int32_t glu_tiles_pieces(const void* args, const Run& run) {
  return glu_cut(args_of<GluStage>(args), run).pieces();
}
void glu_tiles_run(const void* args, const Run& run, int32_t piece) {
  const GluStage& a = args_of<GluStage>(args);
  Worker& worker = *reinterpret_cast<Worker*>(run.worker_scratch);
  Cut c = glu_cut(a, run);
  int64_t first = piece % c.row_blocks * c.rows_each, rows = smaller(a.act.units(run) - first, c.rows_each);
  int64_t begin, end;
  c.range(piece, &begin, &end);
  const void *gate_rows[ROW_BLOCK], *up_rows[ROW_BLOCK];
  for (int64_t r = 0; r < rows; r++) {
    gate_rows[r] = rounds(a.gate, a.fast) ? static_cast<const void*>(a.act.rounded(run, first + r)) : a.act.f32(first + r);
    up_rows[r] = rounds(a.up, a.fast) ? static_cast<const void*>(a.act.rounded(run, first + r)) : a.act.f32(first + r);
  }
  run_glu_tiles(worker, a.gate, a.up, 0, begin, end, gate_rows, up_rows, rows, a.fast, a.activation, [&](const OutputTile& place, const float* values) {
    for (int64_t r = 0; r < rows; r++) store_lanes(a.dst.f32(first + r), values + r * W, place);
  });
}
void record_matmul_glu(Builder& b, const MatmulGluArgs& g) {
  GluStage a = {{}, g.dst, g.gate, g.up, g.activation, g.fast};
  split_gate_up(a.gate, a.up);
  bool rounded = rounds(a.gate, g.fast) || rounds(a.up, g.fast);
  a.act = act_stage(b, g.x, 1, rounded);
  if (rounded) b.add(&a.act, sizeof a.act, act_pieces, act_run);
  b.add(&a, sizeof a, glu_tiles_pieces, glu_tiles_run);
}
