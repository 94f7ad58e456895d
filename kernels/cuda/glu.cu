// Gated activations: dst = act(gate) * up, element by element.
#include "run.h"

namespace bao {
namespace {

__global__ void __launch_bounds__(256) glu_kernel(const StepRef* step, GluArgs a) {
  await_previous();
  let_next_start();
  int32_t rows = count_of(step, a.dst);
  int64_t columns = a.dst.columns(), i = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (i >= columns) return;
  for (int32_t r = blockIdx.y; r < rows; r += gridDim.y) {
    const float* gate = a.gate.f32(r);
    int64_t g = i;
    float up;
    if (a.up.present()) {
      up = a.up.f32(r)[i];
    } else {
      g = i / a.dst.d2 * 2 * a.dst.d2 + i % a.dst.d2;
      up = gate[g + a.dst.d2];
    }
    a.dst.f32(r)[i] = activate(gate[g], a.activation) * up;
  }
}

}  // namespace

void launch_glu(const GluArgs& a, const Run& run) {
  int32_t rows = run.bound(a.dst);
  if (rows > 0) launch(run, glu_kernel, dim3(blocks_of(a.dst.columns(), 256), grid_rows(rows)), 256, 0, run.step, a);
}

namespace cuda {
void glu(Builder& b, const GluArgs& a) { stage<GluArgs, launch_glu>(b, a); }
}  // namespace cuda

}  // namespace bao
