// The 4-bit types with uneven levels: IQ4_NL and IQ4_XS (a table of 16 levels, searched scale), MXFP4 and NVFP4 (E2M1 levels, scale from
// the group's peak).
#include "../common/dequant.h"
#include "quantize_blocks.h"

namespace bao {
namespace {

// Nearest IQ4 level; the upper one when v lies halfway. A table of its own, since a search asks 16 times an element.
int nearest_iq4(float v) {
  static const float levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  int code = 0;
  for (int step = 8; step > 0; step /= 2)
    if (v - levels[code + step - 1] >= levels[code + step] - v) code += step;
  return code;
}

// The scale of 32 elements on the IQ4 levels under weights x^2: trials put the peak at +127 (so on the level 113)
// and at the 15 numbers -134..-120.
float fit_iq4(const float* x) {
  float peak = signed_peak(x, 32);
  if (std::fabs(peak) < tiny_group) return 0.0f;

  float scale = 0.0f, explained = 0.0f;
  auto consider = [&](float per_level, bool first) {
    float sum_lx = 0.0f, sum_ll = 0.0f;
    for (int i = 0; i < 32; i++) {
      float level = static_cast<float>(iq4_value(nearest_iq4(per_level * x[i])));
      float weight = x[i] * x[i];
      sum_lx += weight * level * x[i];
      sum_ll += weight * level * level;
    }
    if (sum_ll > 0.0f && (first || sum_lx * sum_lx > explained * sum_ll)) {
      scale = sum_lx / sum_ll;
      explained = scale * sum_lx;
    }
  };
  consider(1.0f / (peak / 127.0f), true);
  for (int k = -7; k <= 7; k++) consider((static_cast<float>(k) + -127.0f) / peak, false);
  return scale;
}

// The E2M1 code whose value times twice `halved` is nearest to x; the lower code among equals.
int nearest_e2m1(float x, float halved) {
  int best = 0;
  float least = std::fabs(x);
  for (int code = 1; code < 16; code++) {
    float error = std::fabs(static_cast<float>(e2m1_doubled(code)) * halved - x);
    if (error < least) {
      least = error;
      best = code;
    }
  }
  return best;
}

// The unsigned E4M3 number nearest to x >= 0, halves up, at most 448. ggml agrees from 2^-6 to 240; above it jumps to 448 and just below
// 2^-6 it rounds down, which costs precision for nothing.
uint8_t to_ue4m3(float x) {
  if (!(x < 448.0f)) return 0x7E;
  if (x < 0.015625f) return static_cast<uint8_t>(truncate(x * 512.0f + 0.5f, 0, 8));  // subnormals; 8 is the first normal number
  uint32_t rounded = float_to_bits(x) + (1u << 19);  // half of the last of three mantissa bits; a carry moves the exponent, as it should
  return static_cast<uint8_t>((rounded >> 20) - (120u << 3));
}

}  // namespace

void quantize_block(const float* x, BlockIQ4_NL* b) {
  float scale = fit_iq4(x);
  b->d = f32_to_f16(scale);
  float per_level = reciprocal(scale);
  uint8_t levels[32];
  for (int i = 0; i < 32; i++) levels[i] = static_cast<uint8_t>(nearest_iq4(per_level * x[i]));
  pack_split_nibbles(levels, b->qs, 16);
}

void quantize_block(const float* x, BlockIQ4_XS* b) {
  float scales[8];
  for (int j = 0; j < 8; j++) scales[j] = fit_iq4(x + 32 * j);
  float max_scale = signed_peak(scales, 8);
  float d = -max_scale / 32.0f;
  b->d = f32_to_f16(d);
  float per_d = reciprocal(d);
  for (int j = 0; j < 8; j++) {
    int scale = round_even(per_d * scales[j], -32, 31);
    int stored = scale + 32;
    b->scales_l[j / 2] = static_cast<uint8_t>(b->scales_l[j / 2] | (stored & 15) << (4 * (j % 2)));
    b->scales_h = static_cast<uint16_t>(b->scales_h | (stored >> 4) << (2 * j));
    float per_level = reciprocal(d * static_cast<float>(scale));
    uint8_t levels[32];
    for (int i = 0; i < 32; i++) levels[i] = static_cast<uint8_t>(nearest_iq4(per_level * x[32 * j + i]));
    pack_split_nibbles(levels, b->qs + 16 * j, 16);
  }
}

// The power of two that brings the peak into [4, 8): E2M1 ends at 6, so peaks above 6 are cut to it.
void quantize_block(const float* x, BlockMXFP4* b) {
  float peak = std::fabs(signed_peak(x, 32));
  b->e = static_cast<uint8_t>(peak > 0.0f ? truncate(std::floor(std::log2(peak)) - 2.0f + 127.0f, 0, 254) : 0);
  uint8_t levels[32];
  for (int i = 0; i < 32; i++) levels[i] = static_cast<uint8_t>(nearest_e2m1(x[i], e8m0_halved(b->e)));
  pack_split_nibbles(levels, b->qs, 16);
}

void quantize_block(const float* x, BlockNVFP4* b) {
  for (int group = 0; group < 4; group++) {
    const float* sub = x + 16 * group;
    b->d[group] = to_ue4m3(std::fabs(signed_peak(sub, 16)) / 6.0f);
    uint8_t levels[16];
    for (int i = 0; i < 16; i++) levels[i] = static_cast<uint8_t>(nearest_e2m1(sub[i], ue4m3_halved(b->d[group])));
    pack_split_nibbles(levels, b->qs + 8 * group, 8);
  }
}

}  // namespace bao
