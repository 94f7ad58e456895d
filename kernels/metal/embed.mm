// Embedding lookup: launches of embed.metal.
#include "encode.h"

namespace bao {
namespace {

void encode(const EmbedArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows <= 0) return;
  run.launch("embed", "embed", a.w.dtype).out(0, a.dst).in(1, a.w).params(EmbedParams{rows_of(a.dst), rows_of(a.w), a.scale})
      .threads(a.w.columns, rows, 1, group_for(a.w.columns));
}

}  // namespace

namespace metal {
void embed(Builder& b, const EmbedArgs& a) { stage<EmbedArgs, encode>(b, a); }
}  // namespace metal

}  // namespace bao
