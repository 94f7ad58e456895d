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
  StreamScratch streams;
  alignas(64) float acc[ROW_BLOCK * W], acc2[ROW_BLOCK * W];
  const void* rows[ROW_BLOCK];
};
static_assert(sizeof(Worker) + PIECE_ELEMENTS * sizeof(ActBlock) / 32 <= 1 << 20, "worker scratch");

// What one thread would round while the others wait is rounded by each of them for itself, where it then takes one piece after the other.
constexpr int64_t FEW_ROWS = 4;
BAO_INLINE bool shared(const ActStage& a, const Run& run) { return a.units(run) > FEW_ROWS || a.units(run) * a.columns > PIECE_ELEMENTS; }
int32_t shared_act_pieces(const void* args, const Run& run) { return shared(args_of<ActStage>(args), run) ? act_pieces(args, run) : 0; }
BAO_INLINE const ActBlock* rounded_rows(const ActStage& a, const Run& run) {
  if (shared(a, run)) return a.rounded(run, 0);
  ActBlock* own = reinterpret_cast<ActBlock*>(run.worker_scratch + sizeof(Worker));
  for (int64_t u = 0; u < a.units(run); u++) quantise_row(own + u * (a.columns / 32), a.f32(u), a.columns);
  return own;
}

BAO_INLINE int64_t tile_count(int64_t rows) { return (rows + W - 1) / W; }
// The outputs of a tile: `lanes` from `first`, of which `skip` are not its own, because the last tile reaches back to stay whole and repeats some
// outputs of the tile before it (with the same bits). Or PLACE_ROWS from each of PLACES places that are `apart` outputs from each other.
struct OutputTile {
  int64_t first;
  int skip, lanes;
  int64_t apart;
};
// Tiles of a weight as one thread meets them: which form they have depends on the rows of activations that wait for it.
struct Tiles {
  const WeightRef* w = nullptr;
  int64_t expert = 0;
  bool fast = false, places = false;
  BAO_INLINE Tiles() = default;
  BAO_INLINE Tiles(const WeightRef& w, int64_t expert, bool fast, int64_t rows)
      : w(&w), expert(expert), fast(fast), places(fast && rows <= 2 && reads_places(w.dtype, w.rows, w.columns)) {}
  BAO_INLINE OutputTile place(int64_t index) const {
    if (places) return {PLACE_ROWS * index, 0, W, w->rows / PLACES};
    int64_t first = index * W, left = w->rows - first;
    if (left >= W) return {first, 0, W, 0};
    if (w->rows >= W) return {w->rows - W, int(W - left), W, 0};
    return {0, 0, int(w->rows), 0};
  }
  BAO_INLINE const uint8_t* data(int64_t index) const { return w->row(expert, place(index).first); }
  // Asks for the first bytes of a tile and what follows it.
  BAO_INLINE void fetch(int64_t index) const {
    if (places) start_streams(data(index), w->rows / PLACES * w->row_bytes);
    else fetch_start(data(index), w->row_bytes, w->columns);
  }
  // Where tiles [first, first + count), or those up to the weight's end, are read.
  BAO_INLINE Beginning beginning(int64_t first, int64_t count) const {
    count = smaller(count, tile_count(w->rows) - first);
    if (places) return {data(first), count * PLACE_ROWS * w->row_bytes, w->rows / PLACES * w->row_bytes};
    return {data(first), smaller(count * W, w->rows - first * W) * w->row_bytes, 0};
  }
  // The place in a run of tiles that ends at `end` where it has to be known what is read after it.
  BAO_INLINE int64_t last_call(int64_t begin, int64_t end) const { return larger(begin, end - 1 - (places ? 0 : tiles_ahead(w->row_bytes * W))); }
};
// A tile that is read next, if it is known.
struct NextTile {
  Tiles tiles;
  int64_t index = 0;
};
// What a run of tiles has to know of the next one. Streams are begun at once, others by the tiles before them, if they are alike.
struct Announced {
  const uint8_t* other = nullptr;
  bool any = false;
  BAO_INLINE void next(const Tiles& now, const NextTile& next) {
    const WeightRef *a = now.w, *b = next.tiles.w;
    any = b && now.places == next.tiles.places && (now.places || (a->dtype == b->dtype && a->row_bytes == b->row_bytes));
    if (any && now.places) next.tiles.fetch(next.index);
    else if (any) other = next.tiles.data(next.index);
  }
};
// acc = dot products of tile `index` with w.rows of `worker`, times the weight's factor. more, other: as in WeightTile.
BAO_INLINE void run_tile(Worker& worker, const Tiles& tiles, int64_t index, int64_t rows, int64_t more, float* acc, const uint8_t* other) {
  const WeightRef& w = *tiles.w;
  const OutputTile place = tiles.place(index);
  const uint8_t* data = w.row(tiles.expert, place.first);
  if (tiles.places) places_dot(worker.streams, data, place.apart * w.row_bytes, w.row_bytes, w.dtype, w.columns, worker.rows, rows, acc);
  else tile_dot(worker.tile, {data, w.row_bytes, place.lanes, more, other}, w.dtype, w.columns, tiles.fast, worker.rows, rows, acc);
  if (w.factors) {
    vf factor = vset1(w.factor(tiles.expert));
    for (int64_t i = 0; i < rows * W; i += W) vstore(acc + i, vmul(vload(acc + i), factor));
  }
}
// Tiles [begin, end). store(place, values [rows][W]). after() gives the tile that this thread reads then, and is asked as late as possible.
// `fetched`: whether such a call has announced this run. Gives the same for the next one.
template <class After, class Store> BAO_INLINE bool run_tiles(Worker& worker, const Tiles& tiles, int64_t begin, int64_t end, int64_t rows, bool fetched, After&& after, Store&& store) {
  if (!fetched) tiles.fetch(begin);
  const int64_t call = tiles.last_call(begin, end);
  Announced announced;
  for (int64_t t = begin; t < end; t++) {
    if (t == call) announced.next(tiles, after());
    run_tile(worker, tiles, t, rows, end - t - 1, worker.acc, announced.other);
    store(tiles.place(t), worker.acc);
  }
  return announced.any;
}
BAO_INLINE void store_lanes(float* dst, const float* acc, const OutputTile& place) {
  dst += place.first;
  if (place.apart) {
    store_places(dst, acc, place.apart);
  } else if (place.skip == 0 && place.lanes == W) {
    vstore(dst, vload(acc));
  } else {
    for (int i = place.skip; i < place.lanes; i++) dst[i] = acc[i];
  }
}

