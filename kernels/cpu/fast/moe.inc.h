// Expert matmuls: (row, slot) pairs are sorted by expert, so that an expert's tile is unpacked once for all its rows; results land at their
// (row, slot) place and are summed in slot order. Ids outside [0, experts) give zeros.

constexpr int64_t UNIT_ROWS = 64;  // pairs of one expert that are worked on together

// One expert and a run of the sorted pairs; expert -1: pairs with an invalid id.
struct ExpertUnit {
  int32_t expert, first, count;
};

struct MoeStage {
  ActStage act;
  Tensor dst, ids;
  WeightRef w, up;      // up is present in moe_matmul_glu only
  int32_t k, activation, fast;
  int64_t plan;         // scratch: int32 number of units, then units, pairs, counts
  int64_t dst_scratch;  // >= 0: results go to packed (row, slot) rows in the op's scratch
  BAO_INLINE int64_t pairs(const Run& run) const { return int64_t(run.step->count(ids)) * k; }
  BAO_INLINE int64_t max_units(int64_t pairs) const { return smaller(pairs, int64_t(w.experts) + 1 + pairs / UNIT_ROWS); }
  BAO_INLINE int32_t* unit_count(const Run& run) const { return reinterpret_cast<int32_t*>(run.scratch + plan); }
  BAO_INLINE ExpertUnit* units(const Run& run) const { return reinterpret_cast<ExpertUnit*>(run.scratch + plan + 64); }
  BAO_INLINE int32_t* sorted(const Run& run) const { return reinterpret_cast<int32_t*>(units(run) + max_units(pairs(run))); }
  BAO_INLINE int32_t* counts(const Run& run) const { return sorted(run) + pairs(run); }
  // Those of w, in the form in which a unit reads them.
  BAO_INLINE Tiles tiles(const ExpertUnit& unit) const {
    if (up.present()) return GluTiles(w, up, unit.expert, fast, unit.count).gate;
    return {w, unit.expert, rounds(w, fast), unit.count};
  }
  BAO_INLINE float* place(const Run& run, int64_t pair) const {
    if (dst_scratch >= 0) return reinterpret_cast<float*>(run.scratch + dst_scratch) + pair * w.rows;
    return dst.f32(pair / k) + pair % k * w.rows;
  }
};

void sort_pairs(const MoeStage& a, const Run& run) {
  int64_t pairs = a.pairs(run);
  int32_t experts = a.w.experts, *count = a.counts(run), *sorted = a.sorted(run), units = 0;
  for (int32_t e = 0; e <= experts; e++) count[e] = 0;
  auto expert_of = [&](int64_t pair) {
    int32_t id = a.ids.i32(pair / a.k)[pair % a.k];
    return id >= 0 && id < experts ? id : experts;
  };
  for (int64_t p = 0; p < pairs; p++) count[expert_of(p)]++;
  int32_t start = 0;
  for (int32_t e = 0; e <= experts; e++) {
    int32_t n = count[e];
    for (int32_t i = 0; i < n; i += int32_t(UNIT_ROWS)) {
      int32_t each = n - i < int32_t(UNIT_ROWS) ? n - i : int32_t(UNIT_ROWS);
      a.units(run)[units++] = {e < experts ? e : -1, start + i, each};
    }
    count[e] = start;
    start += n;
  }
  for (int64_t p = 0; p < pairs; p++) sorted[count[expert_of(p)]++] = int32_t(p);
  *a.unit_count(run) = units;
}

// Piece 0 sorts, the others round activations.
int32_t moe_prepare_pieces(const void* args, const Run& run) {
  const MoeStage& a = args_of<MoeStage>(args);
  if (a.pairs(run) == 0) return 0;
  return 1 + (a.act.blocks >= 0 ? act_pieces(&a.act, run) : 0);
}
void moe_prepare_run(const void* args, const Run& run, int32_t piece) {
  const MoeStage& a = args_of<MoeStage>(args);
  if (piece == 0) sort_pairs(a, run);
  else act_run(&a.act, run, piece - 1);
}

