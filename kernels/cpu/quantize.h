// Rows of f32 to GGUF's quantised types, without importance weights. All methods are deterministic and use no fused multiply-add, so a
// model converts to the same bytes on every machine (the files are compiled with -ffp-contract=off).
#ifndef BAO_CPU_QUANTIZE_H
#define BAO_CPU_QUANTIZE_H

#include <cstdint>

#include "../common/blocks.h"

namespace bao {

// src: (n) floats. dst: row_bytes(dtype, n) bytes, any alignment. False, and nothing is written, when row_bytes gives 0 or the type has no
// quantiser here (can_quantize).
//
// Non-finite input never fails: in quantised types NaN counts as 0, and what lies beyond the largest number that the type's scale can
// express (infinities included) counts as that number. F32, F16 and BF16 are plain conversions: NaN and infinities pass.
bool quantize_row(int dtype, const float* src, void* dst, int64_t n);

// Whether quantize_row accepts the dtype: all types of blocks.h.
bool can_quantize(int dtype);

// Q8_0 by itself, for activations and the KV cache: d = max|x| / 127, round half away from zero. n is a multiple of 32, else false.
bool quantize_q8_0(const float* src, void* dst, int64_t n);

// What quantisation lost: adds sum((x - dequantised)^2) to *err2 and sum(x^2) to *ref2, in ascending order and double, so that a caller
// sums rows and reports sqrt(err2 / ref2). q: row_bytes(dtype, n) bytes as quantize_row wrote them. Adds nothing when row_bytes gives 0.
void quantize_stats(int dtype, const float* src, const void* q, int64_t n, double* err2, double* ref2);

}  // namespace bao

#endif
