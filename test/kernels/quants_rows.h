// Rows of unusual shape for the quantisers: outliers, one sign, empty groups, repeated values, tiny numbers. Made from integers alone, so
// that every machine makes the same floats; test/fixtures/quants/shapes.txt holds the hashes of what ggml makes of them.
#ifndef BAO_TEST_QUANTS_ROWS_H
#define BAO_TEST_QUANTS_ROWS_H

#include <cmath>
#include <cstdint>

struct ShapedRows {
  enum { kinds = 10, columns = 2048, rows = 100 };  // row r is of kind r % kinds
  uint32_t state = 20240229;

  // Roughly normal with deviation 1: a sum of four 10-bit numbers, exact in float.
  float normal() {
    int sum = -2046;
    for (int i = 0; i < 4; i++) sum += static_cast<int>(bits(10));
    return static_cast<float>(sum) / 591.0f;
  }

  uint32_t bits(int count) {
    state = state * 1664525u + 1013904223u;
    return state >> (32 - count);
  }

  void next(int row, float* x) {
    const float scale = std::ldexp(1.0f, static_cast<int>(bits(4)) - 12);
    for (int i = 0; i < columns; i++) {
      float v = normal() * scale;
      switch (row % kinds) {
        case 1: v = std::fabs(v); break;
        case 2: v = -std::fabs(v); break;
        case 3: v = i / 16 % 3 ? v : 0.0f; break;
        case 4: v = bits(6) == 0 ? v * 64.0f : v; break;
        case 5: v = (static_cast<float>(bits(16)) - 32768.0f) * scale / 32768.0f; break;
        case 6: v = static_cast<float>(static_cast<int>(bits(3)) - 4) * scale; break;
        case 7: v = i / 32 % 2 ? scale : v; break;
        case 8: v = i / 256 % 2 ? 0.0f : v * 1e-5f; break;
        case 9: v = i / 8 % 2 ? v + 3.0f * scale : v * 1e-7f; break;
        default: break;
      }
      x[i] = v;
    }
  }
};

// FNV-1a, continued from `hash`.
inline uint64_t hash_bytes(const uint8_t* bytes, int64_t n, uint64_t hash = 14695981039346656037ull) {
  for (int64_t i = 0; i < n; i++) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

#endif
