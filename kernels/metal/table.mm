// The ops of this backend as one table, in the order of OpTable.
#include "encode.h"

namespace bao {

extern const OpTable metal_ops;
const OpTable metal_ops = {
    metal::embed,
    metal::rms_norm, metal::norm_add, metal::add_norm, metal::norm_add_norms, metal::moe_merge,
    metal::rope_table, metal::rope,
    metal::kv_append, metal::head_norm_rope_append,
    metal::attention,
    metal::matmul, metal::matmul_group,
    metal::glu,
    metal::matmul_glu,
    metal::topk_softmax, metal::router, metal::moe_matmul, metal::moe_matmul_glu, metal::moe_sum, metal::moe_matmul_sum,
    metal::add, metal::scale, metal::softcap, metal::copy, metal::gather_rows,
    metal::ple_combine,
    metal::pool_rows, metal::argmax,
    metal::logits_process, metal::logprobs, metal::sample,
};

}  // namespace bao
