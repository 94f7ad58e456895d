// Embedding lookup: the row of each token id, dequantised and scaled.
#include "units.h"

namespace bao {
namespace {

template <int DT>
__global__ void __launch_bounds__(128) embed_kernel(const StepRef* step, EmbedArgs a) {
  let_next_start();
  await_previous();
  int32_t rows = count_of(step, a.dst);
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    float* dst = a.dst.f32(r);
    int32_t id = step->row_id[step->step_row(a.dst.rows_of, r)];
    bool known = id >= 0 && id < a.w.rows;
    if constexpr (is_plain(DT)) {
      const uint8_t* row = a.w.row(0, known ? id : 0);
      int32_t i = blockIdx.x * 128 + threadIdx.x;
      if (i < a.w.columns) dst[i] = known ? plain_value<DT>(row, i) * a.scale : 0.0f;
    } else {
      int32_t u = blockIdx.x * 128 + threadIdx.x;
      if (u >= a.w.columns / 8) continue;
      Unit unit = known ? load_unit<DT>(unit_row(a.w, 0, id), u) : Unit{0, 0, 0.0f, 0.0f};
      for (int i = 0; i < 8; i++) dst[u * 8 + i] = unit_value<DT>(unit, i) * a.scale;
    }
  }
}

void launch_embed(const EmbedArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows <= 0) return;
  with_dtype(a.w.dtype, [&](auto type) {
    constexpr int DT = decltype(type)::value;
    dim3 grid(blocks_of(is_plain(DT) ? a.w.columns : a.w.columns / 8, 128), grid_rows(rows));
    launch(run, embed_kernel<DT>, grid, dim3(128), 0, run.step, a);
  });
}

}  // namespace

namespace cuda {
void embed(Builder& b, const EmbedArgs& a) { stage<EmbedArgs, launch_embed>(b, a); }
}  // namespace cuda

}  // namespace bao
