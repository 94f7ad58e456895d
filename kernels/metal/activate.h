// The activations of gated units.
#ifndef BAO_METAL_ACTIVATE_H
#define BAO_METAL_ACTIVATE_H

inline float activate(float x, int32_t activation) {
  if (activation == 1) return x / (1.0f + precise::exp(-x));
  return 0.5f * x * (1.0f + precise::tanh(0.7978845608028654f * x * (1.0f + 0.044715f * x * x)));
}

#endif