// The tiles of all units in one list. There may be fewer units than max_units: what lies beyond is nobody's.
BAO_INLINE Cut moe_cut(const MoeStage& a, const Run& run) {
  int64_t bytes = (a.w.row_bytes + (a.up.present() ? a.up.row_bytes : 0)) * W, rows = smaller(run.step->count(a.ids), ROW_BLOCK);
  return cut_of(rows, tile_count(a.w.rows) * a.max_units(a.pairs(run)), bytes, run.threads);
}
int32_t moe_pieces(const void* args, const Run& run) {
  const MoeStage& a = args_of<MoeStage>(args);
  return a.pairs(run) == 0 ? 0 : moe_cut(a, run).pieces();
}
// Tiles [begin, end) of one unit. fetched, after: as in run_tiles.
template <class After> bool moe_unit(const MoeStage& a, const Run& run, const ExpertUnit& unit, int64_t begin, int64_t end, bool fetched, After&& after) {
  const int32_t* pairs = a.sorted(run) + unit.first;
  if (unit.expert < 0) {
    int64_t from = begin * W, to = smaller(end * W, a.w.rows);
    for (int32_t i = 0; i < unit.count; i++) __builtin_memset(a.place(run, pairs[i]) + from, 0, size_t(to - from) * sizeof(float));
    return false;
  }
  Worker& worker = *reinterpret_cast<Worker*>(run.worker_scratch);
  bool glu = a.up.present();
  const void *rows[UNIT_ROWS], *up_rows[UNIT_ROWS];
  for (int32_t i = 0; i < unit.count; i++) {
    int64_t u = a.act.per_row == 1 ? pairs[i] / a.k : pairs[i];
    rows[i] = rounds(a.w, a.fast) ? static_cast<const void*>(a.act.rounded(run, u)) : a.act.f32(u);
    if (glu) up_rows[i] = rounds(a.up, a.fast) ? static_cast<const void*>(a.act.rounded(run, u)) : a.act.f32(u);
  }
  auto store = [&](const OutputTile& place, const float* values) {
    for (int32_t i = 0; i < unit.count; i++) store_lanes(a.place(run, pairs[i]), values + i * W, place);
  };
  if (glu) return run_glu_tiles(worker, {a.w, a.up, unit.expert, a.fast, unit.count}, begin, end, rows, up_rows, unit.count, a.activation, fetched, after, store);
  for (int32_t i = 0; i < unit.count; i++) worker.rows[i] = rows[i];
  return run_tiles(worker, a.tiles(unit), begin, end, unit.count, fetched, after, store);
}
void moe_run(const void* args, const Run& run, int32_t piece) {
  const MoeStage& a = args_of<MoeStage>(args);
  const int64_t tiles = tile_count(a.w.rows), all = *a.unit_count(run) * tiles;
  for_pieces(moe_cut(a, run), run, piece, false, [&](int32_t, int64_t begin, int64_t end, bool fetched, auto&& next) {
    end = smaller(end, all);
    for (int64_t to; begin < end; begin = to) {
      int64_t unit = begin / tiles, first = begin % tiles;
      to = smaller(end, (unit + 1) * tiles);
      auto after = [&]() -> NextTile {
        int64_t tile = to;
        if ((to == end && !next(&tile)) || tile >= all || a.units(run)[tile / tiles].expert < 0) return {};
        return {a.tiles(a.units(run)[tile / tiles]), tile % tiles};
      };
      fetched = moe_unit(a, run, a.units(run)[unit], first, first + to - begin, fetched, after);
    }
    return fetched;
  });
}

void add_moe(Builder& b, MoeStage a, const Tensor& x, bool rounded) {
  a.k = int32_t(a.ids.columns());
  a.act = act_stage(b, x, x.d1 == a.k ? a.k : 1, rounded);
  if (!rounded) a.act.blocks = -1;
  int64_t pairs = int64_t(a.ids.d0) * a.k;
  a.plan = b.reserve_scratch(64 + a.max_units(pairs) * int64_t(sizeof(ExpertUnit)) + (pairs + a.w.experts + 1) * 4);
  b.add(&a, sizeof a, moe_prepare_pieces, moe_prepare_run);
  b.add(&a, sizeof a, moe_pieces, moe_run);
}