// How a matmul of `rows` by `tiles` is cut. Pieces of one tile group, differing in rows, follow each other so that they share its bytes.
// Few rows only wait for memory: their pieces begin large and become small, each a share of what is left, so that all threads end together.
struct Cut {
  int64_t row_blocks, rows_each, tiles;
  int64_t least, most, shares;  // tiles of a group: 1 / shares of what is left, within least and most
  BAO_INLINE bool uneven() const { return least != most; }
  BAO_INLINE int64_t group(int64_t left) const { return smaller(left, larger(least, smaller(most, left / shares))); }
  BAO_INLINE int32_t pieces() const {
    int64_t n = 0;
    if (!uneven()) n = (tiles + least - 1) / least;
    else for (int64_t left = tiles; left > 0; left -= group(left)) n++;
    return int32_t(n * row_blocks);
  }
  // The tiles of a piece.
  BAO_INLINE int64_t first(int32_t piece) const {
    int64_t n = piece / row_blocks, tile = 0;
    if (!uneven()) return n * least;
    while (n-- > 0) tile += group(tiles - tile);
    return tile;
  }
  BAO_INLINE int64_t end(int64_t first) const { return first + group(tiles - first); }
};
constexpr int64_t PIECE_BYTES = 256 << 10, LEAST_BYTES = 32 << 10, MOST_BYTES = 8 << 20;
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

// Calls f(piece, begin, end, fetched, next) for a piece and, where pieces wait for memory, for those that this thread takes on the way:
// next(&tile) takes one and gives its first tile, so that its bytes are asked for before this piece ends. f gives whether they were.
template <class F> BAO_INLINE void for_pieces(const Cut& c, const Run& run, int32_t piece, bool fetched, F&& f) {
  while (piece >= 0) {
    int32_t taken = -1;
    int64_t begin = c.first(piece);
    fetched = f(piece, begin, c.end(begin), fetched, [&](int64_t* tile) {
      taken = c.uneven() ? run.next_piece() : -1;
      if (taken >= 0) *tile = c.first(taken);
      return taken >= 0;
    });
    piece = taken;
  }
}

// Tells where the first pieces begin, if few rows wait for memory: beginning(first tile, tiles).
template <class F> BAO_INLINE void tell_beginnings(const Cut& c, const Run& run, F&& beginning) {
  if (!run.beginnings || !c.uneven() || c.row_blocks == 0) return;
  for (int32_t i = 0; i < run.beginnings_wanted; i++) {
    int64_t first = c.first(i * int32_t(c.row_blocks));
    if (first >= c.tiles) return;
    run.beginnings[i] = beginning(first, c.end(first) - first);
  }
}

// ---- matmul and matmul_group: up to three weights, their tiles in one list

