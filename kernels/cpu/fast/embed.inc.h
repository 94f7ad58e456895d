// Embedding lookup: the row of each token id, dequantised by the shared closed forms, then scaled.

// A multiple of every block size, so that a long row can be cut at block boundaries.
constexpr int64_t EMBED_COLUMNS = 1024;

void record_embed(Builder& b, const EmbedArgs& a) {
  b.add(&a, sizeof a,
        [](const void* p, const Run& run) {
          const auto& a = args_of<EmbedArgs>(p);
          return int32_t(run.step->count(a.dst) * piece_count(a.w.columns, EMBED_COLUMNS));
        },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<EmbedArgs>(p);
          int64_t chunks = piece_count(a.w.columns, EMBED_COLUMNS), row = piece / chunks, first = piece % chunks * EMBED_COLUMNS;
          int64_t n = smaller(a.w.columns - first, EMBED_COLUMNS);
          float* dst = a.dst.f32(row) + first;
          int32_t id = run.step->row_id[run.step->step_row(a.dst.rows_of, int32_t(row))];
          bool known = id >= 0 && id < a.w.rows;
          const uint8_t* src = known ? a.w.row(0, id) + (first ? row_bytes(a.w.dtype, first) : 0) : nullptr;
          if (!known || !dequantize_row(a.w.dtype, src, dst, n)) {
            vfor(n, [&](int64_t i, int64_t lanes) { vstore_any(dst + i, vzero(), lanes); });
            return;
          }
          vf scale = vset1(a.scale);
          vfor(n, [&](int64_t i, int64_t lanes) { vstore_any(dst + i, vmul(vload_any(dst + i, lanes), scale), lanes); });
        });
}
