// Decode products for up to 16 rows: all quantised types.
#include "few_kernel.cuh"

namespace bao {

void launch_few_16(const FewArgs& a, dim3 grid, size_t shared, int limit, const Run& run) { few::launch_typed<2>(a, grid, shared, limit, run); }

}  // namespace bao
