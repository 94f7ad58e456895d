// Decode products for one row: all quantised types.
#include "few_kernel.cuh"

namespace bao {

void launch_few_1(const FewArgs& a, dim3 grid, size_t shared, int limit, const Run& run) { few::launch_typed<0>(a, grid, shared, limit, run); }

}  // namespace bao
