// Choice of experts and the weighted sum over them. The fused matmul forms call topk_softmax_row and repeat moe_sum's chain.

// The k largest logits of a row, largest first, ties to the lower id, NaN below -infinity; and their softmax. keys: `experts` floats of room.
void topk_softmax_row(int32_t* ids, float* weights, const float* logits, int32_t experts, int32_t k, int32_t renormalise, float* keys) {
  for (int32_t i = 0; i < experts; i++) keys[i] = logits[i] == logits[i] ? logits[i] : LOWEST;
  for (int32_t s = 0; s < k; s++) {
    int64_t best = index_of(keys, experts, max_of(keys, experts));
    if (best >= 0 && logits[best] != logits[best]) {  // only -infinities and NaN are left, one key for both: -infinities first
      for (int64_t i = best + 1; i < experts; i++)
        if (keys[i] == LOWEST && logits[i] == LOWEST) { best = i; break; }
    }
    ids[s] = best < 0 ? 0 : int32_t(best);
    if (s == 0) weights[0] = keys[ids[0]];
    keys[ids[s]] = __builtin_nanf("");  // taken: max_of and index_of pass over it
  }
  const float max = weights[0];
  float total = 0.0f;
  for (int32_t s = 0; s < k; s++) {
    weights[s] = scalar_exp(logits[ids[s]] - max);
    total += weights[s];
  }
  if (!renormalise) {
    vf shift = vset1(max);
    total = vsum_of(experts, [&](int64_t i, int64_t lanes, vf acc) {
      return vadd(acc, vselect(vbelow(0, lanes), vexp(vsub(vload_any(logits + i, lanes), shift)), vzero()));
    });
  }
  for (int32_t s = 0; s < k; s++) weights[s] = weights[s] / total;
}

constexpr int64_t TOPK_ROWS = 8;
void record_topk_softmax(Builder& b, const TopkSoftmaxArgs& a) {
  if (a.logits.columns() > 65536) return reference_ops.topk_softmax(b, a);  // keys live in the worker's scratch
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return piece_count(run.step->count(args_of<TopkSoftmaxArgs>(p).ids), TOPK_ROWS); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<TopkSoftmaxArgs>(p);
          int64_t end = smaller(run.step->count(a.ids), (int64_t(piece) + 1) * TOPK_ROWS);
          for (int64_t row = piece * TOPK_ROWS; row < end; row++)
            topk_softmax_row(a.ids.i32(row), a.weights.f32(row), a.logits.f32(row), int32_t(a.logits.columns()), a.ids.d2, a.renormalise,
                             reinterpret_cast<float*>(run.worker_scratch));
        });
}

// acc = 0, then acc = fma(weight of slot s, x of slot s, acc) for s in ascending order: each output element has this one chain.
void record_moe_sum(Builder& b, const MoeSumArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return element_pieces(args_of<MoeSumArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<MoeSumArgs>(p);
          for_elements(a.dst, run, piece, [&](int64_t row, int64_t first, int64_t n) {
            float* dst = a.dst.f32(row) + first;
            const float *x = a.x.f32(row) + first, *weights = a.weights.f32(row);
            vfor(n, [&](int64_t i, int64_t lanes) {
              vf acc = vzero();
              for (int32_t s = 0; s < a.x.d1; s++) acc = vfma(vset1(weights[s]), vload_any(x + int64_t(s) * a.x.d2 + i, lanes), acc);
              vstore_any(dst + i, acc, lanes);
            });
          });
        });
}
