// Reference of rotary position embedding: the table of a step, and the rotation of heads by it.
#include "reference.h"

namespace bao::reference {
namespace {

// As transformers: exponent, power, reciprocal and angle are each rounded to f32; cos and sin are those of the rounded angle.
void rope_table_one(const RopeTableArgs& a, const Run& run, int32_t r) {
  float *cos = a.dst.f32(r), *sin = cos + a.dst.d2;
  float position = float(run.step->row_position[run.step->step_row(a.dst.rows_of, r)]);
  for (int32_t i = 0; i < a.dst.d2; i++) {
    float exponent = float(2 * i) / float(a.n_rot);
    float inv_freq = 1.0f / float(std::pow(double(a.base), double(exponent)));
    if (a.factors) inv_freq = inv_freq / a.factors[i];
    inv_freq = inv_freq * a.freq_scale;
    float angle = position * inv_freq;
    cos[i] = float(std::cos(double(angle)));
    sin[i] = float(std::sin(double(angle)));
  }
}

void rope_one(const RopeArgs& a, const Run&, int32_t r) {
  const float *cos = a.table.f32(r), *sin = cos + a.table.d2;
  for (int32_t h = 0; h < a.x.d1; h++) {
    int64_t o = int64_t(h) * a.x.d2;
    rotate(a.dst.f32(r) + o, a.x.f32(r) + o, cos, sin, a.table.d2, a.x.d2, a.mode);
  }
}

}  // namespace

void rotate(float* dst, const float* x, const float* cos, const float* sin, int32_t half, int32_t head_dim, int32_t mode) {
  for (int32_t i = 0; i < half; i++) {
    int32_t first = mode == BAO_ROPE_NEOX ? i : 2 * i;
    int32_t second = mode == BAO_ROPE_NEOX ? i + half : 2 * i + 1;
    double a = x[first], b = x[second];
    dst[first] = float(a * cos[i] - b * sin[i]);
    dst[second] = float(a * sin[i] + b * cos[i]);
  }
  for (int32_t i = 2 * half; i < head_dim; i++) dst[i] = x[i];
}

void rope_table(Builder& b, const RopeTableArgs& a) { by_row<RopeTableArgs, &RopeTableArgs::dst, rope_table_one>(b, a); }
void rope(Builder& b, const RopeArgs& a) { by_row<RopeArgs, &RopeArgs::dst, rope_one>(b, a); }

}  // namespace bao::reference
