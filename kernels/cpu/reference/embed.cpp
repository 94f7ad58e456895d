// Reference of the embedding lookup: the row of each token id, dequantised and scaled.
#include "reference.h"

#include "../dequantize.h"

namespace bao::reference {
namespace {

void embed_one(const EmbedArgs& a, const Run& run, int32_t r) {
  float* dst = a.dst.f32(r);
  int32_t id = run.step->row_id[run.step->step_row(a.dst.rows_of, r)];
  if (id < 0 || id >= a.w.rows || !dequantize_row(a.w.dtype, a.w.row(0, id), dst, a.w.columns)) {
    for (int64_t i = 0; i < a.dst.columns(); i++) dst[i] = 0;
    return;
  }
  for (int64_t i = 0; i < a.dst.columns(); i++) dst[i] *= a.scale;
}

}  // namespace

void embed(Builder& b, const EmbedArgs& a) { by_row<EmbedArgs, &EmbedArgs::dst, embed_one>(b, a); }

}  // namespace bao::reference
