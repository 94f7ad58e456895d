// Tensor-core products of the quantised types with blocks of 32.
#include "mma_kernel.cuh"

namespace bao {
bool mma_launch_old(const MmaProduct& p, const Run& run) { return mma::launch_among<BAO_Q4_0, BAO_Q4_1, BAO_Q5_0, BAO_Q5_1, BAO_Q8_0>(p, run); }
}  // namespace bao
