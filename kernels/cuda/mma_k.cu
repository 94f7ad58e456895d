// Tensor-core products of the k-quants.
#include "mma_kernel.cuh"

namespace bao {
bool mma_launch_k(const MmaProduct& p, const Run& run) { return mma::launch_among<BAO_Q2_K, BAO_Q3_K, BAO_Q4_K, BAO_Q5_K, BAO_Q6_K>(p, run); }
}  // namespace bao