struct MatmulStage {
  ActStage act;
  Tensor dst[3];
  WeightRef w[3];
  int32_t count, fast;
  bool rounded;
  int64_t dst_scratch;  // >= 0: dst[0] is packed rows in the op's scratch
  // The tile's weight; `tile` becomes the number in it.
  BAO_INLINE const WeightRef& find(int64_t* tile) const {
    int i = 0;
    for (; i + 1 < count && *tile >= tile_count(w[i].rows); i++) *tile -= tile_count(w[i].rows);
    return w[i];
  }
  BAO_INLINE int64_t rows_of(const Run& run, const Cut& c, int32_t piece) const { return smaller(act.units(run) - piece % c.row_blocks * c.rows_each, c.rows_each); }
};
BAO_INLINE Cut matmul_cut(const MatmulStage& a, const Run& run) {
  int64_t tiles = 0;
  for (int i = 0; i < a.count; i++) tiles += tile_count(a.w[i].rows);
  return cut_of(a.act.units(run), tiles, a.w[0].row_bytes * W, run.threads);
}
int32_t matmul_pieces(const void* args, const Run& run) {
  const MatmulStage& a = args_of<MatmulStage>(args);
  const Cut c = matmul_cut(a, run);
  tell_beginnings(c, run, [&](int64_t tile, int64_t count) {
    const WeightRef& w = a.find(&tile);
    return Tiles(w, 0, rounds(w, a.fast), a.rows_of(run, c, 0)).beginning(tile, count);
  });
  return c.pieces();
}
void matmul_run(const void* args, const Run& run, int32_t piece) {
  const MatmulStage& a = args_of<MatmulStage>(args);
  Worker& worker = *reinterpret_cast<Worker*>(run.worker_scratch);
  const Cut c = matmul_cut(a, run);
  int64_t start = c.first(piece);
  const WeightRef& begun = a.find(&start);
  Tiles(begun, 0, rounds(begun, a.fast), a.rows_of(run, c, piece)).fetch(start);  // on its way while activations are rounded
  const ActBlock* rounded = a.rounded ? rounded_rows(a.act, run) : nullptr;
  for_pieces(c, run, piece, true, [&](int32_t piece, int64_t begin, int64_t end, bool fetched, auto&& next) {
    int64_t first = piece % c.row_blocks * c.rows_each, rows = a.rows_of(run, c, piece), before = 0;
    for (int i = 0; i < a.count; i++) {
      const WeightRef& w = a.w[i];
      int64_t tiles = tile_count(w.rows), from = larger(begin - before, 0), to = smaller(end - before, tiles);
      before += tiles;
      if (from >= to) continue;
      bool fast = rounds(w, a.fast);
      for (int64_t r = 0; r < rows; r++) worker.rows[r] = fast ? static_cast<const void*>(rounded + (first + r) * (w.columns / 32)) : a.act.f32(first + r);
      auto after = [&]() -> NextTile {
        int64_t tile = before;
        if (end <= before && !next(&tile)) return {};
        const WeightRef& found = a.find(&tile);
        return {{found, 0, rounds(found, a.fast), rows}, tile};
      };
      fetched = run_tiles(worker, {w, 0, fast, rows}, from, to, rows, fetched, after, [&](const OutputTile& place, const float* values) {
        for (int64_t r = 0; r < rows; r++) {
          float* dst = a.dst_scratch < 0 ? a.dst[i].f32(first + r) : reinterpret_cast<float*>(run.scratch + a.dst_scratch) + (first + r) * w.rows;
          store_lanes(dst, values + r * W, place);
        }
      });
    }
    return fetched;
  });
}
void add_matmul(Builder& b, const MatmulGroupArgs& g, int64_t dst_scratch) {
  MatmulStage a = {};
  a.fast = g.fast;
  a.dst_scratch = dst_scratch;
  for (int i = 0; i < 3; i++) {
    if (!g.w[i].present()) continue;
    a.dst[a.count] = g.dst[i];
    a.w[a.count++] = g.w[i];
    a.rounded = a.rounded || rounds(g.w[i], g.fast);
  }
  a.act = act_stage(b, g.x, 1, a.rounded);
  if (a.rounded) b.add(&a.act, sizeof a.act, shared_act_pieces, act_run);
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
constexpr int64_t GLU_RUN = 32;  // gate tiles, and then as many up tiles
struct GluTiles {
  Tiles gate, up;  // of one form, so that equal indices are the same outputs
  BAO_INLINE GluTiles(const WeightRef& g, const WeightRef& u, int64_t expert, int32_t fast, int64_t rows)
      : gate(g, expert, rounds(g, fast), rows), up(u, expert, rounds(u, fast), rows) {
    gate.places = up.places = gate.places && up.places;
  }
};
// Calls store(place, values [rows][W]) with act(gate) * up for each of the tiles [begin, end) of outputs. Gate tiles come in runs, and then the up
// tiles of the same outputs: memory is fastest where it is read on. fetched, after: as in run_tiles; after() gives a gate tile.
template <class After, class Store> BAO_INLINE bool run_glu_tiles(Worker& worker, const GluTiles& tiles, int64_t begin, int64_t end, const void* const* gate_rows, const void* const* up_rows, int64_t rows, int32_t activation, bool fetched, After&& after, Store&& store) {
  const Tiles &gate = tiles.gate, &up = tiles.up;
  const int64_t length = larger(1, smaller(GLU_RUN, ROW_BLOCK / rows));
  for (int64_t from = begin, n; from < end; from += n) {
    n = smaller(length, end - from);
    for (int64_t r = 0; r < rows; r++) worker.rows[r] = gate_rows[r];
    if (!fetched) gate.fetch(from);
    Announced announced;
    for (int64_t i = 0, call = gate.last_call(0, n); i < n; i++) {
      if (i == call) announced.next(gate, {up, from});
      run_tile(worker, gate, from + i, rows, n - i - 1, worker.acc + i * rows * W, announced.other);
    }
    for (int64_t r = 0; r < rows; r++) worker.rows[r] = up_rows[r];
    if (!announced.any) up.fetch(from);
    announced = {};
    for (int64_t i = 0, call = up.last_call(0, n); i < n; i++) {
      if (i == call) announced.next(up, from + n < end ? NextTile{gate, from + n} : after());
      run_tile(worker, up, from + i, rows, n - i - 1, worker.acc2 + i * rows * W, announced.other);
    }
    fetched = announced.any;
    glu_span(worker.acc, worker.acc, worker.acc2, n * rows * W, activation);
    for (int64_t i = 0; i < n; i++) store(gate.place(from + i), worker.acc + i * rows * W);
  }
  return fetched;
}

struct GluStage {
  ActStage act;
  Tensor dst;
  WeightRef gate, up;
  int32_t activation, fast;
  BAO_INLINE bool rounded() const { return rounds(gate, fast) || rounds(up, fast); }
  BAO_INLINE GluTiles tiles(int64_t rows) const { return {gate, up, 0, fast, rows}; }
};
BAO_INLINE Cut glu_cut(const GluStage& a, const Run& run) {
  return cut_of(a.act.units(run), tile_count(a.gate.rows), (a.gate.row_bytes + a.up.row_bytes) * W, run.threads);
}
int32_t glu_tiles_pieces(const void* args, const Run& run) {
  const GluStage& a = args_of<GluStage>(args);
  const Cut c = glu_cut(a, run);
  tell_beginnings(c, run, [&](int64_t tile, int64_t count) { return a.tiles(c.rows_each).gate.beginning(tile, smaller(count, GLU_RUN)); });
  return c.pieces();
}
void glu_tiles_run(const void* args, const Run& run, int32_t piece) {
  const GluStage& a = args_of<GluStage>(args);
  Worker& worker = *reinterpret_cast<Worker*>(run.worker_scratch);
  const Cut c = glu_cut(a, run);
  a.tiles(c.rows_each).gate.fetch(c.first(piece));
  const ActBlock* rounded = a.rounded() ? rounded_rows(a.act, run) : nullptr;
  for_pieces(c, run, piece, true, [&](int32_t piece, int64_t begin, int64_t end, bool fetched, auto&& next) {
    int64_t first = piece % c.row_blocks * c.rows_each, rows = smaller(a.act.units(run) - first, c.rows_each);
    const void *gate_rows[ROW_BLOCK], *up_rows[ROW_BLOCK];
    for (int64_t r = 0; r < rows; r++) {
      const ActBlock* row = rounded + (first + r) * (a.gate.columns / 32);
      gate_rows[r] = rounds(a.gate, a.fast) ? static_cast<const void*>(row) : a.act.f32(first + r);
      up_rows[r] = rounds(a.up, a.fast) ? static_cast<const void*>(row) : a.act.f32(first + r);
    }
    const GluTiles tiles = a.tiles(rows);
    auto after = [&]() -> NextTile {
      int64_t tile;
      return next(&tile) ? NextTile{tiles.gate, tile} : NextTile();
    };
    return run_glu_tiles(worker, tiles, begin, end, gate_rows, up_rows, rows, a.activation, fetched, after, [&](const OutputTile& place, const float* values) {
      for (int64_t r = 0; r < rows; r++) store_lanes(a.dst.f32(first + r), values + r * W, place);
    });
  });
}
void record_matmul_glu(Builder& b, const MatmulGluArgs& g) {
  GluStage a = {{}, g.dst, g.gate, g.up, g.activation, g.fast};
  split_gate_up(a.gate, a.up);
  a.act = act_stage(b, g.x, 1, a.rounded());
  if (a.rounded()) b.add(&a.act, sizeof a.act, shared_act_pieces, act_run);
  b.add(&a, sizeof a, glu_tiles_pieces, glu_tiles_run);
}
