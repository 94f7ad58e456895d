// Decode products for up to 8 rows: all quantised types.
#include "few_kernel.cuh"

namespace bao {

void launch_few_8(const FewArgs& a, dim3 grid, size_t shared, int limit, const Run& run) { few::launch_typed<1>(a, grid, shared, limit, run); }

}  // namespace bao
