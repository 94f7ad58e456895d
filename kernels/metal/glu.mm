// Gated activations: launches of glu.metal.
#include "encode.h"

namespace bao {

void encode_glu(const GluArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows <= 0) return;
  run.launch("glu", "glu").out(0, a.dst).in(1, a.gate).in(2, a.up).params(GluParams{rows_of(a.dst), rows_of(a.gate), rows_of(a.up), a.activation})
      .threads(a.dst.columns(), rows, 1, group_for(a.dst.columns()));
}

namespace metal {
void glu(Builder& b, const GluArgs& a) { stage<GluArgs, encode_glu>(b, a); }
}  // namespace metal

}  // namespace bao
