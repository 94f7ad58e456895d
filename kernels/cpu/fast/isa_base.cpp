// The fast kernels for the oldest processor that is supported: SSE4.2, or NEON on arm64. Everything has internal linkage, so that no other object file can end up with this code.
#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif
#include "../../bao.h"
#include "../../common/dequant.h"
#include "../../common/sample_mass.h"
#include "../dequantize.h"
#include "../ops.h"

namespace bao {
namespace isa_base {
namespace {
#include "kernels.inc.h"
}  // namespace
}  // namespace isa_base

const OpTable* fast_ops_base() {
  static const OpTable table = isa_base::make_table();
  return &table;
}

}  // namespace bao
