// The fast kernels for NEON with the dot-product instructions. Everything has internal linkage, so that no other object file can end up with this code.
#if defined(__aarch64__)
#include <arm_neon.h>
#include "../../bao.h"
#include "../../common/dequant.h"
#include "../../common/sample_mass.h"
#include "../dequantize.h"
#include "../ops.h"

namespace bao {
namespace isa_neon {
namespace {
#include "kernels.inc.h"
}  // namespace
}  // namespace isa_neon

const OpTable* fast_ops_neon() {
  static const OpTable table = isa_neon::make_table();
  return &table;
}

}  // namespace bao
#endif
