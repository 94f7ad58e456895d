// The fast kernels for AVX2 with FMA and F16C. Everything has internal linkage, so that no other object file can end up with this code.
#if defined(__x86_64__)
#include <immintrin.h>
#include "../../bao.h"
#include "../../common/dequant.h"
#include "../../common/sample_mass.h"
#include "../dequantize.h"
#include "../ops.h"

namespace bao {
namespace isa_avx2 {
namespace {
#include "kernels.inc.h"
}  // namespace
}  // namespace isa_avx2

const OpTable* fast_ops_avx2() {
  static const OpTable table = isa_avx2::make_table();
  return &table;
}

}  // namespace bao
#endif
