// Reference of the gated activations: dst = act(gate) * up.
#include "reference.h"

namespace bao::reference {
namespace {

void glu_one(const GluArgs& a, const Run&, int32_t r) {
  float* dst = a.dst.f32(r);
  const float* gate = a.gate.f32(r);
  const float* up = a.up.present() ? a.up.f32(r) : gate + a.dst.columns();
  for (int64_t i = 0; i < a.dst.columns(); i++) dst[i] = activate(gate[i], a.activation) * up[i];
}

}  // namespace

float activate(float x, int32_t activation) {
  double v = x;
  if (activation == BAO_ACTIVATION_SILU) return float(v / (1.0 + std::exp(-v)));
  return float(0.5 * v * (1.0 + std::tanh(0.7978845608028654 * v * (1.0 + 0.044715 * v * v))));
}

void glu(Builder& b, const GluArgs& a) { by_row<GluArgs, &GluArgs::dst, glu_one>(b, a); }

}  // namespace bao::reference
