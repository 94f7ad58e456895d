// Gated activations. The fused matmul forms call vactivate on their own accumulators, so that both forms give the same bits.

// SILU: x / (1 + e^-x). GELU (tanh form): 0.5 (1 + tanh u) is 1 / (1 + e^-2u), which keeps its relative precision for negative x.
BAO_INLINE vf vactivate(vf x, int32_t activation) {
  const vf one = vset1(1.0f);
  if (activation == 1) return vdiv(x, vadd(one, vexp(vsub(vzero(), x))));
  vf cubic = vfma(vmul(x, x), vset1(0.044715f), one);
  vf u = vmul(vmul(x, vset1(-2.0f * 0.7978845608028654f)), cubic);
  return vdiv(x, vadd(one, vexp(u)));
}
// dst[i] = act(gate[i]) * up[i] for i < n, the only form in which GLU is computed.
BAO_INLINE void glu_span(float* dst, const float* gate, const float* up, int64_t n, int32_t activation) {
  vfor(n, [&](int64_t i, int64_t lanes) {
    vstore_any(dst + i, vmul(vactivate(vload_any(gate + i, lanes), activation), vload_any(up + i, lanes)), lanes);
  });
}

void record_glu(Builder& b, const GluArgs& a) {
  b.add(&a, sizeof a, [](const void* p, const Run& run) { return element_pieces(args_of<GluArgs>(p).dst, run); },
        [](const void* p, const Run& run, int32_t piece) {
          const auto& a = args_of<GluArgs>(p);
          for_elements(a.dst, run, piece, [&](int64_t row, int64_t first, int64_t n) {
            const float* gate = a.gate.f32(row);
            float* dst = a.dst.f32(row);
            if (a.up.present()) {
              glu_span(dst + first, gate + first, a.up.f32(row) + first, n, a.activation);
              return;
            }
            // Packed: every d2 of dst has its gate and then its up values in one 2 * d2 of gate.
            const int64_t width = a.dst.d2;
            for (int64_t i = first; i < first + n;) {
              int64_t group = i / width, within = i % width, m = width - within < first + n - i ? width - within : first + n - i;
              const float* g = gate + 2 * group * width + within;
              glu_span(dst + i, g, g + width, m, a.activation);
              i += m;
            }
          });
        });
}
