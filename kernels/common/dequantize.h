// Rows of any GGUF type to f32, by the scalar closed forms of kernels/common/dequant.h. Portable and exact; the fast paths of the matmul
// kernels never go through here.
#ifndef BAO_CPU_DEQUANTIZE_H
#define BAO_CPU_DEQUANTIZE_H

#include <cstddef>
#include <cstdint>

#include "blocks.h"

namespace bao {

// Bytes of a row of n elements, or 0 when the dtype is unknown, n is not positive, n is not a multiple of the dtype's block, or the
// product does not fit in an int64.
int64_t row_bytes(int dtype, int64_t n);

// The type's name as file names and tables print it ("Q4_K", "BF16"), or nullptr for a type that Bao does not read.
const char* dtype_name(int dtype);

// src: row_bytes(dtype, n) bytes, any alignment. dst: (n) floats. False, and nothing is written, when row_bytes gives 0.
// Any bytes are accepted: a scale that is Inf or NaN yields non-finite values, never undefined behaviour.
bool dequantize_row(int dtype, const void* src, float* dst, int64_t n);

}  // namespace bao

#endif
