// The ops of this backend as one table, in the order of OpTable.
#include "run.h"

namespace bao {

extern const OpTable cuda_ops;
const OpTable cuda_ops = {
    cuda::embed,        cuda::rms_norm,     cuda::norm_add,     cuda::add_norm,   cuda::norm_add_norms,
    cuda::moe_merge,    cuda::rope_table,   cuda::rope,         cuda::kv_append,  cuda::head_norm_rope_append,
    cuda::attention,    cuda::matmul,       cuda::matmul_group, cuda::glu,        cuda::matmul_glu,
    cuda::topk_softmax, cuda::router,       cuda::moe_matmul,   cuda::moe_matmul_glu, cuda::moe_sum,
    cuda::moe_matmul_sum, cuda::add,        cuda::scale,        cuda::softcap,    cuda::copy,
    cuda::gather_rows,  cuda::ple_combine,  cuda::pool_rows,    cuda::argmax,     cuda::logits_process,
    cuda::logprobs,     cuda::sample,
};

}  // namespace bao
