// Ops that touch each element or row once: add, scale, softcap, copy, gather_rows, pool_rows, argmax.

void record_add(Builder& b, const AddArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return element_pieces(args_of<AddArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<AddArgs>(p);
          for_elements(a.dst, run, piece, [&](int64_t row, int64_t first, int64_t n) {
            float* dst = a.dst.f32(row) + first;
            const float *x = a.a.f32(row) + first, *y = a.b.f32(row) + first;
            vfor(n, [&](int64_t i, int64_t lanes) { vstore_any(dst + i, vadd(vload_any(x + i, lanes), vload_any(y + i, lanes)), lanes); });
          });
        });
}

void record_scale(Builder& b, const ScaleArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return element_pieces(args_of<ScaleArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<ScaleArgs>(p);
          vf factor = vset1(a.factor);
          for_elements(a.dst, run, piece, [&](int64_t row, int64_t first, int64_t n) {
            float* dst = a.dst.f32(row) + first;
            const float* x = a.x.f32(row) + first;
            vfor(n, [&](int64_t i, int64_t lanes) { vstore_any(dst + i, vmul(vload_any(x + i, lanes), factor), lanes); });
          });
        });
}

void record_softcap(Builder& b, const ScaleArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return element_pieces(args_of<ScaleArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<ScaleArgs>(p);
          vf cap = vset1(a.factor);
          for_elements(a.dst, run, piece, [&](int64_t row, int64_t first, int64_t n) {
            float* dst = a.dst.f32(row) + first;
            const float* x = a.x.f32(row) + first;
            vfor(n, [&](int64_t i, int64_t lanes) { vstore_any(dst + i, vmul(cap, vtanh(vdiv(vload_any(x + i, lanes), cap))), lanes); });
          });
        });
}

BAO_INLINE void copy_span(float* dst, const float* x, int64_t n) { __builtin_memmove(dst, x, size_t(n) * sizeof(float)); }

void record_copy(Builder& b, const CopyArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return element_pieces(args_of<CopyArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<CopyArgs>(p);
          for_elements(a.dst, run, piece, [&](int64_t row, int64_t first, int64_t n) { copy_span(a.dst.f32(row) + first, a.x.f32(row) + first, n); });
        });
}

void record_gather_rows(Builder& b, const CopyArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return element_pieces(args_of<CopyArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<CopyArgs>(p);
          for_elements(a.dst, run, piece, [&](int64_t row, int64_t first, int64_t n) {
            copy_span(a.dst.f32(row) + first, a.x.f32(run.step->output_row[row]) + first, n);
          });
        });
}

// A piece is a range of columns of all rows: every element of dst has one owner, who adds its rows in ascending order. A sequence's first row
// overwrites.
constexpr int64_t POOL_COLUMNS = 256;
void record_pool_rows(Builder& b, const CopyArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run&) { return piece_count(args_of<CopyArgs>(p).dst.columns(), POOL_COLUMNS); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<CopyArgs>(p);
          int64_t first = piece * POOL_COLUMNS, n = smaller(a.dst.columns() - first, POOL_COLUMNS);
          for (int32_t r = 0; r < run.step->count(a.x); r++) {
            const int32_t row = run.step->step_row(a.x.rows_of, r), sequence = run.step->row_sequence[row];
            if (sequence < 0 || sequence >= a.dst.d0) continue;
            float* dst = a.dst.f32(sequence) + first;
            const float* x = a.x.f32(r) + first;
            if (run.step->row_position[row] == 0) copy_span(dst, x, n);
            else vfor(n, [&](int64_t i, int64_t lanes) { vstore_any(dst + i, vadd(vload_any(dst + i, lanes), vload_any(x + i, lanes)), lanes); });
          }
        });
}

// Largest of x[0 ... n), NaN left out; -infinity when there is none.
BAO_INLINE float max_of(const float* x, int64_t n) {
  vf best = vset1(LOWEST);
  int64_t i = 0;
  vf best2 = best;
  for (; i + 2 * W <= n; i += 2 * W) {
    best = vmax(vload(x + i), best);  // a NaN in the first operand yields the second
    best2 = vmax(vload(x + i + W), best2);
  }
  for (; i < n; i += W) {
    int64_t lanes = smaller(n - i, W);
    best = vmax(vselect(vbelow(0, lanes), vload_any(x + i, lanes), vset1(LOWEST)), best);
  }
  return vreduce_max(vmax(best, best2));
}
// First index of a value in x[0 ... n), or -1.
BAO_INLINE int64_t index_of(const float* x, int64_t n, float value) {
  vf v = vset1(value);
  for (int64_t i = 0; i + W <= n; i += W) {
    uint32_t hits = vbits(veq(vload(x + i), v));
    if (hits) return i + __builtin_ctz(hits);
  }
  for (int64_t i = n - n % W; i < n; i++)
    if (x[i] == value) return i;
  return -1;
}

// Two stages: each piece finds its chunk's first maximum, then one piece a row takes the first best chunk.
struct Best { float value; int32_t index; };
struct ArgmaxArgs { CopyArgs a; int64_t scratch, chunks; };
void record_argmax(Builder& b, const CopyArgs& a) {
  int64_t chunks = piece_count(a.x.columns(), PIECE_ELEMENTS);
  ArgmaxArgs args{a, b.reserve_scratch(a.dst.d0 * chunks * int64_t(sizeof(Best))), chunks};
  b.add(&args, sizeof args, [](const void* p, const Run& run) { return int32_t(run.step->count(args_of<ArgmaxArgs>(p).a.dst) * args_of<ArgmaxArgs>(p).chunks); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& args = args_of<ArgmaxArgs>(p);
          int64_t row = piece / args.chunks, first = piece % args.chunks * PIECE_ELEMENTS;
          const float* x = args.a.x.f32(row) + first;
          int64_t n = smaller(args.a.x.columns() - first, PIECE_ELEMENTS);
          float best = max_of(x, n);
          int64_t index = index_of(x, n, best);
          reinterpret_cast<Best*>(run.scratch + args.scratch)[piece] = {best, index < 0 ? -1 : int32_t(first + index)};
        });
  b.add(&args, sizeof args, [](const void* p, const Run& run) { return piece_count(run.step->count(args_of<ArgmaxArgs>(p).a.dst), 256); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& args = args_of<ArgmaxArgs>(p);
          int64_t end = smaller(run.step->count(args.a.dst), (int64_t(piece) + 1) * 256);
          for (int64_t row = int64_t(piece) * 256; row < end; row++) {
            const Best* chunk = reinterpret_cast<const Best*>(run.scratch + args.scratch) + row * args.chunks;
            Best best{LOWEST, -1};
            for (int64_t c = 0; c < args.chunks; c++)
              if (chunk[c].index >= 0 && (best.index < 0 || chunk[c].value > best.value)) best = chunk[c];
            *args.a.dst.i32(row) = best.index < 0 ? 0 : best.index;
          }
        });
}