void record_moe_matmul(Builder& b, const MoeMatmulArgs& m) {
  MoeStage a = {};
  a.dst = m.dst;
  a.ids = m.ids;
  a.w = m.w;
  a.fast = m.fast;
  a.dst_scratch = -1;
  add_moe(b, a, m.x, rounds(a.w, m.fast));
}

void record_moe_matmul_glu(Builder& b, const MoeMatmulGluArgs& m) {
  MoeStage a = {};
  a.dst = m.dst;
  a.ids = m.ids;
  a.w = m.gate;
  a.up = m.up;
  split_gate_up(a.w, a.up);
  a.activation = m.activation;
  a.fast = m.fast;
  a.dst_scratch = -1;
  add_moe(b, a, m.x, rounds(a.w, m.fast) || rounds(a.up, m.fast));
}

// ---- moe_matmul_sum: results in scratch, then moe_sum's chain over them

struct SlotSumStage {
  Tensor dst, weights;
  int64_t x;  // scratch: packed (row, slot) rows
};
int32_t slot_sum_pieces(const void* args, const Run& run) { return element_pieces(args_of<SlotSumStage>(args).dst, run); }
void slot_sum_run(const void* args, const Run& run, int32_t piece) {
  const SlotSumStage& a = args_of<SlotSumStage>(args);
  int64_t n = a.dst.columns(), k = a.weights.columns();
  for_elements(a.dst, run, piece, [&](int64_t row, int64_t first, int64_t count) {
    float* dst = a.dst.f32(row) + first;
    const float *x = reinterpret_cast<const float*>(run.scratch + a.x) + row * k * n + first, *weights = a.weights.f32(row);
    vfor(count, [&](int64_t i, int64_t lanes) {
      vf acc = vzero();
      for (int64_t s = 0; s < k; s++) acc = vfma(vset1(weights[s]), vload_any(x + s * n + i, lanes), acc);
      vstore_any(dst + i, acc, lanes);
    });
  });
}

void record_moe_matmul_sum(Builder& b, const MoeMatmulSumArgs& m) {
  MoeStage a = {};
  a.ids = m.ids;
  a.w = m.w;
  a.fast = m.fast;
  a.dst_scratch = b.reserve_scratch(int64_t(m.ids.d0) * m.ids.columns() * m.w.rows * 4);
  add_moe(b, a, m.x, rounds(a.w, m.fast));
  SlotSumStage s = {m.dst, m.weights, a.dst_scratch};
  b.add(&s, sizeof s, slot_sum_pieces, slot_sum_run);
}

// ---- router: logits in scratch, then the rows of topk_softmax

struct RouterStage {
  RouterArgs args;
  int64_t logits;
};
void record_router(Builder& b, const RouterArgs& m) {
  RouterStage a = {m, b.reserve_scratch(int64_t(m.x.d0) * m.w.rows * 4)};
  MatmulGroupArgs g = {};
  g.x = m.x;
  g.w[0] = m.w;
  g.fast = m.fast;
  add_matmul(b, g, a.logits);
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return piece_count(run.step->count(args_of<RouterStage>(p).args.ids), TOPK_ROWS); },
        [](const void* p, const Run& run, int32_t piece) {
          const RouterStage& a = args_of<RouterStage>(p);
          const RouterArgs& m = a.args;
          int64_t end = smaller(run.step->count(m.ids), (int64_t(piece) + 1) * TOPK_ROWS);
          for (int64_t row = piece * TOPK_ROWS; row < end; row++) {
            const float* logits = reinterpret_cast<const float*>(run.scratch + a.logits) + row * m.w.rows;
            topk_softmax_row(m.ids.i32(row), m.weights.f32(row), logits, m.w.rows, int32_t(m.ids.columns()), m.renormalise,
                             reinterpret_cast<float*>(run.worker_scratch));
          }
        });
}
