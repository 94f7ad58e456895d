// Elements of a weight's rows, for the type that this text is compiled for: BAO_DTYPE.
#ifndef BAO_METAL_FORMATS_H
#define BAO_METAL_FORMATS_H

#include "../common/dequant.h"

#if BAO_DTYPE == 0 || BAO_DTYPE == 1 || BAO_DTYPE == 30
#define BAO_PLAIN 1
#elif BAO_DTYPE == 2
typedef FormatQ4_0 Format;
#elif BAO_DTYPE == 3
typedef FormatQ4_1 Format;
#elif BAO_DTYPE == 6
typedef FormatQ5_0 Format;
#elif BAO_DTYPE == 7
typedef FormatQ5_1 Format;
#elif BAO_DTYPE == 8
typedef FormatQ8_0 Format;
#elif BAO_DTYPE == 10
typedef FormatQ2_K Format;
#elif BAO_DTYPE == 11
typedef FormatQ3_K Format;
#elif BAO_DTYPE == 12
typedef FormatQ4_K Format;
#elif BAO_DTYPE == 13
typedef FormatQ5_K Format;
#elif BAO_DTYPE == 14
typedef FormatQ6_K Format;
#elif BAO_DTYPE == 20
typedef FormatIQ4_NL Format;
#elif BAO_DTYPE == 23
typedef FormatIQ4_XS Format;
#elif BAO_DTYPE == 39
typedef FormatMXFP4 Format;
#elif BAO_DTYPE == 40
typedef FormatNVFP4 Format;
#else
#error "BAO_DTYPE is no weight type"
#endif

// Element i of a row.
inline float element(device const uint8_t *row, int32_t i) {
#if BAO_DTYPE == 0
  return ((device const float *)row)[i];
#elif BAO_DTYPE == 1
  return float(((device const half *)row)[i]);
#elif BAO_DTYPE == 30
  return bf16_to_f32(((device const uint16_t *)row)[i]);
#else
  device const Format::Block *blocks = (device const Format::Block *)row;
  return Format::at(blocks + i / Format::elements, i % Format::elements);
#endif
}

inline device const uint8_t *row_of(device const uint8_t *w, constant WeightRows &v, int32_t expert, int32_t row) {
  return w + expert * v.expert_bytes + row * v.row_bytes;
}

#endif
