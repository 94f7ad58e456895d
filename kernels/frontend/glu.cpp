// Exported gated activation: validation of its operands.
#include "entry.h"

using namespace bao;
using namespace bao::entry;

int32_t bao_glu(bao_handle stream, bao_handle dst, bao_handle gate, bao_handle up, int32_t activation) {
  return record(stream, BAO_OP_GLU, "bao_glu", &OpTable::glu, [&](Recording& r, GluArgs& a) {
    a.activation = activation;
    if (!(r.tensor(2, "dst", dst, &a.dst) && r.tensor(3, "gate", gate, &a.gate) && rows(r, 3, "gate", a.gate, a.dst) &&
          r.tensor(4, "up", up, &a.up, BAO_F32, true) && in_range(r, 5, "activation", activation, BAO_ACTIVATION_GELU, BAO_ACTIVATION_SILU))) {
      return false;
    }
    if (a.up.present()) return columns(r, 3, "gate", a.gate, a.dst.columns()) && rows(r, 4, "up", a.up, a.dst) && columns(r, 4, "up", a.up, a.dst.columns());
    if (a.gate.d1 != a.dst.d1 || int64_t(a.gate.d2) != 2 * int64_t(a.dst.d2)) {
      return r.invalid(3, "gate is (%d, %d), expected (%d, %lld): gate then up", a.gate.d1, a.gate.d2, a.dst.d1, 2LL * a.dst.d2);
    }
    return apart(r, 2, "dst", a.dst, "gate", a.gate);
  });
}
