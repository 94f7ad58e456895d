// Reference of the gated activations: dst = act(gate) * up.
#include "reference.h"

namespace bao::reference {
namespace {

void glu_one(const GluArgs& a, const Run&, int32_t r) {
  float* dst = a.dst.f32(r);
  const float* gate = a.gate.f32(r);
  if (a.up.present()) {
    for (int64_t i = 0; i < a.dst.columns(); i++) dst[i] = activate(gate[i], a.activation) * a.up.f32(r)[i];
    return;
  }
  const int64_t n = a.dst.d2;
  for (int64_t g = 0; g < a.dst.d1; g++) {
    for (int64_t i = 0; i < n; i++) dst[g * n + i] = activate(gate[2 * g * n + i], a.activation) * gate[(2 * g + 1) * n + i];
  }
}

}  // namespace

float activate(float x, int32_t activation) {
  double v = x;
  if (activation == BAO_ACTIVATION_SILU) return float(v / (1.0 + std::exp(-v)));
  return float(0.5 * v * (1.0 + std::tanh(0.7978845608028654 * v * (1.0 + 0.044715 * v * v))));
}

void glu(Builder& b, const GluArgs& a) { by_row<GluArgs, &GluArgs::dst, glu_one>(b, a); }

}  // namespace bao::reference
