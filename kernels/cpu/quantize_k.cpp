// The K types: a block of 256 holds sub-blocks whose scales are themselves quantised. The scale of a sub-block is searched for, by
// weighted least squares over the levels that a grid of trial scales would give; the method of ggml, without importance weights.
// A sub-block whose stored scale is 0 keeps the levels of its search: they multiply 0, and so the bytes equal ggml's.
#include <cstring>

#include "../common/dequant.h"
#include "quantize_blocks.h"

namespace bao {
namespace {

// Trial number k of an affine search stretches the range to (top + first + step * k) levels, k = 0..last.
struct Grid {
  float first, step;
  int last;
};

struct AffineFit {
  float scale;
  float offset;  // x ~ scale * level - offset; never negative, because minimums are stored unsigned
};

enum class Loss { squared, absolute };

float affine_loss(const float* x, const float* weights, const uint8_t* levels, int n, float scale, float minimum, Loss loss) {
  float total = 0.0f;
  for (int i = 0; i < n; i++) {
    float difference = scale * static_cast<float>(levels[i]) + minimum - x[i];
    float penalty = loss == Loss::absolute ? std::fabs(difference) : difference * difference;
    total += weights[i] * penalty;
  }
  return total;
}

// Levels 0..top for n <= 32 elements, with scale and offset. For each trial's levels the best scale and minimum have a closed form; the
// trial with the least loss wins, the earlier one among equals. Starts from plain minimum-to-maximum scaling.
AffineFit fit_affine(const float* x, const float* weights, int n, int top, Grid grid, Loss loss, uint8_t* levels) {
  float low = x[0], high = x[0];
  float sum_w = weights[0], sum_wx = weights[0] * x[0];
  for (int i = 1; i < n; i++) {
    if (x[i] < low) low = x[i];
    if (x[i] > high) high = x[i];
    sum_w += weights[i];
    sum_wx += weights[i] * x[i];
  }
  if (low > 0.0f) low = 0.0f;
  if (high == low) {
    std::memset(levels, 0, static_cast<size_t>(n));
    return {0.0f, -low};
  }

  const float top_f = static_cast<float>(top);
  float per_level = top_f / (high - low);
  float scale = 1.0f / per_level;
  float minimum = low;
  for (int i = 0; i < n; i++) levels[i] = static_cast<uint8_t>(round_even(per_level * (x[i] - low), 0, top));
  float least = affine_loss(x, weights, levels, n, scale, minimum, loss);

  uint8_t trial[32];
  for (int k = 0; k <= grid.last; k++) {
    // From the best minimum so far, not from the lowest element: the search walks, and its trials depend on their order.
    per_level = (grid.first + grid.step * static_cast<float>(k) + top_f) / (high - minimum);
    float sum_l = 0.0f, sum_ll = 0.0f, sum_lx = 0.0f;
    for (int i = 0; i < n; i++) {
      int level = round_even(per_level * (x[i] - minimum), 0, top);
      trial[i] = static_cast<uint8_t>(level);
      float weighted = weights[i] * static_cast<float>(level);
      sum_l += weighted;
      sum_ll += weighted * static_cast<float>(level);
      sum_lx += weighted * x[i];
    }
    float determinant = sum_w * sum_ll - sum_l * sum_l;
    if (!(determinant > 0.0f)) continue;
    float trial_scale = (sum_w * sum_lx - sum_wx * sum_l) / determinant;
    float trial_minimum = (sum_ll * sum_wx - sum_l * sum_lx) / determinant;
    if (trial_minimum > 0.0f) {
      trial_minimum = 0.0f;
      trial_scale = sum_lx / sum_ll;
    }
    float trial_loss = affine_loss(x, weights, trial, n, trial_scale, trial_minimum, loss);
    if (trial_loss < least) {
      std::memcpy(levels, trial, static_cast<size_t>(n));
      least = trial_loss;
      scale = trial_scale;
      minimum = trial_minimum;
    }
  }
  return {scale, -minimum};
}

// Sums of one choice of signed levels under weights x^2: the best scale is lx / ll, and lx^2 / ll is how much of the energy it explains.
struct Moments {
  float lx = 0.0f, ll = 0.0f;
  void add(float x, int level) {
    float weight = x * x;
    lx += weight * x * static_cast<float>(level);
    ll += weight * static_cast<float>(level) * static_cast<float>(level);
  }
};

// The scale of 16 elements whose levels are -reach..reach - 1 (stored + reach), from 19 trials around "the peak lies on -reach".
float fit_symmetric(const float* x, int reach, uint8_t* levels) {
  float peak = signed_peak(x, 16);
  if (std::fabs(peak) < tiny_group) {
    std::memset(levels, 0, 16);
    return 0.0f;
  }

  const float reach_f = static_cast<float>(reach);
  float scale = 0.0f, explained = 0.0f;
  auto consider = [&](float per_level, bool first) {
    uint8_t trial[16];
    Moments m;
    for (int i = 0; i < 16; i++) {
      int level = round_even(per_level * x[i], -reach, reach - 1);
      trial[i] = static_cast<uint8_t>(level + reach);
      m.add(x[i], level);
    }
    bool better = m.ll > 0.0f && m.lx * m.lx > explained * m.ll;
    if (!first && !better) return;
    std::memcpy(levels, trial, sizeof trial);
    scale = m.ll > 0.0f ? m.lx / m.ll : 0.0f;
    explained = scale * m.lx;
  };
  consider(-reach_f / peak, true);
  for (int k = -9; k <= 9; k++) {
    if (k != 0) consider(-(reach_f + 0.1f * static_cast<float>(k)) / peak, false);
  }
  return scale;
}

// The scale of 16 elements on levels -4..3 (stored + 4), by coordinate descent: each element in turn moves to the level that is best given
// the others.
float fit_three_bit(const float* x, uint8_t* stored) {
  float peak = signed_peak(x, 16);
  if (std::fabs(peak) < tiny_group) {
    std::memset(stored, 0, 16);
    return 0.0f;
  }

  int levels[16];
  float per_level = -4.0f / peak;
  Moments sums;
  for (int i = 0; i < 16; i++) {
    levels[i] = round_even(per_level * x[i], -4, 3);
    sums.add(x[i], levels[i]);
  }
  for (int pass = 0; pass < 5; pass++) {
    bool moved = false;
    for (int i = 0; i < 16; i++) {
      float weight = x[i] * x[i];
      Moments others = sums;
      others.lx -= weight * x[i] * static_cast<float>(levels[i]);
      if (!(others.lx > 0.0f)) continue;
      others.ll -= weight * static_cast<float>(levels[i]) * static_cast<float>(levels[i]);
      int level = round_even(x[i] * others.ll / others.lx, -4, 3);
      if (level == levels[i]) continue;
      others.add(x[i], level);
      if (others.ll > 0.0f && others.lx * others.lx * sums.ll > sums.lx * sums.lx * others.ll) {
        levels[i] = level;
        sums = others;
        moved = true;
      }
    }
    if (!moved) break;
  }
  for (int i = 0; i < 16; i++) stored[i] = static_cast<uint8_t>(levels[i] + 4);
  return sums.ll > 0.0f ? sums.lx / sums.ll : 0.0f;
}

// What Q4_K and Q5_K share: 8 sub-blocks of 32, 6-bit scales and minimums. Fills the block's scales and gives the 256 levels.
void quantize_scaled_minimums(const float* x, int top, Grid grid, uint16_t* d_bits, uint16_t* dmin_bits, uint8_t* packed,
                              uint8_t* levels) {
  AffineFit fits[8];
  float max_scale = 0.0f, max_offset = 0.0f;
  for (int j = 0; j < 8; j++) {
    const float* sub = x + 32 * j;
    float energy = 0.0f;
    for (int i = 0; i < 32; i++) energy += sub[i] * sub[i];
    float rms = std::sqrt(energy / 32.0f);
    float weights[32];
    for (int i = 0; i < 32; i++) weights[i] = rms + std::fabs(sub[i]);
    fits[j] = fit_affine(sub, weights, 32, top, grid, Loss::squared, levels + 32 * j);
    if (fits[j].scale > max_scale) max_scale = fits[j].scale;
    if (fits[j].offset > max_offset) max_offset = fits[j].offset;
  }

  float per_scale = max_scale > 0.0f ? 63.0f / max_scale : 0.0f;
  float per_offset = max_offset > 0.0f ? 63.0f / max_offset : 0.0f;
  for (int j = 0; j < 8; j++) {
    int scale = round_even(per_scale * fits[j].scale, 0, 63);
    int offset = round_even(per_offset * fits[j].offset, 0, 63);
    if (j < 4) {
      packed[j] = static_cast<uint8_t>(scale);
      packed[j + 4] = static_cast<uint8_t>(offset);
    } else {
      packed[j + 4] = static_cast<uint8_t>((scale & 15) | (offset & 15) << 4);
      packed[j - 4] = static_cast<uint8_t>(packed[j - 4] | (scale >> 4) << 6);
      packed[j] = static_cast<uint8_t>(packed[j] | (offset >> 4) << 6);
    }
  }
  *d_bits = f32_to_f16(max_scale / 63.0f);
  *dmin_bits = f32_to_f16(max_offset / 63.0f);

  // Levels once more, for the scales as a reader will see them.
  for (int j = 0; j < 8; j++) {
    float d = f16_to_f32(*d_bits) * static_cast<float>(k_scale(packed, j));
    if (d == 0.0f) continue;
    float offset = f16_to_f32(*dmin_bits) * static_cast<float>(k_min(packed, j));
    for (int i = 32 * j; i < 32 * j + 32; i++) levels[i] = static_cast<uint8_t>(round_even((x[i] + offset) / d, 0, top));
  }
}

// Two bits of each of 256 levels: byte 32 * (i / 128) + i % 32, bits 2 * ((i % 128) / 32).
void pack_two_bits(const uint8_t* levels, uint8_t* qs) {
  for (int i = 0; i < 256; i++) {
    uint8_t& byte = qs[32 * (i / 128) + i % 32];
    byte = static_cast<uint8_t>(byte | (levels[i] & 3) << (2 * ((i % 128) / 32)));
  }
}

}  // namespace

void quantize_block(const float* x, BlockQ2_K* b) {
  uint8_t levels[256];
  AffineFit fits[16];
  float max_scale = 0.0f, max_offset = 0.0f;
  for (int j = 0; j < 16; j++) {
    float weights[16];
    for (int i = 0; i < 16; i++) weights[i] = std::fabs(x[16 * j + i]);
    fits[j] = fit_affine(x + 16 * j, weights, 16, 3, {-0.5f, 0.1f, 15}, Loss::absolute, levels + 16 * j);
    if (fits[j].scale > max_scale) max_scale = fits[j].scale;
    if (fits[j].offset > max_offset) max_offset = fits[j].offset;
  }

  float per_scale = max_scale > 0.0f ? 15.0f / max_scale : 0.0f;
  float per_offset = max_offset > 0.0f ? 15.0f / max_offset : 0.0f;
  b->d = f32_to_f16(max_scale / 15.0f);
  b->dmin = f32_to_f16(max_offset / 15.0f);
  for (int j = 0; j < 16; j++) {
    int scale = round_even(per_scale * fits[j].scale, 0, 15);
    int offset = round_even(per_offset * fits[j].offset, 0, 15);
    b->scales[j] = static_cast<uint8_t>(scale | offset << 4);
    float d = f16_to_f32(b->d) * static_cast<float>(scale);
    if (d == 0.0f) continue;
    float minimum = f16_to_f32(b->dmin) * static_cast<float>(offset);
    for (int i = 16 * j; i < 16 * j + 16; i++) levels[i] = static_cast<uint8_t>(round_even((x[i] + minimum) / d, 0, 3));
  }
  pack_two_bits(levels, b->qs);
}

void quantize_block(const float* x, BlockQ3_K* b) {
  float scales[16];
  uint8_t levels[256];
  for (int j = 0; j < 16; j++) scales[j] = fit_three_bit(x + 16 * j, levels + 16 * j);
  float max_scale = signed_peak(scales, 16);
  float per_scale = max_scale != 0.0f ? -32.0f / max_scale : 0.0f;
  b->d = f32_to_f16(per_scale != 0.0f ? 1.0f / per_scale : 0.0f);
  for (int j = 0; j < 16; j++) {
    int stored = max_scale != 0.0f ? round_even(per_scale * scales[j], -32, 31) + 32 : 0;
    b->scales[j % 8] = static_cast<uint8_t>(b->scales[j % 8] | (stored & 15) << (4 * (j / 8)));
    b->scales[8 + j % 4] = static_cast<uint8_t>(b->scales[8 + j % 4] | (stored >> 4) << (2 * (j / 4)));
  }

  for (int j = 0; j < 16; j++) {
    float d = f16_to_f32(b->d) * static_cast<float>(FormatQ3_K::scale(b, j));
    if (d == 0.0f) continue;
    for (int i = 16 * j; i < 16 * j + 16; i++) levels[i] = static_cast<uint8_t>(round_even(x[i] / d, -4, 3) + 4);
  }
  for (int i = 0; i < 256; i++) b->hmask[i % 32] = static_cast<uint8_t>(b->hmask[i % 32] | (levels[i] >> 2) << (i / 32));
  pack_two_bits(levels, b->qs);
}

void quantize_block(const float* x, BlockQ4_K* b) {
  uint8_t levels[256];
  quantize_scaled_minimums(x, 15, {-1.0f, 0.1f, 20}, &b->d, &b->dmin, b->scales, levels);
  for (int j = 0; j < 4; j++) pack_split_nibbles(levels + 64 * j, b->qs + 32 * j, 32);
}

void quantize_block(const float* x, BlockQ5_K* b) {
  uint8_t levels[256];
  quantize_scaled_minimums(x, 31, {-0.5f, 0.1f, 15}, &b->d, &b->dmin, b->scales, levels);
  for (int j = 0; j < 4; j++) pack_split_nibbles(levels + 64 * j, b->qs + 32 * j, 32);
  for (int i = 0; i < 256; i++) b->qh[i % 32] = static_cast<uint8_t>(b->qh[i % 32] | (levels[i] >> 4) << (i / 32));
}

void quantize_block(const float* x, BlockQ6_K* b) {
  float scales[16];
  uint8_t levels[256];
  for (int j = 0; j < 16; j++) scales[j] = fit_symmetric(x + 16 * j, 32, levels + 16 * j);
  float max_scale = signed_peak(scales, 16);
  if (std::fabs(max_scale) < tiny_group) return;  // all zero: the block was cleared

  float per_scale = -128.0f / max_scale;
  b->d = f32_to_f16(1.0f / per_scale);
  for (int j = 0; j < 16; j++) {
    b->scales[j] = static_cast<int8_t>(round_even(per_scale * scales[j], -128, 127));
    float d = f16_to_f32(b->d) * static_cast<float>(b->scales[j]);
    if (d == 0.0f) continue;
    for (int i = 16 * j; i < 16 * j + 16; i++) levels[i] = static_cast<uint8_t>(round_even(x[i] / d, -32, 31) + 32);
  }
  for (int i = 0; i < 256; i++) {
    int half = i / 128, quarter = (i % 128) / 32, lane = i % 32;
    uint8_t& low = b->ql[64 * half + 32 * (quarter & 1) + lane];
    uint8_t& high = b->qh[32 * half + lane];
    low = static_cast<uint8_t>(low | (levels[i] & 15) << (4 * (quarter >> 1)));
    high = static_cast<uint8_t>(high | (levels[i] >> 4) << (2 * quarter));
  }
}

}  // namespace bao
