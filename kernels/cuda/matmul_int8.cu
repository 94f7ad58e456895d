// Products with int8 activations, one scale per 32: quantised weight types.
#include "matmul_kernels.cuh"

namespace bao {

void launch_int8(const Product& p, const Run& run) {
  with_dtype(p.w.dtype, [&](auto type) {
    constexpr int DT = decltype(type)::value;
    if constexpr (!is_plain(DT)) launch_typed<DT, true>(p, run);
  });
}

}  // namespace bao
