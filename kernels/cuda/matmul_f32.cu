// Products with f32 activations (exact, or rounded to bf16 before): all weight types.
#include "matmul_kernels.cuh"

namespace bao {

void launch_exact(const Product& p, const Run& run) {
  with_dtype(p.w.dtype, [&](auto type) { launch_typed<decltype(type)::value, false>(p, run); });
}

}  // namespace bao
