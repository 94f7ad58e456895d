// The fast kernels for AVX-512 F, BW, DQ, VL and VNNI. Everything has internal linkage, so that no other object file can end up with this code.
#if defined(__x86_64__)
// GCC 12 reports its own AVX-512 header as reading undefined registers (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#include "../../bao.h"
#include "../../common/dequant.h"
#include "../../common/sample_mass.h"
#include "../dequantize.h"
#include "../ops.h"

namespace bao {
namespace isa_avx512 {
namespace {
#include "kernels.inc.h"
}  // namespace
}  // namespace isa_avx512

const OpTable* fast_ops_avx512() {
  static const OpTable table = isa_avx512::make_table();
  return &table;
}

}  // namespace bao
#endif
