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
    return columns(r, 3, "gate", a.gate, 2 * a.dst.columns()) && apart(r, 2, "dst", a.dst, "gate", a.gate);
  });
}
