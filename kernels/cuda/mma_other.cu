// Tensor-core products of 16-bit weights and of types with tables.
#include "mma_kernel.cuh"

namespace bao {
bool mma_launch_other(const MmaProduct& p, const Run& run) { return mma::launch_among<BAO_F16, BAO_BF16, BAO_IQ4_NL, BAO_IQ4_XS, BAO_MXFP4, BAO_NVFP4>(p, run); }
}  // namespace bao
