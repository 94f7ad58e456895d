// Rotary position embedding: the table of a step, and the rotation of heads by it.

// Inverse frequencies do not change from step to step: they are computed when the op is recorded and travel with its arguments.
constexpr int32_t ROPE_MAX_HALF = 1024;
struct RopeTableWithFrequencies { RopeTableArgs a; float inv_freq[ROPE_MAX_HALF]; };
constexpr int64_t ROPE_TABLE_ROWS = 16;

void record_rope_table(Builder& b, const RopeTableArgs& a) {
  const int32_t half = a.dst.d2;
  if (half > ROPE_MAX_HALF) return reference_ops.rope_table(b, a);
  RopeTableWithFrequencies args;
  args.a = a;
  for (int32_t i = 0; i < half; i++) {
    float exponent = float(2 * i) / float(a.n_rot);
    float inv_freq = 1.0f / float(__builtin_pow(double(a.base), double(exponent)));
    if (a.factors) inv_freq = inv_freq / a.factors[i];
    args.inv_freq[i] = inv_freq * a.freq_scale;
  }
  // Double-precision cos and sin of the f32 angle, rounded once: full range reduction, and the same bits on every instruction set.
  b.add(&args, int64_t(sizeof(RopeTableArgs)) + half * int64_t(sizeof(float)),
        [](const void* p, const Run& run) { return piece_count(run.step->count(args_of<RopeTableArgs>(p).dst), ROPE_TABLE_ROWS); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<RopeTableArgs>(p);
          const float* inv_freq = reinterpret_cast<const float*>(static_cast<const char*>(p) + __builtin_offsetof(RopeTableWithFrequencies, inv_freq));
          int64_t end = smaller(run.step->count(a.dst), (int64_t(piece) + 1) * ROPE_TABLE_ROWS);
          for (int64_t row = piece * ROPE_TABLE_ROWS; row < end; row++) {
            float *cos = a.dst.f32(row), *sin = cos + a.dst.d2;
            float position = float(run.step->row_position[run.step->step_row(a.dst.rows_of, int32_t(row))]);
            for (int32_t i = 0; i < a.dst.d2; i++) {
              double angle = double(position * inv_freq[i]);
              cos[i] = float(__builtin_cos(angle));
              sin[i] = float(__builtin_sin(angle));
            }
          }
        });
}

// One head: products and sums rounded one by one, so that a pair's bits do not depend on whether it sits in a vector or in a tail.
BAO_INLINE void rotate_head(float* dst, const float* x, const float* cos, const float* sin, int32_t half, int32_t head_dim, int32_t mode) {
  if (mode == 0) {
    vfor(half, [&](int64_t i, int64_t lanes) {
      vf c = vload_any(cos + i, lanes), s = vload_any(sin + i, lanes);
      vf u = vload_any(x + i, lanes), v = vload_any(x + half + i, lanes);
      vstore_any(dst + i, vsub(vmul(u, c), vmul(v, s)), lanes);
      vstore_any(dst + half + i, vadd(vmul(u, s), vmul(v, c)), lanes);
    });
  } else {
    for (int32_t i = 0; i < half; i++) {
      float u = x[2 * i], v = x[2 * i + 1];
      dst[2 * i] = u * cos[i] - v * sin[i];
      dst[2 * i + 1] = u * sin[i] + v * cos[i];
    }
  }
  if (dst != x && head_dim > 2 * half) copy_span(dst + 2 * half, x + 2 * half, head_dim - 2 * half);
}

void record_rope(Builder& b, const RopeArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return unit_pieces(args_of<RopeArgs>(p).x, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<RopeArgs>(p);
          for_units(a.x, run, piece, [&](int64_t u) {
            const float* cos = a.table.f32(u / a.x.d1);
            rotate_head(unit_of(a.dst, u), unit_of(a.x, u), cos, cos + a.table.d2, a.table.d2, a.x.d2, a.mode);
          });
        });
}
